"""The HTTP client: what comes is pushed on, and what goes wrong is said once."""

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
from welldone.http.client import HttpClientError, RequestOptions, fetch, send

REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n there\r\n0\r\n\r\n"


class Heard:
    """A receiver that notes what it is told."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.pieces: list[bytes] = []
        self.ends: list[HttpClientError | None] = []
        self.over = asyncio.Event()
        self.some = asyncio.Event()

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        assert not self.status
        self.status, self.headers = status, headers

    def data(self, data: bytes) -> None:
        self.pieces.append(data)
        self.some.set()

    def end(self, error: HttpClientError | None) -> None:
        self.ends.append(error)
        self.over.set()


async def ask(reply: bytes, *, size: int | None = None) -> Heard:
    """What is heard of a server that says `reply`, in pieces of a size, and then hangs up."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for start in range(0, len(reply), size or len(reply) or 1):
            writer.write(reply[start : start + (size or len(reply))])
            await writer.drain()

    heard = Heard()
    async with serving(answer) as port:
        await send(Address(port=port), "GET", "/x", heard)
        await heard.over.wait()
    return heard


@table("size", [None, 1, 7])
@table(("reply", "body"), [(REPLY, b"hello"), (CHUNKED, b"hello there")])
def test_a_reply_is_heard_however_it_is_cut(reply: bytes, body: bytes, size: int | None) -> None:
    heard = run(ask(reply, size=size))
    assert heard.status == 200
    assert b"".join(heard.pieces) == body
    assert heard.ends == [None]


def test_chunks_that_come_together_are_handed_on_together() -> None:
    assert run(ask(CHUNKED)).pieces == [b"hello there"]


def test_a_reply_without_a_length_ends_with_its_connection() -> None:
    heard = run(ask(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"))
    assert heard.pieces == [b"hello"]
    assert heard.ends == [None]


def test_an_early_hint_is_not_the_reply() -> None:
    heard = run(ask(b"HTTP/1.1 100 Continue\r\nX-Odd: 1\r\n\r\n" + REPLY))
    assert heard.status == 200
    assert "x-odd" not in heard.headers


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
def test_what_is_no_whole_reply_is_an_error_said_once(reply: bytes, size: int | None) -> None:
    heard = run(ask(reply, size=size))
    assert len(heard.ends) == 1
    assert isinstance(heard.ends[0], HttpClientError)
    assert not heard.ends[0].is_stale


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 1_000_000,
        b"HTTP/1.1 103 Early Hints\r\nX: 1\r\n\r\n" * 50_000,
        CHUNKED[:-2] + b"X: " + b"a" * 1_000_000,
    ],
    ids=["head", "hints", "trailer"],
)
def test_a_head_without_end_is_not_gathered(reply: bytes) -> None:
    assert str(run(ask(reply, size=10_000)).ends[0]) == "the head of the reply is too long"


