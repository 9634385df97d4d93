"""Every mock fault and every recorded reply through the gateway: the client's response and the upstream attempts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.http.aio import run
from tests.recorded.traces import RECORDED, RecordedTrace, read_content, recorded_traces
from tests.server.persistent_gateway import PersistentGateway, persistent_gateway
from tests.server.running_gateway import gateway
from tests.server.running_server import CHAT, RecordedReply
from tests.table import table
from welldone.core import sse
from welldone.core.catalog import Severity
from welldone.core.envelope import Endpoint
from welldone.gateway import error_mapping
from welldone.mock.script import HELLO_REPLY, MockChunk, MockReply, MockScript, ReplyEnd, reply_from_trace
from welldone.mock.server import MockServer
from welldone.mock.variants import ALL_FAULTS, FAULT_REPLIES
from welldone.rules.judge import judge
from welldone.server.generation import answer, attempt
from welldone.stream import pipeline

STREAM = {**CHAT, "stream": True}
BOTH = table("request_body", [STREAM, CHAT], ids=["stream", "whole"])
FIRST: Any = {"each": {"weight": 0.01}, "first": {"weight": 1000.0}}
"""The first upstream is chosen first, except once in 100,000 times."""
UNCOUNTED = {"ns-usage", "use-final-chunk", "cmpl-usage-chunk", "tool-no-markup-leak"}
"""Missing usage is not invented, and a call that the model wrote as text is only reported."""
PAUSE_S = 0.05  # after the first chunk, so that the client has received it


class Fails(NamedTuple):
    """The failure with a single upstream: status and error code."""

    status: int
    code: str | None


FINE = {
    *("no-done", "no-finish", "close-after", "slow", "wrong-type", "too-short", "no-length", "http-1.0", "whole"),
    "stream",
}
"""Repairable faults. A stream with `[DONE]` is complete, even without a finish reason or the end of the HTTP body."""

AT_ONCE = {
    "empty": Fails(502, "incomplete_stream"),
    "close-first": Fails(502, "upstream_died"),
    "reset-first": Fails(502, "upstream_died"),
    "hang-first": Fails(504, "timeout"),
    "cut-head": Fails(502, "upstream_died"),
    "not-http": Fails(502, "upstream_died"),
    "garbage": Fails(502, "incomplete_stream"),
    "limited": Fails(429, "rate_limit_exceeded"),
    "limited-silent": Fails(429, "rate_limit_exceeded"),
    "broken": Fails(502, "upstream_error"),
    "unavailable": Fails(503, "upstream_unavailable"),
    "unavailable-silent": Fails(503, "upstream_unavailable"),
    "html": Fails(502, "upstream_unreadable"),
    "gzip": Fails(502, "upstream_unreadable"),
    "gzip-bomb": Fails(502, "upstream_unreadable"),
    "redirect-301": Fails(502, "upstream_redirect"),
    "redirect-302": Fails(502, "upstream_redirect"),
    "redirect-307": Fails(502, "upstream_redirect"),
    "redirect-308": Fails(502, "upstream_redirect"),
}
"""Faults before the first content: a status, or a retry with another upstream."""

ON_THE_WAY = {
    "cut": Fails(502, "upstream_died"),
    "reset": Fails(502, "upstream_died"),
    "hang": Fails(504, "timeout"),
    "bad-json": Fails(502, "bad_upstream_stream"),
    "error-event": Fails(502, None),
    "long-line": Fails(502, "bad_upstream_stream"),
    "too-long": Fails(502, "incomplete_stream"),
}
"""Faults after the first content: an error event in a stream; a whole reply can still be retried."""

LEFT_ALONE = {"endless"}
"""Faults that end when the client disconnects."""


def test_every_fault_is_covered() -> None:
    assert {*FINE, *AT_ONCE, *ON_THE_WAY, *LEFT_ALONE} == {fault.name for fault in ALL_FAULTS}


def with_pause(reply: MockReply) -> MockReply:
    """Return the reply with a pause, so that the client receives the first chunk before the second is sent."""
    first, *rest = reply.pieces
    rest[0] = msgspec.structs.replace(rest[0], after_s=PAUSE_S)
    return msgspec.structs.replace(reply, pieces=(first, *rest))


def send_request(
    folder: Path, name: str, request: dict[str, Any], others: int | str
) -> tuple[RecordedReply, list[int]]:
    """Return the response and the attempts per upstream; `others` upstreams are healthy, or have the same fault."""
    reply = with_pause(FAULT_REPLIES[name]) if name in ON_THE_WAY else FAULT_REPLIES[name]
    # A byte at a time is too slow for a test: 20 times faster is still one by one.
    script = MockScript(posts=(reply,), speed=20.0 if name == "slow" else 1.0)
    more: list[Any] = [script] if others == "the same" else [[HELLO_REPLY]] * int(others)
    limits: Any = {"first_byte_s": 0.4, "idle_s": 0.4} if name.startswith("hang") else {}

    async def work() -> tuple[RecordedReply, list[int]]:
        async with gateway(folder, script, *more, **FIRST, **limits, continuation="off") as serving:
            return await serving.post(request), serving.post_counts

    return run(work())


def check(response: RecordedReply) -> None:
    """Check that the response violates no rule."""
    assert set(response.findings()) <= UNCOUNTED
    assert response.capture.complete


def is_success(response: RecordedReply) -> bool:
    return response.status == 200 and b'"error"' not in response.body and b"Hello" in response.body


@BOTH
@table("name", sorted(FINE))
def test_a_repairable_fault_gives_a_response(tmp_path: Path, name: str, request_body: dict[str, Any]) -> None:
    response, attempts = send_request(tmp_path, name, request_body, 1)
    check(response)
    assert is_success(response)
    assert attempts == [1, 0]


@BOTH
@table("others", [0, 1, "the same"])
@table("name", sorted(AT_ONCE))
def test_an_early_failure_is_a_status_or_is_retried(
    tmp_path: Path, name: str, others: int | str, request_body: dict[str, Any]
) -> None:
    response, attempts = send_request(tmp_path, name, request_body, others)
    check(response)
    if others == 1:
        assert is_success(response)
    else:
        assert (response.status, response.error["code"]) == AT_ONCE[name]
    assert attempts == ([1] if others == 0 else [1, 1])


@table("name", sorted(ON_THE_WAY))
def test_a_late_failure_is_an_error_event(tmp_path: Path, name: str) -> None:
    response, attempts = send_request(tmp_path, name, STREAM, 1)
    check(response)
    assert (response.status, response.error["code"]) == (200, ON_THE_WAY[name].code)
    assert response.body.endswith(sse.DONE)
    assert attempts == [1, 0]


@table("others", [0, 1, "the same"])
@table("name", sorted(ON_THE_WAY))
def test_a_late_failure_is_retried_for_a_whole_reply(tmp_path: Path, name: str, others: int | str) -> None:
    response, attempts = send_request(tmp_path, name, CHAT, others)
    check(response)
    if others == 1:
        assert is_success(response)
        assert attempts == [1, 1]
    else:
        assert (response.status, response.error["code"]) == ON_THE_WAY[name]
        assert sum(attempts) == (1 if others == 0 else 2)


@BOTH
@table("name", ["limited", "unavailable"])
def test_retry_after_is_forwarded(tmp_path: Path, name: str, request_body: dict[str, Any]) -> None:
    response, _ = send_request(tmp_path, name, request_body, 0)
    assert response.capture.header("retry-after") == "7"


@BOTH
def test_a_disconnected_client_ends_an_endless_stream(tmp_path: Path, request_body: dict[str, Any]) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [FAULT_REPLIES["endless"]]) as serving:
            upstream = serving.upstreams[0]
            reader, writer = await serving.send(request_body)
            await upstream.wait_until(lambda: serving.post_counts == [1])
            if request_body is STREAM:
                assert (await reader.readexactly(2**18)).count(b"Hello") > 1000
            writer.transport.abort()
            await _until_left(upstream)

    run(work())


async def _until_left(upstream: MockServer) -> None:
    """Wait until the gateway has closed the upstream connection."""
    await upstream.wait_until(lambda: any(one.end == "left" for one in upstream.requests))


def endless(start: str, again: str, **fields: Any) -> MockReply:  # noqa: ANN401 - fields of a reply
    return MockReply((MockChunk(start), MockChunk(again)), end="endless", **fields)


JSON = {"Content-Type": "application/json"}
ENDLESS = {
    "a stream": (FAULT_REPLIES["endless"], "upstream_unreadable"),
    "a line": (endless("data: ", "x" * 65536), "upstream_unreadable"),
    "a JSON object": (endless('{"choices":[', "[" * 65536, headers=JSON), "upstream_unreadable"),
    "blanks": (endless(" ", " " * 65536, headers=JSON), "upstream_unreadable"),
    "an error": (endless("{", "x" * 65536, status=500, headers=JSON), "upstream_error"),
    "a head": (endless("HTTP/1.1 200 OK\r\n", "X-Odd: 1\r\n", raw=True), "upstream_died"),
    "hints": (endless("", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", raw=True), "upstream_died"),
    "the size of a chunk": (
        endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "0" * 64, raw=True),
        "upstream_died",
    ),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_stream_is_limited_for_a_whole_reply(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "_BUFFERED_LIMIT_BYTES", 2**18)
    monkeypatch.setattr(attempt, "STEPWISE_LIMIT_BYTES", 2**18)
    reply, code = ENDLESS[name]

    async def work() -> None:
        async with gateway(tmp_path, [reply]) as serving:
            response = await serving.post(CHAT)
            check(response)
            assert (response.status, response.error["code"]) == (502, code)
            await _until_left(serving.upstreams[0])

    run(work())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_the_buffered_text_of_a_response_is_limited(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "BUFFERED_LIMIT_CHARS", 3)
    whole = {"choices": [{"index": 0, "message": {"content": "x" * 11}, "finish_reason": "stop"}]}
    replies = [HELLO_REPLY, MockReply((MockChunk(json.dumps(whole)),), headers=JSON, framing="length")]
    body = {"model": CHAT["model"], "input": "hi"} if path == "/v1/responses" else CHAT

    async def work() -> None:
        for reply in replies:
            async with gateway(tmp_path, [reply]) as serving:
                response = await serving.post(body, path=path)
                assert (response.status, response.error["code"]) == (502, "bad_upstream_stream")
                response = await serving.post({**body, "stream": True}, path=path)
                is_kept = path == "/v1/responses"
                assert (b"more than 3 characters" in response.raw) is is_kept

    run(work())


@pytest.mark.parametrize("end", ["hang", "endless"])
def test_an_error_body_without_an_end_is_reported_after_a_timeout(
    tmp_path: Path,
    end: ReplyEnd,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(error_mapping, "ERROR_BODY_TIMEOUT_S", 0.2)
    reply = MockReply((MockChunk('{"error":{"message":"oops"}}'), MockChunk(" ")), 500, JSON, end=end)

    async def work() -> None:
        async with gateway(tmp_path, [reply]) as serving:
            response = await serving.post(STREAM)
            check(response)
            assert (response.status, response.error["message"]) == (502, "The upstream failed: oops")
            await _until_left(serving.upstreams[0])

    run(work())


def test_a_line_beyond_the_limit_is_an_error_event(tmp_path: Path) -> None:
    long = MockReply(
        (
            HELLO_REPLY.pieces[0],
            MockChunk("data: ", PAUSE_S),
            MockChunk("x", times=sse.FRAME_LIMIT_BYTES),
            MockChunk("x"),
        )
    )

    async def work() -> None:
        async with gateway(tmp_path, [long]) as serving:
            response = await serving.post(STREAM)
            check(response)
            assert response.error["code"] == "bad_upstream_stream"

    run(work())


@BOTH
def test_keep_alives_do_not_count_as_the_start_of_a_response(tmp_path: Path, request_body: dict[str, Any]) -> None:
    """Some servers send comments while a request is queued. One that then dies has not started its response."""
    dies = MockReply((MockChunk(": ping\n\n"), MockChunk(": ping\n\n", PAUSE_S)), end="cut")

    async def work() -> None:
        async with gateway(tmp_path, [dies], [HELLO_REPLY], **FIRST) as serving:
            response = await serving.post(request_body)
            check(response)
            assert is_success(response)
            assert serving.post_counts == [1, 1]

    run(work())


@pytest.fixture(scope="module")
def running_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PersistentGateway]:
    with persistent_gateway(tmp_path_factory.mktemp("gateway")) as made:
        yield made


def _recorded(name: str) -> MockReply:
    record = json.loads((RECORDED / f"{name}.json").read_text("utf-8"))
    return reply_from_trace(record, (RECORDED / f"{name}.body").read_bytes())


def _is_whole(reply: RecordedTrace) -> bool:
    return reply.trace.status == 200 and reply.trace.body.startswith(b"{")


REFUSED = {
    *("ik/bad_stream_options_string", "ik/bad_stream_string"),
    *("llamacpp/bad_messages_empty", "llamacpp/bad_stream_options_string"),
}
"""Requests that their server accepted, but the gateway rejects: it must know the model and whether to stream."""
REPLIES = {reply.name: reply for reply in recorded_traces() if reply.trace.request is not None and reply.trace.status}
STREAMS = sorted(name for name, reply in REPLIES.items() if reply.is_stream and name not in REFUSED)
WHOLE = sorted(name for name, reply in REPLIES.items() if _is_whole(reply) and name not in REFUSED)
ERRORS = sorted(REPLIES.keys() - {*STREAMS, *WHOLE})
CUT = {"ik/disconnect_stream", "llamacpp/disconnect_stream"}
"""Streams that their client closed early."""


def send_recorded(running_gateway: PersistentGateway, name: str) -> RecordedReply:
    """Return the response to the recorded request, checked against the rules."""
    trace = REPLIES[name].trace
    request = {**(trace.request or {}), "model": "native"}
    response = running_gateway.post(_recorded(name), request, Endpoint(trace.endpoint))
    judged = judge(msgspec.structs.replace(response.capture, request=request, endpoint=trace.endpoint))
    assert [one for one in judged.findings if one.severity == Severity.BREAKS and one.rule not in UNCOUNTED] == []
    return response


@table("name", STREAMS)
def test_a_recorded_stream_keeps_its_content(running_gateway: PersistentGateway, name: str) -> None:
    response = send_recorded(running_gateway, name)
    sent = read_content(REPLIES[name].trace.body)
    if response.status != 200:
        assert response.error["message"] == sent.error
        return
    content = read_content(response.body)
    assert content.texts == sent.texts
    assert content.arguments == sent.arguments
    if name in CUT:
        assert content.error is not None
    else:
        assert (content.error, content.finishes.keys()) == (sent.error, sent.finishes.keys())


@table("name", ERRORS)
def test_a_recorded_error_or_empty_reply_is_an_error(running_gateway: PersistentGateway, name: str) -> None:
    response = send_recorded(running_gateway, name)
    assert 400 <= response.status <= 504
    assert response.error["message"]


@table("name", WHOLE)
def test_a_recorded_reply_keeps_its_content(running_gateway: PersistentGateway, name: str) -> None:
    response = send_recorded(running_gateway, name)
    sent = json.loads(REPLIES[name].trace.body)
    assert response.status == 200
    for ours, theirs in zip(response.json["choices"], sent["choices"], strict=True):
        assert ours["finish_reason"] == theirs["finish_reason"]
        assert ours.get("text") == theirs.get("text")
        message = theirs.get("message", {})
        assert ours.get("message", {}).get("content") == (message.get("content") or None)
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        assert [call["function"] for call in ours.get("message", {}).get("tool_calls") or ()] == calls


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_long_response_is_complete(tmp_path: Path, path: str) -> None:
    role, text, *end = HELLO_REPLY.pieces
    long = MockReply((role, msgspec.structs.replace(text, times=1_000), *end))
    body = {"model": CHAT["model"], "input": "hi"} if path == "/v1/responses" else {**CHAT, "max_tokens": 3_000}

    async def work() -> None:
        async with gateway(tmp_path, [long]) as serving:
            whole, stream = [await serving.post({**body, "stream": stream}, path=path) for stream in (False, True)]
            assert (whole.status, stream.status) == (200, 200)
            spoken = json.loads(text.text.removeprefix("data: "))["choices"][0]["delta"]["content"]
            assert spoken * 1_000 in whole.body.decode()

    run(work())
