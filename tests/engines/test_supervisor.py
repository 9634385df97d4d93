"""Engine supervisor: loading on demand, restarts, idle unloading, and the limit of loaded models."""

import asyncio
import os
import shutil
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines.supervisors import (
    READY,
    READY_SERVER,
    command,
    fetch_reply,
    python,
    run,
    running_supervisor,
    short_answer,
)
from tests.table import table
from welldone.config.model import ModelSettings
from welldone.engines.errors import EngineError
from welldone.engines.supervisor import (
    MAX_FAILED_STARTS,
    RELOAD_WAIT_S,
    EngineSupervisor,
    LocalModel,
    ModelState,
    make_socket_folder,
)

ENDLESS = "import time\ntime.sleep(1000)"


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class History:
    """Records the state changes of models."""

    def __init__(self) -> None:
        self.states: list[tuple[str, ModelState]] = []
        self._changed = asyncio.Event()

    def __call__(self, model: LocalModel) -> None:
        self.states.append((model.name, model.state))
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def of(self, name: str = "m") -> list[ModelState]:
        return [state for model, state in self.states if model == name]


async def no_pause(_: float) -> None:
    """Skip the backoff."""


def state_of(model: LocalModel) -> ModelState:
    """Return the current state; mypy would assume the last one that was asserted."""
    return model.state


def kill(model: LocalModel) -> None:
    assert model.process is not None
    os.kill(model.process.pid, signal.SIGKILL)


def test_concurrent_callers_share_one_load() -> None:
    async def main() -> None:
        history = History()
        async with running_supervisor(command(*READY), on_change=history) as supervisor:
            addresses = await asyncio.gather(*(supervisor.models[0].ensure_ready() for _ in range(10)))
            assert len(set(addresses)) == 1
            assert history.of() == [ModelState.LOADING, ModelState.READY]

    run(main())


def test_a_cancelled_caller_does_not_cancel_the_load() -> None:
    async def main() -> None:
        async with running_supervisor(command(*READY), command(*READY, name="other")) as supervisor:
            model = supervisor.models[0]
            assert model.state is ModelState.UNLOADED
            cancelled_caller = asyncio.create_task(model.ensure_ready())
            caller = asyncio.create_task(model.ensure_ready())
            await asyncio.sleep(0)
            cancelled_caller.cancel()
            address = await caller
            assert cancelled_caller.cancelled()
            assert (await fetch_reply(address, "/health")).status == 200
            assert model.running == 0
            assert supervisor.models[1].state is ModelState.UNLOADED

    run(main())


def test_a_killed_engine_is_restarted_and_answers(tiny_model: Path) -> None:
    async def main() -> None:
        history = History()
        async with running_supervisor(ModelSettings(name="m", file=tiny_model), on_change=history) as supervisor:
            model = supervisor.models[0]
            before = await model.ensure_ready()
            answer = await short_answer(before)
            kill(model)
            await model.wait_for_exit_notice()  # as after a lost connection
            after = await model.ensure_ready()
            assert after != before
            assert await short_answer(after) == answer
            assert history.of() == [ModelState.LOADING, ModelState.READY, ModelState.RESTARTING, ModelState.READY]
            assert model.restarts == 1
            assert model.last_error is not None
            assert "was ended by SIGKILL" in model.last_error.message

    run(main())


def test_an_exit_check_of_a_healthy_engine_has_no_effect() -> None:
    async def main() -> None:
        async with running_supervisor(command(*READY)) as supervisor:
            model = supervisor.models[0]
            await model.wait_for_exit_notice()
            address = await model.ensure_ready()
            await model.wait_for_exit_notice()
            assert await model.ensure_ready() == address
            assert model.state is ModelState.READY

    run(main())


def test_an_engine_that_keeps_failing_is_left_alone_until_the_next_request() -> None:
    clock, pauses = Clock(), list[float]()

    async def pause(seconds: float) -> None:
        pauses.append(round(seconds, 3))
        clock.now += seconds

    async def main() -> None:
        async with running_supervisor(python("raise SystemExit('no luck')"), clock=clock, pause=pause) as supervisor:
            model = supervisor.models[0]
            with pytest.raises(EngineError, match="the model m cannot be loaded: ended with code 1") as caught:
                await model.ensure_ready()
            assert caught.value.details == ("no luck",)
            assert caught.value.retry_after_s == pytest.approx(3.2)
            assert model.state is ModelState.FAILED
            assert pauses == [0.2, 0.4, 0.8, 1.6]
            assert len(pauses) + 1 == MAX_FAILED_STARTS
            with pytest.raises(EngineError) as second:
                await model.ensure_ready()  # during the backoff: nothing is started
            assert second.value.retry_after_s == pytest.approx(3.2)
            clock.now += 4
            with pytest.raises(EngineError) as third:
                await model.ensure_ready()
            assert third.value.retry_after_s == pytest.approx(6.4)
            assert len(pauses) + 1 == MAX_FAILED_STARTS

    run(main())


