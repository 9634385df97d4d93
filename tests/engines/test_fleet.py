"""Models on demand: one load for many, restarts, idle unloading, and room for few."""

import asyncio
import os
import shutil
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines.fleets import SCRIPTED, command, fleet_of, get, python, run, say_hello
from tests.table import table
from welldone.config.model import ModelSettings
from welldone.engines.errors import EngineError
from welldone.engines.supervisor import MAX_FAILED_STARTS, EngineSupervisor, LocalModel, ModelState, make_socket_folder

ENDLESS = "import time\ntime.sleep(1000)"


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class History:
    """What a fleet tells of its models, and a way to wait for it."""

    def __init__(self) -> None:
        self.states: list[tuple[str, ModelState]] = []
        self._changed = asyncio.Event()

    def __call__(self, model: LocalModel) -> None:
        self.states.append((model.name, model.state))
        self._changed.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._changed.clear()
            await self._changed.wait()

    def of(self, name: str = "m") -> list[ModelState]:
        return [state for model, state in self.states if model == name]


async def no_pause(_: float) -> None:
    """For tests that do not want to wait."""


def state_of(model: LocalModel) -> ModelState:
    """The state as it is now: the type checker would remember an older one."""
    return model.state


def kill(model: LocalModel) -> None:
    assert model.process is not None
    os.kill(model.process.pid, signal.SIGKILL)


def test_ten_who_wait_get_one_load() -> None:
    async def main() -> None:
        history = History()
        async with fleet_of(command(*SCRIPTED), on_change=history) as fleet:
            addresses = await asyncio.gather(*(fleet.models[0].ensure_ready() for _ in range(10)))
            assert len(set(addresses)) == 1
            assert history.of() == [ModelState.LOADING, ModelState.READY]

    run(main())


def test_who_leaves_does_not_stop_the_load() -> None:
    async def main() -> None:
        async with fleet_of(command(*SCRIPTED), command(*SCRIPTED, name="other")) as fleet:
            model = fleet.models[0]
            assert model.state is ModelState.UNLOADED
            impatient = asyncio.create_task(model.ensure_ready())
            patient = asyncio.create_task(model.ensure_ready())
            await asyncio.sleep(0)
            impatient.cancel()
            address = await patient
            assert impatient.cancelled()
            assert (await get(address, "/health")).status == 200
            assert model.running == 0
            assert fleet.models[1].state is ModelState.UNLOADED

    run(main())


def test_an_engine_that_is_killed_comes_back_and_answers(tiny_model: Path) -> None:
    async def main() -> None:
        history = History()
        async with fleet_of(ModelSettings(name="m", file=tiny_model), on_change=history) as fleet:
            model = fleet.models[0]
            before = await model.ensure_ready()
            said = await say_hello(before)
            kill(model)
            await model.wait_for_exit_notice()  # as who finds nobody at the address does
            after = await model.ensure_ready()
            assert after != before
            assert await say_hello(after) == said
            assert history.of() == [ModelState.LOADING, ModelState.READY, ModelState.RESTARTING, ModelState.READY]
            assert model.restarts == 1
            assert model.last_error is not None
            assert "was ended by SIGKILL" in model.last_error.message

    run(main())


def test_a_check_of_a_healthy_engine_does_no_harm() -> None:
    async def main() -> None:
        async with fleet_of(command(*SCRIPTED)) as fleet:
            model = fleet.models[0]
            await model.wait_for_exit_notice()
            address = await model.ensure_ready()
            await model.wait_for_exit_notice()
            assert await model.ensure_ready() == address
            assert model.state is ModelState.READY

    run(main())


def test_an_engine_that_dies_again_and_again_is_left_alone_until_somebody_asks() -> None:
    clock, pauses = Clock(), list[float]()

    async def pause(seconds: float) -> None:
        pauses.append(round(seconds, 3))
        clock.now += seconds

    async def main() -> None:
        async with fleet_of(python("raise SystemExit('no luck')"), clock=clock, pause=pause) as fleet:
            model = fleet.models[0]
            with pytest.raises(EngineError, match="the model m cannot be loaded: ended with code 1") as caught:
                await model.ensure_ready()
            assert caught.value.details == ("no luck",)
            assert caught.value.retry_after_s == pytest.approx(3.2)
            assert model.state is ModelState.FAILED
            assert pauses == [0.2, 0.4, 0.8, 1.6]
            assert len(pauses) + 1 == MAX_FAILED_STARTS
            with pytest.raises(EngineError) as again:
                await model.ensure_ready()  # at once: nothing is started
            assert again.value.retry_after_s == pytest.approx(3.2)
            clock.now += 4
            with pytest.raises(EngineError) as third:
                await model.ensure_ready()
            assert third.value.retry_after_s == pytest.approx(6.4)
            assert len(pauses) + 1 == MAX_FAILED_STARTS

    run(main())


