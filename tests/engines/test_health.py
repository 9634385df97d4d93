"""Health of a command: before it is ready, and after a request that was silent for too long."""

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from tests.engines.supervisors import command, run, running_supervisor
from tests.table import table
from welldone.config.model import COMMAND_LOAD_TIMEOUT_S, COMMAND_SLOTS, LOAD_TIMEOUT_S, ModelSettings
from welldone.engines.errors import EngineError
from welldone.mock.script import MockScript


def _mock_command(folder: Path, *health: int) -> tuple[str, ...]:
    file = folder / "script.json"
    file.write_bytes(msgspec.json.encode(MockScript(health=health)))
    return (sys.executable, "-m", "welldone.mock.server", "--socket", "{socket}", "--script", str(file))


def test_a_command_that_lists_models_but_is_unhealthy_is_not_ready(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_supervisor(command(*_mock_command(tmp_path, 503), start_limit_s=1.5)) as supervisor:
            with pytest.raises(EngineError, match=r"was not ready within 1\.5 s"):
                await supervisor.models[0].ensure_ready()

    run(main())


def test_a_command_is_ready_when_it_reports_healthy(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_supervisor(command(*_mock_command(tmp_path, 503, 503, 200))) as supervisor:
            await supervisor.models[0].ensure_ready()

    run(main())


@table(("status", "restarts"), [(503, 1), (500, 1), (200, 0), (404, 0)])
def test_a_silent_command_is_stopped_only_if_it_reports_unhealthy(tmp_path: Path, status: int, restarts: int) -> None:
    async def main() -> None:
        async with running_supervisor(command(*_mock_command(tmp_path, 200, status, 200))) as supervisor:
            model = supervisor.models[0]
            await model.ensure_ready()
            tasks_before = asyncio.all_tasks()
            model.check_liveness(1.0)
            (liveness_task,) = asyncio.all_tasks() - tasks_before
            await liveness_task
            await model.ensure_ready()
            assert model.restarts == restarts

    run(main())


def test_a_command_has_a_longer_load_timeout_and_more_slots_than_a_file() -> None:
    file, engine = ModelSettings(name="m", file=Path("m.gguf")), command("vllm", "{port}")
    assert (file.load_timeout_s, engine.load_timeout_s) == (LOAD_TIMEOUT_S, COMMAND_LOAD_TIMEOUT_S)
    assert command("vllm", "{port}", start_limit_s=5.0).load_timeout_s == 5.0
    assert (file.slots, engine.slots) == (4, COMMAND_SLOTS)
    assert command("vllm", "{port}", parallel=1024).slots == 1024
