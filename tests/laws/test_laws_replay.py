"""The laws of a replay: it says what a pipe says that is given the same pieces, and loses no byte."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.strategies import HEAD, any_bytes, spoiled
from tests.laws.test_laws_messages import spoiled as spoiled_messages
from tests.laws.test_laws_responses import spoiled as spoiled_responses
from welldone.protocol.dialects.anthropic.writer import MessagesDialect
from welldone.protocol.dialects.ollama import OllamaDialect
from welldone.protocol.dialects.registry import passthrough_repairer_for
from welldone.protocol.dialects.responses.writer import ResponsesDialect
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.merger import FanOut
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline
from welldone.protocol.replay import AnyPipeline, StreamReplay, StreamReplayStep
from welldone.protocol.request_facts import RequestFacts

RESP, MSG = Envelope("resp_1", 1, "m"), Envelope("msg_1", 1, "m")
CHAT = HEAD[Endpoint.CHAT]
STREAMS: dict[str, Callable[[], StreamPipeline]] = {
    "chat": lambda: StreamPipeline(Endpoint.CHAT, fallback=CHAT),
    "chat, with usage": lambda: StreamPipeline(Endpoint.CHAT, fallback=CHAT, facts=RequestFacts(include_usage=True)),
    "chat, with stops": lambda: StreamPipeline(
        Endpoint.CHAT, fallback=CHAT, facts=RequestFacts(stop_strings=("a", "e "))
    ),
    "chat, strictly": lambda: StreamPipeline(Endpoint.CHAT, fallback=CHAT, strict=frozenset({"all"})),
    "completions": lambda: StreamPipeline(Endpoint.COMPLETIONS, fallback=HEAD[Endpoint.COMPLETIONS]),
    "responses": lambda: StreamPipeline(Endpoint.CHAT, fallback=RESP, dialect=ResponsesDialect({})),
    "messages": lambda: StreamPipeline(Endpoint.CHAT, fallback=MSG, dialect=MessagesDialect()),
    "ollama": lambda: StreamPipeline(
        Endpoint.CHAT, fallback=CHAT, dialect=OllamaDialect(is_chat=True, created_at="now")
    ),
}
cuts = st.lists(st.integers(0, 2000), max_size=6)


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    return [data[start:end] for start, end in pairwise(ends)]


def check(make: Callable[[], AnyPipeline], pieces: list[bytes]) -> None:
    """Both laws, for one stream that comes in these pieces."""
    plain, replay = make(), StreamReplay(make())
    said: list[bytes] = []
    steps: list[StreamReplayStep] = []
    for piece in pieces:
        said.append(plain.feed(piece) or b"")
        new = list(replay.feed(piece))
        assert b"".join(step.sent for step in new) == said[-1]
        steps += new
    said.append(plain.close() or b"")
    steps += replay.close()
    assert b"".join(step.sent for step in steps) == b"".join(said)
    assert b"".join(step.received for step in steps) == b"".join(pieces)
    assert replay.pipeline.repair_log.counts() == plain.repair_log.counts()
    counted: dict[str, int] = {}
    for note in (note for step in steps for note in step.repairs):
        counted[note.rule] = counted.get(note.rule, 0) + note.count
    assert counted == plain.repair_log.counts()


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
@given(st.one_of(any_bytes, spoiled().map(lambda found: found[1])), cuts)
def test_a_replay_says_what_the_pipe_says(make: Callable[[], StreamPipeline], data: bytes, cuts: list[int]) -> None:
    check(make, pieces_of(data, cuts))


@given(st.one_of(any_bytes, spoiled_responses()), cuts)
def test_a_replay_of_native_responses_says_what_the_native_says(data: bytes, cuts: list[int]) -> None:
    check(lambda: passthrough_repairer_for(Endpoint.RESPONSES, fallback=RESP), pieces_of(data, cuts))


@given(st.one_of(any_bytes, spoiled_messages()), cuts)
def test_a_replay_of_native_messages_says_what_the_native_says(data: bytes, cuts: list[int]) -> None:
    check(lambda: passthrough_repairer_for(Endpoint.MESSAGES, fallback=MSG), pieces_of(data, cuts))


@given(st.lists(st.tuples(st.integers(0, 1), any_bytes), max_size=6))
def test_a_replay_of_two_parts_says_what_the_pipe_says(pieces: list[tuple[int, bytes]]) -> None:
    def make() -> StreamPipeline:
        return StreamPipeline(
            Endpoint.CHAT, fallback=CHAT, facts=RequestFacts(include_usage=True, choice_count=2), fan_out=FanOut(2)
        )

    plain, replay = make(), StreamReplay(make())
    said = b"".join(plain.feed(piece, part) for part, piece in pieces) + plain.close(0) + plain.close(1)
    steps = [step for part, piece in pieces for step in replay.feed(piece, part)] + replay.close(0) + replay.close(1)
    assert b"".join(step.sent for step in steps) == said
    for part in (0, 1):
        heard = b"".join(step.received for step in steps if step.part == part)
        assert heard == b"".join(piece for number, piece in pieces if number == part)


@given(st.one_of(any_bytes, spoiled().map(lambda found: found[1])), cuts)
def test_a_replay_that_is_not_streamed_has_the_same_body(data: bytes, cuts: list[int]) -> None:
    plain, replay = (
        BufferedPipeline(Endpoint.CHAT, fallback=CHAT),
        StreamReplay(BufferedPipeline(Endpoint.CHAT, fallback=CHAT)),
    )
    for piece in pieces_of(data, cuts):
        plain.feed(piece)
        list(replay.feed(piece))
    plain.close()
    replay.close()
    assert replay.pipeline.failure == plain.failure
    if plain.failure is None:
        assert replay.body().sent == plain.body()


@given(any_bytes, cuts)
def test_where_the_bytes_are_cut_changes_no_step(data: bytes, cuts: list[int]) -> None:
    def steps(pieces: list[bytes]) -> list[StreamReplayStep]:
        replay = StreamReplay(StreamPipeline(Endpoint.CHAT, fallback=CHAT))
        return [step for piece in pieces for step in replay.feed(piece)] + replay.close()

    assert [step.received for step in steps(pieces_of(data, cuts))] == [step.received for step in steps([data])]
