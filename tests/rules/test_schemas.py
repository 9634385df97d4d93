"""Schema rules: every missing or mistyped required member of a published object is found."""

import copy
import json
from typing import Any

from tests.rules.pages import PAGES, read_page
from tests.table import table
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

Json = dict[str, Any]

OPEN_RESPONSES = (
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id"),
    *("instructions", "output", "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p"),
    *("presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage", "store"),
    *("max_output_tokens", "max_tool_calls", "background", "service_tier", "metadata", "safety_identifier"),
    "prompt_cache_key",
)
"""Required members of `ResponseResource` (Open Responses, 2026-04-24)."""
OPENAI_CHAT = ("id", "object", "created", "model", "choices", "choices.0.index", "choices.0.message")
OPENAI_TEXT = ("id", "object", "created", "model", "choices", "choices.0.index", "choices.0.text")
OPENAI_CHUNK = ("id", "object", "created", "model", "choices", "choices.0.index", "choices.0.finish_reason")
ANTHROPIC = ("id", "type", "role", "content", "model", "stop_reason", "stop_sequence", "usage", "usage.input_tokens")
MISSING = object()
"""Removes a member."""

CHAT: Json = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1700000000,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
}
TEXT: Json = CHAT | {
    "id": "cmpl-1",
    "object": "text_completion",
    "choices": [{"index": 0, "text": "Hi", "logprobs": None, "finish_reason": "stop"}],
}
MESSAGE: Json = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "Hi"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "output_tokens": 3},
}


def _response() -> Json:
    blocks = [block for block in read_page(PAGES / "resp-object-schema.md") if block.is_correct]
    found: Json = json.loads(blocks[1].trace.body)
    tool = {"type": "function", "name": "get", "description": None, "parameters": None, "strict": True}
    thought = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "why"}]}
    return found | {"tools": [tool, {"type": "web_search"}], "output": [thought, *found["output"]]}


RESPONSE = _response()


def _changed(value: Json, path: str, new: object) -> Json:
    """Return the object with one member replaced or removed."""
    value = copy.deepcopy(value)
    *above, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    inner: Any = value
    for step in above:
        inner = inner[step]
    if new is MISSING:
        del inner[last]
    else:
        inner[last] = new
    return value


def _rules(endpoint: str, value: Json) -> set[str]:
    body = json.dumps(value).encode()
    return set(judge(Trace(body=body, endpoint=endpoint, status=200, request={"stream": False})).counts)


@table(("endpoint", "right"), [("chat", CHAT), ("completions", TEXT), ("messages", MESSAGE), ("responses", RESPONSE)])
def test_the_complete_object_has_no_findings(endpoint: str, right: Json) -> None:
    assert _rules(endpoint, right) == set()


@table("new", [MISSING, {"a": 1}, True], ids=["missing", "object", "boolean"])
@table(
    ("endpoint", "right", "path"),
    [
        *(("chat", CHAT, path) for path in OPENAI_CHAT),
        *(("completions", TEXT, path) for path in OPENAI_TEXT),
        *(("messages", MESSAGE, path) for path in ANTHROPIC),
        *(("responses", RESPONSE, path) for path in OPEN_RESPONSES),
        *(("responses", RESPONSE, f"tools.0.{name}") for name in ("name", "description", "parameters", "strict")),
        *(("responses", RESPONSE, f"output.0.{name}") for name in ("id", "summary", "summary.0.text")),
        *(("responses", RESPONSE, f"output.1.{name}") for name in ("id", "role", "status", "content")),
        *(("responses", RESPONSE, f"output.1.content.0.{name}") for name in ("text", "annotations")),
    ],
)
def test_a_required_member_that_is_missing_or_has_another_type_is_found(
    endpoint: str, right: Json, path: str, new: object
) -> None:
    changed = _changed(right, path, new)
    is_legal = _rules(endpoint, right) == _rules(endpoint, changed) and _is_legal(path, new)
    assert is_legal or _rules(endpoint, changed)


def _is_legal(path: str, new: object) -> bool:
    """Whether the schema allows the changed value."""
    objects = ("metadata", "text", "reasoning", "tool_choice", "error", "incomplete_details", "message", "parameters")
    flags = ("store", "background", "parallel_tool_calls", "strict")
    return path.rpartition(".")[2] in (objects if isinstance(new, dict) else flags if new is True else ())


def test_an_incomplete_response_needs_a_reason() -> None:
    cut = RESPONSE | {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    assert _rules("responses", cut) == set()
    assert _rules("responses", cut | {"incomplete_details": {}}) == {"resp-object-schema"}


@table("path", OPENAI_CHUNK)
@table("endpoint", ["chat", "completions"])
def test_a_missing_required_member_of_a_chunk_is_found(endpoint: str, path: str) -> None:
    base: Json = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choices: list[tuple[Json, str | None]] = [
        ({"delta": {"role": "assistant", "content": ""}}, None),
        ({"delta": {"content": "Hi"}}, None),
        ({"delta": {}}, "stop"),
    ]
    if endpoint == "completions":
        base |= {"id": "cmpl-1", "object": "text_completion"}
        choices = [({"text": "Hi"}, None), ({"text": ""}, "stop")]
    chunks = [base | {"choices": [{"index": 0, **content, "finish_reason": reason}]} for content, reason in choices]

    def rules(*values: Json) -> set[str]:
        body = b"".join(b"data: %b\n\n" % json.dumps(value).encode() for value in values) + b"data: [DONE]\n\n"
        return set(judge(Trace(body=body, endpoint=endpoint, status=200, request={"stream": True})).counts)

    assert rules(*chunks) == set()
    assert rules(_changed(chunks[0], path, MISSING), *chunks[1:])
