"""Flaws that take more than one reply to hear: what a server does otherwise than it should, each in a few lines."""

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from welldone.engines.flaws.changes import (
    asked_as,
    edited,
    first_choice,
    path_of,
    request_of,
    said_as,
    text_of,
    whole_text,
)
from welldone.engines.ideal import Ideal
from welldone.engines.ideal.messages import Answered
from welldone.engines.ideal.refusals import invalid
from welldone.engines.ideal.requests import Chat, Completion
from welldone.engines.ideal.responses import Responses
from welldone.engines.ideal.server import GAUGE
from welldone.engines.scripted import Seen
from welldone.engines.scripts import Piece, Reply
from welldone.rules.choices import as_list, as_object
from welldone.wire.events import Json

Habit: TypeAlias = Callable[[Ideal, Seen], Reply]

_EVENTS = "text/event-stream"
_KINDS = (Chat, Completion, Responses, Answered)
_MEMBERS = frozenset(field.encode_name for kind in _KINDS for field in msgspec.structs.fields(kind))
_SPECIAL = "<|im_end|>"
_MADE_S = 0.5
"""How long a text takes that comes all at once: long enough to be seen."""
_READ_S = 0.0001
"""How long a character of a prompt takes to be read, on a small machine."""
_SILENCE_S = 20.0
"""A sign of life is due every 15 s."""
_PACE_S = 0.01
"""Before each piece of an answer that somebody may leave."""
_DEAF_S = 30.0
"""How long an answer goes on that nobody hears: some thousand tokens."""
_KEPT = 100  # requests that may be under way; a check has four


# ---- members that are refused, or not read at all


def _refusing(param: str, is_refused: Callable[[Json], object]) -> Habit:
    def answer(ideal: Ideal, seen: Seen) -> Reply:
        if is_refused(request_of(seen) or {}):
            return ideal.refuse(invalid(f"Invalid '{param}'.", param, "invalid_value"))
        return ideal.answer(seen)

    return answer


def _ignoring(name: str) -> Habit:
    def answer(ideal: Ideal, seen: Seen) -> Reply:
        is_there = name in (request_of(seen) or {})
        return asked_as(ideal, seen, **{name: ...}) if is_there else ideal.answer(seen)

    return answer


def _has_developer(request: Json) -> bool:
    return any(as_object(message).get("role") == "developer" for message in as_list(request.get("messages")))


def _has_more_options(request: Json) -> bool:
    return not as_object(request.get("stream_options")).keys() <= {"include_usage"}


# ---- when it comes


def _all_at_once(ideal: Ideal, seen: Seen) -> Reply:
    reply = ideal.answer(seen)
    if not _is_stream(reply):
        return reply
    made_s = max(_MADE_S, sum(piece.after_s for piece in reply.pieces))
    return msgspec.structs.replace(reply, pieces=(Piece(base64=reply.body, after_s=made_s),))


def _late_head(ideal: Ideal, seen: Seen) -> Reply:
    reply = ideal.answer(seen)
    return msgspec.structs.replace(reply, after_s=_READ_S * len(seen.body)) if _is_stream(reply) else reply


def _silent(ideal: Ideal, seen: Seen) -> Reply:
    """The pause is within the text."""
    reply = ideal.answer(seen)
    pauses = [piece.after_s + (_SILENCE_S if place == 2 else 0.0) for place, piece in enumerate(reply.pieces)]
    return _paced(reply, pauses) if _is_stream(reply) else reply


class Deaf:
    """The ideal server, which goes on when nobody listens any more, and says so in its gauge."""

    def __init__(self, ideal: Ideal) -> None:
        self._ideal = ideal
        self._posts: deque[Seen] = deque(maxlen=_KEPT)

    def answer(self, seen: Seen) -> Reply:
        """The reply to any request."""
        reply = self._ideal.answer(seen)
        if path_of(seen) == "/metrics":
            told, true = f"{GAUGE} {self._ideal.running()}\n", f"{GAUGE} {sum(map(_goes_on, self._posts))}\n"
            pieces = tuple(Piece(base64=piece.data.replace(told.encode(), true.encode())) for piece in reply.pieces)
            return msgspec.structs.replace(reply, pieces=pieces)
        if seen.method == "POST":
            self._posts.append(seen)
        is_quick = _is_stream(reply) and self._ideal.gap_s == 0
        return _paced(reply, [_PACE_S] * len(reply.pieces)) if is_quick else reply


def _goes_on(seen: Seen) -> bool:
    if seen.end == "left" and seen.ended_s is not None:
        return time.monotonic() - seen.ended_s < _DEAF_S
    return seen.end == "running"