def test_what_came_before_the_garbage_is_handed_on() -> None:
    heard = run(ask(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n"))
    assert heard.pieces == [b"hello"]


@table("more", [b"garbage", REPLY, CHUNKED, b"\r\n"])
@table("size", [None, 1])
def test_what_comes_after_the_reply_is_not_heard(more: bytes, size: int | None) -> None:
    heard = run(ask(REPLY + more, size=size))
    assert heard.pieces == [b"hello"] if size is None else b"".join(heard.pieces) == b"hello"
    assert heard.ends == [None]


def test_of_a_header_that_comes_twice_the_first_counts_and_a_trailer_is_none() -> None:
    head = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n"
    heard = run(ask(head + b"0\r\nX-B: 3\r\n\r\n"))
    assert heard.headers == {"x-a": "1", "upgrade": "h2c", "transfer-encoding": "chunked"}
    assert heard.ends == [None]


def test_a_redirect_is_a_reply_like_any_other_and_nothing_is_unpacked() -> None:
    heard = run(
        ask(b"HTTP/1.1 307 T\r\nLocation: http://x/\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b")
    )
    assert (heard.status, heard.pieces, heard.headers["location"]) == (307, [b"\x1f\x8b"], "http://x/")


def test_who_leaves_at_the_head_hears_nothing_of_the_body() -> None:
    async def work() -> Heard:
        left = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello")
            try:
                await reader.read()
            finally:
                left.set()

        class Leaving(Heard):
            def head(self, status: int, headers: Mapping[str, str]) -> None:
                exchange.close()

        heard = Leaving()
        async with serving(answer) as port:
            exchange = await send(Address(port=port), "GET", "/", heard)
            await left.wait()
        return heard

    heard = run(work())
    assert (heard.pieces, heard.ends) == ([], [])


def test_the_request_has_what_it_needs_and_the_key_only_in_its_header() -> None:
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        heard.append(head + await reader.readexactly(2))
        writer.write(REPLY)

    async def work() -> None:
        async with serving(answer) as port:
            address = Address(port=port, key="secret-key", prefix="/v1", headers=(("x-team", "lab"),))
            assert "secret" not in repr(address)
            reply = await fetch(address, "POST", "/x", body=b"{}", timeout_s=10, headers=[("X-More", "1")])
            assert (reply.status, reply.body) == (200, b"hello")

    run(work())
    head = heard[0].decode().split("\r\n")
    assert head[0] == "POST /v1/x HTTP/1.1"
    assert {"Authorization: Bearer secret-key", "X-Team: lab", "X-More: 1", "Content-Type: application/json"} < set(
        head
    )
    assert "Accept-Encoding: identity" in head
    assert "Content-Length: 2" in head


def test_a_unix_socket_is_reached_too(tmp_path: Path) -> None:
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


def test_a_reply_that_is_too_long_or_too_slow_is_given_up() -> None:
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


def test_who_leaves_hears_no_more_and_the_server_sees_it() -> None:
    async def work() -> None:
        left = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(CHUNKED[:60])
            await writer.drain()
            try:
                await reader.read()
            finally:
                left.set()

        heard = Heard()
        async with serving(answer) as port:
            exchange = await send(Address(port=port), "GET", "/", heard)
            await heard.some.wait()
            exchange.close()
            await left.wait()
        assert heard.ends == []

    run(work())


def test_a_server_is_held_back_while_nobody_takes_what_it_says() -> None:
    async def work() -> None:
        offered = 64 * 2**20
        sent = 0
        stuck = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % offered)
            for _ in range(offered // 65536):
                writer.write(bytes(65536))
                sent += 65536
                drained = asyncio.ensure_future(writer.drain())
                done, _ = await asyncio.wait({drained}, timeout=0.2)
                if not done:
                    stuck.set()
                await drained

        class Slow(Heard):
            def data(self, data: bytes) -> None:
                super().data(data)
                if len(self.pieces) == 1:
                    exchange.pause()

        heard = Slow()
        async with serving(answer) as port:
            exchange = await send(Address(port=port), "GET", "/", heard)
            await stuck.wait()
            assert sum(map(len, heard.pieces)) <= 262144
            assert sent < offered / 2
            exchange.resume()
            await heard.over.wait()
        assert sum(map(len, heard.pieces)) == offered
        assert heard.ends == [None]

    run(work())


@table(
    ("path", "more"),
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
def test_a_request_that_would_be_two_is_not_sent(path: str, more: RequestOptions) -> None:
    with pytest.raises(ValueError, match=r"character|not for settings"):
        run(send(Address(port=1), "POST", path, Heard(), **more))


def test_an_answer_may_come_before_the_whole_request_was_sent() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        await reader.read()

    async def work() -> Heard:
        heard = Heard()
        async with serving(answer) as port:
            await send(Address(port=port), "POST", "/", heard, body=bytes(30 * 2**20))
            await heard.over.wait()
        return heard

    heard = run(work())
    assert (heard.status, heard.pieces, heard.ends) == (413, [b"no"], [None])


def test_nobody_there_is_said_without_an_address() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, and not listening
        port = closed.getsockname()[1]
        for host in ("127.0.0.1", "localhost"):
            with pytest.raises(HttpClientError, match=r"^no connection to the server$"):
                run(send(Address(host=host, port=port), "GET", "/", Heard()))


@table(
    ("error", "said"),
    [
        (socket.gaierror(socket.EAI_NONAME, "secret"), "the server's name is not known"),
        (TimeoutError("secret"), "no connection to the server within 5 s"),
        (OSError("Multiple exceptions: secret"), "no connection to the server"),
        (OSError(errno.EMFILE, "secret"), "this machine has no room for another connection"),
        (ssl.SSLError(errno.EMFILE, "secret"), "the server does not speak TLS as it should"),
    ],
)
def test_why_there_is_no_connection_is_said_without_a_name(error: OSError, said: str) -> None:
    class Failing(asyncio.SelectorEventLoop):
        """A loop that reaches nobody."""

        async def create_connection(self, *_: object, **__: object) -> NoReturn:
            raise error

    with pytest.raises(HttpClientError) as caught:
        run(send(Address(host="127.0.0.1", port=1), "GET", "/", Heard()), Failing)
    assert str(caught.value) == said
    assert caught.value.is_local_failure == ("this machine" in said)
