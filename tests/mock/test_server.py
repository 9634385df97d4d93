"""The engine that says what a script says."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.engines.asking import ask, connect
from tests.engines.fleets import LIMIT_S, get, run
from tests.table import table
from welldone.http.address import Address
from welldone.http.client import HttpClientError, fetch
from welldone.mock.script import HELLO_REPLY, MockChunk, MockReply, MockScript, json_reply
from welldone.mock.server import MockServer, start_mock_server


def test_it_says_hello_and_tells_what_it_was_asked(tmp_path: Path) -> None:
    async def main() -> None:
        address = Address(socket=str(tmp_path / "s.sock"))
        async with await start_mock_server(MockScript(), socket=address.socket):
            reply = await get(address, "/v1/chat/completions", {"a": 1})
            assert reply.body == b"".join(piece.data for piece in HELLO_REPLY.pieces)
            assert reply.headers["content-type"] == "text/event-stream"
            seen = json.loads((await get(address, "/seen")).body)
            assert [(one["path"], one["body"], one["end"]) for one in seen] == [
                ("/v1/chat/completions", '{"a": 1}', "whole")
            ]
            assert [(await get(address, path)).status for path in ("/health", "/v1/models", "/props", "/x")] == [
                200,
                200,
                404,
                404,
            ]

    run(main())


def test_replies_come_in_their_order_and_the_last_one_stays() -> None:
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
            assert [(await get(address, "/health")).status for _ in range(3)] == [503, 200, 200]
            assert (await get(address, "/props")).body == b'{"total_slots":1}'
            first, second = [await get(address, "/", {}) for _ in range(2)]
            assert (first.status, first.body) == (503, b"one")
            assert second.body == b"two\xff!!!"
            for _ in range(2):
                with pytest.raises(HttpClientError):
                    await get(address, "/", {})

    run(main())


def test_it_notices_who_leaves() -> None:
    async def main() -> None:
        async with await start_mock_server(MockScript(posts=(MockReply((MockChunk("x"),), end="hang"),))) as server:
            begun_s = time.monotonic()
            with pytest.raises(HttpClientError):
                await fetch(Address(port=server.port), "POST", "/", body=b"{}", timeout_s=0.1)
            await server.wait_until(lambda: server.requests[-1].end == "left")
            ended_s = server.requests[-1].ended_s
            assert ended_s is not None
            assert begun_s <= server.requests[-1].begun_s <= ended_s <= time.monotonic()
            assert json.loads((await get(Address(port=server.port), "/seen")).body)[0]["end"] == "left"

    run(main())


def test_a_connection_is_kept_for_the_next_request() -> None:
    async def main() -> None:
        async with await start_mock_server(MockScript()) as server, connect(server.port) as asker:
            for number in range(3):
                asker.ask({"number": number})
                assert (await asker.reply()).body == HELLO_REPLY.body
                await server.wait_until(lambda: server.requests[-1].end == "whole")
            counts = (server.counts.connections, server.counts.open, server.counts.requests)
            assert counts == (1, 1, 3)
            asker.leave()
            await server.wait_until(lambda: server.counts.open == 0)
            assert [json.loads(seen.body)["number"] for seen in server.requests] == [0, 1, 2]
            told = json.loads((await get(Address(port=server.port), "/counts")).body)
            assert told == {"connections": 2, "open": 1, "requests": 4}

    run(main())


def test_requests_that_come_before_their_turn_are_not_lost() -> None:
    async def main() -> None:
        async with await start_mock_server(MockScript()) as server, connect(server.port) as asker:
            asker.ask({"number": 1})
            asker.ask({"number": 2}, "Connection: close")
            assert (await asker.rest()).count(b"HTTP/1.1 200") == 2
            assert [seen.end for seen in server.requests] == ["whole", "whole"]

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
def test_a_reply_may_be_whole_and_the_last_one(reply: MockReply) -> None:
    async def main() -> None:
        async with await start_mock_server(MockScript(posts=(reply,))) as server, connect(server.port) as asker:
            asker.ask()
            assert HELLO_REPLY.pieces[-1].data in await asker.rest()
            assert server.requests[-1].end == "whole"

    run(main())


def test_a_connection_that_is_idle_too_long_is_closed() -> None:
    async def main() -> None:
        async with await start_mock_server(MockScript(idle_s=0.01)) as server, connect(server.port) as asker:
            assert await asker.rest() == b""

    run(main())


def test_a_reset_is_one() -> None:
    async def main() -> None:
        async with (
            await start_mock_server(MockScript(posts=(MockReply((MockChunk("x"),), end="reset"),))) as server,
            connect(server.port) as asker,
        ):
            asker.ask()
            with pytest.raises(ConnectionResetError):
                await asker.rest()
            await server.wait_until(lambda: server.requests[-1].end == "reset")

    run(main())


def test_a_reset_over_a_unix_socket_is_a_cut(tmp_path: Path) -> None:
    async def main() -> None:
        address = Address(socket=str(tmp_path / "s.sock"))
        async with await start_mock_server(
            MockScript(posts=(MockReply((MockChunk("x"),), end="reset"),)), socket=address.socket
        ):
            with pytest.raises(HttpClientError):
                await get(address, "/", {})

    run(main())


def test_an_endless_reply_goes_on_until_the_asker_leaves_and_others_are_heard() -> None:
    async def main() -> None:
        async with (
            await start_mock_server(
                MockScript(posts=(MockReply((MockChunk("a"), MockChunk("b" * 100)), end="endless"),))
            ) as server,
            connect(server.port) as asker,
        ):
            asker.ask()
            await asker.reader.readuntil(b"\r\n\r\n")
            await asker.reader.readexactly(2**20)
            assert (await get(Address(port=server.port), "/health")).status == 200
            asker.leave()
            await server.wait_until(lambda: server.requests[-1].end == "left")

    run(main())


def test_a_path_may_have_a_reply_of_its_own_for_any_method() -> None:
    async def main() -> None:
        script = MockScript(paths={"/v1/models": json_reply({"a": 1}), "/v1/files": json_reply({"b": 2}, 201)})
        async with await start_mock_server(script) as server:
            address = Address(port=server.port)
            assert (await get(address, "/v1/models?x=1")).body == b'{"a":1}'
            assert (await fetch(address, "DELETE", "/v1/files", timeout_s=LIMIT_S)).status == 201
            assert [(seen.method, seen.path) for seen in server.requests] == [
                ("GET", "/v1/models?x=1"),
                ("DELETE", "/v1/files"),
            ]

    run(main())


def test_a_reply_may_be_chosen_by_what_was_asked() -> None:
    async def main() -> None:
        chosen = MockServer(MockScript(), lambda seen: MockReply((MockChunk(seen.body),)))
        async with await chosen.listen() as server:
            assert (await ask(server.port, {"a": 1})).body == b'{"a": 1}'

    run(main())


def test_all_requests_may_be_chosen_for() -> None:
    async def main() -> None:
        chosen = MockServer(
            MockScript(), lambda seen: MockReply((MockChunk(f"{seen.method} {seen.path}"),)), handles_all=True
        )
        async with await chosen.listen() as server:
            address = Address(port=server.port)
            assert (await get(address, "/health?x")).body == b"GET /health?x"
            assert (await fetch(address, "DELETE", "/seen/1", timeout_s=LIMIT_S)).body == b"DELETE /seen/1"
            seen = json.loads((await get(address, "/seen")).body)
            assert [one["path"] for one in seen] == ["/health?x", "/seen/1"]
            assert json.loads((await get(address, "/counts")).body)["requests"] == 4

    run(main())


@pytest.mark.parametrize(("body", "is_utf8"), [(b"\xc3\xa4", True), (b"\xef\xbf\xbd", True), (b"a\xc3", False)])
def test_a_body_that_is_no_text_is_known(body: bytes, is_utf8: bool) -> None:
    async def main() -> None:
        async with await start_mock_server(MockScript()) as server:
            await fetch(Address(port=server.port), "POST", "/", body=body, timeout_s=LIMIT_S)
            assert server.requests[-1].is_utf8 is is_utf8
            assert server.requests[-1].body == body.decode(errors="replace")

    run(main())


def test_a_request_may_come_in_chunks() -> None:
    async def main() -> None:
        async with await start_mock_server(MockScript()) as server, connect(server.port) as asker:
            head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            asker.writer.write(head + b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: 1\r\n\r\n")
            await asker.reply()
            assert server.requests[-1].body == "abcde"

    run(main())


@table(
    "said",
    [
        b"\xff\xff\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n",
        b"x" * 200_000,
    ],
)
def test_what_is_no_request_gets_no_reply(said: bytes) -> None:
    async def main() -> None:
        async with await start_mock_server(MockScript()) as server, connect(server.port) as asker:
            asker.writer.write(said)
            with contextlib.suppress(ConnectionResetError):  # it hung up before it had read all
                assert await asker.rest() == b""
            assert not server.requests

    run(main())


@pytest.mark.parametrize("speed", [0.0, 1e9])
def test_pauses_may_be_left_out(speed: float) -> None:
    async def main() -> None:
        reply = MockReply((MockChunk("a", after_s=1e6), MockChunk("b", after_s=1e6)), after_s=1e6)
        async with await start_mock_server(MockScript(posts=(reply,), speed=speed)) as server:
            assert (await ask(server.port)).body == b"ab"

    run(main())


def test_at_its_end_nothing_is_left() -> None:
    async def main() -> None:
        server = await start_mock_server(MockScript(posts=(MockReply((), end="hang"),)))
        async with connect(server.port) as idle, connect(server.port) as waiting:
            waiting.ask()
            await server.wait_until(lambda: server.counts.open == 2 and len(server.requests) == 1)
            await server.close()
            assert await idle.rest() == b""
            await waiting.rest()
            assert len(asyncio.all_tasks()) == 1

    run(main())


@pytest.mark.parametrize("words", [[], ["--port", "1", "--socket", "x"], ["--port", "x"]])
def test_its_arguments_are_checked(words: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "welldone.mock.server", *words], capture_output=True, timeout=LIMIT_S, check=False
    )
    assert ended.returncode == 2
