"""Upstreams that fail before the first byte: one retry on another upstream, invisible to the client."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import chat, send_request
from faults.dialects import PATHS, ending, reply, request, text
from tests.support.faults import metric
from tests.support.server import Running
from tests.support.upstream import Upstream, gateway, upstream
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest
from welldone.mock.variants import FAULT_REPLIES

FAILURES = ("close-first", "reset-first", "cut-head")
BOTH = "both-"
"""Prefix of a failure that both upstreams have."""
WORDS = ("Hello ", "from ", "here")
HONEST = (502, 503, 504)
ATTEMPTS = "welldone_upstream_attempts_total"
ATTEMPTS_LIMIT = 2
"""A request is retried at most once."""
FIRST = {"weight": 1000}
SECOND = '[upstreams.second]\nurl = "%s"\nmodels = ["*"]\nweight = 0.01\nprobe_s = 0\n'
"""By weight, the first upstream gets all but one in 100,000 requests."""
FORMS = [(path, is_stream) for path in PATHS for is_stream in (True, False)]


def fail(context: CaseContext) -> Outcome:
    """The first upstream fails, then both; at last both refuse connections."""
    rounds = context.times(20, 1)
    tries = Tries()
    with ExitStack() as stack:
        first = stack.enter_context(upstream(tries.counted(_first)))
        second = stack.enter_context(upstream(tries.counted(_second)))
        server = stack.enter_context(gateway(context.folder, first.url, each=FIRST, more=SECOND % second.url))
        client = SequentialClient(server, lambda: tries.count)
        for round_ in range(rounds):
            for index, name in enumerate(FAILURES):
                context.note(f"round {round_ + 1} of {rounds}: {name}")
                _fail_so(client, name, FORMS[index % 2 :: 2] if context.is_short else FORMS)
        # The upstreams cannot count refused connections.
        client.tries = lambda: int(metric(server, ATTEMPTS))
        _go_away(client, first, second)
    return Outcome(
        client.count,
        f"{client.wholes} requests got a complete response from the other upstream; where both failed, "
        f"{client.errors} got an error ({_statuses(client.statuses)})",
        (
            Figure("requests with another result", client.count - client.wholes - client.errors, most=0),
            Figure("most attempts per request", client.attempts, most=ATTEMPTS_LIMIT),
        ),
        tuple(client.problems),
    )


def _fail_so(client: "SequentialClient", name: str, forms: Sequence[tuple[str, bool]]) -> None:
    """Send each of these requests. Successful ones in between keep the circuit breakers closed."""
    for path, is_stream in forms:
        client.send(path, name, stream=is_stream, is_answered=True)
        client.send(path, BOTH + name, stream=is_stream, is_answered=False)
        client.be_well()


def _go_away(client: "SequentialClient", first: Upstream, second: Upstream) -> None:
    """Stop the first upstream, then both."""
    first.stop()
    for path, is_stream in FORMS:
        client.send(path, "refused", stream=is_stream, is_answered=True)
    second.stop()
    for path, is_stream in FORMS:
        client.send(path, "refused by both", stream=is_stream, is_answered=False)


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
    """Counts the requests to upstreams."""

    def __init__(self) -> None:
        self.count = 0

    def counted(self, choose: Callable[[MockHttpRequest], MockReply]) -> Callable[[MockHttpRequest], MockReply]:
        """Wrap a reply function with the counter."""

        def count(seen: MockHttpRequest) -> MockReply:
            self.count += 1
            return choose(seen)

        return count


class SequentialClient:
    """A client with one request at a time, so that attempts can be assigned to requests."""

    def __init__(self, server: Running, tries: Callable[[], int]) -> None:
        self._server = server
        self.tries = tries
        """Returns the total number of attempts at upstreams."""
        self.count = self.wholes = self.errors = self.attempts = 0
        self.statuses: Counter[int] = Counter()
        """Statuses of errors."""
        self.problems: list[str] = []

    def send(self, path: str, model: str, *, stream: bool, is_answered: bool) -> None:
        """Send a request and check that the reply is an answer or an error, as expected."""
        before = self.tries()
        received = asyncio.run(send_request(self._server, request(path, model=model, stream=stream), path=path))
        attempts = self.tries() - before
        end, words = ending(path, received), text(path, received)
        is_right = is_answered and end == "whole" and words == "".join(WORDS)
        is_honest = not is_answered and end == "refused" and received.status in HONEST
        self.count += 1
        self.wholes += is_right
        self.errors += is_honest
        self.attempts = max(self.attempts, attempts)
        if not is_answered:
            self.statuses[received.status] += 1
        if not (is_right or is_honest):
            self.problems.append(
                f"{model}, {path}, {stream=}: {received.status}, {end}, {words!r}, {attempts} attempts"
            )

    def be_well(self) -> None:
        """Send a request that succeeds."""
        received = asyncio.run(send_request(self._server, chat("well")))
        assert received.ending == "whole", received


CASES = (
    Case(
        "no-first-byte",
        "an upstream refuses the connection, resets or closes it before the response head, or within it",
        fail,
    ),
)
