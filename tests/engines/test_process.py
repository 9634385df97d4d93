"""One engine program, from its start to its end, whatever it does in between."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.engines.fleets import LIMIT_S, NOWHERE, SCRIPTED, Watched, command, get, python, run
from tests.table import table
from welldone.config.model import ModelSettings
from welldone.engines.errors import EngineError
from welldone.engines.plan import make_plan
from welldone.engines.process import LINE_LIMIT_CHARS, OUTPUT_LINES, EngineProcess, OutputTail, describe_exit

PARENT = Path(__file__).with_name("parent.py")
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="watches processes that are not its own by pidfd")

ENDLESS = "import sys, time\nprint('busy', flush=True)\ntime.sleep(1000)"
SERVE = "\nimport os, sys\n"
SERVE += "os.execv(sys.executable, [sys.executable, '-m', 'welldone.mock.server', '--socket', sys.argv[1]])"


async def start(settings: ModelSettings, sockets: Path, **options: Any) -> EngineProcess:  # noqa: ANN401 - of Process.start
    plan = make_plan(settings, models_folder=NOWHERE, socket_folder=sockets, environment=os.environ)
    return await EngineProcess.start(plan, **{"within_s": LIMIT_S, **options})


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(SCRIPTED, id="socket"),
        pytest.param((*SCRIPTED[:3], "--port", "{port}"), id="port"),
        pytest.param(("/bin/sh", "-c", f"exec {' '.join(SCRIPTED)}"), id="shell"),
    ],
)
def test_a_command_is_ready_answers_and_ends(short_path: Path, words: tuple[str, ...], loop: Any) -> None:  # noqa: ANN401
    async def main() -> None:
        process = await start(command(*words), short_path)
        assert (await get(process.plan.address, "/v1/models")).status == 200
        await process.stop(5)
        assert not process.is_running
        assert not list(short_path.iterdir())  # noqa: ASYNC240 - nobody else is in this loop

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(_limited(main()))


async def _limited(main: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(LIMIT_S):
        await main


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("raise SystemExit(3)", "ended with code 3 before it was ready"),
        ("import sys; sys.exit('no memory')", "ended with code 1"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV"),
    ],
)
def test_a_command_that_dies_at_once_is_an_error_with_its_ending(short_path: Path, program: str, says: str) -> None:
    with pytest.raises(EngineError, match=says) as caught:
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
def test_a_command_that_never_gets_well_is_ended(short_path: Path, program: str) -> None:
    with pytest.raises(EngineError, match=r"was not ready within 0\.5 s"):
        run(start(python(program), short_path, within_s=0.5))
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert str(short_path) not in found.stdout


def test_a_command_without_a_place_to_listen_is_refused(short_path: Path) -> None:
    with pytest.raises(EngineError, match=r"neither \{port\} nor \{socket\}"):
        run(start(command("sleep", "1000"), short_path))


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("line", ["x" * 100 + "\\n", "y" * 5000])
def test_a_flood_of_words_neither_stops_an_engine_nor_fills_our_memory(
    short_path: Path, stream: str, line: str
) -> None:
    flood = f"import sys\nfor _ in range(2000): sys.{stream}.write('{line}' * 5)\nsys.{stream}.flush()"

    async def main() -> None:
        process = await start(python(flood + SERVE), short_path)
        log = process.output_lines
        await process.stop(5)
        assert 0 < len(log) <= OUTPUT_LINES
        assert all(len(line) <= LINE_LIMIT_CHARS for line in log)

    run(main())


def test_the_environment_of_a_command_is_filled_in(short_path: Path) -> None:
    program = "import os, sys\nsys.argv[1:] = [os.environ['PLACE']]" + SERVE
    settings = command(sys.executable, "-c", program, environment={"PLACE": "{socket}"})

    async def main() -> None:
        process = await start(settings, short_path)
        await process.stop(5)

    run(main())


@ON_LINUX
@pytest.mark.parametrize("how", ["stop", "kill at once", "killed launcher"])
def test_the_whole_family_of_a_command_ends(short_path: Path, how: str) -> None:
    """Also a worker that ignores SIGTERM. (Of a launcher that is killed itself, only the command is sure to end.)"""
    worker = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{ENDLESS}"
    program = f"import os, subprocess, sys\nw = subprocess.Popen([sys.executable, '-c', {worker!r}], stdout=-1)"
    program += "\nw.stdout.readline()\nprint(os.getpid(), w.pid, file=sys.stderr, flush=True)" + SERVE
    pids: list[str] = []

    async def main() -> None:
        process = await start(python(program), short_path, tail=OutputTail(lambda line: pids.extend(line.split())))
        own, workers = (Watched(int(pid)) for pid in pids)
        if how == "killed launcher":
            os.kill(process.pid, signal.SIGKILL)
            assert await asyncio.to_thread(own.ends)
            await process.wait_for_exit()
            os.kill(int(pids[1]), signal.SIGKILL)
        await process.stop(0 if how == "kill at once" else 5)
        assert own.ends(0)
        assert await asyncio.to_thread(workers.ends)
        own.close()
        workers.close()

    run(main())


def test_a_start_that_is_cancelled_leaves_nothing(short_path: Path) -> None:
    async def main() -> None:
        begun = asyncio.Event()
        starting = asyncio.create_task(start(python(ENDLESS), short_path, tail=OutputTail(lambda _: begun.set())))
        await begun.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


@contextmanager
def _server(folder: Path, *words: str) -> Iterator[tuple["subprocess.Popen[str]", list[str]]]:
    """A server with one engine, and what it said until the engine was ready. What it leaves is in the folder."""
    lines: list[str] = []
    arguments = [sys.executable, str(PARENT), *words]
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
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_llama_cpp_ends_with_its_parent_however_that_ends(
    short_path: Path, tiny_model: Path, how: signal.Signals
) -> None:
    with _server(short_path, "file", str(tiny_model)) as (parent, lines):
        engine = Watched(int(lines[-1].split()[1]))
        parent.send_signal(how)
        assert engine.ends()
        engine.close()


@ON_LINUX
def test_a_command_ends_with_its_parent_and_so_do_its_workers(short_path: Path) -> None:
    program = f"import os, subprocess, sys\nw = subprocess.Popen([sys.executable, '-c', {ENDLESS!r}], stdout=-1)"
    program += "\nw.stdout.readline()\nprint('pids', os.getpid(), w.pid, file=sys.stderr, flush=True)" + SERVE
    with _server(short_path, "command", sys.executable, "-c", program, "{socket}") as (parent, lines):
        pids = [*next(line for line in lines if line.startswith("pids")).split()[1:], lines[-1].split()[1]]
        watched = [Watched(int(pid)) for pid in pids]
        parent.kill()
        for process in watched:
            assert process.ends()
            process.close()


@table(
    ("code", "words"),
    [
        (0, "ended with code 0"),
        (-9, "was ended by SIGKILL"),
        (139, "was ended by SIGSEGV"),
        (255, "ended with code 255"),
    ],
)
def test_an_ending_has_words(code: int, words: str) -> None:
    assert describe_exit(code) == words
