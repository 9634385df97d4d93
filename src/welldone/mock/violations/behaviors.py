"""Flaws that take more than one reply to hear: what a server does otherwise than it should, each in a few lines."""

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from welldone.mock.reference.anthropic import MockMessagesRequest
from welldone.mock.reference.responses import MockResponsesRequest
from welldone.mock.reference.schemas import MockChatRequest, MockCompletionRequest, invalid_request
from welldone.mock.reference.server import RUNNING_GAUGE, ReferenceServer
from welldone.mock.script import MockChunk, MockReply
from welldone.mock.server import MockHttpRequest
from welldone.mock.violations.edits import (
    buffered_text,
    choice_text,
    edit_chunks,
    first_choice,
    reply_with_fields,
    reply_with_text,
    request_json,
    request_path,
)
from welldone.protocol.events import Json
from welldone.rules.view.choices import as_list, as_object

MockBehavior: TypeAlias = Callable[[ReferenceServer, MockHttpRequest], MockReply]

_EVENT_STREAM = "text/event-stream"
_REQUEST_TYPES = (MockChatRequest, MockCompletionRequest, MockResponsesRequest, MockMessagesRequest)
_KNOWN_FIELDS = frozenset(field.encode_name for kind in _REQUEST_TYPES for field in msgspec.structs.fields(kind))
_SPECIAL_TOKEN = "<|im_end|>"
_BUFFERING_S = 0.5
"""How long a text takes that comes all at once: long enough to be seen."""
_PREFILL_S_PER_CHARACTER = 0.0001
"""How long a character of a prompt takes to be read, on a small machine."""
_SILENCE_S = 20.0
"""A sign of life is due every 15 s."""
_CHUNK_DELAY_S = 0.01
"""Before each piece of an answer that somebody may leave."""
_ORPHAN_S = 30.0
"""How long an answer goes on that nobody hears: some thousand tokens."""
_TRACKED_LIMIT = 100  # requests that may be under way; a check has four


# ---- members that are refused, or not read at all


def _rejects_field(param: str, is_refused: Callable[[Json], object]) -> MockBehavior:
    def answer(reference: ReferenceServer, http_request: MockHttpRequest) -> MockReply:
        if is_refused(request_json(http_request) or {}):
            return reference.error_reply(invalid_request(f"Invalid '{param}'.", param, "invalid_value"))
        return reference.answer(http_request)

    return answer


def _ignores_field(name: str) -> MockBehavior:
    def answer(reference: ReferenceServer, http_request: MockHttpRequest) -> MockReply:
        is_there = name in (request_json(http_request) or {})
        return reply_with_fields(reference, http_request, **{name: ...}) if is_there else reference.answer(http_request)

    return answer


def _has_developer_role(request: Json) -> bool:
    return any(as_object(message).get("role") == "developer" for message in as_list(request.get("messages")))


def _has_unknown_stream_options(request: Json) -> bool:
    return not as_object(request.get("stream_options")).keys() <= {"include_usage"}


# ---- when it comes


def _buffers_stream(reference: ReferenceServer, http_request: MockHttpRequest) -> MockReply:
    reply = reference.answer(http_request)
    if not _is_stream(reply):
        return reply
    made_s = max(_BUFFERING_S, sum(piece.after_s for piece in reply.pieces))
    return msgspec.structs.replace(reply, pieces=(MockChunk(base64=reply.body, after_s=made_s),))


def _delays_headers(reference: ReferenceServer, http_request: MockHttpRequest) -> MockReply:
    reply = reference.answer(http_request)
    return (
        msgspec.structs.replace(reply, after_s=_PREFILL_S_PER_CHARACTER * len(http_request.body))
        if _is_stream(reply)
        else reply
    )


def _omits_keep_alive(reference: ReferenceServer, http_request: MockHttpRequest) -> MockReply:
    """The pause is within the text."""
    reply = reference.answer(http_request)
    pauses = [piece.after_s + (_SILENCE_S if place == 2 else 0.0) for place, piece in enumerate(reply.pieces)]
    return _with_delays(reply, pauses) if _is_stream(reply) else reply


