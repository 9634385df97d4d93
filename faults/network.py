"""A bad network, in a namespace of its own: packets are lost, the line is slow, or it is cut without a word.

`python -m faults.network KIND FOLDER` is the part within the namespace: it prints what came of it, as JSON.
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

from faults import telling
from faults.case import Case, Figure, Outcome, Stage
from tests.live.faults import begin, files_of, metric
from tests.live.raw import Line, judged
from tests.live.server import Running
from tests.live.upstream import ACTIVE, DONE, REPLIES, ROLE, STOP, TEXT, gateway, said, upstream
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest

ROOT = Path(__file__).parents[1]
LIMIT_S = 300.0
"""No kind takes that long: a hang is a failure."""
STREAMS, STREAMS_SHORT = 30, 3
TEXTS, TEXTS_SHORT = 20, 10
LOSS_PERCENT = 10
RATE = "256kbit"
_QUEUE_BYTES = "2mb"
IDLE_S, IDLE_SHORT_S, WRITE_S = 2.0, 0.5, 1.0
"""How long the server waits for an upstream that is cut off, and for a client."""
SETTLE_S = 30.0
"""What is not so by then will not be."""
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_TOOLS = {"unshare": "util-linux", "ip": "iproute2", "tc": "iproute2", "nft": "nftables"}
_TABLE = "table inet faults { chain arriving { type filter hook input priority 0; policy accept; %s }; }"
_INTO = ("unshare", "--user", "--map-root-user", "--net")


class ToolError(Exception):
    """The network cannot be made bad here."""


# Outside of the namespace.


def _case(kind: str) -> Callable[[Stage], Outcome]:
    return lambda stage: _run(kind, stage)


def _run(kind: str, stage: Stage) -> Outcome:
    missing = [f"{tool} (package {package})" for tool, package in _TOOLS.items() if _found(tool) is None]
    if missing:
        return Outcome(not_run=f"there is no {', '.join(missing)}")
    tried = subprocess.run([*_INTO, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        return Outcome(not_run=f"no network namespace may be made here: {tried.stderr.strip()}")
    words = [*_INTO, sys.executable, "-m", "faults.network", kind, str(stage.folder), *(["short"] * stage.is_short)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT) as inner:
        try:
            heard, _ = inner.communicate(timeout=LIMIT_S)
        finally:
            inner.terminate()  # not killed: it has a server to end
    assert inner.returncode == 0, f"the part within the namespace ended with {inner.returncode}"
    return msgspec.json.decode(heard, type=Outcome)


def _found(tool: str) -> str | None:
    return shutil.which(tool, path=_PATH)


# Within it.


def main() -> None:
    """Do one kind, and print what came of it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    kind, folder, *more = sys.argv[1:]
    stage = Stage(Path(folder), Path(), is_short=bool(more), note=telling.note)
    try:
        _do("ip", "link", "set", "lo", "mtu", "1500", "up")
        with _losing(), _slowed():
            pass
    except ToolError as error:
        outcome = Outcome(not_run=str(error))
    else:
        outcome = KINDS[kind](stage)
    sys.stdout.write(msgspec.json.encode(outcome).decode())


def _do(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "PATH": _PATH})
    if done.returncode:
        raise ToolError(f"{' '.join(words[:3])}: {done.stderr.strip()[:200]}")
    return done.stdout


@contextmanager
def _filtered(rule: str) -> Iterator[None]:
    """Every packet is held against this rule, for so long."""
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
    """The packets that were lost so far."""
    found = re.search(r"counter packets (\d+)", _do("nft", "list", "table", "inet", "faults"))
    return 0 if found is None else int(found[1])


@contextmanager
def _slowed() -> Iterator[None]:
    """All bytes of the machine pass one slow line: those to the upstream, and those to the clients.

    It keeps what it cannot send yet. One that lost packets, too, would be that of another case.
    """
    _do("tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", RATE, "burst", "8kb", "limit", _QUEUE_BYTES)
    try:
        yield
    finally:
        _do("tc", "qdisc", "del", "dev", "lo", "root")


def _choose(stage: Stage) -> Callable[[MockHttpRequest], MockReply]:
    text = msgspec.structs.replace(TEXT, after_s=0.02)
    long = MockReply((ROLE, *[text] * stage.times(TEXTS, TEXTS_SHORT), STOP, DONE))
    replies = {**REPLIES, "long": long, "ticks": MockReply((ROLE, text), end="endless")}

    def choose(seen: MockHttpRequest) -> MockReply:
        return replies[msgspec.json.decode(seen.body)["model"]]

    return choose


def _lossy(stage: Stage) -> Outcome:
    return _streams(stage, _losing(), lambda: f"while {_lost():,} packets were lost")


