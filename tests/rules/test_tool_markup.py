"""Tool calls written as text: what the judge reports with the request at hand, and what it does not."""

import json
from typing import Any

from tests.table import table
from welldone.rules.checks.tools import find_tool_markup
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

TOOLS: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "get_weather"}}]}
REQUIRED = TOOLS | {"tool_choice": "required"}
SEARCH: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "search"}}]}
NAMED = TOOLS | {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
ALLOWED = TOOLS | {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}}
JSON_CALL = '{"name": "get_weather", "parameters": {"city": "Oslo"}}'
HERMES = f"<tool_call>\n{JSON_CALL}\n</tool_call>"
XML = "<function=get_weather>\n<parameter=city>Oslo</parameter>\n</function>"
FORMS = (
    f"<tool_call>{JSON_CALL}",
    f"<|tool_call|>[{JSON_CALL}]<|/tool_call|>",
    f"[TOOL_CALLS][{JSON_CALL}]",
    f"<|python_tag|>{JSON_CALL}<|eom_id|>",
    '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}',
    '<function=get_weather>{"city": "Oslo"}</function>',
    f"<tool_call>\n{XML}\n</tool_call>",
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>",
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{}"
    "<|tool_call_end|><|tool_calls_section_end|>",
    "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>"
    "get_weather\n```json\n{}\n```<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581calls\u2581end\uff5c>",
    "<\uff5ctool\u2581call\u2581begin\uff5c>get_weather<\uff5ctool\u2581sep\uff5c>{}<\uff5ctool\u2581call\u2581end\uff5c>",
    '<|python_tag|>get_weather.call(city="Oslo")',
)
"""Complete calls, as the templates of the models write them."""
CALL = {"id": "call_a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}


def reports(
    request: dict[str, Any] | None, content: str, *, has_call: bool, is_stream: bool, reason: str | None = ""
) -> bool:
    """Whether the rule is violated by an answer. `reason`: its finish reason if not the usual one."""
    calls = [CALL] if has_call else []
    usual = "tool_calls" if has_call else "stop"
    choice: dict[str, Any] = {"index": 0, "finish_reason": usual if reason == "" else reason}
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
        (REQUIRED, f"I call it.\n{XML}", False),
        (REQUIRED, f"```\n{JSON_CALL}\n```\n\n", False),
        (REQUIRED, "<tool_call>", False),
        (REQUIRED, "<tool_call><tool_call>\n<tool_call>", False),
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
        # A text about markup: with another word next, without arguments, within a line or before a sentence.
        (SEARCH, 'Qwen writes <tool_call>{"name": "search"}</tool_call> as text. Let me search.', True),
        (SEARCH, "The tag <tool_call> is missing; I search again.", True),
        (SEARCH, 'A call is\n<tool_call>{"name": "search"}</tool_call>', True),
        (SEARCH, 'A call is\n<tool_call>{"name": "search", "arguments": {}}</tool_call>\nwith Qwen.', True),
        (SEARCH, 'Qwen writes <tool_call>{"name": "search", "arguments": {}}</tool_call>', True),
        (SEARCH, 'Markup, e.g. <tool_call>{"name": "search", "arguments": {}}</tool_call>', True),
        (SEARCH, 'I read "<tool_call>{"name": "search", "arguments": {}}</tool_call>"', True),
        (SEARCH, "Llama writes\n<function=search> and not <tool_call>", True),
        (SEARCH, "<function=search>", True),
        (SEARCH, "I call.\n[TOOL_CALLS]search", True),
        (SEARCH, "I call.\n[TOOL_CALLS]search{not json}", True),
        (SEARCH, "I call.\n[TOOL_CALLS]{}", True),
        (SEARCH, '[TOOL_CALLS][{"name": "search", "arguments"', True),
        (REQUIRED, "The [TOOL_CALLS] token", False),
        (REQUIRED, f"I would write:\n```json\n{JSON_CALL}\n```\nBut I have no access.", False),
        # Quoted in other ways.
        (TOOLS, f"An example:\n\n    {HERMES}".replace("\n<", "\n    <"), True),
        (TOOLS, f"An example:\n\n    <tool_call>{JSON_CALL}</tool_call>", True),
        (TOOLS, f"An example:\n\n\t<tool_call>{JSON_CALL}</tool_call>", True),
        (TOOLS, f"An example:\n> <tool_call>{JSON_CALL}</tool_call>", True),
        (TOOLS, f"An example:\n~~~\n{HERMES}\n~~~", True),
        (TOOLS, f"An example:\n```\n{HERMES}", True),
    ],
)
def test_other_text_is_not_reported(request_body: dict[str, Any] | None, content: str, has_call: bool) -> None:
    for is_stream in (True, False):
        assert not reports(request_body, content, has_call=has_call, is_stream=is_stream)


@table("content", [HERMES, XML, *FORMS])
def test_every_complete_form_beside_a_call_is_reported(content: str) -> None:
    assert reports(TOOLS, f"I look it up.\n{content}\n", has_call=True, is_stream=False)
    assert not reports(TOOLS, f"I look it up.\n{content}\nNow I call it.", has_call=True, is_stream=False)


@table("reason", ["length", "content_filter", None])
@table(
    ("request_body", "content", "has_call"),
    [(REQUIRED, "The [TOOL_CALLS] token", False), (REQUIRED, HERMES, False), (TOOLS, HERMES, True)],
)
def test_an_answer_that_is_cut_off_is_not_reported(
    request_body: dict[str, Any], content: str, has_call: bool, reason: str | None
) -> None:
    for is_stream in (True, False):
        assert not reports(request_body, content, has_call=has_call, is_stream=is_stream, reason=reason)


@table(
    "text",
    [
        HERMES,
        "Let me see. " + HERMES,
        "[TOOL_CALLS][]",
        "<function=get_weather>",
        '{"name": "get_weather", "arguments": {}}',
        '[{"name": "get_weather", "arguments": "{}"}]',
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        'I call it:\n```json\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n```\nDone.',
        '```\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n```',
    ],
)
def test_any_markup_is_recognised_for_a_known_prompt(text: str) -> None:
    assert find_tool_markup(text, ["get_weather"])


@table(
    "text",
    [
        "",
        "It is sunny in Paris.",
        '{"city": "Paris"}',
        "[]",
        '{"name": "another", "arguments": {}}',
        '{"name": "get_weather"}',
        '{"name": ["get_weather"], "arguments": {}}',
        '{"name": "get_weather", "parameters": {"type": "object", "properties": {}}}',
        "```json\n{\n```",
        "[" * 9_000,
    ],
)
def test_other_text_is_no_markup_for_a_known_prompt(text: str) -> None:
    assert find_tool_markup(text, ["get_weather"]) is None
