"""Planned ends: engines that are unloaded or restarted, and servers that stop, hand over the streams that they run."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.server.running_server import RecordedReply, RunningServer, started
from welldone.config.model import ModelSettings
from welldone.config.server import Config, ServeSettings
from welldone.config.upstream import UpstreamSettings
from welldone.engines import cores
from welldone.engines.cores import Waiting
from welldone.engines.supervisor import LocalModel, ModelState
from welldone.gateway.registry import DynamicUpstreams
from welldone.http.address import Address
from welldone.server.server import Server

pytestmark = pytest.mark.tier2

QUESTION = {"model": "m", "messages": [{"role": "user", "content": "Count from 1 to 40."}], "temperature": 0}
"""The next token is never a close decision, see `tests/live/test_continuation.py`."""
TOKENS = 40
STREAM: dict[str, Any] = {**QUESTION, "stream": True, "max_tokens": TOKENS, "stream_options": {"include_usage": True}}


def engine(model: Path, name: str = "m", **more: Any) -> ModelSettings:  # noqa: ANN401 - settings of a model
    return ModelSettings(name=name, file=model, threads=1, ctx_size=2048, **more)


@asynccontextmanager
async def serving(*models: ModelSettings, **settings: Any) -> AsyncIterator[RunningServer]:  # noqa: ANN401
    """A server with real engines."""
    config = Config(server=ServeSettings(port=0, **settings), models=models)
    async with started(Server(config, keys=(), folder=Path.cwd())) as running:
        yield running


class OpenStream:
    """A stream of which some text has been received."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
        self._reader, self._writer, self._request = reader, writer, request
        self._received = b""

    @classmethod
    async def begin(cls, server: RunningServer, request: dict[str, Any] = STREAM) -> "OpenStream":
        stream = cls(*await server.send(request), request)
        while stream._received.count(b'"content":') < 8:
            stream._received += await stream._reader.readuntil(b"\n\n")
        return stream

    async def end(self) -> RecordedReply:
        received = self._received + await self._reader.read()
        self._writer.close()
        return RecordedReply(received, self._request)


