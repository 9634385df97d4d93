"""What the request asked for."""

from typing import Any

import pytest

from welldone.wire.asked import Asked, read_request

PLAIN = Asked(usage=False, obfuscation=True, choices=1)


def test_a_request_that_says_nothing_asks_for_one_plain_answer() -> None:
    assert read_request({}) == PLAIN


def test_what_was_never_read_is_not_known() -> None:
    assert Asked() == Asked(
        usage=None,
        continuous_usage=False,
        obfuscation=None,
        choices=None,
        functions=False,
        named_tool=False,
        model=None,
    )


@pytest.mark.parametrize(
    ("body", "members"),
    [
        ({"stream_options": {"include_usage": True}}, {"usage": True}),
        ({"stream_options": {"include_usage": "yes"}}, {"usage": False}),
        ({"stream_options": {"continuous_usage_stats": True}}, {"continuous_usage": True}),
        ({"stream_options": {"include_obfuscation": False}}, {"obfuscation": False}),
        ({"stream_options": None}, {}),
        ({"stream_options": [1]}, {}),
        ({"n": 3}, {"choices": 3}),
        ({"n": 0}, {}),
        ({"n": True}, {}),
        ({"n": "2"}, {}),
        ({"prompt": "a"}, {}),
        ({"prompt": ["a", "b"]}, {"choices": 2}),
        ({"prompt": ["a", "b"], "n": 3}, {"choices": 6}),
        ({"prompt": [1, 2, 3]}, {}),
        ({"prompt": [[1, 2], [3]]}, {"choices": 2}),
        ({"prompt": []}, {}),
        ({"functions": [{}]}, {"functions": True}),
        ({"functions": [{}], "tools": [{}]}, {}),
        ({"functions": []}, {}),
        ({"tool_choice": {"type": "function"}}, {"named_tool": True}),
        ({"tool_choice": "auto"}, {}),
        ({"response_format": {"type": "json_schema"}}, {"json": True}),
        ({"response_format": {"type": "json_object"}}, {"json": True, "json_object": True}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": ["json_object"]}}, {}),
        ({"response_format": "json_object"}, {}),
        ({"model": "m"}, {"model": "m"}),
        ({"model": ""}, {}),
        ({"model": 7}, {}),
    ],
)
def test_a_request_is_read_and_what_it_has_wrong_is_not_said(body: dict[str, Any], members: dict[str, Any]) -> None:
    expected = {"usage": False, "obfuscation": True, "choices": 1} | members
    assert read_request(body) == Asked(**expected)
