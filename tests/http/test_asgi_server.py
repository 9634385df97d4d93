"""`InProcessServer`: an ASGI application behind an HTTP client, without a socket."""

import asyncio
import gzip
import logging
from typing import Any

import pytest

from tests.http.aio import run
from welldone.http.address import parse_url
from welldone.http.asgi_server import ASGIApplication, ASGIEvent, InProcessServer, StartupFailedError
from welldone.http.recording_client import RecordedResponse, record_response

ADDRESS = parse_url("http://localhost:81/prefix")


def fetch(app: ASGIApplication, method: str = "POST", path: str = "/a%20b?q=1", **options: Any) -> RecordedResponse:  # noqa: ANN401
    """Send one request to an application."""

    async def work() -> RecordedResponse:
        async with InProcessServer(app) as server:
            return await record_response(ADDRESS, method, path, connect=server.connect, **options)

    return run(work())


def app_with(*messages: ASGIEvent, error: Exception | None = None) -> ASGIApplication:
    """An application that sends these messages, and then raises `error`."""

    async def app(scope: ASGIEvent, receive: Any, send: Any) -> None:  # noqa: ANN401 - of ASGI
        assert scope["type"] == "http", "no lifespan"
        for message in messages:
            await send(message)
        if error is not None:
            raise error

    return app


def start(status: int = 200, *headers: tuple[bytes, bytes]) -> ASGIEvent:
    return {"type": "http.response.start", "status": status, "headers": headers}


def body(data: bytes, *, more: bool = False) -> ASGIEvent:
    return {"type": "http.response.body", "body": data, "more_body": more}


def test_an_application_gets_the_request() -> None:
    scopes: list[ASGIEvent] = []

    async def app(scope: ASGIEvent, receive: Any, send: Any) -> None:  # noqa: ANN401 - of ASGI
        assert scope["type"] == "http"
        scopes.append(scope)
        message = await receive()
        await send(start(200, (b"content-length", b"3")))
        await send(body(message["body"]))
        assert (await receive())["type"] == "http.disconnect"  # as uvicorn, after the end of the response

    reply = fetch(app, body=b"abc", headers=[("X-Name", "value")])
    assert (reply.status, reply.body, reply.is_complete, reply.pieces) == (200, b"abc", True, None)
    (scope,) = scopes
    assert scope["method"] == "POST"
    assert (scope["path"], scope["raw_path"], scope["query_string"]) == ("/prefix/a b", b"/prefix/a%20b", b"q=1")
    assert (b"x-name", b"value") in scope["headers"]
    assert (b"host", b"localhost:81") in scope["headers"]


def test_each_body_message_is_a_chunk_and_compression_is_undone() -> None:
    reply = fetch(app_with(start(), body(b"a", more=True), body(b"", more=True), body(b"bc")))
    assert (reply.body, reply.pieces, reply.is_complete) == (b"abc", (1, 2), True)
    packed = fetch(app_with(start(200, (b"content-encoding", b"gzip")), body(gzip.compress(b"abc"))))
    assert packed.body == b"abc"


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
def test_a_response_without_a_body_has_none(method: str, status: int) -> None:
    reply = fetch(app_with(start(status), body(b"abc")), method)
    assert (reply.status, reply.body, reply.is_complete) == (status, b"", True)


def test_an_exception_before_the_head_is_a_500(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        reply = fetch(app_with(error=ZeroDivisionError()))
    assert (reply.status, reply.body) == (500, b"Internal Server Error")
    assert "ZeroDivisionError" in caplog.text


def test_an_exception_within_the_body_is_a_lost_connection(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):
        reply = fetch(app_with(start(), body(b"a", more=True), error=ZeroDivisionError()))
    assert (reply.status, reply.body, reply.is_complete) == (200, b"a", False)
    assert reply.error is not None


def test_an_application_is_told_that_the_client_has_left() -> None:
    received: list[str] = []

    async def app(scope: ASGIEvent, receive: Any, send: Any) -> None:  # noqa: ANN401 - of ASGI
        assert scope["type"] == "http"
        await receive()
        await send(start())
        await send(body(b"a", more=True))
        received.append((await receive())["type"])
        await send(body(b"b"))  # ignored
        left.set()

    async def work() -> RecordedResponse:
        async with InProcessServer(app) as server:
            leave = {"leave": lambda data: data == b"a"}
            reply = await record_response(ADDRESS, "POST", "/", connect=server.connect, **leave)  # type: ignore[arg-type]
            await left.wait()
            return reply

    left = asyncio.Event()
    reply = run(work())
    assert reply.is_aborted
    assert received == ["http.disconnect"]


def test_an_endless_application_is_cancelled_at_the_end() -> None:
    ended: list[bool] = []

    async def app(scope: ASGIEvent, receive: Any, send: Any) -> None:  # noqa: ANN401 - of ASGI
        assert scope["type"] == "http"
        await send(start())
        try:
            while True:
                await send(body(b"x" * 1000, more=True))
        finally:
            ended.append(True)

    reply = fetch(app, limit_bytes=10_000)
    assert reply.is_abandoned
    assert ended == [True]


def test_startup_and_shutdown_run_and_share_state() -> None:
    steps: list[str] = []

    async def app(scope: ASGIEvent, receive: Any, send: Any) -> None:  # noqa: ANN401 - of ASGI
        if scope["type"] == "lifespan":
            steps.append((await receive())["type"])
            scope["state"]["name"] = b"shared"
            await send({"type": "lifespan.startup.complete"})
            steps.append((await receive())["type"])
            await send({"type": "lifespan.shutdown.complete"})
            return
        steps.append("request")
        await send(start())
        await send(body(scope["state"]["name"]))

    assert fetch(app).body == b"shared"
    assert steps == ["lifespan.startup", "request", "lifespan.shutdown"]


def test_a_startup_that_fails_raises_its_message() -> None:
    async def app(scope: ASGIEvent, receive: Any, send: Any) -> None:  # noqa: ANN401 - of ASGI
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no model"})

    with pytest.raises(StartupFailedError, match="the application did not start: no model"):
        fetch(app)
