"""The ear: whatever a server does, it is heard, with its times, and every wait ends."""

import asyncio
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.http.aio import LIMIT_S, run, serving
from tests.http.certificates import make_pair
from tests.table import table
from welldone.http import recording_client
from welldone.http.address import Address, TlsOptions, parse_url
from welldone.http.recording_client import ConnectError, RecordedResponse, record_response
from welldone.http.response_parser import CONNECTION_LOST, NOT_HTTP
from welldone.mock.faults import FAULT_REPLIES
from welldone.mock.script import CHUNK_TEMPLATE, HELLO_REPLY, MockChunk, MockReply, MockScript
from welldone.mock.server import start_mock_server as serve

SECRET = "hunter2-hunter2"
CHAT = "/v1/chat/completions"
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
DONE = CHUNKED + b"e\r\ndata: [DONE]\n\n\r\n"
SOON_S = 0.05
ERRORS = {
    "cut": (200, CONNECTION_LOST),
    "reset": (200, CONNECTION_LOST),
    "hang": (200, f"nothing came for {SOON_S} s"),
    "close-first": (None, CONNECTION_LOST),
    "reset-first": (None, CONNECTION_LOST),
    "hang-first": (None, f"no reply within {SOON_S} s"),
    "cut-head": (None, CONNECTION_LOST),
    "not-http": (None, NOT_HTTP),
    "gzip-bomb": (200, "a reply of more than 1,048,576 bytes"),
    "endless": (200, "a reply of more than 1,048,576 bytes"),
    "too-short": (200, CONNECTION_LOST),
}
"""The status of what does not end as it should, and what is said of it."""
STATUSES = {
    **dict.fromkeys(("limited", "limited-silent"), 429),
    **dict.fromkeys(("unavailable", "unavailable-silent"), 503),
    **{f"redirect-{status}": status for status in (301, 302, 307, 308)},
    "broken": 500,
}

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def saying(*pieces: bytes, is_open: bool = False) -> Answer:
    """A server that says these, each by itself, and then hangs up; or waits until the client has left."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if is_open:
            await reader.read()

    return answer


def hear(answer: Answer, method: str = "GET", **how: Any) -> RecordedResponse:  # noqa: ANN401 - those of `listen`
    """What is heard of a server."""

    async def work() -> RecordedResponse:
        async with serving(answer) as port:
            return await record_response(Address(port=port), method, "/x", **how)

    return run(work())


def request_of(address: Address, **how: Any) -> tuple[str, dict[str, str]]:  # noqa: ANN401 - those of `listen`
    """The first line and the headers that a server sees."""
    seen = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(OK + b"Content-Length: 0\r\n\r\n")

    async def work() -> None:
        async with serving(answer) as port:
            await record_response(Address(port=port, key=address.key, prefix="/v1", headers=address.headers), **how)

    run(work())
    first, *lines = seen[0].split("\r\n")
    return first, dict(line.split(": ", 1) for line in lines if line)


@table("name", FAULT_REPLIES)
def test_every_fault_is_heard_for_what_it_is(name: str) -> None:
    async def work() -> RecordedResponse:
        async with await serve(MockScript(posts=(FAULT_REPLIES[name],), speed=0)) as server:
            address = Address(port=server.port)
            quiet_s = SOON_S if "hang" in name else LIMIT_S
            limit_bytes = 2**20 if name in ("endless", "gzip-bomb") else recording_client.BODY_LIMIT_BYTES
            return await record_response(
                address, "POST", CHAT, body=b"{}", idle_timeout_s=quiet_s, limit_bytes=limit_bytes
            )

    heard = run(work())
    status, error = ERRORS.get(name, (STATUSES.get(name, 200), None))
    assert (heard.status, heard.error, heard.is_complete) == (status, error, error is None)
    assert heard.pieces is None or sum(heard.pieces) == len(heard.body)
    assert not heard.is_aborted


@table("name", ["stream", "slow", "gzip", "close-after", "no-length", "http-1.0"])
def test_what_is_wrong_with_http_alone_says_hello(name: str) -> None:
    async def work() -> RecordedResponse:
        async with await serve(MockScript(posts=(FAULT_REPLIES[name],), speed=0)) as server:
            return await record_response(Address(port=server.port), "POST", CHAT, body=b"{}")

    assert run(work()).body == HELLO_REPLY.body


def test_a_reply_is_heard_a_byte_at_a_time() -> None:
    reply = b"HTTP/1.1 103 Early\r\n\r\n" + CHUNKED + b"5;x\r\nhello\r\n6\r\n there\r\n0\r\nX: 1\r\n\r\n"
    heard = hear(saying(*(bytes([byte]) for byte in reply), is_open=True))
    assert (heard.body, heard.pieces, heard.is_complete) == (b"hello there", (5, 6), True)
    assert heard.headers == (("Transfer-Encoding", "chunked"),)


def test_times_go_forward_from_the_end_of_the_request_to_that_of_the_reply() -> None:
    ticks = count()
    heard = hear(saying(CHUNKED, b"5\r\nhello\r\n", b"0\r\n\r\n"), clock=lambda: float(next(ticks)))
    assert heard.head_s is not None
    times = [0, heard.head_s, *(at for at, _ in heard.arrivals), heard.ended_s]
    assert times == sorted(times)
    assert heard.head_s >= 1
    assert heard.arrivals[-1][1] == 5
    assert heard.ended_s > heard.arrivals[-1][0]


def test_the_time_of_a_long_request_is_not_that_of_the_reply() -> None:
    ticks = count()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2**24)
        writer.write(OK + b"Content-Length: 0\r\n\r\n")

    heard = hear(answer, "POST", body=bytes(2**24), clock=lambda: float(next(ticks)))
    assert heard.head_s == 1


def test_the_times_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_client, "_ARRIVALS_LIMIT", 3)
    reply = MockReply(tuple(MockChunk("x", after_s=0.005) for _ in range(20)))

    async def work() -> RecordedResponse:
        async with await serve(MockScript(posts=(reply,))) as server:
            return await record_response(Address(port=server.port), "POST", CHAT, body=b"{}")

    heard = run(work())
    assert len(heard.arrivals) <= 3
    assert heard.arrivals[-1][1] == 20


@table(
    ("pieces", "how", "error"),
    [
        ((), {"within_s": SOON_S}, f"no reply within {SOON_S} s"),
        ((OK,), {"quiet_s": SOON_S}, f"no reply within {SOON_S} s"),
        ((OK + b"\r\n",), {"quiet_s": SOON_S}, f"nothing came for {SOON_S} s"),
        ((CHUNKED,), {"within_s": SOON_S}, f"the reply was not whole within {SOON_S} s"),
        ((DONE,), {"after_done_s": SOON_S}, "the body did not end after [DONE]"),
        ((OK + b"\r\n", b"data: x\r\n\r\ndata:[DONE]"), {"after_done_s": SOON_S}, "the body did not end after [DONE]"),
        ((CHUNKED + b"1\r\nxy",), {}, f"{NOT_HTTP}: a chunk is longer than its size"),
        ((OK + b"X" * 70_000,), {}, "the head of the reply is too long"),
        ((OK + b"\r\n", bytes(11)), {"limit_bytes": 10}, "a reply of more than 10 bytes"),
    ],
)
def test_nobody_is_waited_for_without_end(pieces: tuple[bytes, ...], how: dict[str, Any], error: str) -> None:
    heard = hear(saying(*pieces, is_open=True), **how)
    assert (heard.error, heard.is_complete) == (error, False)


@pytest.mark.parametrize("body", [b"data: [DONE]\n\ndata: more", b"say data: [DONE]", b"data: [DONE] x"])
def test_only_a_body_that_ends_with_done_should_end_soon(body: bytes) -> None:
    heard = hear(saying(OK + b"\r\n" + body, is_open=True), after_done_s=0.0, quiet_s=SOON_S)
    assert heard.error == f"nothing came for {SOON_S} s"


def test_a_body_that_ends_in_time_after_done_is_whole() -> None:
    assert hear(saying(DONE, b"0\r\n\r\n", is_open=True)).is_complete


@pytest.mark.parametrize("has_body", [False, True])
def test_who_leaves_is_gone_at_once(has_body: bool) -> None:
    text = MockChunk(CHUNK_TEMPLATE % ('{"content":"Hello"}', "null"))
    reply = MockReply((text,), end="endless") if has_body else MockReply(end="hang")

    async def work() -> RecordedResponse:
        async with await serve(MockScript(posts=(reply,))) as server:
            address = Address(port=server.port)
            heard = await record_response(
                address, "POST", CHAT, body=b"{}", leave=lambda body: body.count(b"Hello") >= 5_000 * has_body
            )
            await server.wait_until(lambda: server.counts.open == 0)
            assert server.requests[0].end == "left"
            return heard

    heard = run(work())
    assert (heard.status, heard.is_aborted, heard.error, heard.is_complete) == (200, True, None, False)
    assert bool(heard.body) is has_body


def test_who_would_leave_hears_a_reply_that_is_over_before() -> None:
    heard = hear(saying(OK + b"Content-Length: 5\r\n\r\nhello"), leave=lambda body: len(body) >= 5)
    assert (heard.is_aborted, heard.is_complete) == (False, True)


def test_who_is_cancelled_leaves() -> None:
    async def work() -> None:
        async with await serve(MockScript(posts=(FAULT_REPLIES["hang"],))) as server:
            asking = asyncio.create_task(record_response(Address(port=server.port), "POST", CHAT, body=b"{}"))
            await server.wait_until(lambda: server.counts.requests == 1)
            asking.cancel()
            await server.wait_until(lambda: server.counts.open == 0)
            with pytest.raises(asyncio.CancelledError):
                await asking

    run(work())


def test_a_refusal_that_comes_before_the_request_is_whole_is_heard() -> None:
    reply = b"HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno"
    for is_open in (True, False):
        ticks = count()
        heard = hear(saying(reply, is_open=is_open), "POST", body=bytes(2**24), clock=lambda: float(next(ticks)))  # noqa: B023 - it is called before the next
        assert (heard.status, heard.body, heard.is_complete) == (413, b"no", True)
        assert heard.head_s == 0


def test_a_refusal_is_heard_of_a_connection_that_was_reset_before_the_first_byte() -> None:
    connected, gone = threading.Event(), threading.Event()

    class Late(asyncio.SelectorEventLoop):
        """A loop that hears of its connection when the server has left it."""

        async def sock_connect(self, *how: Any) -> None:  # noqa: ANN401 - those of the loop
            await super().sock_connect(*how)
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
        heard = run(record_response(Address(port=port), "POST", "/", body=b"{}"), Late)
        thread.join(LIMIT_S)
    assert (heard.status, heard.body, heard.error) == (503, b"no", None)


def test_a_server_that_says_no_more_but_stays_is_not_waited_for() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"\r\nhello")
        writer.write_eof()
        await reader.read()

    heard = hear(answer)
    assert (heard.body, heard.is_complete) == (b"hello", True)


def test_a_request_is_as_the_sdks_send_it() -> None:
    first, headers = request_of(Address(key=SECRET), method="POST", path="/models", body=b"{}")
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


def test_headers_are_replaced_added_and_left_out() -> None:
    address = Address(key=SECRET, headers=(("x-team", "a"), ("X-More", "b")))
    changes = [("authorization", "Bearer wrong"), ("Accept-Encoding", None), ("X-Team", "c"), ("Origin", "http://a")]
    _, headers = request_of(address, method="GET", path="/", headers=changes)
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
def test_a_request_that_would_be_two_is_not_sent(method: str, path: str, headers: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(ValueError, match="character"):
        run(record_response(Address(port=1), method, path, headers=headers))


def test_a_unix_socket_is_heard(tmp_path: Path) -> None:
    async def work() -> RecordedResponse:
        path = str(tmp_path / "s")
        async with await serve(MockScript(), socket=path):
            return await record_response(Address(socket=path), "POST", CHAT, body=b"{}")

    assert run(work()).body == HELLO_REPLY.body


def test_nobody_there_is_said_without_an_address() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, and not listening
        port = closed.getsockname()[1]
        for host in ("127.0.0.1", "localhost"):
            with pytest.raises(ConnectError, match=r"^no connection to the server$"):
                run(record_response(Address(host=host, port=port), "GET", "/"))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (socket.gaierror(socket.EAI_NONAME, SECRET), "the server's name is not known"),
        (TimeoutError(SECRET), "no connection to the server within 5 s"),
        (OSError(f"Multiple exceptions: {SECRET}"), "no connection to the server"),
    ],
)
def test_why_there_is_no_connection_is_said_without_a_name(error: OSError, said: str) -> None:
    class Failing(asyncio.SelectorEventLoop):
        """A loop that finds nobody: no question leaves this machine."""

        async def getaddrinfo(self, *_: object, **__: object) -> NoReturn:
            raise error

    with pytest.raises(ConnectError) as caught:
        run(record_response(Address(host="secret", port=1), "GET", "/"), Failing)
    assert str(caught.value) == said


@pytest.mark.parametrize("is_trusted", [True, False])
def test_tls_is_heard_where_its_certificate_is_trusted_or_not_asked_for(tmp_path: Path, is_trusted: bool) -> None:
    pair = make_pair(tmp_path)
    tls = TlsOptions(str(pair.certificate)) if is_trusted else TlsOptions(is_verified=False)
    reply = CHUNKED + b"5\r\nhello\r\n"

    async def work(*pieces: bytes) -> RecordedResponse:
        async with serving(saying(*pieces), pair.serving()) as port:
            return await record_response(Address(port=port, tls=tls), "POST", "/", body=b"{}")

    heard = run(work(reply, b"0\r\n\r\n"))
    assert (heard.body, heard.pieces, heard.is_complete) == (b"hello", (5,), True)
    assert run(work(OK + b"\r\nhello")).is_complete
    assert run(work(reply)).error == CONNECTION_LOST


def test_tls_that_is_reset_was_heard_until_then(tmp_path: Path) -> None:
    pair = make_pair(tmp_path)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED + b"5\r\nhello\r\n")
        await reader.readuntil(b"!")
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def work() -> RecordedResponse:
        async with serving(answer, pair.serving()) as port:
            address = Address(port=port, tls=TlsOptions(is_verified=False))
            return await record_response(address, "POST", "/", body=b"{}!")

    heard = run(work())
    assert (heard.status, heard.error) == (200, CONNECTION_LOST)


@pytest.mark.parametrize(
    ("is_tls", "said"),
    [(True, "the server's certificate is not trusted"), (False, "the server does not speak TLS as it should")],
)
def test_tls_that_goes_wrong_is_said(tmp_path: Path, is_tls: bool, said: str) -> None:
    pair = make_pair(tmp_path)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(OK)

    async def work() -> None:
        async with serving(answer, pair.serving() if is_tls else None) as port:
            await record_response(parse_url(f"https://127.0.0.1:{port}", key=SECRET), "GET", "/")

    with pytest.raises(ConnectError, match=f"^{said}$"):
        run(work())


def test_the_ear_needs_no_library_but_msgspec() -> None:
    code = "import sys, welldone.http.recording_client; print(*{'httptools', 'aiohttp', 'rich', 'uvloop'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=LIMIT_S)
    assert done.stdout.strip() == b""
