"""What keeps others out of the page's paths, and keeps them cheap: other sites, other keys, and who asks much."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.server import gateways
from tests.server.gateways import Gateway, gateway
from tests.server.scripts import CHAT, DONE, HELLO, ROLE, STOP, USAGE, Heard
from tests.table import table
from welldone.config.server import KeySettings
from welldone.http.redaction import SecretRedactor
from welldone.mock.script import JSON_HEADERS, MockChunk, MockReply
from welldone.protocol.envelope import Endpoint
from welldone.protocol.pipeline import make_pipeline
from welldone.protocol.replay import AnyPipeline, StreamReplayStep
from welldone.server.inspector import api, lint
from welldone.server.inspector import captures as tapes_file
from welldone.server.inspector.captures import CaptureStore, StreamCapture, step_view
from welldone.server.inspector.lint import LINT_LINES_LIMIT, lint_capture

Json = dict[str, Any]

GOOD = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
STREAM = {**CHAT, "stream": True}
NAME = "n" * 30
PLAIN, GUEST = "wd-plain-0123456789abcdef", "wd-guest-0123456789abcdef"
LINT = "/page/api/lint"
SHOWN = (
    "/page/api/state",
    f"/page/api/tapes/{NAME}",
    "/page/api/rules/data-json",
    "/page/api/recordings/x",
    "/metrics",
)
TOLD = (LINT, "/models/load", "/models/unload")
STRANGERS = {
    "an origin": "Origin: http://evil.example\r\n",
    "no origin at all": "Origin: null\r\n",
    "another port": "Origin: http://localhost:1\r\n",
    "a tag of another site": "Sec-Fetch-Site: cross-site\r\n",
    "a tag of a neighbour": "Sec-Fetch-Site: same-site\r\n",
}


def _by(key: str) -> str:
    return f"Authorization: Bearer {key}\r\n" if key else ""


def _watched(name: str = NAME) -> str:
    return f"x-welldone-tape: {name}\r\n"


# Other sites.


@table("headers", STRANGERS.values(), ids=STRANGERS.keys())
def test_the_pages_of_other_sites_get_nothing(tmp_path: Path, headers: str) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [GOOD]) as serving:
            await serving.ask(STREAM, headers=_watched())
            heard = [await serving.get(path, headers) for path in SHOWN]
            heard += [await serving.ask({"capture": "x", "model": "m"}, path, headers) for path in TOLD]
            for one in heard:
                assert one.status == 403
                assert "access-control-allow-origin" not in one.head.lower()

    run(work())


def test_a_name_that_was_bent_to_this_machine_opens_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [GOOD]) as serving:
            for path in ("/", *SHOWN):
                reader, writer = await asyncio.open_connection("127.0.0.1", serving.server.port)
                writer.write(f"GET {path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n".encode())
                assert b" 403 " in await reader.readline()
                writer.close()

    run(work())


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data"])
def test_what_a_form_can_send_is_not_taken(tmp_path: Path, kind: str) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [GOOD]) as serving:
            for path in TOLD:
                reader, writer = await asyncio.open_connection("127.0.0.1", serving.server.port)
                head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {kind}\r\n"
                writer.write(f'{head}Content-Length: 13\r\n\r\n{{"model":"m"}}'.encode())
                assert b" 415 " in await reader.readline()
                writer.close()

    run(work())


# Other keys.


@pytest.mark.parametrize(
    "reply",
    [
        GOOD,
        MockReply((ROLE, HELLO), end="cut"),
        MockReply((), end="reset"),
        MockReply((MockChunk("{}"),), status=401, headers=JSON_HEADERS),
    ],
    ids=["right", "cut", "reset", "refused"],
)
@pytest.mark.parametrize("is_stream", [True, False])
def test_a_guest_never_hears_the_name_of_an_upstream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: MockReply, is_stream: bool
) -> None:
    monkeypatch.setattr(gateways, "NAMES", ["zebra"])

    async def work() -> None:
        more = {"keys": (KeySettings(name="guest", key=GUEST),)}
        async with gateway(tmp_path, [reply], keys=[PLAIN], config=more) as serving:
            address = f"127.0.0.1:{serving.upstreams[0].port}"
            answer = await serving.ask({**CHAT, "stream": is_stream}, headers=_by(GUEST) + _watched())
            tape = await serving.get(f"/page/api/tapes/{NAME}", _by(GUEST))
            state = await serving.get("/page/api/state", _by(GUEST))
            assert (tape.status, state.status, len(state.json["recent"])) == (200, 200, 1)
            for heard in (answer, tape, state):
                for word in ("zebra", address):
                    assert word not in heard.head + heard.body.decode()
            boss = await serving.get("/page/api/state", _by(PLAIN))
            assert "zebra" in json.dumps(boss.json["recent"]) or reply is not GOOD

    run(work())


def test_looking_costs_a_key_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        more = {"keys": (KeySettings(name="guest", key=GUEST, requests_per_minute=2),)}
        async with gateway(tmp_path, [GOOD], keys=[PLAIN], config=more) as serving:
            assert (await serving.ask(STREAM, headers=_by(GUEST) + _watched())).status == 200
            for _ in range(5):
                for path in ("/page/api/state", f"/page/api/tapes/{NAME}", "/metrics"):
                    assert (await serving.get(path, _by(GUEST))).status == 200
            assert (await serving.ask(STREAM, headers=_by(GUEST))).status == 200
            assert (await serving.ask(STREAM, headers=_by(GUEST))).status == 429

    run(work())


# Tapes.


@table("name", ["short", "n" * 65, "../" * 10, "n" * 30 + "%0a", "n n" * 10, "n" * 30 + ",x", "*" * 30])
def test_a_strange_name_makes_no_tape_and_does_no_harm(tmp_path: Path, name: str) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [GOOD]) as serving:
            assert (await serving.ask(STREAM, headers=_watched(name))).status == 200
            assert (await serving.get(f"/page/api/tapes/{name.replace(' ', '%20')}")).status == 404

    run(work())


@table("path", ["tapes/%ff", "tapes/%00", "tapes/..%2f..", "rules/%ff", "recordings/%ff", "tapes//x"])
def test_a_strange_path_is_just_not_there(tmp_path: Path, path: str) -> None:
    async def work() -> Heard:
        async with gateway(tmp_path, [GOOD]) as serving:
            return await serving.get(f"/page/api/{path}")

    assert run(work()).status == 404


def _pipe() -> AnyPipeline:
    return make_pipeline(Endpoint.CHAT, STREAM, id_stem="1", created=1, is_stream=True)


async def _played(kept: CaptureStore, name: str) -> StreamCapture:
    watch = kept.begin("me", name, endpoint="chat", model="m", is_stream=True, began=0.0)
    assert watch is not None
    watch.pipeline_created(_pipe)
    tape = watch.begin_attempt(0, "a", b"{}", is_local=False)
    for piece in [ROLE.data, *[HELLO.data] * 50]:
        tape.data(piece)
        watch.feed(piece, 0)
    tape.data(b": not used")
    assert (await watch.read_steps(0, is_admin=True)).steps
    return watch


def test_a_tape_that_has_to_go_takes_all_that_it_kept_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr(tapes_file, "TAPES", 1)
        kept = CaptureStore(SecretRedactor([]))
        old = await _played(kept, "o" * 30)
        assert old.size > 10_000
        await _played(kept, NAME)
        # An answer may still be under way that holds on to it.
        assert old.size == 0
        assert (await old.read_steps(0, is_admin=True)).steps == []
        old.feed(HELLO.data, 0)
        assert old.size == 0

    run(work())


@pytest.mark.parametrize("data", [b"x" * 9 + "\U0001f600".encode(), b"\xff" * 10], ids=["an emoji", "no text"])
def test_what_a_step_takes_in_memory_is_what_counts(data: bytes) -> None:
    assert step_view(StreamReplayStep(0, 0, data * 1000), 0).size > 20_000


# Captures.


def test_more_captures_than_are_read_at_once_are_refused_before_they_are_sent(tmp_path: Path) -> None:
    async def slowly(serving: Gateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", serving.server.port)
        head = f"POST {LINT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        writer.write(f"{head}Expect: 100-continue\r\nContent-Length: 20\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        return reader, writer

    async def work() -> None:
        async with gateway(tmp_path, [GOOD]) as serving:
            slow = [await slowly(serving) for _ in range(api.CONCURRENT_UPLOADS)]
            refused = await serving.ask({"capture": "data: 1\n\n"}, LINT)
            assert (refused.status, refused.error["code"]) == (429, "too_many_lints")
            for reader, writer in slow:
                writer.write(b'{"capture":"x"}     ')
                await reader.read()
                writer.close()
            assert (await serving.ask({"capture": "data: 1\n\n"}, LINT)).status == 200

    run(work())


@pytest.mark.parametrize("end", ["\n\n", "\r\r", "\r\n\r\n"])
def test_a_stream_of_too_many_lines_is_left_to_the_command_line(tmp_path: Path, end: str) -> None:
    async def work() -> Heard:
        async with gateway(tmp_path, [GOOD]) as serving:
            return await serving.ask({"capture": f"data:{end}" * (LINT_LINES_LIMIT // len(end) + 1)}, LINT)

    heard = run(work())
    assert heard.status == 413
    assert "welldone lint" in heard.error["message"]


def test_json_may_have_as_many_lines_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint, "LINES", 3)
    capture = json.dumps({"error": {"message": "no"}}, indent=1).encode()
    assert lint_capture(capture, endpoint=None, request=None, id_stem="1", created=1).reply_kind == "whole"