class DisconnectIgnoringServer:
    """The ideal server, which goes on when nobody listens any more, and says so in its gauge."""

    def __init__(self, reference: ReferenceServer) -> None:
        self._ideal = reference
        self._posts: deque[MockHttpRequest] = deque(maxlen=_TRACKED_LIMIT)

    def answer(self, http_request: MockHttpRequest) -> MockReply:
        """The reply to any request."""
        reply = self._ideal.answer(http_request)
        if request_path(http_request) == "/metrics":
            told, true = (
                f"{RUNNING_GAUGE} {self._ideal.running_count()}\n",
                f"{RUNNING_GAUGE} {sum(map(_is_still_generating, self._posts))}\n",
            )
            pieces = tuple(MockChunk(base64=piece.data.replace(told.encode(), true.encode())) for piece in reply.pieces)
            return msgspec.structs.replace(reply, pieces=pieces)
        if http_request.method == "POST":
            self._posts.append(http_request)
        is_quick = _is_stream(reply) and self._ideal.gap_s == 0
        return _with_delays(reply, [_CHUNK_DELAY_S] * len(reply.pieces)) if is_quick else reply


def _is_still_generating(http_request: MockHttpRequest) -> bool:
    if http_request.end == "left" and http_request.ended_s is not None:
        return time.monotonic() - http_request.ended_s < _ORPHAN_S
    return http_request.end == "running"


def _is_stream(reply: MockReply) -> bool:
    return reply.headers.get("Content-Type", "").startswith(_EVENT_STREAM)


def _with_delays(reply: MockReply, delays: list[float]) -> MockReply:
    pairs = zip(reply.pieces, delays, strict=True)
    return msgspec.structs.replace(reply, pieces=tuple(MockChunk(base64=piece.data, after_s=s) for piece, s in pairs))


# ---- stream or not


def _streams_for_accept_header(reference: ReferenceServer, http_request: MockHttpRequest) -> MockReply:
    request = request_json(http_request)
    is_other = request is not None and not request.get("stream") and http_request.headers.get("accept") == _EVENT_STREAM
    return reply_with_fields(reference, http_request, stream=True) if is_other else reference.answer(http_request)


def _streams_by_default(reference: ReferenceServer, http_request: MockHttpRequest) -> MockReply:
    request = request_json(http_request)
    is_unsaid = request is not None and "stream" not in request
    return reply_with_fields(reference, http_request, stream=True) if is_unsaid else reference.answer(http_request)


# ---- what is told besides


def _narrow_preflight(reference: ReferenceServer, http_request: MockHttpRequest) -> MockReply:
    reply = reference.answer(http_request)
    allowed = {"Access-Control-Allow-Headers": "authorization, content-type"}
    return (
        msgspec.structs.replace(reply, headers=reply.headers | allowed) if http_request.method == "OPTIONS" else reply
    )


def _models_list_without_object(reference: ReferenceServer, http_request: MockHttpRequest) -> MockReply:
    reply = reference.answer(http_request)
    is_list = (http_request.method, request_path(http_request), reply.status) == ("GET", "/v1/models", 200)
    return edit_chunks(reply, lambda listed: {"data": listed["data"]}) if is_list else reply


def _renames_input_tokens(reference: ReferenceServer, http_request: MockHttpRequest) -> MockReply:
    reply = reference.answer(http_request)
    is_count = request_path(http_request) == "/v1/messages/count_tokens" and reply.status == 200
    return edit_chunks(reply, lambda counted: {"tokens": counted["input_tokens"]}) if is_count else reply


def _bad_json_as_500(reference: ReferenceServer, http_request: MockHttpRequest) -> MockReply:
    reply = reference.answer(http_request)
    is_bad = reply.status == 400 and request_json(http_request) is None
    return msgspec.structs.replace(reply, status=500) if is_bad else reply


# ---- how an answer is told


