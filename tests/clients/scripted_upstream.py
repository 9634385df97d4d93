"""An upstream with chat completions only: the model of a request selects the scripted reply."""

import json
from collections.abc import Sequence
from typing import Any

from welldone.mock.script import CHUNK_TEMPLATE, MockChunk, MockReply
from welldone.mock.server import MockHttpRequest

TEXT = ("Hello", ", wörld", "! \N{GRINNING FACE}")
THOUGHTS = ("Let me ", "think.")
PREFACE = "One moment."
CALLS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("call_a", "get_weather", {"city": "Oslo", "days": 1}),
    ("call_b", "get_time", {"city": "Paris"}),
)
ANSWER = "It rains."
ERROR_MESSAGE = "the card fell out of the slot"
USAGE = [9, 4, 13]
MODELS = ["says", "calls", "limited", "breaks", "falls-silent", "stalls"]

_USAGE_FIELDS = dict(zip(("prompt_tokens", "completion_tokens", "total_tokens"), USAGE, strict=True))
_END = (MockChunk(f"data: {json.dumps({'choices': [], 'usage': _USAGE_FIELDS})}\n\n"), MockChunk("data: [DONE]\n\n"))
# Larger than a read buffer, so that the text before it is sent before the failure.
_PADDING = MockChunk(f": {'w' * 65536}\n\n", times=16)
_FAILURE = {"error": {"message": ERROR_MESSAGE, "type": "server_error", "code": "no_card"}}


def _delta(reason: str | None = None, **delta: object) -> MockChunk:
    return MockChunk(CHUNK_TEMPLATE % (json.dumps(delta), json.dumps(reason)))


_ROLE = _delta(role="assistant", content="")
_REASONING_CHUNKS = [_delta(reasoning_content=piece) for piece in THOUGHTS]
_TEXT_CHUNKS = [_delta(content=piece) for piece in TEXT]


def _call(index: int, call_id: str, name: str, arguments: dict[str, Any]) -> list[MockChunk]:
    """A tool call whose arguments are split in two."""
    encoded = json.dumps(arguments)
    first = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": encoded[:5]}}
    return [_delta(tool_calls=[first]), _delta(tool_calls=[{"index": index, "function": {"arguments": encoded[5:]}}])]


def _complete(reason: str, *chunks: MockChunk) -> MockReply:
    return MockReply((_ROLE, *chunks, _delta(reason), *_END))


_CALL_CHUNKS = [piece for index, call in enumerate(CALLS) for piece in _call(index, *call)]
REPLIES = {
    "says": _complete("stop", *_REASONING_CHUNKS, *_TEXT_CHUNKS),
    "calls": _complete("tool_calls", *_REASONING_CHUNKS, _delta(content=PREFACE), *_CALL_CHUNKS),
    "answers": _complete("stop", _delta(content=ANSWER)),
    "limited": _complete("length", *_TEXT_CHUNKS),
    "breaks": MockReply((_ROLE, *_TEXT_CHUNKS, _PADDING, MockChunk(f"data: {json.dumps(_FAILURE)}\n\n"))),
    "falls-silent": MockReply((_ROLE, *_TEXT_CHUNKS, _PADDING), end="cut"),
    "stalls": MockReply((_ROLE, *_TEXT_CHUNKS), end="hang"),
}


def choose(request: MockHttpRequest) -> MockReply:
    """Select the reply: the final answer if the request has tool results, else by model."""
    body = json.loads(request.body)
    has_results = any(message["role"] == "tool" for message in body["messages"])
    return REPLIES["answers" if has_results else body["model"]]


def results(messages: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the id and content of each tool result."""
    return [
        (message["tool_call_id"], json.dumps(message["content"])) for message in messages if message["role"] == "tool"
    ]
