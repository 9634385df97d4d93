"""A gateway before the places of a cluster: replicas come, go, and die, and requests find who is there."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.http.aio import run
from tests.server.gateways import Gateway, gateway
from tests.server.scripts import CHAT, DONE, HELLO, ROLE, STOP, USAGE, refusal, scripted
from tests.table import table
from welldone.http.address import Address
from welldone.mock.script import MockChunk, MockReply, MockScript, json_reply
from welldone.mock.server import MockServer

STREAM = {**CHAT, "stream": True}
WHOLE = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
DEAD = MockReply(raw=True, end="reset")
ENDING = refusal(503, {"error": {"message": "The server is shutting down.", "code": "shutting_down"}})
BOTH = table("request_body", [STREAM, CHAT], ids=["stream", "whole"])
LONG_S = 60.0


class Cluster(Gateway):
    """A gateway, and its places."""

    def come(self, *numbers: int) -> None:
        """Replicas take their places."""
        for number in numbers:
            port = self.upstreams[number].port
            self.server.upstreams.all[number].assign(Address(host="127.0.0.1", port=port, key="sk-r", prefix="/v1"))

    def leave(self, number: int) -> None:
        """A replica is gone."""
        self.server.upstreams.all[number].assign(None)

    @property
    def has_somebody(self) -> bool:
        """Whether a request would be sent to one of them."""
        return any(upstream.is_available for upstream in self.server.upstreams.all)

    async def until_asked(self, count: int) -> None:
        """Returns when they have had so many requests, all together."""
        await until(lambda: sum(self.asked) == count)

    @property
    def running(self) -> int:
        """Requests that are somewhere, or wait to be."""
        return sum(upstream.running for upstream in self.server.upstreams.all)


@asynccontextmanager
async def cluster(
    folder: Path,
    *scripts: MockScript | Sequence[MockReply],
    each: dict[str, Any] | None = None,
    **more: Any,  # noqa: ANN401 - each its own
) -> AsyncIterator[Cluster]:
    """A gateway with as many places as there are scripts; nobody is at any."""
    wanted = {"models": ("m",), "is_place": True, "n": "native", "queue_wait_s": LONG_S, **(each or {})}
    async with gateway(folder, *scripts, each=wanted, **more) as serving:
        yield Cluster(serving.server, serving.upstreams)


async def until(is_so: Callable[[], bool]) -> None:
    """Returns when something is so: looked at in each turn of the loop."""
    while not is_so():  # noqa: ASYNC110 - nobody tells when it is
        await asyncio.sleep(0)


async def until_waiting(serving: Cluster) -> None:
    """Returns when a request waits for somebody."""
    await until(lambda: bool(serving.answers()))
    for _ in range(20):  # all that it does before it waits
        await asyncio.sleep(0)


@BOTH
def test_who_finds_nobody_waits_and_is_answered_when_somebody_comes(
    tmp_path: Path, request_body: dict[str, Any]
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, [WHOLE], [WHOLE]) as serving:
            asking = asyncio.create_task(serving.ask(request_body))
            await until_waiting(serving)
            assert not asking.done()
            serving.come(1)
            heard = await asking
            assert (heard.status, heard.findings(), serving.asked) == (200, [], [0, 1])
            assert b"Hello" in heard.body
            assert serving.upstreams[1].requests[0].headers["authorization"] == "Bearer sk-r"

    run(work())


def test_who_waits_too_long_is_told_to_come_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, [WHOLE], each={"queue_wait_s": 0.05}) as serving:
            heard = await serving.ask(CHAT)
            assert heard.status == 503
            assert heard.error["code"] == "model_unavailable"
            assert "retry-after: 1" in heard.head.lower()
            assert heard.findings() == []
            assert serving.running == 0

    run(work())


@BOTH
@table("dying", [DEAD, ENDING, MockReply(raw=True, end="cut")], ids=["reset", "503", "closed"])
@table("count", [1, 2, 3])
def test_where_some_die_before_a_word_the_next_one_answers(
    tmp_path: Path, request_body: dict[str, Any], dying: MockReply, count: int
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, *([dying] for _ in range(count)), each={"weight": 1000.0}) as serving:
            serving.come(*range(count))
            asking = asyncio.create_task(serving.ask(request_body))
            await serving.until_asked(count)
            await until(lambda: not serving.has_somebody)
            assert not asking.done()
            # Ray has started another one, at the place of the first.
            async with await _server(WHOLE) as fresh:
                serving.server.upstreams.all[0].assign(Address(host="127.0.0.1", port=fresh.port, prefix="/v1"))
                heard = await asking
            assert (heard.status, heard.findings()) == (200, [])
            assert b"Hello" in heard.body
            assert serving.asked == [1] * count

    run(work())


async def _server(*posts: MockReply) -> MockServer:
    return await MockServer(MockScript(posts=posts)).listen()


def test_four_attempts_are_enough_and_then_it_is_an_error(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, *([DEAD] for _ in range(6))) as serving:
            serving.come(*range(6))
            heard = await serving.ask(CHAT)
            assert heard.status in (502, 503)
            assert heard.findings() == []
            assert sum(serving.asked) == 4

    run(work())


def _busy(status: int, code: str) -> MockReply:
    error = {"message": "Try again later.", "type": "server_error", "code": code}
    return MockReply(
        (MockChunk(json.dumps({"error": error})),), status, {"Content-Type": "application/json", "Retry-After": "30"}
    )


WAITED = MockReply(
    (MockChunk(': \n\ndata: {"error":{"message":"No.","type":"server_error","code":"queue_timeout"}}\n\n'), DONE)
)


@BOTH
@table(("count", "asked"), [(1, 1), (3, 3)])
def test_where_all_queues_are_full_the_client_is_told_so_at_once(
    tmp_path: Path, request_body: dict[str, Any], count: int, asked: int
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, *([_busy(429, "queue_full")] for _ in range(count))) as serving:
            serving.come(*range(count))
            for more in (asked, asked + 1):  # while they cool, the first to be free again is asked, and nobody waits
                heard = await serving.ask(request_body)
                assert (heard.status, heard.error["code"]) == (429, "queue_full")
                assert "retry-after: 30" in heard.head.lower()
                assert sum(serving.asked) == more

    run(work())


@BOTH
@table("count", [1, 3])
def test_who_has_waited_long_enough_is_not_sent_to_wait_elsewhere(
    tmp_path: Path, request_body: dict[str, Any], count: int
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, *([_busy(503, "queue_timeout")] for _ in range(count))) as serving:
            serving.come(*range(count))
            for number in range(1, 8):  # more than open a breaker
                heard = await serving.ask(request_body)
                assert (heard.status, heard.error["code"]) == (503, "queue_timeout")
                assert "retry-after: 30" in heard.head.lower()
                assert sum(serving.asked) == number
                assert all(upstream.is_available for upstream in serving.server.upstreams.all[:count])

    run(work())


def test_the_same_is_so_where_an_event_says_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, [WAITED], [WAITED]) as serving:
            serving.come(0, 1)
            heard = await serving.ask(STREAM)
            assert (heard.status, heard.error["code"]) == (503, "queue_timeout")
            assert sum(serving.asked) == 1
            assert all(upstream.is_available for upstream in serving.server.upstreams.all)

    run(work())


@BOTH
def test_one_that_has_no_room_sends_to_another_and_is_well(tmp_path: Path, request_body: dict[str, Any]) -> None:
    async def work() -> None:
        full = _busy(503, "server_busy")
        async with cluster(tmp_path, [full], [WHOLE], each={"sticky": "conversation"}) as serving:
            serving.come(0, 1)
            for word in "abcdefgh":
                body = {**request_body, "messages": [{"role": "user", "content": word}]}
                assert (await serving.ask(body)).status == 200
            assert serving.asked[0]
            assert all(upstream.is_available for upstream in serving.server.upstreams.all)

    run(work())


def test_who_loses_a_replica_whose_place_is_taken_asks_the_new_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, [MockReply((MockChunk(after_s=0.1),), raw=True, end="reset")]) as serving:
            serving.come(0)
            asking = asyncio.create_task(serving.ask(CHAT))
            await serving.until_asked(1)
            async with await _server(WHOLE) as fresh:
                serving.server.upstreams.all[0].assign(Address(host="127.0.0.1", port=fresh.port, prefix="/v1"))
                assert (await asking).status == 200

    run(work())


@BOTH
@table(
    ("queue", "early_s", "status", "code"),
    [(0, 60.0, 429, "queue_full"), (5, 60.0, 503, "queue_timeout"), (5, 0.01, 503, "queue_timeout")],
    ids=["full", "waited", "waited with signs of life"],
)
def test_an_engine_of_ours_that_is_busy_says_so_through_the_front(
    tmp_path: Path, request_body: dict[str, Any], queue: int, early_s: float, status: int, code: str
) -> None:
    async def work() -> None:
        model = {"parallel": 1, "queue": queue, "queue_wait_s": 0.2}
        async with (
            scripted(tmp_path, MockReply((ROLE, HELLO), end="hang"), model=model, early_s=early_s) as engine,
            cluster(tmp_path, [WHOLE]) as serving,
        ):
            serving.server.upstreams.all[0].assign(Address(host="127.0.0.1", port=engine.server.port, prefix="/v1"))
            reader, writer = await serving.send(STREAM)
            await reader.readuntil(b"Hello")
            heard = await serving.ask(request_body)
            assert (heard.status, heard.error["code"]) == (status, code)
            assert "retry-after: " in heard.head.lower()
            assert serving.has_somebody == (status == 503)  # who is full is left alone for as long as he says
            assert serving.server.upstreams.all[0].is_healthy
            writer.close()

    run(work())


FULL = _busy(429, "queue_full")
MIXED: dict[str, tuple[MockReply, MockReply | None, set[int]]] = {
    "nobody is at the place": (WHOLE, None, {200}),
    "the upstream is dead": (DEAD, WHOLE, {200}),
    "who is at the place dies": (WHOLE, DEAD, {200}),
    "the upstream is full": (FULL, WHOLE, {200}),
    "both are full": (FULL, FULL, {429}),
    "one dies and one is full": (FULL, DEAD, {429, 502}),  # whoever was asked last
    "nobody is there and the upstream is dead": (DEAD, None, {502}),
}


@table("case", MIXED)
def test_a_plain_upstream_and_a_place_stand_in_for_each_other_and_nobody_waits(tmp_path: Path, case: str) -> None:
    async def work() -> None:
        plain, placed, statuses = MIXED[case]
        async with cluster(tmp_path, [plain], [placed or WHOLE], first={"is_place": False}) as serving:
            if placed is not None:
                serving.come(1)
            for _ in range(4):  # whoever is asked first
                assert (await serving.ask(CHAT)).status in statuses
                if DEAD in (plain, placed) and placed is not None:
                    serving.come(1)

    run(work())


def test_plain_upstreams_are_asked_twice_as_ever(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, *([DEAD] for _ in range(6))) as serving:
            heard = await serving.ask(CHAT)
            assert heard.status in (502, 503)
            assert sum(serving.asked) == 2
            assert all(upstream.is_healthy for upstream in serving.server.upstreams.all)

    run(work())


def test_a_request_that_is_wrong_is_asked_once(tmp_path: Path) -> None:
    async def work() -> None:
        wrong = refusal(400, {"error": {"message": "no such thing", "param": "x"}})
        async with cluster(tmp_path, [wrong], [wrong]) as serving:
            serving.come(0, 1)
            assert (await serving.ask(CHAT)).status == 400
            assert sum(serving.asked) == 1
            assert all(upstream.is_available for upstream in serving.server.upstreams.all)

    run(work())


def test_a_stream_that_has_begun_ends_with_one_error_event(tmp_path: Path) -> None:
    async def work() -> None:
        dying = MockReply((ROLE, HELLO, MockChunk(after_s=0.05)), end="reset")
        async with cluster(tmp_path, [dying], [dying]) as serving:
            serving.come(0, 1)
            heard = await serving.ask(STREAM)
            assert (heard.status, heard.findings()) == (200, [])
            assert heard.error["message"]
            assert heard.body.endswith(b"data: [DONE]\n\n")
            assert sum(serving.asked) == 1
            assert sorted(upstream.is_available for upstream in serving.server.upstreams.all) == [False, True]

    run(work())


def test_one_that_is_in_doubt_comes_back_by_a_look_at_its_health(tmp_path: Path) -> None:
    async def work() -> None:
        each = {"health": "/health", "probe_s": 0.05}
        async with cluster(tmp_path, [ENDING, WHOLE], each=each) as serving:
            serving.come(0)
            heard = await serving.ask(CHAT)
            assert heard.status == 200
            assert serving.asked == [2]

    run(work())


def test_who_was_at_a_place_tells_nothing_of_who_is_there_now(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, [MockReply((ROLE, HELLO, MockChunk(after_s=0.1)), end="reset")]) as serving:
            serving.come(0)
            asking = asyncio.create_task(serving.ask(STREAM))
            await serving.upstreams[0].wait_until(lambda: len(serving.upstreams[0].requests) == 1)
            async with await _server(WHOLE) as fresh:
                place = serving.server.upstreams.all[0]
                place.assign(Address(host="127.0.0.1", port=fresh.port, prefix="/v1"))
                assert (await asking).error["message"]
                assert place.is_available
                assert (await serving.ask(CHAT)).status == 200

    run(work())


def test_a_conversation_stays_with_a_place_and_moves_when_nobody_is_there(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, [WHOLE], [WHOLE], [WHOLE], each={"sticky": "conversation"}) as serving:
            serving.come(0, 1, 2)
            for _ in range(5):
                assert (await serving.ask(CHAT)).status == 200
            (home,) = [number for number, count in enumerate(serving.asked) if count]
            assert serving.asked[home] == 5
            serving.leave(home)
            for _ in range(5):
                assert (await serving.ask(CHAT)).status == 200
            assert sorted(serving.asked) == [0, 5, 5]
            serving.come(home)
            assert (await serving.ask(CHAT)).status == 200
            assert serving.asked[home] == 6

    run(work())


def test_requests_are_spread_over_those_who_are_there(tmp_path: Path) -> None:
    async def work() -> None:
        slow = MockReply((ROLE, HELLO), end="hang")
        async with cluster(tmp_path, [slow], [slow], [slow]) as serving:
            serving.come(0, 2)
            writers = []
            for number in range(1, 7):
                writers.append((await serving.send(STREAM))[1])
                await serving.until_asked(number)
            assert serving.asked == [3, 0, 3]
            for writer in writers:
                writer.close()
            await until(lambda: not serving.running)

    run(work())


def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, [WHOLE]) as serving:
            _, writer = await serving.send(STREAM)
            await until_waiting(serving)
            writer.close()
            await until(lambda: not serving.answers())
            assert serving.running == 0
            serving.come(0)
            assert (await serving.ask(CHAT)).status == 200
            assert serving.asked == [1]

    run(work())


def test_what_the_server_shows_of_places(tmp_path: Path) -> None:
    async def work() -> None:
        each = {"health": "/health", "probe_s": 0.05}
        async with cluster(tmp_path, [WHOLE], [WHOLE], each=each) as serving:
            assert (await serving.get("/health")).status == 503
            assert [model["id"] for model in (await serving.get("/v1/models")).json["data"]] == ["m"]
            serving.come(1)
            await until(lambda: serving.server.upstreams.all[1].is_ready)
            assert (await serving.get("/health")).status == 200
            assert (await serving.ask(CHAT)).status == 200
            figures = (await serving.get("/metrics")).body.decode()
            assert 'welldone_upstream_up{upstream="a"} 0.0' in figures
            assert 'welldone_upstream_up{upstream="b"} 1.0' in figures
            shown = (await serving.get("/page/api/state")).json["upstreams"]
            assert [one["is_healthy"] for one in shown] == [False, True]
            assert "nobody.invalid" not in json.dumps(shown)
            assert "sk-r" not in json.dumps(shown)
            serving.leave(1)
            assert (await serving.get("/health")).status == 503
            shown = (await serving.get("/page/api/state")).json["upstreams"]
            assert shown[1]["trouble"] == "nobody is at this place of the cluster now"
            assert [model["id"] for model in (await serving.get("/v1/models")).json["data"]] == ["m"]

    run(work())


COUNTED = json_reply({"object": "response.input_tokens", "input_tokens": 7})
PASSED = {
    "/v1/embeddings": ({"model": "m", "input": "a"}, json_reply({"data": []}), "/v1/embeddings"),
    "/tokenize": ({"model": "m", "content": "a"}, json_reply({"tokens": [1]}), "/tokenize"),
    "/v1/messages/count_tokens": (CHAT, COUNTED, "/v1/chat/completions/input_tokens"),
    "/v1/responses/input_tokens": ({"model": "m", "input": "a"}, COUNTED, "/v1/chat/completions/input_tokens"),
    "/v1/chat/completions/input_tokens": (CHAT, COUNTED, "/v1/chat/completions/input_tokens"),
}


@table("path", PASSED)
def test_all_that_is_no_chat_finds_who_is_there_too(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        body, reply, there = PASSED[path]
        async with cluster(tmp_path, [DEAD], [DEAD], [reply]) as serving:
            serving.come(0, 1)
            asking = asyncio.create_task(serving.ask(body, path))
            await until(lambda: not serving.has_somebody)
            assert not asking.done()
            serving.come(2)
            heard = await asking
            assert heard.status == 200, heard.raw
            assert serving.upstreams[2].requests[0].path == there
            if reply is COUNTED:
                assert heard.json["input_tokens"] == 7
            assert serving.asked == [1, 1, 1]

    run(work())


def test_a_server_of_ours_as_an_upstream_counts_too(tmp_path: Path) -> None:
    async def work() -> None:
        models = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "welldone"}]}
        script = MockScript(posts=(COUNTED,), models=models)
        async with gateway(tmp_path, script, each={"probe_s": 15.0}) as serving:
            await serving.server.upstreams.wait_until_probed(LONG_S)
            asked = {**CHAT, "max_tokens": 1}
            assert (await serving.ask(asked, "/v1/messages/count_tokens")).json == {"input_tokens": 7}

    run(work())


def test_a_local_model_counts_a_chat_as_llama_cpp_does(tmp_path: Path) -> None:
    async def work() -> None:
        async with scripted(tmp_path, COUNTED) as serving:
            heard = await serving.ask(CHAT, "/v1/chat/completions/input_tokens")
            assert heard.json == {"object": "response.input_tokens", "input_tokens": 7}
            (seen,) = await serving.seen()
            assert seen["path"] == "/v1/chat/completions/input_tokens"
            wrong = await serving.ask({"model": "m"}, "/v1/chat/completions/input_tokens")
            assert (wrong.status, wrong.error["param"]) == (400, "messages")

    run(work())


@table("messages", [None, 5, "Hi", [1]])
@table(("owner", "status"), [("vllm", 400), ("somebody", 404)])
def test_what_is_no_chat_is_not_counted(tmp_path: Path, messages: object, owner: str, status: int) -> None:
    async def work() -> None:
        models = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": owner}]}
        async with gateway(tmp_path, MockScript(models=models), each={"probe_s": 15.0}) as serving:
            await serving.server.upstreams.wait_until_probed(LONG_S)
            heard = await serving.ask({"model": "m", "messages": messages}, "/v1/chat/completions/input_tokens")
            assert heard.status == status
            assert serving.asked == [0]

    run(work())


def test_no_key_of_a_client_is_told_to_who_counts(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, [COUNTED]) as serving:
            serving.come(0)
            body = {**CHAT, "api_key": "sk-of-the-client", "base_url": "http://elsewhere"}
            assert (await serving.ask(body, "/v1/chat/completions/input_tokens")).status == 200
            (seen,) = serving.upstreams[0].requests
            assert json.loads(seen.body) == {**CHAT, "model": "m"}

    run(work())
