"""Upstreams that die in the middle of an answer, at any byte and in any way: nobody takes a part for the whole.

Each word of an answer says of which request and which attempt it is, and its place. So what a client hears tells who
said it.
"""

import asyncio
import json
import re
import threading
from collections import Counter
from contextlib import ExitStack
from random import Random

import msgspec

from faults.asking import CHAT, Ending, Heard, ask, side_by_side
from faults.case import Case, Figure, Outcome, Stage
from faults.deaths import DEATHS
from faults.dialects import COMPLETIONS, MESSAGES, NATIVE, PATHS, RESPONSES, ending, reply, request, text
from faults.failing import ATTEMPTS_LIMIT
from tests.live.server import Running
from tests.live.upstream import gateway, upstream
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest
from welldone.rules.judge import LintVerdict, judge
from welldone.rules.trace import Trace

WORDS = 20
PAUSE_S = 0.002  # before each word, so that clients have heard some when the end comes
AT_ONCE = 16
ENDPOINTS = {CHAT: "chat", COMPLETIONS: "completions", RESPONSES: "responses", MESSAGES: "messages"}
"""What the judge knows."""
WAYS = [
    (path, model, is_stream)
    for path, model in [*((path, "plain") for path in PATHS), *((path, "native") for path in NATIVE)]
    for is_stream in (True, True, True, False)  # most are streams: only there can an answer break off
]
"""`plain` upstreams speak chat and completions, and `native` ones all that an upstream can."""


class Asked(msgspec.Struct, frozen=True):
    """A request. Its number decides how its first answer dies."""

    number: int
    path: str
    model: str
    is_stream: bool

    def __str__(self) -> str:
        form = "streamed" if self.is_stream else "whole"
        return f"request {self.number} ({self.path}, {self.model}, {form}; {_death(self.number)})"


class Dying:
    """What the upstreams do, each in a thread of its own."""

    def __init__(self, seed: int) -> None:
        self.attempts: Counter[int] = Counter()
        """How often each request was tried."""
        self._seed = seed
        self._lock = threading.Lock()

    def choose(self, seen: MockHttpRequest) -> MockReply:
        """An answer that dies. At a second attempt it does so only in one of two cases."""
        found = re.search(r"request (\d+)\.", seen.body)
        assert found is not None
        number = int(found[1])
        with self._lock:
            self.attempts[number] += 1
            attempt = self.attempts[number]
        draw = Random(f"{self._seed} {number} {attempt}")
        is_stream = json.loads(seen.body).get("stream", False)
        right = reply(seen.path, said(number, attempt), stream=is_stream, after_s=PAUSE_S)
        return right if attempt > 1 and draw.random() < 0.5 else DEATHS[_death(number)](right, draw)


def _death(number: int) -> str:
    return list(DEATHS)[number % len(DEATHS)]


def said(number: int, attempt: int) -> list[str]:
    """The words of an attempt to answer a request."""
    return [f"{number}.{attempt}.{place} " for place in range(WORDS)]


class Tally:
    """What became of all requests."""

    def __init__(self) -> None:
        self.endings: Counter[Ending] = Counter()
        self.wrongs: Counter[str] = Counter()
        self.troubles: list[str] = []
        self.attempts = 0

    def add(self, asked: Asked, heard: Heard, attempts: int) -> None:
        """One more, and how often it was tried."""
        end, words = ending(asked.path, heard), text(asked.path, heard)
        self.endings[end] += 1
        self.attempts = max(self.attempts, attempts)
        for wrong in _wrongs(asked, heard, end, words, attempts):
            self.wrongs[wrong] += 1
            self.troubles.append(f"{asked}: {wrong}; {end}, {attempts} attempts, …{words[-30:]!r}")


SILENT = "silent truncations"
FOREIGN = "texts that nobody said"
LATE = "second attempts after a first byte"
WORDLESS = "connections cut without a word"
BROKEN = "streams that break a rule"


def _wrongs(asked: Asked, heard: Heard, end: Ending, words: str, attempts: int) -> list[str]:
    all_words = {attempt: "".join(said(asked.number, attempt)) for attempt in range(1, attempts + 1)}
    speaker = next((attempt for attempt, whole in all_words.items() if whole.startswith(words)), 0)
    is_silent = end == "truncated" or (end == "whole" and words != all_words.get(speaker))
    wrongs = {
        SILENT: is_silent,
        FOREIGN: not speaker,
        LATE: asked.is_stream and bool(words) and 0 < speaker < attempts,
        WORDLESS: end == "aborted",
        BROKEN: asked.is_stream and heard.status == 200 and not _is_right(asked, heard),
    }
    return [wrong for wrong, is_so in wrongs.items() if is_so]


def _is_right(asked: Asked, heard: Heard) -> bool:
    """Whether a stream breaks no rule that is known to break a client."""
    if asked.path not in ENDPOINTS:
        return True
    trace = Trace(body=heard.body, endpoint=ENDPOINTS[asked.path], status=heard.status, complete=heard.is_whole)
    return judge(trace).verdict is not LintVerdict.FAIL


def die(stage: Stage) -> Outcome:
    """Many streams and some whole answers, a few at once."""
    count = stage.times(1000, 64)
    dying, tally = Dying(stage.seed), Tally()
    with ExitStack() as stack:
        urls = [stack.enter_context(upstream(dying.choose)).url for _ in range(2)]
        more = "\n".join(
            f'[upstreams.n{place}]\nurl = "{url}"\nmodels = ["native"]\nspeaks = ["responses", "messages"]\nprobe_s = 0'
            for place, url in enumerate(urls)
        )
        server = stack.enter_context(gateway(stage.folder, *urls, each={"models": ["plain"]}, more=more))
        asyncio.run(_ask_all(stage, server, count, dying, tally))
    ends = tally.endings
    return Outcome(
        count,
        f"{ends['error event']} streams ended with an error event and {ends['refused']} answers were an error with a "
        f"status; {ends['whole']} were whole, mended or from the other upstream",
        (
            *(Figure(wrong, tally.wrongs[wrong], most=0) for wrong in (SILENT, FOREIGN, LATE, WORDLESS, BROKEN)),
            Figure("most attempts for a request", tally.attempts, most=ATTEMPTS_LIMIT),
        ),
        tuple(tally.troubles),
    )


async def _ask_all(stage: Stage, server: Running, count: int, dying: Dying, tally: Tally) -> None:
    draw = Random(stage.seed)

    async def ask_one(asked: Asked) -> None:
        body = request(asked.path, f"request {asked.number}.", model=asked.model, stream=asked.is_stream)
        heard = await ask(server, body, path=asked.path)
        tally.add(asked, heard, dying.attempts[asked.number])

    await side_by_side(stage, [Asked(number, *draw.choice(WAYS)) for number in range(count)], AT_ONCE, ask_one)


CASES = (
    Case(
        "dies-midstream",
        "the upstream dies at any byte of an answer: closed, reset, ended too soon, or with garbage in it",
        die,
    ),
)
