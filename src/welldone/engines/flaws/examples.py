"""Flaws that are heard in one reply: the wrong examples of a rule's page, given to requests that they can answer."""

import gzip
import re
from collections.abc import Iterator
from importlib import resources
from itertools import accumulate, cycle

import msgspec

from welldone.engines.flaws.changes import request_of
from welldone.engines.ideal import Ideal
from welldone.engines.scripted import Seen
from welldone.engines.scripts import End, Framing, Piece, Reply
from welldone.rules.examples import Example, read_examples
from welldone.rules.heard import Form, Heard
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.wire import sse

_ENDPOINTS = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
_BUSY = (429, 503)
_OPEN = "http-body-ends-after-done"
"""Its page can show that the end is missing, and not that it is still waited for."""
_EVENT = re.compile(rb".+?(?:\n\n|\r\n\r\n|\r\r|\Z)", re.DOTALL)
_CALLS = (b'"tool_calls":[{', b'"function_call":{')
_LOGPROBS = b'"logprobs":{'
_USAGE = {
    "chat": sse.frame(
        b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[],'
        b'"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}'
    ),
    "completions": sse.frame(
        b'{"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[],'
        b'"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}'
    ),
}
"""For who asks for usage, of which most pages say nothing: with the id, time and model that all of them have."""


class Shown:
    """The ideal server, which answers with an example of a page where that is an answer."""

    def __init__(self, rule: str, ideal: Ideal) -> None:
        self._rule = rule
        self._ideal = ideal
        self._wrong = [example for example in read_page(rule) if not example.is_right]
        self._is_busy = cycle((True, False))

    def answer(self, seen: Seen) -> Reply:
        """The reply to any request."""
        right = self._ideal.answer(seen)
        trace = self.find(seen, right)
        return right if trace is None else self._play(trace, right)

    def find(self, seen: Seen, right: Reply) -> Trace | None:
        """What can stand in the place of the right reply, and breaks no more rules than on its page."""
        endpoint = _ENDPOINTS.get(seen.path.partition("?")[0])
        if seen.method != "POST" or endpoint is None:
            return None
        asked = Trace(body=right.body, endpoint=endpoint, request=request_of(seen), status=right.status)
        return next((trace for example in self._wrong for trace in self._fitting(example, asked)), None)

    def _fitting(self, example: Example, asked: Trace) -> Iterator[Trace]:
        if example.trace.endpoint != asked.endpoint:
            return
        if example.trace.status in _BUSY:  # anybody may be told so, and comes again
            if next(self._is_busy):
                yield example.trace
            return
        for variant in (example.trace, _with_usage(example.trace)):
            trace = msgspec.structs.replace(variant, request=asked.request)
            broken = judge(trace).counts.keys()
            if _likeness(trace) == _likeness(asked) and self._rule in broken and broken <= broken_by(example):
                yield trace

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


def broken_by(example: Example) -> set[str]:
    """All rules that the bytes of an example break: some faults have two names."""
    return set(judge(example.trace).counts)


def _with_usage(trace: Trace) -> Trace:
    """The same stream with a usage chunk before its end."""
    body, frame = trace.body, _USAGE[trace.endpoint]
    place = body.find(sse.DONE) if sse.DONE in body else len(body)
    pieces = trace.pieces
    if pieces is not None:
        before = list(accumulate(pieces)).index(place) + 1 if place in accumulate(pieces) else len(pieces)
        pieces = (*pieces[:before], len(frame), *pieces[before:])
    return msgspec.structs.replace(trace, body=body[:place] + frame + body[place:], pieces=pieces)


def _likeness(trace: Trace) -> tuple[Form, bool, bool, bool]:
    """What a reply must have in common with another one to stand in its place."""
    heard = Heard(trace)
    has_calls = any(mark in trace.body for mark in _CALLS)
    return heard.form, has_calls, _LOGPROBS in trace.body, len(heard.choices) > 1


def _pieces(trace: Trace) -> list[bytes]:
    """The HTTP chunks of a stream: those of the page, or one for each event."""
    if trace.pieces is None:
        return _EVENT.findall(trace.body)
    ends = list(accumulate(trace.pieces))
    return [trace.body[end - size : end] for end, size in zip(ends, trace.pieces, strict=True)]
