"""Distributed traces: the forwarded context of a client, and the spans that a collector receives."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.server.collector import Collector, ReceivedSpan, collecting
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import CHAT, DONE, ROLE, STOP, USAGE, json_error, run_server
from tests.server.test_continuation import BROKEN, FIRST, PREFILL, REST, words
from tests.server.test_continuation import STREAM as STREAM_WITH_USAGE
from tests.server.test_response_sockets import ANSWER, client_of
from tests.table import table
from welldone.mock.script import HELLO_REPLY, MockChunk, MockReply, json_reply
from welldone.server.observe.log import LogHandler

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
STREAM = {**CHAT, "stream": True}
FAILED = json_error(500, {"error": {"message": "oops"}})
SERVER, CLIENT = 2, 3

Send = Callable[[Gateway], Awaitable[object]]


def received_headers(folder: Path, headers: str, path: str = "/v1/chat/completions", **settings: Any) -> dict[str, str]:  # noqa: ANN401 - settings of the gateway
    """The trace context that an upstream receives."""

    async def work() -> dict[str, str]:
        reply = HELLO_REPLY if "chat" in path else json_reply({"object": "list", "data": []})
        async with gateway(folder, [reply], **settings) as serving:
            assert (await serving.post({**CHAT, "input": "Hi"}, path, headers)).status == 200
            (request,) = [one for one in serving.upstreams[0].requests if one.method == "POST"]
        return {name: value for name, value in request.headers.items() if name.lower().startswith("trace")}

    return run(work())


@table(
    "parent",
    [PARENT, f"00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01", f"01-{TRACE}-{SPAN}-01-what-follows", f" {PARENT}\t"],
)
def test_without_tracing_a_valid_context_is_forwarded_unchanged(tmp_path: Path, parent: str) -> None:
    state = "rojo=00f067aa0ba902b7, congo=t61rcWkgMzE,,tenant@vendor=a b"
    found = received_headers(tmp_path, f"traceparent: {parent}\r\ntracestate: {state}\r\n")
    assert found == {"traceparent": parent.strip(), "tracestate": state}


@table(
    "parent",
    [
        *("", "garbage", TRACE, f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-01-more", f"00-{TRACE}-{SPAN}-0g"),
        *(f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE.upper()}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01"),
        *(f"00-{TRACE}-{'0' * 16}-01", f"01-{TRACE}-{SPAN}-01-{'x' * 300}", f"{PARENT}\r\ntraceparent: {PARENT}"),
        f"01-{TRACE}-{SPAN}-01x",
    ],
)
def test_a_malformed_context_is_dropped(tmp_path: Path, parent: str) -> None:
    assert received_headers(tmp_path, f"traceparent: {parent}\r\ntracestate: a=1\r\n") == {}


@table(
    "state",
    [
        *("", ",", "a", "A=1", "a=1,a=2", "a=b=c", "a=é", f"{'k' * 257}=1", f"a={'v' * 257}"),
        *(",".join(f"k{number}=1" for number in range(33)), ",".join(f"k{n}={'v' * 200}" for n in range(32))),
    ],
)
def test_a_malformed_state_is_dropped_and_the_parent_forwarded(tmp_path: Path, state: str) -> None:
    found = received_headers(tmp_path, f"traceparent: {PARENT}\r\ntracestate: {state}\r\n")
    assert found == {"traceparent": PARENT}


def test_several_state_headers_are_one_list(tmp_path: Path) -> None:
    headers = f"traceparent: {PARENT}\r\ntracestate: a=1\r\ntracestate: b=2\r\n"
    assert received_headers(tmp_path, headers)["tracestate"] == "a=1,b=2"


@table("path", ["/v1/embeddings", "/v1/chat/completions"])
def test_a_context_of_the_configuration_has_priority(tmp_path: Path, path: str) -> None:
    each = {"headers": {"Traceparent": f"00-{SPAN}{SPAN}-{SPAN}-00"}}
    found = received_headers(tmp_path, f"traceparent: {PARENT}\r\ntracestate: a=1\r\n", path, each=each)
    assert found == {"traceparent": f"00-{SPAN}{SPAN}-{SPAN}-00", "tracestate": "a=1"}


def test_without_a_context_none_is_sent(tmp_path: Path) -> None:
    assert received_headers(tmp_path, "tracestate: a=1\r\n") == {}


def test_the_log_has_the_id_of_the_trace(tmp_path: Path) -> None:
    async def work() -> list[dict[str, Any]]:
        async with gateway(tmp_path, [HELLO_REPLY]) as serving:
            await serving.post(headers=f"traceparent: {PARENT}\r\n")
            await serving.post()
            rows: list[dict[str, Any]] = (await serving.get("/page/api/state")).json["recent"]
        return rows

    assert [row.get("trace_id") for row in run(work())] == [None, TRACE]


# Spans.


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector to which the environment points."""
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        yield found


