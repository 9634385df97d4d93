"""A front that dies in every way, behind the guard: another one answers, or the client hears that it was an error."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from tests.asgi.fronts import PATHS, REQUESTS, Client, body_of, frames, head_of, scope
from tests.http.aio import run
from tests.table import table
from welldone.cluster import failover_middleware
from welldone.cluster.asgi_relay import ASGIMessage, Receive, Send
from welldone.cluster.failover_middleware import FailoverMiddleware

ASKED = b'{"model": "m"}'
WHOLE = head_of("", kind=b"application/json"), body_of(b'{"ok": true}', is_last=True)
SILENT = None
"""A front that is gone without a word, as Ray has it."""
DIED = RuntimeError("the actor died")
ENDS = table("end", [SILENT, DIED], ids=["in silence", "with an error"])
ALL = table("path", PATHS)

Play = Sequence[ASGIMessage | Exception | None]


class Fronts:
    """Fronts that say one thing after the other, and hear the whole request before."""

    def __init__(self, *plays: Play, hears: bool = True) -> None:
        self.asked: list[bytes] = []
        self._plays = list(plays)
        self._hears = hears

    async def __call__(self, scope: ASGIMessage, receive: Receive, send: Send) -> None:
        """One more of them is asked."""
        body = b""
        while self._hears:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        self.asked.append(body)
        for one in self._plays.pop(0):
            if isinstance(one, Exception):
                raise one
            if one is not None:
                await send(one)


def answer(fronts: Fronts, path: str = PATHS[0], client: Client | None = None) -> Client:
    async def work() -> Client:
        client_ = client or Client(ASKED)
        await FailoverMiddleware(fronts)(scope(path), client_.receive, client_.send)
        return client_

    return run(work())


def stream(path: str, *said: bytes, is_whole: bool = False) -> list[ASGIMessage]:
    return [head_of(path), *map(body_of, said), *([body_of(b"", is_last=True)] if is_whole else [])]


def errors(path: str, body: bytes) -> list[Any]:
    """The errors in a stream."""
    lines = body.decode().splitlines() if path.startswith("/api/") else body.decode().replace("data: ", "").splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [one for one in found if one.get("error") or one.get("type") in ("error", "response.failed")]


def test_what_a_front_says_comes_through_as_it_is() -> None:
    fronts = Fronts(WHOLE)
    assert answer(fronts).heard == list(WHOLE)
    assert fronts.asked == [ASKED]


@ENDS
@ALL
def test_where_nothing_was_said_another_front_answers(path: str, end: Exception | None) -> None:
    fronts = Fronts([end], [end], stream(path, *frames(path), is_whole=True))
    client = answer(fronts, path)
    assert client.body == b"".join(frames(path))
    assert client.is_whole
    assert fronts.asked == [ASKED] * 3


@ENDS
@ALL
def test_a_head_and_comments_alone_are_nothing_yet(path: str, end: Exception | None) -> None:
    comment = () if path.startswith("/api/") else (b": \n\n",)
    rest = stream(path, *frames(path), is_whole=True)
    client = answer(Fronts([*stream(path), end], [*stream(path, *comment), end], rest), path)
    assert client.status == 200
    assert client.body == b"".join((*comment, *frames(path)))
    assert client.is_whole
    assert path.startswith("/api/") or client.findings(path) == []


@ENDS
@ALL
def test_a_stream_that_breaks_off_anywhere_between_events_ends_with_one_error(path: str, end: Exception | None) -> None:
    for count in range(1, len(frames(path)) + 1):
        said = frames(path)[:count]
        fronts = Fronts([*stream(path, *said), end])
        client = answer(fronts, path)
        is_all = count == len(frames(path))
        assert client.body.startswith(b"".join(said))
        assert len(errors(path, client.body)) == (0 if is_all else 1), (count, client.body)
        assert client.is_whole
        assert len(fronts.asked) == 1
        assert path.startswith("/api/") or client.findings(path) == [], count


@ALL
def test_it_does_not_matter_how_events_come_together(path: str) -> None:
    said = b"".join(frames(path)[:-1])
    in_one, in_bits = (
        answer(Fronts([*stream(path, *pieces), SILENT]), path).body
        for pieces in ([said], [said[at : at + 7] for at in range(0, len(said), 7)])
    )
    assert in_one == in_bits
    assert len(errors(path, in_one)) == 1


@ENDS
@ALL
def test_within_an_event_the_reply_breaks_off_and_is_never_whole(path: str, end: Exception | None) -> None:
    async def work() -> Client:
        client = Client(ASKED)
        app = FailoverMiddleware(Fronts([*stream(path, frames(path)[0], frames(path)[1][:9]), end]))
        if end is None:
            await app(scope(path), client.receive, client.send)
        else:
            with pytest.raises(RuntimeError, match="died"):
                await app(scope(path), client.receive, client.send)
        return client

    client = run(work())
    assert not client.is_whole
    assert client.body == frames(path)[0] + frames(path)[1][:9]


def test_the_numbers_of_responses_go_on_after_an_event_that_is_longer_than_what_is_kept() -> None:
    path = "/v1/responses"
    long = b'event: response.output_text.done\ndata: {"type":"response.output_text.done","sequence_number":41,'
    long += b'"text":"%b"}\n\n' % (b"x" * 20_000)
    client = answer(Fronts([*stream(path, frames(path)[0], long), SILENT]), path)
    (error,) = errors(path, client.body)
    assert error["sequence_number"] == 42


@pytest.mark.parametrize("opening", [b"data: {}\n\n", b"data: {{}\n\n", b'data: {"response": 1}\n\n'])
def test_a_response_that_has_not_told_of_itself_ends_with_an_error_event(opening: bytes) -> None:
    path = "/v1/responses"
    client = answer(Fronts([*stream(path, opening), SILENT]), path)
    assert client.body.startswith(opening + b"event: error\n")


def test_a_long_last_event_is_known_as_the_last() -> None:
    path = "/v1/responses"
    long = b'event: response.completed\ndata: {"type":"response.completed","text":"%b"}\n\n' % (b"x" * 20_000)
    client = answer(Fronts([*stream(path, frames(path)[0], long), SILENT]), path)
    assert client.body.endswith(long)
    assert client.is_whole


@ENDS
def test_a_whole_reply_is_whole_even_if_its_front_dies_then(end: Exception | None) -> None:
    fronts = Fronts([*WHOLE, end])
    assert answer(fronts).heard == list(WHOLE)
    assert len(fronts.asked) == 1


@ENDS
def test_a_head_whose_body_never_comes_is_not_the_client_s_business(end: Exception | None) -> None:
    doomed: ASGIMessage = {**WHOLE[0], "headers": [*WHOLE[0]["headers"], (b"content-length", b"999")]}
    client = answer(Fronts([doomed, end], WHOLE))
    assert client.heard == list(WHOLE)


def test_a_head_of_one_front_never_stands_before_the_stream_of_another() -> None:
    path = PATHS[0]
    client = answer(Fronts([WHOLE[0], SILENT], stream(path, *frames(path), is_whole=True)), path)
    assert client.status == 200
    assert client.findings(path) == []


@ENDS
def test_a_reply_that_is_no_stream_breaks_off_with_its_front(end: Exception | None) -> None:
    client = Client(ASKED)
    fronts = Fronts([WHOLE[0], body_of(b'{"o'), end], WHOLE)
    if end is None:
        answer(fronts, client=client)
    else:
        with pytest.raises(RuntimeError, match="died"):
            answer(fronts, client=client)
    assert (client.body, client.is_whole) == (b'{"o', False)
    assert len(fronts.asked) == 1


@ENDS
@ALL
def test_where_all_die_the_client_is_told_to_come_again(path: str, end: Exception | None) -> None:
    fronts = Fronts([end], [end], [end], WHOLE)
    client = answer(fronts, path)
    assert client.status == 503
    assert client.headers[b"retry-after"] == b"1"
    assert int(client.headers[b"content-length"]) == len(client.body)
    assert "error" in json.loads(client.body)
    assert client.is_whole
    assert len(fronts.asked) == 3
    if not path.startswith("/api/"):
        assert [rule for rule in client.findings(path) if rule.startswith("err")] == []


@ALL
def test_a_second_front_that_refuses_ends_the_stream_that_was_promised(path: str) -> None:
    refusal = head_of(path, 429, b"application/json"), body_of(b'{"error": "later"}', is_last=True)
    client = answer(Fronts([*stream(path), SILENT], refusal), path)
    assert client.status == 200
    assert b"later" not in client.body
    assert len(errors(path, client.body)) == 1
    assert client.is_whole


def test_nothing_of_a_second_reply_gets_through_that_does_not_fit_the_first_head() -> None:
    class Stubborn(Fronts):
        """One that goes on although it was told to stop."""

        async def __call__(self, scope: ASGIMessage, receive: Receive, send: Send) -> None:
            async def deaf(message: ASGIMessage) -> None:
                with suppress(RuntimeError):
                    await send(message)

            await super().__call__(scope, receive, deaf)

    path = PATHS[0]
    client = answer(Stubborn([*stream(path), SILENT], WHOLE), path)
    assert b"ok" not in client.body
    assert client.findings(path) == ["err-status-before-stream"]  # the head had been sent: there is no other way


def test_nobody_is_asked_again_for_a_client_that_left() -> None:
    class Waiting(Fronts):
        """One that sees the client go."""

        async def __call__(self, scope: ASGIMessage, receive: Receive, send: Send) -> None:
            await super().__call__(scope, receive, send)
            assert (await receive())["type"] == "http.disconnect"

    fronts = Waiting([])
    client = answer(fronts, client=Client(ASKED, stays=False))
    assert client.heard == []
    assert len(fronts.asked) == 1


def test_a_body_in_several_messages_is_asked_again_whole() -> None:
    bodies = b'{"model"', b': "m"', b"}"
    fronts = Fronts([SILENT], WHOLE)
    answer(fronts, client=Client(*bodies))
    assert fronts.asked == [b"".join(bodies)] * 2


def test_a_body_that_the_first_front_has_not_read_is_read_by_the_second() -> None:
    first, second = Fronts([SILENT], hears=False), Fronts(WHOLE)
    fronts = [first, second]

    async def either(scope: ASGIMessage, receive: Receive, send: Send) -> None:
        await fronts.pop(0)(scope, receive, send)

    async def work() -> None:
        client = Client(ASKED)
        await FailoverMiddleware(either)(scope(PATHS[0]), client.receive, client.send)
        assert client.heard == list(WHOLE)

    run(work())
    assert second.asked == [ASKED]


def test_a_body_that_is_too_long_to_be_kept_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover_middleware, "_KEPT_BYTES", 10)
    bodies = b"12345", b"678901", b"2345"
    fronts = Fronts([SILENT], WHOLE)
    client = answer(fronts, client=Client(*bodies))
    assert fronts.asked == [b"".join(bodies)]
    assert client.status == 503


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
def test_what_is_no_request_passes_by(kind: str) -> None:
    seen: list[Any] = []

    async def app(*parts: object) -> None:
        seen.extend(parts)

    async def work() -> None:
        client = Client()
        given = ({"type": kind}, client.receive, client.send)
        await FailoverMiddleware(app)(*given)
        assert seen == list(given)

    run(work())


def test_the_requests_of_these_tests_are_for_streams() -> None:
    assert all(request.get("stream", path.startswith("/api/")) for path, request in REQUESTS.items())
    assert all(len(frames(path)) >= 3 for path in PATHS)