def test_an_engine_that_starts_after_failed_attempts_is_ready(tmp_path: Path) -> None:
    program = (
        f"import os, sys, pathlib\npath = pathlib.Path({str(tmp_path / 'tries')!r})\n"
        "tries = len(path.read_text()) if path.exists() else 0\npath.write_text('x' * (tries + 1))\n"
        "tries >= 2 or sys.exit(1)\n"
        f"os.execv(sys.executable, [*{READY_SERVER!r}, '--socket', sys.argv[1]])"
    )

    async def main() -> None:
        history = History()
        async with running_supervisor(python(program), pause=no_pause, on_change=history) as supervisor:
            await supervisor.models[0].ensure_ready()
            assert history.of() == [ModelState.LOADING, ModelState.RESTARTING, ModelState.RESTARTING, ModelState.READY]
            assert supervisor.models[0].restarts == 0

    run(main())


@pytest.mark.parametrize("failure", ["sys.exit(1)", "os.kill(os.getppid(), 9)"], ids=["exit", "SIGKILL"])
def test_a_model_that_has_run_is_loaded_again_by_itself_after_too_many_failed_starts(
    tmp_path: Path, failure: str
) -> None:
    broken = tmp_path / "broken"
    program = failing_program(broken, failure)
    history, clock = History(), Clock()

    async def pause(seconds: float) -> None:
        clock.now += seconds
        if history.of()[-1] is ModelState.FAILED:
            broken.unlink()

    async def main() -> None:
        async with running_supervisor(python(program), clock=clock, pause=pause, on_change=history) as supervisor:
            model = supervisor.models[0]
            await model.ensure_ready()
            broken.touch()
            kill(model)
            await history.until(lambda: history.of()[2:].count(ModelState.READY) == 1)
            failed = [ModelState.RESTARTING] * MAX_FAILED_STARTS + [ModelState.FAILED]
            assert history.of() == [ModelState.LOADING, ModelState.READY, *failed, ModelState.LOADING, ModelState.READY]

    run(main())


def failing_program(broken: Path, failure: str) -> str:
    """Return a program that is ready, and fails if a file exists."""
    return (
        f"import os, sys, pathlib\nif pathlib.Path({str(broken)!r}).exists():\n    {failure}\n"
        f"os.execv(sys.executable, [*{READY_SERVER!r}, '--socket', sys.argv[1]])"
    )


def test_a_final_failure_of_a_model_that_has_run_is_final(tmp_path: Path) -> None:
    broken, history = tmp_path / "broken", History()

    async def main() -> None:
        program = failing_program(broken, "os.kill(os.getppid(), 9)")
        async with running_supervisor(python(program), on_change=history) as supervisor:
            model = supervisor.models[0]
            await model.ensure_ready()
            await model.unload()
            broken.touch()
            with pytest.raises(EngineError, match="out of memory"):
                await model.ensure_ready()
            task = model._run_task
            assert task is not None
            await task
            assert history.of()[-2:] == [ModelState.LOADING, ModelState.FAILED]

    run(main())


def test_a_model_that_waits_for_its_next_start_can_be_unloaded(tmp_path: Path) -> None:
    broken, history, clock = tmp_path / "broken", History(), Clock()

    async def pause(seconds: float) -> None:
        clock.now += seconds
        if history.of()[-1] is ModelState.FAILED:
            supervisors[0].models[0].start_unload()
            await asyncio.Event().wait()  # until it is cancelled

    supervisors = []

    async def main() -> None:
        program = failing_program(broken, "sys.exit(1)")
        async with running_supervisor(python(program), clock=clock, pause=pause, on_change=history) as supervisor:
            supervisors.append(supervisor)
            model = supervisor.models[0]
            await model.ensure_ready()
            broken.touch()
            kill(model)
            await history.until(lambda: history.of()[-1] is ModelState.UNLOADED)
            await model.unload()
            assert history.of()[-2:] == [ModelState.FAILED, ModelState.UNLOADED]

    run(main())


@table(
    ("settings", "message"),
    [
        (ModelSettings(name="m", file=Path("default")), "welldone pull default"),
        (ModelSettings(name="m"), "welldone pull default"),
        (ModelSettings(name="m", file=Path("some/where/lost.gguf")), "there is no file lost.gguf"),
        (ModelSettings(name="m", command=("no-placeholder",)), "neither {port} nor {socket}"),
    ],
)
def test_a_permanent_error_is_reported_at_once(settings: ModelSettings, message: str) -> None:
    async def main() -> None:
        async with running_supervisor(settings) as supervisor:
            with pytest.raises(EngineError) as caught:
                await supervisor.models[0].ensure_ready()
            assert message in caught.value.message
            assert "some/where" not in caught.value.message
            assert caught.value.is_permanent

    run(main())