def spans_of(
    folder: Path,
    collector: Collector,
    send: Send,
    *scripts: Any,  # noqa: ANN401 - scripts of upstreams
    **settings: Any,  # noqa: ANN401 - settings of the gateway
) -> list[ReceivedSpan]:
    """The spans of a gateway after its stop."""

    async def work() -> None:
        async with gateway(folder, *scripts, config={"is_traced": True}, **settings) as serving:
            await send(serving)

    run(work())
    return collector.spans


def posting(request: dict[str, Any] = STREAM, path: str = "/v1/chat/completions", headers: str = "") -> Send:
    return lambda serving: serving.post(request, path, headers)


def test_an_answer_is_a_span_with_a_child_for_its_attempt(tmp_path: Path, collector: Collector) -> None:
    upstream_headers: dict[str, str] = {}

    async def send(serving: Gateway) -> None:
        await serving.get("/health")
        reply = await serving.post(STREAM_WITH_USAGE, headers=f"traceparent: {PARENT}\r\ntracestate: a=1\r\n")
        assert reply.status == 200
        await serving.get("/metrics")
        (request,) = [one for one in serving.upstreams[0].requests if one.method == "POST"]
        upstream_headers.update(request.headers)

    reply = MockReply((ROLE, *words("Hello"), STOP, USAGE, DONE))
    server, attempt = spans_of(tmp_path, collector, send, [reply])
    assert (server.name, server.kind, server.is_error) == ("POST /v1/chat/completions", SERVER, False)
    assert (server.trace_id, server.parent_id, server.trace_state) == (TRACE, SPAN, "a=1")
    assert server.attributes.pop("gen_ai.response.time_to_first_chunk") > 0
    assert server.attributes.pop("welldone.request.id").startswith("req_")
    assert server.attributes.pop("welldone.queue.duration") >= 0
    assert server.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 1,
        "welldone.upstream.name": "a",
    }
    assert (attempt.name, attempt.kind, attempt.is_error) == ("chat m", CLIENT, False)
    assert (attempt.trace_id, attempt.parent_id) == (TRACE, server.span_id)
    port = attempt.attributes.pop("server.port")
    assert port > 0
    assert attempt.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "server.address": "127.0.0.1",
        "welldone.upstream.name": "a",
        "welldone.attempt.number": 1,
    }
    names = {name.lower(): value for name, value in upstream_headers.items()}
    assert (names["traceparent"], names["tracestate"]) == (f"00-{TRACE}-{attempt.span_id}-01", "a=1")
    assert server.resource["service.name"] == "welldone"
    assert server.resource["service.version"]


def test_a_repaired_answer_has_an_event_for_each_rule(tmp_path: Path, collector: Collector) -> None:
    reply = MockReply((ROLE, ROLE, *words("Hello", " you"), STOP))
    server, _ = spans_of(tmp_path, collector, posting(), [reply])
    repairs = server.events_of("welldone.repair")
    assert {"welldone.rule.id": "end-done-sent", "welldone.rule.severity": "breaks", "welldone.repair.count": 1} in [
        *repairs
    ], repairs
    assert {repair["welldone.rule.severity"] for repair in repairs} <= {"breaks", "tolerated", "style"}
    assert server.attributes["gen_ai.response.finish_reasons"] == ["stop"]


def test_a_retried_answer_has_an_event_and_a_span_for_each_attempt(tmp_path: Path, collector: Collector) -> None:
    server, first, second = spans_of(tmp_path, collector, posting(), [FAILED], [HELLO_REPLY], first={"weight": 1000.0})
    assert server.events_of("welldone.retry") == [
        {"welldone.upstream.name": "a", "welldone.attempt.number": 1, "error.type": "500"}
    ]
    assert (first.attributes["error.type"], first.is_error) == ("500", True)
    assert [one.attributes["welldone.upstream.name"] for one in (server, first, second)] == ["b", "a", "b"]
    assert [one.attributes["welldone.attempt.number"] for one in (first, second)] == [1, 2]
    assert first.parent_id == second.parent_id == server.span_id
    assert not server.is_error
    assert not second.is_error


