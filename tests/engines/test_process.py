"""Engine process: start, readiness, output and stop."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.engines.supervisors import (
    LIMIT_S,
    NO_FOLDER,
    READY,
    READY_SERVER,
    ProcessWatch,
    command,
    fetch_reply,
    python,
    run,
)
from tests.table import table
from welldone.config.model import ModelSettings
from welldone.engines.errors import EngineError
from welldone.engines.plan import make_plan
from welldone.engines.process import LINE_LIMIT_CHARS, OUTPUT_LINES, EngineProcess, OutputTail, describe_exit

SUPERVISOR_PROGRAM = Path(__file__).with_name("supervisor_program.py")
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="uses pidfd for processes that are not children")

ENDLESS = "import sys, time\nprint('busy', flush=True)\ntime.sleep(1000)"
SERVE = f"\nimport os, sys\nos.execv(sys.executable, [*{READY_SERVER!r}, '--socket', sys.argv[1]])"


async def start(settings: ModelSettings, sockets: Path, **options: Any) -> EngineProcess:  # noqa: ANN401 - those of EngineProcess.start
    plan = make_plan(settings, models_folder=NO_FOLDER, socket_folder=sockets, environment=os.environ)
    return await EngineProcess.start(plan, **{"timeout_s": LIMIT_S, **options})


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(READY, id="socket"),
        pytest.param((*READY_SERVER, "--port", "{port}"), id="port"),
        pytest.param(("/bin/sh", "-c", f"exec {' '.join(READY)}"), id="shell"),
    ],
)
def test_a_command_starts_answers_and_stops(short_path: Path, text: tuple[str, ...], loop: Any) -> None:  # noqa: ANN401
    async def main() -> None:
        process = await start(command(*text), short_path)
        assert (await fetch_reply(process.plan.address, "/v1/models")).status == 200
        await process.stop(5)
        assert not process.is_running
        assert not list(short_path.iterdir())  # noqa: ASYNC240 - the only task of this loop

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(_limited(main()))


async def _limited(main: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(LIMIT_S):
        await main


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise SystemExit(3)", "ended with code 3 before it was ready"),
        ("import sys; sys.exit('no memory')", "ended with code 1"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV"),
    ],
)
def test_a_command_that_exits_at_once_is_an_error_with_its_exit_code(
    short_path: Path, program: str, message: str
) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        run(start(python(program), short_path))
    assert not caught.value.is_permanent
    assert "memory" not in program or caught.value.details == ("no memory",)


def test_a_command_that_does_not_exist_is_an_error(short_path: Path) -> None:
    with pytest.raises(EngineError, match="ended with code 127") as caught:
        run(start(command("no-such-program", "{port}"), short_path))
    assert caught.value.details == ("no-such-program: No such file or directory",)


@ON_LINUX
@pytest.mark.parametrize(
    "program", [ENDLESS, "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ENDLESS]
)
def test_a_command_that_never_becomes_healthy_is_killed(short_path: Path, program: str) -> None:
    with pytest.raises(EngineError, match=r"was not ready within 0\.5 s"):
        run(start(python(program), short_path, timeout_s=0.5))
    assert str(short_path) not in "".join(_command_lines())


def _command_lines() -> Iterator[str]:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # the process has ended
            yield entry.read_text()


def test_a_command_without_a_placeholder_is_rejected(short_path: Path) -> None:
    with pytest.raises(EngineError, match=r"neither \{port\} nor \{socket\}"):
        run(start(command("sleep", "1000"), short_path))


@pytest.mark.parametrize(("stream", "line"), [("stdout", "x" * 100 + "\\n"), ("stderr", "y" * 5000)])
def test_a_flood_of_output_neither_blocks_the_engine_nor_fills_memory(short_path: Path, stream: str, line: str) -> None:
    flood = f"import sys\nfor _ in range(2000): sys.{stream}.write('{line}' * 5)\nsys.{stream}.flush()"

    async def main() -> None:
        process = await start(python(flood + SERVE), short_path)
        log = process.output_lines
        await process.stop(5)
        assert 0 < len(log) <= OUTPUT_LINES
        assert all(len(line) <= LINE_LIMIT_CHARS for line in log)

    run(main())


def test_placeholders_in_the_environment_of_a_command_are_filled_in(short_path: Path) -> None:
    program = "import os, sys\nsys.argv[1:] = [os.environ['PLACE']]" + SERVE
    settings = command(sys.executable, "-c", program, environment={"PLACE": "{socket}"})

    async def main() -> None:
        process = await start(settings, short_path)
        await process.stop(5)

    run(main())


@ON_LINUX
@pytest.mark.parametrize("method", ["stop", "kill at once", "kill command_child"])
def test_all_processes_of_a_command_end(short_path: Path, method: str) -> None:
    """The workers include one that ignores SIGTERM. If command_child is killed, only the command is sure to end."""
    worker = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{ENDLESS}"
    program = f"import os, subprocess, sys\nw = subprocess.Popen([sys.executable, '-c', {worker!r}], stdout=-1)"
    program += "\nw.stdout.readline()\nprint(os.getpid(), w.pid, file=sys.stderr, flush=True)" + SERVE
    pids: list[str] = []

    async def main() -> None:
        process = await start(python(program), short_path, output=OutputTail(lambda line: pids.extend(line.split())))
        command_watch, worker_watch = (ProcessWatch(int(pid)) for pid in pids)
        if method == "kill command_child":
            os.kill(process.pid, signal.SIGKILL)
            assert await asyncio.to_thread(command_watch.has_ended)
            await process.wait_for_exit()
            os.kill(int(pids[1]), signal.SIGKILL)
        await process.stop(0 if method == "kill at once" else 5)
        assert command_watch.has_ended(0)
        assert await asyncio.to_thread(worker_watch.has_ended)
        command_watch.close()
        worker_watch.close()

    run(main())


def test_a_cancelled_start_leaves_nothing(short_path: Path) -> None:
    async def main() -> None:
        started = asyncio.Event()
        starting = asyncio.create_task(start(python(ENDLESS), short_path, output=OutputTail(lambda _: started.set())))
        await started.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


@contextmanager
def _supervisor_program(folder: Path, *text: str) -> Iterator[tuple["subprocess.Popen[str]", list[str]]]:
    """Run the supervisor program until its engine is ready; yield it and its output. Sockets are in `folder`."""
    lines: list[str] = []
    arguments = [sys.executable, str(SUPERVISOR_PROGRAM), *text]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        try:
            assert parent.stdout is not None
            while not lines or not lines[-1].startswith("engine "):
                lines.append(parent.stdout.readline())
                assert lines[-1], lines
            yield parent, lines
        finally:
            parent.kill()


@ON_LINUX
@pytest.mark.parametrize("method", [signal.SIGKILL, signal.SIGTERM])
def test_llama_cpp_ends_when_its_parent_is_killed_or_terminated(
    short_path: Path, tiny_model: Path, method: signal.Signals
) -> None:
    with _supervisor_program(short_path, "file", str(tiny_model)) as (parent, lines):
        engine = ProcessWatch(int(lines[-1].split()[1]))
        parent.send_signal(method)
        assert engine.has_ended()
        engine.close()


@ON_LINUX
def test_a_command_and_its_workers_end_with_the_parent(short_path: Path) -> None:
    program = f"import os, subprocess, sys\nw = subprocess.Popen([sys.executable, '-c', {ENDLESS!r}], stdout=-1)"
    program += "\nw.stdout.readline()\nprint('pids', os.getpid(), w.pid, file=sys.stderr, flush=True)" + SERVE
    with _supervisor_program(short_path, "command", sys.executable, "-c", program, "{socket}") as (parent, lines):
        pids = [*next(line for line in lines if line.startswith("pids")).split()[1:], lines[-1].split()[1]]
        watches = [ProcessWatch(int(pid)) for pid in pids]
        parent.kill()
        for process in watches:
            assert process.has_ended()
            process.close()


@table(
    ("code", "text"),
    [
        (0, "ended with code 0"),
        (-9, "was ended by SIGKILL"),
        (139, "was ended by SIGSEGV"),
        (255, "ended with code 255"),
    ],
)
def test_exit_codes_are_described(code: int, text: str) -> None:
    assert describe_exit(code) == text
