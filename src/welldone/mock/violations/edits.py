"""Edits of requests to the reference server, and of its replies."""

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec

from welldone.core import sse
from welldone.core.events import Json
from welldone.mock.reference.server import GEMINI_PATH, ReferenceServer
from welldone.mock.script import MockChunk, MockReply
from welldone.mock.server import MockHttpRequest
from welldone.rules.trace import parse_object
from welldone.rules.view.choices import as_list, as_object, as_text
from welldone.rules.view.gemini import GeminiReplyView

EVENT_STREAM = "text/event-stream"
_OUTPUT_FIELDS = (
    *("tools", "tool_choice", "response_format", "text", "stop", "stop_sequences", "max_completion_tokens"),
    *("instructions", "system", "toolConfig", "systemInstruction", "generationConfig"),
)
"""Fields of a request that change its answer."""
_TEXT_TYPES = ("output_text", "text")
_CALL_TYPES = ("function_call", "tool_use")
_MAX_TOKENS = 2000  # more than any text of `reply_with_text` has


class MockExchange:
    """A request to the reference server, and its correct reply."""

    def __init__(self, reference: ReferenceServer, http_request: MockHttpRequest) -> None:
        self.reference = reference
        self.http_request = http_request
        self.path: str = http_request.path.partition("?")[0]

    @cached_property
    def reply(self) -> MockReply:
        """The correct reply."""
        return self.reference.answer(self.http_request)

    @cached_property
    def json(self) -> Json | None:
        """The body of the request if it is a JSON object."""
        return parse_object(self.http_request.body)

    @property
    def fields(self) -> Json:
        """The fields of the request; none if its body is not a JSON object."""
        return self.json or {}

    @property
    def is_gemini(self) -> bool:
        """Whether it asks for an answer of Google's API."""
        return not self.path.endswith(":countTokens") and GEMINI_PATH.fullmatch(self.path) is not None

    @property
    def is_stream(self) -> bool:
        """Whether the correct reply is a stream."""
        return self.reply.headers.get("Content-Type", "").startswith(EVENT_STREAM)

    def variant(self, **fields: Any) -> "MockExchange":  # noqa: ANN401 - JSON
        """The same request with other fields; the value `...` removes one."""
        request = {**self.fields, **fields}
        body = json.dumps({name: value for name, value in request.items() if value is not ...})
        path = self.http_request.path
        if self.is_gemini and fields.get("stream") is False:
            path = self.path.replace(":streamGenerateContent", ":generateContent")
        # It was never sent: `end` keeps it out of the count of running requests.
        return MockExchange(
            self.reference, msgspec.structs.replace(self.http_request, path=path, body=body, end="whole")
        )

    def with_text(self, text: str) -> MockReply:
        """A correct reply with this text, to an otherwise equal request."""
        prompt = f"Repeat exactly: {text}"
        messages = [{"role": "user", "content": prompt}]
        contents = [{"role": "user", "parts": [{"text": prompt}]}]
        limit = "max_output_tokens" if "input" in self.fields else "max_tokens"
        removed = dict.fromkeys(_OUTPUT_FIELDS, ...)
        prompts = {"messages": messages, "prompt": prompt, "input": prompt, "contents": contents}
        prompt_fields = {name: value for name, value in prompts.items() if name in self.fields}
        return self.variant(**removed, **{limit: _MAX_TOKENS}, **prompt_fields).reply

    def buffered(self, **fields: Any) -> Json:  # noqa: ANN401 - JSON
        """The object of the correct reply without a stream."""
        return as_object(json.loads(self.variant(stream=False, stream_options=..., **fields).reply.body))

    def first_choice(self, **fields: Any) -> Json:  # noqa: ANN401 - JSON
        """The first choice of the correct reply without a stream; empty for an error."""
        return as_object(next(iter(as_list(self.buffered(**fields).get("choices"))), None))

    def buffered_text(self) -> tuple[str, bool]:
        """The text of the correct reply in any dialect, and whether it ended by itself."""
        reply, choice = self.buffered(), self.first_choice()
        if choice:
            return choice_text(choice), choice.get("finish_reason") == "stop"
        if candidates := GeminiReplyView([(None, reply)]).candidates:
            answer_parts = [content_part for content_part in candidates[0].parts if not content_part.get("thought")]
            text = "".join(as_text(answer_part.get("text")) for answer_part in answer_parts)
            return text, candidates[0].finish_reason == "STOP" and not candidates[0].calls
        items = [as_object(item) for item in as_list(reply.get("output"))]
        content = [block for item in items for block in as_list(item.get("content"))]
        blocks = [as_object(block) for block in content or as_list(reply.get("content"))]
        text = "".join(as_text(block.get("text")) for block in blocks if block.get("type") in _TEXT_TYPES)
        has_calls = any(item.get("type") in _CALL_TYPES for item in (*items, *blocks))
        is_ended = reply.get("status") == "completed" or reply.get("stop_reason") == "end_turn"
        return text, is_ended and not has_calls

    def edited(self, edit: Callable[[Json], Json | None]) -> MockReply:
        """The correct reply with an edit of its JSON; see `edit_chunks`."""
        return edit_chunks(self.reply, edit)


def choice_text(choice: Json) -> str:
    """Return the text of a choice."""
    return as_text(as_object(choice.get("message")).get("content")) or as_text(choice.get("text"))


def edit_chunks(reply: MockReply, edit: Callable[[Json], Json | None]) -> MockReply:
    """Apply an edit to each JSON chunk of a stream, or to the object of a buffered reply; None removes a chunk.

    An array is not changed.
    """
    if reply.body.startswith(b"["):
        return reply
    chunks = [MockChunk(base64=_edit_data(chunk.data, edit), after_s=chunk.after_s) for chunk in reply.pieces]
    return msgspec.structs.replace(reply, pieces=tuple(chunk for chunk in chunks if chunk.data))


def _edit_data(data: bytes, edit: Callable[[Json], Json | None]) -> bytes:
    if not data.endswith(sse.FRAME_END):  # a buffered reply
        return msgspec.json.encode(edit(json.loads(data)))
    return b"".join(_edit_frame(frame + sse.FRAME_END, edit) for frame in data.split(sse.FRAME_END)[:-1])


def _edit_frame(frame: bytes, edit: Callable[[Json], Json | None]) -> bytes:
    event_line, prefix, payload = frame.partition(sse.DATA_PREFIX)
    if frame == sse.DONE or not prefix:
        return frame
    edited = edit(json.loads(payload))
    if edited is None:
        return b""
    data = msgspec.json.encode(edited)
    return sse.named_frame(edited["type"], data) if event_line else sse.data_frame(data)
