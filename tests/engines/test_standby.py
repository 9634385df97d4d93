"""Standby engine: it takes over when the first engine fails, and ends with it."""

import asyncio
import os
import signal
from pathlib import Path

from tests.engines.supervisors import READY, READY_SERVER, command, python, run, running_supervisor, short_answer
from welldone.config.model import ModelSettings
from welldone.engines.process import EngineProcess
from welldone.engines.supervisor import EngineSupervisor, LocalModel, ModelState

ONLY_ONCE = (
    "import os, sys, pathlib\npath = pathlib.Path(sys.argv[2])\npath.exists() and sys.exit(3)\npath.touch()\n"
    f"os.execv(sys.executable, [*{READY_SERVER!r}, '--socket', sys.argv[1]])"
)
"""An engine that starts as long as there is no file, and makes it."""


async def no_pause(_: float) -> None:
    """Start the standby engine at once."""


async def _standby(supervisor: EngineSupervisor) -> EngineProcess:
    """Wait for the standby engine of the only model."""
    while (process := supervisor.models[0].standby.process) is None:
        await supervisor.wait_for_change(1.0)
    return process


async def _kill(model: LocalModel) -> None:
    """Kill the first engine, and wait until this is known."""
    process = model.process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    await process.wait_for_exit()


def test_a_standby_engine_takes_over_and_gets_a_successor(tiny_model: Path) -> None:
    async def main() -> None:
        settings = ModelSettings(name="m", file=tiny_model, standby=True)
        async with running_supervisor(settings, pause=no_pause) as supervisor:
            model = supervisor.models[0]
            answer = await short_answer(await model.ensure_ready())
            for restarts in (1, 2):
                standby = await _standby(supervisor)
                assert standby is not model.process
                await _kill(model)
                assert await short_answer(await model.ensure_ready()) == answer
                assert model.process is standby
                assert model.restarts == restarts

    run(main())


def test_a_model_without_the_setting_has_no_standby_engine() -> None:
    async def main() -> None:
        async with running_supervisor(command(*READY)) as supervisor:
            model = supervisor.models[0]
            await model.ensure_ready()
            assert model.standby.process is None
            assert await model.standby.take() is None

    run(main())


def test_a_standby_engine_that_is_still_starting_is_waited_for() -> None:
    async def main() -> None:
        starting, may_start = asyncio.Event(), asyncio.Event()

        async def pause(_: float) -> None:
            starting.set()
            await may_start.wait()

        async with running_supervisor(command(*READY, standby=True), pause=pause) as supervisor:
            model = supervisor.models[0]
            first = await model.ensure_ready()
            await starting.wait()
            await _kill(model)
            after = asyncio.create_task(model.ensure_ready())
            may_start.set()
            assert await after != first
            assert model.restarts == 1

    run(main())


def test_a_standby_engine_that_has_ended_is_replaced_at_the_takeover() -> None:
    async def main() -> None:
        async with running_supervisor(command(*READY, standby=True), pause=no_pause) as supervisor:
            model = supervisor.models[0]
            await model.ensure_ready()
            standby = await _standby(supervisor)
            os.kill(standby.pid, signal.SIGKILL)
            await standby.wait_for_exit()
            assert model.standby.process is None
            await _kill(model)
            await model.ensure_ready()
            assert model.process is not standby
            assert model.state is ModelState.READY

    run(main())


def test_a_model_whose_standby_engine_cannot_start_is_served_without_it(tmp_path: Path) -> None:
    marker, warnings = tmp_path / "started", list[str]()

    async def main() -> None:
        settings = python(ONLY_ONCE, str(marker), standby=True)
        async with running_supervisor(
            settings, pause=no_pause, on_warning=lambda _, text: warnings.append(text)
        ) as supervisor:
            model = supervisor.models[0]
            await model.ensure_ready()
            await supervisor.wait_for_change(60.0)  # the start of the standby engine has failed
            assert model.standby.process is None
            assert model.state is ModelState.READY
            marker.unlink()
            await _kill(model)
            await model.ensure_ready()
            assert "the standby engine is not available: it ended with code 3 before it was ready" in warnings

    run(main())


def test_an_unloaded_model_has_no_standby_engine_left() -> None:
    async def main() -> None:
        async with running_supervisor(command(*READY, standby=True), pause=no_pause) as supervisor:
            model = supervisor.models[0]
            await model.ensure_ready()
            standby = await _standby(supervisor)
            await model.unload()
            assert not standby.is_running
            await model.ensure_ready()  # again, while the next standby engine starts
            await model.unload()
            assert model.standby.process is None

    run(main())
