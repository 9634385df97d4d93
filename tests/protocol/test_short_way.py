"""The short way through the pipe gives what the long way gives: the same bytes, and the same notes."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.recorded.traces import recorded
from tests.table import table
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.fast_path import TransferFraming
from welldone.protocol.pipeline import StreamPipeline
from welldone.protocol.request_facts import RequestFacts

HEAD = Envelope("chatcmpl-x", 1, "m")
STREAMS = {one.name: one.trace.body for one in recorded() if one.trace.body.count(b"chat.completion.chunk") > 12}
ASKED = RequestFacts(include_usage=True, is_usage_forced=True)


def pipe(asked: RequestFacts = ASKED, strict: frozenset[str] = frozenset()) -> StreamPipeline:
    return StreamPipeline(Endpoint.CHAT, fallback=HEAD, facts=asked, strict=strict)


def through(made: StreamPipeline, pieces: list[bytes]) -> tuple[bytes, list[object]]:
    """What goes out, and what was noted."""
    sent = b"".join(made.feed(piece) for piece in pieces) + made.close()
    return sent, [(note.rule, note.count, note.frame, note.byte, note.observed) for note in made.repair_log.entries()]


def frames(body: bytes) -> list[bytes]:
    """One for each read, as servers send them: so that the short way is taken."""
    return [frame + b"\n\n" for frame in body.split(b"\n\n") if frame]


@table("body", STREAMS.values(), ids=STREAMS.keys())
def test_a_recorded_stream_comes_out_the_same_both_ways(body: bytes) -> None:
    pieces = frames(body)
    assert through(pipe(), pieces) == through(pipe(), [b"".join(pieces)])


CHUNK = '{"id":"x","object":"chat.completion.chunk","created":%d,"model":"m","choices":[%s]%s}'
TEXT = '{"index":%d,"delta":{%s"content":%s},"logprobs":null,"finish_reason":%s%s}'


def said(
    text: str, index: int = 0, role: str = "", finish: str = "null", more: str = "", top: str = "", created: int = 1
) -> bytes:
    choice = TEXT % (index, role, json.dumps(text, ensure_ascii=False), finish, more)
    return f"data: {CHUNK % (created, choice, top)}\n\n".encode(errors="surrogatepass")


ODD = [
    b": ping\n\n",
    b"data: [DONE]\n\n",
    b'data: {"error":{"message":"no"}}\n\n',
    b"data: {nonsense\n\n",
    said("", finish='"stop"'),
    said("x", role='"role":"assistant",'),
    said("x", index=1),
    said("x", more=',"token_ids":null'),
    said("x", more=',"token_ids":[1]'),
    said("x", top=',"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}'),
    said("x", top=',"odd":1'),
    said("x", created=2),
    said("\ufffd"),
    said("\u2028"),
    b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}\n\n',
    b'data: {"id":"x","choices":[{"index":0,"delta":{"reasoning":"hm"}}]}\n\n',
    b'data: {"id":"x","choices":[{"index":0,"delta":{"annotations":[{"a":1}],"content":"x"}}]}\n\n',
]
WORDS = st.sampled_from(["a", " the", "\n", '"', "\\", "é", "漢", "aa", "<think>", "  ", "b"]).map(said)
STREAM = st.lists(st.one_of(WORDS, WORDS, WORDS, st.sampled_from(ODD)), max_size=30)


@given(STREAM, st.booleans(), st.sampled_from([frozenset[str](), frozenset({"all"}), frozenset({"delta-role-once"})]))
def test_any_stream_comes_out_the_same_both_ways(pieces: list[bytes], is_json: bool, strict: frozenset[str]) -> None:
    asked = RequestFacts(include_usage=True, is_usage_forced=True, is_json_output=is_json)
    apart, together = pipe(asked, strict), pipe(asked, strict)
    pieces = [said("", role='"role":"assistant",'), said("one"), said(" two"), *pieces]
    assert through(apart, pieces) == through(together, [b"".join(pieces)])
    assert apart.invalid_json_count == together.invalid_json_count


def test_the_short_way_is_really_taken() -> None:
    made = pipe()
    for word in ("one", " two", " three", " four"):
        made.feed(said(word))
    lane = made._fast_path
    assert lane is not None
    assert made.feed(said(" five")) == made.feed(said(" five"))
    assert lane.frames > 0


def test_chunks_that_never_stay_the_same_are_not_learnt_for_ever() -> None:
    made = pipe()
    for number in range(40):
        made.feed(said(f"word {number}", top=f',"padding":"{number}"'))
    assert made._learning_attempts == 0


def test_frames_in_chunks_of_a_protocol_below_go_the_short_way_too() -> None:
    def around(data: bytes) -> tuple[bytes, bytes] | None:
        return (b"<", b">") if data.startswith(b"<") else None

    made = pipe()
    made.enable_fast_path(TransferFraming(around, lambda size: (b"%d:" % size, b"|")))
    plain = b"".join(made.feed(said(word)) for word in ("one", " two", " three", " four"))
    assert plain.count(b"data: ") == 5  # with the role; whoever calls `feed` gets them without a frame
    assert made.try_fast_path is not None
    assert made.try_fast_path(said(" five")) is None
    sent = made.try_fast_path(b"<" + said(" five") + b">")
    assert sent is not None
    size, _, rest = sent.partition(b":")
    assert rest.endswith(b"\n\n|")
    assert int(size) == len(rest) - 1
    assert b'"content":" five"' in rest


def test_a_part_has_begun_when_it_has_said_something() -> None:
    made = pipe()
    made.feed(b": ping\n\n")
    assert not made.has_part_started(0)
    made.feed(said("a"))
    assert made.has_part_started(0)
