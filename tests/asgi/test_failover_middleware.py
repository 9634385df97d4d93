"""Failover middleware: when a front dies, another one answers, or the stream ends with an error."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from tests.asgi.asgi_client import GEMINI_PATH, PATHS, REQUESTS, Client, body_of, frames, head_of, scope
from tests.http.aio import run
from tests.table import table
from welldone.cluster import failover_middleware
from welldone.cluster.asgi_relay import ASGIMessage, Receive, Send
from welldone.cluster.failover_middleware import FailoverMiddleware
from welldone.dialects.chat.writer import error_and_done
from welldone.dialects.gemini.writer import GeminiFormat
from welldone.dialects.messages.emitter import encode_error_event
from welldone.gateway.errors import ErrorFormat, shutting_down

BODY = b'{"model": "m"}'
JSON_REPLY = head_of("", content_type=b"application/json"), body_of(b'{"ok": true}', is_last=True)
SILENT = None
"""End of a front that Ray reports without an exception."""
DIED = RuntimeError("the actor died")
each_end = table("end", [SILENT, DIED], ids=["without an exception", "with an exception"])
each_path = table("path", [*PATHS, GEMINI_PATH])

FrontMessages = Sequence[ASGIMessage | Exception | None]


class Fronts:
    """Front replicas, each of which reads the request and then sends its messages."""

    def __init__(self, *replies: FrontMessages, reads_body: bool = True) -> None:
        self.bodies: list[bytes] = []
        self._replies = list(replies)
        self._reads_body = reads_body

    async def __call__(self, scope: ASGIMessage, receive: Receive, send: Send) -> None:
        """Answer with the messages of the next front."""
        body = b""
        while self._reads_body:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        self.bodies.append(body)
        for step in self._replies.pop(0):
            if isinstance(step, Exception):
                raise step
            if step is not None:
                await send(step)


def answer(fronts: Fronts, path: str = PATHS[0], client: Client | None = None) -> Client:
    async def work() -> Client:
        client_ = client or Client(BODY)
        await FailoverMiddleware(fronts)(scope(path), client_.receive, client_.send)
        return client_

    return run(work())


def stream(path: str, *sent: bytes, is_complete: bool = False) -> list[ASGIMessage]:
    return [head_of(path), *map(body_of, sent), *([body_of(b"", is_last=True)] if is_complete else [])]


def errors(path: str, body: bytes) -> list[Any]:
    """Return the errors in a stream."""
    lines = body.decode().splitlines() if path.startswith("/api/") else body.decode().replace("data: ", "").splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [message for message in found if message.get("error") or message.get("type") in ("error", "response.failed")]


def test_a_reply_is_forwarded_unchanged() -> None:
    fronts = Fronts(JSON_REPLY)
    assert answer(fronts).messages == list(JSON_REPLY)
    assert fronts.bodies == [BODY]


@each_end
@each_path
def test_before_the_head_another_front_answers(path: str, end: Exception | None) -> None:
    fronts = Fronts([end], [end], stream(path, *frames(path), is_complete=True))
    client = answer(fronts, path)
    assert client.body == b"".join(frames(path))
    assert client.is_complete
    assert fronts.bodies == [BODY] * 3


@each_end
@each_path
def test_after_a_head_and_comments_another_front_answers(path: str, end: Exception | None) -> None:
    comment = () if path.startswith("/api/") else (b"\n" if path == GEMINI_PATH else b": \n\n",)
    rest = stream(path, *frames(path), is_complete=True)
    client = answer(Fronts([*stream(path), end], [*stream(path, *comment), end], rest), path)
    assert client.status == 200
    assert client.body == b"".join((*comment, *frames(path)))
    assert client.is_complete
    assert path.startswith("/api/") or client.findings(path) == []


STOPPING = shutting_down()


def stopping(path: str) -> bytes:
    """The error event of a front that stops, before any content."""
    if path.startswith("/api/"):
        return STOPPING.body(ErrorFormat.OLLAMA) + b"\n"
    if path.endswith("/messages"):
        return encode_error_event(STOPPING.to_failure())
    if path == GEMINI_PATH:
        return GeminiFormat().final_error_bytes(STOPPING.to_failure())
    return error_and_done(STOPPING.to_failure())


@each_path
def test_a_stopping_front_that_sent_no_content_is_replaced(path: str) -> None:
    rest = stream(path, *frames(path), is_complete=True)
    fronts = Fronts(stream(path, stopping(path), is_complete=True), rest)
    client = answer(fronts, path)
    assert client.body == b"".join(frames(path))
    assert client.is_complete
    assert fronts.bodies == [BODY] * 2


def test_a_status_of_a_stopping_front_is_not_sent() -> None:
    head = {**head_of("", content_type=b"application/json"), "status": 503}
    stopped = head, body_of(STOPPING.body(ErrorFormat.OPENAI), is_last=True)
    assert answer(Fronts(stopped, JSON_REPLY)).messages == list(JSON_REPLY)
    last = answer(Fronts(stopped, stopped, stopped))
    assert (last.status, last.is_complete) == (503, True)


@each_path
def test_the_error_of_a_stopping_front_after_content_is_forwarded(path: str) -> None:
    sent = frames(path)[:1]
    fronts = Fronts(stream(path, *sent, stopping(path), is_complete=True))
    client = answer(fronts, path)
    assert client.body == b"".join((*sent, stopping(path)))
    assert client.is_complete
    assert len(fronts.bodies) == 1


@each_path
def test_an_answer_that_quotes_the_error_is_forwarded(path: str) -> None:
    message = STOPPING.message.encode()
    both = b"".join(frames(path)).replace(b"Hello", message).replace(b'"Hi"', b'"%b"' % message)
    assert message in both
    assert answer(Fronts(stream(path, both, is_complete=True)), path).body == both


@each_end
@each_path
def test_a_stream_broken_between_events_ends_with_one_error(path: str, end: Exception | None) -> None:
    for count in range(1, len(frames(path)) + 1):
        sent = frames(path)[:count]
        fronts = Fronts([*stream(path, *sent), end])
        client = answer(fronts, path)
        is_last_frame = count == len(frames(path))
        assert client.body.startswith(b"".join(sent))
        assert len(errors(path, client.body)) == (0 if is_last_frame else 1), (count, client.body)
        assert client.is_complete
        assert len(fronts.bodies) == 1
        assert path.startswith("/api/") or client.findings(path) == [], count


@each_path
def test_the_error_does_not_depend_on_how_events_are_split(path: str) -> None:
    sent = b"".join(frames(path)[:-1])
    in_one, in_parts = (
        answer(Fronts([*stream(path, *pieces), SILENT]), path).body
        for pieces in ([sent], [sent[at : at + 7] for at in range(0, len(sent), 7)])
    )
    assert in_one == in_parts
    assert len(errors(path, in_one)) == 1


@each_end
@each_path
def test_a_stream_broken_within_an_event_is_not_completed(path: str, end: Exception | None) -> None:
    async def work() -> Client:
        client = Client(BODY)
        app = FailoverMiddleware(Fronts([*stream(path, frames(path)[0], frames(path)[1][:9]), end]))
        if end is None:
            await app(scope(path), client.receive, client.send)
        else:
            with pytest.raises(RuntimeError, match="died"):
                await app(scope(path), client.receive, client.send)
        return client

    client = run(work())
    assert not client.is_complete
    assert client.body == frames(path)[0] + frames(path)[1][:9]


def test_empty_lines_of_a_gemini_stream_are_keep_alives() -> None:
    path = GEMINI_PATH
    rest = stream(path, *frames(path), is_complete=True)
    client = answer(Fronts([*stream(path, b"\n", b"\n"), SILENT], rest), path)
    assert client.body == b"\n\n" + b"".join(frames(path))
    died = answer(Fronts([*stream(path, b"\n"), SILENT], [SILENT], [SILENT]), path)
    assert "stopped" in json.loads(died.body.partition(b"data: ")[2])["error"]["message"]
    late = answer(Fronts([*stream(path, *frames(path), b"\n"), SILENT]), path)  # after the last element
    assert errors(path, late.body) == []


def test_an_array_of_gemini_breaks_with_its_front() -> None:
    head = head_of("", content_type=b"application/json; charset=utf-8")
    client = answer(Fronts([head, body_of(b'[{"candidates":[]}'), SILENT]), GEMINI_PATH)
    assert client.body == b'[{"candidates":[]}'
    assert not client.is_complete


def test_sequence_numbers_continue_after_a_very_long_event() -> None:
    path = "/v1/responses"
    long = b'event: response.output_text.done\ndata: {"type":"response.output_text.done","sequence_number":41,'
    long += b'"text":"%b"}\n\n' % (b"x" * 20_000)
    client = answer(Fronts([*stream(path, frames(path)[0], long), SILENT]), path)
    (error,) = errors(path, client.body)
    assert error["sequence_number"] == 42


@pytest.mark.parametrize("opening", [b"data: {}\n\n", b"data: {{}\n\n", b'data: {"response": 1}\n\n'])
def test_a_response_without_a_first_event_ends_with_an_error_event(opening: bytes) -> None:
    path = "/v1/responses"
    client = answer(Fronts([*stream(path, opening), SILENT]), path)
    assert client.body.startswith(opening + b"event: error\n")


def test_a_very_long_last_event_is_recognised() -> None:
    path = "/v1/responses"
    long = b'event: response.completed\ndata: {"type":"response.completed","text":"%b"}\n\n' % (b"x" * 20_000)
    client = answer(Fronts([*stream(path, frames(path)[0], long), SILENT]), path)
    assert client.body.endswith(long)
    assert client.is_complete


@each_end
def test_a_complete_reply_stays_complete_if_its_front_dies_afterwards(end: Exception | None) -> None:
    fronts = Fronts([*JSON_REPLY, end])
    assert answer(fronts).messages == list(JSON_REPLY)
    assert len(fronts.bodies) == 1


@each_end
def test_an_unsent_head_without_a_body_is_discarded(end: Exception | None) -> None:
    incomplete_head: ASGIMessage = {
        **JSON_REPLY[0],
        "headers": [*JSON_REPLY[0]["headers"], (b"content-length", b"999")],
    }
    client = answer(Fronts([incomplete_head, end], JSON_REPLY))
    assert client.messages == list(JSON_REPLY)


def test_the_head_of_one_front_is_not_used_for_the_stream_of_another() -> None:
    path = PATHS[0]
    client = answer(Fronts([JSON_REPLY[0], SILENT], stream(path, *frames(path), is_complete=True)), path)
    assert client.status == 200
    assert client.findings(path) == []


@each_end
def test_a_buffered_reply_breaks_with_its_front(end: Exception | None) -> None:
    client = Client(BODY)
    fronts = Fronts([JSON_REPLY[0], body_of(b'{"o'), end], JSON_REPLY)
    if end is None:
        answer(fronts, client=client)
    else:
        with pytest.raises(RuntimeError, match="died"):
            answer(fronts, client=client)
    assert (client.body, client.is_complete) == (b'{"o', False)
    assert len(fronts.bodies) == 1


@each_end
@each_path
def test_if_all_fronts_die_the_client_gets_503_with_retry_after(path: str, end: Exception | None) -> None:
    fronts = Fronts([end], [end], [end], JSON_REPLY)
    client = answer(fronts, path)
    assert client.status == 503
    assert client.headers[b"retry-after"] == b"1"
    assert int(client.headers[b"content-length"]) == len(client.body)
    assert "error" in json.loads(client.body)
    assert client.is_complete
    assert len(fronts.bodies) == 3
    if not path.startswith("/api/"):
        assert [rule for rule in client.findings(path) if rule.startswith("err")] == []


@each_path
def test_a_rejection_by_the_second_front_ends_the_started_stream(path: str) -> None:
    rejection = head_of(path, 429, b"application/json"), body_of(b'{"error": "later"}', is_last=True)
    client = answer(Fronts([*stream(path), SILENT], rejection), path)
    assert client.status == 200
    assert b"later" not in client.body
    assert len(errors(path, client.body)) == 1
    assert client.is_complete


def test_a_second_reply_that_does_not_match_the_first_head_is_not_forwarded() -> None:
    class StubbornFronts(Fronts):
        """A front that continues although `send` raises."""

        async def __call__(self, scope: ASGIMessage, receive: Receive, send: Send) -> None:
            async def ignore_errors(message: ASGIMessage) -> None:
                with suppress(RuntimeError):
                    await send(message)

            await super().__call__(scope, receive, ignore_errors)

    path = PATHS[0]
    client = answer(StubbornFronts([*stream(path), SILENT], JSON_REPLY), path)
    assert b"ok" not in client.body
    assert client.findings(path) == ["err-status-before-stream"]  # unavoidable: the head was sent already


def test_there_is_no_retry_for_a_disconnected_client() -> None:
    class WaitingFronts(Fronts):
        """A front that waits for the disconnect of the client."""

        async def __call__(self, scope: ASGIMessage, receive: Receive, send: Send) -> None:
            await super().__call__(scope, receive, send)
            assert (await receive())["type"] == "http.disconnect"

    fronts = WaitingFronts([])
    client = answer(fronts, client=Client(BODY, stays_connected=False))
    assert client.messages == []
    assert len(fronts.bodies) == 1


def test_a_body_in_several_messages_is_replayed_completely() -> None:
    bodies = b'{"model"', b': "m"', b"}"
    fronts = Fronts([SILENT], JSON_REPLY)
    answer(fronts, client=Client(*bodies))
    assert fronts.bodies == [b"".join(bodies)] * 2


def test_a_body_not_read_by_the_first_front_is_read_by_the_second() -> None:
    first, second = Fronts([SILENT], reads_body=False), Fronts(JSON_REPLY)
    fronts = [first, second]

    async def next_front(scope: ASGIMessage, receive: Receive, send: Send) -> None:
        await fronts.pop(0)(scope, receive, send)

    async def work() -> None:
        client = Client(BODY)
        await FailoverMiddleware(next_front)(scope(PATHS[0]), client.receive, client.send)
        assert client.messages == list(JSON_REPLY)

    run(work())
    assert second.bodies == [BODY]


def test_a_body_beyond_the_replay_limit_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover_middleware, "_REPLAY_LIMIT_BYTES", 10)
    bodies = b"12345", b"678901", b"2345"
    fronts = Fronts([SILENT], JSON_REPLY)
    client = answer(fronts, client=Client(*bodies))
    assert fronts.bodies == [b"".join(bodies)]
    assert client.status == 503


@pytest.mark.parametrize("scope_type", ["lifespan", "websocket"])
def test_other_scopes_are_passed_through(scope_type: str) -> None:
    received: list[Any] = []

    async def app(*parts: object) -> None:
        received.extend(parts)

    async def work() -> None:
        client = Client()
        arguments = ({"type": scope_type}, client.receive, client.send)
        await FailoverMiddleware(app)(*arguments)
        assert received == list(arguments)

    run(work())


def test_all_test_requests_are_streamed() -> None:
    assert all(request.get("stream", path.startswith("/api/")) for path, request in REQUESTS.items())
    assert all(len(frames(path)) >= 3 for path in PATHS)
