"""A gateway with dynamic upstreams: replicas join, leave and die."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.http.aio import run
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import CHAT, DONE, HELLO, ROLE, STOP, USAGE, json_error, run_server
from tests.table import table
from welldone.http.address import Address
from welldone.mock.script import MockChunk, MockReply, MockScript, json_reply
from welldone.mock.server import MockServer

STREAM = {**CHAT, "stream": True}
WHOLE = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
DEAD = MockReply(raw=True, end="reset")
ENDING = json_error(503, {"error": {"message": "The server is shutting down.", "code": "shutting_down"}})
BOTH = table("request_body", [STREAM, CHAT], ids=["stream", "whole"])
LONG_S = 60.0


class Cluster(Gateway):
    """A gateway with dynamic upstreams."""

    def add(self, *numbers: int) -> None:
        """Assign replicas to the upstreams."""
        for number in numbers:
            port = self.upstreams[number].port
            self.server.upstreams.all[number].assign(Address(host="127.0.0.1", port=port, key="sk-r", prefix="/v1"))

    def remove(self, number: int) -> None:
        """Remove a replica."""
        self.server.upstreams.all[number].assign(None)

    @property
    def has_healthy_replica(self) -> bool:
        """Whether a replica is available."""
        return any(upstream.is_available for upstream in self.server.upstreams.all)

    async def until_requests(self, count: int) -> None:
        """Wait until all replicas together have received `count` requests."""
        await until(lambda: sum(self.post_counts) == count)

    @property
    def running(self) -> int:
        """Requests in flight or queued at the upstreams."""
        return sum(upstream.running for upstream in self.server.upstreams.all)


@asynccontextmanager
async def cluster(
    folder: Path,
    *scripts: MockScript | Sequence[MockReply],
    each: dict[str, Any] | None = None,
    **more: Any,  # noqa: ANN401 - each its own
) -> AsyncIterator[Cluster]:
    """A gateway with one unassigned dynamic upstream per script."""
    settings = {"models": ("m",), "is_dynamic": True, "n": "native", "queue_wait_s": LONG_S, **(each or {})}
    async with gateway(folder, *scripts, each=settings, **more) as serving:
        yield Cluster(serving.server, serving.upstreams)


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition, checked in each loop iteration."""
    while not is_so():  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0)


async def until_waiting(serving: Cluster) -> None:
    """Wait until a request waits for a replica."""
    await until(lambda: bool(serving.answers()))
    for _ in range(20):  # loop iterations before the request waits
        await asyncio.sleep(0)


@BOTH
def test_a_request_waits_for_a_replica_and_is_answered_when_one_joins(
    tmp_path: Path, request_body: dict[str, Any]
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, [WHOLE], [WHOLE]) as serving:
            asking = asyncio.create_task(serving.post(request_body))
            await until_waiting(serving)
            assert not asking.done()
            serving.add(1)
            reply = await asking
            assert (reply.status, reply.findings(), serving.post_counts) == (200, [], [0, 1])
            assert b"Hello" in reply.body
            assert serving.upstreams[1].requests[0].headers["authorization"] == "Bearer sk-r"

    run(work())


def test_a_request_that_waits_too_long_gets_retry_after(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, [WHOLE], each={"queue_wait_s": 0.05}) as serving:
            reply = await serving.post(CHAT)
            assert reply.status == 503
            assert reply.error["code"] == "model_unavailable"
            assert "retry-after: 1" in reply.head.lower()
            assert reply.findings() == []
            assert serving.running == 0

    run(work())


@BOTH
@table("dying", [DEAD, ENDING, MockReply(raw=True, end="cut")], ids=["reset", "503", "closed"])
@table("count", [1, 2, 3])
def test_when_replicas_die_before_the_first_chunk_the_next_one_answers(
    tmp_path: Path, request_body: dict[str, Any], dying: MockReply, count: int
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, *([dying] for _ in range(count)), each={"weight": 1000.0}) as serving:
            serving.add(*range(count))
            asking = asyncio.create_task(serving.post(request_body))
            await serving.until_requests(count)
            await until(lambda: not serving.has_healthy_replica)
            assert not asking.done()
            # Ray has started another replica, which is assigned to the upstream of the first.
            async with await _server(WHOLE) as fresh:
                serving.server.upstreams.all[0].assign(Address(host="127.0.0.1", port=fresh.port, prefix="/v1"))
                reply = await asking
            assert (reply.status, reply.findings()) == (200, [])
            assert b"Hello" in reply.body
            assert serving.post_counts == [1] * count

    run(work())


async def _server(*posts: MockReply) -> MockServer:
    return await MockServer(MockScript(posts=posts)).listen()


