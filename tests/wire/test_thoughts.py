"""Reasoning tokens of an engine that does not count them."""

import pytest

from tests.table import table
from tests.wire.build import counted, finish, role, say, stream
from welldone.wire.asked import Asked
from welldone.wire.events import Event, Json, Reasoning, Refusal, Text, ToolCall, Usage
from welldone.wire.head import Endpoint, Head
from welldone.wire.pipe import Pipe
from welldone.wire.thoughts import ReasoningCounter

THOUGHT = Reasoning(0, "hm")
DETAILS = "completion_tokens_details"


@table(
    ("said", "more", "count"),
    [
        ([THOUGHT] * 3, {}, 9),  # cut while it reasoned: all tokens are reasoning
        ([THOUGHT] * 3 + [Text(0, "a")], {}, 3),
        ([THOUGHT] * 3 + [Refusal(0, "no")], {}, 3),
        ([THOUGHT] * 3 + [ToolCall(0, 0, "call_1", "get")], {}, 3),
        ([THOUGHT] * 30 + [Text(0, "a")], {}, 9),
        ([Text(0, "a")], {}, 0),
        ([], {}, 0),
        ([THOUGHT, Text(0, "a")], {DETAILS: {"reasoning_tokens": 5}}, 5),
        ([THOUGHT, Text(0, "a")], {DETAILS: {"audio_tokens": 5}}, 1),
    ],
)
def test_reasoning_is_counted_once_per_delta_and_never_beyond_the_answer(
    said: list[Event], more: Json, count: int
) -> None:
    counter = ReasoningCounter()
    for event in said:
        assert counter.feed([event]) == [event]
    (usage,) = counter.feed([Usage(4, 9, 13, {"x": 1} | more)])
    assert isinstance(usage, Usage)
    assert usage.more["x"] == 1
    assert usage.more[DETAILS]["reasoning_tokens"] == count


@pytest.mark.parametrize("stops", [(), ("END",)])
def test_the_usage_of_a_stream_has_the_count(stops: tuple[str, ...]) -> None:
    asked = Asked(usage=True, choices=1, counts_reasoning=True, stops=stops)
    pipe = Pipe(Endpoint.CHAT, fallback=Head("chatcmpl-ours", 1, "m"), asked=asked)
    thoughts = [say({"reasoning_content": text}) for text in ("a", "b")]
    usage = {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5}
    sent = [role(), *thoughts, say({"content": "c"}), finish(), counted(usage)]
    assert b'"reasoning_tokens":2' in pipe.feed(stream(*sent)) + pipe.close()
