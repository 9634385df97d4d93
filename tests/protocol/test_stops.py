"""Stop strings: where the text ends, what waits, and what comes after all."""

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
    counted,
    cuts,
    entry,
    finish,
    role,
    say,
    stream,
    text,
)
from tests.table import table
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
from welldone.protocol.merger import FanOut
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline
from welldone.protocol.request_facts import RequestFacts
from welldone.protocol.text_filters import StopStringFilter
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

STOP = Finish(0, "stop")


def stopped(string: str) -> Finish:
    return Finish(0, "stop", string)


LENGTH = Finish(0, "length")


def timings(predicted: int, prompt: int = 1, cached: int = 48) -> Json:
    return {"prompt_n": prompt, "cache_n": cached, "predicted_n": predicted, "predicted_ms": 1.5}


def timed(predicted: int) -> UnknownFields:
    return UnknownFields(0, FieldLocation.CHUNK, {"timings": timings(predicted)})


def texts(*said: str) -> list[Event]:
    return [Text(0, one) for one in said]


def step_by_step(strings: tuple[str, ...], events: list[Event]) -> list[list[Event]]:
    """What each event lets out, and then the end."""
    stops = StopStringFilter(strings)
    return [*(stops.feed([event]) for event in events), stops.close()]


def said(events: list[Event]) -> str:
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
    assert (said(events), events[-1]) == (shown, stopped(stop))
    assert len([event for event in events if isinstance(event, Finish)]) == 1


def test_what_may_become_a_stop_string_waits_and_the_rest_does_not() -> None:
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
def test_what_waited_is_said_before_anything_else(event: Event) -> None:
    assert step_by_step(("five",), [*texts("a", "fi"), event]) == [texts("a"), [], [*texts("fi"), event], []]


def test_what_waited_is_said_at_the_end() -> None:
    logprobs = Logprobs(0, {"content": [entry("x")]})
    assert step_by_step(("five",), [*texts("fi"), logprobs]) == [[], [], [*texts("fi"), logprobs]]


@pytest.mark.parametrize("event", [KeepAlive(), ChoiceStart(0)])
def test_signs_of_life_do_not_wait(event: Event) -> None:
    assert step_by_step(("five",), [*texts("fi"), event]) == [[], [event], texts("fi")]


def test_thoughts_and_arguments_are_not_looked_at() -> None:
    events: list[Event] = [Reasoning(0, "five"), ToolCall(0, 0, "call_1", "five"), ToolArguments(0, 0, '"five"')]
    assert StopStringFilter(("five",)).feed(events) == events


def test_a_stop_string_does_not_go_over_thoughts() -> None:
    events: list[Event] = [Text(0, "fi"), Reasoning(0, "hm"), Text(0, "ve"), LENGTH]
    assert StopStringFilter(("five",)).feed(events) == events


def test_after_a_stop_string_nothing_is_heard() -> None:
    stops = StopStringFilter(("b",))
    assert stops.feed([*texts("abc", "d"), LENGTH, Usage(1, 2, 3, {})]) == [*texts("a"), stopped("b")]
    assert stops.has_matched
    assert stops.feed([KeepAlive(), Failure("x")]) == []
    assert stops.close() == []


def test_a_stop_string_that_hid_behind_a_longer_one_still_ends_the_text() -> None:
    failure = Failure("gone")
    waiting = texts("a<|end")
    assert StopStringFilter(("end", "<|end|>")).feed([*waiting, failure]) == [*texts("a<|"), stopped("end"), failure]
    assert StopStringFilter(("end", "<|end|>")).feed([*waiting, Reasoning(0, "hm")]) == [*texts("a<|"), stopped("end")]


def test_tokens_are_counted_up_to_the_stop_string() -> None:
    events: list[Event] = [timed(1), Text(0, "a"), timed(2), Text(0, "b"), timed(3), Text(0, "c")]
    more = {"prompt_tokens_details": {"cached_tokens": 48}}
    assert StopStringFilter(("b",)).feed(events) == [Text(0, "a"), timed(2), stopped("b"), Usage(49, 2, 51, more)]


def test_timings_that_tell_nothing_make_no_usage() -> None:
    odd = UnknownFields(0, FieldLocation.CHUNK, {"timings": {"predicted_n": 2}})
    assert StopStringFilter(("b",)).feed([odd, Text(0, "b")]) == [odd, stopped("b")]


