"""`RepairMiddleware` with plain ASGI applications."""

import asyncio
import gzip
import inspect
import json
from importlib import import_module
from typing import Any

import pytest

from tests.asgi.asgi_client import Client, scope
from tests.asgi.repair_apps import CHAT, CHAT_PATH, JSON, SSE, WRONG_REPLY, WRONG_STREAM, app_with, call, chunk
from tests.http.aio import run
from tests.recorded.traces import RecordedTrace, recorded_traces
from tests.rules.pages import PAGES, read_page
from tests.table import table
from welldone import RULES, InvalidStreamError
from welldone.asgi import AnswerReport, RepairMiddleware, response_repair
from welldone.asgi import middleware as middleware_module
from welldone.asgi.middleware import ASGIApp, ASGIMessage, ASGIReceive, ASGIScope, ASGISend
from welldone.core.catalog import Repairability, Rule, Severity

NO_STREAM = {**CHAT, "stream": False}
ERROR = {"message": "no", "type": "server_error", "param": None, "code": None}


def test_a_wrong_stream_comes_out_right() -> None:
    answer = call(app_with(*WRONG_STREAM))
    assert answer.findings == []
    assert answer.client.is_complete
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert answer.headers["cache-control"] == "no-cache, no-transform"
    assert {"delta-role-content-empty", "use-only-if-asked", "end-done-sent", "http-cache-control"} <= answer.repairs


def test_the_request_decides_whether_usage_is_sent() -> None:
    answer = call(app_with(*WRONG_STREAM), {**CHAT, "stream_options": {"include_usage": True}})
    assert answer.findings == []
    assert b'"choices":[],"usage":{"prompt_tokens":1' in answer.body


def test_each_chunk_is_sent_at_once() -> None:
    answer = call(app_with(*WRONG_STREAM[:2]), CHAT)
    bodies = [message["body"] for message in answer.client.messages[1:]]
    assert b'"He"' in bodies[0]
    assert b'"llo"' in bodies[1]


@table(
    "headers",
    [(), (("content-type", "text/plain; charset=utf-8"),), (("content-type", "text/event-stream; charset=latin-1"),)],
)
def test_a_requested_stream_gets_the_headers_of_a_stream(headers: list[tuple[str, str]]) -> None:
    answer = call(app_with(*WRONG_STREAM, headers=(*headers, ("content-length", "5"), ("x-other", "1"))))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "content-length" not in answer.headers
    assert answer.headers["x-other"] == "1"
    assert answer.findings == []


def _repairable_pages() -> list[Rule]:
    # A compressed response passes unchanged. Usage that was not sent is not invented.
    unrepaired = ("http-no-buffering-compression", "cmpl-usage-chunk")
    return [one for one in RULES.values() if one.repairability is Repairability.LOSSLESS and one.id not in unrepaired]


@table("rule", _repairable_pages, ids=lambda rule: rule.id)
def test_the_wrong_examples_of_every_repairable_rule_come_out_right(rule: Rule) -> None:
    for example in read_page(PAGES / f"{rule.id}.md"):
        trace = example.trace
        is_stream = not trace.body.lstrip().startswith(b"{")
        request = trace.request or {"model": "m", "stream": is_stream}
        headers = (SSE if is_stream else JSON,) if trace.headers is None else trace.headers
        path = "/v1/chat/completions" if trace.endpoint == "chat" else f"/v1/{trace.endpoint}"
        app = app_with(trace.body, status=trace.status or 200, headers=[(name.lower(), one) for name, one in headers])
        answer = call(app, request, path)
        assert rule.id not in answer.findings


@table("reply", recorded_traces, ids=lambda reply: reply.name)
def test_recorded_streams_of_real_servers_come_out_right(reply: RecordedTrace) -> None:
    trace = reply.trace
    if not reply.is_stream or trace.request is None:
        return
    path = CHAT_PATH if trace.endpoint == "chat" else f"/v1/{trace.endpoint}"
    answer = call(app_with(trace.body, headers=trace.headers or [SSE]), {**trace.request, "stream": True}, path)
    repairable = [rule for rule in answer.findings if RULES[rule].repairability is not Repairability.REPORT_ONLY]
    assert [rule for rule in repairable if RULES[rule].severity is Severity.BREAKS] == []


