"""No more files can be opened: running streams continue, new clients get an error, nothing spins, hangs or crashes."""

import asyncio
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import ClientConnection, chat, connect, health, post, send_request
from faults.lightweight import SETTLE_S
from tests.support.faults import cpu_of, engine_of, open_files_of, small_server
from tests.support.server import Running
from tests.support.upstream import DONE, ROLE, STOP, TEXT, gateway, upstream
from welldone.mock.script import HELLO_REPLY, MockReply
from welldone.mock.server import MockHttpRequest

STREAMS = 10
CLIENTS, CLIENTS_SHORT = 400, 100
FREE = 20
"""Descriptors that are free when the clients connect."""
REFUSALS = 8
"""More than the failures that open a circuit breaker: this upstream is healthy."""
WATCH_S, WATCH_SHORT_S = 2.0, 0.3
LINES = 100
"""Highest number of log lines: one per response, and some for the errors."""
_PAUSE_S = 0.1
_SLOW = "slow"
_NO_FILE = r"the model tiny cannot be loaded: .*too many open files"
_NO_ROOM = "503 server_busy"


@contextmanager
def limited(pid: int, files: int) -> Iterator[None]:
    """Limit the open files of a process until the context ends."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (files, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def clients(context: CaseContext) -> Outcome:
    """More clients than descriptors, while streams run."""
    text = msgspec.structs.replace(TEXT, after_s=_PAUSE_S)
    slow = MockReply((ROLE, *[text] * context.times(50, 12), STOP, DONE))

    def choose(seen: MockHttpRequest) -> MockReply:
        return slow if f'"model":"{_SLOW}"' in seen.body else HELLO_REPLY

    with upstream(choose) as backend, gateway(context.folder, backend.url) as server:
        return asyncio.run(_clients(context, server))


async def _clients(context: CaseContext, server: Running) -> Outcome:
    pid, lines_before = server.process.pid, len(server.log.all)
    streams = [await _begin(server) for _ in range(STREAMS)]  # uses all idle connections
    heads = [await stream.read_until() for stream in streams]
    with limited(pid, open_files_of(pid) + 1):  # a client may come, and no more
        statuses = [(await send_request(server, chat())).status_text for _ in range(REFUSALS)]
    is_well = (await send_request(server, chat())).ending == "whole"
    count = context.times(CLIENTS, CLIENTS_SHORT)
    with limited(pid, open_files_of(pid) + FREE):
        crowd = [await connect(server.port, b"") for _ in context.each(range(count))]
        cpu = await _cpu(pid, context)
        endings = [(await stream.read_reply(head)).ending for stream, head in zip(streams, heads, strict=True)]
        for connection in (*streams, *crowd):
            connection.disconnect(is_reset=True)
        back_ms = await _back_ms(server)
    whole = endings.count("whole")
    return Outcome(
        count,
        f"{whole} of {STREAMS} streams completed; {statuses.count(_NO_ROOM)} of {REFUSALS} requests that arrived while "
        f"no descriptor was free for an upstream connection got {_NO_ROOM}",
        (
            Figure("streams broken", STREAMS - whole, most=0),
            Figure("upstream marked as failed", float(not is_well), most=0),
            Figure("CPU while exhausted", cpu, "% of a core", most=25, is_timing=True),
            Figure("not recovered", float(back_ms is None), most=0),
            Figure("recovered after", back_ms or 0.0, "ms", most=1_000, is_timing=True),
            Figure("log lines", len(server.log.all) - lines_before, most=LINES),
        ),
        tuple(f"without free descriptors, a request got {words}" for words in statuses if words != _NO_ROOM),
    )


def engine(context: CaseContext) -> Outcome:
    """An engine crashes while no descriptor is free for the next one."""
    with small_server(context.model) as server:
        return asyncio.run(_engine(server))


async def _engine(server: Running) -> Outcome:
    pid, body = server.process.pid, chat("tiny", max_tokens=4)
    lines_before = len(server.log.all)
    with engine_of(server) as child, limited(pid, 0):
        child.kill()
        found = await asyncio.to_thread(server.log.wait, _NO_FILE, seen=lines_before)
    back_ms = await _back_ms(server, body)
    return Outcome(
        1,
        f"the log reported {found[0]!r}; with descriptors available again, the model "
        f"{'did not answer' if back_ms is None else 'answered'}",
        (
            Figure("not recovered", float(back_ms is None), most=0),
            Figure("recovered after", back_ms or 0.0, "ms", most=10_000, is_timing=True),
        ),
    )


async def _begin(server: Running) -> ClientConnection:
    return await connect(server.port, post(chat(_SLOW), server.port, key=server.key))


async def _cpu(pid: int, context: CaseContext) -> float:
    """CPU use in percent of a core."""
    before, began = cpu_of(pid), time.monotonic()
    await asyncio.sleep(WATCH_SHORT_S if context.is_short else WATCH_S)
    return (cpu_of(pid) - before) / (time.monotonic() - began) * 100


async def _back_ms(server: Running, body: bytes = b"") -> float | None:
    """Seconds until the server answers again; None: not within the limit."""
    began = time.monotonic()
    while time.monotonic() < began + SETTLE_S:
        if await health(server) == 200 and (await send_request(server, body or chat())).ending == "whole":
            return (time.monotonic() - began) * 1000
    return None


CASES = (
    Case("descriptors", "more clients than file descriptors, while streams run", clients),
    Case("descriptors-engine", "an engine dies while no file can be opened", engine),
)
