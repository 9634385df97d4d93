"""Upstreams that go away and come back, again and again: what is lost, and how soon they are used again."""

import asyncio
import socket
import time

from faults.asking import ask, chat, percentile
from faults.case import Case, Figure, Outcome, Stage
from faults.light import Desk, Speaker, between, hang_up, refuses, upstream
from tests.live.faults import metric
from tests.live.server import Running
from welldone.gateway.upstream import FAILURE_THRESHOLD, OPEN_S

FAST_S = 0.5
"""Of the slowest refusal in a hundred: nobody is waited for."""
SLACK_S = 2.0
"""Beyond the breaker's own time, until a request tries the upstream: they come many times a second."""
OPEN = 'welldone_upstream_breaker_state{state="open",upstream="a"}'
ENOUGH = 200
"""Requests after which a breaker that is still closed will not open: each second one should go to the upstream."""


class Tally:
    """What clients heard of answers that should have been whole."""

    def __init__(self) -> None:
        self.asked = 0
        self.troubles: list[str] = []

    async def ask(self, server: Running) -> None:
        """One more."""
        self.asked += 1
        heard = await ask(server, chat())
        if heard.ending != "whole":
            self.troubles.append(f"{heard.ending} {heard.status} {heard.body[-200:]!r}")

    @property
    def told(self) -> str:
        """How many were."""
        return f"{self.asked - len(self.troubles):,} of {self.asked:,} requests were answered whole"


# One of two fails in bursts.


class Moody(Desk):
    """An upstream that can be made to fail: `refuses` or `drops`."""

    mood = ""
    posts = 0
    """Answers that it was asked for."""


class Mood(Speaker):
    """A connection to it."""

    def __init__(self, desk: Moody) -> None:
        super().__init__(desk)
        self._moody = desk

    def answer(self, model: str) -> None:
        """Answer as it feels."""
        self._moody.posts += bool(model)  # without one it is looked at, and not asked
        if self._moody.mood == "drops":
            self.transport.abort()
        elif self._moody.mood == "refuses":
            self.say(refuses(500))
            self.done()
        else:
            super().answer(model)


def bursts(stage: Stage) -> Outcome:
    """Let one of two upstreams fail for a while, twice."""
    return asyncio.run(_bursts(stage))


async def _bursts(stage: Stage) -> Outcome:
    moody, tally, failed, backs = Moody(), Tally(), list[int](), list[float]()
    async with (
        upstream(moody, lambda _: Mood(moody)) as first,
        upstream(Desk()) as second,
        between(stage.folder, first, second) as server,
    ):
        for mood in ("refuses", "drops")[: stage.times(2, 1)]:  # in the short form nobody waits until it is back
            hang_up(moody)  # what is lost on a connection that was used before is not held against it
            moody.mood, before, began = mood, moody.posts, tally.asked
            stage.note(f"it {mood}")
            while not await asyncio.to_thread(metric, server, OPEN):
                assert tally.asked < began + ENOUGH, f"it {mood}, and its breaker does not open"
                await tally.ask(server)
            opened = time.monotonic()
            for _ in range(stage.times(100, 10)):
                await tally.ask(server)
            failed.append(moody.posts - before)
            moody.mood, before = "", moody.posts
            while not stage.is_short and moody.posts == before:
                assert time.monotonic() < opened + 4 * OPEN_S, "it is never used again"
                stage.note(f"it is well again, and left alone for {time.monotonic() - opened:.0f} s")
                await tally.ask(server)
            backs.append(time.monotonic() - opened)
    figures = [
        Figure("requests lost", len(tally.troubles), most=0),
        Figure("failures until it was left alone, at least", min(failed), least=FAILURE_THRESHOLD),
        Figure("failures until it was left alone, at most", max(failed), most=FAILURE_THRESHOLD),
    ]
    happened = f"{tally.told}; {max(failed)} failures in a row, and the upstream was left alone"
    if not stage.is_short:
        happened += f" for {max(backs):.0f} s"
        limit_s = OPEN_S + SLACK_S
        figures.append(Figure("used again after", max(backs), "s", least=OPEN_S - 1, most=limit_s, is_timing=True))
    return Outcome(len(failed), happened, tuple(figures), tuple(tally.troubles))


# The only one goes away.


def flapping(stage: Stage) -> Outcome:
    """Let the only upstream go away, and come back."""
    return asyncio.run(_flapping(stage))


async def _flapping(stage: Stage) -> Outcome:
    times, refusals = stage.times(50, 5), stage.times(10, 6)
    tally, desk, took, wrong = Tally(), Desk(), list[float](), list[str]()
    with socket.socket() as place:  # it keeps the port while nobody listens there
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", 0))
        port: int = place.getsockname()[1]
        async with between(stage.folder, port) as server:
            for number in range(times):
                stage.note(f"{number} of {times}")
                for _ in range(refusals):
                    began = time.monotonic()
                    heard = await ask(server, chat())
                    took.append(time.monotonic() - began)
                    if heard.ending != "refused":
                        wrong.append(f"nobody is there: {heard.ending} {heard.body[-200:]!r}")
                async with upstream(desk, port=port):
                    await asyncio.gather(*(tally.ask(server) for _ in range(5)))
    happened = (
        f"while it was away {len(took) - len(wrong):,} of {len(took):,} requests were refused;"
        f" when it was back {tally.told}, from the first on"
    )
    figures = (
        Figure("requests lost while it was there", len(tally.troubles), most=0),
        Figure("other than refused while it was not", len(wrong), most=0),
        Figure("a refusal takes, p99", percentile(took, 99) * 1000, "ms", most=FAST_S * 1000, is_timing=True),
    )
    return Outcome(times, happened, figures, (*tally.troubles, *wrong))


CASES = (
    Case("flapping", "the only upstream goes away and comes back", flapping),
    Case("bursts", "one of two upstreams fails in bursts, with status 500 and by hanging up", bursts),
)
