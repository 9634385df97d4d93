"""The HTTP server: requests in, replies out, and what happens when either side stops."""

import asyncio
import gc
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from tests.http.aio import run
from tests.http.certificates import make_pair
from tests.table import table
from welldone.http.server import Handler, HttpRequest, HttpResponse, HttpServer, RequestBodyError

GET = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"


def page(status: int, message: str) -> HttpResponse:
    return HttpResponse(status, message.encode(), "text/plain")


@asynccontextmanager
async def listening(
    handler: Handler, connections: int = 100, *, keep_alive_s: float = 10.0, unread_s: float = 60.0
) -> AsyncIterator[tuple[HttpServer, int]]:
    listener = HttpServer(
        handler, error_response=page, connections=connections, keep_alive_s=keep_alive_s, write_timeout_s=unread_s
    )
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


async def echo(call: HttpRequest) -> HttpResponse:
    try:
        body = await call.read_body(limit_bytes=10, timeout_s=0.05)
    except RequestBodyError as error:
        return HttpResponse(error.status, error.message.encode(), "text/plain", closes_connection=True)
    said = " ".join((call.method, call.path, call.query)).rstrip()
    return HttpResponse(200, said.encode() + b" " + body, headers={"X-Mine": "1"})


async def tell(call: HttpRequest) -> None:
    stream = await call.start_stream({"Content-Type": "text/event-stream"})
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


def test_to_write_nothing_does_not_end_a_stream() -> None:
    async def pause(call: HttpRequest) -> None:
        stream = await call.start_stream({"Content-Type": "application/x-ndjson"})
        for said in (b"one", b"", b"two"):
            stream.write(said)
        await stream.end()

    _, _, body = answer(pause, GET).partition(b"\r\n\r\n")
    assert body == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


def test_an_old_client_gets_a_stream_that_ends_with_the_connection() -> None:
    head, _, body = answer(tell, b"GET /x HTTP/1.0\r\nHost: h\r\n\r\n", is_last=False).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert body == b"onetwo"