# Whole replies.


def test_a_whole_reply_is_repaired() -> None:
    answer = call(app_with(WRONG_REPLY[:50], WRONG_REPLY[50:], headers=[JSON, ("content-length", "5")]), NO_STREAM)
    assert answer.findings == ["ns-usage"]  # never invented
    assert answer.json["choices"][0]["message"]["role"] == "assistant"
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert not answer.reports[0].is_stream


def test_a_right_reply_keeps_its_bytes() -> None:
    message = {"role": "assistant", "content": "Hi", "refusal": None}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    reply = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    body = json.dumps(reply, indent=2).encode()
    answer = call(app_with(body, headers=[JSON]), NO_STREAM)
    assert answer.body == body
    assert answer.repairs == set()


def test_a_reply_in_place_of_a_stream_becomes_one() -> None:
    answer = call(app_with(WRONG_REPLY, headers=[JSON, ("content-length", str(len(WRONG_REPLY)))]), CHAT)
    assert answer.findings == []
    assert b'"content":"Hi"' in answer.body
    assert answer.reports[0].is_stream


def test_a_stream_in_place_of_a_reply_becomes_one() -> None:
    answer = call(app_with(*WRONG_STREAM), NO_STREAM)
    assert answer.findings == []
    assert answer.json["choices"][0]["message"]["content"] == "Hello"
    assert answer.headers["content-type"] == "application/json"


@table("value", ["yes", "true", 1])  # vLLM and FastAPI read them as true
def test_the_application_decides_what_an_invalid_value_of_stream_means(value: object) -> None:
    answer = call(app_with(*WRONG_STREAM), {**CHAT, "stream": value})
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert answer.reports[0].is_stream
    answer = call(app_with(WRONG_REPLY, headers=[JSON]), {**CHAT, "stream": value})
    assert answer.json["choices"][0]["message"]["content"] == "Hi"


def test_an_error_with_status_200_gets_a_status() -> None:
    body = b'{"error":{"message":"no such model","type":"not_found_error"}}'
    for request in (CHAT, NO_STREAM):
        answer = call(app_with(body, headers=[JSON]), request)
        assert answer.status == 404
        assert answer.json["error"]["message"] == "no such model"
        assert answer.findings == []


@table(
    ("path", "body", "headers"),
    [
        (CHAT_PATH, b'{"job":5}', [JSON]),
        (CHAT_PATH, b"[1]", [JSON]),
        (CHAT_PATH, b"Hello", [("content-type", "text/plain")]),
        (CHAT_PATH, b"<html>", [("content-type", "text/html")]),
        (CHAT_PATH, b"\x89PNG", [("content-type", "image/png")]),
    ],
)
def test_a_reply_that_is_no_answer_passes_unchanged(path: str, body: bytes, headers: list[tuple[str, str]]) -> None:
    answer = call(app_with(body, headers=[*headers, ("etag", "x")]), NO_STREAM, path)
    assert answer.body == body
    assert answer.headers == dict([*headers, ("etag", "x")])
    assert answer.reports == []


def test_a_very_long_reply_passes_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_repair, "REPLY_LIMIT_BYTES", 60)
    answer = call(app_with(WRONG_REPLY[:50], WRONG_REPLY[50:80], WRONG_REPLY[80:], headers=[JSON]), NO_STREAM)
    assert answer.body == WRONG_REPLY
    assert answer.client.is_complete


# Errors.


@table(
    ("status", "body", "error"),
    [
        (404, {"detail": "Not Found"}, {"message": "Not Found", "type": "not_found_error"}),
        (400, {"error": "bad"}, {"message": "bad", "type": "invalid_request_error"}),
        (500, {"message": "bad"}, {"message": "bad", "type": "server_error"}),
        (
            429,
            {"error": {"message": "slow", "code": 429}},
            {"message": "slow", "type": "rate_limit_error", "code": "429"},
        ),
        (
            422,
            {"detail": [{"loc": ["body", "n"], "msg": "too large"}, {"loc": ["body"], "msg": "bad"}]},
            {"message": "n: too large; bad", "param": "n", "type": "invalid_request_error"},
        ),
        (599, {}, {"message": "status 599", "type": "server_error"}),
        (400, [], {"message": "Bad Request", "type": "invalid_request_error"}),
    ],
)
def test_an_error_gets_the_shape_of_the_api(status: int, body: object, error: dict[str, object]) -> None:
    answer = call(app_with(json.dumps(body).encode(), status=status, headers=[JSON]))
    assert answer.status == status
    assert answer.json == {"error": {**ERROR, **error}}
    assert answer.findings in ([], ["err-retry-after"])
    assert answer.reports[0].result.failure is not None
    answer = call(app_with(json.dumps(body).encode(), status=status, headers=[JSON]), path="/v1/messages")
    assert answer.json["error"]["message"] == error["message"]
    assert answer.findings in ([], ["err-retry-after"])