def test_after_four_attempts_the_request_fails(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, *([DEAD] for _ in range(6))) as serving:
            serving.add(*range(6))
            reply = await serving.post(CHAT)
            assert reply.status in (502, 503)
            assert reply.findings() == []
            assert sum(serving.post_counts) == 4

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
@table(("count", "attempts"), [(1, 1), (3, 3)])
def test_when_all_queues_are_full_the_client_gets_the_error_at_once(
    tmp_path: Path, request_body: dict[str, Any], count: int, attempts: int
) -> None:
    async def work() -> None:
        async with cluster(tmp_path, *([_busy(429, "queue_full")] for _ in range(count))) as serving:
            serving.add(*range(count))
            for total in (attempts, attempts + 1):  # during the cooldown one upstream is tried, without waiting
                reply = await serving.post(request_body)
                assert (reply.status, reply.error["code"]) == (429, "queue_full")
                assert "retry-after: 30" in reply.head.lower()
                assert sum(serving.post_counts) == total

    run(work())


@BOTH
@table("count", [1, 3])
def test_a_queue_timeout_is_not_retried_elsewhere(tmp_path: Path, request_body: dict[str, Any], count: int) -> None:
    async def work() -> None:
        async with cluster(tmp_path, *([_busy(503, "queue_timeout")] for _ in range(count))) as serving:
            serving.add(*range(count))
            for number in range(1, 8):  # more than the threshold of the breaker
                reply = await serving.post(request_body)
                assert (reply.status, reply.error["code"]) == (503, "queue_timeout")
                assert "retry-after: 30" in reply.head.lower()
                assert sum(serving.post_counts) == number
                assert all(upstream.is_available for upstream in serving.server.upstreams.all[:count])

    run(work())


def test_a_queue_timeout_in_an_error_event_is_not_retried(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, [WAITED], [WAITED]) as serving:
            serving.add(0, 1)
            reply = await serving.post(STREAM)
            assert (reply.status, reply.error["code"]) == (503, "queue_timeout")
            assert sum(serving.post_counts) == 1
            assert all(upstream.is_available for upstream in serving.server.upstreams.all)

    run(work())


@BOTH
def test_a_full_replica_is_skipped_and_stays_healthy(tmp_path: Path, request_body: dict[str, Any]) -> None:
    async def work() -> None:
        full = _busy(503, "server_busy")
        async with cluster(tmp_path, [full], [WHOLE], each={"sticky": "conversation"}) as serving:
            serving.add(0, 1)
            for word in "abcdefgh":
                body = {**request_body, "messages": [{"role": "user", "content": word}]}
                assert (await serving.post(body)).status == 200
            assert serving.post_counts[0]
            assert all(upstream.is_available for upstream in serving.server.upstreams.all)

    run(work())


def test_a_request_retries_at_the_replica_that_took_over(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, [MockReply((MockChunk(after_s=0.1),), raw=True, end="reset")]) as serving:
            serving.add(0)
            asking = asyncio.create_task(serving.post(CHAT))
            await serving.until_requests(1)
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
def test_a_busy_engine_is_reported_through_the_gateway(
    tmp_path: Path, request_body: dict[str, Any], queue: int, early_s: float, status: int, code: str
) -> None:
    async def work() -> None:
        model = {"parallel": 1, "queue": queue, "queue_wait_s": 0.2}
        async with (
            run_server(tmp_path, MockReply((ROLE, HELLO), end="hang"), model=model, early_s=early_s) as engine,
            cluster(tmp_path, [WHOLE]) as serving,
        ):
            serving.server.upstreams.all[0].assign(Address(host="127.0.0.1", port=engine.server.port, prefix="/v1"))
            reader, writer = await serving.send(STREAM)
            await reader.readuntil(b"Hello")
            reply = await serving.post(request_body)
            assert (reply.status, reply.error["code"]) == (status, code)
            assert "retry-after: " in reply.head.lower()
            assert serving.has_healthy_replica == (status == 503)  # a full replica cools down for its Retry-After
            assert serving.server.upstreams.all[0].is_healthy
            writer.close()

    run(work())


FULL = _busy(429, "queue_full")
MIXED: dict[str, tuple[MockReply, MockReply | None, set[int]]] = {
    "no replica": (WHOLE, None, {200}),
    "the upstream is dead": (DEAD, WHOLE, {200}),
    "the replica dies": (WHOLE, DEAD, {200}),
    "the upstream is full": (FULL, WHOLE, {200}),
    "both are full": (FULL, FULL, {429}),
    "one dies and one is full": (FULL, DEAD, {429, 502}),  # the last attempt decides
    "no replica and a dead upstream": (DEAD, None, {502}),
}