def test_of_timings_only_the_last_reach_the_client() -> None:
    usage = Usage(49, 2, 51, {})
    events: list[Event] = [timed(1), Text(0, "a"), LENGTH, timed(2), usage]
    assert StopStringFilter(("b",)).feed(events) == [Text(0, "a"), LENGTH, timed(2), usage]
    assert StopStringFilter(("b",)).feed([Text(0, "a"), LENGTH, usage]) == [Text(0, "a"), LENGTH, usage]


def test_other_fields_stay_where_they_are() -> None:
    both = UnknownFields(0, FieldLocation.CHUNK, {"timings": timings(1), "x": 1})
    assert StopStringFilter(("b",)).feed([both, Text(0, "a")]) == [
        UnknownFields(0, FieldLocation.CHUNK, {"x": 1}),
        Text(0, "a"),
    ]
    field = UnknownFields(0, FieldLocation.CHOICE, {"x": 1})
    assert StopStringFilter(("b",)).feed([Text(0, "a"), field, Text(0, "a")]) == [Text(0, "a"), field, Text(0, "a")]


def test_riders_without_end_do_not_wait_for_ever() -> None:
    field = UnknownFields(0, FieldLocation.CHOICE, {"x": 1})
    stops = StopStringFilter(("b",))
    heard = [len(stops.feed([field])) for _ in range(100_000)]
    assert sum(heard) > 99_000


def logged(*tokens: str) -> list[Event]:
    """Pieces of text with the log probabilities of their tokens, a piece for each token."""
    return [event for token in tokens for event in (Logprobs(0, {"content": [entry(token)]}), Text(0, token))]


def test_log_probabilities_wait_with_their_token_and_go_with_it() -> None:
    steps = step_by_step(("b c",), logged("a", " b", " c", " d"))
    assert steps == [[], logged("a"), [], [], [], [*logged(" "), stopped("b c")], [], [], []]


def test_log_probabilities_of_half_a_character_go_with_it() -> None:
    half = Logprobs(0, {"content": [entry("", bytes=[195])]})
    rest = Logprobs(0, {"content": [entry("é", bytes=[169])]})
    now = UnknownFields(0, FieldLocation.CHOICE, {}, in_own_chunk=True)
    events: list[Event] = [half, now, rest, Text(0, "é")]
    assert StopStringFilter(("é",)).feed([*logged("a"), *events]) == [*logged("a"), stopped("é")]
    assert StopStringFilter(("x",)).feed(events) == events


def test_log_probabilities_of_several_tokens_are_cut_in_either_shape() -> None:
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


# Whatever the text and wherever it is cut.

