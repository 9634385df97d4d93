"""Flaws that are heard in one reply: the wrong examples of a rule's page, given to requests that they can answer."""

import gzip
import re
from collections.abc import Iterator
from functools import partial
from importlib import resources
from itertools import accumulate, cycle
from typing import Any

import msgspec

from welldone.engines.flaws.changes import changed, edited, path_of, request_of, said_as, text_of
from welldone.engines.ideal import Ideal
from welldone.engines.scripted import Seen
from welldone.engines.scripts import End, Framing, Piece, Reply
from welldone.rules.choices import as_list, as_object, as_text, is_int
from welldone.rules.examples import Example, read_examples
from welldone.rules.heard import Form, Heard
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.wire import sse
from welldone.wire.events import Json

_ENDPOINTS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}
_PARTICULAR = ("stop", "stop_sequences", "echo", "suffix", "response_format", "text")
"""Members that ask for a text of some kind, which no example has."""
_FORMS: tuple[dict[str, Any], ...] = (
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True, "stream_options": ...},
    {"stream": False, "stream_options": ...},
)
"""In which a question can be asked."""
_BUSY = (429, 503)
_OPEN = "http-body-ends-after-done"
"""Its page can show that the end is missing, and not that it is still waited for."""
_EVENT = re.compile(rb".+?(?:\n\n|\r\n\r\n|\r\r|\Z)", re.DOTALL)
_DONE = re.compile(rb'data: *"?\[done', re.IGNORECASE)
_CALLS = (b'"tool_calls":[{', b'"function_call":{', b'"type":"function_call"', b'"type":"tool_use"')
_LOGPROBS = (b'"logprobs":{', b'"logprobs":[{')
_COUNTS = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
_HEADS: dict[str, Json] = {
    "chat": {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m"},
    "completions": {"id": "cmpl-1", "object": "text_completion", "created": 1_700_000_000, "model": "m"},
}
"""What the chunks of all pages have in common."""


class Shown:
    """The ideal server, which answers with an example of a page where that is an answer."""

    def __init__(self, rule: str, ideal: Ideal) -> None:
        self._rule = rule
        self._ideal = ideal
        wrong = [example.trace for example in read_page(rule) if not example.is_right]
        self._wrong = [(trace, judge(trace).counts.keys()) for trace in wrong]
        """Each example, and all rules that it breaks: some faults have two names."""
        self._is_busy = cycle((True, False))

    def answer(self, seen: Seen) -> Reply:
        """The reply to any request."""
        right = self._ideal.answer(seen)
        trace = self.find(seen, right)
        if trace is None:
            return self._say_the_same(seen) or right
        if trace.status in _BUSY and not next(self._is_busy):
            return right  # who was told to come again has come
        return self._play(trace, right)

    def find(self, seen: Seen, right: Reply) -> Trace | None:
        """What can stand in the place of the right reply, and breaks no more rules than on its page."""
        endpoint, request = _ENDPOINTS.get(path_of(seen)), request_of(seen)
        if seen.method != "POST" or endpoint is None or any(map((request or {}).get, _PARTICULAR)):
            return None
        asked = Trace(body=right.body, endpoint=endpoint, request=request, status=right.status)
        return next(self._fitting(asked), None)

    def _fitting(self, asked: Trace) -> Iterator[Trace]:
        for example, known in self._wrong:
            for variant in _variants(example) if example.endpoint == asked.endpoint else ():
                trace = msgspec.structs.replace(variant, request=asked.request)
                # Anybody may be told that there is no time now.
                is_alike = trace.status in _BUSY or _likeness(trace) == _likeness(asked)
                broken = judge(trace).counts.keys() if is_alike else set()
                if self._rule in broken and broken <= known:
                    yield trace

    def _say_the_same(self, seen: Seen) -> Reply | None:
        """What an example says to the same question in another form; None where none answers it in any form.

        A server has one answer to a question, as a stream or not.
        """
        if seen.method != "POST" or request_of(seen) is None:
            return None
        for form in _FORMS:
            other = changed(seen, **form)
            trace = self.find(other, self._ideal.answer(other))
            if trace is not None and (text := _text(trace)):
                same = said_as(self._ideal, seen, text)
                return edited(same, partial(_counted, usage=_usage(trace))) if trace.endpoint in _HEADS else same
        return None

    def _play(self, trace: Trace, right: Reply) -> Reply:
        """The reply as on the page: with its head and framing where it shows them, else with those of a right one."""
        headers = right.headers if trace.headers is None else dict(trace.headers) | self._ideal.cors()
        is_stream = Heard(trace).form is Form.STREAM
        framing: Framing = "chunked" if is_stream else "length"
        end: End = "whole"
        if trace.complete is False:
            end = "hang" if self._rule == _OPEN else "cut"
        pieces = _pieces(trace) if is_stream else [trace.body]
        if trace.header("content-encoding") == "gzip":
            pieces = [gzip.compress(trace.body, mtime=0)]
        status = right.status if trace.status is None else trace.status
        return Reply(tuple(Piece(base64=data) for data in pieces), status, headers, end, framing)


def read_page(rule: str) -> list[Example]:
    """The examples of a rule's page."""
    page = resources.files("welldone.rules").joinpath("pages", f"{rule}.md")
    return read_examples(rule, page.read_text(encoding="utf-8"))


def _variants(trace: Trace) -> Iterator[Trace]:
    yield trace
    if trace.endpoint in _HEADS:
        yield _with_usage(trace)


def _with_usage(trace: Trace) -> Trace:
    """The same stream with a usage chunk before its end, for who asks for that: most pages say nothing of it."""
    body, pieces = trace.body, trace.pieces
    frame = sse.frame(msgspec.json.encode(_HEADS[trace.endpoint] | {"choices": [], "usage": _COUNTS}))
    done = _DONE.search(body)
    place = len(body) if done is None else done.start()
    if pieces is not None:
        ends = list(accumulate(pieces))
        before = ends.index(place) + 1 if place in ends else len(pieces)
        pieces = (*pieces[:before], len(frame), *pieces[before:])
    return msgspec.structs.replace(trace, body=body[:place] + frame + body[place:], pieces=pieces)


def _likeness(trace: Trace) -> tuple[Form, bool, bool, bool]:
    """What a reply must have in common with another one to stand in its place."""
    heard = Heard(trace)
    has_calls = any(mark in trace.body for mark in _CALLS)
    choices = heard.choices or as_list(heard.reply.get("choices"))
    has_logprobs = any(mark in trace.body for mark in _LOGPROBS)
    return heard.form, has_calls, has_logprobs, len(choices) > 1


def _pieces(trace: Trace) -> list[bytes]:
    """The HTTP chunks of a stream: those of the page, or one for each event."""
    if trace.pieces is None:
        return _EVENT.findall(trace.body)
    ends = list(accumulate(trace.pieces))
    return [trace.body[end - size : end] for end, size in zip(ends, trace.pieces, strict=True)]


# ---- what an example says


def _text(trace: Trace) -> str:
    heard = Heard(trace)
    if not heard.is_chunked:
        return _spoken(heard)
    if heard.choices:
        return heard.choices[0].text
    return next((text_of(as_object(choice)) for choice in as_list(heard.reply.get("choices"))), "")


def _spoken(heard: Heard) -> str:
    """The text of a stream of events; of a whole reply nothing is told again."""
    if heard.trace.endpoint == "responses":
        return "".join(piece.text for item in heard.output.items for piece in item.pieces["content"])
    deltas = (event.delta for block in heard.turn.blocks for event in block.deltas)
    return "".join(as_text(delta.get("text")) for delta in deltas)


def _usage(trace: Trace) -> Json:
    """Its counts, and those of a page where it has none."""
    heard = Heard(trace)
    told = [as_object(said.get("usage")) for said in (*(chunk.json for chunk in heard.chunks), heard.reply)]
    usage = _COUNTS | {name: told[name] for told in told for name in _COUNTS if is_int(told.get(name))}
    return usage | {"total_tokens": usage["prompt_tokens"] + usage["completion_tokens"]}


def _counted(said: Json, *, usage: Json) -> Json:
    """A chunk, or a whole reply, with another usage where it has one."""
    return said | {"usage": usage} if said.get("usage") else said
