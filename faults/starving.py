"""There is too little of the machine: hardly any processor time, or no more memory."""

import asyncio
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from faults.asking import Heard, Talk, ask, chat, post, say, side_by_side
from faults.case import Case, Figure, Outcome, Stage
from faults.crashing import PROGRAM
from tests.live.faults import PROCESSING, RESTARTS, descendants, memory_of, metric, small, until
from tests.live.server import Running, serving
from tests.live.upstream import gateway, upstream
from welldone.server.body_budget import BODY_BUDGET_BYTES

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
"""Linux's own."""
SHARE = 0.05
"""Of one processor, for the server and its engine together."""
CLIENTS = 200
QUEUE = 8
BODY_BYTES = 3_900_000
"""Near the longest body that is taken."""
SPARE_BYTES = 96 * 2**20
"""More than what runs already has: an engine that grows passes it in a moment."""
TOLD = ("refused", "error event")
NOT_ALLOWED = Outcome(not_run="Linux's control groups cannot be used here: that takes root")


def processor(stage: Stage) -> Outcome:
    """200 clients ask a server that has a twentieth of a processor."""
    clients = stage.times(CLIENTS, 40)
    with small(stage.model, "-np", "2", "-c", "4096", "--queue", str(QUEUE)) as server:
        with _group("cpu", *_processor_files(SHARE)) as group:
            if group is None:
                return NOT_ALLOWED
            _join(group, server.process.pid)
            heard = asyncio.run(_ask_all(stage, server, clients))
            _leave(group)
        until(server, PROCESSING, 0)
        after = asyncio.run(ask(server, chat("tiny", max_tokens=8)))
    endings = Counter("shed" if _is_shed(one) else one.ending for one in heard)
    odd = {ending: count for ending, count in endings.items() if ending not in ("whole", "shed")}
    return Outcome(
        count=clients,
        happened=f"{endings['whole']} were answered in full, {endings['shed']} were told to come again later",
        figures=(
            Figure("answers broken", sum(odd.values()), most=0),
            Figure("answered in full", endings["whole"], least=QUEUE),
            Figure("told to come again later", endings["shed"], least=1),
            Figure("requests lost afterwards", int(after.ending != "whole"), most=0),
        ),
        troubles=tuple(f"{ending}: {count}" for ending, count in odd.items()),
    )


def _is_shed(heard: Heard) -> bool:
    """Whether it was refused in the right way: too much to do, and when to come again."""
    return heard.status in (429, 503) and b"\r\nretry-after:" in heard.head.lower()


async def _ask_all(stage: Stage, server: Running, clients: int) -> list[Heard]:
    body = chat("tiny", max_tokens=stage.times(64, 8))
    return await side_by_side(stage, range(clients), clients, lambda _: ask(server, body))


