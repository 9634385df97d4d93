"""Continued streams: by replay and by prefill, wherever they are cut."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol import build
from tests.protocol.continuations import (
    ENVELOPES,
    LOST,
    REPLAY,
    SMALL,
    contents,
    cut_and_replay,
    frames,
    is_clean,
    make,
    prefill,
)
from tests.recorded.traces import read_content, recorded_traces
from tests.support.path_comparison import twin_of
from tests.table import table
from welldone.core.continuation import PrefillStyle, plan_continuation
from welldone.core.envelope import Endpoint
from welldone.core.events import Usage
from welldone.core.state import PartState
from welldone.core.template import TransferFraming
from welldone.dialects.messages.writer import MessagesFormat
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

# Recorded streams.

COMPLETE = {
    one.name: (Endpoint(one.trace.endpoint or "chat"), one.trace.body)
    for one in recorded_traces()
    if one.is_stream
    and one.trace.endpoint in ("chat", "completions", None)
    and one.trace.body.rstrip().endswith(b"[DONE]")
    and b'"error"' not in one.trace.body
    and read_content(one.trace.body).finishes
}


@table("name", COMPLETE)
def test_a_recorded_stream_is_the_same_wherever_it_is_cut(name: str) -> None:
    endpoint, body = COMPLETE[name]
    uncut = make(endpoint)
    expected_bytes = b"".join(map(uncut.feed, frames(body))) + uncut.close() + uncut.release_failure()
    expected = read_content(expected_bytes)
    for cut in range(0, len(body), max(1, len(body) // 5) | 1):
        sent = cut_and_replay(partial(make, endpoint), body[:cut], body)
        assert sent is None or read_content(sent) == expected, cut


def test_a_stream_with_all_kinds_of_content_is_the_same_wherever_it_is_cut() -> None:
    uncut = make()
    expected = read_content(b"".join(map(uncut.feed, frames(SMALL))) + uncut.close())
    for cut in range(0, len(SMALL), 5):
        sent = cut_and_replay(make, SMALL[:cut], SMALL)
        if sent is not None:
            assert read_content(sent) == expected, cut
            assert cut % 20 or is_clean(sent, Endpoint.CHAT), cut
            assert sent.count(b"reasoning_content") >= 1
            assert "".join(json.loads(f'"{text}"') for text in _reasoning(sent)) == "Hm, né"


def _reasoning(sent: bytes) -> list[str]:
    return [part.partition('"reasoning_content":"')[2].partition('"}')[0] for part in sent.decode().split("data: ")]


DIALECTS: dict[str, Callable[[], Any]] = {"messages": MessagesFormat, "responses": partial(ResponsesFormat, {})}


@table("name", DIALECTS)
def test_other_dialects_are_the_same_wherever_they_are_cut(name: str) -> None:
    body = SMALL

    def make_pipeline() -> StreamPipeline:
        return make(dialect=DIALECTS[name]())

    uncut = make_pipeline()
    expected = b"".join(map(uncut.feed, frames(body))) + uncut.close()
    for cut in range(0, len(body), 7):
        sent = cut_and_replay(make_pipeline, body[:cut], body)
        assert sent is None or sent == expected, cut


def test_a_whole_reply_is_the_same_wherever_it_is_cut() -> None:
    def make_pipeline() -> BufferedPipeline:
        return BufferedPipeline(Endpoint.CHAT, fallback=ENVELOPES[Endpoint.CHAT], is_continuable=True)

    uncut = make_pipeline()
    uncut.feed(SMALL)
    uncut.close()
    for cut in range(0, len(SMALL), 5):
        pipeline = make_pipeline()
        pipeline.feed(SMALL[:cut])
        if pipeline.delivered(0) is not None:
            pipeline.continue_part(0, REPLAY)
            pipeline.feed(SMALL.replace(b"chatcmpl-1", b"chatcmpl-2"))
            pipeline.close()
            expected = uncut.body() if b"\n\n" in SMALL[:cut] else uncut.body().replace(b"chatcmpl-1", b"chatcmpl-2")
            assert pipeline.body() == expected, cut


# Any chunk borders, and streams that differ.

words = st.text(st.sampled_from('ab \n"é👍'), min_size=1, max_size=12)
kinds = st.sampled_from(["content", "reasoning_content", "refusal"])


@st.composite
def chunked(draw: st.DrawFn, segments: list[tuple[str, str]]) -> bytes:
    """A stream of these texts, with any chunk borders."""
    deltas = []
    for kind, text in segments:
        ends = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=4)) | {len(text)})
        starts = [0, *ends[:-1]]
        deltas += [{kind: text[start:end]} for start, end in zip(starts, ends, strict=True)]
    return build.stream(build.role(), *map(build.delta_chunk, deltas), build.finish())


def joined(segments: list[tuple[str, str]]) -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    for kind, text in segments:
        before = out.pop()[1] if out and out[-1][0] == kind else ""
        out.append((kind, before + text))
    return out


@given(st.data(), st.lists(st.tuples(kinds, words), min_size=1, max_size=5), st.integers(0, 2000))
def test_chunk_borders_do_not_matter(data: st.DataObject, segments: list[tuple[str, str]], cut: int) -> None:
    first, again = data.draw(chunked(segments)), data.draw(chunked(segments))
    sent = cut_and_replay(make, first[: cut % len(first)], again)
    if sent is not None:
        assert contents(sent) == joined(segments)
        assert b'"error"' not in sent


@given(st.data(), *[st.lists(st.tuples(kinds, words), min_size=1, max_size=4)] * 2, st.integers(0, 2000))
def test_a_replay_that_differs_ends_with_the_first_error(
    data: st.DataObject, segments: list[tuple[str, str]], others: list[tuple[str, str]], cut: int
) -> None:
    first, again = data.draw(chunked(segments)), data.draw(chunked(others))
    pipeline = make()
    before = b"".join(map(pipeline.feed, frames(first[: cut % len(first)])))
    if pipeline.delivered(0) is None:
        return
    pipeline.continue_part(0, REPLAY)
    sent = before + b"".join(map(pipeline.feed, frames(again))) + pipeline.close()
    if b'"error"' in sent:
        assert pipeline.failure == LOST
        assert pipeline.parts[0].has_differed
        assert contents(sent) == contents(before)
    else:
        assert contents(sent) == joined(others)


def test_after_a_replay_that_differs_the_answer_can_go_on_by_prefill() -> None:
    pipeline = make()
    sent = pipeline.feed(build.stream(build.role(), *build.content_chunks("Hel", "lo"), end=b""))
    assert pipeline.delivered(0) is not None
    pipeline.continue_part(0, msgspec.structs.replace(REPLAY, can_fall_back=True))
    sent += pipeline.feed(build.stream(build.role(), *build.content_chunks("Help", " me"), build.finish()))
    assert (pipeline.part_state(0), pipeline.failure) == (PartState.CUT, None)
    assert pipeline.parts[0].has_differed
    delivered = pipeline.delivered(0)
    assert delivered is not None
    assert delivered.choices[0].text == "Hello"
    pipeline.continue_part(0, prefill("Hello", tokens=2))
    sent += pipeline.feed(build.stream(build.role(), *build.content_chunks(" you"), build.finish())) + pipeline.close()
    assert is_clean(sent, Endpoint.CHAT)
    assert contents(sent) == [("content", "Hello you")]


# Prefill.


def test_a_prefill_goes_on_after_the_delivered_text() -> None:
    pipeline = make()
    sent = pipeline.feed(build.stream(build.role(), *build.content_chunks("Hel", "lo"), end=b""))
    delivered = pipeline.delivered(0)
    assert delivered is not None
    assert (delivered.choices[0].text, delivered.pieces) == ("Hello", 2)
    pipeline.continue_part(0, prefill("Hello", tokens=2))
    usage = {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13}
    rest = build.stream(build.role(), *build.content_chunks(" you"), build.finish(), build.usage_chunk(usage))
    sent += pipeline.feed(rest.replace(b"chatcmpl-1", b"chatcmpl-2")) + pipeline.close()
    assert is_clean(sent, Endpoint.CHAT)
    assert contents(sent) == [("content", "Hello you")]
    assert b"chatcmpl-2" not in sent
    assert pipeline.usage == Usage(10, 3, 13, {})
    assert pipeline.part_state(0) is PartState.DONE


@table("length", [1, 300])
def test_the_fast_path_is_used_before_and_after_the_seam(length: int) -> None:
    pipeline = make()
    texts = [f" {number}" * length for number in range(20)]
    body = build.stream(build.role(), *build.content_chunks(*texts), end=b"")
    sent = b"".join(map(pipeline.feed, frames(body)))
    assert pipeline.fast_path.rewrite is not None
    delivered = pipeline.delivered(0)
    assert delivered is not None
    assert (delivered.choices[0].text, delivered.pieces) == ("".join(texts), 20)
    pipeline.continue_part(0, REPLAY)
    again = build.stream(build.role(), *build.content_chunks(*texts, *texts), end=b"").replace(b"-1", b"-2")
    sent += b"".join(map(pipeline.feed, frames(again)))
    assert pipeline.fast_path.rewrite is not None
    assert contents(sent) == [("content", "".join(texts) * 2)]
    assert pipeline.delivered(0) is not None
    assert delivered.choices[0].text == "".join(texts) * 2


def test_escapes_and_transfer_framing_do_not_change_the_record() -> None:
    pipeline = make()
    pipeline.fast_path.use_framing(TransferFraming(lambda data: (b"<", b">"), lambda size: (b"(", b")")))
    texts = ["a", ' "b" ', "\\", "\n", "é", "👍"] * 4
    for frame in frames(build.stream(build.role(), *build.content_chunks(*texts), end=b"")):
        rewrite = pipeline.fast_path.rewrite
        if rewrite is None or rewrite(b"<" + frame + b">") is None:
            pipeline.feed(frame)
    delivered = pipeline.delivered(0)
    assert delivered is not None
    assert (delivered.choices[0].text, delivered.pieces) == ("".join(texts), len(texts))


@table("is_fast", [True, False])
def test_a_long_answer_is_not_stored(is_fast: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in ("continuation", "template"):
            patch.setattr(f"welldone.core.{module}.DELIVERED_LIMIT_BYTES", 100)
        pipeline = make()
        if not is_fast:
            pipeline.fast_path.disable()
        body = build.stream(build.role(), *build.content_chunks(*["word"] * 40), end=b"")
        for frame in frames(body):
            pipeline.feed(frame)
        assert pipeline.delivered(0) is None
        delivered = pipeline.parts[0].delivered
        assert delivered is not None
        assert not delivered.choices
        assert plan_continuation({}, delivered, LOST, style=PrefillStyle.ENGINE) is None
        pipeline.feed(body)
        assert delivered.has_content


def test_a_twin_is_continued_too() -> None:
    assert cut_and_replay(make, SMALL[:500], SMALL) is not None
    pipeline = make()
    assert twin_of(pipeline) is not None
    pipeline.feed(SMALL[:500])
    pipeline.feed(b'data: {"error":{"message":"no"}}\n\n')
    assert b"no" in pipeline.release_failure()
