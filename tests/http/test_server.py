"""HTTP server: requests, responses, limits, and disconnects of either side."""

import asyncio
import gc
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from tests.http.aio import run
from tests.http.certificates import make_pair
from tests.table import table
from welldone.http.messages import Handler, HttpRequest, HttpResponse, RequestBodyError
from welldone.http.server import HttpServer

GET = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"


def error_page(status: int, message: str) -> HttpResponse:
    return HttpResponse(status, message.encode(), "text/plain")


@asynccontextmanager
async def running_server(
    handler: Handler, connections: int = 100, *, keep_alive_s: float = 10.0, write_timeout_s: float = 60.0
) -> AsyncIterator[tuple[HttpServer, int]]:
    server = HttpServer(
        handler,
        error_response=error_page,
        connections=connections,
        keep_alive_s=keep_alive_s,
        write_timeout_s=write_timeout_s,
    )
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.stop_accepting()
        await server.close()


async def send_request(port: int, request: bytes, *, is_last: bool = True) -> bytes:
    """Send a request and return everything that the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1) if is_last else request)
    reply = await reader.read()
    writer.close()
    return reply


def respond_to(handler: Handler, request: bytes, *, is_last: bool = True, connections: int = 100) -> bytes:
    async def work() -> bytes:
        async with running_server(handler, connections) as (_, port):
            return await send_request(port, request, is_last=is_last)

    return run(work())


async def echo(request: HttpRequest) -> HttpResponse:
    try:
        body = await request.read_body(limit_bytes=10, timeout_s=0.05)
    except RequestBodyError as error:
        return HttpResponse(error.status, error.message.encode(), "text/plain", closes_connection=True)
    sent = " ".join((request.method, request.path, request.query)).rstrip()
    return HttpResponse(200, sent.encode() + b" " + body, headers={"X-Mine": "1"})


async def stream_two_chunks(request: HttpRequest) -> None:
    stream = await request.start_stream({"Content-Type": "text/event-stream"})
    stream.write(b"one")
    stream.write(b"two")
    await stream.end()


def test_a_response_is_sent() -> None:
    reply = respond_to(echo, b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi")
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"X-Mine: 1" in head
    assert body == b"POST /a hi"


def test_a_stream_is_sent_in_chunks() -> None:
    head, _, body = respond_to(stream_two_chunks, GET).partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert body == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


def test_an_empty_write_does_not_end_a_stream() -> None:
    async def pause(request: HttpRequest) -> None:
        stream = await request.start_stream({"Content-Type": "application/x-ndjson"})
        for sent in (b"one", b"", b"two"):
            stream.write(sent)
        await stream.end()

    _, _, body = respond_to(pause, GET).partition(b"\r\n\r\n")
    assert body == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


def test_an_http_1_0_client_gets_a_stream_that_ends_with_the_connection() -> None:
    head, _, body = respond_to(stream_two_chunks, b"GET /x HTTP/1.0\r\nHost: h\r\n\r\n", is_last=False).partition(
        b"\r\n\r\n"
    )
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
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X: y\r\n" * 200 + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 70_000, 400),
        (b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n", 400),
        (b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"a" * 70_000, 400),
    ],
)
def test_requests_that_are_too_long_too_slow_or_invalid_are_rejected(request_bytes: bytes, status: int) -> None:
    assert respond_to(echo, request_bytes, is_last=False).split(b" ")[1] == b"%d" % status


def test_a_response_to_head_has_no_body() -> None:
    head, _, body = respond_to(echo, GET.replace(b"GET", b"HEAD")).partition(b"\r\n\r\n")
    assert b"\r\nContent-Length: 8\r\n" in head
    assert body == b""
    head, _, body = respond_to(stream_two_chunks, GET.replace(b"GET", b"HEAD")).partition(b"\r\n\r\n")
    assert b"text/event-stream" in head
    assert body == b""


def test_a_response_without_content_has_no_length() -> None:
    async def no_content(request: HttpRequest) -> HttpResponse:
        return HttpResponse(204)

    reply = respond_to(no_content, GET)
    assert reply.startswith(b"HTTP/1.1 204 No Content\r\n")
    assert b"Content-Length" not in reply


@table("status", [204, 304])
@table("method", [b"GET", b"HEAD"])
def test_a_streamed_response_without_content_is_its_head(status: int, method: bytes) -> None:
    async def stream_nothing(request: HttpRequest) -> None:
        stream = await request.start_stream({"Content-Length": "3"} if request.path == "/x" else {}, status=status)
        stream.write(b"abc")
        await stream.end(last=b"d")

    first, second, last = [GET.replace(b"/x", path).replace(b"GET", method) for path in (b"/x", b"/y", b"/y")]
    replies = respond_to(
        stream_nothing, first + second + last.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), is_last=False
    )
    heads = replies.split(b"\r\n\r\n")
    assert [head[:13] for head in heads] == [b"HTTP/1.1 %d " % status] * 3 + [b""]
    assert b"Length" not in replies
    assert b"Transfer-Encoding" not in replies


@table("status", [204, 304])
def test_a_response_without_content_keeps_the_connection_of_an_http_1_0_client(status: int) -> None:
    async def stream_nothing(request: HttpRequest) -> None:
        await (await request.start_stream({}, status=status)).end()

    request = b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    assert (
        respond_to(stream_nothing, request * 2 + b"GET /x HTTP/1.0\r\n\r\n", is_last=False).count(b" %d " % status) == 3
    )


def test_a_response_header_cannot_inject_lines() -> None:
    async def inject(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, headers={"X-A": "1\r\nX-B: 2"})

    reply = respond_to(inject, GET)
    assert reply.startswith(b"HTTP/1.1 500 ")
    assert b"X-B" not in reply


def test_a_client_that_expects_a_continuation_gets_one_before_it_sends_the_body() -> None:
    async def work() -> None:
        async with running_server(echo) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-Continue\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"hi")
            assert (await reader.readuntil(b"POST /a hi")).startswith(b"HTTP/1.1 200 ")
            writer.close()

    run(work())


def test_requests_that_arrive_during_a_response_are_answered_in_order() -> None:
    async def work() -> None:
        go, started = asyncio.Event(), asyncio.Event()

        async def wait(request: HttpRequest) -> HttpResponse:
            started.set()
            await go.wait()
            return HttpResponse(200, request.path.encode())

        async with running_server(wait) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET.replace(b"/x", b"/1"))
            await started.wait()
            for path in (b"/2", b"/3"):
                writer.write(GET.replace(b"/x", path))
                await asyncio.sleep(0)
            go.set()
            for path in (b"/1", b"/2", b"/3"):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
                assert await reader.readexactly(2) == path
            writer.close()

    run(work())


@table("body", [b"5\r\nhello\r\n0\r\n\r\n", b"30d40\r\n" + b"x" * 200_000 + b"\r\n0\r\nX-Trailer: 1\r\n\r\n"])
def test_a_connection_is_reusable_after_a_body_that_the_handler_did_not_read(body: bytes) -> None:
    async def ignore_body(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, request.path.encode())

    request = b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    replies = respond_to(
        ignore_body, request + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), is_last=False
    )
    assert [reply.partition(b"\r\n\r\n")[2] for reply in replies.split(b"HTTP/1.1 200 OK")[1:]] == [b"/a", b"/x"]


def test_a_body_that_is_read_late_does_not_fill_the_memory() -> None:
    async def work() -> None:
        go = asyncio.Event()

        async def read_late(request: HttpRequest) -> HttpResponse:
            await go.wait()
            body = await request.read_body(limit_bytes=2**26, timeout_s=60)
            return HttpResponse(200, str(len(body)).encode())

        async with running_server(read_late) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.transport.set_write_buffer_limits(2**16)
            writer.write(b"POST /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % 2**25)
            writer.write(b"x" * 2**25)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await writer.drain()
            go.set()
            assert (await reader.read()).endswith(b"\r\n\r\n%d" % 2**25)
            writer.close()

    run(work())


def test_a_request_for_another_protocol_is_answered_in_http_and_ends_the_connection() -> None:
    upgrade = GET.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n") + b"\x81\x00"
    reply = respond_to(echo, upgrade, is_last=False)
    assert reply.endswith(b"GET /x ")
    assert b"\r\nConnection: close\r\n" in reply


@pytest.mark.tier2
def test_a_request_over_tls_is_answered(tmp_path: Path) -> None:
    async def work() -> None:
        server = HttpServer(echo, error_response=error_page, connections=1, keep_alive_s=10.0, write_timeout_s=60.0)
        pair = make_pair(tmp_path)
        trusting = ssl.create_default_context(cafile=pair.certificate)
        port = await server.start("127.0.0.1", 0, tls=pair.serving())
        try:
            for request in (b"nonsense\r\n\r\n", GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
                writer.write(request)
                replies.append(await reader.read())
                writer.close()
        finally:
            await server.close()

    replies: list[bytes] = []
    run(work())
    assert [reply.split(b" ")[1] for reply in replies] == [b"400", b"200"]


@table(
    "head",
    [
        b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n",
        b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity, chunked\r\n\r\n0\r\n",
        b"POST /a HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        b"GET http://evil.example/a HTTP/1.1\r\nHost: h\r\n",
        b"GET http://user@h/a HTTP/1.1\r\nHost: h\r\n",
        b"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n",
    ],
)
def test_an_ambiguous_request_is_rejected_and_closes_the_connection(head: bytes) -> None:
    reply = respond_to(echo, head + b"\r\n" + GET, is_last=False)
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert reply.count(b"HTTP/1.1 ") == 1
    assert b"\r\nConnection: close\r\n" in reply


@pytest.mark.tier3
def test_the_error_of_a_long_body_does_not_keep_the_body_alive() -> None:
    gc.collect()
    gc.disable()
    try:
        reply = respond_to(
            echo, b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nhello world\r\n"
        )
        assert reply.startswith(b"HTTP/1.1 413 ")
        assert [value for value in gc.get_objects() if isinstance(value, RequestBodyError)] == []
    finally:
        gc.enable()


def test_an_absolute_target_of_the_same_host_is_accepted() -> None:
    assert respond_to(echo, b"GET http://H:1/a?b HTTP/1.1\r\nHost: h:1\r\n\r\n").endswith(b"GET /a b ")


def test_a_failing_handler_does_not_disclose_its_exception() -> None:
    async def broken(request: HttpRequest) -> HttpResponse:
        raise RuntimeError("a secret")

    reply = respond_to(broken, GET)
    assert reply.startswith(b"HTTP/1.1 500 ")
    assert b"secret" not in reply


def test_a_handler_is_cancelled_when_its_client_disconnects() -> None:
    async def work() -> None:
        started, cancelled = asyncio.Event(), asyncio.Event()

        async def wait(request: HttpRequest) -> HttpResponse:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            raise AssertionError

        async with running_server(wait) as (server, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)
            await started.wait()
            assert server.active == 1
            writer.close()
            await cancelled.wait()

    run(work())


def test_a_client_that_does_not_read_causes_backpressure() -> None:
    async def work() -> None:
        full, done = asyncio.Event(), asyncio.Event()

        async def flood(request: HttpRequest) -> None:
            stream = await request.start_stream({})
            while not stream.has_backpressure:
                stream.write(bytes(65536))
            full.set()
            await stream.drain()
            assert stream.is_open
            await stream.end()
            done.set()

        async with running_server(flood) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(GET)
            await full.wait()
            assert not done.is_set()
            while not done.is_set():
                await reader.read(65536)
            writer.close()

    run(work())


async def stream_large_body(request: HttpRequest) -> None:
    stream = await request.start_stream({"Content-Type": "text/event-stream"})
    stream.write(b"x" * 2**25)
    await stream.end()


async def send_large_body(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, b"x" * 2**25)


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_USER_TIMEOUT exists only on Linux")
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("handler", [send_large_body, stream_large_body], ids=["complete", "stream"])
def test_a_client_that_never_reads_is_disconnected(
    handler: Handler, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def work() -> None:
        async with running_server(handler, write_timeout_s=0.2) as (server, port):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(GET)
                for is_held in (True, False):
                    while bool(server.connections) is not is_held:  # noqa: ASYNC110 - there is no event for it
                        await asyncio.sleep(0.01)
            assert server.active == 0

    run(work(), new_loop)


def test_a_stream_can_be_aborted() -> None:
    async def cut(request: HttpRequest) -> None:
        stream = await request.start_stream({})
        stream.write(b"one")
        stream.abort()
        stream.write(b"two")
        await stream.end()

    async def work() -> bytes:
        async with running_server(cut) as (_, port):
            try:
                return await send_request(port, GET)
            except ConnectionError:
                return b""

    assert not run(work()).endswith(b"0\r\n\r\n")


@table(
    ("target", "sent"),
    [
        (b"/a?x=1&y=%20+", b"/a x=1&y=%20+"),
        (b"/a?x=?&y#z?", b"/a x=?&y"),
        (b"/%61%3fb", b"/a?b"),
        (b"/a?", b"/a"),
        (b"/%ff", b"/%ff"),
    ],
)
def test_a_query_is_passed_on_unchanged(target: bytes, sent: bytes) -> None:
    reply = respond_to(echo, b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % target)
    assert reply.partition(b"\r\n\r\n")[2] == b"GET %b " % sent


async def stream_with_trailers(request: HttpRequest) -> None:
    stream = await request.start_stream({}, trailers=["X-A", "X-B"])
    stream.write(b"one")
    await stream.end({"X-A": "1", "X-B": "two; 3"})


@table("trailers", [{}, {"X-A": "1"}])
@table(("first", "written", "last"), [(b"ab", b"", b""), (b"a", b"b", b""), (b"a", b"", b"b"), (b"", b"a", b"b")])
def test_first_and_last_data_are_part_of_the_body(
    first: bytes, written: bytes, last: bytes, trailers: dict[str, str]
) -> None:
    async def stream_parts(request: HttpRequest) -> None:
        stream = await request.start_stream({}, trailers=[*trailers], first=first)
        stream.write(written)
        await stream.end(trailers, last=last)

    body = respond_to(stream_parts, GET).partition(b"\r\n\r\n")[2]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(data), data) for data in (first, written, last) if data)
    assert body == chunks + (b"0\r\nX-A: 1\r\n\r\n" if trailers else b"0\r\n\r\n")
    old = b"GET /x HTTP/1.0\r\nHost: h\r\n\r\n"
    assert respond_to(stream_parts, old, is_last=False).partition(b"\r\n\r\n")[2] == b"ab"


@table("trailers", [{}, {"X-A": "1"}])
@table("last", [b"", b"ab"])
def test_a_response_that_holds_its_head_is_sent_at_its_end(last: bytes, trailers: dict[str, str]) -> None:
    async def stream_at_once(request: HttpRequest) -> None:
        stream = await request.start_stream({"X-B": "2"}, trailers=[*trailers], holds_head=True)
        await stream.end(trailers, last=last)

    head, _, body = respond_to(stream_at_once, GET).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"X-B: 2" in head
    assert body == (b"2\r\nab\r\n" if last else b"") + (b"0\r\nX-A: 1\r\n\r\n" if trailers else b"0\r\n\r\n")


def test_trailers_are_announced_and_follow_the_last_chunk() -> None:
    head, _, body = respond_to(stream_with_trailers, GET).partition(b"\r\n\r\n")
    assert b"\r\nTrailer: X-A, X-B" in head
    assert body == b"3\r\none\r\n0\r\nX-A: 1\r\nX-B: two; 3\r\n\r\n"


def test_a_connection_is_reusable_after_trailers() -> None:
    replies = respond_to(
        stream_with_trailers, GET + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), is_last=False
    )
    assert replies.count(b"\r\n0\r\nX-A: 1\r\nX-B: two; 3\r\n\r\n") == 2
    assert replies.count(b"HTTP/1.1 200 OK") == 2


def test_an_http_1_0_client_gets_no_trailers() -> None:
    head, _, body = respond_to(stream_with_trailers, b"GET /x HTTP/1.0\r\nHost: h\r\n\r\n", is_last=False).partition(
        b"\r\n\r\n"
    )
    assert b"Trailer" not in head
    assert body == b"one"


def test_a_trailer_cannot_inject_lines() -> None:
    caught: list[Exception] = []

    async def inject(request: HttpRequest) -> None:
        stream = await request.start_stream({}, trailers=["X-A"])
        try:
            await stream.end({"X-A": "1\r\nX-B: 2"})
        except ValueError as error:
            caught.append(error)
            stream.abort()

    async def work() -> bytes:
        async with running_server(inject) as (_, port):
            try:
                return await send_request(port, GET)
            except ConnectionError:
                return b""

    assert b"X-B" not in run(work())
    assert len(caught) == 1


def test_a_stream_of_known_length_is_sent_without_chunks() -> None:
    async def known(request: HttpRequest) -> None:
        stream = await request.start_stream({"Content-Length": "6"}, status=201, trailers=["X-A"])
        stream.write(b"one")
        stream.write(b"two")
        await stream.end({"X-A": "1"})

    head, _, body = respond_to(known, GET).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 201 ")
    assert b"chunked" not in head
    assert b"Trailer" not in head
    assert body == b"onetwo"


def test_the_server_listens_on_given_sockets(tmp_path: Path) -> None:
    async def work() -> None:
        server = HttpServer(echo, error_response=error_page, connections=1, keep_alive_s=10.0, write_timeout_s=60.0)
        with (
            socket.create_server(("127.0.0.1", 0)) as first_socket,
            socket.create_server(("127.0.0.1", 0)) as second_socket,
        ):
            assert await server.start("", 0, sockets=[first_socket, second_socket]) == first_socket.getsockname()[1]
            for bound in (first_socket, second_socket):
                assert (await send_request(bound.getsockname()[1], GET)).startswith(b"HTTP/1.1 200 ")
            await server.stop_accepting()
            await server.close()
        other = HttpServer(echo, error_response=error_page, connections=1, keep_alive_s=10.0, write_timeout_s=60.0)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(tmp_path / "s"))
            assert await other.start("", 0, sockets=[bound]) == 0
            await other.close()

    run(work())


LOOPS = table("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
SOCKETS = 66
"""Connection limit of a server for one concurrent request."""


async def is_served(port: int) -> bool:
    """Return whether a new connection is accepted and a request on it is answered."""
    try:
        return (await send_request(port, GET)).startswith(b"HTTP/1.1 200 ")
    except ConnectionError:
        return False


@LOOPS
def test_connections_beyond_the_limit_are_closed_while_all_are_busy(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def work() -> None:
        all_at_work, go = asyncio.Event(), asyncio.Event()

        async def wait(request: HttpRequest) -> HttpResponse:
            if server.active == SOCKETS:
                all_at_work.set()
            await go.wait()
            return HttpResponse(200)

        async with running_server(wait, 1) as (server, port):
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(SOCKETS)]
            for _, writer in held:
                writer.write(GET)
            await all_at_work.wait()
            assert not await is_served(port)
            go.set()
            for reader, writer in held:
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
                writer.close()
            while not await is_served(port):  # until the server has noticed the disconnects
                pass

    run(work(), new_loop)


@LOOPS
@table("sent", [b"", GET[:-2], GET], ids=["nothing", "partial head", "idle after a request"])
def test_at_the_connection_limit_the_longest_idle_connection_is_closed(
    sent: bytes, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def work() -> None:
        async with running_server(echo, 1) as (_, port):
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(SOCKETS)]
            for reader, writer in reversed(held):  # afterwards the last connection is idle longest
                writer.write(GET)
                await reader.readuntil(b"GET /x ")
                writer.write(sent)
                if sent == GET:
                    await reader.readuntil(b"GET /x ")
            for index in (-1, -2, -3):
                held.insert(0, await asyncio.open_connection("127.0.0.1", port))
                assert await held[index][0].read() == b""
            assert await is_served(port)
            reader, writer = held[3]
            writer.write(GET if sent == GET else GET[len(sent) :])
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            for _, writer in held:
                writer.close()

    run(work(), new_loop)


@pytest.mark.parametrize("sent", [b"", GET[:-2]], ids=["nothing", "partial head"])
def test_a_client_that_sends_no_complete_head_is_disconnected(sent: bytes) -> None:
    async def work() -> None:
        async with running_server(echo, keep_alive_s=0.05) as (_, port):
            assert await send_request(port, sent, is_last=False) == b""
            assert b" 200 " in await send_request(port, GET + sent, is_last=False)

    run(work())


@pytest.mark.tier2
@LOOPS
def test_a_client_without_a_tls_handshake_is_disconnected(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def work() -> None:
        server = HttpServer(echo, error_response=error_page, connections=1, keep_alive_s=0.05, write_timeout_s=60.0)
        port = await server.start("127.0.0.1", 0, tls=make_pair(tmp_path).serving())
        try:
            assert await send_request(port, b"", is_last=False) == b""
        finally:
            await server.close()

    run(work(), new_loop)


def test_large_bodies_are_returned_one_per_event_loop_iteration() -> None:
    body = b"x" * 2**19
    head = f"POST /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    iterations = 0
    received_at: list[int] = []

    async def read_large_body(request: HttpRequest) -> HttpResponse:
        await request.read_body(limit_bytes=2**20, timeout_s=60)
        received_at.append(iterations)
        return HttpResponse(200)

    async def work() -> None:
        loop = asyncio.get_running_loop()

        def count() -> None:
            nonlocal iterations
            iterations += 1
            tick[0] = loop.call_soon(count)

        async with running_server(read_large_body) as (_, port):
            connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
            for _, writer in connections:
                writer.write(head + body[:-1])
                await writer.drain()
            tick = [loop.call_soon(count)]
            for _, writer in connections:
                writer.write(body[-1:])
            for reader, writer in connections:
                assert (await reader.read()).startswith(b"HTTP/1.1 200")
                writer.close()
            tick[0].cancel()

    run(work())
    assert len(set(received_at)) == 4
