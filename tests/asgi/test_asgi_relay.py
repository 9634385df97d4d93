"""ASGI relay: requests to a real server, and to sockets that record every byte."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.asgi.asgi_client import CHAT, PATHS, REQUESTS, TEXT, Client, frames, scope
from tests.http.aio import run, serving
from tests.server.running_server import HELLO, ROLE
from tests.table import table
from welldone.cluster import asgi_relay
from welldone.cluster.asgi_relay import ASGIMessage
from welldone.config.server import Config, ServeSettings
from welldone.config.upstream import UpstreamSettings
from welldone.http.connect import HttpClientError
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
    """Run a fake server at the destination of the relay."""

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
async def front(folder: Path, port: int, **settings: Any) -> AsyncIterator[Server]:  # noqa: ANN401 - those of ServeSettings
    """Run a real server with an upstream at this port."""
    upstream = UpstreamSettings(name="a", url=f"http://127.0.0.1:{port}/v1", models=("*",), probe_s=0.0)
    config = Config(server=ServeSettings(port=0, **settings), models=(), upstreams=(upstream,))
    server = Server(config, keys=("sk-of-the-client",), folder=folder)
    relay_socket = socket.socket(socket.AF_UNIX)
    relay_socket.bind(str(folder / "front.sock"))
    relay_socket.listen(16)
    relay_socket.setblocking(False)
    await server.start([relay_socket])
    asgi_relay.set_destination(folder / "front.sock", limit_bytes=config.server.body_limit_bytes)
    try:
        yield server
    finally:
        await server.stop()


KEY = (b"authorization", b"Bearer sk-of-the-client")
JSON = (b"content-type", b"application/json")


async def relay(request_scope: ASGIMessage, client: Client) -> Client:
    await APP(request_scope, client.receive, client.send)
    return client


def received_by_server(tmp_path: Path, request_scope: ASGIMessage, *bodies: bytes) -> bytes:
    """Return all bytes that the server receives."""
    received = bytearray()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        received.extend(head + await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()

    async def work() -> Client:
        async with listening(tmp_path, answer):
            return await relay(request_scope, Client(*bodies))

    client = run(work())
    assert (client.status, client.body, client.is_complete) == (200, b"ok", True)
    return bytes(received)


@table("path", PATHS)
def test_a_stream_is_relayed_unchanged(tmp_path: Path, path: str) -> None:
    async def work() -> Client:
        script = MockScript(posts=(TEXT if path == "/v1/completions" else CHAT,))
        async with await MockServer(script).listen() as upstream, front(tmp_path, upstream.port):
            return await relay(scope(path, headers=[KEY, JSON]), Client(json.dumps(REQUESTS[path]).encode()))

    client = run(work())
    assert client.status == 200
    assert client.is_complete
    assert path.startswith("/api/") or client.findings(path) == []
    assert client.body.count(b"\n") == b"".join(frames(path)).count(b"\n")


def test_the_request_head_is_relayed_byte_for_byte(tmp_path: Path) -> None:
    headers = [
        (b"authorization", b"Bearer sk-1"),
        (b"X-Odd", b"one"),
        (b"x-odd", b"two"),
        (b"x-latin", b"caf\xe9"),
        (b"content-type", b"application/json"),
        (b"cookie", b"a=b; c=d"),
    ]
    request_scope = scope(
        "/v1/models/a b", headers=headers, raw_path=b"/v1/models/a%20b%2Fc", query_string=b"x=%0d%0a&y"
    )
    received = received_by_server(tmp_path, request_scope, b"{}")
    lines = [b"POST /v1/models/a%20b%2Fc?x=%0d%0a&y HTTP/1.1", b"host: localhost"]
    lines += [b"%b: %b" % header for header in headers]
    assert received == b"\r\n".join([*lines, b"content-length: 2", b"connection: close", b"", b"{}"])


@table(
    "name", ["Connection", "Content-Length", "Transfer-Encoding", "Upgrade", "TE", "Trailer", "Keep-Alive", "Expect"]
)
def test_hop_by_hop_headers_are_not_relayed(tmp_path: Path, name: str) -> None:
    received = received_by_server(tmp_path, scope("/v1/models", headers=[(name.encode(), b"7, chunked")]), b"abc")
    assert b"7, chunked" not in received
    assert received.endswith(b"content-length: 3\r\nconnection: close\r\n\r\nabc")


def test_a_body_in_several_messages_is_joined(tmp_path: Path) -> None:
    assert received_by_server(tmp_path, scope("/v1/x"), b"a" * 300, b"", b"b" * 300).endswith(b"a" * 300 + b"b" * 300)


def test_without_a_raw_path_the_path_is_percent_encoded(tmp_path: Path) -> None:
    request_scope = scope("/v1/models/a\r\nx-evil: 1 ü")
    del request_scope["raw_path"]
    received = received_by_server(tmp_path, request_scope)
    assert received.startswith(b"POST /v1/models/a%0D%0Ax-evil%3A%201%20%C3%BC HTTP/1.1\r\n")


INJECTIONS = {
    "a value with a line": {"headers": [(b"x-a", b"1\r\nx-evil: 1")]},
    "a value with a bare LF": {"headers": [(b"x-a", b"1\nx-evil: 1")]},
    "a value with NUL": {"headers": [(b"x-a", b"1\x00")]},
    "a name with a line": {"headers": [(b"x-a: 1\r\nx-evil", b"1")]},
    "no name": {"headers": [(b"", b"1")]},
    "a path with a blank": {"raw_path": b"/v1 HTTP/1.1\r\nx-evil: 1\r\n\r\n"},
    "a query with a line": {"query_string": b"a\r\nx-evil: 1"},
    "a method with a blank": {"method": "GET / HTTP/1.1\r\nx-evil: 1\r\n\r\nGET"},
}


@table("fields", INJECTIONS.values(), ids=INJECTIONS.keys())
def test_an_invalid_head_is_rejected_and_never_relayed(tmp_path: Path, fields: dict[str, Any]) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pytest.fail("the server received a request")

    async def work() -> Client:
        async with listening(tmp_path, answer):
            return await relay({**scope("/v1/models"), **fields}, Client())

    client = run(work())
    assert client.status == 400
    assert json.loads(client.body)["error"]["type"] == "invalid_request_error"
    assert client.is_complete


def test_a_body_beyond_the_limit_is_rejected_by_the_server(tmp_path: Path) -> None:
    async def work() -> None:
        async with front(tmp_path, 1, body_limit_bytes=LIMIT):
            client = Client(*(b"x" * 600 for _ in range(1_000)))
            await relay(scope(PATHS[0], headers=[KEY, JSON]), client)
            assert client.status == 413
            assert json.loads(client.body)["error"]["type"] == "invalid_request_error"

    run(work())


@pytest.mark.parametrize(("path", "status"), [("/v1/models", 200), ("/health", 200), ("/nowhere", 404)])
def test_a_reply_to_head_has_no_body_and_is_complete(tmp_path: Path, path: str, status: int) -> None:
    async def work() -> None:
        async with front(tmp_path, 1):
            get_reply = await relay(scope(path, "GET", [KEY]), Client())
            client = await relay(scope(path, "HEAD", [KEY]), Client())
            assert (get_reply.status, client.status, client.body, client.is_complete) == (status, status, b"", True)
            assert client.headers.get(b"content-length", b"0") in (b"0", get_reply.headers[b"content-length"])

    run(work())


def test_keys_origins_and_hosts_are_checked_by_the_server(tmp_path: Path) -> None:
    async def work() -> None:
        async with front(tmp_path, 1, cors_origins=("https://a.example",)):
            assert (await relay(scope("/v1/models", "GET"), Client())).status == 401
            wrong_host = {**scope("/v1/models", "GET", [KEY]), "headers": [(b"host", b"evil.example"), KEY]}
            assert (await relay(wrong_host, Client())).status in (403, 421)
            preflight = [(b"origin", b"https://a.example"), (b"access-control-request-method", b"POST")]
            allowed = await relay(scope(PATHS[0], "OPTIONS", preflight), Client())
            assert allowed.headers[b"access-control-allow-origin"] == b"https://a.example"
            assert b"date" not in allowed.headers
            assert b"x-request-id" not in allowed.headers

    run(work())


def test_a_chunk_reaches_the_client_before_the_upstream_sends_the_next(tmp_path: Path) -> None:
    async def work() -> Client:
        client = Client(json.dumps(REQUESTS[PATHS[0]]).encode())

        async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD)
            for index, data in enumerate(CHAT.pieces):
                writer.write(b"%x\r\n%b\r\n" % (len(data.data), data.data))
                if index == 1:
                    await client.until(lambda: b"Hello" in client.body)
            writer.write(b"0\r\n\r\n")
            await writer.drain()

        async with serving(upstream) as port, front(tmp_path, port):
            return await relay(scope(PATHS[0], headers=[KEY, JSON]), client)

    client = run(work())
    assert client.findings(PATHS[0]) == []


def test_a_slow_client_applies_backpressure_to_the_server(tmp_path: Path) -> None:
    data, count = b"x" * 2**16, 512
    sent_bytes = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent_bytes
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(data) * count))
        for _ in range(count):
            writer.write(data)
            await writer.drain()
            sent_bytes += len(data)

    async def work() -> None:
        client = Client()
        is_accepting = asyncio.Event()
        accepted_bytes = 0

        async def send(message: ASGIMessage) -> None:
            nonlocal accepted_bytes
            accepted_bytes += len(message.get("body", b""))
            if accepted_bytes:
                await is_accepting.wait()

        async with listening(tmp_path, answer):
            task = asyncio.ensure_future(APP(scope("/v1/x", "GET"), client.receive, send))
            last_sent, idle_iterations = -1, 0
            while idle_iterations < 500:  # no progress for this many iterations of the loop
                idle_iterations = idle_iterations + 1 if last_sent == sent_bytes and accepted_bytes else 0
                last_sent = sent_bytes
                await asyncio.sleep(0)
            assert sent_bytes < 4 * 2**20
            is_accepting.set()
            await task
            assert accepted_bytes == len(data) * count

    run(work())


def test_events_are_forwarded_as_a_whole(tmp_path: Path) -> None:
    async def work() -> None:
        client = Client()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD + b"c\r\ndata: 1\n\ndat\r\n")
            await client.until(lambda: len(client.messages) == 2)
            writer.write(b"6\r\na: 2\n\n\r\n4\r\nrest\r\n0\r\n\r\n")
            await writer.drain()

        async with listening(tmp_path, answer):
            await relay(scope("/v1/x", "GET"), client)
        bodies = [message["body"] for message in client.messages[1:]]
        assert bodies[0] == b"data: 1\n\n"
        assert client.body == b"data: 1\n\ndata: 2\n\nrest"
        assert client.is_complete

    run(work())


def test_an_event_beyond_the_buffer_limit_is_forwarded_in_parts(tmp_path: Path) -> None:
    async def work() -> None:
        client = Client()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD + b"20000\r\n" + b"x" * 2**17 + b"\r\n")
            await client.until(lambda: bool(client.body))
            writer.write(b"0\r\n\r\n")
            await writer.drain()

        async with listening(tmp_path, answer):
            await relay(scope("/v1/x", "GET"), client)
        assert client.body == b"x" * 2**17
        assert client.is_complete

    run(work())


@pytest.mark.parametrize("when", ["before the head", "after the head", "after a chunk"])
def test_the_server_sees_a_disconnect_of_the_client_at_once(tmp_path: Path, when: str) -> None:
    async def work() -> None:
        client = Client()
        has_request, is_disconnected = asyncio.Event(), asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            response = {"before the head": b"", "after the head": HEAD, "after a chunk": HEAD + EVENT}[when]
            writer.write(response)
            has_request.set()
            with suppress(ConnectionError):
                await reader.read()
            is_disconnected.set()

        async with listening(tmp_path, answer):
            task = asyncio.ensure_future(relay(scope("/v1/x", "GET"), client))
            await has_request.wait()
            if when != "before the head":
                await client.until(lambda: len(client.messages) == (1 if when == "after the head" else 2))
            client.disconnect()
            await task
            await is_disconnected.wait()
            assert not client.messages or not client.is_complete

    run(work())


def test_a_request_whose_client_disconnects_early_is_not_relayed(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pytest.fail("the server received a request")

    async def work() -> None:
        async with listening(tmp_path, answer):
            client = Client(b"{", b"}", stays_connected=False)
            client.truncate_body()
            await relay(scope(PATHS[0]), client)
            assert client.messages == []

    run(work())


INCOMPLETE = {
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
@table("response", INCOMPLETE.values(), ids=INCOMPLETE.keys())
def test_an_incomplete_reply_of_the_server_is_an_error(tmp_path: Path, response: bytes, method: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        await writer.drain()

    async def work() -> None:
        client = Client()
        async with listening(tmp_path, answer):
            with pytest.raises(HttpClientError):
                await relay(scope("/v1/x", method), client)
        assert not client.messages or not client.is_complete

    run(work())


def test_a_missing_server_is_an_error(tmp_path: Path) -> None:
    async def work() -> None:
        asgi_relay.set_destination(tmp_path / "nobody.sock", limit_bytes=LIMIT)
        with pytest.raises(HttpClientError):
            await relay(scope("/v1/x", "GET"), Client())

    run(work())


def test_an_upstream_failure_is_an_error_event_in_a_complete_reply(tmp_path: Path) -> None:
    async def work() -> Client:
        script = MockScript(posts=(MockReply((ROLE, HELLO), end="cut"),))
        async with await MockServer(script).listen() as upstream, front(tmp_path, upstream.port):
            body = json.dumps(REQUESTS[PATHS[0]]).encode()
            return await relay(scope(PATHS[0], headers=[KEY, JSON]), Client(body))

    client = run(work())
    assert client.is_complete
    assert client.findings(PATHS[0]) == []
    assert client.status != 200 or b'"error"' in client.body


def test_lifespan_messages_are_answered() -> None:
    async def work() -> None:
        lifespan_messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
        response: list[ASGIMessage] = []

        async def receive() -> ASGIMessage:
            return lifespan_messages.pop(0)

        async def send(message: ASGIMessage) -> None:
            response.append(message)

        await APP({"type": "lifespan"}, receive, send)
        assert [message["type"] for message in response] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    run(work())


def test_a_websocket_is_closed() -> None:
    async def work() -> None:
        client = Client()
        await APP({"type": "websocket", "path": "/"}, client.receive, client.send)
        assert [message["type"] for message in client.messages] == ["websocket.close"]

    run(work())