def test_a_start_that_takes_too_long_fails() -> None:
    async def main() -> None:
        async with running_supervisor(python(ENDLESS, start_limit_s=0.3)) as supervisor:
            with pytest.raises(EngineError, match="was not ready within"):
                await supervisor.models[0].ensure_ready()
            assert supervisor.models[0].state is ModelState.FAILED

    run(main())


def test_an_idle_model_is_unloaded_and_can_be_loaded_again() -> None:
    clock = Clock()

    async def main() -> None:
        async with running_supervisor(command(*READY, idle_unload_s=60), clock=clock) as supervisor:
            model = supervisor.models[0]
            before = await model.ensure_ready()
            with model.in_use():
                clock.now += 100
                assert supervisor.unload_idle() is None
                assert state_of(model) is ModelState.READY
            clock.now += 59
            assert supervisor.unload_idle() == pytest.approx(1)
            assert state_of(model) is ModelState.READY
            clock.now += 1
            assert supervisor.unload_idle() is None
            assert state_of(model) is ModelState.UNLOADED
            await model.unload()
            assert before.socket is not None
            assert not Path(before.socket).exists()  # noqa: ASYNC240 - the only task of this loop
            assert (await fetch_reply(await model.ensure_ready(), "/health")).status == 200

    run(main())


def test_a_restart_replaces_the_engine() -> None:
    async def main() -> None:
        async with running_supervisor(command(*READY)) as supervisor:
            model = supervisor.models[0]
            model.restart()  # loads it
            await model.ensure_ready()
            assert model.process is not None
            before = model.process
            model.restart()
            assert state_of(model) is ModelState.LOADING
            await model.wait_for_reload()
            assert model.process is not before
            assert not before.is_running

    run(main())


def test_a_restart_keeps_its_place_among_the_loaded_models() -> None:
    async def main() -> None:
        history = History()
        models = command(*READY, name="a"), command(*READY, name="b")
        async with running_supervisor(*models, max_loaded=1, on_change=history) as supervisor:
            first, second = supervisor.models
            await first.ensure_ready()
            with first.in_use():
                waiting = asyncio.create_task(second.ensure_ready())
                await history.until(lambda: second.state is ModelState.LOADING)
                first.restart()
                await first.ensure_ready()
                assert not waiting.done()
            await waiting  # the first model is not in use any more
            assert state_of(first) is ModelState.UNLOADED

    run(main())


def test_who_lost_an_unloaded_engine_waits_for_it_and_does_not_load_it() -> None:
    clock = Clock()

    async def main() -> None:
        async with running_supervisor(command(*READY), clock=clock) as supervisor:
            model = supervisor.models[0]
            await model.ensure_ready()
            await model.unload()
            waiting = asyncio.create_task(model.wait_for_reload())
            await asyncio.sleep(0)
            clock.now += RELOAD_WAIT_S
            supervisor.notify()
            with pytest.raises(EngineError, match="has been unloaded"):
                await waiting
            assert state_of(model) is ModelState.UNLOADED
            waiting = asyncio.create_task(model.wait_for_reload())
            await asyncio.sleep(0)
            model.load()
            assert await waiting == model.address

    run(main())


def test_the_supervisor_unloads_idle_models_by_itself() -> None:
    async def main() -> None:
        history = History()
        async with running_supervisor(command(*READY, idle_unload_s=0.01), on_change=history) as supervisor:
            with supervisor.models[0].in_use():
                await supervisor.models[0].ensure_ready()
            await history.until(lambda: supervisor.models[0].state is ModelState.UNLOADED)
            await supervisor.models[0].ensure_ready()
            await history.until(lambda: supervisor.models[0].state is ModelState.UNLOADED)

    run(main())


def test_a_model_requested_while_it_is_unloading_is_loaded_afterwards() -> None:
    async def main() -> None:
        async with running_supervisor(command(*READY)) as supervisor:
            model = supervisor.models[0]
            before = await model.ensure_ready()
            model.start_unload()
            after = await model.ensure_ready()
            assert after != before
            assert (await fetch_reply(after, "/health")).status == 200

    run(main())


def test_at_the_limit_the_longest_idle_model_is_unloaded() -> None:
    clock = Clock()

    async def main() -> None:
        models = [command(*READY, name=name) for name in "abc"]
        async with running_supervisor(*models, clock=clock, max_loaded=2) as supervisor:
            a, b, c = supervisor.models
            for model in (a, b, a):
                clock.now += 1
                await model.ensure_ready()
            await c.ensure_ready()
            assert [model.state for model in (a, b, c)] == [ModelState.READY, ModelState.UNLOADED, ModelState.READY]

    run(main())


