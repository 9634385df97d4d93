"""Applications that end an answer by returning: no `finish_reason`, no `[DONE]`. The client is openai for Python."""

import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import openai
import pytest

from tests.asgi.repair_apps import CHAT, CHAT_PATH, JSON, app_with, call
from tests.asgi.test_wsgi_middleware import Answer as WsgiAnswer
from tests.asgi.test_wsgi_middleware import app_with as wsgi_app_with
from tests.http.aio import run
from tests.table import table
from welldone.asgi import RepairMiddleware
from welldone.asgi.middleware import ASGIApp, ASGIReceive, ASGIScope, ASGISend

HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "get", "arguments": '{"x": 1}'}}


def chunk(delta: dict[str, Any], index: int = 0) -> bytes:
    """A chunk of a first server: nothing but the delta."""
    return b"data: " + json.dumps({"choices": [{"index": index, "delta": delta}]}).encode() + b"\n\n"


def text(content: str, index: int = 0) -> bytes:
    """A chunk with a text."""
    return chunk({"content": content}, index)


def call_chunks(arguments: str) -> tuple[bytes, bytes]:
    """A call in two chunks."""
    rest = {"index": 0, "function": {"arguments": arguments}}
    return chunk({"tool_calls": [{**CALL, "function": {"name": "get", "arguments": ""}}]}), chunk(
        {"tool_calls": [rest]}
    )


