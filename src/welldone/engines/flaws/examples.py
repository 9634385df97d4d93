"""Flaws that are heard in one reply: the wrong examples of a rule's page, given to the requests that they can answer."""

import gzip
import re
from importlib import resources
from itertools import cycle

import msgspec

from welldone.engines.flaws.changes import request_of
from welldone.engines.ideal import Ideal
from welldone.engines.scripted import Seen
from welldone.engines.scripts import End, Framing, Piece, Reply
from welldone.rules.examples import Example, read_examples
from welldone.rules.heard import Form, Heard
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

_ENDPOINTS = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
_BUSY = (429, 503)
_OPEN = "http-body-ends-after-done"
"""Its page can show that the end is missing, and not that it is still waited for."""
_EVENT = re.compile(rb".+?(?:\n\n|\Z)", re.DOTALL)
_CALLS = (b'"tool_calls":[{', b'"function_call":{')
_LOGPROBS = b'"logprobs":{'


class Spoken:
    """The ideal server, which answers with an example where one is an answer."""

    def __init__(self, rule: str, ideal: Ideal) -> None:
        self._rule = rule
        self._ideal = ideal
        self._examples = [example for example in read_page(rule) if not example.is_right]
        self._is_busy = cycle((True, False))

    def answer(self, seen: Seen) -> Reply:
        """The reply to any request."""
        right = self._ideal.answer(seen)
        example = next((example for example in self._examples if self._fits(example, seen, right)), None)
        return right if example is None else self._play(example.trace, right)

    def _fits(self, example: Example, seen: Seen, right: Reply) -> bool:
        """Whether the example is a reply to this request, and breaks no rule that it does not break on its page."""
        asked = Trace(
            body=right.body,
            endpoint=_ENDPOINTS.get(seen.path.partition("?")[0], ""),
            request=request_of(seen),
            status=right.status,
        )
        if seen.method != "POST" or asked.endpoint != example.trace.endpoint:
            return False
        if example.trace.status in _BUSY:  # anybody may be told so, and comes again
            return next(self._is_busy)
        trace = msgspec.structs.replace(example.trace, request=asked.request)
        broken = judge(trace).counts.keys()
        return _likeness(trace) == _likeness(asked) and self._rule in broken and broken <= broken_by(example)

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


def _likeness(trace: Trace) -> tuple[Form, bool, bool, bool]:
    """What a reply must have in common with another one to stand in its place."""
    heard = Heard(trace)
    has_calls = any(mark in trace.body for mark in _CALLS)
    return heard.form, has_calls, _LOGPROBS in trace.body, len(heard.choices) > 1


def _pieces(trace: Trace) -> list[bytes]:
    """The HTTP chunks of a stream: those of the page, or one for each event."""
    if trace.pieces is None:
        return _EVENT.findall(trace.body)
    body, pieces = trace.body, []
    for size in trace.pieces:
        pieces.append(body[:size])
        body = body[size:]
    return pieces
