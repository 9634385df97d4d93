"""The HTTP server: requests in, replies out, and what happens when either side stops."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.net.aio import run
from welldone.net.inbound import BodyError, Call, Handler, Listener, Reply

GET = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"


def page(status: int, message: str) -> Reply:
    return Reply(status, message.encode(), "text/plain")


@asynccontextmanager
async def listening(handler: Handler, connections: int = 100) -> AsyncIterator[tuple[Listener, int]]:
    listener = Listener(handler, error_page=page, connections=connections)
    port = await listener.start("127.0.0.1", 0)
    try:
        yield listener, port
    finally:
        await listener.stop_accepting()
        await listener.close()


async def ask(port: int, request: bytes, *, is_last: bool = True) -> bytes:
    """All that the server says to a request until it hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1) if is_last else request)
    reply = await reader.read()
    writer.close()
    return reply


def answer(handler: Handler, request: bytes, *, is_last: bool = True, connections: int = 100) -> bytes:
    async def work() -> bytes:
        async with listening(handler, connections) as (_, port):
            return await ask(port, request, is_last=is_last)

    return run(work())


async def echo(call: Call) -> Reply:
    try:
        body = await call.body(limit_bytes=10, within_s=0.05)
    except BodyError as error:
        return Reply(error.status, error.message.encode(), "text/plain", is_last=True)
    return Reply(200, call.method.encode() + b" " + call.path.encode() + b" " + body, headers={"X-Mine": "1"})


async def tell(call: Call) -> None:
    stream = await call.open({"Content-Type": "text/event-stream"})
    stream.write(b"one")
    stream.write(b"two")
    await stream.end()


def test_a_reply_goes_out_whole() -> None:
    reply = answer(echo, b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi")
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"X-Mine: 1" in head
    assert body == b"POST /a hi"


def test_a_stream_goes_out_in_chunks_and_ends() -> None:
    head, _, body = answer(tell, GET).partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert body == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


def test_an_old_client_gets_a_stream_that_ends_with_the_connection() -> None:
    head, _, body = answer(tell, b"GET /x HTTP/1.0\r\nHost: h\r\n\r\n", is_last=False).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert body == b"onetwo"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\n", 413),
        (b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n01234567890\r\n0\r\n\r\n", 413),
        (b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhi", 408),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", 400),
    ],
)
def test_what_is_too_long_too_slow_or_no_http_is_refused(request_bytes: bytes, status: int) -> None:
    assert answer(echo, request_bytes, is_last=False).split(b" ")[1] == b"%d" % status


def test_a_handler_that_fails_says_nothing_of_why() -> None:
    async def broken(call: Call) -> Reply:
        raise RuntimeError("a secret")

    reply = answer(broken, GET)
    assert reply.startswith(b"HTTP/1.1 500 ")
    assert b"secret" not in reply


def test_a_handler_is_cancelled_when_its_client_leaves() -> None:
    async def work() -> None:
        asked, left = asyncio.Event(), asyncio.Event()

        async def wait(call: Call) -> Reply:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.set()
            raise AssertionError

        async with listening(wait) as (listener, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)
            await asked.wait()
            assert listener.active == 1
            writer.close()
            await left.wait()

    run(work())


def test_a_client_that_does_not_read_is_seen_and_waited_for() -> None:
    async def work() -> None:
        full, done = asyncio.Event(), asyncio.Event()

        async def flood(call: Call) -> None:
            stream = await call.open({})
            while not stream.is_congested:
                stream.write(bytes(65536))
            full.set()
            await stream.drain()
            assert stream.is_open
            await stream.end()
            done.set()

        async with listening(flood) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(GET)
            await full.wait()
            assert not done.is_set()
            while not done.is_set():
                await reader.read(65536)
            writer.close()

    run(work())


def test_a_stream_can_be_cut() -> None:
    async def cut(call: Call) -> None:
        stream = await call.open({})
        stream.write(b"one")
        stream.abort()
        stream.write(b"two")
        await stream.end()

    async def work() -> bytes:
        async with listening(cut) as (_, port):
            try:
                return await ask(port, GET)
            except ConnectionError:
                return b""

    assert not run(work()).endswith(b"0\r\n\r\n")


def test_more_requests_than_can_be_held_are_refused() -> None:
    assert answer(echo, GET, connections=0).startswith(b"HTTP/1.1 503 ")
