"""Requests that Ray's proxy hands on: to a real server, and to sockets that show every byte."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.asgi.fronts import CHAT, PATHS, REQUESTS, TEXT, Client, frames, scope
from tests.http.aio import run, serving
from tests.server.scripts import HELLO, ROLE
from tests.table import table
from welldone.cluster import asgi_relay
from welldone.cluster.asgi_relay import ASGIMessage
from welldone.config.server import Config, ServeSettings
from welldone.config.upstream import UpstreamSettings
from welldone.http.client import HttpClientError
from welldone.mock.script import MockReply, MockScript
from welldone.mock.server import MockServer
from welldone.server.server import Server

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

LIMIT = 1_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b"9\r\ndata: 1\n\n\r\n"
APP = asgi_relay.build_relay_app()


@asynccontextmanager
async def listening(folder: Path, answer: Handler) -> AsyncIterator[None]:
    """Something that stands where the server would be."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        finally:
            writer.close()

    path = folder / "front.sock"
    server = await asyncio.start_unix_server(connected, path)
    asgi_relay.set_destination(path, limit_bytes=LIMIT)
    try:
        yield
    finally:
        server.close()


@asynccontextmanager
async def front(folder: Path, port: int, **settings: Any) -> AsyncIterator[Server]:  # noqa: ANN401 - each its own
    """A real server before an upstream at this port."""
    upstream = UpstreamSettings(name="a", url=f"http://127.0.0.1:{port}/v1", models=("*",), probe_s=0.0)
    config = Config(server=ServeSettings(port=0, **settings), models=(), upstreams=(upstream,))
    server = Server(config, keys=("sk-of-the-client",), folder=folder)
    inner = socket.socket(socket.AF_UNIX)
    inner.bind(str(folder / "front.sock"))
    inner.listen(16)
    inner.setblocking(False)
    await server.start([inner])
    asgi_relay.set_destination(folder / "front.sock", limit_bytes=config.server.body_limit_bytes)
    try:
        yield server
    finally:
        await server.stop()


KEY = (b"authorization", b"Bearer sk-of-the-client")
JSON = (b"content-type", b"application/json")


async def ask(given: ASGIMessage, client: Client) -> Client:
    await APP(given, client.receive, client.send)
    return client


