"""The engine that says what a script says."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.engines.fleets import LIMIT_S, get, run
from welldone.engines.address import Address
from welldone.engines.scripted import HELLO, Piece, Reply, Script, listen
from welldone.net.outbound import OutboundError, fetch


def test_it_says_hello_and_tells_what_it_was_asked(tmp_path: Path) -> None:
    async def main() -> None:
        address = Address(socket=str(tmp_path / "s.sock"))
        async with await listen(Script(), socket=address.socket):
            reply = await get(address, "/v1/chat/completions", {"a": 1})
            assert reply.body == b"".join(piece.data for piece in HELLO.pieces)
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
    script = Script(
        posts=(
            Reply((Piece("one"),), 503),
            Reply((Piece("t"), Piece("wo", after_s=0.01), Piece(base64=b"\xff"))),
            Reply((Piece("cut"),), end="cut"),
        ),
        health=(503, 200),
        props={"total_slots": 1},
    )

    async def main() -> None:
        async with await listen(msgspec.json.decode(msgspec.json.encode(script), type=Script)) as server:
            address = Address(port=server.sockets[0].getsockname()[1])
            assert [(await get(address, "/health")).status for _ in range(3)] == [503, 200, 200]
            assert (await get(address, "/props")).body == b'{"total_slots":1}'
            first, second = [await get(address, "/", {}) for _ in range(2)]
            assert (first.status, first.body) == (503, b"one")
            assert second.body == b"two\xff"
            for _ in range(2):
                with pytest.raises(OutboundError):
                    await get(address, "/", {})

    run(main())


def test_it_notices_who_leaves() -> None:
    async def main() -> None:
        async with await listen(Script(posts=(Reply((Piece("x"),), end="hang"),))) as server:
            address = Address(port=server.sockets[0].getsockname()[1])
            with pytest.raises(OutboundError):
                await fetch(address, "POST", "/", body=b"{}", within_s=0.1)
            while b'"left"' not in (await get(address, "/seen")).body:
                pass  # the run's limit ends this

    run(main())


@pytest.mark.parametrize("words", [[], ["--port", "1", "--socket", "x"], ["--port", "x"]])
def test_its_arguments_are_checked(words: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "welldone.engines.scripted", *words], capture_output=True, timeout=LIMIT_S, check=False
    )
    assert ended.returncode == 2