def _is_stream(reply: Reply) -> bool:
    return reply.headers.get("Content-Type", "").startswith(_EVENTS)


def _paced(reply: Reply, pauses: list[float]) -> Reply:
    pairs = zip(reply.pieces, pauses, strict=True)
    return msgspec.structs.replace(reply, pieces=tuple(Piece(base64=piece.data, after_s=s) for piece, s in pairs))


# ---- stream or not


def _accept_chooses(ideal: Ideal, seen: Seen) -> Reply:
    request = request_of(seen)
    is_other = request is not None and not request.get("stream") and seen.headers.get("accept") == _EVENTS
    return asked_as(ideal, seen, stream=True) if is_other else ideal.answer(seen)


def _streams_by_default(ideal: Ideal, seen: Seen) -> Reply:
    request = request_of(seen)
    is_unsaid = request is not None and "stream" not in request
    return asked_as(ideal, seen, stream=True) if is_unsaid else ideal.answer(seen)


# ---- what is told besides


def _narrow_preflight(ideal: Ideal, seen: Seen) -> Reply:
    reply = ideal.answer(seen)
    allowed = {"Access-Control-Allow-Headers": "authorization, content-type"}
    return msgspec.structs.replace(reply, headers=reply.headers | allowed) if seen.method == "OPTIONS" else reply


def _bare_models(ideal: Ideal, seen: Seen) -> Reply:
    reply = ideal.answer(seen)
    is_list = (seen.method, path_of(seen), reply.status) == ("GET", "/v1/models", 200)
    return edited(reply, lambda listed: {"data": listed["data"]}) if is_list else reply


def _counts_otherwise(ideal: Ideal, seen: Seen) -> Reply:
    reply = ideal.answer(seen)
    is_count = path_of(seen) == "/v1/messages/count_tokens" and reply.status == 200
    return edited(reply, lambda counted: {"tokens": counted["input_tokens"]}) if is_count else reply


def _fails_at_bad_json(ideal: Ideal, seen: Seen) -> Reply:
    reply = ideal.answer(seen)
    is_bad = reply.status == 400 and request_of(seen) is None
    return msgspec.structs.replace(reply, status=500) if is_bad else reply


# ---- how an answer is told


def _choices(said: Json) -> list[Json]:
    return [as_object(choice) for choice in as_list(said.get("choices"))]


def _changing(change: Callable[[Json], Json | None]) -> Habit:
    """Changes every chunk, and every whole reply, to a question."""
    return lambda ideal, seen: edited(ideal.answer(seen), change) if seen.method == "POST" else ideal.answer(seen)


def _stop_for_length(said: Json) -> Json:
    for choice in _choices(said):
        if choice.get("finish_reason") == "length":
            choice["finish_reason"] = "stop"
    return said


def _completed(said: Json) -> Json:
    """A response that was cut is said to be whole."""
    if said.get("type") == "response.incomplete":
        return said | {"type": "response.completed", "response": _completed(said["response"])}
    if said.get("object") == "response" and said.get("status") == "incomplete":
        return said | {"status": "completed", "incomplete_details": None}
    return said


def _ended_turn(said: Json) -> Json:
    """A message that was cut is said to be whole."""
    place = as_object(said.get("delta")) if said.get("type") == "message_delta" else said
    if place.get("stop_reason") == "max_tokens":
        place["stop_reason"] = "end_turn"
    return said


def _says_nothing_else(said: Json) -> Json | None:
    """Only the first choice has a text."""
    for choice in _choices(said):
        message = as_object(choice.get("message", choice.get("delta")))
        if choice.get("index") and message.get("content"):
            if "delta" in choice:
                return None
            message["content"] = ""
    return said


def _loses_a_piece(ideal: Ideal, seen: Seen) -> Reply:
    """The second piece of each text of a stream."""
    reply = ideal.answer(seen)
    said: Counter[int] = Counter()

    def lose(chunk: Json) -> Json | None:
        for choice in _choices(chunk):
            if as_object(choice.get("delta")).get("content"):
                said[choice["index"]] += 1
                if said[choice["index"]] == 2:
                    return None
        return chunk

    return edited(reply, lose) if _is_stream(reply) else reply


def _counts_one(ideal: Ideal, seen: Seen) -> Reply:
    """As if each request had one choice."""
    reply = ideal.answer(seen)
    asked = (request_of(seen) or {}).get("n")

    def count(said: Json) -> Json:
        if isinstance(usage := said.get("usage"), dict):
            usage["completion_tokens"] //= asked
            usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
        return said

    return edited(reply, count) if isinstance(asked, int) and asked > 1 and reply.status == 200 else reply