def seen_by_server(tmp_path: Path, given: ASGIMessage, *bodies: bytes) -> bytes:
    """All that is said to the server."""
    seen = bytearray()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        seen.extend(head + await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()

    async def work() -> Client:
        async with listening(tmp_path, answer):
            return await ask(given, Client(*bodies))

    client = run(work())
    assert (client.status, client.body, client.is_whole) == (200, b"ok", True)
    return bytes(seen)


@table("path", PATHS)
def test_a_stream_comes_through_as_the_server_says_it(tmp_path: Path, path: str) -> None:
    async def work() -> Client:
        script = MockScript(posts=(TEXT if path == "/v1/completions" else CHAT,))
        async with await MockServer(script).listen() as upstream, front(tmp_path, upstream.port):
            return await ask(scope(path, headers=[KEY, JSON]), Client(json.dumps(REQUESTS[path]).encode()))

    client = run(work())
    assert client.status == 200
    assert client.is_whole
    assert path.startswith("/api/") or client.findings(path) == []
    assert client.body.count(b"\n") == b"".join(frames(path)).count(b"\n")


def test_the_head_goes_on_byte_for_byte(tmp_path: Path) -> None:
    headers = [
        (b"authorization", b"Bearer sk-1"),
        (b"X-Odd", b"one"),
        (b"x-odd", b"two"),
        (b"x-latin", b"caf\xe9"),
        (b"content-type", b"application/json"),
        (b"cookie", b"a=b; c=d"),
    ]
    given = scope("/v1/models/a b", headers=headers, raw_path=b"/v1/models/a%20b%2Fc", query_string=b"x=%0d%0a&y")
    seen = seen_by_server(tmp_path, given, b"{}")
    lines = [b"POST /v1/models/a%20b%2Fc?x=%0d%0a&y HTTP/1.1", b"host: localhost"]
    lines += [b"%b: %b" % header for header in headers]
    assert seen == b"\r\n".join([*lines, b"content-length: 2", b"connection: close", b"", b"{}"])


@table(
    "name", ["Connection", "Content-Length", "Transfer-Encoding", "Upgrade", "TE", "Trailer", "Keep-Alive", "Expect"]
)
def test_what_is_about_one_connection_stays_there(tmp_path: Path, name: str) -> None:
    seen = seen_by_server(tmp_path, scope("/v1/models", headers=[(name.encode(), b"7, chunked")]), b"abc")
    assert b"7, chunked" not in seen
    assert seen.endswith(b"content-length: 3\r\nconnection: close\r\n\r\nabc")


def test_a_body_in_several_messages_is_one(tmp_path: Path) -> None:
    assert seen_by_server(tmp_path, scope("/v1/x"), b"a" * 300, b"", b"b" * 300).endswith(b"a" * 300 + b"b" * 300)


def test_where_ray_gives_no_raw_path_nothing_in_the_path_becomes_a_line(tmp_path: Path) -> None:
    given = scope("/v1/models/a\r\nx-evil: 1 ü")
    del given["raw_path"]
    seen = seen_by_server(tmp_path, given)
    assert seen.startswith(b"POST /v1/models/a%0D%0Ax-evil%3A%201%20%C3%BC HTTP/1.1\r\n")


EVIL = {
    "a value with a line": {"headers": [(b"x-a", b"1\r\nx-evil: 1")]},
    "a value with a bare LF": {"headers": [(b"x-a", b"1\nx-evil: 1")]},
    "a value with NUL": {"headers": [(b"x-a", b"1\x00")]},
    "a name with a line": {"headers": [(b"x-a: 1\r\nx-evil", b"1")]},
    "no name": {"headers": [(b"", b"1")]},
    "a path with a blank": {"raw_path": b"/v1 HTTP/1.1\r\nx-evil: 1\r\n\r\n"},
    "a query with a line": {"query_string": b"a\r\nx-evil: 1"},
    "a method with a blank": {"method": "GET / HTTP/1.1\r\nx-evil: 1\r\n\r\nGET"},
}


@table("more", EVIL.values(), ids=EVIL.keys())
def test_what_cannot_stand_in_a_head_is_refused_and_never_said(tmp_path: Path, more: dict[str, Any]) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pytest.fail("the server was asked")

    async def work() -> Client:
        async with listening(tmp_path, answer):
            return await ask({**scope("/v1/models"), **more}, Client())

    client = run(work())
    assert client.status == 400
    assert json.loads(client.body)["error"]["type"] == "invalid_request_error"
    assert client.is_whole


def test_a_body_that_is_too_long_gets_the_server_s_own_answer(tmp_path: Path) -> None:
    async def work() -> None:
        async with front(tmp_path, 1, body_limit_bytes=LIMIT):
            client = Client(*(b"x" * 600 for _ in range(1_000)))
            await ask(scope(PATHS[0], headers=[KEY, JSON]), client)
            assert client.status == 413
            assert json.loads(client.body)["error"]["type"] == "invalid_request_error"

    run(work())


@pytest.mark.parametrize(("path", "status"), [("/v1/models", 200), ("/health", 200), ("/nowhere", 404)])
def test_a_head_has_no_body_and_is_whole(tmp_path: Path, path: str, status: int) -> None:
    async def work() -> None:
        async with front(tmp_path, 1):
            got = await ask(scope(path, "GET", [KEY]), Client())
            client = await ask(scope(path, "HEAD", [KEY]), Client())
            assert (got.status, client.status, client.body, client.is_whole) == (status, status, b"", True)
            assert client.headers.get(b"content-length", b"0") in (b"0", got.headers[b"content-length"])

    run(work())


def test_keys_origins_and_hosts_are_looked_at_by_the_server(tmp_path: Path) -> None:
    async def work() -> None:
        async with front(tmp_path, 1, cors_origins=("https://a.example",)):
            assert (await ask(scope("/v1/models", "GET"), Client())).status == 401
            evil = {**scope("/v1/models", "GET", [KEY]), "headers": [(b"host", b"evil.example"), KEY]}
            assert (await ask(evil, Client())).status in (403, 421)
            asked = [(b"origin", b"https://a.example"), (b"access-control-request-method", b"POST")]
            allowed = await ask(scope(PATHS[0], "OPTIONS", asked), Client())
            assert allowed.headers[b"access-control-allow-origin"] == b"https://a.example"
            assert b"date" not in allowed.headers
            assert b"x-request-id" not in allowed.headers

    run(work())


def test_a_chunk_is_at_the_client_before_the_upstream_says_the_next(tmp_path: Path) -> None:
    async def work() -> Client:
        client = Client(json.dumps(REQUESTS[PATHS[0]]).encode())

        async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD)
            for place, piece in enumerate(CHAT.pieces):
                writer.write(b"%x\r\n%b\r\n" % (len(piece.data), piece.data))
                if place == 1:
                    await client.until(lambda: b"Hello" in client.body)
            writer.write(b"0\r\n\r\n")
            await writer.drain()

        async with serving(upstream) as port, front(tmp_path, port):
            return await ask(scope(PATHS[0], headers=[KEY, JSON]), client)

    client = run(work())
    assert client.findings(PATHS[0]) == []


def test_who_takes_slowly_has_the_server_wait(tmp_path: Path) -> None:
    piece, count = b"x" * 2**16, 512
    sent = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(piece) * count))
        for _ in range(count):
            writer.write(piece)
            await writer.drain()
            sent += len(piece)

    async def work() -> None:
        client = Client()
        may_take = asyncio.Event()
        taken = 0

        async def send(message: ASGIMessage) -> None:
            nonlocal taken
            taken += len(message.get("body", b""))
            if taken:
                await may_take.wait()

        async with listening(tmp_path, answer):
            task = asyncio.ensure_future(APP(scope("/v1/x", "GET"), client.receive, send))
            before, turns = -1, 0
            while turns < 500:  # nothing has moved for so many turns of the loop
                turns = turns + 1 if before == sent and taken else 0
                before = sent
                await asyncio.sleep(0)
            assert sent < 4 * 2**20
            may_take.set()
            await task
            assert taken == len(piece) * count

    run(work())