def test_a_continued_answer_has_an_event_with_way_and_outcome(tmp_path: Path, collector: Collector) -> None:
    settings = {**PREFILL, **FIRST, "each": {**PREFILL["each"], **FIRST["each"]}}
    server, first, second = spans_of(tmp_path, collector, posting(STREAM_WITH_USAGE), [BROKEN], [REST], **settings)
    assert server.events_of("welldone.continuation") == [
        {"welldone.continuation.way": "prefill", "welldone.continuation.outcome": "complete"}
    ]
    assert server.events_of("welldone.retry") == []
    assert (first.is_error, second.is_error, server.is_error) == (True, False, False)
    assert server.attributes["gen_ai.usage.output_tokens"] == 7


def test_an_answer_that_could_not_be_continued_is_an_error(tmp_path: Path, collector: Collector) -> None:
    server, attempt = spans_of(tmp_path, collector, posting(), [BROKEN])
    assert server.events_of("welldone.continuation") == [
        {"welldone.continuation.way": "none", "welldone.continuation.outcome": "failed"}
    ]
    assert (server.is_error, server.attributes["error.type"]) == (True, "upstream_died")
    assert server.attributes["http.response.status_code"] == 200
    assert attempt.is_error


def test_all_choices_are_attempts_that_end_well(tmp_path: Path, collector: Collector) -> None:
    server, *attempts = spans_of(tmp_path, collector, posting({**STREAM, "n": 3}), [HELLO_REPLY])
    assert server.attributes["gen_ai.response.finish_reasons"] == ["stop"] * 3
    assert [(one.is_error, one.attributes.get("error.type")) for one in attempts] == [(False, None)] * 3


def test_repeated_answers_that_follow_a_template_have_finish_reasons(tmp_path: Path, collector: Collector) -> None:
    async def send(serving: Gateway) -> None:
        for _ in range(4):
            await serving.post(STREAM_WITH_USAGE)

    long = MockReply((ROLE, *words("one", " two", " three"), STOP, USAGE, DONE))
    spans = [one for one in spans_of(tmp_path, collector, send, [long]) if one.kind == SERVER]
    assert [one.attributes["gen_ai.response.finish_reasons"] for one in spans] == [["stop"]] * 4


MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "Hello"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 1},
}


