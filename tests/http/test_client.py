"""HTTP client: responses are pushed to the receiver, and errors are reported exactly once."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from tests.http.aio import run, serving
from tests.table import table
from welldone.http.address import Address
from welldone.http.client import RequestOptions, fetch, send
from welldone.http.connect import HttpClientError

REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n there\r\n0\r\n\r\n"


class RecordingReceiver:
    """A receiver that records its calls."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.pieces: list[bytes] = []
        self.ends: list[HttpClientError | None] = []
        self.ended = asyncio.Event()
        self.received_data = asyncio.Event()

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        assert not self.status
        self.status, self.headers = status, headers

    def data(self, data: bytes) -> None:
        self.pieces.append(data)
        self.received_data.set()

    def end(self, error: HttpClientError | None) -> None:
        self.ends.append(error)
        self.ended.set()


async def exchange_with(reply: bytes, *, size: int | None = None) -> RecordingReceiver:
    """Send a request to a server that sends `reply` in pieces of a size and then closes the connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for start in range(0, len(reply), size or len(reply) or 1):
            writer.write(reply[start : start + (size or len(reply))])
            await writer.drain()

    receiver = RecordingReceiver()
    async with serving(answer) as port:
        await send(Address(port=port), "GET", "/x", receiver)
        await receiver.ended.wait()
    return receiver


@table("size", [None, 1, 7])
@table(("reply", "body"), [(REPLY, b"hello"), (CHUNKED, b"hello there")])
def test_a_response_is_received_however_it_is_split(reply: bytes, body: bytes, size: int | None) -> None:
    receiver = run(exchange_with(reply, size=size))
    assert receiver.status == 200
    assert b"".join(receiver.pieces) == body
    assert receiver.ends == [None]


def test_chunks_of_one_read_are_forwarded_together() -> None:
    assert run(exchange_with(CHUNKED)).pieces == [b"hello there"]


def test_a_response_without_a_length_ends_with_the_connection() -> None:
    receiver = run(exchange_with(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"))
    assert receiver.pieces == [b"hello"]
    assert receiver.ends == [None]


def test_an_informational_response_is_ignored() -> None:
    receiver = run(exchange_with(b"HTTP/1.1 100 Continue\r\nX-Odd: 1\r\n\r\n" + REPLY))
    assert receiver.status == 200
    assert "x-odd" not in receiver.headers


@table(
    "reply",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        REPLY[:-1],
        CHUNKED[:-5],
        CHUNKED[:-2] + b"X: " + b"a" * 1_000_000,
        b"HTTP/1.1 103 Early Hints\r\nX: 1\r\n\r\n" * 50_000,
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 1_000_000,
    ],
    ids=[
        "nothing",
        "half a head",
        "short",
        "no last chunk",
        "endless trailer",
        "hints without end",
        "another protocol",
        "two lengths",
        "length and chunks",
        "bad chunk",
        "not HTTP",
        "endless head",
    ],
)
@table("size", [None, 1000])
def test_an_invalid_or_incomplete_response_is_reported_once(reply: bytes, size: int | None) -> None:
    receiver = run(exchange_with(reply, size=size))
    assert len(receiver.ends) == 1
    assert isinstance(receiver.ends[0], HttpClientError)
    assert not receiver.ends[0].is_stale


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 1_000_000,
        b"HTTP/1.1 103 Early Hints\r\nX: 1\r\n\r\n" * 50_000,
        CHUNKED[:-2] + b"X: " + b"a" * 1_000_000,
    ],
    ids=["head", "hints", "trailer"],
)
def test_the_size_of_a_head_is_bounded(reply: bytes) -> None:
    assert str(run(exchange_with(reply, size=10_000)).ends[0]) == "the head of the reply is too long"


def test_data_before_invalid_bytes_is_forwarded() -> None:
    receiver = run(exchange_with(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n"))
    assert receiver.pieces == [b"hello"]


@table("options", [b"garbage", REPLY, CHUNKED, b"\r\n"])
@table("size", [None, 1])
def test_bytes_after_the_response_are_ignored(options: bytes, size: int | None) -> None:
    receiver = run(exchange_with(REPLY + options, size=size))
    assert receiver.pieces == [b"hello"] if size is None else b"".join(receiver.pieces) == b"hello"
    assert receiver.ends == [None]


def test_the_first_of_repeated_headers_counts_and_trailers_are_ignored() -> None:
    head = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n"
    receiver = run(exchange_with(head + b"0\r\nX-B: 3\r\n\r\n"))
    assert receiver.headers == {"x-a": "1", "upgrade": "h2c", "transfer-encoding": "chunked"}
    assert receiver.ends == [None]


def test_redirects_are_not_followed_and_bodies_not_decompressed() -> None:
    receiver = run(
        exchange_with(
            b"HTTP/1.1 307 T\r\nLocation: http://x/\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b"
        )
    )
    assert (receiver.status, receiver.pieces, receiver.headers["location"]) == (307, [b"\x1f\x8b"], "http://x/")


def test_an_exchange_closed_at_the_head_delivers_no_body() -> None:
    async def work() -> RecordingReceiver:
        disconnected = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello")
            try:
                await reader.read()
            finally:
                disconnected.set()

        class ClosingReceiver(RecordingReceiver):
            def head(self, status: int, headers: Mapping[str, str]) -> None:
                exchange.close()

        receiver = ClosingReceiver()
        async with serving(answer) as port:
            exchange = await send(Address(port=port), "GET", "/", receiver)
            await disconnected.wait()
        return receiver

    receiver = run(work())
    assert (receiver.pieces, receiver.ends) == ([], [])


def test_the_request_has_the_expected_headers_and_the_key_is_not_in_the_repr() -> None:
    receiver: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        receiver.append(head + await reader.readexactly(2))
        writer.write(REPLY)

    async def work() -> None:
        async with serving(answer) as port:
            address = Address(port=port, key="secret-key", prefix="/v1", headers=(("x-team", "lab"),))
            assert "secret" not in repr(address)
            reply = await fetch(address, "POST", "/x", body=b"{}", timeout_s=10, headers=[("X-More", "1")])
            assert (reply.status, reply.body) == (200, b"hello")

    run(work())
    head = receiver[0].decode().split("\r\n")
    assert head[0] == "POST /v1/x HTTP/1.1"
    assert {"Authorization: Bearer secret-key", "x-team: lab", "X-More: 1", "Content-Type: application/json"} < set(
        head
    )
    assert "Accept-Encoding: identity" in head
    assert "Content-Length: 2" in head


def test_a_unix_socket_is_supported(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(REPLY)
        writer.close()

    async def work() -> None:
        path = str(tmp_path / "s")
        server = await asyncio.start_unix_server(answer, path)
        assert (await fetch(Address(socket=path), "GET", "/", timeout_s=10)).body == b"hello"
        server.close()
        with pytest.raises(HttpClientError, match="no connection"):
            await fetch(Address(socket=str(tmp_path / "none")), "GET", "/", timeout_s=10)

    run(work())


def test_fetch_limits_time_and_size() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def work() -> None:
        async with serving(silent) as port:
            with pytest.raises(HttpClientError, match="within"):
                await fetch(Address(port=port), "GET", "/", timeout_s=0.01)

    run(work())
    with pytest.raises(HttpClientError, match="more than 4 bytes"):
        run(_fetch_with_limit(4))


async def _fetch_with_limit(limit_bytes: int) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(REPLY)

    async with serving(answer) as port:
        await fetch(Address(port=port), "GET", "/", timeout_s=10, limit_bytes=limit_bytes)


def test_a_closed_exchange_receives_no_more_and_the_server_is_disconnected() -> None:
    async def work() -> None:
        disconnected = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(CHUNKED[:60])
            await writer.drain()
            try:
                await reader.read()
            finally:
                disconnected.set()

        receiver = RecordingReceiver()
        async with serving(answer) as port:
            exchange = await send(Address(port=port), "GET", "/", receiver)
            await receiver.received_data.wait()
            exchange.close()
            await disconnected.wait()
        assert receiver.ends == []

    run(work())


def test_a_paused_receiver_applies_backpressure_to_the_server() -> None:
    async def work() -> None:
        total = 64 * 2**20
        sent_bytes = 0
        is_blocked = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent_bytes
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
            for _ in range(total // 65536):
                writer.write(bytes(65536))
                sent_bytes += 65536
                drained = asyncio.ensure_future(writer.drain())
                done, _ = await asyncio.wait({drained}, timeout=0.2)
                if not done:
                    is_blocked.set()
                await drained

        class SlowReceiver(RecordingReceiver):
            def data(self, data: bytes) -> None:
                super().data(data)
                if len(self.pieces) == 1:
                    exchange.pause_reading()

        receiver = SlowReceiver()
        async with serving(answer) as port:
            exchange = await send(Address(port=port), "GET", "/", receiver)
            await is_blocked.wait()
            assert sum(map(len, receiver.pieces)) <= 262144
            assert sent_bytes < total / 2
            exchange.resume_reading()
            await receiver.ended.wait()
        assert sum(map(len, receiver.pieces)) == total
        assert receiver.ends == [None]

    run(work())


@table(
    ("path", "options"),
    [
        ("/a b", {}),
        ("/a\r\nX: y", {}),
        ("/\N{SNOWMAN}", {}),
        ("/", {"accept": "a\r\nX: y"}),
        ("/", {"content_type": "\N{SNOWMAN}"}),
        ("/", {"headers": [("A", "b\nc")]}),
        ("/", {"headers": [("Connection", "upgrade")]}),
    ],
)
def test_a_request_with_injected_lines_is_not_sent(path: str, options: RequestOptions) -> None:
    with pytest.raises(ValueError, match=r"character|cannot be configured"):
        run(send(Address(port=1), "POST", path, RecordingReceiver(), **options))


def test_a_response_may_arrive_before_the_request_is_sent_completely() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        await reader.read()

    async def work() -> RecordingReceiver:
        receiver = RecordingReceiver()
        async with serving(answer) as port:
            await send(Address(port=port), "POST", "/", receiver, body=bytes(30 * 2**20))
            await receiver.ended.wait()
        return receiver

    receiver = run(work())
    assert (receiver.status, receiver.pieces, receiver.ends) == (413, [b"no"], [None])


def test_a_refused_connection_is_reported_without_an_address() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening
        port = closed.getsockname()[1]
        for host in ("127.0.0.1", "localhost"):
            with pytest.raises(HttpClientError, match=r"^no connection to the server$"):
                run(send(Address(host=host, port=port), "GET", "/", RecordingReceiver()))


@table(
    ("error", "message"),
    [
        (socket.gaierror(socket.EAI_NONAME, "secret"), "the server's host name cannot be resolved"),
        (TimeoutError("secret"), "no connection to the server within 5 s"),
        (OSError("Multiple exceptions: secret"), "no connection to the server"),
        (OSError(errno.EMFILE, "secret"), "this machine is out of file descriptors, memory or ports"),
        (ssl.SSLError(errno.EMFILE, "secret"), "the TLS handshake with the server failed"),
    ],
)
def test_connection_errors_are_described_without_a_host_name(error: OSError, message: str) -> None:
    class Failing(asyncio.SelectorEventLoop):
        """A loop whose connections fail."""

        async def create_connection(self, *_: object, **__: object) -> NoReturn:
            raise error

    with pytest.raises(HttpClientError) as caught:
        run(send(Address(host="127.0.0.1", port=1), "GET", "/", RecordingReceiver()), Failing)
    assert str(caught.value) == message
    assert caught.value.is_local_failure == ("this machine" in message)