def test_events_are_sent_on_whole_however_they_come(tmp_path: Path) -> None:
    async def work() -> None:
        client = Client()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD + b"c\r\ndata: 1\n\ndat\r\n")
            await client.until(lambda: len(client.heard) == 2)
            writer.write(b"6\r\na: 2\n\n\r\n4\r\nrest\r\n0\r\n\r\n")
            await writer.drain()

        async with listening(tmp_path, answer):
            await ask(scope("/v1/x", "GET"), client)
        bodies = [message["body"] for message in client.heard[1:]]
        assert bodies[0] == b"data: 1\n\n"
        assert client.body == b"data: 1\n\ndata: 2\n\nrest"
        assert client.is_whole

    run(work())


def test_an_event_that_never_ends_is_not_kept_for_ever(tmp_path: Path) -> None:
    async def work() -> None:
        client = Client()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD + b"20000\r\n" + b"x" * 2**17 + b"\r\n")
            await client.until(lambda: bool(client.body))
            writer.write(b"0\r\n\r\n")
            await writer.drain()

        async with listening(tmp_path, answer):
            await ask(scope("/v1/x", "GET"), client)
        assert client.body == b"x" * 2**17
        assert client.is_whole

    run(work())


@pytest.mark.parametrize("when", ["before the head", "after the head", "after a chunk"])
def test_a_client_that_leaves_is_left_at_once_by_the_server(tmp_path: Path, when: str) -> None:
    async def work() -> None:
        client = Client()
        is_asked, is_gone = asyncio.Event(), asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            said = {"before the head": b"", "after the head": HEAD, "after a chunk": HEAD + EVENT}[when]
            writer.write(said)
            is_asked.set()
            with suppress(ConnectionError):
                await reader.read()
            is_gone.set()

        async with listening(tmp_path, answer):
            task = asyncio.ensure_future(ask(scope("/v1/x", "GET"), client))
            await is_asked.wait()
            if when != "before the head":
                await client.until(lambda: len(client.heard) == (1 if when == "after the head" else 2))
            client.leave()
            await task
            await is_gone.wait()
            assert not client.heard or not client.is_whole

    run(work())


def test_a_client_that_leaves_before_all_was_asked_is_not_asked_for(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pytest.fail("the server was asked")

    async def work() -> None:
        async with listening(tmp_path, answer):
            client = Client(b"{", b"}", stays=False)
            client.forget()
            await ask(scope(PATHS[0]), client)
            assert client.heard == []

    run(work())


BROKEN = {
    "before the head": b"",
    "in the head": b"HTTP/1.1 200 OK\r\nConte",
    "after the head": HEAD,
    "after an event": HEAD + EVENT,
    "in an event": HEAD + b"2\r\nok\r\n",
    "in a chunk": HEAD + b"5\r\nok",
    "within its length": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123",
    "not HTTP": b"hello there\r\n\r\n",
}


@table("method", ["POST", "GET"])
@table("said", BROKEN.values(), ids=BROKEN.keys())
def test_a_server_that_breaks_off_is_an_error_and_never_a_whole_reply(tmp_path: Path, said: bytes, method: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await writer.drain()

    async def work() -> None:
        client = Client()
        async with listening(tmp_path, answer):
            with pytest.raises(HttpClientError):
                await ask(scope("/v1/x", method), client)
        assert not client.heard or not client.is_whole

    run(work())


def test_a_server_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    async def work() -> None:
        asgi_relay.set_destination(tmp_path / "nobody.sock", limit_bytes=LIMIT)
        with pytest.raises(FileNotFoundError):
            await ask(scope("/v1/x", "GET"), Client())

    run(work())


def test_an_upstream_that_breaks_off_is_an_error_event_in_a_whole_reply(tmp_path: Path) -> None:
    async def work() -> Client:
        script = MockScript(posts=(MockReply((ROLE, HELLO), end="cut"),))
        async with await MockServer(script).listen() as upstream, front(tmp_path, upstream.port):
            body = json.dumps(REQUESTS[PATHS[0]]).encode()
            return await ask(scope(PATHS[0], headers=[KEY, JSON]), Client(body))

    client = run(work())
    assert client.is_whole
    assert client.findings(PATHS[0]) == []
    assert client.status != 200 or b'"error"' in client.body


def test_it_starts_and_ends_when_it_is_told() -> None:
    async def work() -> None:
        words = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
        said: list[ASGIMessage] = []

        async def receive() -> ASGIMessage:
            return words.pop(0)

        async def send(message: ASGIMessage) -> None:
            said.append(message)

        await APP({"type": "lifespan"}, receive, send)
        assert [one["type"] for one in said] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    run(work())


def test_a_websocket_is_closed() -> None:
    async def work() -> None:
        client = Client()
        await APP({"type": "websocket", "path": "/"}, client.receive, client.send)
        assert [one["type"] for one in client.heard] == ["websocket.close"]

    run(work())
