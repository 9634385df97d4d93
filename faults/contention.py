"""Other programs need the CPUs of an engine whose threads spin: it is restarted, and its answers continue."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import LIMIT_S, chat, send_request
from tests.support.faults import LONG_ANSWER, small_server
from tests.support.server import Running
from welldone.engines.cores import CONTENTION_NOTE, is_contended

THREADS = 2
PATCH = f"from welldone.engines import cores\ncores.CORES_PER_SPARE = {THREADS}\n"
"""Threads spin on machines with 8 CPUs or more; here they do on any machine."""


def contention(context: CaseContext) -> Outcome:
    """Start busy programs while answers are generated."""
    if sys.platform != "linux":
        return Outcome(not_run="needs /proc of Linux")
    (context.folder / "sitecustomize.py").write_text(PATCH)
    found: list[tuple[float, int, int]] = []
    for number in range(context.times(5, 1)):
        context.note(f"round {number + 1}")
        if not _is_calm():  # the engine would start with threads that sleep
            return Outcome(not_run="the CPUs of this machine are busy")
        with small_server(context.model, "-t", str(THREADS), environment={"PYTHONPATH": str(context.folder)}) as server:
            found.append(asyncio.run(_contend(server)))
    noticed_s = [seconds for seconds, _, _ in found]
    cut = sum(requests - whole for _, requests, whole in found)
    return Outcome(
        len(found),
        f"{len(found)} engines were restarted with threads that sleep, while they answered",
        (
            Figure("answers that were not whole", cut, most=0),
            Figure("longest time until the engine was replaced", max(noticed_s), "s", most=60, is_timing=True),
        ),
    )


def _is_calm() -> bool:
    """Wait until programs find a free CPU, for a while."""
    until = time.monotonic() + LIMIT_S
    while is_contended() and time.monotonic() < until:
        time.sleep(1)
    return not is_contended()


@contextmanager
def _busy() -> Iterator[None]:
    """Run a program for each CPU that the engine uses."""
    with ExitStack() as stack:
        for _ in range(THREADS):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(process.kill)
        yield


async def _contend(server: Running) -> tuple[float, int, int]:
    """Returns the seconds until the engine was replaced, and the number of requests and of whole answers."""
    endings = []
    with _busy():
        began = time.monotonic()
        async with asyncio.timeout(LIMIT_S):
            while not any(CONTENTION_NOTE in line for line in server.log.all):
                endings.append((await send_request(server, chat("tiny", max_tokens=LONG_ANSWER))).ending)
        endings.append((await send_request(server, chat("tiny", max_tokens=8))).ending)
        took_s = time.monotonic() - began
    return took_s, len(endings), endings.count("whole")


CASES = (Case("contention", "other programs need the CPUs of an engine whose threads spin", contention),)
