"""Violations of behaviour, which no single recorded reply can show: one short handler per rule."""

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from welldone.core.events import Json
from welldone.gateway.errors import ApiError, ErrorFormat, invalid_request
from welldone.mock.reference.schemas import MockChatRequest, MockCompletionRequest
from welldone.mock.reference.server import RUNNING_GAUGE, ReferenceServer, render_error
from welldone.mock.script import MockChunk, MockReply, is_handshake
from welldone.mock.server import MockHttpRequest
from welldone.mock.violations.edits import EVENT_STREAM, MockExchange, choice_text
from welldone.rules.view.choices import as_list, as_object
from welldone.schemas.anthropic import AnthropicRequest
from welldone.schemas.fields import describe_fields
from welldone.schemas.responses import ResponseRequest

MockBehavior: TypeAlias = Callable[[MockExchange], MockReply]

_REQUEST_TYPES = (MockChatRequest, MockCompletionRequest, ResponseRequest, AnthropicRequest)
_KNOWN_FIELDS = frozenset(field.name for request_type in _REQUEST_TYPES for field in describe_fields(request_type))
_SPECIAL_TOKEN = "<|im_end|>"
_BUFFERING_S = 0.5
"""Delay of a buffered stream: long enough to be measured."""
_PREFILL_S_PER_CHARACTER = 0.0001
"""Prefill time per character of the prompt, on a small machine."""
_SILENCE_S = 20.0
"""Longer than 15 s, the interval in which keep-alive comments are due."""
_CHUNK_DELAY_S = 0.01
"""Delay before each chunk, so that a client can disconnect in the middle."""
_ORPHAN_S = 30.0
"""How long the generation continues after a disconnect: about a thousand tokens."""
_TRACKED_LIMIT = 100  # concurrent requests; a check has four


# Fields that are rejected or ignored.


def _rejects_field(param: str, is_rejected: Callable[[Json], object]) -> MockBehavior:
    error = invalid_request(f"Invalid '{param}'.", param=param, code="invalid_value")
    return lambda exchange: render_error(error) if is_rejected(exchange.fields) else exchange.reply


def _changes_request(change: Callable[[MockExchange], Json]) -> MockBehavior:
    """Return a behaviour that answers as if the request had other fields; none: the correct reply."""

    def answer(exchange: MockExchange) -> MockReply:
        fields = {} if exchange.json is None else change(exchange)
        return exchange.variant(**fields).reply if fields else exchange.reply

    return answer


def _ignores_field(name: str) -> MockBehavior:
    return _changes_request(lambda exchange: {name: ...} if name in exchange.fields else {})


def _has_developer_role(request: Json) -> bool:
    return any(as_object(message).get("role") == "developer" for message in as_list(request.get("messages")))


def _has_unknown_stream_options(request: Json) -> bool:
    return not as_object(request.get("stream_options")).keys() <= {"include_usage"}


# Timing.


def _changes_stream(change: Callable[[MockExchange], MockReply]) -> MockBehavior:
    """Return a behaviour that changes streams only."""
    return lambda exchange: change(exchange) if exchange.is_stream else exchange.reply


def _buffers_stream(exchange: MockExchange) -> MockReply:
    after_s = max(_BUFFERING_S, sum(chunk.after_s for chunk in exchange.reply.pieces))
    return msgspec.structs.replace(exchange.reply, pieces=(MockChunk(base64=exchange.reply.body, after_s=after_s),))


def _delays_headers(exchange: MockExchange) -> MockReply:
    after_s = _PREFILL_S_PER_CHARACTER * len(exchange.http_request.body)
    return msgspec.structs.replace(exchange.reply, after_s=after_s)


def _omits_keep_alive(exchange: MockExchange) -> MockReply:
    # The third chunk is within the text.
    delays = [chunk.after_s + (_SILENCE_S if index == 2 else 0.0) for index, chunk in enumerate(exchange.reply.pieces)]
    return _with_delays(exchange.reply, delays)


class DisconnectIgnoringServer:
    """A server that continues to generate after a disconnect, which its gauge shows."""

    def __init__(self, reference: ReferenceServer) -> None:
        self._reference = reference
        self._posts: deque[MockHttpRequest] = deque(maxlen=_TRACKED_LIMIT)

    def answer(self, http_request: MockHttpRequest) -> MockReply:
        """Answer any request."""
        exchange = MockExchange(self._reference, http_request)
        reply = exchange.reply
        if exchange.path == "/metrics":
            correct = f"{RUNNING_GAUGE} {self._reference.running_count()}\n".encode()
            actual = f"{RUNNING_GAUGE} {sum(map(_is_still_generating, self._posts))}\n".encode()
            chunks = tuple(MockChunk(base64=chunk.data.replace(correct, actual)) for chunk in reply.pieces)
            return msgspec.structs.replace(reply, pieces=chunks)
        if http_request.method == "POST":
            self._posts.append(http_request)
        needs_delay = exchange.is_stream and self._reference.gap_s == 0
        return _with_delays(reply, [_CHUNK_DELAY_S] * len(reply.pieces)) if needs_delay else reply


