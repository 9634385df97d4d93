"""Continuation of a stream by another one: nothing is repeated, left out or invented."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol import build
from tests.recorded.traces import read_content, recorded_traces
from tests.table import table
from welldone.protocol.continuation import (
    Continuation,
    ContinuationWay,
    Delivered,
    FastPathText,
    PrefillStyle,
    Seam,
    continued_body,
    continued_usage,
    may_repeat,
    plan_continuation,
)
from welldone.protocol.dialects.anthropic.writer import MessagesDialect
from welldone.protocol.dialects.responses.writer import ResponsesDialect
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import (
    ChoiceStart,
    Event,
    Failure,
    FieldLocation,
    Finish,
    KeepAlive,
    Logprobs,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    UnknownFields,
    Usage,
)
from welldone.protocol.fan_out import FanOut
from welldone.protocol.fast_path import TransferFraming
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline
from welldone.protocol.replay import StreamReplay
from welldone.protocol.request_facts import RepairOptions, RequestFacts
from welldone.protocol.result import PartState
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

LOST = Failure("the connection was lost", code="upstream_died")
REPLAY = Continuation(way=ContinuationWay.REPLAY, failure=LOST)
ENVELOPES = {Endpoint.CHAT: Envelope("chatcmpl-x", 1, "m"), Endpoint.COMPLETIONS: Envelope("cmpl-x", 1, "m")}
FACTS = RequestFacts(include_usage=True, is_usage_forced=True)


def prefill(text: str, *, is_guarded: bool = False, tokens: int = 0) -> Continuation:
    return Continuation(
        way=ContinuationWay.PREFILL, failure=LOST, prefill=text, is_guarded=is_guarded, delivered_tokens=tokens
    )


def make(endpoint: Endpoint = Endpoint.CHAT, facts: RequestFacts = FACTS, **fields: Any) -> StreamPipeline:  # noqa: ANN401 - arguments of a pipeline
    return StreamPipeline(endpoint, fallback=ENVELOPES[endpoint], facts=facts, is_continuable=True, **fields)


def frames(body: bytes) -> list[bytes]:
    """One frame per read, so that the fast path is used; the rest may be a part of a frame."""
    pieces = body.split(b"\n\n")
    return [*(piece + b"\n\n" for piece in pieces[:-1]), *([pieces[-1]] if pieces[-1] else [])]


def cut_and_replay(make_pipeline: Callable[[], StreamPipeline], first: bytes, again: bytes) -> bytes | None:
    """The bytes that are sent for a stream that breaks off and is replayed; None if it cannot be."""
    pipeline = make_pipeline()
    sent = b"".join(map(pipeline.feed, frames(first)))
    if pipeline.delivered(0) is None:
        return None
    pipeline.continue_part(0, REPLAY)
    return sent + b"".join(map(pipeline.feed, frames(again))) + pipeline.close() + pipeline.release_failure()


def is_clean(body: bytes, endpoint: Endpoint) -> bool:
    return not judge(Trace(body=body, endpoint=endpoint.value)).findings


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


SMALL = build.stream(
    build.role(),
    build.delta_chunk({"reasoning_content": "Hm, né"}),
    *build.content_chunks("Grüße", " 👍🏽", "\n\n", 'a "quote" \\', "x"),
    build.delta_chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]}),
    build.delta_chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}),
    build.delta_chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
    build.finish("tool_calls"),
    build.usage_chunk({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}),
)


def test_a_stream_with_all_kinds_of_content_is_the_same_wherever_it_is_cut() -> None:
    uncut = make()
    expected = read_content(b"".join(map(uncut.feed, frames(SMALL))) + uncut.close())
    for cut in range(0, len(SMALL), 3):
        sent = cut_and_replay(make, SMALL[:cut], SMALL)
        if sent is not None:
            assert read_content(sent) == expected, cut
            assert cut % 20 or is_clean(sent, Endpoint.CHAT), cut
            assert sent.count(b"reasoning_content") >= 1
            assert "".join(json.loads(f'"{text}"') for text in _reasoning(sent)) == "Hm, né"


def _reasoning(sent: bytes) -> list[str]:
    return [part.partition('"reasoning_content":"')[2].partition('"}')[0] for part in sent.decode().split("data: ")]


DIALECTS: dict[str, Callable[[], Any]] = {"messages": MessagesDialect, "responses": partial(ResponsesDialect, {})}


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


def contents(sent: bytes) -> list[tuple[str, str]]:
    """The texts of a stream in order, by kind."""
    found: list[tuple[str, str]] = []
    for line in sent.decode().splitlines():
        if not line.startswith('data: {"id"'):
            continue
        for choice in json.loads(line[6:])["choices"]:
            for kind, text in choice["delta"].items():
                if kind != "role" and text:
                    before = found.pop()[1] if found and found[-1][0] == kind else ""
                    found.append((kind, before + text))
    return found


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
        for module in ("continuation", "fast_path"):
            patch.setattr(f"welldone.protocol.{module}.DELIVERED_LIMIT_BYTES", 100)
        pipeline = make(uses_fast_path=is_fast)
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


def test_the_twin_of_the_debug_mode_is_continued_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamPipeline, "COMPARES_PATHS", True)
    assert cut_and_replay(make, SMALL[:500], SMALL) is not None
    pipeline = make()
    pipeline.feed(SMALL[:500])
    pipeline.feed(b'data: {"error":{"message":"no"}}\n\n')
    assert b"no" in pipeline.release_failure()


# Cut streams that are not continued.


def test_a_failure_is_held_until_it_is_released() -> None:
    pipeline = make()
    sent = pipeline.feed(SMALL[:500]) + pipeline.feed(b'data: {"error":{"message":"no"}}\n\ndata: [DONE]\n\n')
    assert (pipeline.part_state(0), pipeline.failure) == (PartState.CUT, None)
    assert b"error" not in sent
    sent += pipeline.release_failure() + pipeline.close()
    assert pipeline.part_state(0) is PartState.FAILED
    assert is_clean(sent, Endpoint.CHAT)
    assert sent.count(b'"error"') == 1


def test_a_failure_from_outside_releases_a_part_that_was_cut() -> None:
    pipeline = make()
    pipeline.feed(SMALL[:500])
    assert pipeline.close() == b""
    assert pipeline.part_state(0) is PartState.CUT
    assert b"ended before the answer was complete" in pipeline.fail(LOST)
    several = make(fan_out=FanOut(2))
    several.feed(SMALL[:500], 0)
    several.close(0)
    assert LOST.message.encode() in several.fail(LOST)
    other = make(fan_out=FanOut(2))
    other.feed(SMALL[:500], 1)
    other.close(1)
    assert b"ended before" in other.release_failure(1)


def test_a_failure_in_a_continued_stream_sends_nothing_twice() -> None:
    pipeline = make(facts=RequestFacts(stop_strings=("xyz",)))
    sent = pipeline.feed(build.stream(build.role(), *build.content_chunks("Hello", " you"), end=b""))
    pipeline.continue_part(0, REPLAY)
    sent += pipeline.feed(build.stream(build.role(), *build.content_chunks("Hello", " you", " x"), end=b""))
    sent += pipeline.fail(LOST)
    assert contents(sent) == [("content", "Hello you x")]


def test_finished_answers_and_strict_violations_are_not_continued_by_prefill() -> None:
    pipeline = make()
    pipeline.feed(build.stream(build.role(), *build.content_chunks("Hello"), build.finish(), end=b""))
    finished = pipeline.delivered(0)
    assert finished is not None
    assert plan_continuation({}, finished, LOST, style=PrefillStyle.ENGINE) is None
    assert plan_continuation({"temperature": 0}, finished, LOST, style=PrefillStyle.ENGINE) == REPLAY
    strict = make(options=RepairOptions(strict=frozenset({"all"})))
    strict.feed(build.stream(*build.content_chunks("Hello"), end=b""))
    assert strict.delivered(0) is None
    plain = StreamPipeline(Endpoint.CHAT, fallback=ENVELOPES[Endpoint.CHAT])
    assert plain.delivered(0) is None


def test_a_reply_that_is_not_streamed_is_never_cut() -> None:
    pipeline = make()
    assert b'"error"' in pipeline.feed_reply(b'{"error":{"message":"no"}}')
    assert pipeline.failure is not None


def test_a_stop_string_ends_a_continued_answer() -> None:
    pipeline = make(facts=RequestFacts(stop_strings=("END",)))
    sent = pipeline.feed(build.stream(build.role(), *build.content_chunks("One", " E"), end=b""))
    delivered = pipeline.delivered(0)
    assert delivered is not None
    assert delivered.choices[0].text == "One"  # the rest may be a stop string
    pipeline.continue_part(0, prefill("One"))
    sent += pipeline.feed(build.stream(build.role(), *build.content_chunks(" E", "N", "D", " two"), end=b""))
    assert pipeline.part_state(0) is PartState.STOPPED
    sent += pipeline.close()
    assert contents(sent) == [("content", "One ")]
    assert b'"finish_reason":"stop"' in sent


def test_a_replay_in_the_inspector_shows_both_streams() -> None:
    plain, replay = make(), StreamReplay(make())
    sent = plain.feed(SMALL[:700])
    steps = list(replay.feed(SMALL[:700]))
    plain.continue_part(0, REPLAY)
    steps += replay.continue_part(0, REPLAY)
    sent += plain.feed(SMALL)
    steps += list(replay.feed(SMALL))
    assert b"".join(step.received for step in steps) == SMALL[:700] + SMALL
    assert b"".join(step.sent for step in steps) == sent
    broken = b'data: {"error":{"message":"no"}}\n\n'
    plain, replay = make(), StreamReplay(make())
    sent = plain.feed(SMALL[:700] + broken) + plain.release_failure() + plain.close()
    steps = [*replay.feed(SMALL[:700] + broken), *replay.release_failure(0), *replay.close()]
    assert b"".join(step.sent for step in steps) == sent


# Plans and requests.


def delivered_of(*events: Event) -> Delivered:
    delivered = Delivered()
    delivered.record(list(events))
    return delivered


HELLO = delivered_of(ChoiceStart(0), Text(0, "Hello"), Text(0, " you"))


@table(
    "body, expected",
    [
        ({"temperature": 0}, True),
        ({"temperature": 0.0}, True),
        ({"temperature": 0.1}, False),
        ({"temperature": False}, False),
        ({"seed": 3}, True),
        ({"seed": -1}, False),
        ({}, False),
    ],
)
def test_which_requests_are_repeatable(body: dict[str, Any], expected: bool) -> None:
    assert may_repeat(body, honours_seed=True) is expected
    assert may_repeat({"seed": 3}, honours_seed=False) is False


PREFILLS: list[tuple[dict[str, Any], PrefillStyle, str | None]] = [
    ({}, PrefillStyle.ENGINE, "Hello you"),
    ({}, PrefillStyle.MESSAGE, "Hello you"),
    ({"n": 1, "tool_choice": "auto", "response_format": {"type": "text"}}, PrefillStyle.FIELDS, "Hello you"),
    ({"n": 2}, PrefillStyle.ENGINE, None),
    ({"logprobs": True}, PrefillStyle.ENGINE, None),
    ({"logprobs": 0}, PrefillStyle.ENGINE, None),
    ({"logprobs": False}, PrefillStyle.ENGINE, "Hello you"),
    ({"grammar": "root ::= x"}, PrefillStyle.ENGINE, None),
    ({"response_format": {"type": "json_object"}}, PrefillStyle.ENGINE, None),
    ({"tool_choice": {"type": "function"}}, PrefillStyle.ENGINE, None),
    ({"frequency_penalty": 1}, PrefillStyle.ENGINE, "Hello you"),
    ({"frequency_penalty": 1}, PrefillStyle.MESSAGE, None),
    ({"stop": "you!"}, PrefillStyle.MESSAGE, "Hello "),
    ({"stop": ["o you!", 5, "u"]}, PrefillStyle.MESSAGE, "Hell"),
    ({"stop": "you!"}, PrefillStyle.ENGINE, "Hello you"),
]


@table("body, style, expected", PREFILLS)
def test_when_a_text_is_continued_by_prefill(body: dict[str, Any], style: PrefillStyle, expected: str | None) -> None:
    planned = plan_continuation(body, HELLO, LOST, style=style)
    assert (None if planned is None else planned.prefill) == expected
    if planned is not None:
        # The last piece is generated again if it was left out, so it counts as a part of the rest.
        tokens = 2 if expected == "Hello you" else 1
        assert (planned.way, planned.delivered_tokens) == (ContinuationWay.PREFILL, tokens)
        assert planned.is_guarded is (style is not PrefillStyle.ENGINE)


def test_a_prefill_counts_no_white_space_that_it_leaves_out() -> None:
    for texts, tokens in {("Hello", " you", "\n"): 2, ("Hello you\n",): 1, ("Hello", " you"): 2}.items():
        delivered = delivered_of(*(Text(0, text) for text in texts))
        planned = plan_continuation({}, delivered, LOST, style=PrefillStyle.FIELDS)
        assert planned is not None
        assert (planned.prefill, planned.delivered_tokens) == ("Hello you", tokens)


def test_a_role_alone_is_nothing_that_was_sent() -> None:
    pipeline = make()
    pipeline.feed(build.frame(build.role()))
    assert not pipeline.has_sent(0)
    pipeline.feed(build.frame(build.content_chunks("Hello")[0]))
    assert pipeline.has_sent(0)


def test_a_short_replay_at_the_engine_comes_before_a_prefill() -> None:
    def way(**arguments: Any) -> str:  # noqa: ANN401 - any argument
        planned = plan_continuation({"temperature": 0}, HELLO, LOST, **{"style": PrefillStyle.ENGINE, **arguments})
        assert planned is not None
        return f"{planned.way} {planned.can_fall_back}"

    assert way(is_replay_short=True) == "replay True"
    assert way() == "prefill False"
    assert way(is_replay_short=True, has_differed=True) == "prefill False"
    assert way(is_replay_short=True, style=PrefillStyle.FIELDS) == "prefill False"
    assert way(style=None) == "replay False"
    assert plan_continuation({"temperature": 0}, HELLO, LOST, style=None, has_differed=True) is None


NOT_TEXT = {
    "nothing after white space": (ChoiceStart(0), Text(0, " ")),
    "reasoning": (Reasoning(0, "Hm"), Text(0, "Hello")),
    "only reasoning": (Reasoning(0, "Hm"),),
    "a refusal": (Refusal(0, "No"),),
    "a call": (Text(0, "Hello"), ToolCall(0, 0, "c", "f")),
    "two choices": (Text(0, "Hello"), Text(1, "Hello")),
    "a special token": (Text(0, "Hello<|im_end|>"),),
}


@table("events", NOT_TEXT.values(), ids=NOT_TEXT.keys())
def test_other_content_is_continued_by_a_replay_only(events: tuple[Event, ...]) -> None:
    delivered = delivered_of(*events)
    assert plan_continuation({}, delivered, LOST, style=PrefillStyle.FIELDS) is None
    assert plan_continuation({"temperature": 0}, delivered, LOST, style=PrefillStyle.FIELDS) == REPLAY


def test_what_cannot_be_compared_is_not_continued() -> None:
    unknown = UnknownFields(0, FieldLocation.DELTA, {"images": ["x"]})
    assert plan_continuation({"temperature": 0}, delivered_of(Text(0, "a"), unknown), LOST, style=None) is None
    empty = UnknownFields(0, FieldLocation.DELTA, {"images": None})
    assert plan_continuation({"temperature": 0}, delivered_of(Text(0, "a"), empty), LOST, style=None) == REPLAY
    assert plan_continuation({"temperature": 0, "return_token_ids": True}, HELLO, LOST, style=None) is None
    dropped = delivered_of(unknown, Text(0, "a"))
    dropped.pending.append(FastPathText(0, bytearray(b"a"), 1))
    dropped.record_pending()
    assert (dropped.choices, dropped.has_content) == ({}, True)


def test_a_role_alone_is_requested_again() -> None:
    assert plan_continuation({}, delivered_of(ChoiceStart(0)), LOST, style=None) == REPLAY


USER = {"role": "user", "content": "Hi"}
ADDED = {"role": "assistant", "content": "Hello"}


@table(
    "body, style, expected",
    [
        ({"messages": [USER], "max_tokens": 10}, PrefillStyle.MESSAGE, {"messages": [USER, ADDED], "max_tokens": 8}),
        ({"messages": [USER], "max_tokens": 2}, PrefillStyle.MESSAGE, None),
        (
            {"messages": [USER], "max_tokens": -1, "min_tokens": 1},
            PrefillStyle.ENGINE,
            {"messages": [USER, ADDED], "max_tokens": -1, "min_tokens": 0},
        ),
        (
            {"messages": [USER]},
            PrefillStyle.FIELDS,
            {"messages": [USER, ADDED], "continue_final_message": True, "add_generation_prompt": False},
        ),
        ({"messages": [USER], "add_generation_prompt": False}, PrefillStyle.FIELDS, None),
        (
            {"messages": [USER, {"role": "assistant", "content": "Oh "}]},
            PrefillStyle.ENGINE,
            {"messages": [USER, {"role": "assistant", "content": "Oh Hello"}]},
        ),
        ({"messages": [USER, {"role": "assistant", "content": []}]}, PrefillStyle.ENGINE, None),
        ({"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [{}]}]}, PrefillStyle.ENGINE, None),
        (
            {"messages": [{"role": "assistant", "content": "Oh"}]},
            PrefillStyle.FIELDS,
            {
                "messages": [{"role": "assistant", "content": "Oh"}, ADDED],
                "continue_final_message": True,
                "add_generation_prompt": False,
            },
        ),
        ({"prompt": "Say: "}, PrefillStyle.ENGINE, {"prompt": "Say: Hello"}),
        ({"prompt": [1, 2]}, PrefillStyle.ENGINE, None),
    ],
)
def test_the_request_for_the_rest(body: dict[str, Any], style: PrefillStyle, expected: dict[str, Any] | None) -> None:
    assert continued_body(body, prefill("Hello", tokens=2), style) == expected
    assert continued_body(body, REPLAY, style) == body


def test_usage_counts_the_prompt_once() -> None:
    usage = Usage(12, 3, 15, {"prompt_tokens_details": {"cached_tokens": 11}})
    assert continued_usage(usage, REPLAY) == usage
    expected = Usage(10, 5, 15, {"prompt_tokens_details": {"cached_tokens": 10}})
    assert continued_usage(usage, prefill("Hello", tokens=2)) == expected
    known = msgspec.structs.replace(prefill("Hello", tokens=1), prompt_tokens=11)
    assert continued_usage(usage, known) == Usage(11, 4, 15, usage.extra_fields)
    merged = msgspec.structs.replace(prefill("\nHello", tokens=2), prompt_tokens=11)  # a token of both
    assert continued_usage(usage, merged) == Usage(11, 5, 16, usage.extra_fields)


def test_the_prompt_tokens_of_the_first_stream_are_kept() -> None:
    pipeline = make()
    early = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
    pipeline.feed(build.stream(build.role(), build.chunk(build.choice({"content": "Hello"}), usage=early), end=b""))
    usage = {"prompt_tokens": 14, "completion_tokens": 2, "total_tokens": 16}
    rest = build.stream(build.role(), *build.content_chunks(" you"), build.finish(), build.usage_chunk(usage))
    pipeline.continue_part(0, prefill("Hello", tokens=1))
    pipeline.continue_part(0, prefill("Hello", tokens=1))  # an attempt failed before its first byte
    pipeline.feed(rest)
    pipeline.close()
    assert pipeline.usage == Usage(10, 6, 16, {})


# The seam.


def after_seam(delivered: Delivered, continuation: Continuation, *events: Event) -> list[Event]:
    return Seam(delivered, continuation).feed(list(events))


CALLED = delivered_of(ChoiceStart(0), ToolCall(0, 0, "c", "get"), ToolArguments(0, 0, '{"a"'))
ENTRY = {"content": [{"token": "a"}]}
SCORED = delivered_of(ChoiceStart(0), Logprobs(0, ENTRY), Text(0, "a"))
NOTE = UnknownFields(0, FieldLocation.CHOICE, {"x": 1})
TIMINGS = UnknownFields(0, FieldLocation.CHUNK, {"timings": {}})

SEAMS: dict[str, tuple[Delivered, Continuation, list[Event], list[Event]]] = {
    "fields of delivered chunks": (
        HELLO,
        REPLAY,
        [ChoiceStart(0), TIMINGS, NOTE, Text(0, "Hello you"), TIMINGS, NOTE, Text(0, "!"), KeepAlive(), ChoiceStart(1)],
        [TIMINGS, NOTE, Text(0, "!"), KeepAlive(), ChoiceStart(1)],
    ),
    "unknown content": (HELLO, REPLAY, [UnknownFields(0, FieldLocation.DELTA, {"images": ["x"]})], [LOST]),
    "a call": (
        CALLED,
        REPLAY,
        [ToolCall(0, 0, "d", "get"), ToolArguments(0, 0, ""), ToolArguments(0, 0, '{"a":1}'), ToolCall(0, 1, "e", "f")],
        [ToolArguments(0, 0, ":1}"), ToolCall(0, 1, "e", "f")],
    ),
    "a longer name": (CALLED, REPLAY, [ToolCall(0, 0, "d", "get_it")], [LOST]),
    "a shorter name": (CALLED, REPLAY, [ToolCall(0, 0, "d", "ge")], [LOST]),
    "text for a call": (CALLED, REPLAY, [Text(0, "get")], [LOST]),
    "an early end": (HELLO, REPLAY, [Text(0, "Hello"), Finish(0, "stop")], [LOST]),
    "another failure": (HELLO, REPLAY, [Text(0, "Hello"), Failure("no")], [Failure("no")]),
    "log probabilities": (
        SCORED,
        REPLAY,
        [Logprobs(0, ENTRY), Text(0, "a"), Logprobs(0, ENTRY), Text(0, "b"), Finish(0, "stop")],
        [Logprobs(0, ENTRY), Text(0, "b"), Finish(0, "stop")],
    ),
    "log probabilities across the seam": (SCORED, REPLAY, [Logprobs(0, {"content": [{}, {}]})], [LOST]),
    "missing log probabilities": (SCORED, REPLAY, [Text(0, "ab")], [LOST]),
    "missing log probabilities at the end": (SCORED, REPLAY, [Text(0, "a"), Finish(0, "stop")], [LOST]),
    "reasoning after a prefill": (HELLO, prefill("Hello you"), [Reasoning(0, "Hm")], [LOST]),
    "reasoning later": (
        HELLO,
        prefill("Hello you"),
        [Text(0, "!"), Reasoning(0, "Hm")],
        [Text(0, "!"), Reasoning(0, "Hm")],
    ),
    "the rest of a prefill": (HELLO, prefill("Hello"), [Text(0, " y"), Text(0, "ou!")], [Text(0, "!")]),
    "another rest": (HELLO, prefill("Hello"), [Text(0, " me")], [LOST]),
    "the start again": (
        HELLO,
        prefill("Hello you", is_guarded=True),
        [NOTE, Text(0, "Hell"), Text(0, "o you")],
        [LOST],
    ),
    "nearly the start again": (
        HELLO,
        prefill("Hello you", is_guarded=True),
        [NOTE, Text(0, "Hell"), Text(0, "ip"), Text(0, "Hello you")],
        [NOTE, Text(0, "Hell"), Text(0, "ip"), Text(0, "Hello you")],
    ),
    "a short end": (
        HELLO,
        prefill("Hello you", is_guarded=True),
        [Text(0, "Hell"), Finish(0, "stop")],
        [Text(0, "Hell"), Finish(0, "stop")],
    ),
    "a call after a guarded prefill": (
        HELLO,
        prefill("Hello you", is_guarded=True),
        [ToolCall(0, 0, "c", "f")],
        [ToolCall(0, 0, "c", "f")],
    ),
}


@table("delivered, continuation, events, expected", SEAMS.values(), ids=SEAMS.keys())
def test_what_passes_the_seam(
    delivered: Delivered, continuation: Continuation, events: list[Event], expected: list[Event]
) -> None:
    assert after_seam(delivered, continuation, *events) == expected


def test_several_choices_are_compared_one_by_one() -> None:
    delivered = delivered_of(ChoiceStart(0), ChoiceStart(1), Text(0, "a"), Text(1, "b"), Text(0, "c"))
    seam = Seam(delivered, REPLAY)
    assert seam.feed([Text(1, "bd"), Text(0, "a")]) == [Text(1, "d")]
    assert not seam.is_passed
    assert seam.feed([Text(0, "ce")]) == [Text(0, "e")]
    assert seam.is_passed
