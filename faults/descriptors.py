"""No more files may be opened: what runs goes on, who comes is told so, and nothing spins, hangs or falls."""

import asyncio
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from faults.asking import Talk, ask, chat, health, post, say
from faults.case import Case, Figure, Outcome, Stage
from faults.light import SETTLE_S
from tests.live.faults import cpu_of, engine_of, files_of, small
from tests.live.server import Running
from tests.live.upstream import DONE, ROLE, STOP, TEXT, gateway, upstream
from welldone.mock.script import HELLO_REPLY, MockReply
from welldone.mock.server import MockHttpRequest

STREAMS = 10
CLIENTS, CLIENTS_SHORT = 400, 100
FREE = 20
"""Files that the server may still open when the clients come."""
REFUSALS = 8
"""More than the failures after which an upstream would be left alone: this one is well."""
WATCH_S, WATCH_SHORT_S = 2.0, 0.3
LINES = 100
"""Lines of the log that all of it may be worth: one for each answer, and some for what went wrong."""
_PAUSE_S = 0.1
_SLOW = "slow"
_NO_FILE = r"the model tiny cannot be loaded: .*too many open files"
_NO_ROOM = "503 server_busy"


@contextmanager
def limited(pid: int, files: int) -> Iterator[None]:
    """So many files may a process have open, for so long."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (files, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def clients(stage: Stage) -> Outcome:
    """More clients than files, while streams run."""
    text = msgspec.structs.replace(TEXT, after_s=_PAUSE_S)
    slow = MockReply((ROLE, *[text] * stage.times(50, 12), STOP, DONE))

    def choose(seen: MockHttpRequest) -> MockReply:
        return slow if f'"model":"{_SLOW}"' in seen.body else HELLO_REPLY

    with upstream(choose) as behind, gateway(stage.folder, behind.url) as server:
        return asyncio.run(_clients(stage, server))


async def _clients(stage: Stage, server: Running) -> Outcome:
    pid, said = server.process.pid, len(server.log.all)
    streams = [await _begin(server) for _ in range(STREAMS)]  # they use every connection that waits for its use
    heads = [await stream.first() for stream in streams]
    with limited(pid, files_of(pid) + 1):  # a client may come, and no more
        told = [(await ask(server, chat())).told for _ in range(REFUSALS)]
    is_well = (await ask(server, chat())).ending == "whole"
    count = stage.times(CLIENTS, CLIENTS_SHORT)
    with limited(pid, files_of(pid) + FREE):
        crowd = [await say(server.port, b"") for _ in stage.each(range(count))]
        cpu = await _cpu(pid, stage)
        endings = [(await stream.heard(head)).ending for stream, head in zip(streams, heads, strict=True)]
        for talk in (*streams, *crowd):
            talk.leave(is_rude=True)
        back_ms = await _back_ms(server)
    whole = endings.count("whole")
    return Outcome(
        count,
        f"{whole} of {STREAMS} streams went on to their end, and {told.count(_NO_ROOM)} of {REFUSALS} who came while "
        f"there was no file for a connection to the upstream were told {_NO_ROOM}",
        (
            Figure("streams broken", STREAMS - whole, most=0),
            Figure("upstream taken for broken", float(not is_well), most=0),
            Figure("CPU meanwhile", cpu, "% of a core", most=25, is_timing=True),
            Figure("never served again", float(back_ms is None), most=0),
            Figure("served again after", back_ms or 0.0, "ms", most=1_000, is_timing=True),
            Figure("lines of the log", len(server.log.all) - said, most=LINES),
        ),
        tuple(f"out of files, a request was told {words}" for words in told if words != _NO_ROOM),
    )


def engine(stage: Stage) -> Outcome:
    """An engine dies while no file can be opened for the next one."""
    with small(stage.model) as server:
        return asyncio.run(_engine(server))


async def _engine(server: Running) -> Outcome:
    pid, body = server.process.pid, chat("tiny", max_tokens=4)
    said = len(server.log.all)
    with engine_of(server) as child, limited(pid, 0):
        child.kill()
        found = await asyncio.to_thread(server.log.wait, _NO_FILE, seen=said)
    back_ms = await _back_ms(server, body)
    return Outcome(
        1,
        f"its log said {found[0]!r}, with files again it {'did not' if back_ms is None else 'did'} answer",
        (
            Figure("never served again", float(back_ms is None), most=0),
            Figure("served again after", back_ms or 0.0, "ms", most=10_000, is_timing=True),
        ),
    )


async def _begin(server: Running) -> Talk:
    return await say(server.port, post(chat(_SLOW), server.port, key=server.key))


async def _cpu(pid: int, stage: Stage) -> float:
    """How much of a core it uses, in percent."""
    before, began = cpu_of(pid), time.monotonic()
    await asyncio.sleep(WATCH_SHORT_S if stage.is_short else WATCH_S)
    return (cpu_of(pid) - before) / (time.monotonic() - began) * 100


async def _back_ms(server: Running, body: bytes = b"") -> float | None:
    """After what time it answers again; None: not soon."""
    began = time.monotonic()
    while time.monotonic() < began + SETTLE_S:
        if await health(server) == 200 and (await ask(server, body or chat())).ending == "whole":
            return (time.monotonic() - began) * 1000
    return None


CASES = (
    Case("descriptors", "more clients than files may be opened, while streams run", clients),
    Case("descriptors-engine", "an engine dies while no file can be opened for the next", engine),
)