@table(
    "path, body, script, settings, expected",
    [
        ("/v1/completions", {"model": "m", "prompt": "Hi"}, None, {}, {"gen_ai.operation.name": "text_completion"}),
        (
            "/v1/messages",
            {"model": "m", "max_tokens": 9, "messages": CHAT["messages"]},
            [json_reply(MESSAGE)],
            {"each": {"speaks": ("messages",)}},
            {"gen_ai.operation.name": "chat", "gen_ai.response.finish_reasons": ["end_turn"]},
        ),
        (
            "/v1beta/models/m:generateContent",
            {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
            None,
            {},
            {"gen_ai.operation.name": "generate_content", "http.route": "/v1beta/models/{id}:generateContent"},
        ),
        (
            "/v1/embeddings",
            {"model": "m", "input": "Hi"},
            [json_reply({"object": "list", "data": [], "usage": {"prompt_tokens": 3, "total_tokens": 3}})],
            {},
            {"gen_ai.operation.name": "embeddings", "gen_ai.usage.input_tokens": 3},
        ),
        (
            "/v1/rerank",
            {"model": "m", "query": "Hi", "documents": []},
            [json_reply({"results": []})],
            {},
            {"http.route": "/v1/rerank", "gen_ai.request.model": "m"},
        ),
    ],
)
def test_spans_of_other_endpoints(
    tmp_path: Path,
    collector: Collector,
    path: str,
    body: dict[str, Any],
    script: Any,  # noqa: ANN401 - script of an upstream
    settings: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    choice = '{"index":0,"text":"Hi","finish_reason":"stop"}'
    chunk = f'{{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{choice}]}}'
    completion = MockReply((MockChunk(f"data: {chunk}\n\n"), DONE))
    default = [completion if path == "/v1/completions" else HELLO_REPLY]
    collector.bodies.clear()
    server, attempt = spans_of(tmp_path, collector, posting(body, path), script or default, **settings)
    assert server.attributes["http.response.status_code"] == 200
    assert {name: server.attributes.get(name) for name in expected} == expected
    assert attempt.name == f"{expected.get('gen_ai.operation.name', 'rerank')} m"


def test_requests_without_an_answer_have_a_span_too(tmp_path: Path, collector: Collector) -> None:
    async def send(serving: Gateway) -> None:
        assert (await serving.get("/v1/models")).status == 200
        assert (await serving.get("/v1/secret-of-a-client", method="PROPFIND")).status == 404
        assert (await serving.post({"messages": []}, headers="Content-Encoding: gzip\r\n")).status == 415

    spans = spans_of(tmp_path, collector, send, [HELLO_REPLY])
    assert [one.name for one in spans] == ["GET /v1/models", "HTTP", "POST /v1/chat/completions"]
    _, unknown, refused = spans
    assert unknown.attributes["http.request.method"] == "_OTHER"
    assert "url.path" not in unknown.attributes
    assert (unknown.attributes["error.type"], refused.attributes["error.type"]) == ("not_found", "unsupported_encoding")
    assert not any(one.is_error for one in spans)  # 4xx: the server is not at fault


def test_an_error_whose_code_is_a_sentence_has_its_status_as_type(tmp_path: Path, collector: Collector) -> None:
    async def send(serving: Gateway) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", serving.server.port)
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n"
        writer.write(head.encode())
        assert b" 413 " in await reader.readline()
        writer.close()

    (span,) = spans_of(tmp_path, collector, send, [HELLO_REPLY])
    assert span.attributes["error.type"] == "413"


def test_a_client_that_disconnects_is_no_error(tmp_path: Path, collector: Collector) -> None:
    async def send(serving: Gateway) -> None:
        _, writer = await serving.send(STREAM)
        await serving.upstreams[0].wait_until(lambda: serving.post_counts == [1])
        writer.close()
        await serving.upstreams[0].wait_until(lambda: serving.upstreams[0].requests[-1].end == "left")

    server, attempt = spans_of(tmp_path, collector, send, [MockReply((ROLE,), end="hang")], early_s=0.01)
    assert server.attributes["welldone.client.disconnected"] is True
    assert "http.response.status_code" not in server.attributes
    assert attempt.attributes["error.type"] == "left"
    assert not (server.is_error)
    assert not (attempt.is_error)


def test_a_resumable_stream_goes_on_after_the_span_of_its_request(
    tmp_path: Path, collector: Collector, capsys: pytest.CaptureFixture[str]
) -> None:
    async def send(serving: Gateway) -> None:
        reader, writer = await serving.send(STREAM, headers="x-welldone-resume: 1\r\n")
        await reader.readuntil(b"Hello")
        writer.close()
        await serving.upstreams[1].wait_until(lambda: serving.post_counts == [1, 1])
        await serving.upstreams[1].wait_until(lambda: serving.upstreams[1].requests[-1].end == "whole")

    cut = MockReply((ROLE, *words("Hello"), MockChunk(after_s=0.3)), end="cut")
    settings = {**PREFILL, **FIRST, "each": {**PREFILL["each"], **FIRST["each"]}, "early_s": 0.01}
    with LogHandler(stream=sys.stderr):
        spans = spans_of(tmp_path, collector, send, [cut], [HELLO_REPLY], **settings)
    assert [one.kind for one in spans] == [SERVER, CLIENT, CLIENT]
    assert spans[0].attributes["welldone.client.disconnected"] is True
    assert "OpenTelemetry" not in capsys.readouterr().err


def test_each_response_on_a_websocket_has_a_span(tmp_path: Path, collector: Collector) -> None:
    async def send(serving: Gateway) -> None:
        async with client_of(serving) as client:
            for _ in range(2):
                assert (await client.create())["status"] == "completed"

    spans = spans_of(tmp_path, collector, send, [ANSWER])
    names = ["GET /v1/responses", *["POST /v1/responses", "chat m"] * 2]
    assert [one.name for one in spans] == names
    connection, first, attempt, *_ = spans
    assert connection.attributes["http.response.status_code"] == 101
    assert first.attributes["gen_ai.operation.name"] == "chat"
    assert attempt.parent_id == first.span_id


def test_a_background_response_has_spans(tmp_path: Path, collector: Collector) -> None:
    async def send(serving: Gateway) -> None:
        body = {"model": "m", "input": "Hi", "background": True}
        response = (await serving.post(body, "/v1/responses")).json
        while (await serving.get(f"/v1/responses/{response['id']}")).json["status"] != "completed":
            pass

    server, attempt, *_ = spans_of(tmp_path, collector, send, [ANSWER])
    assert server.name == "POST /v1/responses"
    assert (attempt.parent_id, attempt.is_error) == (server.span_id, False)


def test_a_local_model_has_spans(tmp_path: Path, collector: Collector) -> None:
    async def work() -> None:
        async with run_server(tmp_path, HELLO_REPLY, is_traced=True) as serving:
            assert (await serving.post(STREAM)).status == 200

    run(work())
    server, attempt = collector.spans
    assert attempt.parent_id == server.span_id
    assert "welldone.upstream.name" not in server.attributes
    assert attempt.attributes["welldone.upstream.name"] == server.attributes["gen_ai.request.model"]


def test_spans_have_no_text_of_requests_answers_or_errors(tmp_path: Path, collector: Collector) -> None:
    async def send(serving: Gateway) -> None:
        request = {**STREAM, "messages": [{"role": "user", "content": "PROMPT-CANARY"}], "user": "PROMPT-CANARY"}
        for _ in range(5):
            await serving.post(request, headers="x-canary: PROMPT-CANARY\r\nAuthorization: Bearer PROMPT-CANARY\r\n")

    answers = [
        MockReply((ROLE, *words("ANSWER-CANARY"), STOP, DONE)),
        MockReply((MockChunk("data: ANSWER-CANARY\n\n"), ROLE, ROLE, *words("ANSWER-CANARY"), STOP)),
        json_error(500, {"error": {"message": "ANSWER-CANARY", "code": "ANSWER CANARY"}}),
        json_error(400, {"error": {"message": "ANSWER-CANARY", "code": "ANSWER CANARY"}}),
        MockReply((ROLE, MockChunk('data: {"error":{"message":"ANSWER-CANARY"}}\n\n'), DONE)),
    ]
    assert len(spans_of(tmp_path, collector, send, answers)) >= 10
    assert b"canary" not in b"".join(collector.bodies).lower()


def test_a_long_path_is_truncated(tmp_path: Path, collector: Collector) -> None:
    (span,) = spans_of(tmp_path, collector, lambda serving: serving.get(f"/v1/models/{'m' * 4_000}"), [HELLO_REPLY])
    assert span.name == "GET /v1/models/{id}"
    assert len(span.attributes["url.path"]) == 256


def test_the_standard_variables_apply(tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "gate")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=blue")
    server, _ = spans_of(tmp_path, collector, posting(), [HELLO_REPLY])
    assert server.resource["service.name"] == "gate"
    assert server.resource["deployment.environment.name"] == "lab"
    assert collector.headers[0]["x-team"] == "blue"


@table("sampler, flags", [("always_off", "00"), ("parentbased_always_off", "01")])
def test_a_trace_that_is_not_sampled_is_passed_on(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch, sampler: str, flags: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    found: list[str] = []

    async def send(serving: Gateway) -> None:
        await serving.post(headers=f"traceparent: {PARENT}\r\n")
        (request,) = [one for one in serving.upstreams[0].requests if one.method == "POST"]
        found.append(request.headers["traceparent"])

    collector.bodies.clear()
    spans = spans_of(tmp_path, collector, send, [HELLO_REPLY])
    assert bool(spans) is (flags == "01")  # the parent is sampled
    (header,) = found
    assert header.startswith(f"00-{TRACE}-")
    assert header.endswith(f"-{flags}")
    assert SPAN not in header


def test_a_missing_collector_costs_a_log_line_and_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with collecting() as gone:
        url = gone.url
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")

    async def work() -> float:
        async with gateway(tmp_path, [HELLO_REPLY], config={"is_traced": True}) as serving:
            for _ in range(20):
                assert (await serving.post(STREAM)).status == 200
            began = time.monotonic()
        return time.monotonic() - began

    with LogHandler(stream=sys.stderr):
        stop_s = run(work())
    lines = [line for line in capsys.readouterr().err.splitlines() if "OpenTelemetry" in line]
    assert len(lines) == 1, lines
    assert stop_s < 60


@pytest.mark.tier2
def test_without_tracing_the_library_is_not_imported(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from welldone.config.server import Config, ServeSettings
from welldone.server.server import Server
Server(Config(server=ServeSettings(), models=(), upstreams=()), keys=[], folder=Path("."))
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"
