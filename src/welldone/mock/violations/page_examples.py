"""Violations within one reply: the incorrect examples of a rule's page, sent in answer to matching requests."""

import gzip
import re
from collections.abc import Iterator
from importlib import resources
from itertools import accumulate, cycle
from typing import Any

import msgspec

from welldone.core import sse
from welldone.core.events import Json
from welldone.mock.reference.server import CORS_HEADERS, ReferenceServer
from welldone.mock.script import MockChunk, MockReply, ReplyEnd, ReplyFraming
from welldone.mock.server import MockHttpRequest
from welldone.mock.violations.edits import MockExchange, choice_text, edit_chunks
from welldone.rules.judge import judge
from welldone.rules.rule_pages import read_examples
from welldone.rules.trace import Trace
from welldone.rules.view.choices import as_list, as_object, as_text, is_int
from welldone.rules.view.view import STREAM_KINDS, ReplyKind, TraceView

_ENDPOINTS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}
_TEXT_FIELDS = ("stop", "stop_sequences", "echo", "suffix", "response_format", "text")
"""Fields that require a certain text, which no example has."""
_STREAM_VARIANTS: tuple[dict[str, Any], ...] = (
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True, "stream_options": ...},
    {"stream": False, "stream_options": ...},
)
"""Streaming variants of the same request."""
_OVERLOAD_STATUSES = (429, 503)
_UNENDED_BODY_RULE = "http-body-ends-after-done"
"""The example of its page shows an incomplete body; the violation is that the connection stays open."""
_MEDIA_TYPES = {ReplyKind.STREAM: "text/event-stream", ReplyKind.ARRAY: "application/json"}
_SSE_EVENT = re.compile(rb".+?(?:\n\n|\r\n\r\n|\r\r|\Z)", re.DOTALL)
_DONE_EVENT = re.compile(rb'data: *"?\[done', re.IGNORECASE)
_TOOL_CALL_MARKERS = (
    b'"tool_calls":[{',
    b'"function_call":{',
    b'"type":"function_call"',
    b'"type":"tool_use"',
    b'"functionCall":',
)
_LOGPROBS_MARKERS = (b'"logprobs":{', b'"logprobs":[{')
_DEFAULT_USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
_ENVELOPES: dict[str, Json] = {
    "chat": {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m"},
    "completions": {"id": "cmpl-1", "object": "text_completion", "created": 1_700_000_000, "model": "m"},
}
"""Common fields of the chunks on all pages."""


class PageExampleServer:
    """The reference server with replies that are replaced by matching examples of a page."""

    def __init__(self, rule: str, reference: ReferenceServer) -> None:
        self._rule = rule
        self._reference = reference
        page = resources.files("welldone.rules").joinpath("pages", f"{rule}.md")
        examples = read_examples(rule, page.read_text(encoding="utf-8"))
        incorrect = [example.trace for example in examples if not example.is_correct]
        self._examples = [(trace, judge(trace).counts.keys()) for trace in incorrect]
        """Each example with all rules that it violates: some violations concern two rules."""
        self._overloads = cycle((True, False))

    def answer(self, http_request: MockHttpRequest) -> MockReply:
        """Answer any request."""
        exchange = MockExchange(self._reference, http_request)
        trace = self.find_example(exchange)
        if trace is None:
            return self._same_text_reply(exchange) or exchange.reply
        if trace.status in _OVERLOAD_STATUSES and not next(self._overloads):
            return exchange.reply  # the retry succeeds
        return self._example_reply(trace, exchange.reply)

    def find_example(self, exchange: MockExchange) -> Trace | None:
        """Find an example that can replace the correct reply and violates no more rules than on its page."""
        correct, endpoint = exchange.reply, "gemini" if exchange.is_gemini else _ENDPOINTS.get(exchange.path)
        if exchange.http_request.method != "POST" or endpoint is None or any(map(exchange.fields.get, _TEXT_FIELDS)):
            return None
        path = exchange.http_request.path
        trace = Trace(body=correct.body, endpoint=endpoint, path=path, request=exchange.json, status=correct.status)
        return next(self._matching_examples(trace), None)

    def _matching_examples(self, correct: Trace) -> Iterator[Trace]:
        shape = _reply_shape(correct)
        for example, page_rules in self._examples:
            has_chunks = example.endpoint in _ENVELOPES
            variants = (example, *([_with_usage_chunk(example)] if has_chunks else []))
            for variant in variants if example.endpoint == correct.endpoint else ():
                trace = msgspec.structs.replace(variant, request=correct.request, path=correct.path)
                # An overload error can replace any reply.
                is_match = trace.status in _OVERLOAD_STATUSES or _reply_shape(trace) == shape
                violated = judge(trace).counts.keys() if is_match else set()
                if self._rule in violated and violated <= page_rules:
                    yield trace

    def _same_text_reply(self, exchange: MockExchange) -> MockReply | None:
        """Return a correct reply with the text that an example has for another streaming variant of the request.

        A server gives the same answer to the same question, as a stream or not.
        """
        if exchange.http_request.method != "POST" or exchange.json is None:
            return None
        for fields in _STREAM_VARIANTS:
            trace = self.find_example(exchange.variant(**fields))
            if trace is not None and (text := _trace_text(trace)):
                return _with_usage(exchange.with_text(text), trace)
        return None

    def _example_reply(self, trace: Trace, correct: MockReply) -> MockReply:
        """Return the reply of the page; a head and framing that it does not show are those of the correct reply."""
        headers = correct.headers if trace.headers is None else dict(trace.headers) | CORS_HEADERS
        reply_kind = TraceView(trace).reply_kind
        is_stream = reply_kind in STREAM_KINDS
        if trace.endpoint == "gemini" and trace.headers is None and is_stream:  # the form may be another
            headers = headers | {"Content-Type": _MEDIA_TYPES[reply_kind]}
        framing: ReplyFraming = "chunked" if is_stream else "length"
        end: ReplyEnd = "whole"
        if trace.complete is False:
            end = "hang" if self._rule == _UNENDED_BODY_RULE else "cut"
        chunks = _http_chunks(trace) if reply_kind is ReplyKind.STREAM else [trace.body]
        if trace.header("content-encoding") == "gzip":
            chunks = [gzip.compress(trace.body, mtime=0)]
        status = correct.status if trace.status is None else trace.status
        return MockReply(tuple(MockChunk(base64=data) for data in chunks), status, headers, end, framing)


def _with_usage_chunk(trace: Trace) -> Trace:
    """Insert a usage chunk before the end, for requests with `include_usage`: most pages do not show one."""
    body, sizes = trace.body, trace.chunk_sizes
    frame = sse.data_frame(msgspec.json.encode(_ENVELOPES[trace.endpoint] | {"choices": [], "usage": _DEFAULT_USAGE}))
    done = _DONE_EVENT.search(body)
    position = len(body) if done is None else done.start()
    if sizes is not None:
        ends = list(accumulate(sizes))
        index = ends.index(position) + 1 if position in ends else len(sizes)
        sizes = (*sizes[:index], len(frame), *sizes[index:])
    return msgspec.structs.replace(trace, body=body[:position] + frame + body[position:], chunk_sizes=sizes)


def _with_usage(reply: MockReply, trace: Trace) -> MockReply:
    """Replace the usage of a reply with that of an example, in the dialects whose examples have one."""
    usage = {"usage": _trace_usage(trace)} if trace.endpoint in _ENVELOPES else {}
    return edit_chunks(reply, lambda chunk: chunk | usage if chunk.get("usage") else chunk) if usage else reply


def _reply_shape(trace: Trace) -> tuple[ReplyKind, bool, bool, bool]:
    """Return the properties that two replies must share for one to replace the other."""
    view = TraceView(trace)
    has_calls = any(marker in trace.body for marker in _TOOL_CALL_MARKERS)
    choices = view.choices or as_list(view.reply_object.get("choices")) or view.gemini_reply.by_index
    has_logprobs = any(marker in trace.body for marker in _LOGPROBS_MARKERS)
    # The form of Gemini's streams is a rule of its own.
    reply_kind = ReplyKind.STREAM if view.reply_kind in STREAM_KINDS else view.reply_kind
    return reply_kind, has_calls, has_logprobs, len(choices) > 1


def _http_chunks(trace: Trace) -> list[bytes]:
    """Return the HTTP chunks of a stream: those of the page, or one per SSE event."""
    if trace.chunk_sizes is None:
        return _SSE_EVENT.findall(trace.body)
    ends = list(accumulate(trace.chunk_sizes))
    return [trace.body[end - size : end] for end, size in zip(ends, trace.chunk_sizes, strict=True)]


def _trace_text(trace: Trace) -> str:
    """Return the text of an example; empty for a buffered reply of the Responses or Messages dialect."""
    view = TraceView(trace)
    if trace.endpoint == "responses":
        return "".join(piece.text for item in view.responses_stream.items for piece in item.texts["content"])
    if trace.endpoint == "messages":
        deltas = [event.delta for block in view.anthropic_stream.blocks for event in block.deltas]
        return "".join(as_text(delta.get("text")) for delta in deltas)
    if view.choices:
        return view.choices[0].text
    return next((choice_text(as_object(choice)) for choice in as_list(view.reply_object.get("choices"))), "")


def _trace_usage(trace: Trace) -> Json:
    """Return the usage of an example; counts that it does not have are those of `_DEFAULT_USAGE`."""
    view = TraceView(trace)
    usage = dict(_DEFAULT_USAGE)
    for body in (*(chunk.json for chunk in view.chunks), view.reply_object):
        counts = as_object(body.get("usage"))
        usage |= {name: counts[name] for name in _DEFAULT_USAGE if is_int(counts.get(name))}
    return usage | {"total_tokens": usage["prompt_tokens"] + usage["completion_tokens"]}