def _choices(chunk: Json) -> list[Json]:
    return [as_object(choice) for choice in as_list(chunk.get("choices"))]


def _edits_replies(edit: Callable[[Json], Json | None]) -> MockBehavior:
    """Changes every chunk, and every whole reply, to a question."""
    return lambda ideal, seen: edit_chunks(ideal.answer(seen), edit) if seen.method == "POST" else ideal.answer(seen)


def _reports_stop_for_length(chunk: Json) -> Json:
    for choice in _choices(chunk):
        if choice.get("finish_reason") == "length":
            choice["finish_reason"] = "stop"
    return chunk


def _reports_completed(chunk: Json) -> Json:
    """A response that was cut is said to be whole."""
    if chunk.get("type") == "response.incomplete":
        return chunk | {"type": "response.completed", "response": _reports_completed(chunk["response"])}
    if chunk.get("object") == "response" and chunk.get("status") == "incomplete":
        return chunk | {"status": "completed", "incomplete_details": None}
    return chunk


def _reports_end_turn(chunk: Json) -> Json:
    """A message that was cut is said to be whole."""
    place = as_object(chunk.get("delta")) if chunk.get("type") == "message_delta" else chunk
    if place.get("stop_reason") == "max_tokens":
        place["stop_reason"] = "end_turn"
    return chunk


def _empties_other_choices(chunk: Json) -> Json | None:
    """Only the first choice has a text."""
    for choice in _choices(chunk):
        message = as_object(choice.get("message", choice.get("delta")))
        if choice.get("index") and message.get("content"):
            if "delta" in choice:
                return None
            message["content"] = ""
    return chunk


def _drops_a_chunk(reference: ReferenceServer, http_request: MockHttpRequest) -> MockReply:
    """The second piece of each text of a stream."""
    reply = reference.answer(http_request)
    said: Counter[int] = Counter()

    def lose(chunk: Json) -> Json | None:
        for choice in _choices(chunk):
            if as_object(choice.get("delta")).get("content"):
                said[choice["index"]] += 1
                if said[choice["index"]] == 2:
                    return None
        return chunk

    return edit_chunks(reply, lose) if _is_stream(reply) else reply


def _counts_one_choice(reference: ReferenceServer, http_request: MockHttpRequest) -> MockReply:
    """As if each request had one choice."""
    reply = reference.answer(http_request)
    asked = (request_json(http_request) or {}).get("n")

    def count(chunk: Json) -> Json:
        if isinstance(usage := chunk.get("usage"), dict):
            usage["completion_tokens"] //= asked
            usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
        return chunk

    return edit_chunks(reply, count) if isinstance(asked, int) and asked > 1 and reply.status == 200 else reply


def _reverses_prompts(reference: ReferenceServer, http_request: MockHttpRequest) -> MockReply:
    prompt = (request_json(http_request) or {}).get("prompt")
    return (
        reply_with_fields(reference, http_request, prompt=prompt[::-1])
        if isinstance(prompt, list)
        else reference.answer(http_request)
    )


# ---- what an answer says


def _stops(request: Json) -> list[str]:
    stop = request.get("stop")
    return [one for one in (stop if isinstance(stop, list) else [stop]) if isinstance(one, str)]


def _leaks_stop_string(reference: ReferenceServer, http_request: MockHttpRequest) -> MockReply:
    """Sends the stop string that ended the text, where there is but one."""
    stops = _stops(request_json(http_request) or {})
    if len(stops) == 1:
        text = choice_text(first_choice(reference, http_request))
        if text != choice_text(first_choice(reference, http_request, stop=...)):
            return reply_with_text(reference, http_request, text + stops[0])
    return reference.answer(http_request)