def test_an_engine_that_heals_while_it_is_tried_is_ready(tmp_path: Path) -> None:
    program = (
        f"import os, sys, pathlib\npath = pathlib.Path({str(tmp_path / 'tries')!r})\n"
        "tries = len(path.read_text()) if path.exists() else 0\npath.write_text('x' * (tries + 1))\n"
        "tries >= 2 or sys.exit(1)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'welldone.mock.server', '--socket', sys.argv[1]])"
    )

    async def main() -> None:
        history = History()
        async with fleet_of(python(program), pause=no_pause, on_change=history) as fleet:
            await fleet.models[0].ensure_ready()
            assert history.of() == [ModelState.LOADING, ModelState.RESTARTING, ModelState.RESTARTING, ModelState.READY]
            assert fleet.models[0].restarts == 0

    run(main())


@table(
    ("settings", "says"),
    [
        (ModelSettings(name="m", file=Path("default")), "welldone pull default"),
        (ModelSettings(name="m"), "welldone pull default"),
        (ModelSettings(name="m", file=Path("some/where/lost.gguf")), "there is no file lost.gguf"),
        (ModelSettings(name="m", command=("no-place",)), "neither {port} nor {socket}"),
    ],
)
def test_what_cannot_be_started_is_said_at_once(settings: ModelSettings, says: str) -> None:
    async def main() -> None:
        async with fleet_of(settings) as fleet:
            with pytest.raises(EngineError) as caught:
                await fleet.models[0].ensure_ready()
            assert says in caught.value.message
            assert "some/where" not in caught.value.message
            assert caught.value.is_permanent

    run(main())


def test_a_start_that_takes_too_long_is_given_up() -> None:
    async def main() -> None:
        async with fleet_of(python(ENDLESS, start_limit_s=0.3)) as fleet:
            with pytest.raises(EngineError, match="was not ready within"):
                await fleet.models[0].ensure_ready()
            assert fleet.models[0].state is ModelState.FAILED

    run(main())


def test_an_idle_model_is_unloaded_and_comes_back() -> None:
    clock = Clock()

    async def main() -> None:
        async with fleet_of(command(*SCRIPTED, idle_unload_s=60), clock=clock) as fleet:
            model = fleet.models[0]
            before = await model.ensure_ready()
            with model.in_use():
                clock.now += 100
                assert fleet.unload_idle() is None
                assert state_of(model) is ModelState.READY
            clock.now += 59
            assert fleet.unload_idle() == pytest.approx(1)
            assert state_of(model) is ModelState.READY
            clock.now += 1
            assert fleet.unload_idle() is None
            assert state_of(model) is ModelState.UNLOADED
            await model.unload()
            assert before.socket is not None
            assert not Path(before.socket).exists()  # noqa: ASYNC240 - nobody else is in this loop
            assert (await get(await model.ensure_ready(), "/health")).status == 200

    run(main())


def test_the_fleet_unloads_idle_models_by_itself() -> None:
    async def main() -> None:
        history = History()
        async with fleet_of(command(*SCRIPTED, idle_unload_s=0.01), on_change=history) as fleet:
            with fleet.models[0].in_use():
                await fleet.models[0].ensure_ready()
            await history.until(lambda: fleet.models[0].state is ModelState.UNLOADED)
            await fleet.models[0].ensure_ready()
            await history.until(lambda: fleet.models[0].state is ModelState.UNLOADED)

    run(main())


def test_a_model_that_is_asked_for_while_it_ends_is_loaded_after_that() -> None:
    async def main() -> None:
        async with fleet_of(command(*SCRIPTED)) as fleet:
            model = fleet.models[0]
            before = await model.ensure_ready()
            model.start_unload()
            after = await model.ensure_ready()
            assert after != before
            assert (await get(after, "/health")).status == 200

    run(main())


def test_the_model_that_was_idle_for_longest_makes_room() -> None:
    clock = Clock()

    async def main() -> None:
        models = [command(*SCRIPTED, name=name) for name in "abc"]
        async with fleet_of(*models, clock=clock, max_loaded=2) as fleet:
            a, b, c = fleet.models
            for model in (a, b, a):
                clock.now += 1
                await model.ensure_ready()
            await c.ensure_ready()
            assert [model.state for model in (a, b, c)] == [ModelState.READY, ModelState.UNLOADED, ModelState.READY]

    run(main())


