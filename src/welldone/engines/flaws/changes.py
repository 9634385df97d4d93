"""Small changes of what the ideal server is asked, and of what it replies."""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from welldone.engines.ideal import Ideal
from welldone.engines.scripted import Seen
from welldone.engines.scripts import Piece, Reply
from welldone.rules.choices import as_list, as_object, as_text
from welldone.wire import sse
from welldone.wire.events import Json

_PARTICULAR = (
    *("tools", "tool_choice", "response_format", "text", "stop", "stop_sequences", "max_completion_tokens"),
    *("instructions", "system"),
)
"""Members that change what is said."""
_TEXTS = ("output_text", "text")
_CALLS = ("function_call", "tool_use")
_ENOUGH = 2000  # tokens: no text that is said so is longer


def path_of(seen: Seen) -> str:
    """What was asked for, without what follows a question mark."""
    return seen.path.partition("?")[0]


def request_of(seen: Seen) -> Json | None:
    """The JSON object that was asked with; None where there was none."""
    try:
        value = json.loads(seen.body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def changed(seen: Seen, **members: Any) -> Seen:  # noqa: ANN401 - JSON
    """The same request with other members; one that is `...` is left out."""
    request = {**(request_of(seen) or {}), **members}
    body = json.dumps({name: value for name, value in request.items() if value is not ...})
    # It is no request of its own: who counts those that run shall not wait for its end.
    return msgspec.structs.replace(seen, body=body, end="whole")


def asked_as(ideal: Ideal, seen: Seen, **members: Any) -> Reply:  # noqa: ANN401 - JSON
    """What is right to reply to the same request with other members."""
    return ideal.answer(changed(seen, **members))


def said_as(ideal: Ideal, seen: Seen, text: str) -> Reply:
    """A right reply that says this text, to a request that is like it in all else."""
    prompt = f"Repeat exactly: {text}"
    # Each dialect reads its own members, and no other.
    talk = [{"role": "user", "content": prompt}]
    limits = dict.fromkeys(("max_tokens", "max_output_tokens"), _ENOUGH)
    left_out = dict.fromkeys(_PARTICULAR, ...)
    return asked_as(ideal, seen, **left_out, **limits, messages=talk, prompt=prompt, input=prompt)


def first_choice(ideal: Ideal, seen: Seen, **members: Any) -> Json:  # noqa: ANN401 - JSON
    """The first choice of what is right to reply, without a stream; an empty one where that is an error."""
    whole = json.loads(asked_as(ideal, seen, stream=False, stream_options=..., **members).body)
    choices = as_list(as_object(whole).get("choices"))
    return as_object(choices[0]) if choices else {}


def text_of(choice: Json) -> str:
    """What a choice says."""
    return as_text(as_object(choice.get("message")).get("content")) or as_text(choice.get("text"))


def whole_text(ideal: Ideal, seen: Seen) -> tuple[str, bool]:
    """The text of what is right to reply, in any dialect; and whether it ended by itself."""
    whole = as_object(json.loads(asked_as(ideal, seen, stream=False, stream_options=...).body))
    choice = as_object(next(iter(as_list(whole.get("choices"))), None))
    if choice:
        return text_of(choice), choice.get("finish_reason") == "stop"
    content = [block for item in as_list(whole.get("output")) for block in as_list(as_object(item).get("content"))]
    blocks = [as_object(block) for block in content or as_list(whole.get("content"))]
    text = "".join(as_text(block.get("text")) for block in blocks if block.get("type") in _TEXTS)
    has_calls = any(as_object(item).get("type") in _CALLS for item in (*as_list(whole.get("output")), *blocks))
    is_ended = whole.get("status") == "completed" or whole.get("stop_reason") == "end_turn"
    return text, is_ended and not has_calls


def edited(reply: Reply, change: Callable[[Json], Json | None]) -> Reply:
    """The reply, each chunk of which (or the one object that it is) was changed; None leaves it out."""
    pieces = [Piece(base64=_edit(piece.data, change), after_s=piece.after_s) for piece in reply.pieces]
    return msgspec.structs.replace(reply, pieces=tuple(piece for piece in pieces if piece.data))


def _edit(data: bytes, change: Callable[[Json], Json | None]) -> bytes:
    if not data.endswith(sse.END):  # one object
        return msgspec.json.encode(change(json.loads(data)))
    frames = [frame + sse.END for frame in data.split(sse.END)[:-1]]
    return b"".join(_edit_frame(frame, change) for frame in frames)


def _edit_frame(frame: bytes, change: Callable[[Json], Json | None]) -> bytes:
    name, data, said = frame.partition(sse.DATA)
    if frame == sse.DONE or not data:
        return frame
    changed = change(json.loads(said))
    if changed is None:
        return b""
    payload = msgspec.json.encode(changed)
    return sse.named(changed["type"], payload) if name else sse.frame(payload)