@table(
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


@table(
    "head",
    [
        b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n",
        b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity, chunked\r\n\r\n0\r\n",
        b"GET http://evil.example/a HTTP/1.1\r\nHost: h\r\n",
        b"GET http://user@h/a HTTP/1.1\r\nHost: h\r\n",
        b"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused_and_ends_the_connection(head: bytes) -> None:
    reply = answer(echo, head + b"\r\n" + GET, is_last=False)
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert reply.count(b"HTTP/1.1 ") == 1
    assert b"\r\nConnection: close\r\n" in reply


@pytest.mark.tier3
def test_what_was_read_of_a_body_that_is_too_long_is_not_kept_by_its_own_error() -> None:
    gc.collect()
    gc.disable()
    try:
        reply = answer(echo, b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nhello world\r\n")
        assert reply.startswith(b"HTTP/1.1 413 ")
        assert [one for one in gc.get_objects() if isinstance(one, RequestBodyError)] == []
    finally:
        gc.enable()


def test_a_target_may_be_a_whole_address_of_the_same_host() -> None:
    assert answer(echo, b"GET http://H:1/a?b HTTP/1.1\r\nHost: h:1\r\n\r\n").endswith(b"GET /a b ")


def test_a_handler_that_fails_says_nothing_of_why() -> None:
    async def broken(call: HttpRequest) -> HttpResponse:
        raise RuntimeError("a secret")

    reply = answer(broken, GET)
    assert reply.startswith(b"HTTP/1.1 500 ")
    assert b"secret" not in reply


def test_a_handler_is_cancelled_when_its_client_leaves() -> None:
    async def work() -> None:
        asked, left = asyncio.Event(), asyncio.Event()

        async def wait(call: HttpRequest) -> HttpResponse:
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

        async def flood(call: HttpRequest) -> None:
            stream = await call.start_stream({})
            while not stream.has_backpressure:
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


async def tell_much(call: HttpRequest) -> None:
    stream = await call.start_stream({"Content-Type": "text/event-stream"})
    stream.write(b"x" * 2**25)
    await stream.end()


async def say_much(call: HttpRequest) -> HttpResponse:
    return HttpResponse(200, b"x" * 2**25)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("handler", [say_much, tell_much], ids=["whole", "stream"])
def test_who_never_reads_a_reply_is_left_and_holds_no_connection(
    handler: Handler, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def work() -> None:
        async with listening(handler, unread_s=0.2) as (listener, port):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(GET)
                for is_held in (True, False):
                    while bool(listener._server.connections) is not is_held:  # noqa: ASYNC110 - it tells nobody
                        await asyncio.sleep(0.01)
            assert listener.active == 0

    run(work(), new_loop)


def test_a_stream_can_be_cut() -> None:
    async def cut(call: HttpRequest) -> None:
        stream = await call.start_stream({})
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


@table(
    ("target", "said"),
    [
        (b"/a?x=1&y=%20+", b"/a x=1&y=%20+"),
        (b"/a?x=?&y#z?", b"/a x=?&y"),
        (b"/%61%3fb", b"/a?b"),
        (b"/a?", b"/a"),
    ],
)
def test_a_query_is_given_as_it_came(target: bytes, said: bytes) -> None:
    reply = answer(echo, b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % target)
    assert reply.partition(b"\r\n\r\n")[2] == b"GET %b " % said


async def tell_more(call: HttpRequest) -> None:
    stream = await call.start_stream({}, trailers=["X-A", "X-B"])
    stream.write(b"one")
    await stream.end({"X-A": "1", "X-B": "two; 3"})


def test_trailers_are_announced_and_come_after_the_last_chunk() -> None:
    head, _, body = answer(tell_more, GET).partition(b"\r\n\r\n")
    assert b"\r\nTrailer: X-A, X-B" in head
    assert body == b"3\r\none\r\n0\r\nX-A: 1\r\nX-B: two; 3\r\n\r\n"


def test_a_connection_goes_on_after_trailers() -> None:
    replies = answer(tell_more, GET + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), is_last=False)
    assert replies.count(b"\r\n0\r\nX-A: 1\r\nX-B: two; 3\r\n\r\n") == 2
    assert replies.count(b"HTTP/1.1 200 OK") == 2


def test_an_old_client_gets_no_trailers() -> None:
    head, _, body = answer(tell_more, b"GET /x HTTP/1.0\r\nHost: h\r\n\r\n", is_last=False).partition(b"\r\n\r\n")
    assert b"Trailer" not in head
    assert body == b"one"


def test_a_trailer_cannot_bring_lines_of_its_own() -> None:
    caught: list[Exception] = []

    async def inject(call: HttpRequest) -> None:
        stream = await call.start_stream({}, trailers=["X-A"])
        try:
            await stream.end({"X-A": "1\r\nX-B: 2"})
        except ValueError as error:
            caught.append(error)
            stream.abort()

    async def work() -> bytes:
        async with listening(inject) as (_, port):
            try:
                return await ask(port, GET)
            except ConnectionError:
                return b""

    assert b"X-B" not in run(work())
    assert len(caught) == 1


def test_a_stream_of_known_length_goes_out_without_chunks() -> None:
    async def known(call: HttpRequest) -> None:
        stream = await call.start_stream({"Content-Length": "6"}, status=201, trailers=["X-A"])
        stream.write(b"one")
        stream.write(b"two")
        await stream.end({"X-A": "1"})

    head, _, body = answer(known, GET).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 201 ")
    assert b"chunked" not in head
    assert b"Trailer" not in head
    assert body == b"onetwo"


def test_sockets_that_were_made_before_are_listened_on(tmp_path: Path) -> None:
    async def work() -> None:
        listener = HttpServer(echo, error_response=page, connections=1, keep_alive_s=10.0, write_timeout_s=60.0)
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
            assert await listener.start("", 0, sockets=[one, two]) == one.getsockname()[1]
            for bound in (one, two):
                assert (await ask(bound.getsockname()[1], GET)).startswith(b"HTTP/1.1 200 ")
            await listener.stop_accepting()
            await listener.close()
        other = HttpServer(echo, error_response=page, connections=1, keep_alive_s=10.0, write_timeout_s=60.0)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(tmp_path / "s"))
            assert await other.start("", 0, sockets=[bound]) == 0
            await other.close()

    run(work())


LOOPS = table("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
SOCKETS = 66
"""That there may be for one request at once."""


async def is_served(port: int) -> bool:
    """Whether a connection is there that a request can be sent on, and a reply comes."""
    try:
        return (await ask(port, GET)).startswith(b"HTTP/1.1 200 ")
    except ConnectionError:
        return False


@LOOPS
def test_more_sockets_than_can_be_held_are_closed_at_once_while_all_are_at_work(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def work() -> None:
        all_at_work, go = asyncio.Event(), asyncio.Event()

        async def wait(call: HttpRequest) -> HttpResponse:
            if listener.active == SOCKETS:
                all_at_work.set()
            await go.wait()
            return HttpResponse(200)

        async with listening(wait, 1) as (listener, port):
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(SOCKETS)]
            for _, writer in held:
                writer.write(GET)
            await all_at_work.wait()
            assert not await is_served(port)
            go.set()
            for reader, writer in held:
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
                writer.close()
            while not await is_served(port):  # until the server has seen that they left
                pass

    run(work(), new_loop)


@LOOPS
@table("said", [b"", GET[:-2], GET], ids=["nothing", "half a head", "a request, and then nothing"])
def test_where_there_are_too_many_the_one_goes_that_has_waited_longest(
    said: bytes, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def work() -> None:
        async with listening(echo, 1) as (_, port):
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(SOCKETS)]
            for reader, writer in reversed(held):  # once each was asked, the last has waited longest
                writer.write(GET)
                await reader.readuntil(b"GET /x ")
                writer.write(said)
                if said == GET:
                    await reader.readuntil(b"GET /x ")
            for place in (-1, -2, -3):
                held.insert(0, await asyncio.open_connection("127.0.0.1", port))
                assert await held[place][0].read() == b""
            assert await is_served(port)
            reader, writer = held[3]
            writer.write(GET if said == GET else GET[len(said) :])
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            for _, writer in held:
                writer.close()

    run(work(), new_loop)


@pytest.mark.parametrize("said", [b"", GET[:-2]], ids=["nothing", "half a head"])
def test_who_says_no_whole_head_is_hung_up_on(said: bytes) -> None:
    async def work() -> None:
        async with listening(echo, keep_alive_s=0.05) as (_, port):
            assert await ask(port, said, is_last=False) == b""
            assert b" 200 " in await ask(port, GET + said, is_last=False)

    run(work())


@LOOPS
def test_who_does_not_greet_by_tls_is_hung_up_on(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def work() -> None:
        listener = HttpServer(echo, error_response=page, connections=1, keep_alive_s=0.05, write_timeout_s=60.0)
        port = await listener.start("127.0.0.1", 0, tls=make_pair(tmp_path).serving())
        try:
            assert await ask(port, b"", is_last=False) == b""
        finally:
            await listener.close()

    run(work(), new_loop)


def test_long_bodies_are_handed_on_one_at_a_time_so_that_others_are_heard_between() -> None:
    body = b"x" * 2**19
    head = f"POST /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    rounds = 0
    handed: list[int] = []

    async def keep(call: HttpRequest) -> HttpResponse:
        await call.read_body(limit_bytes=2**20, timeout_s=60)
        handed.append(rounds)
        return HttpResponse(200)

    async def work() -> None:
        loop = asyncio.get_running_loop()

        def count() -> None:
            nonlocal rounds
            rounds += 1
            ticking[0] = loop.call_soon(count)

        async with listening(keep) as (_, port):
            lines = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
            for _, writer in lines:
                writer.write(head + body[:-1])
                await writer.drain()
            ticking = [loop.call_soon(count)]
            for _, writer in lines:
                writer.write(body[-1:])
            for reader, writer in lines:
                assert (await reader.read()).startswith(b"HTTP/1.1 200")
                writer.close()
            ticking[0].cancel()

    run(work())
    assert len(set(handed)) == 4
