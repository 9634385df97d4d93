"""Upstreams that are cut at any byte of an answer that can be continued: the client receives all of it, once.

Each word names its request and its position, so the text shows repeated and missing words. Upstreams without a way to
continue name their attempt too: words of two attempts in one answer are wrong.
"""

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, zip_longest
from random import Random

import msgspec

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import CHAT, chat, run_concurrently, send_request
from faults.continued_answers import CONTINUATIONS, ContinuedAnswers, classify, shape_fields
from faults.deaths import DEATHS
from faults.dialects import COMPLETIONS, MESSAGES, OLLAMA_CHAT, OLLAMA_GENERATE, PATHS, RESPONSES, Json, reply_of_events
from faults.dialects import request as request_body
from faults.dying import PAUSE_S
from tests.support.faults import metric
from tests.support.server import Running
from tests.support.upstream import gateway, upstream
from welldone.core import events as ev
from welldone.mock.script import HELLO_REPLY, MockReply
from welldone.mock.server import MockHttpRequest

WORDS = 20
AT_ONCE = 4
"""Fewer than the failures in a row that open a circuit breaker: after each cut, every upstream gets a request to answer
in full."""
UPSTREAMS = 2
"""Per kind."""
CUTS = [name for name in DEATHS if "garbage" not in name]
SHAPES = {
    "text": PATHS,
    "reasoning": (CHAT, RESPONSES, MESSAGES, OLLAMA_CHAT),
    "tool": (CHAT, RESPONSES, MESSAGES),
    "schema": (CHAT, RESPONSES),
    "two choices": (CHAT, COMPLETIONS),
}
"""Contents of an answer, and the paths that have them."""
KINDS = {"prefill": 'continues = "prefill"', "replay": 'n = "native"', "none": 'n = "native"'}
"""Settings of each upstream, by the way of continuation that it supports. Its model has the same name."""


