"""Connection pool: reuse of connections, stale connections, and that none leaks."""

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import pytest
import uvloop

from tests.http.aio import run, serving
from tests.http.certificates import Pair, make_pair
from tests.http.test_client import CHUNKED, REPLY, RecordingReceiver
from welldone.http.address import Address, parse_url
from welldone.http.client import ConnectionPool, Exchange, send
from welldone.http.connect import HttpClientError

NewLoop: TypeAlias = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> NewLoop:
    made: NewLoop = request.param
    return made


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def other_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("other"), names="DNS:other.example")


class Upstream:
    """A server that sends the same response to every request, until `hang_up` is set."""

    def __init__(self, reply: bytes = REPLY) -> None:
        self.reply = reply
        self.connections = 0
        self.requests: list[bytes] = []
        self.hang_up = asyncio.Event()
        self.closed = 0
        self.changed = asyncio.Condition()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        ending = asyncio.ensure_future(self.hang_up.wait())
        try:
            while True:
                reading = asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
                await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    reading.cancel()
                    break
                self.requests.append(await reading)
                writer.write(self.reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            ending.cancel()
            async with self.changed:
                self.closed += 1
                self.changed.notify_all()

    async def all_closed(self) -> None:
        """Wait until all connections of the server are closed."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.closed == self.connections)


@asynccontextmanager
async def pooled(upstream: Upstream, pool: ConnectionPool, tls: ssl.SSLContext | None = None) -> AsyncIterator[Address]:
    async with serving(upstream.answer, tls) as port:
        yield Address(port=port)
        await pool.close()
        await upstream.all_closed()


async def get(pool: ConnectionPool, address: Address) -> bytes:
    """Return the body of a response; after a stale connection, of that on a new one."""
    receiver = RecordingReceiver()
    await send(address, "GET", "/", receiver, pool=pool)
    await receiver.ended.wait()
    if (error := receiver.ends[0]) is not None and error.is_stale:
        receiver = RecordingReceiver()
        await send(address, "GET", "/", receiver, pool=pool, is_fresh=True)
        await receiver.ended.wait()
    if (error := receiver.ends[0]) is not None:
        raise error
    return b"".join(receiver.pieces)


@contextmanager
def no_socket_leak() -> Iterator[None]:
    """Assert that no socket leaks."""

    def sockets() -> list[str]:
        names = []
        for fd in Path("/proc/self/fd").iterdir():
            try:
                names.append(str(fd.readlink()))
            except FileNotFoundError:  # the descriptor of the listing itself
                continue
        return sorted(name for name in names if name.startswith("socket:"))

    before = sockets()
    yield
    assert sockets() == before


@pytest.mark.parametrize("reply", [REPLY, CHUNKED, b"HTTP/1.1 204 No Content\r\n\r\n"])
def test_a_connection_is_reused_after_a_complete_response(reply: bytes, new_loop: NewLoop) -> None:
    async def work() -> Upstream:
        upstream, pool = Upstream(reply), ConnectionPool()
        async with pooled(upstream, pool) as address:
            for _ in range(10):
                await get(pool, address)
                assert pool.idle_count == 1
        return upstream

    with no_socket_leak():
        upstream = run(work(), new_loop)
    assert (upstream.connections, len(upstream.requests)) == (1, 10)
    assert b"Connection:" not in upstream.requests[0]


@pytest.mark.parametrize(
    "reply",
    [
        REPLY.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        REPLY.replace(b"HTTP/1.1", b"HTTP/1.0"),
        REPLY + REPLY,
        REPLY + b"garbage",
        CHUNKED + b"HTTP/1.1 408 Request Timeout\r\n\r\n",
    ],
    ids=["close", "HTTP/1.0", "two responses", "garbage", "unsolicited response"],
)
def test_a_connection_that_the_server_may_close_is_not_reused(reply: bytes, new_loop: NewLoop) -> None:
    async def work() -> Upstream:
        upstream, pool = Upstream(reply), ConnectionPool()
        async with pooled(upstream, pool) as address:
            for _ in range(3):
                assert (await get(pool, address)).startswith(b"hello")
                assert pool.idle_count == 0
        return upstream

    assert run(work(), new_loop).connections == 3


def test_an_unsolicited_response_closes_an_idle_connection(new_loop: NewLoop) -> None:
    async def work() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(REPLY)
            await send_now.wait()
            writer.write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
            await reader.read()
            closed.set()

        send_now, closed, pool = asyncio.Event(), asyncio.Event(), ConnectionPool(idle_s=600)
        async with serving(answer) as port:
            await get(pool, Address(port=port))
            assert pool.idle_count == 1
            send_now.set()
            await closed.wait()
            assert pool.idle_count == 0
        await pool.close()

    run(work(), new_loop)


def test_idle_connections_are_bounded_and_the_latest_is_reused_first(new_loop: NewLoop) -> None:
    async def work() -> None:
        upstream, pool = Upstream(), ConnectionPool(idle_per_address=4)
        async with pooled(upstream, pool) as address:
            await asyncio.gather(*(get(pool, address) for _ in range(10)))
            assert (upstream.connections, pool.idle_count) == (10, 4)
            transport = pool.take(address)
            assert transport is not None
            pool.give_back(address, transport)
            assert pool.take(address) is transport
            transport.abort()
            assert pool.idle_count == 3

    run(work(), new_loop)


def test_different_keys_never_share_a_connection(new_loop: NewLoop) -> None:
    async def work() -> None:
        upstream, pool = Upstream(), ConnectionPool()
        async with pooled(upstream, pool) as address:
            for key in ("a", "b"):
                await get(pool, Address(port=address.port, key=key))
            assert (upstream.connections, pool.idle_count) == (2, 2)

    run(work(), new_loop)


def test_an_expired_idle_connection_is_closed(new_loop: NewLoop) -> None:
    async def work() -> None:
        upstream, pool = Upstream(), ConnectionPool(idle_s=0.01)
        async with serving(upstream.answer) as port:
            for _ in range(2):  # the second round starts with an expired timer
                await asyncio.gather(*(get(pool, Address(port=port)) for _ in range(3)))
                await upstream.all_closed()
                assert pool.idle_count == 0
        await pool.close()

    with no_socket_leak():
        run(work(), new_loop)


def test_a_busy_address_does_not_delay_the_expiry_of_another(new_loop: NewLoop) -> None:
    async def work() -> None:
        busy, forgotten, pool = Upstream(), Upstream(), ConnectionPool(idle_s=0.05)
        async with serving(busy.answer) as one, serving(forgotten.answer) as other:
            await get(pool, Address(port=other))
            while not forgotten.closed:
                await get(pool, Address(port=one))
            await busy.all_closed()
        await pool.close()

    run(work(), new_loop)


def test_an_idle_connection_closed_by_the_server_is_removed(new_loop: NewLoop) -> None:
    async def work() -> None:
        upstream, pool = Upstream(), ConnectionPool(idle_s=600)
        async with serving(upstream.answer) as port:
            await asyncio.gather(*(get(pool, Address(port=port)) for _ in range(3)))
            upstream.hang_up.set()
            while pool.idle_count:  # noqa: ASYNC110 - the pool has no event for it
                await asyncio.sleep(0)
            upstream.hang_up.clear()
            assert await get(pool, Address(port=port)) == b"hello"
            await pool.close()
            await upstream.all_closed()
        assert upstream.connections == 4

    run(work(), new_loop)


class ClosingServer:
    """A server that answers the first request of each connection and closes it on the second, after `last_bytes`."""

    def __init__(self, last_bytes: bytes = b"", first: bytes = REPLY) -> None:
        self.connections = 0
        self.first = first
        self.last_bytes = last_bytes

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.first)
        try:
            await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        writer.write(self.last_bytes)


IDLE_TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 4\r\n\r\nidle"


@pytest.mark.parametrize(
    ("last_bytes", "stale_s", "is_stale"),
    [
        (b"", 60.0, True),
        (IDLE_TIMEOUT, 60.0, True),
        (b"", 0.0, False),  # after this time the server may have read the request
        (b"H", 60.0, False),
        (REPLY[:-1], 60.0, False),
        (b"HTTP/1.1 100 C\r\n\r\n", 60.0, False),
    ],
)
def test_a_reused_connection_lost_at_once_before_any_byte_is_stale(
    last_bytes: bytes, stale_s: float, is_stale: bool, new_loop: NewLoop
) -> None:
    async def work() -> None:
        server, pool, receiver = ClosingServer(last_bytes), ConnectionPool(stale_s=stale_s), RecordingReceiver()
        async with serving(server.answer) as port:
            address = Address(port=port)
            await asyncio.gather(*(get(pool, address) for _ in range(3)))
            await send(address, "POST", "/", receiver, pool=pool, body=b"{}")
            await receiver.ended.wait()
            error = receiver.ends[0]
            assert isinstance(error, HttpClientError)
            assert error.is_stale is is_stale
            assert receiver.pieces == [] or not is_stale
            # The other idle connections are dropped too: a retry needs a new one.
            assert pool.idle_count == (0 if is_stale else 2)
            await pool.close()

    run(work(), new_loop)


def test_a_late_408_or_one_on_a_new_connection_is_a_response(new_loop: NewLoop) -> None:
    async def work() -> None:
        for server, stale_s in (
            (ClosingServer(IDLE_TIMEOUT), 0.0),
            (ClosingServer(IDLE_TIMEOUT, first=IDLE_TIMEOUT), 60.0),
        ):
            pool, receiver = ConnectionPool(stale_s=stale_s), RecordingReceiver()
            async with serving(server.answer) as port:
                if server.first is REPLY:
                    await get(pool, Address(port=port))
                await send(Address(port=port), "POST", "/", receiver, pool=pool, body=b"{}")
                await receiver.ended.wait()
                assert (receiver.status, receiver.ends) == (408, [None])
                await pool.close()

    run(work(), new_loop)


def test_a_lost_new_connection_is_not_stale(new_loop: NewLoop) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async def work() -> None:
        receiver = RecordingReceiver()
        async with serving(hang_up) as port:
            await send(Address(port=port), "GET", "/", receiver, pool=ConnectionPool())
            await receiver.ended.wait()
        error = receiver.ends[0]
        assert isinstance(error, HttpClientError)
        assert not error.is_stale

    run(work(), new_loop)


def test_a_request_can_be_sent_again_on_a_new_connection_after_a_stale_one(new_loop: NewLoop) -> None:
    async def work() -> None:
        server, pool = ClosingServer(), ConnectionPool()
        async with serving(server.answer) as port:
            for _ in range(3):
                assert await get(pool, Address(port=port)) == b"hello"
            await pool.close()
        assert server.connections == 3

    run(work(), new_loop)


def test_a_connection_paused_by_its_receiver_is_returned_reading(new_loop: NewLoop) -> None:
    async def work() -> None:
        class Pausing(RecordingReceiver):
            def data(self, data: bytes) -> None:
                super().data(data)
                exchange.pause_reading()

        upstream, pool, receiver = Upstream(), ConnectionPool(), Pausing()
        async with pooled(upstream, pool) as address:
            await get(pool, address)
            exchange = await send(address, "GET", "/", receiver, pool=pool)
            await receiver.ended.wait()
            assert await get(pool, address) == b"hello"
            exchange.close()  # it has given its connection back and must not touch it
            exchange.resume_reading()
            assert await get(pool, address) == b"hello"
        assert upstream.connections == 1

    run(work(), new_loop)


def test_an_early_response_closes_the_connection(new_loop: NewLoop) -> None:
    async def work() -> None:
        async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(REPLY)
            await is_over.wait()

        is_over, pool = asyncio.Event(), ConnectionPool()
        async with serving(early) as port:
            receiver = RecordingReceiver()
            await send(Address(port=port), "POST", "/", receiver, pool=pool, body=bytes(30 * 2**20))
            await receiver.ended.wait()
            assert pool.idle_count == 0
            is_over.set()

    run(work(), new_loop)


@pytest.mark.tier3
@pytest.mark.parametrize("when", ["connecting", "waiting", "reading"])
def test_cancelled_and_closed_exchanges_leak_nothing(when: str, new_loop: NewLoop) -> None:
    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            writer.write(REPLY)
        elif when == "reading":
            writer.write(CHUNKED[:60])
        await reader.read()

    async def cancel_early(pool: ConnectionPool, address: Address) -> None:
        receiver = RecordingReceiver()
        sending = asyncio.ensure_future(send(address, "POST", "/", receiver, pool=pool, body=b"{}"))
        if when == "connecting":
            await asyncio.sleep(0)
            sending.cancel()
            await asyncio.wait({sending})
            return
        exchange = await sending
        if when == "reading":
            await receiver.received_data.wait()
        exchange.close()
        assert receiver.ends == []

    async def work() -> None:
        pool = ConnectionPool()
        async with serving(stall) as port:
            address = Address(port=port)
            for _ in range(12):
                await asyncio.gather(*(cancel_early(pool, address) for _ in range(100)))
            assert pool.idle_count == 0
            for _ in range(3):
                assert await get(pool, address) == b"hello"
                pool.drop(address)
            await pool.close()
            # All tasks of the server end, since their clients have disconnected.
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)

    with no_socket_leak():
        run(work(), new_loop)


def test_a_closed_pool_keeps_no_connections(new_loop: NewLoop) -> None:
    async def work() -> None:
        upstream, pool = Upstream(), ConnectionPool()
        async with pooled(upstream, pool) as address:
            await get(pool, address)
            await pool.close()
            assert await get(pool, address) == b"hello"
            assert pool.idle_count == 0

    run(work(), new_loop)


@pytest.mark.tier2
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_tls_connection_is_reused(host: str, pair: Pair, new_loop: NewLoop) -> None:
    async def work() -> Upstream:
        upstream, pool = Upstream(CHUNKED), ConnectionPool()
        async with pooled(upstream, pool, pair.serving()) as plain_address:
            address = parse_url(f"https://{host}:{plain_address.port}/v1", ca_file=str(pair.certificate))
            for _ in range(5):
                assert await get(pool, address) == b"hello there"
                assert pool.idle_count == 1
        return upstream

    with no_socket_leak():
        upstream = run(work(), new_loop)
    assert (upstream.connections, len(upstream.requests)) == (1, 5)


@pytest.mark.tier2
def test_an_unknown_certificate_or_one_for_another_name_is_not_trusted(
    pair: Pair, other_pair: Pair, new_loop: NewLoop
) -> None:
    async def fetch_or_error(server_pair: Pair, **trust: object) -> str:
        upstream = Upstream()
        async with serving(upstream.answer, server_pair.serving()) as port:
            address = parse_url(f"https://localhost:{port}", **trust)  # type: ignore[arg-type]
            try:
                return (await get(ConnectionPool(), address)).decode()
            except HttpClientError as error:
                assert upstream.requests == []
                return str(error)

    untrusted = "the server's certificate is not trusted"
    assert run(fetch_or_error(pair), new_loop) == untrusted
    assert run(fetch_or_error(pair, ca_file=str(other_pair.certificate)), new_loop) == untrusted
    assert run(fetch_or_error(other_pair, ca_file=str(other_pair.certificate)), new_loop) == untrusted
    assert run(fetch_or_error(other_pair, is_verified=False), new_loop) == "hello"


def test_a_server_without_tls_is_reported(new_loop: NewLoop) -> None:
    async def plain_address(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    async def work() -> None:
        async with serving(plain_address) as port:
            with pytest.raises(HttpClientError, match="TLS handshake with the server failed"):
                await get(ConnectionPool(), parse_url(f"https://127.0.0.1:{port}"))

    run(work(), new_loop)


def test_a_tls_handshake_can_be_cancelled(new_loop: NewLoop) -> None:
    async def work() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            reading.set()
            await reader.read()

        reading, receiver = asyncio.Event(), RecordingReceiver()
        async with serving(silent) as port:
            sending = asyncio.ensure_future(
                send(parse_url(f"https://127.0.0.1:{port}"), "GET", "/", receiver, pool=ConnectionPool())
            )
            await reading.wait()
            sending.cancel()
            await asyncio.wait({sending})
            assert sending.cancelled()
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
        assert receiver.ends == []

    with no_socket_leak():
        run(work(), new_loop)


def test_a_connection_cancelled_while_connecting_is_not_pooled(
    new_loop: NewLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller is cancelled meanwhile. uvloop then closes the connection without `is_closing()` being true."""
    is_answered = threading.Event()

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(REPLY)
            is_answered.set()
            with suppress(ConnectionResetError):
                connection.recv(1)  # until the client disconnects

    async def work(listener: socket.socket) -> None:
        pool, receiver = ConnectionPool(), RecordingReceiver()
        made = Exchange.connection_made

        def cancel_early(exchange: Exchange, transport: asyncio.BaseTransport) -> None:
            made(exchange, transport)
            is_answered.wait(10)
            sending.cancel()

        monkeypatch.setattr(Exchange, "connection_made", cancel_early)
        address = parse_url(f"http://127.0.0.1:{listener.getsockname()[1]}")
        sending = asyncio.ensure_future(send(address, "GET", "/", receiver, pool=pool))
        await asyncio.wait({sending})
        assert sending.cancelled()
        assert pool.take(address) is None
        await pool.close()

    with no_socket_leak(), socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=answer, args=(listener,))
        server.start()
        run(work(listener), new_loop)
        server.join(10)
        assert not server.is_alive()