async def first_server(scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
    """The server that everybody writes first: it sends its chunks and returns."""
    await receive()
    await send(HEAD)
    async for part in _words():
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _words() -> AsyncIterator[bytes]:
    for word in ("Hel", "lo", "!"):
        yield text(word)


async def read_stream(app: ASGIApp) -> tuple[str, str | None]:
    """The text and the finish reason that openai reads."""
    transport = httpx2.ASGITransport(app)
    async with openai.AsyncOpenAI(
        base_url="http://app/v1", api_key="none", max_retries=0, http_client=httpx2.AsyncClient(transport=transport)
    ) as client:
        messages: Any = CHAT["messages"]
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
        parts, reason = [], None
        async for event in stream:
            parts += [choice.delta.content or "" for choice in event.choices]
            reason = next((choice.finish_reason for choice in event.choices if choice.finish_reason), reason)
        return "".join(parts), reason


def test_openai_reads_a_whole_answer(caplog: pytest.LogCaptureFixture) -> None:
    app = RepairMiddleware(first_server)
    with caplog.at_level(logging.WARNING, "welldone"):
        assert run(read_stream(app)) == ("Hello!", "stop")
        assert run(read_stream(app)) == ("Hello!", "stop")
    (record,) = caplog.records  # once, and not for each answer
    assert record.getMessage().startswith(f"the application ended an answer to {CHAT_PATH} without a finish reason")
    assert app.counters.failed == 0
    assert app.counters.repairs["fin-always-sent"] == 2


def test_an_answer_with_its_end_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    call(app_with(text("a"), b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'))
    assert caplog.records == []


@table(
    ("parts", "reasons"),
    [
        ([text("Hi")], {0: "stop"}),
        ([text("Hi")[:-1]], {0: "stop"}),  # the last blank line is missing, and nothing else
        ([text("Hi"), b": bye"], {0: "stop"}),
        ([text("Hi"), *call_chunks('{"x": 1}')], {0: "tool_calls"}),
        ([chunk({"tool_calls": [CALL]})], {0: "tool_calls"}),
        ([text("a"), text("b", 1)], {0: "stop", 1: "stop"}),
    ],
)
def test_an_application_that_returns_has_ended_its_answer(parts: list[bytes], reasons: dict[int, str]) -> None:
    answer = call(app_with(*parts), {**CHAT, "n": len(reasons)})
    choices = [
        one for line in answer.body.splitlines() if b'"choices"' in line for one in json.loads(line[6:])["choices"]
    ]
    assert {one["index"]: one["finish_reason"] for one in choices if one["finish_reason"]} == reasons
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert answer.findings == []
    assert {"fin-always-sent", "err-not-silent", "end-done-sent"} <= answer.repairs


@table(
    "parts",
    [
        [text("Hi"), *call_chunks('{"x": ')],
        [text("Hi"), call_chunks("")[0]],  # without arguments: more may have followed
        [text("Hi"), *call_chunks("tru")],
        [text("Hi"), text("there")[:-9]],  # half a chunk
        [text("Hi"), b"dat"],
        [chunk({"role": "assistant"})],  # no answer
        [chunk({"reasoning_content": "So"})],
    ],
)
def test_an_answer_that_lacks_a_part_stays_an_error(parts: list[bytes]) -> None:
    for answer in (call(app_with(*parts)), WsgiAnswer(wsgi_app_with(*parts))):
        assert b'"code":"incomplete_stream"' in answer.body
        assert b'"finish_reason":"' not in answer.body


def test_an_application_that_raises_has_not_ended_its_answer() -> None:
    with pytest.raises(ZeroDivisionError):
        call(app_with(text("Hi"), error=ZeroDivisionError()))
    answer = WsgiAnswer(wsgi_app_with(text("Hi"), error=ZeroDivisionError()))
    assert b'"error"' in answer.body
    assert b'"finish_reason":"' not in answer.body


@table("request_body", [CHAT, {**CHAT, "stream": False}])
def test_an_application_that_returns_before_the_end_of_its_body_has_not_ended_its_answer(
    request_body: dict[str, Any],
) -> None:
    async def app(scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        await receive()
        await send(HEAD)
        await send({"type": "http.response.body", "body": text("Hi"), "more_body": True})

    answer = call(app, request_body)
    assert b'"code":"incomplete_stream"' in answer.body
    assert b'"stop"' not in answer.body


def test_a_wsgi_application_that_returns_has_ended_its_answer(caplog: pytest.LogCaptureFixture) -> None:
    answer = WsgiAnswer(wsgi_app_with(text("Hi")))
    assert b'"finish_reason":"stop"' in answer.body
    assert answer.findings == []
    assert [record.name for record in caplog.records] == ["welldone"]


@table(
    ("parts", "headers"),
    [
        ([text("Hel"), text("lo")], None),
        ([json.dumps({"choices": [{"index": 0, "message": {"content": "Hello"}}]}).encode()], [JSON]),
    ],
)
def test_a_whole_reply_gets_a_finish_reason(parts: list[bytes], headers: Any) -> None:  # noqa: ANN401 - of `app_with`
    app: Callable[..., ASGIApp] = app_with
    answer = call(app(*parts, **({} if headers is None else {"headers": headers})), {**CHAT, "stream": False})
    (choice,) = answer.json["choices"]
    assert (answer.status, choice["message"]["content"], choice["finish_reason"]) == (200, "Hello", "stop")
    assert {"ns-finish", "err-not-silent"} & answer.repairs


def test_completions_end_in_the_same_way() -> None:
    part = b'data: {"choices":[{"index":0,"text":"Hi"}]}\n\n'
    answer = call(app_with(part), {"model": "m", "prompt": "p", "stream": True}, "/v1/completions")
    assert b'"finish_reason":"stop"' in answer.body
    assert answer.findings == []
    assert "err-not-silent" in answer.repairs


def _event(kind: str, **members: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


START = _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
TEXT = _event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi"})
TOOL = _event("content_block_start", index=1, content_block={"type": "tool_use", "id": "t", "name": "get", "input": {}})
STOP = _event("content_block_stop", index=1)


def _input(partial: str) -> bytes:
    return _event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": partial})


@table(
    ("parts", "reason"),
    [
        ([START, TEXT, _event("content_block_stop", index=0)], "end_turn"),
        ([START, TEXT], None),
        ([START, TEXT, TOOL, _input('{"x": 1}'), STOP], "tool_use"),
        ([START, TEXT, TOOL, _input('{"x": 1}')], "tool_use"),
        ([START, TEXT, TOOL, _input('{"x": ')], None),
        ([START, TEXT, TOOL, _input('{"x": '), STOP], None),
        ([START, TEXT, TOOL], None),
        ([START, TEXT, TEXT[:-9]], None),
        ([_event("ping")], None),
    ],
)
def test_messages_end_in_the_same_way(parts: list[bytes], reason: str | None) -> None:
    answer = call(app_with(*parts), path="/v1/messages")
    assert (f'"stop_reason":"{reason}"'.encode() in answer.body) == (reason is not None)
    assert (b'"error"' in answer.body) == (reason is None)
    assert b"message_stop" in answer.body or reason is None
    assert "msg-no-early-eof" in answer.repairs
