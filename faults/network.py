"""A bad network in its own namespace: lost packets, a slow link, or a link that is cut silently.

`python -m faults.network KIND FOLDER` runs within the namespace and prints the outcome as JSON.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import msgspec

from faults import progress
from faults.case import Case, CaseContext, Figure, Outcome
from tests.support.faults import metric, open_files_of, start_chat
from tests.support.raw import RawConnection, parse_valid
from tests.support.server import Running
from tests.support.upstream import ACTIVE, DONE, REPLIES, ROLE, STOP, TEXT, chat_text, gateway, upstream
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest

ROOT = Path(__file__).parents[1]
LIMIT_S = 300.0
"""Longer than any case: turns a hang into a failure."""
STREAMS, STREAMS_SHORT = 30, 3
TEXTS, TEXTS_SHORT = 20, 10
LOSS_PERCENT = 10
RATE = "256kbit"
_QUEUE_BYTES = "2mb"
IDLE_S, IDLE_SHORT_S, WRITE_S = 2.0, 0.5, 1.0
"""Timeouts of the server for an unreachable upstream and client."""
SETTLE_S = 30.0
"""Time for values to settle."""
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_TOOLS = {"unshare": "util-linux", "ip": "iproute2", "tc": "iproute2", "nft": "nftables"}
_TABLE = "table inet faults { chain arriving { type filter hook input priority 0; policy accept; %s }; }"
_INTO = ("unshare", "--user", "--map-root-user", "--net")


class ToolError(Exception):
    """Network faults are not possible here."""


# Outside the namespace.


def _case(kind: str) -> Callable[[CaseContext], Outcome]:
    return lambda context: _run(kind, context)


def _run(kind: str, context: CaseContext) -> Outcome:
    missing = [f"{tool} (package {package})" for tool, package in _TOOLS.items() if _found(tool) is None]
    if missing:
        return Outcome(not_run=f"there is no {', '.join(missing)}")
    tried = subprocess.run([*_INTO, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        return Outcome(not_run=f"no network namespace may be made here: {tried.stderr.strip()}")
    words = [*_INTO, sys.executable, "-m", "faults.network", kind, str(context.folder), *(["short"] * context.is_short)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT) as inner:
        try:
            received, _ = inner.communicate(timeout=LIMIT_S)
        finally:
            inner.terminate()  # not killed: it has to stop its server
    assert inner.returncode == 0, f"the part within the namespace ended with {inner.returncode}"
    return msgspec.json.decode(received, type=Outcome)


def _found(tool: str) -> str | None:
    return shutil.which(tool, path=_PATH)


# Inside the namespace.


def main() -> None:
    """Run one case and print its outcome."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    kind, folder, *more = sys.argv[1:]
    context = CaseContext(Path(folder), Path(), is_short=bool(more), note=progress.note)
    try:
        _do("ip", "link", "set", "lo", "mtu", "1500", "up")
        with _losing(), _slowed():
            pass
    except ToolError as error:
        outcome = Outcome(not_run=str(error))
    else:
        outcome = KINDS[kind](context)
    sys.stdout.write(msgspec.json.encode(outcome).decode())


def _do(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "PATH": _PATH})
    if done.returncode:
        raise ToolError(f"{' '.join(words[:3])}: {done.stderr.strip()[:200]}")
    return done.stdout


@contextmanager
def _filtered(rule: str) -> Iterator[None]:
    """Apply a firewall rule until the context ends."""
    _do("nft", _TABLE % rule)
    try:
        yield
    finally:
        _do("nft", "delete", "table", "inet", "faults")


@contextmanager
def _losing() -> Iterator[None]:
    with _filtered(f"meta l4proto tcp numgen random mod 100 < {LOSS_PERCENT} counter drop;"):
        yield


def _lost() -> int:
    """Return the number of dropped packets."""
    found = re.search(r"counter packets (\d+)", _do("nft", "list", "table", "inet", "faults"))
    return 0 if found is None else int(found[1])


@contextmanager
def _slowed() -> Iterator[None]:
    """Send all traffic of the namespace, to the upstream and to the clients, over one slow link.

    The link queues packets and drops none; packet loss is another case.
    """
    _do("tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", RATE, "burst", "8kb", "limit", _QUEUE_BYTES)
    try:
        yield
    finally:
        _do("tc", "qdisc", "del", "dev", "lo", "root")


def _choose(context: CaseContext) -> Callable[[MockHttpRequest], MockReply]:
    text = msgspec.structs.replace(TEXT, after_s=0.02)
    long = MockReply((ROLE, *[text] * context.times(TEXTS, TEXTS_SHORT), STOP, DONE))
    replies = {**REPLIES, "long": long, "ticks": MockReply((ROLE, text), end="endless")}

    def choose(seen: MockHttpRequest) -> MockReply:
        return replies[msgspec.json.decode(seen.body)["model"]]

    return choose


