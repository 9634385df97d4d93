"""The fast path of chat gives the same record as the reader: texts, times, broken rules."""

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.aio import run
from tests.recorded.traces import recorded_traces
from tests.table import table
from welldone.bench.client import BenchReceiver
from welldone.bench.dialects.chat import ChatStreamTimer, ChunkFastPath
from welldone.bench.report import BenchRecord
from welldone.core.request_facts import RequestFacts
from welldone.core.sse import Frame
from welldone.dialects.chat.reader import EventReader

STREAMS = {one.name: one.trace.body for one in recorded_traces() if one.trace.body.count(b"chat.completion.chunk") > 12}
CHUNK = '{"id":"x","object":"chat.completion.chunk","created":%d,"model":"m","choices":[%s]%s}'
CHOICE = '{"index":%d,"delta":%s,"logprobs":null,"finish_reason":%s}'


def said(
    text: str, *, role: str | None = None, index: int = 0, finish: str = "null", more: str = "", created: int = 1
) -> bytes:
    delta = json.dumps({"content": text} if role is None else {"role": role, "content": text}, ensure_ascii=False)
    return f"data: {CHUNK % (created, CHOICE % (index, delta, finish), more)}\n\n".encode()


ROLE = said("", role="assistant")
ODD = [
    b": ping\n\n",
    said("") * 10,
    b"data: [DONE]\n\n",
    b'data: {"error":{"message":"no"}}\n\n',
    b"data: {nonsense\n\n",
    b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}\n\n',
    b'data: {"id":"x","choices":[{"index":0,"delta":{"reasoning":"hm"}}]}\n\n',
    said("crlf").replace(b"\n\n", b"\r\n\r\n"),
    said("no empty line").replace(b"\n\n", b"\n"),
    said("end", finish='"stop"'),
    said("other", index=1),
    said("later", created=2),
    said("more", more=',"odd":1'),
    said("\ufffd"),
    ROLE,
]
WORDS = st.sampled_from(["a", " the", "\n", '"', "\\", "é", "漢", "<think>", "  ", "long" * 20]).map(said)
FRAMES = st.lists(st.one_of(WORDS, WORDS, WORDS, st.sampled_from(ODD)), max_size=30)


def heard(pieces: Sequence[bytes], asked: RequestFacts, *, is_short: bool = True) -> tuple[str, BenchRecord]:
    """Return what is recorded for a piece per second; without the fast path the reader parses all of them."""

    async def work() -> tuple[str, BenchRecord]:
        now = 0.0
        record = BenchRecord(0, 0.0, 0.0)
        listener = BenchReceiver(record, lambda: now, ChatStreamTimer(record, asked))
        listener.head(200, {"content-type": "text/event-stream"})
        for piece in pieces:
            now += 1
            listener.data(piece)
        listener.end(None)
        return "".join(listener.timer.texts), record

    with pytest.MonkeyPatch.context() as patch:
        if not is_short:
            patch.setattr(ChunkFastPath, "take", lambda _, data: ([], data))
        return run(work())


def cut(body: bytes, places: Sequence[int]) -> list[bytes]:
    """Split the body at these offsets; the rest is dropped."""
    edges = [0, *sorted(place % (len(body) + 1) for place in places)]
    return [body[start:end] for start, end in pairwise(edges)]


@table("body", STREAMS.values(), ids=STREAMS.keys())
def test_a_recorded_stream_gives_the_same_record_on_both_paths(body: bytes) -> None:
    frames = [frame + b"\n\n" for frame in body.split(b"\n\n") if frame]
    asked = RequestFacts(include_usage=True)
    assert heard(frames, asked) == heard(frames, asked, is_short=False)


@table("odd", ODD, ids=range(len(ODD)))
def test_unusual_chunks_between_texts_give_the_same_record_on_both_paths(odd: bytes) -> None:
    words = [said(f" word {number}") for number in range(5)]
    frames, asked = [ROLE, *words, odd, said("and"), odd, *words], RequestFacts(include_usage=True)
    assert heard(frames, asked) == heard(frames, asked, is_short=False)


@table("lost", [1, 2, 3, 30, len(said("x")) - 1])
def test_a_stream_cut_within_a_chunk_gives_the_same_record_on_both_paths(lost: int) -> None:
    words = [said(f" word {number}") for number in range(5)]
    pieces, asked = [ROLE, *words, said("x")[:-lost]], RequestFacts(include_usage=True)
    assert heard(pieces, asked) == heard(pieces, asked, is_short=False)


@given(FRAMES, st.lists(st.integers(0, 10_000), max_size=40), st.booleans())
def test_any_stream_gives_the_same_record_however_it_is_split(
    frames: list[bytes], places: list[int], is_json: bool
) -> None:
    asked = RequestFacts(include_usage=True, is_json_output=is_json)
    frames = [ROLE, said("one"), said(" two"), *frames]
    for pieces in (frames, cut(b"".join(frames), places)):
        assert heard(pieces, asked) == heard(pieces, asked, is_short=False)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bytes that the reader parses."""
    pieces: list[bytes] = []
    frames = EventReader.decode_frames

    def recorded(self: EventReader, data: bytes) -> Iterable[Frame]:
        pieces.append(data)
        return frames(self, data)

    monkeypatch.setattr(EventReader, "decode_frames", recorded)
    return pieces


def test_most_of_an_answer_takes_the_fast_path(read: list[bytes]) -> None:
    """One chunk per read, and many chunks with the last one incomplete."""
    words = [said(f" word {number}") for number in range(100)]
    body, stop = b"".join(words), said("", finish='"stop"')
    text, record = heard([ROLE, *words, body[:2000], body[2000:], stop], RequestFacts())
    assert text == "".join(f" word {number}" for number in range(100)) * 2
    assert len(record.times) == 200
    assert b"".join(read) == b"".join([ROLE, *words[:2], stop])


def test_the_buffer_is_bounded_and_nothing_is_lost(read: list[bytes]) -> None:
    long, size = said("a" * 10_000), 100
    pieces = [ROLE, said("one"), said("two"), *(long[at : at + size] for at in range(0, len(long), size))]
    text, record = heard(pieces, RequestFacts())
    assert text == "onetwo" + "a" * 10_000
    assert len(record.times) == 3
    assert 4096 < max(map(len, read)) <= 4096 + size
