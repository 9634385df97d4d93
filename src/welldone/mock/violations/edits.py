"""Small changes of what the ideal server is asked, and of what it replies."""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockChunk, MockReply
from welldone.mock.server import MockHttpRequest
from welldone.protocol import sse
from welldone.protocol.events import Json
from welldone.rules.view.choices import as_list, as_object, as_text

_OUTPUT_FIELDS = (
    *("tools", "tool_choice", "response_format", "text", "stop", "stop_sequences", "max_completion_tokens"),
    *("instructions", "system"),
)
"""Members that change what is said."""
_TEXT_TYPES = ("output_text", "text")
_CALL_TYPES = ("function_call", "tool_use")
_MAX_TOKENS = 2000  # tokens: no text that is said so is longer


def request_path(http_request: MockHttpRequest) -> str:
    """What was asked for, without what follows a question mark."""
    return http_request.path.partition("?")[0]


def request_json(http_request: MockHttpRequest) -> Json | None:
    """The JSON object that was asked with; None where there was none."""
    try:
        value = json.loads(http_request.body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def with_fields(http_request: MockHttpRequest, **fields: Any) -> MockHttpRequest:  # noqa: ANN401 - JSON
    """The same request with other members; one that is `...` is left out."""
    request = {**(request_json(http_request) or {}), **fields}
    body = json.dumps({name: value for name, value in request.items() if value is not ...})
    # It is no request of its own: who counts those that run shall not wait for its end.
    return msgspec.structs.replace(http_request, body=body, end="whole")


def reply_with_fields(reference: ReferenceServer, http_request: MockHttpRequest, **fields: Any) -> MockReply:  # noqa: ANN401 - JSON
    """What is right to reply to the same request with other members."""
    return reference.answer(with_fields(http_request, **fields))


def reply_with_text(reference: ReferenceServer, http_request: MockHttpRequest, text: str) -> MockReply:
    """A right reply that says this text, to a request that is like it in all else."""
    prompt = f"Repeat exactly: {text}"
    # Each dialect reads its own members, and no other.
    talk = [{"role": "user", "content": prompt}]
    limits = dict.fromkeys(("max_tokens", "max_output_tokens"), _MAX_TOKENS)
    left_out = dict.fromkeys(_OUTPUT_FIELDS, ...)
    return reply_with_fields(reference, http_request, **left_out, **limits, messages=talk, prompt=prompt, input=prompt)


def first_choice(reference: ReferenceServer, http_request: MockHttpRequest, **fields: Any) -> Json:  # noqa: ANN401 - JSON
    """The first choice of what is right to reply, without a stream; an empty one where that is an error."""
    whole = json.loads(reply_with_fields(reference, http_request, stream=False, stream_options=..., **fields).body)
    choices = as_list(as_object(whole).get("choices"))
    return as_object(choices[0]) if choices else {}


def choice_text(choice: Json) -> str:
    """What a choice says."""
    return as_text(as_object(choice.get("message")).get("content")) or as_text(choice.get("text"))


def buffered_text(reference: ReferenceServer, http_request: MockHttpRequest) -> tuple[str, bool]:
    """The text of what is right to reply, in any dialect; and whether it ended by itself."""
    whole = as_object(json.loads(reply_with_fields(reference, http_request, stream=False, stream_options=...).body))
    choice = as_object(next(iter(as_list(whole.get("choices"))), None))
    if choice:
        return choice_text(choice), choice.get("finish_reason") == "stop"
    content = [block for item in as_list(whole.get("output")) for block in as_list(as_object(item).get("content"))]
    blocks = [as_object(block) for block in content or as_list(whole.get("content"))]
    text = "".join(as_text(block.get("text")) for block in blocks if block.get("type") in _TEXT_TYPES)
    has_calls = any(as_object(item).get("type") in _CALL_TYPES for item in (*as_list(whole.get("output")), *blocks))
    is_ended = whole.get("status") == "completed" or whole.get("stop_reason") == "end_turn"
    return text, is_ended and not has_calls


def edit_chunks(reply: MockReply, edit: Callable[[Json], Json | None]) -> MockReply:
    """The reply, each chunk of which (or the one object that it is) was changed; None leaves it out."""
    pieces = [MockChunk(base64=_edit_data(piece.data, edit), after_s=piece.after_s) for piece in reply.pieces]
    return msgspec.structs.replace(reply, pieces=tuple(piece for piece in pieces if piece.data))


def _edit_data(data: bytes, edit: Callable[[Json], Json | None]) -> bytes:
    if not data.endswith(sse.FRAME_END):  # one object
        return msgspec.json.encode(edit(json.loads(data)))
    frames = [frame + sse.FRAME_END for frame in data.split(sse.FRAME_END)[:-1]]
    return b"".join(_edit_frame(frame, edit) for frame in frames)


def _edit_frame(frame: bytes, edit: Callable[[Json], Json | None]) -> bytes:
    name, data, said = frame.partition(sse.DATA_PREFIX)
    if frame == sse.DONE or not data:
        return frame
    changed = edit(json.loads(said))
    if changed is None:
        return b""
    payload = msgspec.json.encode(changed)
    return sse.named_frame(changed["type"], payload) if name else sse.data_frame(payload)