@table("case", MIXED)
def test_static_and_dynamic_upstreams_replace_each_other_without_waiting(tmp_path: Path, case: str) -> None:
    async def work() -> None:
        plain, placed, statuses = MIXED[case]
        async with cluster(tmp_path, [plain], [placed or WHOLE], first={"is_dynamic": False}) as serving:
            if placed is not None:
                serving.add(1)
            for _ in range(4):  # whichever is tried first
                assert (await serving.post(CHAT)).status in statuses
                if DEAD in (plain, placed) and placed is not None:
                    serving.add(1)

    run(work())


def test_static_upstreams_get_two_attempts(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, *([DEAD] for _ in range(6))) as serving:
            reply = await serving.post(CHAT)
            assert reply.status in (502, 503)
            assert sum(serving.post_counts) == 2
            assert all(upstream.is_healthy for upstream in serving.server.upstreams.all)

    run(work())


def test_an_invalid_request_is_sent_once(tmp_path: Path) -> None:
    async def work() -> None:
        wrong = json_error(400, {"error": {"message": "no such thing", "param": "x"}})
        async with cluster(tmp_path, [wrong], [wrong]) as serving:
            serving.add(0, 1)
            assert (await serving.post(CHAT)).status == 400
            assert sum(serving.post_counts) == 1
            assert all(upstream.is_available for upstream in serving.server.upstreams.all)

    run(work())


def test_a_stream_that_has_begun_ends_with_one_error_event(tmp_path: Path) -> None:
    async def work() -> None:
        dying = MockReply((ROLE, HELLO, MockChunk(after_s=0.05)), end="reset")
        async with cluster(tmp_path, [dying], [dying], continuation="off") as serving:
            serving.add(0, 1)
            reply = await serving.post(STREAM)
            assert (reply.status, reply.findings()) == (200, [])
            assert reply.error["message"]
            assert reply.body.endswith(b"data: [DONE]\n\n")
            assert sum(serving.post_counts) == 1
            assert sorted(upstream.is_available for upstream in serving.server.upstreams.all) == [False, True]

    run(work())


def test_an_unhealthy_replica_recovers_by_a_health_probe(tmp_path: Path) -> None:
    async def work() -> None:
        each = {"health": "/health", "probe_s": 0.05}
        async with cluster(tmp_path, [ENDING, WHOLE], each=each) as serving:
            serving.add(0)
            reply = await serving.post(CHAT)
            assert reply.status == 200
            assert serving.post_counts == [2]

    run(work())


def test_the_failure_of_a_previous_replica_does_not_affect_the_new_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, [MockReply((ROLE, HELLO, MockChunk(after_s=0.1)), end="reset")]) as serving:
            serving.add(0)
            asking = asyncio.create_task(serving.post(STREAM))
            await serving.upstreams[0].wait_until(lambda: len(serving.upstreams[0].requests) == 1)
            async with await _server(WHOLE) as fresh:
                upstream = serving.server.upstreams.all[0]
                upstream.assign(Address(host="127.0.0.1", port=fresh.port, prefix="/v1"))
                assert (await asking).error["message"]
                assert upstream.is_available
                assert (await serving.post(CHAT)).status == 200

    run(work())


def test_a_conversation_sticks_to_an_upstream_and_moves_when_it_is_unassigned(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, [WHOLE], [WHOLE], [WHOLE], each={"sticky": "conversation"}) as serving:
            serving.add(0, 1, 2)
            for _ in range(5):
                assert (await serving.post(CHAT)).status == 200
            (home,) = [number for number, count in enumerate(serving.post_counts) if count]
            assert serving.post_counts[home] == 5
            serving.remove(home)
            for _ in range(5):
                assert (await serving.post(CHAT)).status == 200
            assert sorted(serving.post_counts) == [0, 5, 5]
            serving.add(home)
            assert (await serving.post(CHAT)).status == 200
            assert serving.post_counts[home] == 6

    run(work())


def test_requests_are_distributed_over_the_running_replicas(tmp_path: Path) -> None:
    async def work() -> None:
        slow = MockReply((ROLE, HELLO), end="hang")
        async with cluster(tmp_path, [slow], [slow], [slow]) as serving:
            serving.add(0, 2)
            writers = []
            for number in range(1, 7):
                writers.append((await serving.send(STREAM))[1])
                await serving.until_requests(number)
            assert serving.post_counts == [3, 0, 3]
            for writer in writers:
                writer.close()
            await until(lambda: not serving.running)

    run(work())