def test_a_text_error_gets_the_shape_of_the_api() -> None:
    answer = call(app_with(b"Unauthorized", status=401, headers=[("content-type", "text/plain; charset=utf-8")]))
    assert answer.json == {"error": {**ERROR, "message": "Unauthorized", "type": "authentication_error"}}
    assert answer.headers["content-type"] == "application/json"
    assert answer.findings == []


def test_an_error_of_another_method_gets_the_shape_of_the_api() -> None:
    body = b'{"detail":"Method Not Allowed"}'
    answer = call(app_with(body, status=405, headers=[JSON]), b"", method="GET")
    assert answer.json == {"error": {**ERROR, "message": "Method Not Allowed", "type": "invalid_request_error"}}


def test_a_right_error_and_a_page_keep_their_bytes() -> None:
    right = json.dumps({"error": ERROR}, indent=1).encode()
    assert call(app_with(right, status=500, headers=[JSON])).body == right
    page = call(app_with(b"<html>", status=502, headers=[("content-type", "text/html")]))
    assert page.body == b"<html>"
    assert page.reports == []


# Other requests.


@table(
    ("path", "method", "request"),
    [
        ("/v1/embeddings", "POST", CHAT),
        (CHAT_PATH, "GET", b""),
        ("/v1/messages/count_tokens", "POST", CHAT),
        ("/rooms/1/messages", "POST", {"text": "Hi"}),  # another API, which happens to end like Anthropic's
        ("/polls/1/responses", "POST", {"answers": [1]}),
        ("/rooms/1/messages", "POST", b"text=Hi"),
    ],
)
def test_other_requests_pass_unchanged(path: str, method: str, request: object) -> None:
    answer = call(app_with(b'{"choices":1}', headers=[JSON, ("content-length", "13")]), request, path, method=method)
    assert answer.body == b'{"choices":1}'
    assert answer.reports == []


@table(
    ("path", "endpoint"),
    [
        ("/api/v3/chat/completions", "chat"),
        ("/chat/completions/", "chat"),
        ("/completions", "completions"),
        ("/openai/responses", "responses"),
        ("/anthropic/messages", "messages"),
    ],
)
def test_a_path_is_recognised_by_its_end(path: str, endpoint: str) -> None:
    request = {"model": "m", "input": "Hi", "messages": [], "prompt": "Hi"}
    answer = call(app_with(b'{"detail":"x"}', status=400, headers=[JSON]), request, path)
    assert answer.reports[0].endpoint == endpoint
    assert answer.reports[0].path == path


def test_paths_can_be_chosen() -> None:
    answer = call(app_with(*WRONG_STREAM), path="/ask", paths={"/ask": "chat"})
    assert answer.findings == []
    assert call(app_with(*WRONG_STREAM), paths={"/ask": "chat"}).reports == []