def _turned_round(ideal: Ideal, seen: Seen) -> Reply:
    prompt = (request_of(seen) or {}).get("prompt")
    return asked_as(ideal, seen, prompt=prompt[::-1]) if isinstance(prompt, list) else ideal.answer(seen)


# ---- what an answer says


def _stops(request: Json) -> list[str]:
    stop = request.get("stop")
    return [one for one in (stop if isinstance(stop, list) else [stop]) if isinstance(one, str)]


def _leaks_stop(ideal: Ideal, seen: Seen) -> Reply:
    """Sends the stop string that ended the text, where there is but one."""
    stops = _stops(request_of(seen) or {})
    if len(stops) == 1:
        text = text_of(first_choice(ideal, seen))
        if text != text_of(first_choice(ideal, seen, stop=...)):
            return said_as(ideal, seen, text + stops[0])
    return ideal.answer(seen)


def _withholds(ideal: Ideal, seen: Seen) -> Reply:
    """Keeps the end of a text that might have become a stop string."""
    if stops := _stops(request_of(seen) or {}):
        text = text_of(first_choice(ideal, seen))
        ends = [size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
        if ends:
            return said_as(ideal, seen, text[: -max(ends)])
    return ideal.answer(seen)


def _nothing_without_role(ideal: Ideal, seen: Seen) -> Reply:
    """A stream that says nothing has no role."""
    reply = ideal.answer(seen)
    message = as_object(first_choice(ideal, seen).get("message")) if _is_stream(reply) else {}
    if not message or any(message.get(name) for name in ("content", "tool_calls", "reasoning_content")):
        return reply
    return edited(reply, lambda chunk: None if any("role" in choice["delta"] for choice in _choices(chunk)) else chunk)


def _says_special_token(ideal: Ideal, seen: Seen) -> Reply:
    """At the end of each text that ends by itself."""
    request = request_of(seen) or {}
    is_talk = "messages" in request or "input" in request
    if is_talk and not _stops(request) and not any(map(request.get, ("response_format", "text", "stop_sequences"))):
        text, is_ended = whole_text(ideal, seen)
        if is_ended:
            return said_as(ideal, seen, text + _SPECIAL)
    return ideal.answer(seen)


def _writes_calls(ideal: Ideal, seen: Seen) -> Reply:
    """Calls stand in the text, as the model has written them."""
    message = as_object(first_choice(ideal, seen).get("message")) if (request_of(seen) or {}).get("tools") else {}
    calls = [as_object(as_object(call).get("function")) for call in as_list(message.get("tool_calls"))]
    markup = "\n".join(f"<tool_call>\n{_written(call)}\n</tool_call>" for call in calls)
    return said_as(ideal, seen, markup) if markup else ideal.answer(seen)


def _written(call: Json) -> str:
    arguments: Any = json.loads(call["arguments"])
    return json.dumps({"name": call["name"], "arguments": arguments}, ensure_ascii=False)


HABITS: Mapping[str, Habit] = {
    "http-flush-each-event": _all_at_once,
    "http-headers-before-prefill": _late_head,
    "http-cors-preflight": _narrow_preflight,
    "http-accept-ignored": _accept_chooses,
    "http-stream-default-false": _streams_by_default,
    "delta-concat-equals-full": _loses_a_piece,
    "fin-length": _changing(_stop_for_length),
    "use-whole-request": _counts_one,
    "tool-no-markup-leak": _writes_calls,
    "err-refused-4xx": _fails_at_bad_json,
    "n-each-complete": _changing(_says_nothing_else),
    "n-refuse-if-unsupported": _ignoring("n"),
    "cmpl-echo": _ignoring("echo"),
    "cmpl-batch-index": _turned_round,
    "cmpl-suffix": _ignoring("suffix"),
    "resp-incomplete": _changing(_completed),
    "msg-max-tokens": _changing(_ended_turn),
    "msg-count-tokens": _counts_otherwise,
    "ns-models-list": _bare_models,
    "live-stop-not-leaked": _leaks_stop,
    "live-stop-holdback-flushed": _withholds,
    "live-empty-generation": _nothing_without_role,
    "live-keepalive-in-silence": _silent,
    "live-no-special-tokens": _says_special_token,
    "req-max-tokens-both": _refusing("max_completion_tokens", lambda request: "max_completion_tokens" in request),
    "req-stream-options": _refusing("stream_options", _has_more_options),
    "req-stop-forms": _refusing("stop", lambda request: isinstance(request.get("stop"), list)),
    "req-unknown-ignored": _refusing("body", lambda request: not request.keys() <= _MEMBERS),
    "req-content-parts": _refusing("messages", _has_developer),
}
"""By rule. `Deaf` is one more, which has to remember."""
