"""Edits of requests to the reference server, and of its replies."""

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
"""Fields of a request that change its answer."""
_TEXT_TYPES = ("output_text", "text")
_CALL_TYPES = ("function_call", "tool_use")
_MAX_TOKENS = 2000  # more than any text of `reply_with_text` has


def request_path(http_request: MockHttpRequest) -> str:
    """Return the path without the query."""
    return http_request.path.partition("?")[0]


def request_json(http_request: MockHttpRequest) -> Json | None:
    """Return the body if it is a JSON object."""
    try:
        value = json.loads(http_request.body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def with_fields(http_request: MockHttpRequest, **fields: Any) -> MockHttpRequest:  # noqa: ANN401 - JSON
    """Return the same request with other fields; the value `...` removes one."""
    request = {**(request_json(http_request) or {}), **fields}
    body = json.dumps({name: value for name, value in request.items() if value is not ...})
    # It was never sent: `end` keeps it out of the count of running requests.
    return msgspec.structs.replace(http_request, body=body, end="whole")


def reply_with_fields(reference: ReferenceServer, http_request: MockHttpRequest, **fields: Any) -> MockReply:  # noqa: ANN401 - JSON
    """Return the correct reply to the same request with other fields."""
    return reference.answer(with_fields(http_request, **fields))


def reply_with_text(reference: ReferenceServer, http_request: MockHttpRequest, text: str) -> MockReply:
    """Return a correct reply with this text, to an otherwise equal request."""
    prompt = f"Repeat exactly: {text}"
    messages = [{"role": "user", "content": prompt}]
    limits = dict.fromkeys(("max_tokens", "max_output_tokens"), _MAX_TOKENS)
    removed = dict.fromkeys(_OUTPUT_FIELDS, ...)
    # The fields of all dialects: each dialect ignores those of the others.
    return reply_with_fields(
        reference, http_request, **removed, **limits, messages=messages, prompt=prompt, input=prompt
    )


def first_choice(reference: ReferenceServer, http_request: MockHttpRequest, **fields: Any) -> Json:  # noqa: ANN401 - JSON
    """Return the first choice of the correct reply without a stream; empty for an error."""
    reply = json.loads(reply_with_fields(reference, http_request, stream=False, stream_options=..., **fields).body)
    choices = as_list(as_object(reply).get("choices"))
    return as_object(choices[0]) if choices else {}


def choice_text(choice: Json) -> str:
    """Return the text of a choice."""
    return as_text(as_object(choice.get("message")).get("content")) or as_text(choice.get("text"))


def buffered_text(reference: ReferenceServer, http_request: MockHttpRequest) -> tuple[str, bool]:
    """Return the text of the correct reply in any dialect, and whether it ended by itself."""
    reply = as_object(json.loads(reply_with_fields(reference, http_request, stream=False, stream_options=...).body))
    choice = as_object(next(iter(as_list(reply.get("choices"))), None))
    if choice:
        return choice_text(choice), choice.get("finish_reason") == "stop"
    content = [block for item in as_list(reply.get("output")) for block in as_list(as_object(item).get("content"))]
    blocks = [as_object(block) for block in content or as_list(reply.get("content"))]
    text = "".join(as_text(block.get("text")) for block in blocks if block.get("type") in _TEXT_TYPES)
    has_calls = any(as_object(item).get("type") in _CALL_TYPES for item in (*as_list(reply.get("output")), *blocks))
    is_ended = reply.get("status") == "completed" or reply.get("stop_reason") == "end_turn"
    return text, is_ended and not has_calls


def edit_chunks(reply: MockReply, edit: Callable[[Json], Json | None]) -> MockReply:
    """Apply an edit to each JSON chunk of a stream, or to the object of a buffered reply; None removes a chunk."""
    chunks = [MockChunk(base64=_edit_data(chunk.data, edit), after_s=chunk.after_s) for chunk in reply.pieces]
    return msgspec.structs.replace(reply, pieces=tuple(chunk for chunk in chunks if chunk.data))


def _edit_data(data: bytes, edit: Callable[[Json], Json | None]) -> bytes:
    if not data.endswith(sse.FRAME_END):  # a buffered reply
        return msgspec.json.encode(edit(json.loads(data)))
    frames = [frame + sse.FRAME_END for frame in data.split(sse.FRAME_END)[:-1]]
    return b"".join(_edit_frame(frame, edit) for frame in frames)


def _edit_frame(frame: bytes, edit: Callable[[Json], Json | None]) -> bytes:
    event_line, prefix, payload = frame.partition(sse.DATA_PREFIX)
    if frame == sse.DONE or not prefix:
        return frame
    edited = edit(json.loads(payload))
    if edited is None:
        return b""
    data = msgspec.json.encode(edited)
    return sse.named_frame(edited["type"], data) if event_line else sse.data_frame(data)
