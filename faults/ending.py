"""The server is ended: asked to while streams run, or killed. What runs may finish, and nothing of it is left."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from faults.asking import Talk, chat, post, say
from faults.case import Case, Figure, Outcome, Stage
from tests.live.faults import LONG, begin, children, descendants, engine_of, small, until_refused
from tests.live.server import LIMIT_S, Running
from tests.live.upstream import DONE, ROLE, STOP, TEXT, eventually, gateway, upstream
from welldone.mock.script import MockChunk, MockReply

SLOW = MockReply((ROLE, TEXT, *[MockChunk(TEXT.text, after_s=0.05)] * 10, STOP, DONE))
"""It takes half a second: much less than the grace time, and longer than a signal."""
GRACE_S = 0.5
"""For streams that never end by themselves."""
ENDLESS = MockReply((ROLE, TEXT), end="hang")
WORKERS = ("--workers", "2")


class Ended(msgspec.Struct):
    """What was seen of a server that was told to end."""

    scene: str
    endings: Counter[str]
    code: int
    after_signal_s: float
    after_streams_s: float
    orphans: int
    """Processes of it that are still there."""
    files: list[str]
    """What it left in the folder for temporary files."""


def sigterm(stage: Stage) -> Outcome:
    """SIGTERM while streams run that end within the grace time, and such that do not."""
    count = stage.times(40, 3)
    grace = ("--drain", str(GRACE_S))
    in_time = [_local(stage, stage.times(8, 2)), _gateway(stage, "two workers", SLOW, count, *WORKERS)]
    too_long = [_gateway(stage, "streams without end", ENDLESS, count, *grace)]
    if not stage.is_short:
        in_time.append(_gateway(stage, "gateway", SLOW, count))
        too_long.append(_gateway(stage, "two workers, streams without end", ENDLESS, count, *grace, *WORKERS))
    both = [*in_time, *too_long]
    finished, told = _share(in_time, "whole"), _share(too_long, "error event")
    return Outcome(
        count=len(both),
        happened=(
            f"nobody new was let in; of the streams that could end in time {finished:g} % were whole, "
            f"of those that could not {told:g} % ended with an error event"
        ),
        figures=(
            Figure("finished in time", finished, "%", least=100),
            Figure("told that the server ends", told, "%", least=100),
            Figure("other exit codes than 0", sum(one.code != 0 for one in both), most=0),
            Figure("processes left", sum(one.orphans for one in both), most=0),
            Figure("files left", sum(len(one.files) for one in both), most=0),
            _late("exit after the last stream", (one.after_streams_s for one in in_time)),
            _late("exit after the grace time", (one.after_signal_s - GRACE_S for one in too_long)),
        ),
        troubles=tuple(
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


def _local(stage: Stage, count: int) -> Ended:
    """A model of our own: its engine stands still until the signal has come, so that every stream runs then."""
    stage.note("local model")
    temporary = _room(stage, "local")
    options = ("-np", str(count), "-c", str(2048 * count))
    with (
        small(stage.model, *options, environment={"TMPDIR": str(temporary)}) as server,
        engine_of(server) as engine,
    ):
        body = chat("tiny", max_tokens=stage.times(LONG, 500), temperature=0)
        return asyncio.run(_end("local model", server, temporary, body, count, engine.hold, engine.go))


def _gateway(stage: Stage, scene: str, reply: MockReply, count: int, *options: str) -> Ended:
    stage.note(scene)
    temporary = _room(stage, scene.replace(" ", "-"))
    with (
        upstream(lambda _: reply) as behind,
        gateway(temporary.parent, behind.url, options=options, environment={"TMPDIR": str(temporary)}) as server,
    ):
        if options[-2:] == WORKERS:
            _until_ready(server, 2)
        return asyncio.run(_end(scene, server, temporary, chat(), count))


def _room(stage: Stage, name: str) -> Path:
    """A folder for temporary files, within one for the server. Its path is short: sockets are to fit."""
    folder = stage.folder / name / "t"
    folder.mkdir(parents=True)
    return folder


def _until_ready(server: Running, count: int) -> None:
    """Wait until so many workers are ready."""
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
    """Begin streams, tell the server to end, and hear them all to their end."""
    family = descendants(server.process.pid)
    talks = [await say(server.port, post(body, server.port, key=server.key)) for _ in range(count)]
    try:
        heads = [await talk.first(b"data: ") for talk in talks]
        hold()
        began = time.monotonic()
        server.process.terminate()
        await asyncio.to_thread(until_refused, server)
        release()
        endings = await asyncio.gather(*(_ending(*one) for one in zip(talks, heads, strict=True)))
        last = time.monotonic()
        code = await asyncio.to_thread(server.process.wait, LIMIT_S)
    finally:
        for talk in talks:
            talk.leave()
    over = time.monotonic()
    return Ended(scene, Counter(endings), code, over - began, over - last, len(living(family)), _names(temporary))


def _names(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


async def _ending(talk: Talk, head: bytes) -> str:
    return (await talk.heard(head)).ending


def living(pids: Sequence[int]) -> list[int]:
    """Those that have not ended. One that nobody has asked for its exit code has."""
    return [pid for pid in pids if _state(pid) not in ("Z", "X", "")]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def sigkill(stage: Stage) -> Outcome:
    """SIGKILL of the parent: while the engine loads, is idle, is at work or stands still; and that of workers."""
    drawn = random.Random(stage.seed)
    times, left = [], []
    rounds = stage.times(20, 2)
    for number in range(rounds):
        stage.note(f"kill {number + 1} of {rounds}")
        # The first ones are the windows that matter most; after that the seed draws.
        name, scene = SCENES[number] if number < len(SCENES) else drawn.choice(SCENES)
        with scene(stage, drawn.random()) as server:
            family = descendants(server.process.pid)
            assert family, f"{name}: it has no child yet"
            server.process.kill()
            gone_s = _gone(family)
        times.append(gone_s)
        if living(family):
            left.append(f"{name}: {len(living(family))} processes left")
    return Outcome(
        count=rounds,
        happened=f"all children were gone in {max(times) * 1000:.0f} ms at most"
        if not left
        else f"children were left {len(left)} times",
        figures=(
            Figure("times that a process was left", len(left), most=0),
            Figure("longest until all were gone", round(max(times) * 1000), "ms", most=1000, is_timing=True),
        ),
        troubles=tuple(left),
    )


def _gone(family: Sequence[int]) -> float:
    """How long it takes until none of them lives."""
    began = time.monotonic()
    while living(family) and time.monotonic() - began < LIMIT_S:
        time.sleep(0.001)  # who looks without a pause takes the processor from those that are to end
    return time.monotonic() - began


@contextmanager
def _loading(stage: Stage, share: float) -> Iterator[Running]:
    """An engine that was just started; a tiny model takes about half a second to load."""
    with small(stage.model, is_awaited=False) as server:
        eventually(lambda: bool(children(server.process.pid)))
        time.sleep(share * 0.5)  # the fault is to come at any moment of it
        yield server


@contextmanager
def _working(stage: Stage, share: float) -> Iterator[Running]:
    with small(stage.model) as server, begin(server, max_tokens=LONG) as line:
        line.wait(rb'"content":"[^"]')
        yield server


@contextmanager
def _standing(stage: Stage, share: float) -> Iterator[Running]:
    with small(stage.model) as server, engine_of(server) as engine:
        engine.hold()
        yield server


@contextmanager
def _idle(stage: Stage, share: float) -> Iterator[Running]:
    with small(stage.model) as server:
        yield server


@contextmanager
def _workers(stage: Stage, share: float) -> Iterator[Running]:
    """The parent of workers, which stream."""
    with ExitStack() as stack:
        behind = stack.enter_context(upstream(lambda _: ENDLESS))
        server = stack.enter_context(gateway(stage.folder, behind.url, options=WORKERS))
        _until_ready(server, 2)
        line = stack.enter_context(begin(server))
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
