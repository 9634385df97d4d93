"""Count of reasoning tokens for an engine that does not report them."""

import pytest

from tests.protocol.build import delta_chunk, finish, role, stream, usage_chunk
from tests.table import table
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Event, Json, Reasoning, Refusal, Text, ToolCall, Usage
from welldone.core.request_facts import RequestFacts
from welldone.core.text_filters import ReasoningTokenCounter
from welldone.stream.pipeline import StreamPipeline

REASONING = Reasoning(0, "hm")
DETAILS = "completion_tokens_details"


@table(
    ("input_events", "more", "count"),
    [
        ([REASONING] * 3, {}, 9),  # truncated within the reasoning: all tokens are reasoning
        ([REASONING] * 3 + [Text(0, "a")], {}, 3),
        ([REASONING] * 3 + [Refusal(0, "no")], {}, 3),
        ([REASONING] * 3 + [ToolCall(0, 0, "call_1", "get")], {}, 3),
        ([REASONING] * 30 + [Text(0, "a")], {}, 9),
        ([Text(0, "a")], {}, 0),
        ([], {}, 0),
        ([REASONING, Text(0, "a")], {DETAILS: {"reasoning_tokens": 5}}, 5),
        ([REASONING, Text(0, "a")], {DETAILS: {"audio_tokens": 5}}, 1),
    ],
)
def test_reasoning_tokens_are_counted_per_delta_up_to_the_completion_tokens(
    input_events: list[Event], more: Json, count: int
) -> None:
    counter = ReasoningTokenCounter()
    for event in input_events:
        assert counter.feed([event]) == [event]
    (usage,) = counter.feed([Usage(4, 9, 13, {"x": 1} | more)])
    assert isinstance(usage, Usage)
    assert usage.extra_fields["x"] == 1
    assert usage.extra_fields[DETAILS]["reasoning_tokens"] == count


@pytest.mark.parametrize("stops", [(), ("END",)])
def test_the_usage_of_a_stream_has_reasoning_tokens(stops: tuple[str, ...]) -> None:
    facts = RequestFacts(include_usage=True, choice_count=1, count_reasoning_tokens=True, stop_strings=stops)
    pipeline = StreamPipeline(Endpoint.CHAT, fallback=Envelope("chatcmpl-ours", 1, "m"), facts=facts)
    reasoning = [delta_chunk({"reasoning_content": text}) for text in ("a", "b")]
    usage = {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5}
    sent = [role(), *reasoning, delta_chunk({"content": "c"}), finish(), usage_chunk(usage)]
    assert b'"reasoning_tokens":2' in pipeline.feed(stream(*sent)) + pipeline.close()
