"""Too little CPU time, or no more memory."""

import asyncio
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import ClientConnection, ClientReply, chat, connect, post, run_concurrently, send_request
from faults.crashing import PROGRAM
from tests.support.faults import PROCESSING, RESTARTS, descendants, memory_of, metric, small_server, wait_for_metric
from tests.support.server import Running, serving
from tests.support.upstream import gateway, upstream
from welldone.server.parts import BODY_BUDGET_BYTES

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
"""Default CFS period of Linux."""
SHARE = 0.05
"""Share of one CPU for the server and its engine."""
CLIENTS = 200
QUEUE = 8
BODY_BYTES = 3_900_000
"""Slightly below the maximum body size."""
SPARE_BYTES = 96 * 2**20
"""Slightly above the current usage, so that a growing engine exceeds it at once."""
TOLD = ("refused", "error event")
NOT_ALLOWED = Outcome(not_run="needs root, for Linux control groups")


def processor(context: CaseContext) -> Outcome:
    """200 clients of a server with a twentieth of a CPU."""
    clients = context.times(CLIENTS, 40)
    with small_server(context.model, "-np", "2", "-c", "4096", "--queue", str(QUEUE)) as server:
        with _group("cpu", *_processor_files(SHARE)) as group:
            if group is None:
                return NOT_ALLOWED
            _join(group, server.process.pid)
            received = asyncio.run(_send_all(context, server, clients))
            _leave(group)
        wait_for_metric(server, PROCESSING, 0)
        after = asyncio.run(send_request(server, chat("tiny", max_tokens=8)))
    endings = Counter("shed" if _is_shed(one) else one.ending for one in received)
    odd = {ending: count for ending, count in endings.items() if ending not in ("whole", "shed")}
    return Outcome(
        count=clients,
        happened=(
            f"{endings['whole']} requests got a complete response, {endings['shed']} were rejected with Retry-After"
        ),
        figures=(
            Figure("responses cut off", sum(odd.values()), most=0),
            Figure("complete responses", endings["whole"], least=QUEUE),
            Figure("rejected with Retry-After", endings["shed"], least=1),
            Figure("requests lost afterwards", int(after.ending != "whole"), most=0),
        ),
        problems=tuple(f"{ending}: {count}" for ending, count in odd.items()),
    )


def _is_shed(received: ClientReply) -> bool:
    """Whether it was rejected as overload with Retry-After."""
    return received.status in (429, 503) and b"\r\nretry-after:" in received.head.lower()


async def _send_all(context: CaseContext, server: Running, clients: int) -> list[ClientReply]:
    body = chat("tiny", max_tokens=context.times(64, 8))
    return await run_concurrently(context, range(clients), clients, lambda _: send_request(server, body))


