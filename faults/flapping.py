"""Upstreams that go down and come back repeatedly: what is lost, and how soon they are used again."""

import asyncio
import socket
import time

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import chat, percentile, send_request
from faults.lightweight import UpstreamConnection, UpstreamState, between, close_connections, error_reply, upstream
from tests.support.faults import metric
from tests.support.server import Running
from welldone.gateway.upstream import FAILURE_THRESHOLD, OPEN_S

FAST_S = 0.5
"""p99 limit of a rejection: it must be immediate."""
SLACK_S = 2.0
"""Allowed delay after the open time of the breaker until a request tries the upstream."""
OPEN = 'welldone_upstream_breaker_state{state="open",upstream="a"}'
ENOUGH = 200
"""Requests within which the breaker must open: every other one goes to the upstream."""


class RequestCounter:
    """Counts requests, and records those without a complete answer."""

    def __init__(self) -> None:
        self.request_count = 0
        self.problems: list[str] = []

    async def send(self, server: Running) -> None:
        """Send one request."""
        self.request_count += 1
        received = await send_request(server, chat())
        if received.ending != "whole":
            self.problems.append(f"{received.ending} {received.status} {received.body[-200:]!r}")

    @property
    def summary(self) -> str:
        """Summary of the counts."""
        return f"{self.request_count - len(self.problems):,} of {self.request_count:,} requests got a complete response"


# One of two fails in bursts.


class UnreliableState(UpstreamState):
    """An upstream that can be made to fail: `refuses` or `drops`."""

    failure = ""
    posts = 0
    """Requests for an answer."""


class UnreliableConnection(UpstreamConnection):
    """Connection of that upstream."""

    def __init__(self, state: UnreliableState) -> None:
        super().__init__(state)
        self._unreliable = state

    def answer(self, model: str) -> None:
        """Answer in the current state."""
        self._unreliable.posts += bool(model)  # without a model it is a probe
        if self._unreliable.failure == "drops":
            self.transport.abort()
        elif self._unreliable.failure == "refuses":
            self.send(error_reply(500))
            self.done()
        else:
            super().answer(model)


def bursts(context: CaseContext) -> Outcome:
    """Let one of two upstreams fail for a while, twice."""
    return asyncio.run(_bursts(context))


async def _bursts(context: CaseContext) -> Outcome:
    unreliable, counter, failed, backs = UnreliableState(), RequestCounter(), list[int](), list[float]()
    async with (
        upstream(unreliable, lambda _: UnreliableConnection(unreliable)) as first,
        upstream(UpstreamState()) as second,
        between(context.folder, first, second) as server,
    ):
        for failure in ("refuses", "drops")[: context.times(2, 1)]:  # the short form does not wait for the recovery
            close_connections(unreliable)  # a failure on a reused connection does not count against the upstream
            unreliable.failure, before, began = failure, unreliable.posts, counter.request_count
            context.note(f"it {failure}")
            while not await asyncio.to_thread(metric, server, OPEN):
                assert counter.request_count < began + ENOUGH, f"it {failure}, and its breaker does not open"
                await counter.send(server)
            opened = time.monotonic()
            for _ in range(context.times(100, 10)):
                await counter.send(server)
            failed.append(unreliable.posts - before)
            unreliable.failure, before = "", unreliable.posts
            while not context.is_short and unreliable.posts == before:
                assert time.monotonic() < opened + 4 * OPEN_S, "it is never used again"
                context.note(f"it is well again, and left alone for {time.monotonic() - opened:.0f} s")
                await counter.send(server)
            backs.append(time.monotonic() - opened)
    figures = [
        Figure("requests lost", len(counter.problems), most=0),
        Figure("failures until the circuit breaker opened, at least", min(failed), least=FAILURE_THRESHOLD),
        Figure("failures until the circuit breaker opened, at most", max(failed), most=FAILURE_THRESHOLD),
    ]
    happened = f"{counter.summary}; after {max(failed)} failures in a row the circuit breaker opened"
    if not context.is_short:
        happened += f" for {max(backs):.0f} s"
        limit_s = OPEN_S + SLACK_S
        figures.append(Figure("used again after", max(backs), "s", least=OPEN_S - 1, most=limit_s, is_timing=True))
    return Outcome(len(failed), happened, tuple(figures), tuple(counter.problems))


# The only upstream stops.


def flapping(context: CaseContext) -> Outcome:
    """Stop and restart the only upstream."""
    return asyncio.run(_flapping(context))


async def _flapping(context: CaseContext) -> Outcome:
    times, refusals = context.times(50, 5), context.times(10, 6)
    counter, state, took, wrong = RequestCounter(), UpstreamState(), list[float](), list[str]()
    with socket.socket() as reserved:  # reserves the port while the upstream is stopped
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port: int = reserved.getsockname()[1]
        async with between(context.folder, port) as server:
            for number in range(times):
                context.note(f"{number} of {times}")
                for _ in range(refusals):
                    began = time.monotonic()
                    received = await send_request(server, chat())
                    took.append(time.monotonic() - began)
                    if received.ending != "refused":
                        wrong.append(f"nobody is there: {received.ending} {received.body[-200:]!r}")
                async with upstream(state, port=port):
                    await asyncio.gather(*(counter.send(server) for _ in range(5)))
    happened = (
        f"while it was down {len(took) - len(wrong):,} of {len(took):,} requests were rejected;"
        f" after it came back {counter.summary}, from the first on"
    )
    figures = (
        Figure("requests lost while it was up", len(counter.problems), most=0),
        Figure("requests not rejected while it was down", len(wrong), most=0),
        Figure("time to a rejection, p99", percentile(took, 99) * 1000, "ms", most=FAST_S * 1000, is_timing=True),
    )
    return Outcome(times, happened, figures, (*counter.problems, *wrong))


CASES = (
    Case("flapping", "the only upstream goes down and comes back", flapping),
    Case("bursts", "one of two upstreams fails in bursts, with status 500 and by closing connections", bursts),
)
