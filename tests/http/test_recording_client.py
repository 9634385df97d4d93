"""Recording client: every behaviour of a server is recorded with timestamps, and every wait is bounded."""

import asyncio
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import LIMIT_S, run, serving
from tests.http.certificates import make_pair
from tests.table import table
from welldone.http import recording_client
from welldone.http.address import Address, TlsOptions, parse_url
from welldone.http.connect import HttpClientError
from welldone.http.recording_client import RecordedResponse, record_response
from welldone.http.response_parser import CONNECTION_LOST, NOT_HTTP
from welldone.mock.script import CHUNK_TEMPLATE, HELLO_REPLY, MockChunk, MockReply, MockScript
from welldone.mock.server import start_mock_server as serve
from welldone.mock.variants import FAULT_REPLIES

SECRET = "hunter2-hunter2"
CHAT = "/v1/chat/completions"
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
DONE = CHUNKED + b"e\r\ndata: [DONE]\n\n\r\n"
SOON_S = 0.05
ERRORS = {
    "cut": (200, CONNECTION_LOST),
    "reset": (200, CONNECTION_LOST),
    "hang": (200, f"no data for {SOON_S} s"),
    "close-first": (None, CONNECTION_LOST),
    "reset-first": (None, CONNECTION_LOST),
    "hang-first": (None, f"no reply within {SOON_S} s"),
    "cut-head": (None, CONNECTION_LOST),
    "not-http": (None, NOT_HTTP),
    "gzip-bomb": (200, "a reply of more than 1,048,576 bytes"),
    "endless": (200, "a reply of more than 1,048,576 bytes"),
    "too-short": (200, CONNECTION_LOST),
}
"""Status and error of the faults whose response is incomplete."""
STATUSES = {
    **dict.fromkeys(("limited", "limited-silent"), 429),
    **dict.fromkeys(("unavailable", "unavailable-silent"), 503),
    **{f"redirect-{status}": status for status in (301, 302, 307, 308)},
    "broken": 500,
}

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def sending(*pieces: bytes, is_open: bool = False) -> Handler:
    """Return a server that sends these pieces one by one, then closes, or waits until the client has disconnected."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if is_open:
            await reader.read()

    return handler


def record(handler: Handler, method: str = "GET", **options: Any) -> RecordedResponse:  # noqa: ANN401 - those of `record_response`
    """Return the recording of one request to a server."""

    async def work() -> RecordedResponse:
        async with serving(handler) as port:
            return await record_response(Address(port=port), method, "/x", **options)

    return run(work())


def received_request(address: Address, **options: Any) -> tuple[str, dict[str, str]]:  # noqa: ANN401 - those of `record_response`
    """Return the request line and the headers that the server receives."""
    received = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(OK + b"Content-Length: 0\r\n\r\n")

    async def work() -> None:
        async with serving(handler) as port:
            await record_response(Address(port=port, key=address.key, prefix="/v1", headers=address.headers), **options)

    run(work())
    first, *lines = received[0].split("\r\n")
    return first, dict(line.split(": ", 1) for line in lines if line)


@table("name", FAULT_REPLIES)
def test_every_fault_is_recorded_with_its_status_and_error(name: str) -> None:
    async def work() -> RecordedResponse:
        async with await serve(MockScript(posts=(FAULT_REPLIES[name],), speed=0)) as server:
            address = Address(port=server.port)
            idle_timeout_s = SOON_S if "hang" in name else LIMIT_S
            limit_bytes = 2**20 if name in ("endless", "gzip-bomb") else recording_client.BODY_LIMIT_BYTES
            return await record_response(
                address, "POST", CHAT, body=b"{}", idle_timeout_s=idle_timeout_s, limit_bytes=limit_bytes
            )

    recording = run(work())
    status, error = ERRORS.get(name, (STATUSES.get(name, 200), None))
    assert (recording.status, recording.error, recording.is_complete) == (status, error, error is None)
    assert recording.pieces is None or sum(recording.pieces) == len(recording.body)
    assert not recording.is_aborted


@table("name", ["stream", "slow", "gzip", "close-after", "no-length", "http-1.0"])
def test_unusual_http_framing_yields_the_same_body(name: str) -> None:
    async def work() -> RecordedResponse:
        async with await serve(MockScript(posts=(FAULT_REPLIES[name],), speed=0)) as server:
            return await record_response(Address(port=server.port), "POST", CHAT, body=b"{}")

    assert run(work()).body == HELLO_REPLY.body


def test_a_response_is_recorded_a_byte_at_a_time() -> None:
    reply = b"HTTP/1.1 103 Early\r\n\r\n" + CHUNKED + b"5;x\r\nhello\r\n6\r\n there\r\n0\r\nX: 1\r\n\r\n"
    recording = record(sending(*(bytes([byte]) for byte in reply), is_open=True))
    assert (recording.body, recording.pieces, recording.is_complete) == (b"hello there", (5, 6), True)
    assert recording.headers == (("Transfer-Encoding", "chunked"),)


def test_timestamps_increase_from_the_end_of_the_request_to_the_end_of_the_response() -> None:
    ticks = count()
    recording = record(sending(CHUNKED, b"5\r\nhello\r\n", b"0\r\n\r\n"), clock=lambda: float(next(ticks)))
    assert recording.head_s is not None
    times = [0, recording.head_s, *(at for at, _ in recording.arrivals), recording.ended_s]
    assert times == sorted(times)
    assert recording.head_s >= 1
    assert recording.arrivals[-1][1] == 5
    assert recording.ended_s > recording.arrivals[-1][0]


def test_the_upload_time_of_a_long_request_does_not_count() -> None:
    ticks = count()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2**24)
        writer.write(OK + b"Content-Length: 0\r\n\r\n")

    recording = record(handler, "POST", body=bytes(2**24), clock=lambda: float(next(ticks)))
    assert recording.head_s == 1


def test_the_number_of_timestamps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_client, "_ARRIVALS_LIMIT", 3)
    reply = MockReply(tuple(MockChunk("x", after_s=0.005) for _ in range(20)))

    async def work() -> RecordedResponse:
        async with await serve(MockScript(posts=(reply,))) as server:
            return await record_response(Address(port=server.port), "POST", CHAT, body=b"{}")

    recording = run(work())
    assert len(recording.arrivals) <= 3
    assert recording.arrivals[-1][1] == 20


@table(
    ("pieces", "options", "error"),
    [
        ((), {"timeout_s": SOON_S}, f"no reply within {SOON_S} s"),
        ((OK,), {"idle_timeout_s": SOON_S}, f"no reply within {SOON_S} s"),
        ((OK + b"\r\n",), {"idle_timeout_s": SOON_S}, f"no data for {SOON_S} s"),
        ((CHUNKED,), {"timeout_s": SOON_S}, f"the reply was not complete within {SOON_S} s"),
        ((DONE,), {"after_done_s": SOON_S}, "the body did not end after [DONE]"),
        ((OK + b"\r\n", b"data: x\r\n\r\ndata:[DONE]"), {"after_done_s": SOON_S}, "the body did not end after [DONE]"),
        ((CHUNKED + b"1\r\nxy",), {}, f"{NOT_HTTP}: a chunk is longer than its size"),
        ((OK + b"X" * 70_000,), {}, "the head of the reply is too long"),
        ((OK + b"\r\n", bytes(11)), {"limit_bytes": 10}, "a reply of more than 10 bytes"),
    ],
)
def test_every_wait_and_size_is_bounded(pieces: tuple[bytes, ...], options: dict[str, Any], error: str) -> None:
    recording = record(sending(*pieces, is_open=True), **options)
    assert (recording.error, recording.is_complete) == (error, False)


@pytest.mark.parametrize("body", [b"data: [DONE]\n\ndata: more", b"say data: [DONE]", b"data: [DONE] x"])
def test_the_limit_after_done_applies_only_to_a_body_that_ends_with_done(body: bytes) -> None:
    recording = record(sending(OK + b"\r\n" + body, is_open=True), after_done_s=0.0, idle_timeout_s=SOON_S)
    assert recording.error == f"no data for {SOON_S} s"


def test_a_body_that_ends_in_time_after_done_is_complete() -> None:
    assert record(sending(DONE, b"0\r\n\r\n", is_open=True)).is_complete


@pytest.mark.parametrize("has_body", [False, True])
def test_leave_aborts_the_connection_at_once(has_body: bool) -> None:
    text = MockChunk(CHUNK_TEMPLATE % ('{"content":"Hello"}', "null"))
    reply = MockReply((text,), end="endless") if has_body else MockReply(end="hang")

    async def work() -> RecordedResponse:
        async with await serve(MockScript(posts=(reply,))) as server:
            address = Address(port=server.port)
            recording = await record_response(
                address, "POST", CHAT, body=b"{}", leave=lambda body: body.count(b"Hello") >= 500 * has_body
            )
            await server.wait_until(lambda: server.counts.open == 0)
            assert server.requests[0].end == "left"
            return recording

    recording = run(work())
    assert (recording.status, recording.is_aborted, recording.error, recording.is_complete) == (200, True, None, False)
    assert bool(recording.body) is has_body


def test_leave_is_not_called_for_a_complete_response() -> None:
    recording = record(sending(OK + b"Content-Length: 5\r\n\r\nhello"), leave=lambda body: len(body) >= 5)
    assert (recording.is_aborted, recording.is_complete) == (False, True)


def test_cancellation_closes_the_connection() -> None:
    async def work() -> None:
        async with await serve(MockScript(posts=(FAULT_REPLIES["hang"],))) as server:
            recording_task = asyncio.create_task(record_response(Address(port=server.port), "POST", CHAT, body=b"{}"))
            await server.wait_until(lambda: server.counts.requests == 1)
            recording_task.cancel()
            await server.wait_until(lambda: server.counts.open == 0)
            with pytest.raises(asyncio.CancelledError):
                await recording_task

    run(work())


def test_an_early_error_response_to_a_long_request_is_recorded() -> None:
    reply = b"HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno"
    for is_open in (True, False):
        ticks = count()
        recording = record(sending(reply, is_open=is_open), "POST", body=bytes(2**24), clock=lambda: float(next(ticks)))  # noqa: B023 - called within the iteration
        assert (recording.status, recording.body, recording.is_complete) == (413, b"no", True)
        assert recording.head_s == 0


def test_an_error_response_is_recorded_although_the_connection_was_reset_before_the_request() -> None:
    connected, gone = threading.Event(), threading.Event()

    class Late(asyncio.SelectorEventLoop):
        """A loop that reports its connection only after the server has closed it."""

        async def sock_connect(self, *options: Any) -> None:  # noqa: ANN401 - those of the loop
            await super().sock_connect(*options)
            connected.set()
            assert await self.run_in_executor(None, gone.wait, LIMIT_S)

    def refuse(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connected.wait(LIMIT_S)
            connection.sendall(b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.set()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(LIMIT_S)
        thread = threading.Thread(target=refuse, args=(listening,))
        thread.start()
        port = listening.getsockname()[1]
        recording = run(record_response(Address(port=port), "POST", "/", body=b"{}"), Late)
        thread.join(LIMIT_S)
    assert (recording.status, recording.body, recording.error) == (503, b"no", None)


def test_a_half_closed_connection_ends_the_recording() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"\r\nhello")
        writer.write_eof()
        await reader.read()

    recording = record(handler)
    assert (recording.body, recording.is_complete) == (b"hello", True)


def test_requests_have_the_headers_of_the_sdks() -> None:
    first, headers = received_request(Address(key=SECRET), method="POST", path="/models", body=b"{}")
    assert first == "POST /v1/models HTTP/1.1"
    assert headers.pop("Host").startswith("127.0.0.1:")
    assert headers == {
        "User-Agent": "welldone",
        "Accept": "application/json",
        "Accept-Encoding": "gzip, deflate",
        "Connection": "keep-alive",
        "Authorization": f"Bearer {SECRET}",
        "Content-Type": "application/json",
        "Content-Length": "2",
    }


def test_headers_can_be_replaced_added_and_removed() -> None:
    address = Address(key=SECRET, headers=(("x-team", "a"), ("X-More", "b")))
    changes = [("authorization", "Bearer wrong"), ("Accept-Encoding", None), ("X-Team", "c"), ("Origin", "http://a")]
    _, headers = received_request(address, method="GET", path="/", headers=changes)
    assert SECRET not in str(headers)
    del headers["Host"]
    assert headers == {
        "User-Agent": "welldone",
        "Accept": "application/json",
        "Connection": "keep-alive",
        "authorization": "Bearer wrong",
        "X-Team": "c",
        "X-More": "b",
        "Origin": "http://a",
    }


@table(
    ("method", "path", "headers"),
    [
        ("GET", "/a b", ()),
        ("GET", "/a\r\nX: y", ()),
        ("GET", "/", (("A", "b\nc"),)),
        ("GET", "/", (("A\r\nB", "c"),)),
        ("G\r\nET", "/", ()),
        ("GET", "/", (("A", "\N{SNOWMAN}"),)),
    ],
)
def test_a_request_with_injected_lines_is_not_sent(
    method: str, path: str, headers: tuple[tuple[str, str], ...]
) -> None:
    with pytest.raises(ValueError, match="character"):
        run(record_response(Address(port=1), method, path, headers=headers))


def test_a_unix_socket_is_supported(tmp_path: Path) -> None:
    async def work() -> RecordedResponse:
        path = str(tmp_path / "s")
        async with await serve(MockScript(), socket=path):
            return await record_response(Address(socket=path), "POST", CHAT, body=b"{}")

    assert run(work()).body == HELLO_REPLY.body


def test_a_refused_connection_is_reported_without_an_address() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening
        port = closed.getsockname()[1]
        for host in ("127.0.0.1", "localhost"):
            with pytest.raises(HttpClientError, match=r"^no connection to the server$"):
                run(record_response(Address(host=host, port=port), "GET", "/"))


@pytest.mark.tier2
@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_tls_response_is_recorded_with_a_trusted_or_an_unverified_certificate(
    tmp_path: Path, is_trusted: bool
) -> None:
    pair = make_pair(tmp_path)
    tls = TlsOptions(str(pair.certificate)) if is_trusted else TlsOptions(is_verified=False)
    reply = CHUNKED + b"5\r\nhello\r\n"

    async def work(*pieces: bytes) -> RecordedResponse:
        async with serving(sending(*pieces), pair.serving()) as port:
            return await record_response(Address(port=port, tls=tls), "POST", "/", body=b"{}")

    recording = run(work(reply, b"0\r\n\r\n"))
    assert (recording.body, recording.pieces, recording.is_complete) == (b"hello", (5,), True)
    assert run(work(OK + b"\r\nhello")).is_complete
    assert run(work(reply)).error == CONNECTION_LOST


@pytest.mark.tier2
def test_a_reset_tls_connection_is_recorded_up_to_the_reset(tmp_path: Path) -> None:
    pair = make_pair(tmp_path)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED + b"5\r\nhello\r\n")
        await reader.readuntil(b"!")
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def work() -> RecordedResponse:
        async with serving(handler, pair.serving()) as port:
            address = Address(port=port, tls=TlsOptions(is_verified=False))
            return await record_response(address, "POST", "/", body=b"{}!")

    recording = run(work())
    assert (recording.status, recording.error) == (200, CONNECTION_LOST)


@pytest.mark.tier2
@pytest.mark.parametrize(
    ("is_tls", "message"),
    [(True, "the server's certificate is not trusted"), (False, "the TLS handshake with the server failed")],
)
def test_tls_failures_are_reported(tmp_path: Path, is_tls: bool, message: str) -> None:
    pair = make_pair(tmp_path)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(OK)

    async def work() -> None:
        async with serving(handler, pair.serving() if is_tls else None) as port:
            await record_response(parse_url(f"https://127.0.0.1:{port}", key=SECRET), "GET", "/")

    with pytest.raises(HttpClientError, match=f"^{message}$"):
        run(work())


def test_the_recording_client_imports_only_msgspec() -> None:
    libraries = "{'httptools', 'rich', 'uvloop'}"
    code = f"import sys, welldone.http.recording_client; print(*{libraries} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=LIMIT_S)
    assert done.stdout.strip() == b""
