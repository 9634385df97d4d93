"""The engine of a local model is killed at any token of an answer: the client receives the rest from the next engine.

At temperature 0 each answer is compared with the uncut answer to the same request. Both are the first answer of a new
engine: a prompt that is in the cache of an engine is not computed again, and the last bits of its numbers differ, which
decide between tokens that are about equally likely. At other temperatures the rest of a text is another one each time;
token counts and the text after the seam are checked.
"""

import os
import re
import select
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random

import msgspec

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import CHAT, ClientReply, parse, percentile
from faults.continued_answers import CONTINUATIONS, IDENTICAL, WHOLE, ContinuedAnswers, classify, shape_fields
from faults.dialects import COMPLETIONS, MESSAGES, RESPONSES, Json, parts, request
from tests.models.fixtures import load_default_model
from tests.support.faults import engine_of, metric, small_server, wait_for_metric
from tests.support.raw import RawConnection
from tests.support.server import Running
from welldone.engines.builds import WHEEL, engines_folder, list_builds
from welldone.engines.models.install import PullError

QUESTION = "Write a short story about a fox and a river."
PROMPT = "This is the story of a fox and a river. One morning, the fox"
TOKENS = 48
"""Long enough to be cut anywhere, short enough for a thousand answers, half of them of each engine."""
STANDBY = "welldone_engine_standby"
DRAWS = 20
"""Draws of a token per answer: the engine is some tokens ahead of the client, and may have finished."""
CORES = 2
"""For each of the servers that run at once: its engine, the next engine and the client should not wait."""
REPEATED_CHARACTERS = 24
"""A start of the answer that is not repeated by chance at the seam."""
SCHEMA: Json = {
    "type": "object",
    "properties": {
        "animal": {"type": "string", "enum": ["a small brown fox", "a large grey wolf"]},
        "legs": {"type": "integer", "minimum": 1, "maximum": 9},
        "colours": {"type": "array", "items": {"enum": ["red", "brown", "grey"]}, "minItems": 3, "maxItems": 3},
    },
    "required": ["animal", "legs", "colours"],
    "additionalProperties": False,
}
PIECES = {CHAT: b"content|arguments", COMPLETIONS: b"text", MESSAGES: b"text|partial_json", RESPONSES: b"delta"}
"""Fields of a chunk with content."""


class LocalRequest(msgspec.Struct, frozen=True):
    """A request to the local model."""

    path: str
    shape: str = "text"
    is_stream: bool = True
    temperature: float = 0.0
    seed: int | None = None

    @property
    def is_repeatable(self) -> bool:
        """Whether the uncut answer is known, so that the text can be compared."""
        return self.temperature == 0.0 or self.seed is not None

    def body(self, server: Running) -> Json:
        """Return the body of the request."""
        limit = {RESPONSES: "max_output_tokens"}.get(self.path, "max_tokens")
        more: Json = {limit: TOKENS, "temperature": self.temperature, **shape_fields(self.path, self.shape, SCHEMA)}
        if self.seed is not None:
            more["seed"] = self.seed
        if self.is_stream and self.path in (CHAT, COMPLETIONS):
            more["stream_options"] = {"include_usage": True}
        content = PROMPT if self.path == COMPLETIONS else QUESTION
        data = request(self.path, content, model=server.model, stream=self.is_stream, more=more)
        body: Json = msgspec.json.decode(data)
        return body


REQUESTS = (
    *(LocalRequest(path, is_stream=stream) for path in PIECES for stream in (True, False)),
    *(LocalRequest(path, temperature=1.0) for path in PIECES),
    *(LocalRequest(path, temperature=1.0, is_stream=False) for path in (CHAT, MESSAGES)),
    LocalRequest(CHAT, temperature=1.0, seed=7),
    *(LocalRequest(CHAT, "two choices", is_stream=stream) for stream in (True, False)),
    LocalRequest(CHAT, "two choices", temperature=1.0),
    *(LocalRequest(path, "schema") for path in (CHAT, RESPONSES)),
    LocalRequest(CHAT, "schema", is_stream=False),
    *(LocalRequest(path, "tool") for path in (CHAT, RESPONSES, MESSAGES)),
    LocalRequest(CHAT, "tool", is_stream=False),
)


