"""Traffic mirroring: the client's stream stays as it is, and the two replies are compared by rule and by text."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.http.aio import LIMIT_S, run
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import DONE, HELLO, ROLE, STOP, USAGE, RecordedReply, json_error
from tests.table import table
from welldone.config.settings import SettingsError
from welldone.config.upstream import MirrorTarget, parse_mirror
from welldone.mock.script import CHUNK_TEMPLATE, MockChunk, MockReply, json_reply
from welldone.server.config import read_config
from welldone.server.generation import mirror as mirroring

WORLD = MockChunk(CHUNK_TEMPLATE % ('{"content":"Help"}', "null"))
CALL = '{"tool_calls":[{"index":0,"id":"%s","type":"function","function":{"name":"f","arguments":"{}"}}]}'
FIRST = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
SAME = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
OTHER = MockReply((ROLE, WORLD, STOP, USAGE, DONE))
TWICE_DONE = MockReply((ROLE, HELLO, STOP, USAGE, DONE, DONE))
KEY_OF_FIRST, KEY_OF_SECOND = "canary-of-the-first-upstream", "canary-of-the-second-upstream"


def chat(**more: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of the request
    return {"model": "x", "messages": [{"role": "user", "content": "Hi"}], "stream": True, **more}


@asynccontextmanager
async def mirrored(
    folder: Path,
    *replies: MockReply,
    share: str = "b@100%",
    **more: Any,  # noqa: ANN401 - as of `gateway`
) -> AsyncIterator[Gateway]:
    """A gateway with an upstream for `x` and its mirror."""
    posts = [[reply] for reply in replies]
    first = {"models": ("x",), "mirror": share, "key": KEY_OF_FIRST}
    async with gateway(folder, *posts, first=first, each={"models": ("y",), "key": KEY_OF_SECOND}, **more) as gate:
        yield gate


async def comparisons(gate: Gateway, count: int = 1) -> list[dict[str, Any]]:
    """The comparisons, once there are so many."""
    async with asyncio.timeout(LIMIT_S):
        while len(found := (await gate.get("/admin/mirror")).json["data"]) < count:
            pass
    assert isinstance(found, list)
    return found


async def counted(gate: Gateway, outcome: str, count: int = 1) -> bool:
    page = (await gate.get("/metrics")).body.decode()
    return f'welldone_mirror_total{{outcome="{outcome}",upstream="b"}} {count}.0' in page


@table(
    ("second", "outcome", "expected"),
    [
        (SAME, "identical", {"first_difference": None, "problem": None}),
        (OTHER, "different", {"first_difference": 3}),
        (MockReply((ROLE, HELLO, HELLO, STOP, USAGE, DONE)), "different", {"first_difference": 5}),
        (TWICE_DONE, "identical", {}),
        (json_error(500, {"error": {"message": "no"}}), "failed", {"problem": "status 500, or an error in the reply"}),
        (MockReply((ROLE, HELLO), end="cut"), "failed", {}),
        (MockReply((MockChunk("<html>"),)), "failed", {}),
    ],
)
def test_two_replies_are_compared(
    tmp_path: Path, second: MockReply, outcome: str, expected: Mapping[str, object]
) -> None:
    async def body() -> None:
        async with mirrored(tmp_path, FIRST, second) as gate:
            reply = await gate.post(chat())
            assert (reply.status, reply.findings(), reply.body.count(b"Hello")) == (200, [], 1)
            (found,) = await comparisons(gate)
            assert found["outcome"] == outcome
            assert {name: found[name] for name in expected} == expected
            assert (found["model"], found["reply"]["upstream"], found["mirrored"]["upstream"]) == ("x", "a", "b")
            assert found["reply"]["characters"] == 5
            assert await counted(gate, outcome)

    run(body())


def test_the_rules_that_each_reply_violates_are_listed(tmp_path: Path) -> None:
    async def body() -> None:
        async with mirrored(tmp_path, FIRST, TWICE_DONE) as gate:
            await gate.post(chat())
            (found,) = await comparisons(gate)
            new = found["mirrored"]["findings"].keys() - found["reply"]["findings"].keys()
            assert new == {"end-done-last"}

    run(body())


def test_each_upstream_gets_its_own_key_and_model(tmp_path: Path) -> None:
    async def body() -> None:
        async with mirrored(tmp_path, FIRST, SAME, share="z@b@100%") as gate:
            await gate.post(chat(), headers="X-Secret: canary-of-the-client\r\n")
            await comparisons(gate)
            first, second = (
                next(one for one in upstream.requests if one.method == "POST") for upstream in gate.upstreams
            )
            assert (json.loads(first.body)["model"], json.loads(second.body)["model"]) == ("x", "z")
            assert {**json.loads(first.body), "model": ""} == {**json.loads(second.body), "model": ""}
            assert KEY_OF_FIRST in str(first.headers)
            assert KEY_OF_SECOND in str(second.headers)
            assert KEY_OF_FIRST not in str(second.headers)
            assert "canary-of-the-client" not in str(second.headers)

    run(body())


def test_whole_replies_and_tool_calls_are_compared_without_ids(tmp_path: Path) -> None:
    def called(id_: str) -> MockReply:
        return MockReply((ROLE, MockChunk(CHUNK_TEMPLATE % (CALL % id_, "null")), STOP, DONE))

    whole = {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "x",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]

    async def body() -> None:
        async with mirrored(tmp_path, called("one"), called("two")) as gate:
            await gate.post(chat(tools=tools))
            (found,) = await comparisons(gate)
            assert (found["outcome"], found["reply"]["characters"]) == ("identical", 5)
        async with mirrored(tmp_path, json_reply(whole), json_reply({**whole, "id": "2"})) as gate:
            assert (await gate.post(chat(stream=False))).status == 200
            (found,) = await comparisons(gate)
            assert (found["outcome"], found["reply"]["characters"]) == ("identical", 5)

    run(body())


def test_the_client_waits_for_nothing_and_its_limits_are_not_charged(tmp_path: Path) -> None:
    async def body() -> None:
        hangs = MockReply((ROLE, HELLO), end="hang")
        async with mirrored(tmp_path, FIRST, hangs, requests_per_minute=10) as gate:
            for left in (9, 8):
                reply = await gate.post(chat())
                assert f"x-ratelimit-remaining-requests: {left}" in reply.head.lower()
            await gate.upstreams[1].wait_until(lambda: gate.post_counts[1] == 2)
            upstream = gate.server.upstreams.all[1]
            assert upstream.running == 0  # it takes no slot of its queue
            assert (await gate.get("/admin/mirror")).json["data"] == []

    run(body())


def test_a_busy_mirror_drops_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirroring, "MAX_RUNNING", 1)

    async def body() -> None:
        async with mirrored(tmp_path, FIRST, MockReply((ROLE, HELLO), end="hang")) as gate:
            for _ in range(3):
                assert (await gate.post(chat())).status == 200
            assert await counted(gate, "dropped", 2)
            assert gate.post_counts[1] <= 1

    run(body())


def test_long_bodies_and_replies_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirroring, "BODY_LIMIT_BYTES", 1000)
    monkeypatch.setattr(mirroring, "REPLY_LIMIT_BYTES", 100)

    async def body() -> None:
        async with mirrored(tmp_path, FIRST, SAME) as gate:
            assert (await gate.post(chat(user="u" * 2000))).status == 200
            assert await counted(gate, "dropped", 1)
            assert (await gate.post(chat())).status == 200
            assert await counted(gate, "dropped", 2)
            assert gate.post_counts == [2, 0]

    run(body())


def test_failed_left_stored_and_split_requests_are_not_mirrored(tmp_path: Path) -> None:
    async def body() -> None:
        async with mirrored(tmp_path, json_error(400, {"error": {"message": "no"}}), SAME) as gate:
            assert (await gate.post(chat())).status == 400
            assert gate.post_counts == [1, 0]
        async with mirrored(tmp_path, MockReply((ROLE, HELLO), end="hang"), SAME) as gate:
            reader, writer = await gate.send(chat())
            await reader.readuntil(b"Hello")
            writer.close()
            await gate.upstreams[0].wait_until(lambda: gate.upstreams[0].requests[-1].end == "left")
            assert gate.post_counts == [1, 0]
        async with mirrored(tmp_path, FIRST, SAME) as gate:
            assert (await gate.post(chat(store=True))).status == 200
            assert (await gate.post(chat(n=2))).status == 200
            # Translated to a chat, which the upstream does not store.
            assert (await gate.post({"model": "x", "input": "Hi", "stream": True}, "/v1/responses")).status == 200
            assert len(await comparisons(gate)) == 1
            assert gate.post_counts == [4, 1]

    run(body())


def test_the_share_is_drawn_for_each_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with mirrored(tmp_path, FIRST, SAME, share="b@25%") as gate:
            draws = iter([0.2, 0.3, 0.249, 0.25])
            monkeypatch.setattr(mirroring, "random", SimpleNamespace(random=lambda: next(draws)))
            for _ in range(4):
                await gate.post(chat())
            await comparisons(gate, 2)
            assert gate.post_counts == [4, 2]

    run(body())


def test_only_admins_see_comparisons(tmp_path: Path) -> None:
    async def body() -> None:
        async with mirrored(tmp_path, FIRST, SAME, keys=("canary-of-an-admin",)) as gate:
            assert (await gate.get("/admin/mirror")).status == 401
            reply: RecordedReply = await gate.get("/admin/mirror", "Authorization: Bearer canary-of-an-admin\r\n")
            assert reply.json == {"object": "list", "data": []}

    run(body())


# Settings.


def test_a_mirror_is_parsed() -> None:
    assert parse_mirror("new@1%") == MirrorTarget("", "new", 0.01)
    assert parse_mirror("org/m@8@new@0.5%") == MirrorTarget("org/m@8", "new", 0.005)


@table(
    ("value", "problem"),
    [
        ("b", "should be UPSTREAM@1%"),
        ("b@0%", "should be UPSTREAM@1%"),
        ("b@101%", "should be UPSTREAM@1%"),
        ("@1%", "should be UPSTREAM@1%"),
        ("c@1%", "there is no upstream 'c'"),
        ("a@1%", "another upstream than itself"),
        ("d@1%", "both must support chat"),
        ("e@1%", "the same setting of stream"),
    ],
)
def test_an_invalid_mirror_is_an_error(tmp_path: Path, value: str, problem: str) -> None:
    url = 'url = "http://127.0.0.1:1/v1"'
    tables = [f'[upstreams.a]\n{url}\nmirror = "{value}"', f"[upstreams.b]\n{url}"]
    tables += [f'[upstreams.d]\n{url}\nchat = false\nspeaks = ["messages"]', f"[upstreams.e]\n{url}\nstream = false"]
    (tmp_path / "welldone.toml").write_text("\n".join(tables))
    with pytest.raises(SettingsError, match=r"welldone\.toml: upstreams\.a\.mirror: ") as caught:
        read_config({}, {}, folder=tmp_path)
    assert problem in str(caught.value)
