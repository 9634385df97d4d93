"""Mock server: scripted replies, recorded requests, and connections."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.engines.supervisors import LIMIT_S, fetch_reply, run
from tests.mock.raw_client import connect, send_request
from tests.table import table
from welldone.http.address import Address
from welldone.http.client import fetch
from welldone.http.connect import HttpClientError
from welldone.mock.script import HELLO_REPLY, MockChunk, MockReply, MockScript, json_reply
from welldone.mock.server import MockServer, start_mock_server


def test_the_default_reply_is_sent_and_requests_are_listed(tmp_path: Path) -> None:
    async def main() -> None:
        address = Address(socket=str(tmp_path / "s.sock"))
        async with await start_mock_server(MockScript(), socket=address.socket):
            reply = await fetch_reply(address, "/v1/chat/completions", {"a": 1})
            assert reply.body == b"".join(piece.data for piece in HELLO_REPLY.pieces)
            assert reply.headers["content-type"] == "text/event-stream"
            requests = json.loads((await fetch_reply(address, "/seen")).body)
            assert [(entry["path"], entry["body"], entry["end"]) for entry in requests] == [
                ("/v1/chat/completions", '{"a": 1}', "whole")
            ]
            assert [
                (await fetch_reply(address, path)).status for path in ("/health", "/v1/models", "/props", "/x")
            ] == [
                200,
                200,
                404,
                404,
            ]

    run(main())


def test_replies_are_sent_in_order_and_the_last_one_is_repeated() -> None:
    script = MockScript(
        posts=(
            MockReply((MockChunk("one"),), 503),
            MockReply(
                (MockChunk("t"), MockChunk("wo", after_s=0.01), MockChunk(base64=b"\xff"), MockChunk("!", times=3))
            ),
            MockReply((MockChunk("cut"),), end="cut"),
        ),
        health=(503, 200),
        props={"total_slots": 1},
    )

    async def main() -> None:
        async with await start_mock_server(msgspec.json.decode(msgspec.json.encode(script), type=MockScript)) as server:
            address = Address(port=server.port)
            assert [(await fetch_reply(address, "/health")).status for _ in range(3)] == [503, 200, 200]
            assert (await fetch_reply(address, "/props")).body == b'{"total_slots":1}'
            first, second = [await fetch_reply(address, "/", {}) for _ in range(2)]
            assert (first.status, first.body) == (503, b"one")
            assert second.body == b"two\xff!!!"
            for _ in range(2):
                with pytest.raises(HttpClientError):
                    await fetch_reply(address, "/", {})

    run(main())


def test_a_disconnect_of_the_client_is_recorded() -> None:
    async def main() -> None:
        async with await start_mock_server(MockScript(posts=(MockReply((MockChunk("x"),), end="hang"),))) as server:
            started_s = time.monotonic()
            with pytest.raises(HttpClientError):
                await fetch(Address(port=server.port), "POST", "/", body=b"{}", timeout_s=0.1)
            await server.wait_until(lambda: server.requests[-1].end == "left")
            ended_s = server.requests[-1].ended_s
            assert ended_s is not None
            assert started_s <= server.requests[-1].begun_s <= ended_s <= time.monotonic()
            assert json.loads((await fetch_reply(Address(port=server.port), "/seen")).body)[0]["end"] == "left"

    run(main())


def test_a_connection_is_kept_open_for_the_next_request() -> None:
    async def main() -> None:
        async with await start_mock_server(MockScript()) as server, connect(server.port) as client:
            for number in range(3):
                client.send({"number": number})
                assert (await client.read_reply()).body == HELLO_REPLY.body
                await server.wait_until(lambda: server.requests[-1].end == "whole")
            counts = (server.counts.connections, server.counts.open, server.counts.requests)
            assert counts == (1, 1, 3)
            client.close()
            await server.wait_until(lambda: server.counts.open == 0)
            assert [json.loads(request.body)["number"] for request in server.requests] == [0, 1, 2]
            counts_json = json.loads((await fetch_reply(Address(port=server.port), "/counts")).body)
            assert counts_json == {"connections": 2, "open": 1, "requests": 4}

    run(main())


def test_pipelined_requests_are_answered() -> None:
    async def main() -> None:
        async with await start_mock_server(MockScript()) as server, connect(server.port) as client:
            client.send({"number": 1})
            client.send({"number": 2}, "Connection: close")
            assert (await client.read_rest()).count(b"HTTP/1.1 200") == 2
            assert [request.end for request in server.requests] == ["whole", "whole"]

    run(main())


@table(
    "reply",
    [
        MockReply(HELLO_REPLY.pieces, end="close"),
        MockReply(HELLO_REPLY.pieces, framing="close"),
        MockReply(HELLO_REPLY.pieces, headers={"connection": "Close"}),
        MockReply(HELLO_REPLY.pieces, headers={"connection": "Close"}, framing="length"),
    ],
)
def test_a_complete_reply_may_close_the_connection(reply: MockReply) -> None:
    async def main() -> None:
        async with await start_mock_server(MockScript(posts=(reply,))) as server, connect(server.port) as client:
            client.send()
            assert HELLO_REPLY.pieces[-1].data in await client.read_rest()
            assert server.requests[-1].end == "whole"

    run(main())


def test_an_idle_connection_is_closed() -> None:
    async def main() -> None:
        async with await start_mock_server(MockScript(idle_s=0.01)) as server, connect(server.port) as client:
            assert await client.read_rest() == b""

    run(main())


def test_a_reset_resets_the_connection() -> None:
    async def main() -> None:
        async with (
            await start_mock_server(MockScript(posts=(MockReply((MockChunk("x"),), end="reset"),))) as server,
            connect(server.port) as client,
        ):
            client.send()
            with pytest.raises(ConnectionResetError):
                await client.read_rest()
            await server.wait_until(lambda: server.requests[-1].end == "reset")

    run(main())


def test_a_reset_of_a_unix_socket_closes_it(tmp_path: Path) -> None:
    async def main() -> None:
        address = Address(socket=str(tmp_path / "s.sock"))
        async with await start_mock_server(
            MockScript(posts=(MockReply((MockChunk("x"),), end="reset"),)), socket=address.socket
        ):
            with pytest.raises(HttpClientError):
                await fetch_reply(address, "/", {})

    run(main())


def test_an_endless_reply_continues_until_the_disconnect_and_blocks_no_other() -> None:
    async def main() -> None:
        async with (
            await start_mock_server(
                MockScript(posts=(MockReply((MockChunk("a"), MockChunk("b" * 100)), end="endless"),))
            ) as server,
            connect(server.port) as client,
        ):
            client.send()
            await client.reader.readuntil(b"\r\n\r\n")
            await client.reader.readexactly(2**20)
            assert (await fetch_reply(Address(port=server.port), "/health")).status == 200
            client.close()
            await server.wait_until(lambda: server.requests[-1].end == "left")

    run(main())


def test_a_path_may_have_its_own_reply_for_all_methods() -> None:
    async def main() -> None:
        script = MockScript(paths={"/v1/models": json_reply({"a": 1}), "/v1/files": json_reply({"b": 2}, 201)})
        async with await start_mock_server(script) as server:
            address = Address(port=server.port)
            assert (await fetch_reply(address, "/v1/models?x=1")).body == b'{"a":1}'
            assert (await fetch(address, "DELETE", "/v1/files", timeout_s=LIMIT_S)).status == 201
            assert [(request.method, request.path) for request in server.requests] == [
                ("GET", "/v1/models?x=1"),
                ("DELETE", "/v1/files"),
            ]

    run(main())


def test_a_handler_chooses_the_reply() -> None:
    async def main() -> None:
        mock = MockServer(MockScript(), lambda request: MockReply((MockChunk(request.body),)))
        async with await mock.listen() as server:
            assert (await send_request(server.port, {"a": 1})).body == b'{"a": 1}'

    run(main())


def test_a_handler_may_answer_all_requests() -> None:
    async def main() -> None:
        mock = MockServer(
            MockScript(), lambda request: MockReply((MockChunk(f"{request.method} {request.path}"),)), handles_all=True
        )
        async with await mock.listen() as server:
            address = Address(port=server.port)
            assert (await fetch_reply(address, "/health?x")).body == b"GET /health?x"
            assert (await fetch(address, "DELETE", "/seen/1", timeout_s=LIMIT_S)).body == b"DELETE /seen/1"
            requests = json.loads((await fetch_reply(address, "/seen")).body)
            assert [entry["path"] for entry in requests] == ["/health?x", "/seen/1"]
            assert json.loads((await fetch_reply(address, "/counts")).body)["requests"] == 4

    run(main())


@pytest.mark.parametrize(("body", "is_utf8"), [(b"\xc3\xa4", True), (b"\xef\xbf\xbd", True), (b"a\xc3", False)])
def test_a_body_that_is_not_utf8_is_marked(body: bytes, is_utf8: bool) -> None:
    async def main() -> None:
        async with await start_mock_server(MockScript()) as server:
            await fetch(Address(port=server.port), "POST", "/", body=body, timeout_s=LIMIT_S)
            assert server.requests[-1].is_utf8 is is_utf8
            assert server.requests[-1].body == body.decode(errors="replace")

    run(main())


def test_a_chunked_request_is_read() -> None:
    async def main() -> None:
        async with await start_mock_server(MockScript()) as server, connect(server.port) as client:
            head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            client.writer.write(head + b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: 1\r\n\r\n")
            await client.read_reply()
            assert server.requests[-1].body == "abcde"

    run(main())


@table(
    "request_bytes",
    [
        b"\xff\xff\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n",
        b"x" * 200_000,
    ],
)
def test_an_invalid_request_gets_no_reply(request_bytes: bytes) -> None:
    async def main() -> None:
        async with await start_mock_server(MockScript()) as server, connect(server.port) as client:
            client.writer.write(request_bytes)
            with contextlib.suppress(ConnectionResetError):  # the server closed before it read everything
                assert await client.read_rest() == b""
            assert not server.requests

    run(main())


@pytest.mark.parametrize("speed", [0.0, 1e9])
def test_delays_can_be_disabled(speed: float) -> None:
    async def main() -> None:
        reply = MockReply((MockChunk("a", after_s=1e6), MockChunk("b", after_s=1e6)), after_s=1e6)
        async with await start_mock_server(MockScript(posts=(reply,), speed=speed)) as server:
            assert (await send_request(server.port)).body == b"ab"

    run(main())


def test_close_leaves_no_task_and_no_connection() -> None:
    async def main() -> None:
        server = await start_mock_server(MockScript(posts=(MockReply((), end="hang"),)))
        async with connect(server.port) as idle, connect(server.port) as waiting:
            waiting.send()
            await server.wait_until(lambda: server.counts.open == 2 and len(server.requests) == 1)
            await server.close()
            assert await idle.read_rest() == b""
            await waiting.read_rest()
            assert len(asyncio.all_tasks()) == 1

    run(main())


@pytest.mark.parametrize("arguments", [[], ["--port", "1", "--socket", "x"], ["--port", "x"]])
def test_arguments_of_the_program_are_checked(arguments: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "welldone.mock.server", *arguments], capture_output=True, timeout=LIMIT_S, check=False
    )
    assert ended.returncode == 2
