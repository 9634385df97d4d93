"""Messages between the supervisor and a worker: a whole configuration arrives as it was sent."""

import asyncio
import socket
from pathlib import Path

from tests.http.aio import run
from welldone.cli.worker_channel import Applied, Finished, ReloadRequest, SupervisorEnd, WorkerEnd
from welldone.config.model import ModelSettings
from welldone.config.server import Config, EngineScale, KeySettings, LimitsSettings, ScaleSettings, ServeSettings
from welldone.config.upstream import UpstreamSettings
from welldone.server.reload import NewConfig, ReloadResult

CONFIG = Config(
    server=ServeSettings(config=Path("/etc/welldone.toml"), idle_s=5.0, api_keys=("a-key-0123456789",)),
    models=(
        ModelSettings(name="m", file=Path("m.gguf"), lora=("a", "b"), defaults={"seed": 1, "temperature": 0.5}),
        ModelSettings(name="c", command=("run", "{port}"), environment={"A": "1"}),
    ),
    upstreams=(UpstreamSettings(name="u", url="http://u/v1", headers={"x": "y"}, ca_file=Path("ca.pem")),),
    routes={"r": ("m@u",)},
    keys=(KeySettings(name="k", key="another-key", models=("*",)),),
    limits=LimitsSettings(store="redis://HOST:6379/0"),
    scale=ScaleSettings(engines={"m": EngineScale()}),
    model_locations={"m": "welldone.toml: models.m"},
)


def test_a_configuration_is_applied_and_requests_are_answered() -> None:
    result = ReloadResult(outcome="applied", changes=("routes: added r",))

    async def body() -> None:
        own, others = socket.socketpair()
        supervisor = SupervisorEnd(own)
        applied: list[NewConfig] = []
        results: list[ReloadResult] = []

        def apply(new: NewConfig) -> None:
            applied.append(new)
            if len(applied) > 1:
                raise ValueError("no")

        async def received() -> object:
            while not (messages := supervisor.receive()):  # noqa: ASYNC110 - the supervisor has no event loop
                await asyncio.sleep(0)
            (message,) = messages
            return message

        worker = WorkerEnd(others, apply, results.append)
        await worker.start()
        requested = asyncio.create_task(worker.request_reload())
        assert await received() == ReloadRequest(0)
        new = NewConfig(config=CONFIG, keys=("x",), places=("k", ""))
        for problem in (None, "no"):
            supervisor.send(new)
            assert await received() == Applied(problem)
        assert applied == [new, new]
        supervisor.send(Finished(result, (0, 7)))
        assert await requested == result
        assert results == [result]
        worker.close()
        supervisor.close()
        await asyncio.sleep(0)  # the loop closes the socket in its next iteration

    run(body())


def test_a_worker_that_does_not_read_does_not_block_the_supervisor() -> None:
    own, others = socket.socketpair()
    with others:
        supervisor = SupervisorEnd(own)
        for _ in range(2000):
            supervisor.send(NewConfig(config=CONFIG, keys=()))
        assert supervisor.has_unsent
    supervisor.flush()
    assert not supervisor.has_unsent  # the worker has ended
    supervisor.close()