def test_lifespan_and_websockets_pass() -> None:
    scopes: list[ASGIScope] = []

    async def app(scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        scopes.append(scope)

    client = Client()
    for kind in ("lifespan", "websocket"):
        run(RepairMiddleware(app)({"type": kind, "path": CHAT_PATH}, client.receive, client.send))
    assert [one["type"] for one in scopes] == ["lifespan", "websocket"]


def test_compressed_responses_pass_unchanged() -> None:
    body = gzip.compress(b"".join(WRONG_STREAM))
    answer = call(app_with(body, headers=[SSE, ("content-encoding", "gzip")]))
    assert answer.body == body
    assert answer.reports == []


def test_a_request_that_was_not_read_or_is_too_long_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(app_with(*WRONG_STREAM, reads_request=False)).findings == ["use-only-if-asked"]
    monkeypatch.setattr("welldone.asgi.middleware.REQUEST_LIMIT_BYTES", 10)
    assert call(app_with(*WRONG_STREAM)).findings == ["use-only-if-asked"]
    assert call(app_with(WRONG_REPLY, headers=[JSON])).json["object"] == "chat.completion"


def test_other_messages_pass() -> None:
    async def app(scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        await receive()
        await send({"type": "http.response.debug", "info": {}})
        await send({"type": "http.response.start", "status": 200, "headers": [], "trailers": True})
        await send({"type": "http.response.body", "body": b"".join(WRONG_STREAM)})
        await send({"type": "http.response.trailers", "headers": []})

    client = Client(json.dumps(CHAT).encode())
    run(RepairMiddleware(app)(scope(CHAT_PATH), client.receive, client.send))
    assert [message["type"].rpartition(".")[2] for message in client.messages] == ["debug", "start", "body", "trailers"]
    assert client.messages[1]["trailers"] is True


# The head of a stream waits for its first event.


@table(
    ("path", "event", "status", "error"),
    [
        (
            CHAT_PATH,  # vLLM 0.32
            b'data: {"error": {"message": "no", "type": "BadRequestError", "param": "logprobs", "code": 400}}\n\n',
            400,
            {"error": {"message": "no", "type": "BadRequestError", "param": "logprobs", "code": "400"}},
        ),
        (CHAT_PATH, b'data: {"error": "no"}\n\n', 500, {"error": {**ERROR, "type": "server_error"}}),
        (
            "/v1/completions",
            b'data: {"error":{"message":"no","type":"rate_limit_error"}}\n\ndata: [DONE]\n\n',
            429,
            {"error": {**ERROR, "type": "rate_limit_error"}},
        ),
        (
            "/v1/messages",  # vLLM 0.32
            b'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":"no"}}\n\n',
            500,
            {"type": "error", "error": {"type": "api_error", "message": "no"}},
        ),
        (
            "/v1/responses",
            b'event: error\ndata: {"type":"error","code":"400","message":"no","param":null,"sequence_number":0}\n\n',
            400,
            {"error": {**ERROR, "code": "400"}},
        ),
    ],
)
def test_an_error_as_the_first_event_becomes_a_status(path: str, event: bytes, status: int, error: object) -> None:
    for parts in ((event,), (event[:5], event[5:], chunk({"content": "ignored"}))):
        answer = call(app_with(*parts), path=path)
        assert (answer.status, answer.json) == (status, error)
        assert answer.headers["content-type"] == "application/json"
        assert int(answer.headers["content-length"]) == len(answer.body)
        assert answer.findings in ([], ["err-retry-after"])
        assert "err-status-before-stream" in answer.repairs
        assert answer.client.is_complete


def test_a_stream_without_events_becomes_a_status() -> None:
    answer = call(app_with())
    assert answer.status == 502
    assert answer.json["error"]["code"] == "incomplete_stream"
    assert answer.findings == []


def test_an_error_after_a_part_of_the_answer_stays_in_the_stream() -> None:
    answer = call(app_with(WRONG_STREAM[0] + b'data: {"error": "no"}\n\n'))
    assert answer.status == 200
    assert b'"He"' in answer.body
    assert b'"message":"no"' in answer.body


def test_an_exception_before_the_first_event_is_left_to_the_server() -> None:
    client, (report,) = _call_failing(app_with(error=ZeroDivisionError()))
    assert client.messages == []
    assert not report.is_complete


@table("first", [WRONG_STREAM[0], b'data: {"error": "no"}\n\n', b""])
def test_the_head_of_a_slow_stream_is_sent_without_its_first_event(
    first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def app(scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await is_sending.wait()
        if first:
            asyncio.get_running_loop().call_soon(gate.set)
            await send({"type": "http.response.body", "body": first, "more_body": True})
        else:
            gate.set()

    async def send(message: ASGIMessage) -> None:
        is_sending.set()
        await gate.wait()
        await client.send(message)

    monkeypatch.setattr(middleware_module, "HEAD_DELAY_S", 0.001)
    gate, is_sending = asyncio.Event(), asyncio.Event()
    client = Client(json.dumps(CHAT).encode())
    run(RepairMiddleware(app)(scope(CHAT_PATH), client.receive, send))
    assert client.status == 200
    assert client.is_complete
    assert client.body.endswith(b"data: [DONE]\n\n")
    assert [message["type"] for message in client.messages].count("http.response.start") == 1


def test_without_asyncio_the_head_is_sent_at_once() -> None:
    messages: list[ASGIMessage] = []

    async def receive() -> ASGIMessage:
        return {"type": "http.request", "body": json.dumps(CHAT).encode()}

    async def send(message: ASGIMessage) -> None:
        messages.append(message)

    work = RepairMiddleware(app_with(b'data: {"error": "no"}\n\n'))(scope(CHAT_PATH), receive, send)
    with pytest.raises(StopIteration):  # a coroutine that never waits needs no event loop
        work.send(None)
    assert messages[0]["status"] == 200


def test_a_file_as_the_body_of_a_stream_passes() -> None:
    async def app(scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.pathsend", "path": "/stream"})

    client = Client(json.dumps(CHAT).encode())
    run(RepairMiddleware(app)(scope(CHAT_PATH), client.receive, client.send))
    assert [message["type"].rpartition(".")[2] for message in client.messages][:2] == ["start", "pathsend"]


# Failures, disconnects, backpressure.


def _call_failing(app: ASGIApp) -> tuple[Client, list[AnswerReport]]:
    client, reports = Client(json.dumps(CHAT).encode()), list[AnswerReport]()
    with pytest.raises(ZeroDivisionError):
        run(RepairMiddleware(app, report=reports.append)(scope(CHAT_PATH), client.receive, client.send))
    return client, reports


def test_an_exception_ends_the_stream_with_an_error_event_and_is_raised() -> None:
    client, (report,) = _call_failing(app_with(*WRONG_STREAM[:2], error=ZeroDivisionError("secret")))
    assert client.is_complete
    assert client.body.endswith(b'"type":"server_error","param":null,"code":null}}\n\ndata: [DONE]\n\n')
    assert b"secret" not in client.body
    assert client.findings(CHAT_PATH) == []
    assert not report.is_complete
    assert report.result.failure is not None


def test_an_exception_after_the_answer_adds_nothing() -> None:
    client, (report,) = _call_failing(app_with(*WRONG_STREAM, b"data: [DONE]\n\n", error=ZeroDivisionError()))
    assert client.is_complete
    assert b"error" not in client.body
    assert report.result.failure is None


def test_an_exception_in_a_whole_reply_is_left_to_the_server() -> None:
    client, (report,) = _call_failing(app_with(b'{"choices":', headers=[JSON], error=ZeroDivisionError()))
    assert client.messages == []
    assert not report.is_complete


def test_an_application_that_returns_early_is_completed() -> None:
    async def app(scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": WRONG_STREAM[0], "more_body": True})

    answer = call(app)
    assert answer.client.is_complete
    assert b'"code":"incomplete_stream"' in answer.body
    assert answer.findings == []


def test_the_end_is_sent_at_done_and_not_at_the_end_of_the_body() -> None:
    async def app(scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for part in (*WRONG_STREAM, b"data: [DONE]\n\n"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        bodies.append(client.body)
        await send({"type": "http.response.body", "body": b": late\n\n", "more_body": True})
        await send({"type": "http.response.body"})

    bodies: list[bytes] = []
    client = Client(json.dumps(CHAT).encode())
    run(RepairMiddleware(app)(scope(CHAT_PATH), client.receive, client.send))
    assert bodies[0].endswith(b"data: [DONE]\n\n")
    assert client.body == bodies[0]
    assert client.is_complete


def test_a_disconnect_reaches_the_application_and_nothing_is_sent_after_it() -> None:
    async def app(scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": WRONG_STREAM[0], "more_body": True})
        client.disconnect()
        assert (await receive())["type"] == "http.disconnect"

    reports: list[AnswerReport] = []
    client = Client(json.dumps(CHAT).encode())
    run(RepairMiddleware(app, report=reports.append)(scope(CHAT_PATH), client.receive, client.send))
    assert len(client.messages) == 2
    assert not reports[0].is_complete


def test_a_send_that_fails_raises_its_exception_once() -> None:
    class GoneError(OSError):
        pass

    async def send(message: ASGIMessage) -> None:
        if message["type"] == "http.response.body":
            raise GoneError

    client = Client(json.dumps(CHAT).encode())
    with pytest.raises(GoneError):
        run(RepairMiddleware(app_with(*WRONG_STREAM))(scope(CHAT_PATH), client.receive, send))


def test_a_cancelled_application_sends_nothing() -> None:
    async def work() -> None:
        async def app(scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
            await receive()
            head = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            started.set()
            await asyncio.Event().wait()

        started = asyncio.Event()
        middleware = RepairMiddleware(app, report=reports.append)
        task = asyncio.create_task(middleware(scope(CHAT_PATH), client.receive, client.send))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    reports: list[AnswerReport] = []
    client = Client(json.dumps(CHAT).encode())
    run(work())
    assert client.messages == []
    assert not reports[0].is_complete


def test_a_slow_client_pauses_the_application() -> None:
    async def work() -> None:
        async def app(scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
            await receive()
            head = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            for number in range(3):
                await send({"type": "http.response.body", "body": chunk({"content": "a"}), "more_body": True})
                sent.append(number)

        async def send(message: ASGIMessage) -> None:
            if message["type"] == "http.response.body":
                is_waiting.set()
                await gate.wait()

        gate, is_waiting = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(RepairMiddleware(app)(scope(CHAT_PATH), client.receive, send))
        await is_waiting.wait()
        assert sent == []
        gate.set()
        await task
        assert sent == [0, 1, 2]

    sent: list[int] = []
    client = Client(json.dumps(CHAT).encode())
    run(work())


# Reports and settings.


def test_counters_add_up() -> None:
    async def work() -> None:
        for request in (CHAT, CHAT, NO_STREAM):
            client = Client(json.dumps(request).encode())
            await middleware(scope(CHAT_PATH), client.receive, client.send)

    middleware = RepairMiddleware(app_with(*WRONG_STREAM))
    run(work())
    assert middleware.counters.answers == 3
    assert middleware.counters.repaired == 3
    assert middleware.counters.failed == 0
    assert middleware.counters.repairs["delta-role-once"] == 6


def test_strict_raises_with_the_rules_after_the_answer() -> None:
    client = Client(json.dumps(CHAT).encode())
    with pytest.raises(InvalidStreamError, match="end-done-sent") as caught:
        run(RepairMiddleware(app_with(*WRONG_STREAM), strict=True)(scope(CHAT_PATH), client.receive, client.send))
    assert "delta-role-once" in caught.value.report.counts
    assert client.is_complete
    assert client.findings(CHAT_PATH) == []


def test_strict_accepts_a_right_answer() -> None:
    right = call(app_with(*WRONG_STREAM))
    again = call(app_with(right.body, headers=list(right.headers.items())), strict=True)
    assert again.body == right.body
    assert again.repairs == set()


def test_reasoning_in_tags_can_be_moved() -> None:
    answer = call(app_with(chunk({"content": "<think>a</think>b"}), chunk({}, finish="stop")), think="tags")
    assert b'"reasoning_content":"a"' in answer.body


@table(
    ("settings", "error", "message"),
    [
        ({"paths": {"ask": "chat"}}, ValueError, "'ask' must start with a slash"),
        ({"paths": {"/ask": "chats"}}, ValueError, "unknown endpoint 'chats'"),
        ({"paths": ["/ask"]}, TypeError, "paths must be a dict"),
        ({"think": "yes"}, ValueError, "think must be one of"),
        ({"report": "yes"}, TypeError, "report must be a function"),
    ],
)
def test_wrong_settings_raise_at_once(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RepairMiddleware(app_with(), **settings)


def test_vllm_can_load_it() -> None:
    """vLLM's --middleware takes the path of a class, and passes it to `add_middleware` without arguments."""
    module, name = ["welldone.asgi", "RepairMiddleware"]
    imported = getattr(import_module(module), name)
    assert inspect.isclass(imported)
    assert not [
        one.name
        for one in list(inspect.signature(imported).parameters.values())[1:]
        if one.default is inspect.Parameter.empty
    ]
    assert inspect.iscoroutinefunction(RepairMiddleware(app_with()).__call__)  # uvicorn detects ASGI 3 by this