class LocalAnswer(msgspec.Struct, frozen=True):
    """An answer, and its timing."""

    received: ClientReply
    pieces: int
    """Chunks with content."""
    gap_s: float
    """Longest time between two of them."""
    first_s: float
    """Time to the first of them."""
    seconds: float
    before: bytes
    """Content that the client had received when the engine was killed."""
    killed_s: float | None
    """When that was; None if the answer had ended."""

    @property
    def counts(self) -> tuple[int, int]:
        """Prompt tokens and completion tokens."""
        names = ("(?:prompt|input)_tokens|cache_read_input_tokens", "(?:completion|output)_tokens")
        body = self.received.body.decode()
        last = [dict(re.findall(rf'"({name})":(\d+)', body)) for name in names]
        prompt, completion = (sum(map(int, one.values())) for one in last)
        return prompt, completion


def _ask(server: Running, sent: LocalRequest, *, piece: int = 0, after_s: float = 0.0) -> LocalAnswer:
    """Send a request; kill the engine after so many chunks, or after some time if the reply is not streamed."""
    pattern = re.compile(rb'"(?:' + PIECES[sent.path] + rb')":"[^"]')
    with engine_of(server) as engine, RawConnection(server, sent.path, sent.body(server)) as connection:
        began, before, killed_s = time.monotonic(), b"", None
        count, gap_s, first_s, last = 0, 0.0, 0.0, 0.0
        while True:
            is_due = count >= piece if piece else 0 < after_s <= time.monotonic() - began
            if is_due and killed_s is None:
                engine.kill()
                before, killed_s = connection.received, time.monotonic() - began
            if after_s and killed_s is None:
                left_s = max(0.0, after_s - (time.monotonic() - began))
                if not select.select([connection.socket], [], [], left_s)[0]:
                    continue
            if not connection.read():
                break
            now, found = time.monotonic(), len(pattern.findall(connection.received))
            if found > count:
                gap_s, first_s = (max(gap_s, now - last), first_s) if last else (0.0, now - began)
                count, last = found, now
        received = parse(connection.received)
        return LocalAnswer(received, count, gap_s, first_s, time.monotonic() - began, before, killed_s)


def _find_model() -> Path | Outcome:
    """Return the model, or why the case cannot run."""
    if sys.platform != "linux":
        return Outcome(not_run="needs pidfd of Linux")
    try:
        return load_default_model()
    except PullError as error:
        return Outcome(not_run=f"the built-in model is not downloaded: {error}")


def continuing_local(context: CaseContext) -> Outcome:
    """Kill the wheel's engine in each answer."""
    return _continuing(context, WHEEL)


def continuing_build(context: CaseContext) -> Outcome:
    """Kill an engine that was built for this machine in each answer."""
    builds = [build.name for build in list_builds(engines_folder(os.environ)) if build.problem() is None]
    return _continuing(context, builds[0]) if builds else Outcome(not_run="no engine is built: welldone engine build")


