"""Laws of a replay: it sends the bytes of a pipeline with the same input, and loses no byte."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.strategies import ENVELOPES, any_bytes, damaged
from tests.laws.test_laws_messages import damaged as damaged_messages
from tests.laws.test_laws_responses import damaged as damaged_responses
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.request_facts import RepairOptions, RequestFacts
from welldone.dialects.messages.writer import MessagesFormat
from welldone.dialects.ollama.writer import OllamaFormat
from welldone.dialects.registry import passthrough_repairer_for
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.stream.fan_out import FanOut
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline
from welldone.stream.replay import AnyPipeline, StreamReplay, StreamReplayStep

RESP, MSG = Envelope("resp_1", 1, "m"), Envelope("msg_1", 1, "m")
CHAT = ENVELOPES[Endpoint.CHAT]
STREAMS: dict[str, Callable[[], StreamPipeline]] = {
    "chat": lambda: StreamPipeline(Endpoint.CHAT, fallback=CHAT),
    "chat, with usage": lambda: StreamPipeline(Endpoint.CHAT, fallback=CHAT, facts=RequestFacts(include_usage=True)),
    "chat, with stops": lambda: StreamPipeline(
        Endpoint.CHAT, fallback=CHAT, facts=RequestFacts(stop_strings=("a", "e "))
    ),
    "chat, strictly": lambda: StreamPipeline(
        Endpoint.CHAT, fallback=CHAT, options=RepairOptions(strict=frozenset({"all"}))
    ),
    "completions": lambda: StreamPipeline(Endpoint.COMPLETIONS, fallback=ENVELOPES[Endpoint.COMPLETIONS]),
    "responses": lambda: StreamPipeline(Endpoint.CHAT, fallback=RESP, dialect=ResponsesFormat({})),
    "messages": lambda: StreamPipeline(Endpoint.CHAT, fallback=MSG, dialect=MessagesFormat()),
    "ollama": lambda: StreamPipeline(
        Endpoint.CHAT, fallback=CHAT, dialect=OllamaFormat(is_chat=True, created_at="now")
    ),
}
cuts = st.lists(st.integers(0, 2000), max_size=6)


def split_bytes(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    return [data[start:end] for start, end in pairwise(ends)]


def check(make: Callable[[], AnyPipeline], pieces: list[bytes]) -> None:
    """Check both laws for one stream in these pieces."""
    plain, replay = make(), StreamReplay(make())
    sent_bytes: list[bytes] = []
    steps: list[StreamReplayStep] = []
    for piece in pieces:
        sent_bytes.append(plain.feed(piece) or b"")
        new = list(replay.feed(piece))
        assert b"".join(step.sent for step in new) == sent_bytes[-1]
        steps += new
    sent_bytes.append(plain.close() or b"")
    steps += replay.close()
    assert b"".join(step.sent for step in steps) == b"".join(sent_bytes)
    assert b"".join(step.received for step in steps) == b"".join(pieces)
    assert replay.pipeline.repair_log.counts() == plain.repair_log.counts()
    total_counts: dict[str, int] = {}
    for repair in (repair for step in steps for repair in step.repairs):
        total_counts[repair.rule] = total_counts.get(repair.rule, 0) + repair.count
    assert total_counts == plain.repair_log.counts()


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
@given(st.one_of(any_bytes, damaged().map(lambda found: found[1])), cuts)
def test_a_replay_sends_the_bytes_of_the_pipeline(
    make: Callable[[], StreamPipeline], data: bytes, cuts: list[int]
) -> None:
    check(make, split_bytes(data, cuts))


@given(st.one_of(any_bytes, damaged_responses()), cuts)
def test_a_replay_of_responses_sends_the_bytes_of_the_repairer(data: bytes, cuts: list[int]) -> None:
    check(lambda: passthrough_repairer_for(Endpoint.RESPONSES, fallback=RESP), split_bytes(data, cuts))


@given(st.one_of(any_bytes, damaged_messages()), cuts)
def test_a_replay_of_messages_sends_the_bytes_of_the_repairer(data: bytes, cuts: list[int]) -> None:
    check(lambda: passthrough_repairer_for(Endpoint.MESSAGES, fallback=MSG), split_bytes(data, cuts))


@given(st.lists(st.tuples(st.integers(0, 1), any_bytes), max_size=6))
def test_a_replay_of_two_parts_sends_the_bytes_of_the_pipeline(pieces: list[tuple[int, bytes]]) -> None:
    def make() -> StreamPipeline:
        return StreamPipeline(
            Endpoint.CHAT, fallback=CHAT, facts=RequestFacts(include_usage=True, choice_count=2), fan_out=FanOut(2)
        )

    plain, replay = make(), StreamReplay(make())
    sent_bytes = b"".join(plain.feed(piece, part) for part, piece in pieces) + plain.close(0) + plain.close(1)
    steps = [step for part, piece in pieces for step in replay.feed(piece, part)] + replay.close(0) + replay.close(1)
    assert b"".join(step.sent for step in steps) == sent_bytes
    for part in (0, 1):
        received_bytes = b"".join(step.received for step in steps if step.part == part)
        assert received_bytes == b"".join(piece for number, piece in pieces if number == part)


@given(st.one_of(any_bytes, damaged().map(lambda found: found[1])), cuts)
def test_a_replay_of_a_reply_has_the_same_body(data: bytes, cuts: list[int]) -> None:
    plain, replay = (
        BufferedPipeline(Endpoint.CHAT, fallback=CHAT),
        StreamReplay(BufferedPipeline(Endpoint.CHAT, fallback=CHAT)),
    )
    for piece in split_bytes(data, cuts):
        plain.feed(piece)
        list(replay.feed(piece))
    plain.close()
    replay.close()
    assert replay.pipeline.failure == plain.failure
    if plain.failure is None:
        assert replay.body().sent == plain.body()


@given(any_bytes, cuts)
def test_byte_boundaries_do_not_change_the_steps(data: bytes, cuts: list[int]) -> None:
    def steps(pieces: list[bytes]) -> list[StreamReplayStep]:
        replay = StreamReplay(StreamPipeline(Endpoint.CHAT, fallback=CHAT))
        return [step for piece in pieces for step in replay.feed(piece)] + replay.close()

    assert [step.received for step in steps(split_bytes(data, cuts))] == [step.received for step in steps([data])]