def _lossy(context: CaseContext) -> Outcome:
    return _streams(context, _losing(), lambda: f"while {_lost():,} packets were lost")


def _slow(context: CaseContext) -> Outcome:
    return _streams(context, _slowed(), lambda: f"over a link of {RATE}/s")


def _streams(context: CaseContext, bad: AbstractContextManager[None], tell: Callable[[], str]) -> Outcome:
    """Streams over a bad network: each is complete and valid."""
    count, problems = context.times(STREAMS, STREAMS_SHORT), []
    with upstream(_choose(context)) as backend, gateway(context.folder, backend.url, options=["--quiet"]) as server:
        began = time.monotonic()
        with bad, ExitStack() as lines:
            connections = [lines.enter_context(start_chat(server, model="long")) for _ in range(count)]
            for line in context.each(connections):
                try:
                    parse_valid(line.reply())
                except (AssertionError, OSError) as error:
                    problems.append(str(error)[:500])
            how = tell()
        took_s = time.monotonic() - began
        is_well = chat_text(server, stream=True) == chat_text(server, stream=False)
    return Outcome(
        count,
        f"{count - len(problems)} of {count} streams were complete and broke no rule {how}, in {took_s:.1f} s",
        (
            Figure("streams incomplete or in breach of a rule", len(problems), most=0),
            Figure("not recovered", float(not is_well), most=0),
        ),
        tuple(problems),
    )


def _black_hole(context: CaseContext) -> Outcome:
    """Drop all packets of connections in mid-stream."""
    count = context.times(STREAMS, STREAMS_SHORT)
    idle_s = IDLE_SHORT_S if context.is_short else IDLE_S
    options = ["--quiet", "--write", str(WRITE_S)]
    with (
        upstream(_choose(context)) as backend,
        gateway(context.folder, backend.url, options=options, each={"idle_s": idle_s}) as server,
    ):
        chat_text(server, stream=True)
        pid, base = server.process.pid, open_files_of(server.process.pid)
        context.note("without an upstream")
        endings, took_s = _without_upstream(server, backend.port, count)
        context.note("without clients")
        is_known = _without_clients(server, count)
        is_well = chat_text(server, stream=True) == chat_text(server, stream=False)
        backend.stop()  # else the server would keep idle connections to it
        is_closed = _settled(lambda: open_files_of(pid) <= base)
    return Outcome(
        2 * count,
        f"{endings} of {count} streams with a lost upstream ended with an error event after {took_s:.1f} s, and "
        f"{count if is_known else 'not all'} streams with a lost client were aborted",
        (
            Figure("streams without an error event", count - endings, most=0),
            Figure("delay after the idle limit", (took_s - idle_s) * 1000, "ms", most=500, is_timing=True),
            Figure("streams to lost clients not aborted", float(not is_known), most=0),
            Figure("not recovered", float(not is_well), most=0),
            Figure("leaked file descriptors", float(not is_closed), most=0),
        ),
    )


def _without_upstream(server: Running, port: int, count: int) -> tuple[int, float]:
    """Drop the upstream in mid-stream; return the notified clients and the time of the last."""
    with ExitStack() as lines:
        connections = [lines.enter_context(start_chat(server, model="ticks")) for _ in range(count)]
        for line in connections:
            line.wait(b"Hello")
        with _filtered(f"tcp dport {port} drop; tcp sport {port} drop;"):
            began = time.monotonic()
            endings = sum(_is_notified(line) for line in connections)
            return endings, time.monotonic() - began


def _is_notified(line: RawConnection) -> bool:
    while line.read():
        pass
    return b'data: {"error":' in line.received and line.received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def _without_clients(server: Running, count: int) -> bool:
    """Drop clients in mid-stream; return whether all are disconnected after their buffers fill."""
    with ExitStack() as lines:
        connections = [lines.enter_context(start_chat(server, model="flood")) for _ in range(count)]
        for line in connections:
            line.wait(b"www")
        ports = ", ".join(str(line.socket.getsockname()[1]) for line in connections)
        with _filtered(f"tcp dport {{ {ports} }} drop; tcp sport {{ {ports} }} drop;"):
            return _settled(lambda: metric(server, ACTIVE) == 0)


def _settled(is_so: Callable[[], bool]) -> bool:
    """Poll a condition until it holds or time is up."""
    deadline = time.monotonic() + SETTLE_S
    while not is_so():
        if time.monotonic() > deadline:
            return False
    return True


KINDS: dict[str, Callable[[CaseContext], Outcome]] = {"loss": _lossy, "slow": _slow, "hole": _black_hole}

CASES = (
    Case("packet-loss", f"{LOSS_PERCENT} % of all packets are lost, while answers are streamed", _case("loss")),
    Case("slow-line", f"all streams share a line of {RATE}/s", _case("slow")),
    Case("black-hole", "connections to the upstream and to clients are cut silently in mid-stream", _case("hole")),
)

if __name__ == "__main__":
    main()