def _continuing(context: CaseContext, engine: str) -> Outcome:
    """Kill the engine in each answer, and compare it with the uncut one."""
    model = _find_model()
    if isinstance(model, Outcome):
        return model
    order = list(REQUESTS)
    Random(context.seed).shuffle(order)
    work = [order[number % len(order)] for number in range(context.times(500, 10))]
    answers, silences, miscounted, undisturbed = ContinuedAnswers(), list[float](), list[str](), 0
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // CORES)) as pool:
        distinct = list(dict.fromkeys(work))
        uncut = dict(zip(distinct, pool.map(partial(_measure, model, engine), distinct), strict=True))
        # A reply that is not streamed does not show when its tokens come.
        whole = [sent for sent in distinct if not sent.is_stream]
        streamed = [msgspec.structs.replace(sent, is_stream=True) for sent in whole]
        pace = dict(zip(whole, pool.map(partial(_measure, model, engine), streamed), strict=True))
        cut = [
            pool.submit(_cut, model, engine, sent, pace.get(sent, uncut[sent]), Random(f"{context.seed} {number}"))
            for number, sent in enumerate(work)
        ]
        try:
            for sent, waiting in context.each(list(zip(work, cut, strict=True))):
                answer, expected = waiting.result(), uncut[sent]
                if answer is None:
                    undisturbed += 1
                    continue
                is_plausible = sent.shape in ("text", "two choices") and not _repeats_its_start(sent, answer)
                content = [parts(sent.path, expected.received)]
                found = classify(sent.path, answer.received, content, may_differ=is_plausible)
                answers.add(f"{sent}", found, answer.received, has_way=True, is_repeatable=sent.temperature == 0.0)
                silences += [answer.gap_s - expected.gap_s] if sent.is_stream else []
                if not _is_counted(found, answer, expected):
                    miscounted.append(f"{sent}: {answer.counts} tokens, not {expected.counts}")
        finally:
            pool.shutdown(cancel_futures=True)
    seen = answers.outcome(
        Figure("answers with wrong token counts", len(miscounted), most=0),
        Figure(f"answers that no kill in {DRAWS} met", undisturbed, most=len(work) // 100),
        Figure("added silence with one thread, p50", round(1000 * percentile(silences, 50)), "ms", is_timing=True),
        Figure("added silence with one thread, p99", round(1000 * percentile(silences, 99)), "ms", is_timing=True),
    )
    return msgspec.structs.replace(seen, problems=(*seen.problems, *miscounted))


def _measure(model: Path, engine: str, sent: LocalRequest) -> LocalAnswer:
    """Return the uncut answer of a new engine."""
    with small_server(model, "-c", "2048", "--engine", engine) as server:
        return _ask(server, sent)


def _cut(model: Path, engine: str, sent: LocalRequest, uncut: LocalAnswer, draw: Random) -> LocalAnswer | None:
    """Return an answer whose engine was killed at any of its tokens; None if no draw met one."""
    earliest_s, latest_s = uncut.first_s, uncut.seconds
    for _ in range(DRAWS):
        with small_server(model, "-c", "2048", "--engine", engine) as server:
            if sent.is_stream:
                answer = _ask(server, sent, piece=draw.randint(1, uncut.pieces))
            else:
                answer = _ask(server, sent, after_s=draw.uniform(earliest_s, latest_s))
            if metric(server, CONTINUATIONS) > 0:  # else it had ended, or not begun: another token
                return answer
        if answer.killed_s is None:  # the machine is faster now
            earliest_s, latest_s = earliest_s * answer.seconds / latest_s, answer.seconds
        else:
            earliest_s = min(answer.killed_s, latest_s)
    return None


def _repeats_its_start(sent: LocalRequest, answer: LocalAnswer) -> bool:
    """Whether the next engine starts the text over."""
    before, after = parts(sent.path, parse(answer.before)), parts(sent.path, answer.received)
    return any(
        len(text) > REPEATED_CHARACTERS
        and text[:REPEATED_CHARACTERS] in after.get(key, "")[len(text) : len(text) + 3 * REPEATED_CHARACTERS]
        for key, text in before.items()
    )


def _is_counted(found: str, answer: LocalAnswer, uncut: LocalAnswer) -> bool:
    """Whether the usage counts the prompt once, and the whole answer."""
    if found == IDENTICAL:
        return answer.counts == uncut.counts
    (prompt, completion), (expected, _) = answer.counts, uncut.counts
    return found != WHOLE or (prompt == expected and 0 < completion <= 2 * TOKENS)


def continuing_standby(context: CaseContext) -> Outcome:
    """Kill the engine of a server with a standby engine and the default threads, and measure the silence."""
    model = _find_model()
    if isinstance(model, Outcome):
        return model
    draw, sent, work = Random(context.seed), LocalRequest(CHAT), context.times(30, 3)
    answers, silences, continued = ContinuedAnswers(), list[float](), 0
    for number in range(work):
        context.note(f"{number} of {work}")
        with small_server(model, "-c", "2048", "-t", "auto", "--standby") as server:
            wait_for_metric(server, STANDBY, 1)
            uncut = _ask(server, sent)
            answer = _ask(server, sent, piece=draw.randint(1, TOKENS))
            expected = parts(sent.path, uncut.received)
            found = classify(sent.path, answer.received, [expected], may_differ=True)
            answers.add(f"{sent}", found, answer.received, has_way=True, is_repeatable=True)
            silences.append(answer.gap_s - uncut.gap_s)
            continued += int(metric(server, CONTINUATIONS))
    return answers.outcome(
        Figure("answers that were continued", continued, least=0.8 * work),
        Figure("added silence, p50", round(1000 * percentile(silences, 50)), "ms", most=1000, is_timing=True),
        Figure("added silence, p99", round(1000 * percentile(silences, 99)), "ms", is_timing=True),
    )


CASES = (
    Case(
        "continuing-local",
        "the engine is killed at any token of an answer, and the next one continues it",
        continuing_local,
    ),
    Case("continuing-build", "the same with an engine built for this CPU", continuing_build),
    Case(
        "continuing-standby",
        "the engine is killed, and its standby engine continues the answer",
        continuing_standby,
    ),
)