def test_a_client_that_disconnects_while_waiting_is_cleaned_up(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, [WHOLE]) as serving:
            _, writer = await serving.send(STREAM)
            await until_waiting(serving)
            writer.close()
            await until(lambda: not serving.answers())
            assert serving.running == 0
            serving.add(0)
            assert (await serving.post(CHAT)).status == 200
            assert serving.post_counts == [1]

    run(work())


def test_metrics_and_state_of_dynamic_upstreams(tmp_path: Path) -> None:
    async def work() -> None:
        each = {"health": "/health", "probe_s": 0.05}
        async with cluster(tmp_path, [WHOLE], [WHOLE], each=each) as serving:
            assert (await serving.get("/health")).status == 503
            assert b"\nwelldone_ready 0.0\n" in (await serving.get("/metrics")).body
            assert [model["id"] for model in (await serving.get("/v1/models")).json["data"]] == ["m"]
            serving.add(1)
            await until(lambda: serving.server.upstreams.all[1].is_ready)
            assert (await serving.get("/health")).status == 200
            assert (await serving.post(CHAT)).status == 200
            figures = (await serving.get("/metrics")).body.decode()
            assert "\nwelldone_ready 1.0\n" in figures
            assert 'welldone_upstream_up{upstream="a"} 0.0' in figures
            assert 'welldone_upstream_up{upstream="b"} 1.0' in figures
            shown = (await serving.get("/page/api/state")).json["upstreams"]
            assert [one["is_healthy"] for one in shown] == [False, True]
            assert "nobody.invalid" not in json.dumps(shown)
            assert "sk-r" not in json.dumps(shown)
            serving.remove(1)
            assert (await serving.get("/health")).status == 503
            shown = (await serving.get("/page/api/state")).json["upstreams"]
            assert shown[1]["trouble"] == "no replica of the cluster is assigned to this upstream"
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
def test_other_endpoints_reach_a_running_replica(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        body, upstream_reply, upstream_path = PASSED[path]
        async with cluster(tmp_path, [DEAD], [DEAD], [upstream_reply]) as serving:
            serving.add(0, 1)
            asking = asyncio.create_task(serving.post(body, path))
            await until(lambda: not serving.has_healthy_replica)
            assert not asking.done()
            serving.add(2)
            reply = await asking
            assert reply.status == 200, reply.raw
            assert serving.upstreams[2].requests[0].path == upstream_path
            if upstream_reply is COUNTED:
                assert reply.json["input_tokens"] == 7
            assert serving.post_counts == [1, 1, 1]

    run(work())


def test_a_welldone_upstream_counts_tokens(tmp_path: Path) -> None:
    async def work() -> None:
        models = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "welldone"}]}
        script = MockScript(posts=(COUNTED,), models=models)
        async with gateway(tmp_path, script, each={"probe_s": 15.0}) as serving:
            await serving.server.upstreams.wait_until_probed(LONG_S)
            request = {**CHAT, "max_tokens": 1}
            assert (await serving.post(request, "/v1/messages/count_tokens")).json == {"input_tokens": 7}

    run(work())


def test_a_local_model_counts_tokens_as_llama_cpp(tmp_path: Path) -> None:
    async def work() -> None:
        async with run_server(tmp_path, COUNTED) as serving:
            reply = await serving.post(CHAT, "/v1/chat/completions/input_tokens")
            assert reply.json == {"object": "response.input_tokens", "input_tokens": 7}
            (engine_request,) = await serving.engine_requests()
            assert engine_request["path"] == "/v1/chat/completions/input_tokens"
            wrong = await serving.post({"model": "m"}, "/v1/chat/completions/input_tokens")
            assert (wrong.status, wrong.error["param"]) == (400, "messages")

    run(work())


@table("messages", [None, 5, "Hi", [1]])
@table(("owner", "status"), [("vllm", 400), ("somebody", 404)])
def test_an_invalid_chat_is_not_counted(tmp_path: Path, messages: object, owner: str, status: int) -> None:
    async def work() -> None:
        models = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": owner}]}
        async with gateway(tmp_path, MockScript(models=models), each={"probe_s": 15.0}) as serving:
            await serving.server.upstreams.wait_until_probed(LONG_S)
            reply = await serving.post({"model": "m", "messages": messages}, "/v1/chat/completions/input_tokens")
            assert reply.status == status
            assert serving.post_counts == [0]

    run(work())


def test_client_keys_are_not_forwarded_to_the_token_counter(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, [COUNTED]) as serving:
            serving.add(0)
            body = {**CHAT, "api_key": "sk-of-the-client", "base_url": "http://elsewhere"}
            assert (await serving.post(body, "/v1/chat/completions/input_tokens")).status == 200
            (upstream_request,) = serving.upstreams[0].requests
            assert json.loads(upstream_request.body) == {**CHAT, "model": "m"}

    run(work())
