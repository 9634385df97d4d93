"""Facts of a request."""

from typing import Any

from tests.table import table
from welldone.core.request_facts import RequestFacts, is_thinking_off, read_request_facts

PLAIN = RequestFacts(include_usage=False, allow_obfuscation=True, choice_count=1)


def test_an_empty_request_has_default_facts() -> None:
    assert read_request_facts({}) == PLAIN


def test_facts_of_an_unknown_request_are_none() -> None:
    assert RequestFacts() == RequestFacts(
        include_usage=None,
        continuous_usage=False,
        allow_obfuscation=None,
        choice_count=None,
        uses_legacy_functions=False,
        has_named_tool=False,
        model=None,
    )


@table(
    ("body", "members"),
    [
        ({"stream_options": {"include_usage": True}}, {"include_usage": True}),
        ({"stream_options": {"include_usage": "yes"}}, {"include_usage": False}),
        ({"stream_options": {"continuous_usage_stats": True}}, {}),
        ({"stream_options": {"include_obfuscation": False}}, {"allow_obfuscation": False}),
        ({"stream_options": None}, {}),
        ({"stream_options": [1]}, {}),
        ({"n": 3}, {"choice_count": 3}),
        ({"n": 0}, {}),
        ({"n": True}, {}),
        ({"n": "2"}, {}),
        ({"prompt": "a"}, {}),
        ({"prompt": ["a", "b"]}, {"choice_count": 2}),
        ({"prompt": ["a", "b"], "n": 3}, {"choice_count": 6}),
        ({"prompt": [1, 2, 3]}, {}),
        ({"prompt": [[1, 2], [3]]}, {"choice_count": 2}),
        ({"prompt": []}, {}),
        ({"functions": [{}]}, {"uses_legacy_functions": True}),
        ({"functions": [{}], "tools": [{}]}, {}),
        ({"functions": []}, {}),
        ({"tool_choice": {"type": "function"}}, {"has_named_tool": True}),
        ({"tool_choice": "auto"}, {}),
        ({"response_format": {"type": "json_schema"}}, {"is_json_output": True}),
        ({"response_format": {"type": "json_object"}}, {"is_json_output": True, "is_json_object": True}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": ["json_object"]}}, {}),
        ({"response_format": "json_object"}, {}),
        ({"model": "m"}, {"model": "m"}),
        ({"model": ""}, {}),
        ({"model": 7}, {}),
    ],
)
def test_request_facts_are_read_and_invalid_fields_ignored(body: dict[str, Any], members: dict[str, Any]) -> None:
    expected = {"include_usage": False, "allow_obfuscation": True, "choice_count": 1} | members
    assert read_request_facts(body) == RequestFacts(**expected)


@table(
    ("body", "is_off"),
    [
        ({}, False),
        ({"reasoning_effort": "none"}, True),
        ({"reasoning_effort": "low"}, False),
        ({"enable_thinking": False}, True),
        ({"think": False}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, True),
        ({"chat_template_kwargs": {"thinking": False}}, True),
        ({"chat_template_kwargs": {"enable_thinking": True}}, False),
        ({"chat_template_kwargs": 7, "thinking": 7, "reasoning": 7}, False),
        ({"thinking": {"type": "disabled"}}, True),
        ({"thinking": {"type": "enabled"}}, False),
        ({"reasoning": {"effort": "none"}}, True),
        ({"reasoning": {"enabled": False}}, True),
        ({"reasoning": {"effort": "high"}}, False),
    ],
)
def test_thinking_is_turned_off_in_many_spellings(body: dict[str, Any], is_off: bool) -> None:
    assert is_thinking_off(body) is is_off