def bodies(context: CaseContext) -> Outcome:
    """Many clients with bodies of the maximum size, and a silent upstream."""
    count = context.times(300, 20)
    with upstream() as backend, gateway(context.folder, backend.url) as server:
        before = memory_of(server.process.pid)
        statuses = asyncio.run(_flood(server, count))
        grown = (memory_of(server.process.pid) - before) / 2**20
        backend.wait_until_running(0)
        after = asyncio.run(send_request(server, chat()))
    return Outcome(
        count=count,
        happened=(
            f"{statuses[200]} bodies were accepted, {statuses[503]} rejected with Retry-After, {statuses[0]} cut off"
        ),
        figures=(
            Figure("accepted at once", statuses[200], most=BODY_BUDGET_BYTES // BODY_BYTES),
            # The rest of a rejected body is read for one second; a slower client does not receive the response.
            Figure("cut off", statuses[0], is_timing=True),
            Figure("memory growth", round(grown), "MB", most=600, is_timing=True),
            Figure("requests lost afterwards", int(after.ending != "whole"), most=0),
        ),
    )


async def _flood(server: Running, count: int) -> Counter[int]:
    """Send long bodies and return the statuses; accepted requests time out after a second."""
    body = chat("silent", "a" * BODY_BYTES)
    connections = [await connect(server.port, post(body, server.port, key=server.key)) for _ in range(count)]
    try:
        return Counter([await _status(connection) for connection in connections])
    finally:
        for connection in connections:
            connection.disconnect(is_reset=True)


async def _status(connection: ClientConnection) -> int:
    try:
        return int((await connection.read_until(b"\r\n")).split()[1])
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0


def memory(context: CaseContext) -> Outcome:
    """An engine exceeds the memory limit of the group: the OOM killer ends it."""
    (context.folder / "engine.py").write_text(PROGRAM)
    command = [sys.executable, str(context.folder / "engine.py"), "{port}", str(context.folder / "starts"), "alive"]
    (context.folder / "welldone.toml").write_text(
        f"[models.greedy]\npreload = true\ncommand = {command}\n"
        f'[models.well]\npreload = true\nfile = "{context.model}"\nthreads = 1\n'
    )
    rounds = context.times(5, 1)
    with serving([], folder=context.folder, is_awaited=False) as server:
        for name in ("greedy", "well"):
            server.log.wait(f"model is ready model={name}")
        family = [server.process.pid, *descendants(server.process.pid)]
        limit = sum(memory_of(pid) for pid in family) + SPARE_BYTES
        with _group("memory", *_memory_files(limit)) as group:
            if group is None:
                return NOT_ALLOWED
            _join(group, server.process.pid)
            endings, others, after = [], [], []
            for _ in context.each(range(rounds)):
                greedy, other = asyncio.run(_side_by_side(server))
                endings.append(greedy.ending)
                others += [one.ending for one in other]
                after.append(asyncio.run(send_request(server, chat("greedy"))).ending)
            deaths = metric(server, RESTARTS)
            is_up = server.process.poll() is None
            _leave(group)
    return Outcome(
        count=rounds,
        happened=(
            f"the OOM killer ended {deaths:g} engines; their clients got: {_words(endings)}; "
            f"the next responses were {_words(after)}"
        ),
        figures=(
            Figure("server crashes", int(not is_up), most=0),
            Figure(
                "clients without an error", sum(ending not in ("refused", "error event") for ending in endings), most=0
            ),
            Figure("other requests lost", sum(ending != "whole" for ending in others), most=0),
            Figure("requests lost afterwards", sum(ending != "whole" for ending in after), most=0),
        ),
    )


async def _side_by_side(server: Running) -> tuple[ClientReply, list[ClientReply]]:
    greedy, *others = await asyncio.gather(
        send_request(server, chat("greedy", "hog")),
        *(send_request(server, chat("well", max_tokens=16)) for _ in range(4)),
    )
    return greedy, others


def _words(endings: Sequence[str]) -> str:
    return ", ".join(sorted(set(endings)))


# cgroups, v1 and v2.


def _processor_files(share: float) -> tuple[dict[str, str], dict[str, str]]:
    quota = str(math.ceil(PERIOD_US * share))
    return {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": quota}, {"cpu.max": f"{quota} {PERIOD_US}"}


def _memory_files(limit: int) -> tuple[dict[str, str], dict[str, str]]:
    return {"memory.limit_in_bytes": str(limit)}, {"memory.max": str(limit), "memory.swap.max": "0"}


@contextmanager
def _group(kind: str, first: dict[str, str], second: dict[str, str]) -> Iterator[Path | None]:
    """Create a cgroup (v1 or v2) with these limits; None without permission."""
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
    """Move a process and its descendants into the group."""
    for pid in (parent, *descendants(parent)):
        (group / "cgroup.procs").write_text(str(pid))


def _leave(group: Path) -> None:
    """Move all processes of the group back."""
    for pid in (group / "cgroup.procs").read_text().split():
        (group.parent / "cgroup.procs").write_text(pid)


CASES = (
    Case("no-processor", "200 clients, and a twentieth of a CPU", processor),
    Case("long-bodies", "many clients with the longest accepted bodies", bodies),
    Case("no-memory", "an engine exhausts the memory", memory),
)
