"""Stop strings: end of the text, held text and events."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    FALLBACK,
    FALLBACKS,
    Json,
    chunk,
    count,
    cuts,
    delta_chunk,
    entry,
    finish,
    role,
    stream,
    text,
    usage_chunk,
)
from tests.table import table
from welldone.core.events import (
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
from welldone.core.request_facts import RequestFacts
from welldone.core.state import PartState
from welldone.core.text_filters import StopStringFilter
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.stream.fan_out import FanOut
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

STOP = Finish(0, "stop")


def stopped(string: str) -> Finish:
    return Finish(0, "stop", string)


LENGTH = Finish(0, "length")


def timings(predicted: int, prompt: int = 1, cached: int = 48) -> Json:
    return {"prompt_n": prompt, "cache_n": cached, "predicted_n": predicted, "predicted_ms": 1.5}


def timed(predicted: int) -> UnknownFields:
    return UnknownFields(0, FieldLocation.CHUNK, {"timings": timings(predicted)})


def texts(*text_of: str) -> list[Event]:
    return [Text(0, one) for one in text_of]


def step_by_step(strings: tuple[str, ...], events: list[Event]) -> list[list[Event]]:
    """Events emitted for each event, and at the end."""
    stops = StopStringFilter(strings)
    return [*(stops.feed([event]) for event in events), stops.close()]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


@table(
    ("strings", "pieces", "shown", "stop"),
    [
        (("five",), ["one, ", "five, ", "six"], "one, ", "five"),
        (("five",), ["one, fi", "ve, six"], "one, ", "five"),
        (("five",), ["one, f", "i", "v", "e"], "one, ", "five"),
        (("five",), ["five"], "", "five"),
        (("five",), ["one fi", "fi", "ve"], "one fi", "five"),
        (("aab",), ["aaa", "b"], "a", "aab"),
        (("six", "five"), ["five, six"], "", "five"),
        (("six", "five"), ["six, five"], "", "six"),
        (("end", "<|end|>"), ["a<|", "end", "|>"], "a", "<|end|>"),
        (("end", "<|end|>"), ["a<|", "end", "ed"], "a<|", "end"),
        (("end", "<|end|>"), ["a<|", "end"], "a<|", "end"),
        (("\n\n",), ["a\n", "b\n", "\nc"], "a\nb", "\n\n"),
        (("é漢",), ["é", "é", "漢"], "é", "é漢"),
    ],
)
def test_the_text_ends_before_the_first_stop_string(
    strings: tuple[str, ...], pieces: list[str], shown: str, stop: str
) -> None:
    events = [event for step in step_by_step(strings, [*texts(*pieces), LENGTH]) for event in step]
    assert (text_of(events), events[-1]) == (shown, stopped(stop))
    assert len([event for event in events if isinstance(event, Finish)]) == 1


def test_only_a_possible_start_of_a_stop_string_is_held() -> None:
    steps = step_by_step(("five",), texts("one ", "fi", "ne", ", f", "i", "n"))
    assert steps == [texts("one "), [], texts("fi", "ne"), [], [], texts(", f", "i", "n"), []]


@table(
    "event",
    [
        LENGTH,
        STOP,
        Reasoning(0, "hm"),
        Refusal(0, "no"),
        ToolCall(0, 0, "call_1", "get"),
        ToolArguments(0, 0, "{}"),
        Failure("gone"),
    ],
)
def test_held_text_is_emitted_before_other_events(event: Event) -> None:
    assert step_by_step(("five",), [*texts("a", "fi"), event]) == [texts("a"), [], [*texts("fi"), event], []]


def test_held_text_is_emitted_at_the_end() -> None:
    logprobs = Logprobs(0, {"content": [entry("x")]})
    assert step_by_step(("five",), [*texts("fi"), logprobs]) == [[], [], [*texts("fi"), logprobs]]


@pytest.mark.parametrize("event", [KeepAlive(), ChoiceStart(0)])
def test_keep_alives_are_not_held(event: Event) -> None:
    assert step_by_step(("five",), [*texts("fi"), event]) == [[], [event], texts("fi")]


def test_reasoning_and_arguments_are_not_searched() -> None:
    events: list[Event] = [Reasoning(0, "five"), ToolCall(0, 0, "call_1", "five"), ToolArguments(0, 0, '"five"')]
    assert StopStringFilter(("five",)).feed(events) == events


def test_a_stop_string_does_not_span_reasoning() -> None:
    events: list[Event] = [Text(0, "fi"), Reasoning(0, "hm"), Text(0, "ve"), LENGTH]
    assert StopStringFilter(("five",)).feed(events) == events


def test_events_after_a_stop_string_are_dropped() -> None:
    stops = StopStringFilter(("b",))
    assert stops.feed([*texts("abc", "d"), LENGTH, Usage(1, 2, 3, {})]) == [*texts("a"), stopped("b")]
    assert stops.has_matched
    assert stops.feed([KeepAlive(), Failure("x")]) == []
    assert stops.close() == []


def test_a_stop_string_within_a_partial_longer_one_ends_the_text() -> None:
    failure = Failure("gone")
    waiting = texts("a<|end")
    assert StopStringFilter(("end", "<|end|>")).feed([*waiting, failure]) == [*texts("a<|"), stopped("end"), failure]
    assert StopStringFilter(("end", "<|end|>")).feed([*waiting, Reasoning(0, "hm")]) == [*texts("a<|"), stopped("end")]


def test_tokens_are_counted_up_to_the_stop_string() -> None:
    events: list[Event] = [timed(1), Text(0, "a"), timed(2), Text(0, "b"), timed(3), Text(0, "c")]
    more = {"prompt_tokens_details": {"cached_tokens": 48}}
    assert StopStringFilter(("b",)).feed(events) == [Text(0, "a"), timed(2), stopped("b"), Usage(49, 2, 51, more)]


def test_timings_without_counts_give_no_usage() -> None:
    malformed = UnknownFields(0, FieldLocation.CHUNK, {"timings": {"predicted_n": 2}})
    assert StopStringFilter(("b",)).feed([malformed, Text(0, "b")]) == [malformed, stopped("b")]


def test_only_the_last_timings_are_sent() -> None:
    usage = Usage(49, 2, 51, {})
    events: list[Event] = [timed(1), Text(0, "a"), LENGTH, timed(2), usage]
    assert StopStringFilter(("b",)).feed(events) == [Text(0, "a"), LENGTH, timed(2), usage]
    assert StopStringFilter(("b",)).feed([Text(0, "a"), LENGTH, usage]) == [Text(0, "a"), LENGTH, usage]


def test_other_fields_stay_in_order() -> None:
    both = UnknownFields(0, FieldLocation.CHUNK, {"timings": timings(1), "x": 1})
    assert StopStringFilter(("b",)).feed([both, Text(0, "a")]) == [
        UnknownFields(0, FieldLocation.CHUNK, {"x": 1}),
        Text(0, "a"),
    ]
    field = UnknownFields(0, FieldLocation.CHOICE, {"x": 1})
    assert StopStringFilter(("b",)).feed([Text(0, "a"), field, Text(0, "a")]) == [Text(0, "a"), field, Text(0, "a")]


def test_the_number_of_held_events_is_limited() -> None:
    field = UnknownFields(0, FieldLocation.CHOICE, {"x": 1})
    stops = StopStringFilter(("b",))
    emitted_counts = [len(stops.feed([field])) for _ in range(100_000)]
    assert sum(emitted_counts) > 99_000


def logged(*tokens: str) -> list[Event]:
    """Texts with log probabilities, one per token."""
    return [event for token in tokens for event in (Logprobs(0, {"content": [entry(token)]}), Text(0, token))]


def test_logprobs_are_held_with_their_token() -> None:
    steps = step_by_step(("b c",), logged("a", " b", " c", " d"))
    assert steps == [[], logged("a"), [], [], [], [*logged(" "), stopped("b c")], [], [], []]


def test_logprobs_of_a_partial_character_stay_with_it() -> None:
    half = Logprobs(0, {"content": [entry("", bytes=[195])]})
    rest = Logprobs(0, {"content": [entry("é", bytes=[169])]})
    now = UnknownFields(0, FieldLocation.CHOICE, {}, in_own_chunk=True)
    events: list[Event] = [half, now, rest, Text(0, "é")]
    assert StopStringFilter(("é",)).feed([*logged("a"), *events]) == [*logged("a"), stopped("é")]
    assert StopStringFilter(("x",)).feed(events) == events


def test_logprobs_of_several_tokens_are_truncated_in_either_shape() -> None:
    chat = Logprobs(0, {"content": [entry("a"), entry("bé"), entry("c")], "refusal": None})
    cut = {"content": [entry("a"), entry("b")], "refusal": None}
    assert StopStringFilter(("éc",)).feed([chat, Text(0, "abéc")]) == [Logprobs(0, cut), Text(0, "ab"), stopped("éc")]
    lists = {
        "tokens": ["a", "bé", "c"],
        "token_logprobs": [-1, -2, -3],
        "top_logprobs": [None, {}, None],
        "text_offset": [7, 8, 10],
    }
    shown = {"tokens": ["a", "b"], "token_logprobs": [-1, -2], "top_logprobs": [None, {}], "text_offset": [7, 8]}
    assert StopStringFilter(("éc",)).feed([Logprobs(0, lists), Text(0, "abéc")]) == [
        Logprobs(0, shown),
        Text(0, "ab"),
        stopped("éc"),
    ]


# Properties for any text and any boundaries.

LETTERS = "ab<é"
strings = st.lists(st.text(LETTERS, min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)


def split_text(full_text: str, positions: list[int]) -> list[str]:
    """Split the text into non-empty pieces."""
    ends = sorted({0, len(full_text), *(position % (len(full_text) + 1) for position in positions)})
    return [full_text[start:end] for start, end in pairwise(ends)]


@given(strings, st.text(LETTERS, max_size=30), st.lists(st.integers(0, 30), max_size=30), st.booleans())
def test_the_answer_is_the_text_up_to_the_first_stop_string(
    strings: tuple[str, ...], full_text: str, positions: list[int], has_logprobs: bool
) -> None:
    pieces = split_text(full_text, positions)
    events = logged(*pieces) if has_logprobs else texts(*pieces)
    out = [event for step in step_by_step(strings, [*events, LENGTH]) for event in step]
    found = [position for stop in strings if (position := full_text.find(stop)) >= 0]
    shown = full_text[: min(found, default=len(full_text))]
    assert text_of(out) == shown
    stops = [stop for stop in strings if found and full_text.startswith(stop, min(found))]
    assert out[-1] in (list(map(stopped, stops)) or [LENGTH])
    tokens = [one["token"] for event in out if isinstance(event, Logprobs) for one in event.value["content"]]
    assert "".join(tokens) == (shown if has_logprobs else "")


@given(strings, st.text(LETTERS, max_size=30))
def test_no_more_text_is_held_than_necessary(strings: tuple[str, ...], full_text: str) -> None:
    stops = StopStringFilter(strings)
    shown = text_of([event for letter in full_text for event in stops.feed(texts(letter))])
    waits = full_text[len(shown) :]
    assert stops.has_matched or not waits or any(stop.startswith(waits) or stop in waits for stop in strings)


# In streams and in replies.

USED = {"stream_options": {"include_usage": True}, "stream": True}


def served(*pieces: str, usage: bool = True) -> bytes:
    """Stream of llama.cpp with timings on each chunk."""
    chunks = [delta_chunk({"content": one}) | {"timings": timings(number)} for number, one in enumerate(pieces, 1)]
    last = usage_chunk(count(49, len(pieces))) | {"timings": timings(len(pieces))}
    return stream(role(), *chunks, finish("length"), *([last] if usage else []))


def piped(
    data: bytes, size: int, strings: tuple[str, ...] = ("5, 6",), facts: bool = True
) -> tuple[bytes, StreamPipeline]:
    pipeline = StreamPipeline(
        CHAT,
        fallback=FALLBACK,
        facts=RequestFacts(include_usage=facts, is_usage_forced=True, choice_count=1, stop_strings=strings),
    )
    out = b""
    for piece in cuts(data, size):
        out += pipeline.feed(piece)
        if pipeline.part_state(0) is PartState.STOPPED:
            break
    return out + pipeline.close(), pipeline


def read(body: bytes) -> list[Json]:
    return [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]


def content(chunks: list[Json]) -> str:
    return "".join(one["delta"].get("content") or "" for each in chunks for one in each["choices"])


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_stream_that_ends_at_a_stop_string_is_complete(size: int) -> None:
    body, pipeline = piped(served("4", ", ", "5", ",", " ", "6", ", ", "7"), size)
    assert judge(Trace(body=body, endpoint="chat", request=USED)).findings == ()
    *_, last, usage = chunks = read(body)
    assert content(chunks) == "4, "
    assert last["choices"][0]["finish_reason"] == "stop"
    assert [one for one in chunks if "timings" in one] == [last]
    assert usage["usage"] == count(49, 6, prompt_tokens_details={"cached_tokens": 48})
    assert body.endswith(b"data: [DONE]\n\n")
    assert pipeline.repair_log.counts() == {}
    assert pipeline.failure is None


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_stream_without_a_stop_string_is_unchanged(size: int) -> None:
    body, pipeline = piped(served("4", ", ", "5"), size)
    assert judge(Trace(body=body, endpoint="chat", request=USED)).findings == ()
    *_, last, usage = chunks = read(body)
    assert content(chunks) == "4, 5"
    assert [one for one in chunks if "timings" in one] == [last]
    assert usage["usage"] == count(49, 3)
    assert pipeline.part_state(0) is not PartState.STOPPED
    assert pipeline.fast_path.rewrite is None


def test_a_truncated_stream_fails_after_the_held_text() -> None:
    body, pipeline = piped(stream(role(), delta_chunk({"content": "4 5"}), end=b""), 9)
    assert content([one for one in read(body) if "choices" in one]) == "4 5"
    assert pipeline.failure is not None


def test_a_stop_string_in_an_unterminated_last_frame_counts() -> None:
    full_text = stream(role(), delta_chunk({"content": "5, 6"}), end=b"")
    body, pipeline = piped(full_text.removesuffix(b"\n\n"), 9)
    assert pipeline.failure is None
    assert read(body)[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_failure_from_outside_follows_the_held_text() -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(choice_count=1, stop_strings=("5, 6",)))
    body = pipeline.feed(stream(role(), delta_chunk({"content": "4 5"}), end=b"")) + pipeline.fail(Failure("gone"))
    assert content([one for one in read(body) if "choices" in one]) == "4 5"
    assert b'"gone"' in body


def test_a_non_streaming_reply_ends_at_a_stop_string() -> None:
    message = {"role": "assistant", "content": "4, 5, 6", "refusal": None}
    reply = {**chunk(), "object": "chat.completion"}
    reply["choices"] = [{"index": 0, "message": message, "finish_reason": "length"}]
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(choice_count=1, stop_strings=("5",)))
    buffered.feed_reply(json.dumps(reply).encode())
    buffered.close()
    choice = json.loads(buffered.body())["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("4, ", "stop")


def test_each_part_is_searched_separately_and_echoed_prompts_are_not() -> None:
    facts = RequestFacts(include_usage=True, is_usage_forced=True, choice_count=2, stop_strings=("b",))
    buffered = BufferedPipeline(COMPLETIONS, fallback=FALLBACKS[COMPLETIONS], facts=facts, fan_out=FanOut(2, 1, ("b",)))
    for part, content_chunks in enumerate(["abc", "acb"]):
        for number, one in enumerate(content_chunks, 1):
            if buffered.part_state(part) is not PartState.STOPPED:
                buffered.feed(stream(text(one) | {"timings": timings(number)}, end=b""), part)
        buffered.close(part)
    reply = json.loads(buffered.body())
    assert [one["text"] for one in reply["choices"]] == ["ba", "bac"]
    assert [one["finish_reason"] for one in reply["choices"]] == ["stop", "stop"]
    assert reply["usage"] == count(49, 5, prompt_tokens_details={"cached_tokens": 48})