def test_a_model_in_use_is_not_unloaded_until_it_is_free() -> None:
    async def main() -> None:
        models = [command(*READY, name=name, queue_wait_s=limit) for name, limit in (("a", 60), ("b", 60), ("c", 0))]
        async with running_supervisor(*models, max_loaded=1) as supervisor:
            a, b, c = supervisor.models
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


def test_many_models_take_turns_at_a_limit_of_one() -> None:
    async def main() -> None:
        async with running_supervisor(*(command(*READY, name=name) for name in "abcd"), max_loaded=1) as supervisor:

            async def use(model: LocalModel) -> int:
                with model.in_use():
                    return (await fetch_reply(await model.ensure_ready(), "/health")).status

            assert await asyncio.gather(*(use(model) for model in supervisor.models)) == [200] * 4
            assert sum(model.state is ModelState.READY for model in supervisor.models) == 1

    run(main())


@pytest.mark.parametrize(
    "program", [ENDLESS, "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ENDLESS]
)
def test_a_stop_during_a_load_leaves_no_process_and_no_waiting_task(program: str) -> None:
    async def main() -> None:
        async with running_supervisor(python(program)) as supervisor:
            waiting = asyncio.create_task(supervisor.models[0].ensure_ready())
            await asyncio.sleep(0)
            await supervisor.stop(timeout_s=0.1)
            with pytest.raises(EngineError, match="has been unloaded"):
                await waiting
            with pytest.raises(EngineError, match="has been unloaded"):
                await supervisor.models[0].ensure_ready()
            assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


def test_a_stop_removes_the_socket_folder(monkeypatch: pytest.MonkeyPatch, short_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))

    async def main() -> None:
        async with running_supervisor(command(*READY), command(*READY, name="b", preload=True)) as supervisor:
            await asyncio.gather(*(model.ensure_ready() for model in supervisor.models))
            assert len(list(short_path.iterdir())) == 1  # noqa: ASYNC240 - the only task of this loop
        assert {model.state for model in supervisor.models} == {ModelState.STOPPED}
        assert not any(short_path.iterdir())  # noqa: ASYNC240

    run(main())


def test_models_are_found_by_names_and_aliases_but_not_by_paths() -> None:
    async def main() -> None:
        models = (
            ModelSettings(name="a", aliases=("first", "b")),
            ModelSettings(name="b", aliases=("second",), file=Path("b.gguf")),
        )
        supervisor = EngineSupervisor(models, folder=Path("nowhere"), environment={})
        found = {name: supervisor.find(name) for name in ("a", "first", "second", "b", "b.gguf", "../a", "", "A")}
        assert {name: model.name for name, model in found.items() if model} == {
            "a": "a",
            "first": "a",
            "second": "b",
            "b": "a",  # the first model with a name gets it
        }

    run(main())


def test_an_internal_error_fails_the_waiting_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
        async with running_supervisor(command(*READY)) as supervisor:
            monkeypatch.setattr("welldone.engines.supervisor.make_plan", broken)
            with pytest.raises(EngineError, match="internal error"):
                await supervisor.models[0].ensure_ready()
            assert [type(error) for error in errors] == [ZeroDivisionError]

    run(main())


def test_output_lines_of_an_engine_are_forwarded() -> None:
    lines: list[tuple[str, str]] = []

    async def main() -> None:
        program = "import sys\nprint('out', flush=True)\nsys.exit('err')"
        async with running_supervisor(
            python(program), pause=no_pause, on_line=lambda model, line: lines.append((model.name, line))
        ) as supervisor:
            with pytest.raises(EngineError):
                await supervisor.models[0].ensure_ready()

    run(main())
    assert sorted(set(lines)) == [("m", "err"), ("m", "out")]


@pytest.mark.skipif(shutil.which("true") is None, reason="needs the program `true`")
def test_a_program_that_exits_with_0_before_it_is_ready_has_failed() -> None:
    async def main() -> None:
        async with running_supervisor(command("true", "{socket}"), pause=no_pause) as supervisor:
            with pytest.raises(EngineError, match="ended with code 0 before it was ready"):
                await supervisor.models[0].ensure_ready()

    run(main())


@pytest.mark.parametrize("name", ["x" * 100, "missing", "relative"])
def test_an_unsuitable_runtime_folder_is_not_used_for_sockets(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    if name != "missing":
        folder.mkdir()
    value = name if name == "relative" else str(folder)
    created = make_socket_folder({"XDG_RUNTIME_DIR": value})
    assert tmp_path not in created.parents
    created.rmdir()


def test_the_socket_folder_is_private_and_in_the_runtime_folder(short_path: Path) -> None:
    folder = make_socket_folder({"XDG_RUNTIME_DIR": str(short_path)})
    assert folder.parent == short_path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
