"""A command's own word on how it is: before it is ready, and when a request was silent for too long."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.engines.fleets import SCRIPTED, command, fleet_of, run
from tests.table import table
from welldone.config.model import COMMAND_LOAD_TIMEOUT_S, COMMAND_SLOTS, LOAD_TIMEOUT_S, ModelSettings
from welldone.engines.errors import EngineError
from welldone.mock.script import MockScript


def _words(folder: Path, *health: int) -> tuple[str, ...]:
    file = folder / "script.json"
    file.write_bytes(msgspec.json.encode(MockScript(health=health)))
    return (*SCRIPTED, "--script", str(file))


def test_a_command_that_lists_its_models_and_is_not_well_is_not_ready(tmp_path: Path) -> None:
    async def main() -> None:
        async with fleet_of(command(*_words(tmp_path, 503), start_limit_s=1.5)) as fleet:
            with pytest.raises(EngineError, match=r"was not ready within 1\.5 s"):
                await fleet.models[0].ensure_ready()

    run(main())


def test_a_command_is_ready_when_it_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with fleet_of(command(*_words(tmp_path, 503, 503, 200))) as fleet:
            await fleet.models[0].ensure_ready()

    run(main())


@table(("status", "restarts"), [(503, 1), (500, 1), (200, 0), (404, 0)])
def test_a_command_that_is_silent_is_ended_only_where_it_says_that_it_is_not_well(
    tmp_path: Path, status: int, restarts: int
) -> None:
    async def main() -> None:
        async with fleet_of(command(*_words(tmp_path, 200, status, 200))) as fleet:
            model = fleet.models[0]
            await model.ensure_ready()
            before = asyncio.all_tasks()
            model.check_liveness(1.0)
            (doubt,) = asyncio.all_tasks() - before
            await doubt
            await model.ensure_ready()
            assert model.restarts == restarts

    run(main())


def test_a_command_has_more_time_and_more_places_than_a_file() -> None:
    file, engine = ModelSettings(name="m", file=Path("m.gguf")), command("vllm", "{port}")
    assert (file.load_timeout_s, engine.load_timeout_s) == (LOAD_TIMEOUT_S, COMMAND_LOAD_TIMEOUT_S)
    assert command("vllm", "{port}", start_limit_s=5.0).load_timeout_s == 5.0
    assert (file.slots, engine.slots) == (4, COMMAND_SLOTS)
    assert command("vllm", "{port}", parallel=1024).slots == 1024