def test_a_model_that_is_in_use_makes_no_room_until_it_is_free() -> None:
    async def main() -> None:
        models = [command(*SCRIPTED, name=name, queue_wait_s=limit) for name, limit in (("a", 60), ("b", 60), ("c", 0))]
        async with fleet_of(*models, max_loaded=1) as fleet:
            a, b, c = fleet.models
            with a.in_use():
                await a.ensure_ready()
                waiting = asyncio.create_task(b.ensure_ready())
                with pytest.raises(EngineError, match="in use") as caught:
                    await c.ensure_ready()
                assert not caught.value.is_permanent
                assert not waiting.done()
                assert a.state is ModelState.READY
            await waiting
            assert [model.state for model in (a, b, c)] == [ModelState.UNLOADED, ModelState.READY, ModelState.FAILED]

    run(main())


def test_many_models_take_turns_in_one_place() -> None:
    async def main() -> None:
        async with fleet_of(*(command(*SCRIPTED, name=name) for name in "abcd"), max_loaded=1) as fleet:

            async def use(model: LocalModel) -> int:
                with model.in_use():
                    return (await get(await model.ensure_ready(), "/health")).status

            assert await asyncio.gather(*(use(model) for model in fleet.models)) == [200] * 4
            assert sum(model.state is ModelState.READY for model in fleet.models) == 1

    run(main())


@pytest.mark.parametrize(
    "program", [ENDLESS, "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ENDLESS]
)
def test_a_stop_while_it_loads_leaves_nothing_and_nobody_waiting(program: str) -> None:
    async def main() -> None:
        async with fleet_of(python(program)) as fleet:
            waiting = asyncio.create_task(fleet.models[0].ensure_ready())
            await asyncio.sleep(0)
            await fleet.stop(within_s=0.1)
            with pytest.raises(EngineError, match="not loaded any more"):
                await waiting
            with pytest.raises(EngineError, match="not loaded any more"):
                await fleet.models[0].ensure_ready()
            assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


def test_nothing_is_left_after_a_stop(monkeypatch: pytest.MonkeyPatch, short_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))

    async def main() -> None:
        async with fleet_of(command(*SCRIPTED), command(*SCRIPTED, name="b", preload=True)) as fleet:
            await asyncio.gather(*(model.ensure_ready() for model in fleet.models))
            assert len(list(short_path.iterdir())) == 1  # noqa: ASYNC240 - nobody else is in this loop
        assert {model.state for model in fleet.models} == {ModelState.STOPPED}
        assert not any(short_path.iterdir())  # noqa: ASYNC240

    run(main())


def test_models_are_found_by_their_names_and_never_by_paths() -> None:
    async def main() -> None:
        models = (
            ModelSettings(name="a", aliases=("first", "b")),
            ModelSettings(name="b", aliases=("second",), file=Path("b.gguf")),
        )
        fleet = EngineSupervisor(models, folder=Path("nowhere"), environment={})
        found = {name: fleet.find(name) for name in ("a", "first", "second", "b", "b.gguf", "../a", "", "A")}
        assert {name: model.name for name, model in found.items() if model} == {
            "a": "a",
            "first": "a",
            "second": "b",
            "b": "a",  # who comes first has the name
        }

    run(main())


def test_a_mistake_of_ours_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        heard: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context["exception"]))
        async with fleet_of(command(*SCRIPTED)) as fleet:
            monkeypatch.setattr("welldone.engines.supervisor.make_plan", broken)
            with pytest.raises(EngineError, match="internal error"):
                await fleet.models[0].ensure_ready()
            assert [type(error) for error in heard] == [ZeroDivisionError]

    run(main())


def test_what_an_engine_logs_is_handed_on() -> None:
    lines: list[tuple[str, str]] = []

    async def main() -> None:
        program = "import sys\nprint('out', flush=True)\nsys.exit('err')"
        async with fleet_of(
            python(program), pause=no_pause, on_line=lambda model, line: lines.append((model.name, line))
        ) as fleet:
            with pytest.raises(EngineError):
                await fleet.models[0].ensure_ready()

    run(main())
    assert sorted(set(lines)) == [("m", "err"), ("m", "out")]


@pytest.mark.skipif(shutil.which("true") is None, reason="needs a program that does nothing")
def test_a_program_that_ends_well_but_never_listened_is_a_failure_too() -> None:
    async def main() -> None:
        async with fleet_of(command("true", "{socket}"), pause=no_pause) as fleet:
            with pytest.raises(EngineError, match="ended with code 0 before it was ready"):
                await fleet.models[0].ensure_ready()

    run(main())


@pytest.mark.parametrize("name", ["x" * 100, "missing", "relative"])
def test_a_folder_that_will_not_do_for_sockets_is_not_used(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    if name != "missing":
        folder.mkdir()
    given = name if name == "relative" else str(folder)
    made = make_socket_folder({"XDG_RUNTIME_DIR": given})
    assert tmp_path not in made.parents
    made.rmdir()


def test_the_folder_for_sockets_is_where_the_system_wants_it(short_path: Path) -> None:
    made = make_socket_folder({"XDG_RUNTIME_DIR": str(short_path)})
    assert made.parent == short_path
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
