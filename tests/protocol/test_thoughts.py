"""Reasoning tokens of an engine that does not count them."""

import pytest

from tests.protocol.build import counted, finish, role, say, stream
from tests.table import table
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import Event, Json, Reasoning, Refusal, Text, ToolCall, Usage
from welldone.protocol.pipeline import StreamPipeline
from welldone.protocol.request_facts import RequestFacts
from welldone.protocol.text_filters import ReasoningTokenCounter

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
    counter = ReasoningTokenCounter()
    for event in said:
        assert counter.feed([event]) == [event]
    (usage,) = counter.feed([Usage(4, 9, 13, {"x": 1} | more)])
    assert isinstance(usage, Usage)
    assert usage.extra_fields["x"] == 1
    assert usage.extra_fields[DETAILS]["reasoning_tokens"] == count


@pytest.mark.parametrize("stops", [(), ("END",)])
def test_the_usage_of_a_stream_has_the_count(stops: tuple[str, ...]) -> None:
    asked = RequestFacts(include_usage=True, choice_count=1, count_reasoning_tokens=True, stop_strings=stops)
    pipe = StreamPipeline(Endpoint.CHAT, fallback=Envelope("chatcmpl-ours", 1, "m"), facts=asked)
    thoughts = [say({"reasoning_content": text}) for text in ("a", "b")]
    usage = {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5}
    sent = [role(), *thoughts, say({"content": "c"}), finish(), counted(usage)]
    assert b'"reasoning_tokens":2' in pipe.feed(stream(*sent)) + pipe.close()
