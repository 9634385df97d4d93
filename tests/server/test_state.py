"""Server state for the page: complete, summed over all workers, and limited to what the client may see."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.http.aio import run
from tests.server.running_gateway import gateway
from tests.server.running_server import (
    CHAT,
    DONE,
    HELLO,
    ROLE,
    SITE,
    STOP,
    USAGE,
    RecordedReply,
    RunningServer,
    json_error,
    run_server,
)
from welldone import __version__
from welldone.config.model import ModelSettings
from welldone.config.server import Config, KeySettings, ServeSettings
from welldone.config.upstream import UpstreamSettings
from welldone.engines.errors import EngineError
from welldone.engines.supervisor import ModelState
from welldone.http.shared_memory import SharedNumbers, WorkerLoads
from welldone.mock.script import MockChunk, MockReply, MockScript
from welldone.mock.server import MockServer
from welldone.server.access.limits import BucketLevel, UsageTotals
from welldone.server.inspector import state
from welldone.server.inspector.state import ServerState
from welldone.server.observe.counters import WindowCounts
from welldone.server.observe.workers import Worker
from welldone.server.server import Server

GOOD = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
BAD = MockReply((ROLE, HELLO, STOP, USAGE))  # no [DONE]
ENDLESS = MockReply((ROLE, HELLO, MockChunk(HELLO.text, after_s=1000.0), STOP, DONE))
STREAM = {**CHAT, "stream": True}
PLAIN, CI, OPS = "wd-plain-key-012345", "wd-named-key-012345", "wd-other-key-012345"
NAMED = (
    KeySettings(name="ci", key=CI, requests_per_minute=10, models=("small*",)),
    KeySettings(name="ops", key=OPS, admin=True),
)


def _auth(key: str) -> str:
    return f"Authorization: Bearer {key}\r\n"


async def _state(serving: RunningServer, key: str = "") -> ServerState:
    response = await serving.get("/page/api/state", _auth(key) if key else "")
    assert response.status == 200, response.body
    return msgspec.json.decode(response.body, type=ServerState)


async def _recording(serving: RunningServer, request_id: str, headers: str = "") -> RecordedReply:
    return await serving.get(f"/page/api/recordings/{request_id}", headers)


FAILURES = {
    "500": json_error(500, {"error": {"message": "oops"}}),
    "403": json_error(403, {"error": {"message": "no"}}),
    "lost": MockReply((ROLE, HELLO), end="cut"),
    "an error event": MockReply((ROLE, HELLO, MockChunk('data: {"error":{"message":"no","code":500}}\n\n'))),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES.keys())
def test_an_upstream_that_lists_its_models_and_fails_every_request_is_failing(
    tmp_path: Path, failure: MockReply
) -> None:
    refused = json_error(400, {"error": {"message": "max_tokens is too large", "type": "invalid_request_error"}})
    replies = [failure, failure, refused, failure, GOOD]

    async def main() -> None:
        async with gateway(tmp_path, replies, each={"probe_s": 60.0}) as serving:
            failing = []
            for _ in replies:
                await serving.post(STREAM)
                (upstream,) = (await _state(serving)).upstreams
                assert upstream.is_healthy
                failing.append(upstream.failing is not None)
                page = (await serving.get("/metrics")).body.decode()
                assert f'welldone_upstream_failing{{upstream="a"}} {float(failing[-1])}' in page
        assert failing == [False, False, False, True, False]

    run(main())


def test_the_state_of_a_gateway_has_its_requests_and_upstreams(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, [GOOD], each={"limit": 7}) as serving:
            before = await _state(serving)
            assert (before.recent, before.upstreams[0].ttft_s.count, before.upstreams[0].ttft_s.p50) == ([], 0, None)
            response = await serving.post(STREAM, headers="x-request-id: my-own\r\n")
            assert response.status == 200
            await serving.get("/health")
            state = await _state(serving)
        assert (state.version, state.workers, state.is_recording, state.is_draining) == (__version__, 1, False, False)
        assert (state.is_admin, state.principal) == (True, "anonymous")
        assert state.now > 10**9
        assert state.uptime_s >= 0
        assert state.models == []
        upstream = state.upstreams[0]
        assert (upstream.name, upstream.is_healthy, upstream.breaker, upstream.limit) == ("a", True, "closed", 7)
        assert (upstream.running, upstream.waiting, upstream.models) == (0, 0, ["*"])
        assert (upstream.attempts, upstream.ttft_s.count) == ({"200": 1}, 1)
        assert upstream.window == WindowCounts(requests=1)
        assert upstream.ttft_s.p50 is not None
        row = state.recent[0]
        assert [one.request_id for one in state.recent] == ["my-own"]
        assert (row.method, row.path, row.status, row.model) == ("POST", "/v1/chat/completions", 200, "m")
        assert (row.prompt_tokens, row.completion_tokens, row.upstream, row.is_recorded) == (3, 1, "a", False)
        assert [(key.name, key.requests, key.spent) for key in state.keys] == [("anonymous", None, UsageTotals(1, 4))]

    run(main())


def test_repairs_of_an_upstream_are_counted_by_rule(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, [BAD]) as serving:
            for _ in range(2):
                await serving.post(STREAM)
            state = await _state(serving)
        found = {finding.rule: finding.count for finding in state.upstreams[0].findings}
        assert {(one.rule, one.severity) for one in state.upstreams[0].findings} == {("end-done-sent", "breaks")}
        assert state.upstreams[0].window.breaking == state.upstreams[0].window.repaired == found["end-done-sent"]
        assert found["end-done-sent"] == 2
        assert "end-done-sent" in state.recent[0].repaired

    run(main())


def test_running_and_queued_requests_of_an_upstream_are_shown(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, [ENDLESS], each={"limit": 1, "queue": 1}, drain_s=0) as serving:
            reader, writer = await serving.send(STREAM)
            await reader.readuntil(b"Hello")
            _, waiting = await serving.send(STREAM)
            while (state := await _state(serving)).upstreams[0].waiting == 0:
                pass
            assert (state.upstreams[0].running, state.upstreams[0].waiting) == (1, 1)
            assert state.recent == []
            writer.close()
            waiting.close()

    run(main())


def test_a_local_model_shows_its_state_and_its_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with run_server(tmp_path, ENDLESS, model={"parallel": 2, "queue": 5}, drain_s=0) as serving:
            idle = (await _state(serving)).models[0]
            reader, writer = await serving.send(STREAM)
            await reader.readuntil(b"Hello")
            busy = (await _state(serving)).models[0]
            writer.close()
        assert (idle.id, idle.state, idle.error, idle.restarts) == ("m", ModelState.READY, None, 0)
        assert (idle.slots, idle.queue, idle.running, idle.waiting, idle.mean_wait_s) == (2, 5, 0, 0, None)
        assert "completion" in idle.capabilities
        assert idle.idle_s is not None
        assert (busy.running, busy.mean_wait_s, busy.idle_s) == (1, 0.0, None)

    run(main())


def test_a_real_model_shows_its_size(tiny_model: Path, tmp_path: Path) -> None:
    async def main() -> None:
        models = (ModelSettings(name="m", file=tiny_model),)
        async with _server(Config(server=ServeSettings(port=0), models=models), tmp_path) as serving:
            await serving.server.supervisor.models[0].ensure_ready()
            model = (await _state(serving)).models[0]
        assert model.context
        assert model.parameters
        assert model.size_bytes
        assert model.slots > 0

    run(main())


def test_a_model_that_cannot_be_loaded_has_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        models = (ModelSettings(name="m", file=tmp_path / "none.gguf"),)
        async with _server(Config(server=ServeSettings(port=0), models=models), tmp_path) as serving:
            with pytest.raises(EngineError):
                await serving.server.supervisor.models[0].ensure_ready()
            model = (await _state(serving)).models[0]
        assert model.state is ModelState.FAILED
        assert model.error is not None
        assert "m cannot be loaded" in model.error

    run(main())


@asynccontextmanager
async def _server(config: Config, folder: Path, **more: Any) -> AsyncIterator[RunningServer]:  # noqa: ANN401 - Server's own
    server = Server(config, folder=folder, **{"keys": (), "site": SITE, **more})
    await server.start()
    try:
        yield RunningServer(server)
    finally:
        await server.stop()


@pytest.mark.parametrize("key", [PLAIN, OPS])
def test_an_admin_sees_all_keys_and_all_requests(key: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(
            tmp_path, [GOOD], each={"models": ("small", "*")}, keys=[PLAIN], config={"keys": NAMED}
        ) as serving:
            await serving.post({**CHAT, "model": "small"}, headers=_auth(CI))
            await serving.post(headers=_auth(OPS))
            state = await _state(serving, key)
        assert state.is_admin
        assert [row.principal for row in state.recent] == ["ops", "ci"]
        assert [one.name for one in state.upstreams] == ["a"]
        usages = {usage.name: usage for usage in state.keys}
        assert set(usages) == {"ci", "ops"}
        assert (usages["ci"].requests, usages["ci"].spent) == (BucketLevel(10, 9), UsageTotals(1, 4))

    run(main())


def test_a_client_without_admin_rights_sees_only_its_own_data(tmp_path: Path) -> None:
    async def main() -> None:
        command = (sys.executable, "-c", "raise SystemExit")
        models = tuple(ModelSettings(name=name, command=command) for name in ("small-1", "large"))
        more = {"keys": NAMED, "models": models}
        async with gateway(tmp_path, [GOOD], keys=[PLAIN], config=more) as serving:
            await serving.post({**CHAT, "model": "small"}, headers=_auth(CI))
            await serving.post(headers=_auth(OPS))
            state = await _state(serving, CI)
            assert len((await _state(serving, OPS)).models) == 2
        assert (state.is_admin, state.principal) == (False, "ci")
        assert [row.principal for row in state.recent] == ["ci"]
        assert [usage.name for usage in state.keys] == ["ci"]
        assert state.upstreams == []
        assert [model.id for model in state.models] == ["small-1"]

    run(main())


def test_without_a_key_the_state_is_rejected(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, [GOOD], keys=[PLAIN]) as serving:
            assert (await serving.get("/page/api/state")).status == 401

    run(main())


# Recordings.


async def _wait_until_recorded(serving: RunningServer, request_id: str) -> None:
    """Wait until the trace of a request is on disk."""
    while not any(row.request_id == request_id and row.is_recorded for row in (await _state(serving)).recent):
        pass


@pytest.mark.parametrize(
    ("chunk", "field"),
    [(HELLO, "body_text"), (MockChunk("", base64=b"data: \xff"), "body_base64")],
    ids=["text", "bytes"],
)
def test_a_recording_comes_as_one_record_with_its_body(chunk: MockChunk, field: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, [MockReply((ROLE, chunk, STOP, DONE))], record=tmp_path / "traces") as serving:
            await serving.post(STREAM, headers="x-request-id: one\r\n")
            await _wait_until_recorded(serving, "one")
            response = await _recording(serving, "one")
            assert (await _state(serving)).is_recording
        record = response.json
        assert (record["request_id"], record["server"], record["request"]["stream"]) == ("one", "a", True)
        assert set(record) & {"body", "body_text", "body_base64"} == {field}
        assert record["pieces"]

    run(main())


@pytest.mark.parametrize("request_id", ["none", "..", "%2e%2e%2fsecret", "..%2fsecret", ""])
def test_an_unknown_recording_is_not_found(request_id: str, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "secret.body").write_text("canary")

    async def main() -> None:
        async with gateway(tmp_path, [GOOD], record=tmp_path / "traces") as serving:
            response = await _recording(serving, request_id)
            assert (response.status, b"canary" in response.raw) == (404, False)

    run(main())


def test_without_recording_there_are_no_recordings(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, [GOOD]) as serving:
            await serving.post(STREAM, headers="x-request-id: one\r\n")
            assert (await _recording(serving, "one")).status == 404

    run(main())


def test_a_recording_that_is_too_long_or_deleted_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        folder = tmp_path / "traces"
        async with gateway(tmp_path, [GOOD], record=folder) as serving:
            await serving.post(STREAM, headers="x-request-id: one\r\n")
            await _wait_until_recorded(serving, "one")
            monkeypatch.setattr(state, "RECORDING_LIMIT_BYTES", 100)
            long = await _recording(serving, "one")
            assert (long.status, long.error["code"]) == (413, "recording_too_long")
            name = next(folder.glob("*.json")).stem
            assert name in long.error["message"]
            assert str(tmp_path) not in long.error["message"]
            (folder / f"{name}.body").unlink()
            assert (await _recording(serving, "one")).status == 404

    run(main())


@pytest.mark.parametrize(("key", "status"), [(CI, 403), (OPS, 200), (PLAIN, 200), ("wrong", 401)])
def test_recordings_are_for_admins(key: str, status: int, tmp_path: Path) -> None:
    async def main() -> None:
        more = {"keys": NAMED}
        async with gateway(tmp_path, [GOOD], keys=[PLAIN], config=more, record=tmp_path / "traces") as serving:
            await serving.post(STREAM, headers=f"x-request-id: one\r\n{_auth(OPS)}")
            while not (await _state(serving, PLAIN)).recent[0].is_recorded:
                pass
            assert (await _recording(serving, "one", _auth(key))).status == status

    run(main())


# Several workers.


@pytest.fixture
def numbers() -> Iterator[SharedNumbers]:
    """Numbers shared by the workers."""
    made = SharedNumbers(10)
    yield made
    made.close()


@asynccontextmanager
async def _two_workers(config: Config, folder: Path, numbers: SharedNumbers) -> AsyncIterator[list[RunningServer]]:
    """Two workers on different ports, so that a test can choose one."""

    def worker(number: int) -> Worker:
        return Worker(
            number=number,
            count=2,
            sockets=(),
            loads=WorkerLoads(4),
            bucket_storage=numbers,
            folder=folder,
            on_ready=lambda: None,
        )

    async with (
        _server(config, folder, keys=[PLAIN], worker=worker(1)) as one,
        _server(config, folder, keys=[PLAIN], worker=worker(2)) as other,
    ):
        yield [one, other]


def test_two_workers_show_the_same_server(short_path: Path, tmp_path: Path, numbers: SharedNumbers) -> None:
    async def main() -> None:
        async with await MockServer(MockScript(posts=(BAD,))).listen() as upstream:
            url = f"http://127.0.0.1:{upstream.port}/v1"
            settings = ServeSettings(port=0, workers=2, requests_per_minute=100, record=tmp_path / "traces")
            lab = UpstreamSettings(name="lab", url=url, models=("small", "*"), probe_s=0.0, limit=3)
            config = Config(server=settings, models=(), upstreams=(lab,), keys=NAMED)
            async with _two_workers(config, short_path, numbers) as workers:
                await workers[0].post(STREAM, headers=f"x-request-id: first\r\n{_auth(PLAIN)}")
                await workers[1].post({**STREAM, "model": "small"}, headers=f"x-request-id: second\r\n{_auth(CI)}")
                await workers[1].post(STREAM, headers=f"x-request-id: third\r\n{_auth(OPS)}")
                for serving in (*workers, *workers):
                    _check_sums(await _state(serving, PLAIN))
                own = await _state(workers[0], CI)
                assert [row.request_id for row in own.recent] == ["second"]
                assert [(usage.name, usage.spent) for usage in own.keys] == [("ci", UsageTotals(1, 4))]
                await _check_recording(workers)

    run(main())


def _check_sums(state: ServerState) -> None:
    assert state.workers == 2
    assert [row.request_id for row in state.recent] == ["third", "second", "first"]
    upstream = state.upstreams[0]
    assert (upstream.attempts, upstream.limit, upstream.ttft_s.count) == ({"200": 3}, 6, 3)
    assert {finding.rule: finding.count for finding in upstream.findings}["end-done-sent"] == 3
    assert upstream.window == WindowCounts(requests=3, repaired=3, breaking=3)
    usages = {usage.name: usage for usage in state.keys}
    assert {name: usage.spent for name, usage in usages.items() if usage.spent.requests} == {
        "ci": UsageTotals(1, 4),
        "ops": UsageTotals(1, 4),
        state.principal: UsageTotals(1, 4),
    }
    assert usages["ci"].requests is not None
    assert usages["ci"].requests.limit == 10


async def _check_recording(workers: list[RunningServer]) -> None:
    """Each worker finds recordings of the other."""
    while not all(row.is_recorded for row in (await _state(workers[0], PLAIN)).recent):
        pass
    for serving in workers:
        response = await _recording(serving, "third", _auth(PLAIN))
        assert (response.status, response.json["request_id"]) == (200, "third")
        assert (await _recording(serving, "none", _auth(PLAIN))).status == 404
