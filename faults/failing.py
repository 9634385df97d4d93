"""Upstreams that fail before the first byte of an answer: another one is asked, once, and the client hears no fault."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from faults.asking import ask, chat
from faults.case import Case, Figure, Outcome, Stage
from faults.dialects import PATHS, ending, reply, request, text
from tests.live.faults import metric
from tests.live.server import Running
from tests.live.upstream import Upstream, gateway, upstream
from welldone.mock.faults import FAULT_REPLIES
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest

FAILURES = ("close-first", "reset-first", "cut-head")
BOTH = "both-"
"""Before the name of a failure: the second upstream has it too."""
WORDS = ("Hello ", "from ", "here")
HONEST = (502, 503, 504)
ATTEMPTS = "welldone_upstream_attempts_total"
ATTEMPTS_LIMIT = 2
"""A request is asked for once more, and never again."""
FIRST = {"weight": 1000}
SECOND = '[upstreams.second]\nurl = "%s"\nmodels = ["*"]\nweight = 0.01\nprobe_s = 0\n'
"""The first is asked first, but for one time in 100,000."""
FORMS = [(path, is_stream) for path in PATHS for is_stream in (True, False)]


def fail(stage: Stage) -> Outcome:
    """The first upstream fails, then both do; in the end they are gone."""
    rounds = stage.times(20, 1)
    tries = Tries()
    with ExitStack() as stack:
        first = stack.enter_context(upstream(tries.counted(_first)))
        second = stack.enter_context(upstream(tries.counted(_second)))
        server = stack.enter_context(gateway(stage.folder, first.url, each=FIRST, more=SECOND % second.url))
        asking = Asking(server, lambda: tries.count)
        for round_ in range(rounds):
            for place, name in enumerate(FAILURES):
                stage.note(f"round {round_ + 1} of {rounds}: {name}")
                _fail_so(asking, name, FORMS[place % 2 :: 2] if stage.is_short else FORMS)
        # Of connections that they refuse, they know nothing.
        asking.tries = lambda: int(metric(server, ATTEMPTS))
        _go_away(asking, first, second)
    return Outcome(
        asking.count,
        f"{asking.wholes} requests had a whole answer from the other upstream; where both failed, "
        f"{asking.errors} had an error ({_statuses(asking.statuses)})",
        (
            Figure("requests that were answered otherwise", asking.count - asking.wholes - asking.errors, most=0),
            Figure("most attempts for a request", asking.attempts, most=ATTEMPTS_LIMIT),
        ),
        tuple(asking.troubles),
    )


def _fail_so(asking: "Asking", name: str, forms: Sequence[tuple[str, bool]]) -> None:
    """Each of these ways to ask. In between all is well, so that the upstreams are not left alone."""
    for path, is_stream in forms:
        asking.ask(path, name, stream=is_stream, is_answered=True)
        asking.ask(path, BOTH + name, stream=is_stream, is_answered=False)
        asking.be_well()


def _go_away(asking: "Asking", first: Upstream, second: Upstream) -> None:
    """Connections are refused: those to the first upstream, then all."""
    first.stop()
    for path, is_stream in FORMS:
        asking.ask(path, "refused", stream=is_stream, is_answered=True)
    second.stop()
    for path, is_stream in FORMS:
        asking.ask(path, "refused by both", stream=is_stream, is_answered=False)


def _first(seen: MockHttpRequest) -> MockReply:
    return FAULT_REPLIES.get(_model(seen).removeprefix(BOTH)) or _right(seen)


def _second(seen: MockHttpRequest) -> MockReply:
    name = _model(seen)
    return FAULT_REPLIES[name.removeprefix(BOTH)] if name.startswith(BOTH) else _right(seen)


def _model(seen: MockHttpRequest) -> str:
    name: str = json.loads(seen.body)["model"]
    return name


def _right(seen: MockHttpRequest) -> MockReply:
    return reply(seen.path, WORDS, stream=json.loads(seen.body).get("stream", False))


def _statuses(statuses: Counter[int]) -> str:
    return ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))


class Tries:
    """Counts the requests that come to upstreams."""

    def __init__(self) -> None:
        self.count = 0

    def counted(self, choose: Callable[[MockHttpRequest], MockReply]) -> Callable[[MockHttpRequest], MockReply]:
        """The same choice, counted."""

        def count(seen: MockHttpRequest) -> MockReply:
            self.count += 1
            return choose(seen)

        return count


class Asking:
    """One client, whose requests come one after the other: so it is known which attempts belong to which."""

    def __init__(self, server: Running, tries: Callable[[], int]) -> None:
        self._server = server
        self.tries = tries
        """How often upstreams were asked, in all."""
        self.count = self.wholes = self.errors = self.attempts = 0
        self.statuses: Counter[int] = Counter()
        """Of errors."""
        self.troubles: list[str] = []

    def ask(self, path: str, model: str, *, stream: bool, is_answered: bool) -> None:
        """Ask, and look whether there is an answer or an honest error, as there should be."""
        before = self.tries()
        heard = asyncio.run(ask(self._server, request(path, model=model, stream=stream), path=path))
        attempts = self.tries() - before
        end, words = ending(path, heard), text(path, heard)
        is_right = is_answered and end == "whole" and words == "".join(WORDS)
        is_honest = not is_answered and end == "refused" and heard.status in HONEST
        self.count += 1
        self.wholes += is_right
        self.errors += is_honest
        self.attempts = max(self.attempts, attempts)
        if not is_answered:
            self.statuses[heard.status] += 1
        if not (is_right or is_honest):
            self.troubles.append(f"{model}, {path}, {stream=}: {heard.status}, {end}, {words!r}, {attempts} attempts")

    def be_well(self) -> None:
        """A request that is answered at once."""
        heard = asyncio.run(ask(self._server, chat("well")))
        assert heard.ending == "whole", heard


CASES = (
    Case(
        "no-first-byte",
        "an upstream refuses the connection, resets or closes it before its head, or closes it within its head",
        fail,
    ),
)