def bodies(stage: Stage) -> Outcome:
    """Many clients with the longest bodies that are taken, while nobody answers them."""
    count = stage.times(300, 20)
    with upstream() as behind, gateway(stage.folder, behind.url) as server:
        before = memory_of(server.process.pid)
        statuses = asyncio.run(_flood(server, count))
        grown = (memory_of(server.process.pid) - before) / 2**20
        behind.until_running(0)
        after = asyncio.run(ask(server, chat()))
    return Outcome(
        count=count,
        happened=f"{statuses[200]} were taken, {statuses[503]} told to come again later, {statuses[0]} cut off",
        figures=(
            Figure("taken at once", statuses[200], most=BODY_BUDGET_BYTES // BODY_BYTES),
            # The rest of a body that is refused is read for a second; who sends for longer does not hear why.
            Figure("cut off", statuses[0], is_timing=True),
            Figure("memory taken", round(grown), "MB", most=600, is_timing=True),
            Figure("requests lost afterwards", int(after.ending != "whole"), most=0),
        ),
    )


async def _flood(server: Running, count: int) -> Counter[int]:
    """Send so many long bodies, and hear the statuses; those that are taken hear theirs after a second of silence."""
    body = chat("silent", "a" * BODY_BYTES)
    talks = [await say(server.port, post(body, server.port, key=server.key)) for _ in range(count)]
    try:
        return Counter([await _status(talk) for talk in talks])
    finally:
        for talk in talks:
            talk.leave(is_rude=True)


async def _status(talk: Talk) -> int:
    try:
        return int((await talk.first(b"\r\n")).split()[1])
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0


def memory(stage: Stage) -> Outcome:
    """An engine takes all memory that it and the server may have: Linux ends the one that has most."""
    (stage.folder / "engine.py").write_text(PROGRAM)
    command = [sys.executable, str(stage.folder / "engine.py"), "{port}", str(stage.folder / "starts"), "alive"]
    (stage.folder / "welldone.toml").write_text(
        f"[models.greedy]\npreload = true\ncommand = {command}\n"
        f'[models.well]\npreload = true\nfile = "{stage.model}"\nthreads = 1\n'
    )
    rounds = stage.times(5, 1)
    with serving([], folder=stage.folder, is_awaited=False) as server:
        for name in ("greedy", "well"):
            server.log.wait(f"model is ready model={name}")
        family = [server.process.pid, *descendants(server.process.pid)]
        limit = sum(memory_of(pid) for pid in family) + SPARE_BYTES
        with _group("memory", *_memory_files(limit)) as group:
            if group is None:
                return NOT_ALLOWED
            _join(group, server.process.pid)
            told, others, after = [], [], []
            for _ in stage.each(range(rounds)):
                greedy, other = asyncio.run(_side_by_side(server))
                told.append(greedy.ending)
                others += [one.ending for one in other]
                after.append(asyncio.run(ask(server, chat("greedy"))).ending)
            deaths = metric(server, RESTARTS)
            is_up = server.process.poll() is None
            _leave(group)
    return Outcome(
        count=rounds,
        happened=(
            f"{deaths:g} greedy engines were ended by Linux; their clients heard {_words(told)}, "
            f"and the next answers were {_words(after)}"
        ),
        figures=(
            Figure("servers that fell", int(not is_up), most=0),
            Figure(
                "clients that were not told", sum(ending not in ("refused", "error event") for ending in told), most=0
            ),
            Figure("other requests lost", sum(ending != "whole" for ending in others), most=0),
            Figure("requests lost afterwards", sum(ending != "whole" for ending in after), most=0),
        ),
    )


async def _side_by_side(server: Running) -> tuple[Heard, list[Heard]]:
    greedy, *others = await asyncio.gather(
        ask(server, chat("greedy", "hog")), *(ask(server, chat("well", max_tokens=16)) for _ in range(4))
    )
    return greedy, others


def _words(endings: Sequence[str]) -> str:
    return ", ".join(sorted(set(endings)))


# Linux's control groups, of the first and of the second kind.


def _processor_files(share: float) -> tuple[dict[str, str], dict[str, str]]:
    quota = str(math.ceil(PERIOD_US * share))
    return {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": quota}, {"cpu.max": f"{quota} {PERIOD_US}"}


def _memory_files(limit: int) -> tuple[dict[str, str], dict[str, str]]:
    return {"memory.limit_in_bytes": str(limit)}, {"memory.max": str(limit), "memory.swap.max": "0"}


@contextmanager
def _group(kind: str, first: dict[str, str], second: dict[str, str]) -> Iterator[Path | None]:
    """A group with these limits, by either kind's files; None where it cannot be made."""
    is_first = (ROOT / kind / "tasks").exists()
    group = (ROOT / kind if is_first else ROOT) / f"welldone-faults-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    try:
        yield group if _set(group, first if is_first else second) else None
    finally:
        group.rmdir()


def _set(group: Path, files: dict[str, str]) -> bool:
    try:
        for name, value in files.items():
            (group / name).write_text(value)
    except OSError:
        return False
    return True


def _join(group: Path, parent: int) -> None:
    """Put a process and all that it started into the group. What it starts later is in it as well."""
    for pid in (parent, *descendants(parent)):
        (group / "cgroup.procs").write_text(str(pid))


def _leave(group: Path) -> None:
    """Put all that is in the group where it was."""
    for pid in (group / "cgroup.procs").read_text().split():
        (group.parent / "cgroup.procs").write_text(pid)


CASES = (
    Case("no-processor", "200 clients, and a twentieth of a processor", processor),
    Case("long-bodies", "many clients with the longest bodies that are taken", bodies),
    Case("no-memory", "an engine takes all the memory that there is", memory),
)
