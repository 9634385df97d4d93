"""The server is stopped or killed while streams run. Running streams may finish; nothing is left behind."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import ClientConnection, chat, connect, post
from tests.support.faults import (
    LONG_ANSWER,
    children,
    descendants,
    engine_of,
    small_server,
    start_chat,
    wait_until_refused,
)
from tests.support.server import LIMIT_S, Running
from tests.support.upstream import DONE, ROLE, STOP, TEXT, eventually, gateway, upstream
from welldone.mock.script import MockChunk, MockReply

SLOW = MockReply((ROLE, TEXT, *[MockChunk(TEXT.text, after_s=0.05)] * 10, STOP, DONE))
"""Takes half a second: much less than the grace period, and longer than a signal."""
GRACE_S = 0.5
"""Grace period for endless streams."""
ENDLESS = MockReply((ROLE, TEXT), end="hang")
WORKERS = ("--workers", "2")


class Ended(msgspec.Struct):
    """Observations of a server that received SIGTERM."""

    scene: str
    endings: Counter[str]
    code: int
    after_signal_s: float
    after_streams_s: float
    orphans: int
    """Processes that still run."""
    files: list[str]
    """Files left in the temporary folder."""


def sigterm(context: CaseContext) -> Outcome:
    """SIGTERM during streams that end within the grace period, and during endless ones."""
    count = context.times(40, 3)
    grace = ("--drain", str(GRACE_S))
    in_time = [_local(context, context.times(8, 2)), _gateway(context, "two workers", SLOW, count, *WORKERS)]
    too_long = [_gateway(context, "streams without end", ENDLESS, count, *grace)]
    if not context.is_short:
        in_time.append(_gateway(context, "gateway", SLOW, count))
        too_long.append(_gateway(context, "two workers, streams without end", ENDLESS, count, *grace, *WORKERS))
    both = [*in_time, *too_long]
    finished, notified = _share(in_time, "whole"), _share(too_long, "error event")
    return Outcome(
        count=len(both),
        happened=(
            "new connections were rejected; of the streams that could end within the grace time "
            f"{finished:g} % completed, of the others {notified:g} % ended with an error event"
        ),
        figures=(
            Figure("completed within the grace time", finished, "%", least=100),
            Figure("error event at shutdown", notified, "%", least=100),
            Figure("exit codes other than 0", sum(one.code != 0 for one in both), most=0),
            Figure("orphaned processes", sum(one.orphans for one in both), most=0),
            Figure("leftover files", sum(len(one.files) for one in both), most=0),
            _late("exit after the last stream", (one.after_streams_s for one in in_time)),
            _late("exit after the grace time", (one.after_signal_s - GRACE_S for one in too_long)),
        ),
        problems=tuple(
            f"{one.scene}: {dict(one.endings)}, code {one.code}, {one.orphans} processes and {one.files} left"
            for one in both
            if one.code or one.orphans or one.files or len(one.endings) != 1
        ),
    )


def _late(name: str, seconds: Iterable[float]) -> Figure:
    return Figure(name, round(max(seconds), 2), "s", most=1, is_timing=True)


def _share(scenes: Sequence[Ended], ending: str) -> float:
    endings = sum((one.endings for one in scenes), Counter[str]())
    return 100 * endings[ending] / endings.total()


def _local(context: CaseContext, count: int) -> Ended:
    """Local model; its engine is suspended until the signal, so that every stream is running."""
    context.note("local model")
    temporary = _room(context, "local")
    options = ("-np", str(count), "-c", str(2048 * count))
    with (
        small_server(context.model, *options, environment={"TMPDIR": str(temporary)}) as server,
        engine_of(server) as engine,
    ):
        body = chat("tiny", max_tokens=context.times(LONG_ANSWER, 500), temperature=0)
        return asyncio.run(_end("local model", server, temporary, body, count, engine.suspend, engine.resume))


def _gateway(context: CaseContext, scene: str, reply: MockReply, count: int, *options: str) -> Ended:
    context.note(scene)
    temporary = _room(context, scene.replace(" ", "-"))
    with (
        upstream(lambda _: reply) as backend,
        gateway(temporary.parent, backend.url, options=options, environment={"TMPDIR": str(temporary)}) as server,
    ):
        if options[-2:] == WORKERS:
            _until_ready(server, 2)
        return asyncio.run(_end(scene, server, temporary, chat(), count))


def _room(context: CaseContext, name: str) -> Path:
    """A folder for temporary files, within one for the server. Its path is short: sockets are to fit."""
    folder = context.folder / name / "t"
    folder.mkdir(parents=True)
    return folder


def _until_ready(server: Running, count: int) -> None:
    """Wait until this many workers are ready."""
    eventually(lambda: sum("worker is ready" in line for line in server.log.all) >= count)


async def _end(
    scene: str,
    server: Running,
    temporary: Path,
    body: bytes,
    count: int,
    hold: Callable[[], None] = lambda: None,
    release: Callable[[], None] = lambda: None,
) -> Ended:
    """Start streams, send SIGTERM, and read all of them to the end."""
    family = descendants(server.process.pid)
    connections = [await connect(server.port, post(body, server.port, key=server.key)) for _ in range(count)]
    try:
        heads = [await connection.read_until(b"data: ") for connection in connections]
        hold()
        began = time.monotonic()
        server.process.terminate()
        await asyncio.to_thread(wait_until_refused, server)
        release()
        endings = await asyncio.gather(*(_ending(*one) for one in zip(connections, heads, strict=True)))
        last = time.monotonic()
        code = await asyncio.to_thread(server.process.wait, LIMIT_S)
    finally:
        for connection in connections:
            connection.disconnect()
    over = time.monotonic()
    return Ended(scene, Counter(endings), code, over - began, over - last, len(living(family)), _names(temporary))


def _names(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


async def _ending(connection: ClientConnection, head: bytes) -> str:
    return (await connection.read_reply(head)).ending


def living(pids: Sequence[int]) -> list[int]:
    """Return the processes that still run; a zombie has ended."""
    return [pid for pid in pids if _state(pid) not in ("Z", "X", "")]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def sigkill(context: CaseContext) -> Outcome:
    """SIGKILL of the server while its engine loads, idles, generates or is suspended; and of one with workers."""
    drawn = random.Random(context.seed)
    times, left = [], []
    rounds = context.times(20, 2)
    for number in range(rounds):
        context.note(f"kill {number + 1} of {rounds}")
        # The most important windows first, then random ones.
        name, scene = SCENES[number] if number < len(SCENES) else drawn.choice(SCENES)
        with scene(context, drawn.random()) as server:
            family = descendants(server.process.pid)
            assert family, f"{name}: it has no child yet"
            server.process.kill()
            gone_s = _gone(family)
        times.append(gone_s)
        if living(family):
            left.append(f"{name}: {len(living(family))} processes left")
    return Outcome(
        count=rounds,
        happened=f"all child processes ended within {max(times) * 1000:.0f} ms"
        if not left
        else f"child processes were orphaned {len(left)} times",
        figures=(
            Figure("runs with an orphaned process", len(left), most=0),
            Figure("longest time until all had ended", round(max(times) * 1000), "ms", most=1000, is_timing=True),
        ),
        problems=tuple(left),
    )


def _gone(family: Sequence[int]) -> float:
    """Seconds until all processes have ended."""
    began = time.monotonic()
    while living(family) and time.monotonic() - began < LIMIT_S:
        time.sleep(0.001)  # a busy loop would slow down the ending processes
    return time.monotonic() - began


@contextmanager
def _loading(context: CaseContext, share: float) -> Iterator[Running]:
    """An engine that was just started; a tiny model takes about half a second to load."""
    with small_server(context.model, is_awaited=False) as server:
        eventually(lambda: bool(children(server.process.pid)))
        time.sleep(share * 0.5)  # at any time during the load
        yield server


@contextmanager
def _working(context: CaseContext, share: float) -> Iterator[Running]:
    with small_server(context.model) as server, start_chat(server, max_tokens=LONG_ANSWER) as line:
        line.wait(rb'"content":"[^"]')
        yield server


@contextmanager
def _standing(context: CaseContext, share: float) -> Iterator[Running]:
    with small_server(context.model) as server, engine_of(server) as engine:
        engine.suspend()
        yield server


@contextmanager
def _idle(context: CaseContext, share: float) -> Iterator[Running]:
    with small_server(context.model) as server:
        yield server


@contextmanager
def _workers(context: CaseContext, share: float) -> Iterator[Running]:
    """Server with streaming workers."""
    with ExitStack() as stack:
        backend = stack.enter_context(upstream(lambda _: ENDLESS))
        server = stack.enter_context(gateway(context.folder, backend.url, options=WORKERS))
        _until_ready(server, 2)
        line = stack.enter_context(start_chat(server))
        line.wait(b"Hello")
        yield server


SCENES = (
    ("while the engine loads", _loading),
    ("parent of workers", _workers),
    ("while the engine works", _working),
    ("while the engine stands still", _standing),
    ("while the engine is idle", _idle),
)

CASES = (
    Case("sigterm", "SIGTERM while streams run", sigterm),
    Case("sigkill", "SIGKILL of the parent, at any moment", sigkill),
)
