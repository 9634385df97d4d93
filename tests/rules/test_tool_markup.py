"""Tool calls written as text: what the judge reports with the request at hand, and what it does not."""

import json
from typing import Any

from tests.table import table
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

TOOLS: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "get_weather"}}]}
REQUIRED = TOOLS | {"tool_choice": "required"}
NAMED = TOOLS | {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
ALLOWED = TOOLS | {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}}
JSON_CALL = '{"name": "get_weather", "parameters": {"city": "Oslo"}}'
HERMES = f"<tool_call>\n{JSON_CALL}\n</tool_call>"
XML = "<function=get_weather>\n<parameter=city>Oslo</parameter>\n</function>"
CALL = {"id": "call_a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}


def reports(request: dict[str, Any] | None, content: str, *, has_call: bool, is_stream: bool) -> bool:
    """Whether the rule is violated by an answer."""
    calls = [CALL] if has_call else []
    choice: dict[str, Any] = {"index": 0, "finish_reason": "tool_calls" if has_call else "stop"}
    if is_stream:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, {"content": content}]
        deltas += [{"tool_calls": [{"index": 0, **call}]} for call in calls]
        chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas] + [{"choices": [choice]}]
        body = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    else:
        message = {"role": "assistant", "content": content, "tool_calls": calls}
        body = json.dumps({"object": "chat.completion", "choices": [choice | {"message": message}]}).encode()
    asked = None if request is None else request | {"stream": is_stream}
    return "tool-no-markup-leak" in judge(Trace(body=body, request=asked)).counts


@table(
    ("request_body", "content", "has_call"),
    [
        (TOOLS, HERMES, True),
        (TOOLS, f"I look it up.\n{XML}", True),
        (TOOLS, f"`x` <tool_call> </tool_call> {HERMES}", True),
        (REQUIRED, JSON_CALL, False),
        (REQUIRED, f"```json\n[{JSON_CALL}]\n```", False),
        (REQUIRED, f"I call it. {XML}", False),
        (NAMED, JSON_CALL, False),
    ],
)
def test_a_call_in_the_text_is_reported(request_body: dict[str, Any], content: str, has_call: bool) -> None:
    for is_stream in (True, False):
        assert reports(request_body, content, has_call=has_call, is_stream=is_stream)


@table(
    ("request_body", "content", "has_call"),
    [
        (None, HERMES, True),
        ({}, HERMES, True),
        ({"tools": []}, HERMES, False),
        ({"tools": [{"type": "function"}, 1], "tool_choice": "required"}, JSON_CALL, False),
        (TOOLS | {"tool_choice": "none"}, HERMES, True),
        # The user may have asked for it.
        (TOOLS, HERMES, False),
        (TOOLS, JSON_CALL, False),
        (ALLOWED, JSON_CALL, False),
        # Quoted code, another name, and no call at all.
        (TOOLS, f"The server writes `<tool_call>`:\n```xml\n{HERMES}\n```", True),
        (TOOLS, HERMES.replace("get_weather", "another"), True),
        (TOOLS, "<tool_call> is the tag of a call.", True),
        (TOOLS, JSON_CALL, True),
        (REQUIRED, '{"city": "Oslo"}', False),
        (REQUIRED, "I cannot know that.", False),
    ],
)
def test_other_text_is_not_reported(request_body: dict[str, Any] | None, content: str, has_call: bool) -> None:
    for is_stream in (True, False):
        assert not reports(request_body, content, has_call=has_call, is_stream=is_stream)