def _withholds_stop_prefix(reference: ReferenceServer, http_request: MockHttpRequest) -> MockReply:
    """Keeps the end of a text that might have become a stop string."""
    if stops := _stops(request_json(http_request) or {}):
        text = choice_text(first_choice(reference, http_request))
        ends = [size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
        if ends:
            return reply_with_text(reference, http_request, text[: -max(ends)])
    return reference.answer(http_request)


def _omits_role_when_empty(reference: ReferenceServer, http_request: MockHttpRequest) -> MockReply:
    """A stream that says nothing has no role."""
    reply = reference.answer(http_request)
    message = as_object(first_choice(reference, http_request).get("message")) if _is_stream(reply) else {}
    if not message or any(message.get(name) for name in ("content", "tool_calls", "reasoning_content")):
        return reply
    return edit_chunks(
        reply, lambda chunk: None if any("role" in choice["delta"] for choice in _choices(chunk)) else chunk
    )


def _leaks_special_token(reference: ReferenceServer, http_request: MockHttpRequest) -> MockReply:
    """At the end of each text that ends by itself."""
    request = request_json(http_request) or {}
    is_talk = "messages" in request or "input" in request
    if is_talk and not _stops(request) and not any(map(request.get, ("response_format", "text", "stop_sequences"))):
        text, is_ended = buffered_text(reference, http_request)
        if is_ended:
            return reply_with_text(reference, http_request, text + _SPECIAL_TOKEN)
    return reference.answer(http_request)


def _leaks_tool_markup(reference: ReferenceServer, http_request: MockHttpRequest) -> MockReply:
    """Calls stand in the text, as the model has written them."""
    message = (
        as_object(first_choice(reference, http_request).get("message"))
        if (request_json(http_request) or {}).get("tools")
        else {}
    )
    calls = [as_object(as_object(call).get("function")) for call in as_list(message.get("tool_calls"))]
    markup = "\n".join(f"<tool_call>\n{_call_markup(call)}\n</tool_call>" for call in calls)
    return reply_with_text(reference, http_request, markup) if markup else reference.answer(http_request)


def _call_markup(call: Json) -> str:
    arguments: Any = json.loads(call["arguments"])
    return json.dumps({"name": call["name"], "arguments": arguments}, ensure_ascii=False)


BEHAVIORS: Mapping[str, MockBehavior] = {
    "http-flush-each-event": _buffers_stream,
    "http-headers-before-prefill": _delays_headers,
    "http-cors-preflight": _narrow_preflight,
    "http-accept-ignored": _streams_for_accept_header,
    "http-stream-default-false": _streams_by_default,
    "delta-concat-equals-full": _drops_a_chunk,
    "fin-length": _edits_replies(_reports_stop_for_length),
    "use-whole-request": _counts_one_choice,
    "tool-no-markup-leak": _leaks_tool_markup,
    "err-refused-4xx": _bad_json_as_500,
    "n-each-complete": _edits_replies(_empties_other_choices),
    "n-refuse-if-unsupported": _ignores_field("n"),
    "cmpl-echo": _ignores_field("echo"),
    "cmpl-batch-index": _reverses_prompts,
    "cmpl-suffix": _ignores_field("suffix"),
    "resp-incomplete": _edits_replies(_reports_completed),
    "msg-max-tokens": _edits_replies(_reports_end_turn),
    "msg-count-tokens": _renames_input_tokens,
    "ns-models-list": _models_list_without_object,
    "live-stop-not-leaked": _leaks_stop_string,
    "live-stop-holdback-flushed": _withholds_stop_prefix,
    "live-empty-generation": _omits_role_when_empty,
    "live-keepalive-in-silence": _omits_keep_alive,
    "live-no-special-tokens": _leaks_special_token,
    "req-max-tokens-both": _rejects_field("max_completion_tokens", lambda request: "max_completion_tokens" in request),
    "req-stream-options": _rejects_field("stream_options", _has_unknown_stream_options),
    "req-stop-forms": _rejects_field("stop", lambda request: isinstance(request.get("stop"), list)),
    "req-unknown-ignored": _rejects_field("body", lambda request: not request.keys() <= _KNOWN_FIELDS),
    "req-content-parts": _rejects_field("messages", _has_developer_role),
}
"""By rule. `Deaf` is one more, which has to remember."""
