"""Writer of /v1/completions."""

import pytest

from tests.protocol.build import DONE, count, frame, pack, text, text_end
from welldone.core.collect import CollectedChoice, CollectedReply
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import (
    ChoiceStart,
    Event,
    EventOrderError,
    Finish,
    Json,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    Usage,
)
from welldone.core.request_facts import RequestFacts
from welldone.dialects.chat.writer import ChunkFormat

ENVELOPE = Envelope("cmpl-1", 1700000000, "m")


def test_the_first_chunk_of_a_completion_has_text() -> None:
    writer = ChunkFormat(RequestFacts(), Endpoint.COMPLETIONS).make_writer(ENVELOPE)
    events: list[Event] = [ChoiceStart(0), Text(0, "Hel"), Text(0, "lo"), Finish(0, "length")]
    assert [writer.send(event) for event in events] == [
        b"",
        frame(text("Hel")),
        frame(text("lo")),
        frame(text_end("length")),
    ]
    assert writer.end() == DONE


@pytest.mark.parametrize("event", [Reasoning(0, "a"), Refusal(0, "a"), ToolCall(0, 0, "a", "get")])
def test_a_completion_rejects_events_other_than_text(event: Event) -> None:
    writer = ChunkFormat(RequestFacts(), Endpoint.COMPLETIONS).make_writer(ENVELOPE)
    writer.send(ChoiceStart(0))
    with pytest.raises(EventOrderError, match="legal now: Text, Logprobs, UnknownFields, Finish"):
        writer.send(event)


def test_a_completions_reply_has_texts() -> None:
    answers = {
        1: CollectedChoice("b", finish_reason="stop", choice_fields={"x": 1}, delta_fields={"y": 2}),
        0: CollectedChoice("a\u2029", finish_reason="length", logprobs={"tokens": ["a"]}),
    }
    choices: list[Json] = [
        {"index": 0, "text": "a@", "logprobs": {"tokens": ["a"]}, "finish_reason": "length"},
        {"index": 1, "text": "b", "logprobs": None, "finish_reason": "stop", "y": 2, "x": 1},
    ]
    envelope = {"id": "cmpl-1", "object": "text_completion", "created": 1700000000, "model": "m"}
    expected = pack({**envelope, "choices": choices, "usage": count(5, 3), "z": 3}).replace(b"a@", b"a\\u2029")
    reply = CollectedReply(answers, Usage(5, 3, 8, {}), unknown_fields={"z": 3})
    assert ChunkFormat(RequestFacts(), Endpoint.COMPLETIONS).encode_reply(ENVELOPE, reply) == expected
