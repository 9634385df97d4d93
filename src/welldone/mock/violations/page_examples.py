"""Flaws that are heard in one reply: the wrong examples of a rule's page, given to requests that they can answer."""

import gzip
import re
from collections.abc import Iterator
from functools import partial
from importlib import resources
from itertools import accumulate, cycle
from typing import Any

import msgspec

from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockChunk, MockReply, ReplyEnd, ReplyFraming
from welldone.mock.server import MockHttpRequest
from welldone.mock.violations.edits import (
    choice_text,
    edit_chunks,
    reply_with_text,
    request_json,
    request_path,
    with_fields,
)
from welldone.protocol import sse
from welldone.protocol.events import Json
from welldone.rules.judge import judge
from welldone.rules.rule_pages import RuleExample, read_examples
from welldone.rules.trace import Trace
from welldone.rules.view.choices import as_list, as_object, as_text, is_int
from welldone.rules.view.view import ReplyKind, TraceView

_ENDPOINTS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}
_TEXT_FIELDS = ("stop", "stop_sequences", "echo", "suffix", "response_format", "text")
"""Members that ask for a text of some kind, which no example has."""
_STREAM_VARIANTS: tuple[dict[str, Any], ...] = (
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True, "stream_options": ...},
    {"stream": False, "stream_options": ...},
)
"""In which a question can be asked."""
_OVERLOAD_STATUSES = (429, 503)
_UNENDED_BODY_RULE = "http-body-ends-after-done"
"""Its page can show that the end is missing, and not that it is still waited for."""
_SSE_EVENT = re.compile(rb".+?(?:\n\n|\r\n\r\n|\r\r|\Z)", re.DOTALL)
_DONE_EVENT = re.compile(rb'data: *"?\[done', re.IGNORECASE)
_TOOL_CALL_MARKERS = (b'"tool_calls":[{', b'"function_call":{', b'"type":"function_call"', b'"type":"tool_use"')
_LOGPROBS_MARKERS = (b'"logprobs":{', b'"logprobs":[{')
_DEFAULT_USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
_ENVELOPES: dict[str, Json] = {
    "chat": {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m"},
    "completions": {"id": "cmpl-1", "object": "text_completion", "created": 1_700_000_000, "model": "m"},
}
"""What the chunks of all pages have in common."""


class PageExampleServer:
    """The ideal server, which answers with an example of a page where that is an answer."""

    def __init__(self, rule: str, reference: ReferenceServer) -> None:
        self._rule = rule
        self._ideal = reference
        wrong = [example.trace for example in read_page_examples(rule) if not example.is_correct]
        self._examples = [(trace, judge(trace).counts.keys()) for trace in wrong]
        """Each example, and all rules that it breaks: some faults have two names."""
        self._overloads = cycle((True, False))

    def answer(self, http_request: MockHttpRequest) -> MockReply:
        """The reply to any request."""
        right = self._ideal.answer(http_request)
        trace = self.find_example(http_request, right)
        if trace is None:
            return self._same_text_reply(http_request) or right
        if trace.status in _OVERLOAD_STATUSES and not next(self._overloads):
            return right  # who was told to come again has come
        return self._example_reply(trace, right)

    def find_example(self, http_request: MockHttpRequest, right: MockReply) -> Trace | None:
        """What can stand in the place of the right reply, and breaks no more rules than on its page."""
        endpoint, request = _ENDPOINTS.get(request_path(http_request)), request_json(http_request)
        if http_request.method != "POST" or endpoint is None or any(map((request or {}).get, _TEXT_FIELDS)):
            return None
        asked = Trace(body=right.body, endpoint=endpoint, request=request, status=right.status)
        return next(self._matching_examples(asked), None)

    def _matching_examples(self, right: Trace) -> Iterator[Trace]:
        for example, known in self._examples:
            for variant in _variants(example) if example.endpoint == right.endpoint else ():
                trace = msgspec.structs.replace(variant, request=right.request)
                # Anybody may be told that there is no time now.
                is_alike = trace.status in _OVERLOAD_STATUSES or _reply_shape(trace) == _reply_shape(right)
                broken = judge(trace).counts.keys() if is_alike else set()
                if self._rule in broken and broken <= known:
                    yield trace

    def _same_text_reply(self, http_request: MockHttpRequest) -> MockReply | None:
        """What an example says to the same question in another form; None where none answers it in any form.

        A server has one answer to a question, as a stream or not.
        """
        if http_request.method != "POST" or request_json(http_request) is None:
            return None
        for form in _STREAM_VARIANTS:
            other = with_fields(http_request, **form)
            trace = self.find_example(other, self._ideal.answer(other))
            if trace is not None and (text := _trace_text(trace)):
                same = reply_with_text(self._ideal, http_request, text)
                return (
                    edit_chunks(same, partial(_with_usage_counts, usage=_trace_usage(trace)))
                    if trace.endpoint in _ENVELOPES
                    else same
                )
        return None

    def _example_reply(self, trace: Trace, right: MockReply) -> MockReply:
        """The reply as on the page: with its head and framing where it shows them, else with those of a right one."""
        headers = right.headers if trace.headers is None else dict(trace.headers) | self._ideal.cors_headers()
        is_stream = TraceView(trace).reply_kind is ReplyKind.STREAM
        framing: ReplyFraming = "chunked" if is_stream else "length"
        end: ReplyEnd = "whole"
        if trace.complete is False:
            end = "hang" if self._rule == _UNENDED_BODY_RULE else "cut"
        pieces = _http_chunks(trace) if is_stream else [trace.body]
        if trace.header("content-encoding") == "gzip":
            pieces = [gzip.compress(trace.body, mtime=0)]
        status = right.status if trace.status is None else trace.status
        return MockReply(tuple(MockChunk(base64=data) for data in pieces), status, headers, end, framing)


def read_page_examples(rule: str) -> list[RuleExample]:
    """The examples of a rule's page."""
    page = resources.files("welldone.rules").joinpath("pages", f"{rule}.md")
    return read_examples(rule, page.read_text(encoding="utf-8"))


def _variants(trace: Trace) -> Iterator[Trace]:
    yield trace
    if trace.endpoint in _ENVELOPES:
        yield _with_usage_chunk(trace)


def _with_usage_chunk(trace: Trace) -> Trace:
    """The same stream with a usage chunk before its end, for who asks for that: most pages say nothing of it."""
    body, pieces = trace.body, trace.chunk_sizes
    frame = sse.data_frame(msgspec.json.encode(_ENVELOPES[trace.endpoint] | {"choices": [], "usage": _DEFAULT_USAGE}))
    done = _DONE_EVENT.search(body)
    place = len(body) if done is None else done.start()
    if pieces is not None:
        ends = list(accumulate(pieces))
        before = ends.index(place) + 1 if place in ends else len(pieces)
        pieces = (*pieces[:before], len(frame), *pieces[before:])
    return msgspec.structs.replace(trace, body=body[:place] + frame + body[place:], chunk_sizes=pieces)


def _reply_shape(trace: Trace) -> tuple[ReplyKind, bool, bool, bool]:
    """What a reply must have in common with another one to stand in its place."""
    heard = TraceView(trace)
    has_calls = any(mark in trace.body for mark in _TOOL_CALL_MARKERS)
    choices = heard.choices or as_list(heard.reply_object.get("choices"))
    has_logprobs = any(mark in trace.body for mark in _LOGPROBS_MARKERS)
    return heard.reply_kind, has_calls, has_logprobs, len(choices) > 1


def _http_chunks(trace: Trace) -> list[bytes]:
    """The HTTP chunks of a stream: those of the page, or one for each event."""
    if trace.chunk_sizes is None:
        return _SSE_EVENT.findall(trace.body)
    ends = list(accumulate(trace.chunk_sizes))
    return [trace.body[end - size : end] for end, size in zip(ends, trace.chunk_sizes, strict=True)]


# ---- what an example says


def _trace_text(trace: Trace) -> str:
    heard = TraceView(trace)
    if not heard.is_chunked:
        return _event_stream_text(heard)
    if heard.choices:
        return heard.choices[0].text
    return next((choice_text(as_object(choice)) for choice in as_list(heard.reply_object.get("choices"))), "")


def _event_stream_text(view: TraceView) -> str:
    """The text of a stream of events; of a whole reply nothing is told again."""
    if view.trace.endpoint == "responses":
        return "".join(piece.text for item in view.responses_stream.items for piece in item.texts["content"])
    deltas = (event.delta for block in view.anthropic_stream.blocks for event in block.deltas)
    return "".join(as_text(delta.get("text")) for delta in deltas)


def _trace_usage(trace: Trace) -> Json:
    """Its counts, and those of a page where it has none."""
    heard = TraceView(trace)
    told = [as_object(said.get("usage")) for said in (*(chunk.json for chunk in heard.chunks), heard.reply_object)]
    usage = _DEFAULT_USAGE | {name: told[name] for told in told for name in _DEFAULT_USAGE if is_int(told.get(name))}
    return usage | {"total_tokens": usage["prompt_tokens"] + usage["completion_tokens"]}


def _with_usage_counts(chunk: Json, *, usage: Json) -> Json:
    """A chunk, or a whole reply, with another usage where it has one."""
    return chunk | {"usage": usage} if chunk.get("usage") else chunk