LETTERS = "ab<é"
strings = st.lists(st.text(LETTERS, min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)


def parted(whole: str, places: list[int]) -> list[str]:
    """The text in pieces, none of them empty."""
    ends = sorted({0, len(whole), *(place % (len(whole) + 1) for place in places)})
    return [whole[start:end] for start, end in pairwise(ends)]


@given(strings, st.text(LETTERS, max_size=30), st.lists(st.integers(0, 30), max_size=30), st.booleans())
def test_the_answer_is_the_text_up_to_the_first_stop_string(
    strings: tuple[str, ...], whole: str, places: list[int], has_logprobs: bool
) -> None:
    pieces = parted(whole, places)
    events = logged(*pieces) if has_logprobs else texts(*pieces)
    out = [event for step in step_by_step(strings, [*events, LENGTH]) for event in step]
    found = [place for stop in strings if (place := whole.find(stop)) >= 0]
    shown = whole[: min(found, default=len(whole))]
    assert said(out) == shown
    stops = [stop for stop in strings if found and whole.startswith(stop, min(found))]
    assert out[-1] in (list(map(stopped, stops)) or [LENGTH])
    tokens = [one["token"] for event in out if isinstance(event, Logprobs) for one in event.value["content"]]
    assert "".join(tokens) == (shown if has_logprobs else "")


@given(strings, st.text(LETTERS, max_size=30))
def test_no_more_waits_than_must(strings: tuple[str, ...], whole: str) -> None:
    stops = StopStringFilter(strings)
    shown = said([event for letter in whole for event in stops.feed(texts(letter))])
    waits = whole[len(shown) :]
    assert stops.has_matched or not waits or any(stop.startswith(waits) or stop in waits for stop in strings)


# In a stream, and in a whole reply.

USED = {"stream_options": {"include_usage": True}, "stream": True}


def served(*pieces: str, usage: bool = True) -> bytes:
    """A stream as llama.cpp sends it where it is asked to count with each token."""
    chunks = [say({"content": one}) | {"timings": timings(number)} for number, one in enumerate(pieces, 1)]
    last = counted(count(49, len(pieces))) | {"timings": timings(len(pieces))}
    return stream(role(), *chunks, finish("length"), *([last] if usage else []))


def piped(
    data: bytes, size: int, strings: tuple[str, ...] = ("5, 6",), asked: bool = True
) -> tuple[bytes, StreamPipeline]:
    pipe = StreamPipeline(
        CHAT,
        fallback=FALLBACK,
        facts=RequestFacts(include_usage=asked, is_usage_forced=True, choice_count=1, stop_strings=strings),
    )
    out = b""
    for piece in cuts(data, size):
        out += pipe.feed(piece)
        if pipe.is_part_stopped(0):
            break
    return out + pipe.close(), pipe


def read(body: bytes) -> list[Json]:
    return [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]


def content(chunks: list[Json]) -> str:
    return "".join(one["delta"].get("content") or "" for each in chunks for one in each["choices"])


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_stream_that_is_cut_is_a_whole_answer(size: int) -> None:
    body, pipe = piped(served("4", ", ", "5", ",", " ", "6", ", ", "7"), size)
    assert judge(Trace(body=body, endpoint="chat", request=USED)).findings == ()
    *_, last, usage = chunks = read(body)
    assert content(chunks) == "4, "
    assert last["choices"][0]["finish_reason"] == "stop"
    assert [one for one in chunks if "timings" in one] == [last]
    assert usage["usage"] == count(49, 6, prompt_tokens_details={"cached_tokens": 48})
    assert body.endswith(b"data: [DONE]\n\n")
    assert pipe.repair_log.counts() == {}
    assert pipe.failure is None


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_stream_that_is_not_cut_is_what_it_was(size: int) -> None:
    body, pipe = piped(served("4", ", ", "5"), size)
    assert judge(Trace(body=body, endpoint="chat", request=USED)).findings == ()
    *_, last, usage = chunks = read(body)
    assert content(chunks) == "4, 5"
    assert [one for one in chunks if "timings" in one] == [last]
    assert usage["usage"] == count(49, 3)
    assert not pipe.is_part_stopped(0)
    assert pipe.try_fast_path is None


def test_a_stream_without_an_end_fails_after_what_was_held() -> None:
    body, pipe = piped(stream(role(), say({"content": "4 5"}), end=b""), 9)
    assert content([one for one in read(body) if "choices" in one]) == "4 5"
    assert pipe.failure is not None


def test_a_stop_string_in_a_last_frame_without_its_end_counts() -> None:
    whole = stream(role(), say({"content": "5, 6"}), end=b"")
    body, pipe = piped(whole.removesuffix(b"\n\n"), 9)
    assert pipe.failure is None
    assert read(body)[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_failure_of_ours_comes_after_what_was_held() -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(choice_count=1, stop_strings=("5, 6",)))
    body = pipe.feed(stream(role(), say({"content": "4 5"}), end=b"")) + pipe.fail(Failure("gone"))
    assert content([one for one in read(body) if "choices" in one]) == "4 5"
    assert b'"gone"' in body


def test_a_reply_that_is_not_streamed_is_cut_too() -> None:
    message = {"role": "assistant", "content": "4, 5, 6", "refusal": None}
    reply = {**chunk(), "object": "chat.completion"}
    reply["choices"] = [{"index": 0, "message": message, "finish_reason": "length"}]
    fold = BufferedPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(choice_count=1, stop_strings=("5",)))
    fold.feed_reply(json.dumps(reply).encode())
    fold.close()
    choice = json.loads(fold.body())["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("4, ", "stop")


def test_each_part_has_its_own_stop_and_a_prompt_that_is_repeated_is_not_searched() -> None:
    asked = RequestFacts(include_usage=True, is_usage_forced=True, choice_count=2, stop_strings=("b",))
    fold = BufferedPipeline(COMPLETIONS, fallback=FALLBACKS[COMPLETIONS], facts=asked, fan_out=FanOut(2, 1, ("b",)))
    for part, words in enumerate(["abc", "acb"]):
        for number, one in enumerate(words, 1):
            if not fold.is_part_stopped(part):
                fold.feed(stream(text(one) | {"timings": timings(number)}, end=b""), part)
        fold.close(part)
    reply = json.loads(fold.body())
    assert [one["text"] for one in reply["choices"]] == ["ba", "bac"]
    assert [one["finish_reason"] for one in reply["choices"]] == ["stop", "stop"]
    assert reply["usage"] == count(49, 5, prompt_tokens_details={"cached_tokens": 48})
