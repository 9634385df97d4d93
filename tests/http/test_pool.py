"""Connections that are used again: when they are, when they are not, and that none is left behind."""

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
from tests.http.test_outbound import CHUNKED, REPLY, Heard
from welldone.http.address import Address, parse_url
from welldone.http.client import ConnectionPool, Exchange, HttpClientError

NewLoop: TypeAlias = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> NewLoop:
    made: NewLoop = request.param
    return made


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("stranger"), names="DNS:stranger.example")


class Upstream:
    """A server that says the same reply to every request of every connection, until it is told to hang up."""

    def __init__(self, reply: bytes = REPLY) -> None:
        self.reply = reply
        self.connections = 0
        self.requests: list[bytes] = []
        self.hang_up = asyncio.Event()
        self.left = 0
        self.changed = asyncio.Condition()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        ending = asyncio.ensure_future(self.hang_up.wait())
        try:
            while True:
                asked = asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
                await asyncio.wait({asked, ending}, return_when=asyncio.FIRST_COMPLETED)
                if not asked.done():
                    asked.cancel()
                    break
                self.requests.append(await asked)
                writer.write(self.reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            ending.cancel()
            async with self.changed:
                self.left += 1
                self.changed.notify_all()

    async def all_left(self) -> None:
        """Wait until the server has seen each of its connections end."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.left == self.connections)


@asynccontextmanager
async def pooled(upstream: Upstream, pool: ConnectionPool, tls: ssl.SSLContext | None = None) -> AsyncIterator[Address]:
    async with serving(upstream.answer, tls) as port:
        yield Address(port=port)
        await pool.close()
        await upstream.all_left()


async def get(pool: ConnectionPool, address: Address) -> bytes:
    return (await pool.fetch(address, "GET", "/", timeout_s=60)).body


@contextmanager
def nothing_left() -> Iterator[None]:
    """No socket of this process is open that was not before."""

    def sockets() -> list[str]:
        names = []
        for fd in Path("/proc/self/fd").iterdir():
            try:
                names.append(str(fd.readlink()))
            except FileNotFoundError:  # the one that was open to list them
                continue
        return sorted(name for name in names if name.startswith("socket:"))

    before = sockets()
    yield
    assert sockets() == before


@pytest.mark.parametrize("reply", [REPLY, CHUNKED, b"HTTP/1.1 204 No Content\r\n\r\n"])
def test_a_connection_is_used_again_after_a_whole_reply(reply: bytes, new_loop: NewLoop) -> None:
    async def work() -> Upstream:
        upstream, pool = Upstream(reply), ConnectionPool()
        async with pooled(upstream, pool) as address:
            for _ in range(10):
                await get(pool, address)
                assert pool.idle_count == 1
        return upstream

    with nothing_left():
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
    ids=["close", "old", "two replies", "garbage after it", "a reply to nothing"],
)
def test_a_connection_that_cannot_stay_is_not_used_again(reply: bytes, new_loop: NewLoop) -> None:
    async def work() -> Upstream:
        upstream, pool = Upstream(reply), ConnectionPool()
        async with pooled(upstream, pool) as address:
            for _ in range(3):
                assert (await get(pool, address)).startswith(b"hello")
                assert pool.idle_count == 0
        return upstream

    assert run(work(), new_loop).connections == 3


def test_what_comes_while_nobody_asked_ends_the_connection(new_loop: NewLoop) -> None:
    async def work() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(REPLY)
            await speak.wait()
            writer.write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
            await reader.read()
            left.set()

        speak, left, pool = asyncio.Event(), asyncio.Event(), ConnectionPool(idle_s=600)
        async with serving(answer) as port:
            await get(pool, Address(port=port))
            assert pool.idle_count == 1
            speak.set()
            await left.wait()
            assert pool.idle_count == 0
        await pool.close()

    run(work(), new_loop)


def test_connections_at_once_are_several_and_the_last_is_used_first(new_loop: NewLoop) -> None:
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


def test_two_keys_never_share_a_connection(new_loop: NewLoop) -> None:
    async def work() -> None:
        upstream, pool = Upstream(), ConnectionPool()
        async with pooled(upstream, pool) as address:
            for key in ("a", "b"):
                await get(pool, Address(port=address.port, key=key))
            assert (upstream.connections, pool.idle_count) == (2, 2)

    run(work(), new_loop)


def test_a_connection_that_waits_too_long_is_closed(new_loop: NewLoop) -> None:
    async def work() -> None:
        upstream, pool = Upstream(), ConnectionPool(idle_s=0.01)
        async with serving(upstream.answer) as port:
            for _ in range(2):  # the timer comes back after it had nothing to do
                await asyncio.gather(*(get(pool, Address(port=port)) for _ in range(3)))
                await upstream.all_left()
                assert pool.idle_count == 0
        await pool.close()

    with nothing_left():
        run(work(), new_loop)


def test_a_connection_that_is_used_does_not_keep_another_waiting(new_loop: NewLoop) -> None:
    async def work() -> None:
        busy, forgotten, pool = Upstream(), Upstream(), ConnectionPool(idle_s=0.05)
        async with serving(busy.answer) as one, serving(forgotten.answer) as other:
            await get(pool, Address(port=other))
            while not forgotten.left:
                await get(pool, Address(port=one))
            await busy.all_left()
        await pool.close()

    run(work(), new_loop)


def test_a_server_that_hangs_up_is_noticed_while_its_connection_waits(new_loop: NewLoop) -> None:
    async def work() -> None:
        upstream, pool = Upstream(), ConnectionPool(idle_s=600)
        async with serving(upstream.answer) as port:
            await asyncio.gather(*(get(pool, Address(port=port)) for _ in range(3)))
            upstream.hang_up.set()
            while pool.idle_count:  # noqa: ASYNC110 - the pool tells nobody
                await asyncio.sleep(0)
            upstream.hang_up.clear()
            assert await get(pool, Address(port=port)) == b"hello"
            await pool.close()
            await upstream.all_left()
        assert upstream.connections == 4

    run(work(), new_loop)


class Dying:
    """A server that answers the first request of each connection, and hangs up at the second instead of an answer."""

    def __init__(self, last_words: bytes = b"", first: bytes = REPLY) -> None:
        self.connections = 0
        self.first = first
        self.last_words = last_words

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.first)
        try:
            await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        writer.write(self.last_words)


IDLE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 4\r\n\r\nidle"


@pytest.mark.parametrize(
    ("last_words", "stale_s", "is_stale"),
    [
        (b"", 60.0, True),
        (IDLE, 60.0, True),
        (b"", 0.0, False),  # it has taken longer, and may have read the request
        (b"H", 60.0, False),
        (REPLY[:-1], 60.0, False),
        (b"HTTP/1.1 100 C\r\n\r\n", 60.0, False),
    ],
)
def test_a_used_connection_that_is_lost_at_once_before_any_byte_is_stale(
    last_words: bytes, stale_s: float, is_stale: bool, new_loop: NewLoop
) -> None:
    async def work() -> None:
        server, pool, heard = Dying(last_words), ConnectionPool(stale_s=stale_s), Heard()
        async with serving(server.answer) as port:
            address = Address(port=port)
            await asyncio.gather(*(get(pool, address) for _ in range(3)))
            await pool.send(address, "POST", "/", heard, body=b"{}")
            await heard.over.wait()
            error = heard.ends[0]
            assert isinstance(error, HttpClientError)
            assert error.is_stale is is_stale
            assert heard.pieces == [] or not is_stale
            # The others are as old: who sends again gets a new one.
            assert pool.idle_count == (0 if is_stale else 2)
            await pool.close()

    run(work(), new_loop)


def test_a_408_that_comes_later_or_on_a_new_connection_is_a_reply(new_loop: NewLoop) -> None:
    async def work() -> None:
        for server, stale_s in ((Dying(IDLE), 0.0), (Dying(IDLE, first=IDLE), 60.0)):
            pool, heard = ConnectionPool(stale_s=stale_s), Heard()
            async with serving(server.answer) as port:
                if server.first is REPLY:
                    await get(pool, Address(port=port))
                await pool.send(Address(port=port), "POST", "/", heard, body=b"{}")
                await heard.over.wait()
                assert (heard.status, heard.ends) == (408, [None])
                await pool.close()

    run(work(), new_loop)


def test_a_fresh_connection_that_is_lost_is_not_stale(new_loop: NewLoop) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async def work() -> None:
        heard = Heard()
        async with serving(hang_up) as port:
            await ConnectionPool().send(Address(port=port), "GET", "/", heard)
            await heard.over.wait()
        error = heard.ends[0]
        assert isinstance(error, HttpClientError)
        assert not error.is_stale

    run(work(), new_loop)


def test_a_whole_reply_is_fetched_on_a_new_connection_where_the_old_was_dead(new_loop: NewLoop) -> None:
    async def work() -> None:
        server, pool = Dying(), ConnectionPool()
        async with serving(server.answer) as port:
            for _ in range(3):
                assert await get(pool, Address(port=port)) == b"hello"
            await pool.close()
        assert server.connections == 3

    run(work(), new_loop)


def test_who_paused_the_reading_leaves_a_connection_that_reads(new_loop: NewLoop) -> None:
    async def work() -> None:
        class Pausing(Heard):
            def data(self, data: bytes) -> None:
                super().data(data)
                exchange.pause()

        upstream, pool, heard = Upstream(), ConnectionPool(), Pausing()
        async with pooled(upstream, pool) as address:
            await get(pool, address)
            exchange = await pool.send(address, "GET", "/", heard)
            await heard.over.wait()
            assert await get(pool, address) == b"hello"
            exchange.close()  # it has no connection any more: whose this is now is not disturbed
            exchange.resume()
            assert await get(pool, address) == b"hello"
        assert upstream.connections == 1

    run(work(), new_loop)


def test_a_reply_before_the_whole_request_ends_the_connection(new_loop: NewLoop) -> None:
    async def work() -> None:
        async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(REPLY)
            await is_over.wait()

        is_over, pool = asyncio.Event(), ConnectionPool()
        async with serving(early) as port:
            await pool.fetch(Address(port=port), "POST", "/", body=bytes(30 * 2**20), timeout_s=60)
            assert pool.idle_count == 0
            is_over.set()

    run(work(), new_loop)


@pytest.mark.tier3
@pytest.mark.parametrize("moment", ["connecting", "waiting", "reading"])
def test_many_that_leave_leave_nothing_behind(moment: str, new_loop: NewLoop) -> None:
    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            writer.write(REPLY)
        elif moment == "reading":
            writer.write(CHUNKED[:60])
        await reader.read()

    async def leave(pool: ConnectionPool, address: Address) -> None:
        heard = Heard()
        asking = asyncio.ensure_future(pool.send(address, "POST", "/", heard, body=b"{}"))
        if moment == "connecting":
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait({asking})
            return
        exchange = await asking
        if moment == "reading":
            await heard.some.wait()
        exchange.close()
        assert heard.ends == []

    async def work() -> None:
        pool = ConnectionPool()
        async with serving(stall) as port:
            address = Address(port=port)
            for _ in range(12):
                await asyncio.gather(*(leave(pool, address) for _ in range(100)))
            assert pool.idle_count == 0
            for _ in range(3):
                assert await get(pool, address) == b"hello"
                pool.drop(address)
            await pool.close()
            # The tasks of the server see their clients gone, and there are no others: all end.
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)

    with nothing_left():
        run(work(), new_loop)


def test_a_closed_pool_keeps_no_connection(new_loop: NewLoop) -> None:
    async def work() -> None:
        upstream, pool = Upstream(), ConnectionPool()
        async with pooled(upstream, pool) as address:
            await get(pool, address)
            await pool.close()
            assert await get(pool, address) == b"hello"
            assert pool.idle_count == 0

    run(work(), new_loop)


# TLS.


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_connection_over_tls_is_used_again(host: str, pair: Pair, new_loop: NewLoop) -> None:
    async def work() -> Upstream:
        upstream, pool = Upstream(CHUNKED), ConnectionPool()
        async with pooled(upstream, pool, pair.serving()) as plain:
            address = parse_url(f"https://{host}:{plain.port}/v1", ca_file=str(pair.certificate))
            for _ in range(5):
                assert await get(pool, address) == b"hello there"
                assert pool.idle_count == 1
        return upstream

    with nothing_left():
        upstream = run(work(), new_loop)
    assert (upstream.connections, len(upstream.requests)) == (1, 5)


def test_a_certificate_is_not_trusted_by_itself_nor_under_another_name(
    pair: Pair, stranger: Pair, new_loop: NewLoop
) -> None:
    async def said(shown: Pair, **trust: object) -> str:
        upstream = Upstream()
        async with serving(upstream.answer, shown.serving()) as port:
            address = parse_url(f"https://localhost:{port}", **trust)  # type: ignore[arg-type]
            try:
                return (await get(ConnectionPool(), address)).decode()
            except HttpClientError as error:
                assert upstream.requests == []
                return str(error)

    untrusted = "the server's certificate is not trusted"
    assert run(said(pair), new_loop) == untrusted
    assert run(said(pair, ca_file=str(stranger.certificate)), new_loop) == untrusted
    assert run(said(stranger, ca_file=str(stranger.certificate)), new_loop) == untrusted
    assert run(said(stranger, is_verified=False), new_loop) == "hello"


def test_a_server_without_tls_is_told_apart(new_loop: NewLoop) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    async def work() -> None:
        async with serving(plain) as port:
            with pytest.raises(HttpClientError, match="does not speak TLS as it should"):
                await get(ConnectionPool(), parse_url(f"https://127.0.0.1:{port}"))

    run(work(), new_loop)


def test_who_waits_for_a_handshake_can_leave(new_loop: NewLoop) -> None:
    async def work() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            asked.set()
            await reader.read()

        asked, heard = asyncio.Event(), Heard()
        async with serving(silent) as port:
            asking = asyncio.ensure_future(
                ConnectionPool().send(parse_url(f"https://127.0.0.1:{port}"), "GET", "/", heard)
            )
            await asked.wait()
            asking.cancel()
            await asyncio.wait({asking})
            assert asking.cancelled()
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
        assert heard.ends == []

    with nothing_left():
        run(work(), new_loop)


def test_a_connection_whose_reply_came_before_it_was_made_is_not_kept_for_others(
    new_loop: NewLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked has left meanwhile. Then uvloop closes the connection, which never says that it is closing."""
    has_answered = threading.Event()

    def answer(door: socket.socket) -> None:
        line, _ = door.accept()
        with line:
            line.recv(65536)
            line.sendall(REPLY)
            has_answered.set()
            with suppress(ConnectionResetError):
                line.recv(1)  # until it is hung up on

    async def work(door: socket.socket) -> None:
        pool, heard = ConnectionPool(), Heard()
        made = Exchange.connection_made

        def leave(exchange: Exchange, transport: asyncio.BaseTransport) -> None:
            made(exchange, transport)
            has_answered.wait(10)
            asking.cancel()

        monkeypatch.setattr(Exchange, "connection_made", leave)
        address = parse_url(f"http://127.0.0.1:{door.getsockname()[1]}")
        asking = asyncio.ensure_future(pool.send(address, "GET", "/", heard))
        await asyncio.wait({asking})
        assert asking.cancelled()
        assert pool.take(address) is None
        await pool.close()

    with nothing_left(), socket.create_server(("127.0.0.1", 0)) as door:
        server = threading.Thread(target=answer, args=(door,))
        server.start()
        run(work(door), new_loop)
        server.join(10)
        assert not server.is_alive()