class CutRequest(msgspec.Struct, frozen=True):
    """A request; its number selects where its first reply is cut."""

    number: int
    kind: str
    shape: str
    path: str
    is_stream: bool

    @property
    def is_repeatable(self) -> bool:
        """Whether its temperature is 0. Otherwise only text is continued."""
        return self.kind == "replay" or (self.kind == "prefill" and self.shape not in ("text", "two choices"))

    def fields(self) -> Json:
        """Return the fields of its kind and shape."""
        zero: Json = {"temperature": 0} if self.is_repeatable else {}
        is_ollama = self.path in (OLLAMA_CHAT, OLLAMA_GENERATE)
        return {**shape_fields(self.path, self.shape), **({"options": zero} if is_ollama else zero)}

    def content(self, attempt: int) -> dict[str, str]:
        """Return the content of an attempt by its kind."""
        tag = f"{self.number}.{attempt}" if self.kind == "none" else f"{self.number}"
        words = [f"{tag}.{index} " for index in range(WORDS)]
        text = "".join(words)
        if self.shape == "reasoning":
            return {"reasoning": "".join(words[: WORDS // 2]), "text": "".join(words[WORDS // 2 :])}
        if self.shape in ("text", "two choices"):
            return {"text": text}
        data = json.dumps({"words": text})
        return {"text": data} if self.shape == "schema" else {"call": f"note{data}"}


class CutUpstreams:
    """Replies of the upstreams; each upstream has its own thread."""

    def __init__(self, seed: int, requests: Sequence[CutRequest]) -> None:
        self.attempts: Counter[int] = Counter()
        """Attempts by request."""
        self.bad_prefills: list[str] = []
        self._seed, self._requests = seed, requests
        self._lock = threading.Lock()

    def choose(self, seen: MockHttpRequest) -> MockReply:
        """Return a reply; the first one to each request is cut."""
        found = re.search(r"request (\d+)\.", seen.body)
        if found is None:
            return HELLO_REPLY
        request, body = self._requests[int(found[1])], json.loads(seen.body)
        with self._lock:
            self.attempts[request.number] += 1
            attempt = self.attempts[request.number]
        draw = Random(f"{self._seed} {request.number}")
        content = request.content(attempt)
        if prefix := _prefill(body):
            if not content["text"].startswith(prefix):
                self.bad_prefills.append(f"{request}: asked to continue …{prefix[-60:]!r}")
            content["text"] = content["text"].removeprefix(prefix)
        size = 9 if attempt == 1 else 13  # other pieces, the same text
        choices = [_events(index, content, size) for index in range(body.get("n") or 1)]
        events = [one for one in chain.from_iterable(zip_longest(*choices)) if one is not None]
        right = reply_of_events(seen.path, [*events, ev.Usage(1, WORDS, 1 + WORDS, {})], after_s=PAUSE_S)
        if attempt > 1:
            return right
        return DEATHS[draw.choice(CUTS)](right, draw)


def _prefill(body: Json) -> str:
    """Return the text that the upstream is asked to continue."""
    if "prompt" in body:
        return re.sub(r"^request \d+\.", "", body["prompt"])
    last = body["messages"][-1]
    return str(last["content"]) if last["role"] == "assistant" else ""


def _events(index: int, content: Mapping[str, str], size: int) -> list[ev.Event]:
    """Return the events of a choice, with texts in pieces of this size."""
    events: list[ev.Event] = [ev.ChoiceStart(index)]
    for kind, words in content.items():
        if kind == "call":
            events.append(ev.ToolCall(index, 0, f"call_{index}", "note"))
        text = words.removeprefix("note")
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        if kind == "call":
            events += [ev.ToolArguments(index, 0, piece) for piece in pieces]
        else:
            make = ev.Reasoning if kind == "reasoning" else ev.Text
            events += [make(index, piece) for piece in pieces]
    return [*events, ev.Finish(index, "tool_calls" if "call" in content else "stop")]


def continuing_gateway(context: CaseContext) -> Outcome:
    """Cut the first reply to each request, on all paths."""
    draw = Random(context.seed)
    kinds = [(kind, shape, path) for kind in KINDS for shape, paths in SHAPES.items() for path in paths]
    draw.shuffle(kinds)
    requests = [
        CutRequest(number, *kinds[number % len(kinds)], is_stream=draw.random() < 0.7)
        for number in range(context.times(1000, 34))
    ]
    cut, answers = CutUpstreams(context.seed, requests), ContinuedAnswers()
    with ExitStack() as stack:
        urls = [stack.enter_context(upstream(cut.choose)).url for _ in range(UPSTREAMS)]
        tables = [
            f'[upstreams.{kind}{index}]\nurl = "{url}"\nmodels = ["{kind}", "{kind}{index}"]\nprobe_s = 0\n{settings}'
            for kind, settings in KINDS.items()
            for index, url in enumerate(urls)
        ]
        server = stack.enter_context(gateway(context.folder, more="\n".join(tables)))
        lost = asyncio.run(_send_all(context, server, requests, cut, answers))
        broken = metric(server, CONTINUATIONS)
    return answers.outcome(
        Figure("prefills with other text", len(cut.bad_prefills), most=0),
        Figure("uncut answers lost", lost, most=0),
        Figure("answers that broke off after a part of them was sent", broken, least=len(requests) // 3),
    )


async def _send_all(
    context: CaseContext, server: Running, requests: list[CutRequest], cut: CutUpstreams, answers: ContinuedAnswers
) -> int:
    """Send all requests, and uncut ones between them; return how many of the latter were lost."""

    async def send_one(sent: CutRequest) -> int:
        words, more = f"request {sent.number}.", sent.fields()
        body = request_body(sent.path, words, model=sent.kind, stream=sent.is_stream, more=more)
        received = await send_request(server, body, path=sent.path)
        contents = [sent.content(attempt) for attempt in range(1, cut.attempts[sent.number] + 1)]
        choices = range(2 if sent.shape == "two choices" else 1)
        expected = [{(kind, index): words for kind, words in one.items() for index in choices} for one in contents]
        found = classify(sent.path, received, expected)
        answers.add(str(sent), found, received, has_way=sent.kind != "none", is_repeatable=sent.is_repeatable)
        uncut = [await send_request(server, chat(f"{sent.kind}{index}")) for index in range(UPSTREAMS)]
        return sum(one.ending != "whole" for one in uncut)

    return sum(await run_concurrently(context, requests, AT_ONCE, send_one))


CASES = (
    Case(
        "continuing-gateway",
        "the upstream is cut at any byte of an answer, and another attempt continues it: by prefill, by replay, or not",
        continuing_gateway,
    ),
)
