"""A server that speaks chat only, and what it says to whom: the model that a request names is what happens."""

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
COMPLAINT = "the card fell out of the slot"
USAGE = [9, 4, 13]
MODELS = ["says", "calls", "limited", "breaks", "falls-silent", "stalls"]

_COUNTED = dict(zip(("prompt_tokens", "completion_tokens", "total_tokens"), USAGE, strict=True))
_END = (MockChunk(f"data: {json.dumps({'choices': [], 'usage': _COUNTED})}\n\n"), MockChunk("data: [DONE]\n\n"))
# More than is read at once, so that what was said before it has gone out when the failure comes.
_PADDING = MockChunk(f": {'w' * 65536}\n\n", times=16)
_FAILURE = {"error": {"message": COMPLAINT, "type": "server_error", "code": "no_card"}}


def _delta(reason: str | None = None, **delta: object) -> MockChunk:
    return MockChunk(CHUNK_TEMPLATE % (json.dumps(delta), json.dumps(reason)))


_ROLE = _delta(role="assistant", content="")
_THINKS = [_delta(reasoning_content=piece) for piece in THOUGHTS]
_SAYS = [_delta(content=piece) for piece in TEXT]


def _call(index: int, call_id: str, name: str, arguments: dict[str, Any]) -> list[MockChunk]:
    """Its arguments come in two pieces."""
    written = json.dumps(arguments)
    opened = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": written[:5]}}
    return [_delta(tool_calls=[opened]), _delta(tool_calls=[{"index": index, "function": {"arguments": written[5:]}}])]


def _whole(reason: str, *said: MockChunk) -> MockReply:
    return MockReply((_ROLE, *said, _delta(reason), *_END))


_CALLED = [piece for index, call in enumerate(CALLS) for piece in _call(index, *call)]
REPLIES = {
    "says": _whole("stop", *_THINKS, *_SAYS),
    "calls": _whole("tool_calls", *_THINKS, _delta(content=PREFACE), *_CALLED),
    "answers": _whole("stop", _delta(content=ANSWER)),
    "limited": _whole("length", *_SAYS),
    "breaks": MockReply((_ROLE, *_SAYS, _PADDING, MockChunk(f"data: {json.dumps(_FAILURE)}\n\n"))),
    "falls-silent": MockReply((_ROLE, *_SAYS, _PADDING), end="cut"),
    "stalls": MockReply((_ROLE, *_SAYS), end="hang"),
}


def choose(seen: MockHttpRequest) -> MockReply:
    """What is said to a request: to one with results of tools, the answer."""
    body = json.loads(seen.body)
    has_results = any(message["role"] == "tool" for message in body["messages"])
    return REPLIES["answers" if has_results else body["model"]]


def results(messages: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """What the tools said, each with the call that it answers."""
    return [(one["tool_call_id"], json.dumps(one["content"])) for one in messages if one["role"] == "tool"]