def text_of(reply: RecordedReply) -> str:
    lines = [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: {")]
    choices = [choice for line in lines for choice in line.get("choices", ())]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def waiting_of(model: LocalModel) -> Waiting | None:
    return None if model.process is None else model.process.plan.waiting


async def metric(server: RunningServer, way: str, outcome: str) -> bool:
    line = f'welldone_continuations_total{{outcome="{outcome}",way="{way}"}} 1.0'
    return line in (await server.get("/metrics")).body.decode()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.01)


async def restart(server: RunningServer) -> None:
    assert (await server.post({"model": "m", "force": True}, "/models/load")).status == 200


async def unload(server: RunningServer) -> None:
    """Unload the engine, and wait until its stream has lost it."""
    (task,) = server.answers()
    assert (await server.post({"model": "m", "force": True}, "/models/unload")).status == 200
    await until(lambda: task.continuations.ways == ["none"])
    assert server.server.supervisor.models[0].state is ModelState.UNLOADED


async def unload_and_load(server: RunningServer) -> None:
    await unload(server)
    assert (await server.post({"model": "m"}, "/models/load")).status == 200


async def unload_and_ask(server: RunningServer) -> None:
    await unload(server)
    assert (await server.post({**QUESTION, "max_tokens": 2})).status == 200


@pytest.mark.parametrize("act", [restart, unload_and_load, unload_and_ask])
def test_a_stream_goes_on_when_its_engine_is_loaded_again(
    default_model: Path, act: Callable[[RunningServer], Awaitable[None]]
) -> None:
    async def main() -> None:
        async with serving(engine(default_model)) as server:
            expected = text_of(await server.post(STREAM))
            stream = await OpenStream.begin(server)
            (task,) = server.answers()
            await act(server)
            reply = await stream.end()
            assert reply.findings() == []
            assert text_of(reply) == expected
            assert task.continuations.ways in (["replay"], ["prefill"])

    run(main())


class Contention:
    """Other programs need the CPUs as soon as a test says so. An engine spins until then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_begun = False
        self._waited_s = 0.0
        monkeypatch.setattr(cores, "CHECK_S", 0.01)
        monkeypatch.setattr(cores, "waiting_times", self._waiting_times)
        monkeypatch.setattr("welldone.engines.plan.thread_waiting", self._thread_waiting)

    def _waiting_times(self, _: int) -> dict[str, float]:
        self._waited_s += 60.0 * self.has_begun
        return {"1": self._waited_s}

    def _thread_waiting(self, *_: object, has_contention: bool, **__: object) -> Waiting:
        return Waiting.SLEEP if has_contention else Waiting.SPIN


def test_a_stream_goes_on_when_its_engine_must_not_spin_any_more(
    default_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        found = Contention(monkeypatch)
        async with serving(engine(default_model)) as server:
            model = server.server.supervisor.models[0]
            expected = text_of(await server.post(STREAM))
            assert waiting_of(model) is Waiting.SPIN
            while waiting_of(model) is not Waiting.SLEEP:  # a fast engine may end its answer before it is replaced
                stream = await OpenStream.begin(server)
                found.has_begun = True
                reply = await stream.end()
                assert reply.findings() == []
                assert text_of(reply) == expected
                await model.ensure_ready()
            assert model.restarts == 0  # these are crashes

    run(main())


def test_an_engine_is_not_replaced_before_the_end_of_a_stream_that_would_fail(
    default_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = {**STREAM, "temperature": 0.001, "logprobs": True}  # the same text, but neither a replay nor a prefill

    async def main() -> None:
        found = Contention(monkeypatch)
        async with serving(engine(default_model)) as server:
            model = server.server.supervisor.models[0]
            while waiting_of(model) is not Waiting.SLEEP:  # a fast engine may end its answer before the last check
                stream = await OpenStream.begin(server, request)
                (task,) = server.answers()
                found.has_begun = True
                reply = await stream.end()
                assert reply.findings() == []
                assert task.continuations.ways == []
                await model.ensure_ready()

    run(main())


def test_an_answer_that_was_continued_once_is_not_interrupted(default_model: Path) -> None:
    async def main() -> None:
        async with serving(engine(default_model)) as server:
            model = server.server.supervisor.models[0]
            stream = await OpenStream.begin(server, {**STREAM, "max_tokens": 200})
            assert model.stall_watch.survives_restart
            model.restart()
            await until(lambda: not model.stall_watch.survives_restart)
            assert (await stream.end()).findings() == []
            assert model.stall_watch.survives_restart

    run(main())


def test_the_streams_of_an_engine_that_stays_unloaded_end_with_an_error(default_model: Path) -> None:
    async def main() -> None:
        async with serving(engine(default_model)) as server:
            stream = await OpenStream.begin(server)
            assert (await server.post({"model": "m", "force": True}, "/models/unload")).status == 200
            reply = await stream.end()
            assert reply.findings() == []
            assert reply.error["code"] == "model_unavailable"
            assert server.server.supervisor.models[0].state is ModelState.UNLOADED
            assert await metric(server, "none", "failed")

    run(main())


@pytest.mark.parametrize("settings", [{"idle_unload_s": 0.01}, {}], ids=["idle", "swapped"])
def test_an_engine_with_a_stream_is_not_unloaded_by_itself(
    default_model: Path, tiny_model: Path, settings: dict[str, Any]
) -> None:
    async def main() -> None:
        models = (engine(default_model, **settings), engine(tiny_model, "other"))
        async with serving(*models, max_loaded=1) as server:
            stream = await OpenStream.begin(server)
            other = asyncio.create_task(server.post({**QUESTION, "model": "other", "max_tokens": 2}))
            await until(lambda: server.server.supervisor.models[1].state is ModelState.LOADING)
            assert text_of(await stream.end())
            assert (await other).status == 200  # then the idle model makes room
            assert server.server.supervisor.models[0].restarts == 0

    run(main())


@asynccontextmanager
async def replicas(model: Path, drain_s: float) -> AsyncIterator[tuple[RunningServer, list[Server]]]:
    """A front, and engine replicas as on a cluster."""
    async with AsyncExitStack() as stack:
        servers = []
        for _ in range(2):
            running = await stack.enter_async_context(serving(engine(model), drain_s=drain_s))
            servers.append(running.server)
        upstreams = tuple(
            UpstreamSettings(name=name, url="http://nobody.invalid/v1", models=("m",), is_dynamic=True)
            for name in ("m/1", "m/2")
        )
        front = Server(Config(server=ServeSettings(port=0), models=(), upstreams=upstreams), keys=(), folder=Path.cwd())
        await front.start()
        stack.push_async_callback(front.stop)
        yield RunningServer(front), servers


@pytest.mark.parametrize("is_late", [False, True], ids=["another replica", "a replica that starts later"])
def test_a_replica_that_stops_hands_its_streams_over(default_model: Path, is_late: bool) -> None:
    async def main() -> None:
        async with replicas(default_model, drain_s=0.1) as (front, servers):
            dynamic = DynamicUpstreams(front.server.upstreams.all)
            addresses = {
                str(server.port): Address(host="127.0.0.1", port=server.port, prefix="/v1") for server in servers
            }
            first, second = addresses
            dynamic.update_replicas({first: addresses[first]})
            expected = text_of(await front.post(STREAM))
            stream = await OpenStream.begin(front)
            (task,) = front.answers()
            waiting = asyncio.create_task(front.post({**QUESTION, "max_tokens": TOKENS}))
            await until(lambda: len(servers[0].routes.answers) == 2)
            if not is_late:
                dynamic.update_replicas(addresses)
            # Ray takes a replica out of the list when it begins to stop.
            dynamic.update_replicas({} if is_late else {second: addresses[second]})
            assert not await servers[0].stop()
            dynamic.update_replicas({second: addresses[second]})
            reply = await stream.end()
            assert reply.findings() == []
            assert text_of(reply) == expected
            assert task.continuations.ways in (["replay"], ["prefill"])
            assert (await waiting).json["choices"][0]["message"]["content"] == expected

    run(main())
