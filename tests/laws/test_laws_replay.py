"""The laws of a replay: it says what a pipe says that is given the same pieces, and loses no byte."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.strategies import HEAD, any_bytes, spoiled
from tests.laws.test_laws_messages import spoiled as spoiled_messages
from tests.laws.test_laws_responses import spoiled as spoiled_responses
from welldone.wire.asked import Asked
from welldone.wire.dialects.messages.writer import Messages
from welldone.wire.dialects.natives import native_for
from welldone.wire.dialects.ollama import Ollama
from welldone.wire.dialects.responses.writer import Responses
from welldone.wire.fold import Fold
from welldone.wire.head import Endpoint, Head
from welldone.wire.merge import Parts
from welldone.wire.pipe import Pipe
from welldone.wire.replay import Replay, Step, Watched

RESP, MSG = Head("resp_1", 1, "m"), Head("msg_1", 1, "m")
CHAT = HEAD[Endpoint.CHAT]
STREAMS: dict[str, Callable[[], Pipe]] = {
    "chat": lambda: Pipe(Endpoint.CHAT, fallback=CHAT),
    "chat, with usage": lambda: Pipe(Endpoint.CHAT, fallback=CHAT, asked=Asked(usage=True)),
    "chat, with stops": lambda: Pipe(Endpoint.CHAT, fallback=CHAT, asked=Asked(stops=("a", "e "))),
    "chat, strictly": lambda: Pipe(Endpoint.CHAT, fallback=CHAT, strict=frozenset({"all"})),
    "completions": lambda: Pipe(Endpoint.COMPLETIONS, fallback=HEAD[Endpoint.COMPLETIONS]),
    "responses": lambda: Pipe(Endpoint.CHAT, fallback=RESP, dialect=Responses({})),
    "messages": lambda: Pipe(Endpoint.CHAT, fallback=MSG, dialect=Messages()),
    "ollama": lambda: Pipe(Endpoint.CHAT, fallback=CHAT, dialect=Ollama(is_chat=True, at="now")),
}
cuts = st.lists(st.integers(0, 2000), max_size=6)


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    return [data[start:end] for start, end in pairwise(ends)]


def check(make: Callable[[], Watched], pieces: list[bytes]) -> None:
    """Both laws, for one stream that comes in these pieces."""
    plain, replay = make(), Replay(make())
    said: list[bytes] = []
    steps: list[Step] = []
    for piece in pieces:
        said.append(plain.feed(piece) or b"")
        new = list(replay.feed(piece))
        assert b"".join(step.said for step in new) == said[-1]
        steps += new
    said.append(plain.close() or b"")
    steps += replay.close()
    assert b"".join(step.said for step in steps) == b"".join(said)
    assert b"".join(step.heard for step in steps) == b"".join(pieces)
    assert replay.pipe.notes.counts() == plain.notes.counts()
    counted: dict[str, int] = {}
    for note in (note for step in steps for note in step.notes):
        counted[note.rule] = counted.get(note.rule, 0) + note.count
    assert counted == plain.notes.counts()


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
@given(st.one_of(any_bytes, spoiled().map(lambda found: found[1])), cuts)
def test_a_replay_says_what_the_pipe_says(make: Callable[[], Pipe], data: bytes, cuts: list[int]) -> None:
    check(make, pieces_of(data, cuts))


@given(st.one_of(any_bytes, spoiled_responses()), cuts)
def test_a_replay_of_native_responses_says_what_the_native_says(data: bytes, cuts: list[int]) -> None:
    check(lambda: native_for(Endpoint.RESPONSES, fallback=RESP), pieces_of(data, cuts))


@given(st.one_of(any_bytes, spoiled_messages()), cuts)
def test_a_replay_of_native_messages_says_what_the_native_says(data: bytes, cuts: list[int]) -> None:
    check(lambda: native_for(Endpoint.MESSAGES, fallback=MSG), pieces_of(data, cuts))


@given(st.lists(st.tuples(st.integers(0, 1), any_bytes), max_size=6))
def test_a_replay_of_two_parts_says_what_the_pipe_says(pieces: list[tuple[int, bytes]]) -> None:
    def make() -> Pipe:
        return Pipe(Endpoint.CHAT, fallback=CHAT, asked=Asked(usage=True, choices=2), parts=Parts(2))

    plain, replay = make(), Replay(make())
    said = b"".join(plain.feed(piece, part) for part, piece in pieces) + plain.close(0) + plain.close(1)
    steps = [step for part, piece in pieces for step in replay.feed(piece, part)] + replay.close(0) + replay.close(1)
    assert b"".join(step.said for step in steps) == said
    for part in (0, 1):
        heard = b"".join(step.heard for step in steps if step.part == part)
        assert heard == b"".join(piece for number, piece in pieces if number == part)


@given(st.one_of(any_bytes, spoiled().map(lambda found: found[1])), cuts)
def test_a_replay_that_is_not_streamed_has_the_same_body(data: bytes, cuts: list[int]) -> None:
    plain, replay = Fold(Endpoint.CHAT, fallback=CHAT), Replay(Fold(Endpoint.CHAT, fallback=CHAT))
    for piece in pieces_of(data, cuts):
        plain.feed(piece)
        list(replay.feed(piece))
    plain.close()
    replay.close()
    assert replay.pipe.failure == plain.failure
    if plain.failure is None:
        assert replay.body().said == plain.body()


@given(any_bytes, cuts)
def test_where_the_bytes_are_cut_changes_no_step(data: bytes, cuts: list[int]) -> None:
    def steps(pieces: list[bytes]) -> list[Step]:
        replay = Replay(Pipe(Endpoint.CHAT, fallback=CHAT))
        return [step for piece in pieces for step in replay.feed(piece)] + replay.close()

    assert [step.heard for step in steps(pieces_of(data, cuts))] == [step.heard for step in steps([data])]