def _slow(stage: Stage) -> Outcome:
    return _streams(stage, _slowed(), lambda: f"over one line of {RATE}/s")


def _streams(stage: Stage, bad: AbstractContextManager[None], tell: Callable[[], str]) -> Outcome:
    """Streams over a bad network: each is whole, and breaks no rule."""
    count, troubles = stage.times(STREAMS, STREAMS_SHORT), []
    with upstream(_choose(stage)) as behind, gateway(stage.folder, behind.url, options=["--quiet"]) as server:
        began = time.monotonic()
        with bad, ExitStack() as lines:
            asked = [lines.enter_context(begin(server, model="long")) for _ in range(count)]
            for line in stage.each(asked):
                try:
                    judged(line.reply())
                except (AssertionError, OSError) as error:
                    troubles.append(str(error)[:500])
            how = tell()
        took_s = time.monotonic() - began
        is_well = said(server, stream=True) == said(server, stream=False)
    return Outcome(
        count,
        f"{count - len(troubles)} of {count} streams were whole and broke no rule {how}, in {took_s:.1f} s",
        (
            Figure("streams broken, or that broke a rule", len(troubles), most=0),
            Figure("not well afterwards", float(not is_well), most=0),
        ),
        tuple(troubles),
    )


def _black_hole(stage: Stage) -> Outcome:
    """Lines that are cut without a word, in the middle of streams."""
    count = stage.times(STREAMS, STREAMS_SHORT)
    idle_s = IDLE_SHORT_S if stage.is_short else IDLE_S
    options = ["--quiet", "--write", str(WRITE_S)]
    with (
        upstream(_choose(stage)) as behind,
        gateway(stage.folder, behind.url, options=options, each={"idle_s": idle_s}) as server,
    ):
        said(server, stream=True)
        pid, base = server.process.pid, files_of(server.process.pid)
        stage.note("without an upstream")
        endings, took_s = _without_upstream(server, behind.port, count)
        stage.note("without clients")
        is_known = _without_clients(server, count)
        is_well = said(server, stream=True) == said(server, stream=False)
        behind.stop()  # else the server keeps connections to it for a while, for the next request
        is_closed = _settled(lambda: files_of(pid) <= base)
    return Outcome(
        2 * count,
        f"{endings} of {count} streams whose upstream was cut off ended with an error event after {took_s:.1f} s, and "
        f"{count if is_known else 'not all'} whose client was cut off were given up",
        (
            Figure("streams without an error event", count - endings, most=0),
            Figure("after the idle limit", (took_s - idle_s) * 1000, "ms", most=500, is_timing=True),
            Figure("streams to nobody that were kept", float(not is_known), most=0),
            Figure("not well afterwards", float(not is_well), most=0),
            Figure("files left open", float(not is_closed), most=0),
        ),
    )


def _without_upstream(server: Running, port: int, count: int) -> tuple[int, float]:
    """The upstream is gone in mid-stream: how many clients are told, and after what time the last of them."""
    with ExitStack() as lines:
        asked = [lines.enter_context(begin(server, model="ticks")) for _ in range(count)]
        for line in asked:
            line.wait(b"Hello")
        with _filtered(f"tcp dport {port} drop; tcp sport {port} drop;"):
            began = time.monotonic()
            endings = sum(_is_told(line) for line in asked)
            return endings, time.monotonic() - began


def _is_told(line: Line) -> bool:
    while line.read():
        pass
    return b'data: {"error":' in line.heard and line.heard.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def _without_clients(server: Running, count: int) -> bool:
    """Clients are gone in mid-stream: whether all of them are given up, when what they do not take has piled up."""
    with ExitStack() as lines:
        asked = [lines.enter_context(begin(server, model="flood")) for _ in range(count)]
        for line in asked:
            line.wait(b"www")
        ports = ", ".join(str(line.socket.getsockname()[1]) for line in asked)
        with _filtered(f"tcp dport {{ {ports} }} drop; tcp sport {{ {ports} }} drop;"):
            return _settled(lambda: metric(server, ACTIVE) == 0)


def _settled(is_so: Callable[[], bool]) -> bool:
    """Whether something becomes so. Each look asks the server, or the system."""
    deadline = time.monotonic() + SETTLE_S
    while not is_so():
        if time.monotonic() > deadline:
            return False
    return True


KINDS: dict[str, Callable[[Stage], Outcome]] = {"loss": _lossy, "slow": _slow, "hole": _black_hole}

CASES = (
    Case("packet-loss", f"{LOSS_PERCENT} % of all packets are lost, while answers are streamed", _case("loss")),
    Case("slow-line", f"all streams share a line of {RATE}/s", _case("slow")),
    Case("black-hole", "lines to the upstream, and to clients, are cut without a word in mid-stream", _case("hole")),
)

if __name__ == "__main__":
    main()