def _is_still_generating(http_request: MockHttpRequest) -> bool:
    if http_request.end == "left" and http_request.ended_s is not None:
        return time.monotonic() - http_request.ended_s < _ORPHAN_S
    return http_request.end == "running"


def _with_delays(reply: MockReply, delays: list[float]) -> MockReply:
    pairs = zip(reply.pieces, delays, strict=True)
    return msgspec.structs.replace(reply, pieces=tuple(MockChunk(base64=chunk.data, after_s=s) for chunk, s in pairs))


# Stream or buffered reply.


def _stream_for_accept_header(exchange: MockExchange) -> Json:
    is_asked = not exchange.fields.get("stream") and exchange.http_request.headers.get("accept") == EVENT_STREAM
    return {"stream": True} if is_asked else {}


# Other endpoints and errors.


def _narrow_preflight(exchange: MockExchange) -> MockReply:
    headers = exchange.reply.headers | {"Access-Control-Allow-Headers": "authorization, content-type"}
    is_preflight = exchange.http_request.method == "OPTIONS"
    return msgspec.structs.replace(exchange.reply, headers=headers) if is_preflight else exchange.reply


def _edits_path(method: str, path_end: str, edit: Callable[[Json], Json]) -> MockBehavior:
    """Return a behaviour that edits the replies of one endpoint."""

    def answer(exchange: MockExchange) -> MockReply:
        is_meant = exchange.http_request.method == method and exchange.path.endswith(path_end)
        return exchange.edited(edit) if is_meant and exchange.reply.status == 200 else exchange.reply

    return answer


def _closes_socket(exchange: MockExchange) -> MockReply:
    """Close a WebSocket after each response."""
    is_message = exchange.http_request.method == "POST" and is_handshake(exchange.http_request.headers)
    return msgspec.structs.replace(exchange.reply, end="close") if is_message else exchange.reply


def _bad_json_as_500(exchange: MockExchange) -> MockReply:
    is_invalid = exchange.reply.status == 400 and exchange.json is None
    if is_invalid and exchange.is_gemini:
        return render_error(ApiError(500, "Invalid JSON."), ErrorFormat.GEMINI)
    return msgspec.structs.replace(exchange.reply, status=500) if is_invalid else exchange.reply


# Structure of an answer.


def _choices(chunk: Json) -> list[Json]:
    return [as_object(choice) for choice in as_list(chunk.get("choices"))]


def _edits_replies(edit: Callable[[Json], Json | None]) -> MockBehavior:
    """Return a behaviour that edits every chunk and every buffered reply to a POST."""
    return lambda exchange: exchange.edited(edit) if exchange.http_request.method == "POST" else exchange.reply


def _replaces(name: str, right: str, wrong: str) -> MockBehavior:
    """Return a behaviour that replaces the value of a member, wherever it stands."""
    before, after = f'"{name}": "{right}"', f'"{name}": "{wrong}"'
    return _edits_replies(lambda chunk: json.loads(json.dumps(chunk).replace(before, after)))


def _reports_completed(chunk: Json) -> Json:
    """Report a truncated response as completed."""
    if chunk.get("type") == "response.incomplete":
        return chunk | {"type": "response.completed", "response": _reports_completed(chunk["response"])}
    if chunk.get("object") == "response" and chunk.get("status") == "incomplete":
        return chunk | {"status": "completed", "incomplete_details": None}
    return chunk


def _empties_other_choices(chunk: Json) -> Json | None:
    """Remove the text of all choices but the first."""
    for choice in _choices(chunk):
        message = as_object(choice.get("message", choice.get("delta")))
        if choice.get("index") and message.get("content"):
            if "delta" in choice:
                return None
            message["content"] = ""
    return chunk


def _drops_a_chunk(exchange: MockExchange) -> MockReply:
    """Drop the second text chunk of each choice of a stream."""
    text_chunks: Counter[int] = Counter()

    def drop(chunk: Json) -> Json | None:
        for choice in _choices(chunk):
            if as_object(choice.get("delta")).get("content"):
                text_chunks[choice["index"]] += 1
                if text_chunks[choice["index"]] == 2:
                    return None
        return chunk

    return exchange.edited(drop)


def _counts_one_choice(exchange: MockExchange) -> MockReply:
    """Report the usage of one choice only."""
    n = exchange.fields.get("n")

    def divide(chunk: Json) -> Json:
        if isinstance(usage := chunk.get("usage"), dict):
            usage["completion_tokens"] //= n
            usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
        return chunk

    has_several = isinstance(n, int) and n > 1 and exchange.reply.status == 200
    return exchange.edited(divide) if has_several else exchange.reply


def _reversed_prompts(exchange: MockExchange) -> Json:
    prompt = exchange.fields.get("prompt")
    return {"prompt": prompt[::-1]} if isinstance(prompt, list) else {}


# Text of an answer.


def _stops(request: Json) -> list[str]:
    stop = request.get("stop")
    return [value for value in (stop if isinstance(stop, list) else [stop]) if isinstance(value, str)]


