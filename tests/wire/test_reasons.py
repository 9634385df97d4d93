"""Why a choice ended, in OpenAI's words."""

import pytest

from tests.wire.build import CHAT, COMPLETIONS
from welldone.wire.reasons import FAILED, in_our_words


@pytest.mark.parametrize(
    ("reason", "chat", "completions"),
    [
        ("stop", "stop", "stop"),
        ("STOP", "stop", "stop"),
        ("eos", "stop", "stop"),
        ("eos_token", "stop", "stop"),
        ("end_turn", "stop", "stop"),
        ("stop_sequence", "stop", "stop"),
        ("complete", "stop", "stop"),
        ("length", "length", "length"),
        ("MAX_TOKENS", "length", "length"),
        ("model_length", "length", "length"),
        ("max_length", "length", "length"),
        ("content_filter", "content_filter", "content_filter"),
        ("SAFETY", "content_filter", "content_filter"),
        ("sensitive", "content_filter", "content_filter"),
        ("tool_use", "tool_calls", "stop"),
        ("tool_call", "tool_calls", "stop"),
        ("tool_calls", "tool_calls", "stop"),
        ("function_call", "tool_calls", "stop"),
        ("FUNCTION_CALL", "tool_calls", "stop"),
        ("because", "stop", "stop"),
    ],
)
def test_other_servers_words_are_said_in_openai_s(reason: str, chat: str, completions: str) -> None:
    assert in_our_words(reason, CHAT) == chat
    assert in_our_words(reason, COMPLETIONS) == completions


def test_some_words_mean_that_the_answer_is_not_whole() -> None:
    assert {"abort", "cancelled", "error"} <= FAILED
    assert "stop" not in FAILED
