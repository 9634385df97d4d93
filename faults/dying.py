"""Upstreams that die in the middle of a reply, at any byte: a partial answer never looks complete.

Each word of a reply names its request, its attempt and its position, so the text shows where it came from.
"""

import asyncio
import json
import re
import threading
from collections import Counter
from contextlib import ExitStack
from random import Random

import msgspec

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import CHAT, ClientReply, Ending, run_concurrently, send_request
from faults.deaths import DEATHS
from faults.dialects import COMPLETIONS, MESSAGES, NATIVE, PATHS, RESPONSES, ending, reply, request, text
from faults.failing import ATTEMPTS_LIMIT
from tests.support.server import Running
from tests.support.upstream import gateway, upstream
from welldone.core.catalog import Severity
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

WORDS = 20
PAUSE_S = 0.002  # before each word, so that clients have received some text when the connection ends
AT_ONCE = 16
ENDPOINTS = {CHAT: "chat", COMPLETIONS: "completions", RESPONSES: "responses", MESSAGES: "messages"}
"""Endpoints that the judge supports."""
WAYS = [
    (path, model, is_stream)
    for path, model in [*((path, "plain") for path in PATHS), *((path, "native") for path in NATIVE)]
    for is_stream in (True, True, True, False)  # mostly streams: only they can be truncated
]
"""`plain` upstreams have chat and completions, `native` ones every dialect."""


class DyingRequest(msgspec.Struct, frozen=True):
    """A request; its number selects how its first reply is cut."""

    number: int
    path: str
    model: str
    is_stream: bool

    def __str__(self) -> str:
        form = "streamed" if self.is_stream else "whole"
        return f"request {self.number} ({self.path}, {self.model}, {form}; {_death(self.number)})"


class Dying:
    """Replies of the upstreams; each upstream has its own thread."""

    def __init__(self, seed: int) -> None:
        self.attempts: Counter[int] = Counter()
        """Attempts by request."""
        self._seed = seed
        self._lock = threading.Lock()

    def choose(self, seen: MockHttpRequest) -> MockReply:
        """Return a truncated reply; of second attempts only every other one is truncated."""
        found = re.search(r"request (\d+)\.", seen.body)
        assert found is not None
        number = int(found[1])
        with self._lock:
            self.attempts[number] += 1
            attempt = self.attempts[number]
        draw = Random(f"{self._seed} {number} {attempt}")
        is_stream = json.loads(seen.body).get("stream", False)
        right = reply(seen.path, words_of(number, attempt), stream=is_stream, after_s=PAUSE_S)
        return right if attempt > 1 and draw.random() < 0.5 else DEATHS[_death(number)](right, draw)


def _death(number: int) -> str:
    return list(DEATHS)[number % len(DEATHS)]


def words_of(number: int, attempt: int) -> list[str]:
    """The words of an attempt to answer a request."""
    return [f"{number}.{attempt}.{index} " for index in range(WORDS)]


class Totals:
    """Totals over all requests."""

    def __init__(self) -> None:
        self.endings: Counter[Ending] = Counter()
        self.wrongs: Counter[str] = Counter()
        self.problems: list[str] = []
        self.attempts = 0

    def add(self, sent: DyingRequest, received: ClientReply, attempts: int) -> None:
        """Add a request and its attempts."""
        end, words = ending(sent.path, received), text(sent.path, received)
        self.endings[end] += 1
        self.attempts = max(self.attempts, attempts)
        for wrong in _wrongs(sent, received, end, words, attempts):
            self.wrongs[wrong] += 1
            self.problems.append(f"{sent}: {wrong}; {end}, {attempts} attempts, …{words[-30:]!r}")


SILENT = "silent truncations"
FOREIGN = "text that no upstream sent"
LATE = "retries after the first byte"
WORDLESS = "connections closed without an error"
BROKEN = "streams that break a rule"


def _wrongs(sent: DyingRequest, received: ClientReply, end: Ending, words: str, attempts: int) -> list[str]:
    all_words = {attempt: "".join(words_of(sent.number, attempt)) for attempt in range(1, attempts + 1)}
    source = next((attempt for attempt, whole in all_words.items() if whole.startswith(words)), 0)
    is_silent = end == "truncated" or (end == "whole" and words != all_words.get(source))
    wrongs = {
        SILENT: is_silent,
        FOREIGN: not source,
        LATE: sent.is_stream and bool(words) and 0 < source < attempts,
        WORDLESS: end == "aborted",
        BROKEN: sent.is_stream and received.status == 200 and breaks_a_rule(sent.path, received),
    }
    return [wrong for wrong, is_so in wrongs.items() if is_so]


def breaks_a_rule(path: str, received: ClientReply) -> bool:
    """Whether a stream violates a rule that breaks clients."""
    if path not in ENDPOINTS:
        return False
    trace = Trace(body=received.body, endpoint=ENDPOINTS[path], status=received.status, complete=received.is_whole)
    return any(finding.severity == Severity.BREAKS for finding in judge(trace).findings)


def die(context: CaseContext) -> Outcome:
    """Run many streams and some buffered replies, a few at once."""
    count = context.times(1000, 64)
    dying, totals = Dying(context.seed), Totals()
    with ExitStack() as stack:
        urls = [stack.enter_context(upstream(dying.choose)).url for _ in range(2)]
        more = "\n".join(
            f'[upstreams.n{index}]\nurl = "{url}"\nmodels = ["native"]\nspeaks = ["responses", "messages"]\nprobe_s = 0'
            for index, url in enumerate(urls)
        )
        options = ("--continue", "off")
        made = gateway(context.folder, *urls, each={"models": ["plain"]}, more=more, options=options)
        server = stack.enter_context(made)
        asyncio.run(_send_all(context, server, count, dying, totals))
    ends = totals.endings
    return Outcome(
        count,
        f"{ends['error event']} streams ended with an error event, {ends['refused']} requests got an error "
        f"status, {ends['whole']} got a complete response, repaired or from the other upstream",
        (
            *(Figure(wrong, totals.wrongs[wrong], most=0) for wrong in (SILENT, FOREIGN, LATE, WORDLESS, BROKEN)),
            Figure("most attempts per request", totals.attempts, most=ATTEMPTS_LIMIT),
        ),
        tuple(totals.problems),
    )


async def _send_all(context: CaseContext, server: Running, count: int, dying: Dying, totals: Totals) -> None:
    draw = Random(context.seed)

    async def send_one(sent: DyingRequest) -> None:
        body = request(sent.path, f"request {sent.number}.", model=sent.model, stream=sent.is_stream)
        received = await send_request(server, body, path=sent.path)
        totals.add(sent, received, dying.attempts[sent.number])

    await run_concurrently(
        context, [DyingRequest(number, *draw.choice(WAYS)) for number in range(count)], AT_ONCE, send_one
    )


CASES = (
    Case(
        "dies-midstream",
        "the upstream dies at any byte of a reply: closed, reset, ended early, or with garbage in it",
        die,
    ),
)