def _leaks_stop_string(exchange: MockExchange) -> MockReply:
    """Send the stop string that ended the text, if the request has exactly one."""
    stops = _stops(exchange.fields)
    if len(stops) == 1:
        text = choice_text(exchange.first_choice())
        if text != choice_text(exchange.first_choice(stop=...)):
            return exchange.with_text(text + stops[0])
    return exchange.reply


def _withholds_stop_prefix(exchange: MockExchange) -> MockReply:
    """Do not send the end of a text that is a prefix of a stop string."""
    if stops := _stops(exchange.fields):
        text = choice_text(exchange.first_choice())
        sizes = [size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
        if sizes:
            return exchange.with_text(text[: -max(sizes)])
    return exchange.reply


def _omits_role_when_empty(exchange: MockExchange) -> MockReply:
    """Omit the role chunk of a stream without content."""
    message = as_object(exchange.first_choice().get("message"))
    if not message or any(message.get(name) for name in ("content", "tool_calls", "reasoning_content")):
        return exchange.reply
    return exchange.edited(lambda chunk: None if any("role" in entry["delta"] for entry in _choices(chunk)) else chunk)


def _leaks_special_token(exchange: MockExchange) -> MockReply:
    """Append a special token to each text that ends by itself."""
    request = exchange.fields
    is_chat = not request.keys().isdisjoint(("messages", "input", "contents"))
    request = request | as_object(request.get("generationConfig"))
    if (
        is_chat
        and not _stops(request)
        and not any(map(request.get, ("response_format", "text", "stop_sequences", "stopSequences")))
    ):
        text, is_ended = exchange.buffered_text()
        if is_ended:
            return exchange.with_text(text + _SPECIAL_TOKEN)
    return exchange.reply


def _leaks_tool_markup(exchange: MockExchange) -> MockReply:
    """Send tool calls as text, in the markup of the model."""
    if not exchange.fields.get("tools"):
        return exchange.reply
    message = as_object(exchange.first_choice().get("message"))
    functions = [as_object(as_object(tool_call).get("function")) for tool_call in as_list(message.get("tool_calls"))]
    markup = "\n".join(f"<tool_call>\n{_call_markup(function)}\n</tool_call>" for function in functions)
    return exchange.with_text(markup) if markup else exchange.reply


def _call_markup(function: Json) -> str:
    arguments: Any = json.loads(function["arguments"])
    return json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)


BEHAVIORS: Mapping[str, MockBehavior] = {
    "http-flush-each-event": _changes_stream(_buffers_stream),
    "http-headers-before-prefill": _changes_stream(_delays_headers),
    "http-cors-preflight": _narrow_preflight,
    "http-accept-ignored": _changes_request(_stream_for_accept_header),
    "http-stream-default-false": _changes_request(
        lambda exchange: {} if "stream" in exchange.fields else {"stream": True}
    ),
    "delta-concat-equals-full": _changes_stream(_drops_a_chunk),
    "fin-length": _replaces("finish_reason", "length", "stop"),
    "use-whole-request": _counts_one_choice,
    "tool-no-markup-leak": _leaks_tool_markup,
    "err-refused-4xx": _bad_json_as_500,
    "n-each-complete": _edits_replies(_empties_other_choices),
    "n-refuse-if-unsupported": _ignores_field("n"),
    "cmpl-echo": _ignores_field("echo"),
    "cmpl-batch-index": _changes_request(_reversed_prompts),
    "cmpl-suffix": _ignores_field("suffix"),
    "resp-incomplete": _edits_replies(_reports_completed),
    "resp-compact": _edits_path("POST", "/v1/responses/compact", lambda reply: reply | {"object": "response"}),
    "resp-socket": _closes_socket,
    "msg-max-tokens": _replaces("stop_reason", "max_tokens", "end_turn"),
    "msg-count-tokens": _edits_path("POST", "/count_tokens", lambda count: {"tokens": count["input_tokens"]}),
    "gem-max-tokens": _replaces("finishReason", "MAX_TOKENS", "STOP"),
    "gem-count-tokens": _edits_path("POST", ":countTokens", lambda count: {"tokens": count["totalTokens"]}),
    "ns-models-list": _edits_path("GET", "/v1/models", lambda models: {"data": models["data"]}),
    "live-stop-not-leaked": _leaks_stop_string,
    "live-stop-holdback-flushed": _withholds_stop_prefix,
    "live-empty-generation": _changes_stream(_omits_role_when_empty),
    "live-keepalive-in-silence": _changes_stream(_omits_keep_alive),
    "live-no-special-tokens": _leaks_special_token,
    "req-max-tokens-both": _rejects_field("max_completion_tokens", lambda request: "max_completion_tokens" in request),
    "req-stream-options": _rejects_field("stream_options", _has_unknown_stream_options),
    "req-stop-forms": _rejects_field("stop", lambda request: isinstance(request.get("stop"), list)),
    "req-unknown-ignored": _rejects_field("body", lambda request: not request.keys() <= _KNOWN_FIELDS),
    "req-content-parts": _rejects_field("messages", _has_developer_role),
}
"""Behaviours by rule. `DisconnectIgnoringServer` is another one, with state."""
