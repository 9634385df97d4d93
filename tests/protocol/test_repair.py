"""Repair of event sequences."""

import pytest

from tests.protocol import build
from tests.protocol.build import CHAT, COMPLETIONS, RepairedEvents, numbered
from tests.table import table
from welldone.core.envelope import Endpoint, Envelope
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
from welldone.core.repair import EventRepairer
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import RepairOptions, RequestFacts
from welldone.core.tool_calls import CALLS_LIMIT
from welldone.stream.pipeline import StreamPipeline

OPEN, STOP = ChoiceStart(0), Finish(0, "stop")
HELLO = Text(0, "Hello")
GET, NO_ARGUMENTS = ToolCall(0, 0, "a", "get"), ToolArguments(0, 0, "{}")
USAGE = Usage(5, 3, 8, {})
CUT = Failure("the server's stream ended before the answer was complete", "upstream_error", None, "incomplete_stream")
UNFINISHED = Failure("the server's answer ended without a finish_reason", "upstream_error", None, "incomplete_stream")
EMPTY = Failure("the server sent no answer", "upstream_error", None, "incomplete_stream")
BOOM = Failure("boom")


@table(
    "events",
    [
        [OPEN, STOP],
        [OPEN, HELLO, Text(0, " world"), STOP],
        [OPEN, Reasoning(0, "why"), HELLO, Finish(0, "length"), USAGE],
        [OPEN, Refusal(0, "no"), Finish(0, "content_filter")],
        [OPEN, HELLO, GET, ToolArguments(0, 0, '{"x":1}'), Finish(0, "tool_calls")],
        [OPEN, Logprobs(0, {"content": []}), HELLO, STOP],
        [
            UnknownFields(0, FieldLocation.DELTA, {"x": "a"}),
            OPEN,
            UnknownFields(0, FieldLocation.CHOICE, {"y": 1}),
            HELLO,
            STOP,
        ],
        [
            OPEN,
            UnknownFields(0, FieldLocation.CHUNK, {"z": 1}),
            HELLO,
            UnknownFields(0, FieldLocation.DELTA, {"x": "a"}, in_own_chunk=True),
            STOP,
        ],
        [OPEN, ChoiceStart(1), Text(1, "b"), Text(0, "a"), STOP, Finish(1, "stop")],
        [OPEN, KeepAlive(), HELLO, KeepAlive(is_chunk=True), STOP],
        [OPEN, HELLO, BOOM],
        [BOOM],
        # repetitive text, and tags
        [OPEN, HELLO, Text(0, "Hello you"), STOP],
        [OPEN, *(Text(0, "0" * count) for count in (4, 8, 12, 16, 20)), STOP],
        [OPEN, Reasoning(0, "a"), Text(0, "<think>b</think>c"), STOP],
        [OPEN, Text(0, "<think>b</think>c"), STOP],
    ],
)
def test_a_legal_sequence_stays_unchanged(events: list[Event]) -> None:
    repaired = RepairedEvents(events)
    assert repaired.events == events
    assert repaired.rules == []


@table(
    ("events", "legal", "recorded"),
    [
        ([HELLO, STOP], [OPEN, HELLO, STOP], ["delta-role-first"]),
        ([STOP], [OPEN, STOP], ["delta-role-first"]),
        ([OPEN, HELLO, OPEN, STOP], [OPEN, HELLO, STOP], ["delta-role-once"]),
        ([OPEN, STOP, HELLO], [OPEN, HELLO, STOP], []),
        ([OPEN, STOP, STOP], [OPEN, STOP], ["fin-exactly-once"]),
        ([OPEN, Finish(0, "length"), STOP], [OPEN, Finish(0, "length")], ["fin-exactly-once"]),
        ([OPEN, HELLO], [OPEN, HELLO, STOP], ["err-not-silent", "fin-always-sent"]),
        ([USAGE, OPEN, STOP], [OPEN, STOP, USAGE], []),
        ([OPEN, Usage(0, 0, 0, {}), STOP, USAGE], [OPEN, STOP, USAGE], []),
        ([OPEN, HELLO, BOOM, HELLO, STOP], [OPEN, HELLO, BOOM], []),
        ([], [EMPTY], ["err-empty-stream"]),
        ([USAGE], [EMPTY], ["err-empty-stream"]),
        ([KeepAlive()], [KeepAlive(), EMPTY], ["err-empty-stream"]),
        # calls
        ([OPEN, GET, NO_ARGUMENTS, STOP], [OPEN, GET, NO_ARGUMENTS, Finish(0, "tool_calls")], ["fin-tool-calls"]),
        (
            [OPEN, GET, NO_ARGUMENTS, STOP, Finish(0, "tool_calls")],
            [OPEN, GET, NO_ARGUMENTS, Finish(0, "tool_calls")],
            ["fin-exactly-once"],
        ),
        (
            [OPEN, GET, NO_ARGUMENTS],
            [OPEN, GET, NO_ARGUMENTS, Finish(0, "tool_calls")],
            ["err-not-silent", "fin-always-sent", "tool-finish-follows"],
        ),
        (
            [OPEN, GET, ToolArguments(0, 0, "{"), STOP],
            [OPEN, GET, ToolArguments(0, 0, "{"), STOP],
            ["tool-args-json-object"],
        ),
        (
            [OPEN, GET, ToolArguments(0, 0, "{"), Finish(0, "length")],
            [OPEN, GET, ToolArguments(0, 0, "{"), Finish(0, "length")],
            [],
        ),
        (
            [OPEN, GET, ToolArguments(0, 0, "{")],
            [OPEN, GET, ToolArguments(0, 0, "{"), CUT],
            ["err-not-silent", "fin-always-sent", "tool-finish-follows"],
        ),
        # unknown fields
        (
            [UnknownFields(0, FieldLocation.CHOICE, {"x": 7}, in_own_chunk=True), STOP],
            [OPEN, UnknownFields(0, FieldLocation.CHOICE, {"x": 7}, in_own_chunk=True), STOP],
            ["delta-role-first"],
        ),
        # several choices
        (
            [Text(1, "b"), OPEN, STOP, Finish(1, "stop")],
            [OPEN, ChoiceStart(1), Text(1, "b"), STOP, Finish(1, "stop")],
            ["delta-role-first", "n-first-order"],
        ),
        (
            [ChoiceStart(1), Finish(1, "stop"), OPEN, HELLO, STOP],
            [OPEN, ChoiceStart(1), HELLO, STOP, Finish(1, "stop")],
            ["n-first-order"],
        ),
        (
            [OPEN, ChoiceStart(1), HELLO, Finish(1, "stop")],
            [OPEN, ChoiceStart(1), HELLO, STOP, Finish(1, "stop")],
            ["err-not-silent", "fin-always-sent"],
        ),
    ],
)
def test_an_illegal_sequence_is_repaired_and_recorded(
    events: list[Event], legal: list[Event], recorded: list[str]
) -> None:
    repaired = RepairedEvents(events)
    assert repaired.events == legal
    assert repaired.rules == recorded


@table(
    ("events", "legal", "recorded"),
    [
        ([OPEN, HELLO, STOP], [OPEN, HELLO, STOP], ["end-done-sent"]),
        ([OPEN, HELLO], [OPEN, HELLO, UNFINISHED], ["end-no-early-eof", "err-not-silent"]),
        (
            [OPEN, GET, NO_ARGUMENTS],
            [OPEN, GET, NO_ARGUMENTS, UNFINISHED],
            ["end-no-early-eof", "err-not-silent", "tool-finish-follows"],
        ),
        (
            [OPEN, ChoiceStart(1), STOP],
            [OPEN, ChoiceStart(1), STOP, CUT],
            ["end-no-early-eof", "err-not-silent"],
        ),
        ([], [EMPTY], ["err-empty-stream"]),
        ([OPEN, BOOM], [OPEN, BOOM], []),
    ],
)
def test_a_stream_without_done_is_complete_only_if_each_choice_is(
    events: list[Event], legal: list[Event], recorded: list[str]
) -> None:
    repaired = RepairedEvents(events, is_done=False)
    assert repaired.events == legal
    assert repaired.rules == recorded


def test_a_missing_done_of_a_completion_has_its_own_rule() -> None:
    assert RepairedEvents([HELLO, STOP], COMPLETIONS, is_done=False).rules == ["cmpl-done", "end-done-sent"]


def test_text_after_reasoning_passes_unchanged() -> None:
    emitted = [Text(0, text) for text in ("a", "b", "c")]
    assert RepairedEvents([OPEN, Reasoning(0, "r"), *emitted, STOP]).events == [OPEN, Reasoning(0, "r"), *emitted, STOP]


def test_a_finished_choice_is_finished_before_a_failure() -> None:
    assert RepairedEvents([OPEN, ChoiceStart(1), HELLO, STOP, BOOM]).events == [OPEN, ChoiceStart(1), HELLO, STOP, BOOM]


def test_a_truncated_call_gets_no_placeholder_arguments() -> None:
    assert RepairedEvents([OPEN, GET, BOOM]).events == [OPEN, GET, BOOM]


def test_a_call_of_a_named_tool_may_finish_with_stop() -> None:
    repaired = RepairedEvents([OPEN, GET, NO_ARGUMENTS, STOP], facts=RequestFacts(has_named_tool=True))
    assert repaired.events == [OPEN, GET, NO_ARGUMENTS, STOP]
    assert repaired.rules == []


def test_usage_is_stored_and_sent_unless_it_was_not_requested() -> None:
    for facts, sent in (
        (RequestFacts(), [USAGE]),
        (RequestFacts(include_usage=True), [USAGE]),
        (RequestFacts(include_usage=False), []),
    ):
        repaired = RepairedEvents([OPEN, STOP, USAGE], facts=facts)
        assert repaired.events == [OPEN, STOP, *sent]
        assert repaired.repair.usage == USAGE


def test_the_only_choice_has_the_index_0() -> None:
    events: list[Event] = [ChoiceStart(3), Text(3, "a"), Text(3, "b"), Text(3, "c"), Finish(3, "stop")]
    legal: list[Event] = [OPEN, Text(0, "a"), Text(0, "b"), Text(0, "c"), STOP]
    chat = RepairedEvents(events, facts=RequestFacts(choice_count=1))
    assert (chat.events, chat.rules) == (legal, ["n-index-int"])
    completions = RepairedEvents(events, COMPLETIONS, facts=RequestFacts(choice_count=1))
    assert (completions.events, completions.rules) == (legal, ["cmpl-index"])


def test_pending_fields_of_the_only_choice_have_its_index() -> None:
    pending: list[Event] = [
        Logprobs(3, {"content": []}),
        UnknownFields(3, FieldLocation.CHOICE, {"x": 1}),
        UnknownFields(3, FieldLocation.DELTA, {"y": "a"}),
    ]
    emitted = RepairedEvents(
        [ChoiceStart(3), *pending, Text(3, "a"), Finish(3, "stop")], facts=RequestFacts(choice_count=1)
    ).events
    assert emitted[1:4] == [
        Logprobs(0, {"content": []}),
        UnknownFields(0, FieldLocation.CHOICE, {"x": 1}),
        UnknownFields(0, FieldLocation.DELTA, {"y": "a"}),
    ]


@pytest.mark.parametrize("first", [0, 1])
def test_a_second_choice_is_dropped_if_one_was_requested(first: int) -> None:
    """The first received choice is kept. The other one is dropped and need not finish."""
    other = 1 - first
    emitted: list[Event] = [ToolCall(first, 0, "a", "get"), ToolArguments(first, 0, '{"x":')]
    mixed: list[Event] = [ChoiceStart(other), ToolCall(other, 0, "b", "put"), ToolArguments(other, 0, '{"y":2}')]
    rest: list[Event] = [ToolArguments(first, 0, "1}"), Finish(first, "tool_calls")]
    repaired = RepairedEvents([ChoiceStart(first), *emitted, *mixed, *rest], facts=RequestFacts(choice_count=1))
    arguments = [ToolArguments(0, 0, '{"x":'), ToolArguments(0, 0, "1}")]
    assert repaired.events == [OPEN, ToolCall(0, 0, "a", "get"), *arguments, Finish(0, "tool_calls")]
    assert repaired.rules == ["n-index-int"]


def test_choices_beyond_the_requested_number_are_dropped() -> None:
    events: list[Event] = [OPEN, ChoiceStart(1), STOP, ChoiceStart(2), Finish(1, "stop"), Finish(2, "stop")]
    repaired = RepairedEvents(events, facts=RequestFacts(choice_count=2))
    assert repaired.events == [OPEN, ChoiceStart(1), STOP, Finish(1, "stop")]
    assert repaired.rules == ["n-index-int"]


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_too_few_choices_are_a_failure(endpoint: Endpoint) -> None:
    repaired = RepairedEvents([OPEN, HELLO, STOP], endpoint, facts=RequestFacts(choice_count=2))
    assert repaired.events[:3] == [OPEN, HELLO, STOP]
    assert repaired.repair.failure == Failure(
        "the server sent 1 of 2 requested choices", "upstream_error", None, "incomplete_stream"
    )
    assert repaired.events[3:] == [repaired.repair.failure]
    assert repaired.rules == ["n-refuse-if-unsupported"]


def test_too_few_choices_are_sent_where_they_cannot_be_requested_again() -> None:
    pipeline = StreamPipeline(CHAT, fallback=Envelope("chatcmpl-1", 1, "m"), facts=RequestFacts(choice_count=2))
    pipeline.configure(0, RepairOptions(accept_fewer_choices=True))
    sent = pipeline.feed(build.stream(build.role(), *build.content_chunks("Hello"), build.finish())) + pipeline.close()
    assert b"error" not in sent
    assert [entry.rule for entry in pipeline.repair_log.entries()] == ["n-refuse-if-unsupported"]


def test_other_content_of_a_completion_is_dropped() -> None:
    events: list[Event] = [Reasoning(0, "r"), Refusal(0, "r"), GET, NO_ARGUMENTS, HELLO, STOP]
    repaired = RepairedEvents(events, COMPLETIONS)
    assert repaired.events == [OPEN, HELLO, STOP]
    assert repaired.rules == []


def test_the_choices_of_a_completion_start_in_any_order() -> None:
    repaired = RepairedEvents([Text(2, "c"), Text(0, "a"), STOP, Finish(2, "stop")], COMPLETIONS)
    assert repaired.events == [ChoiceStart(2), Text(2, "c"), OPEN, Text(0, "a"), STOP, Finish(2, "stop")]
    assert repaired.rules == []


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_chunk_fields_without_content_open_a_choice(endpoint: Endpoint) -> None:
    extra = UnknownFields(0, FieldLocation.CHUNK, {"x": 1}, in_own_chunk=True)
    assert RepairedEvents([extra, OPEN, STOP], endpoint).events == [OPEN, extra, STOP]


def test_too_many_tool_calls_are_a_failure() -> None:
    calls = [ToolCall(0, number, f"id{number}", "get") for number in range(CALLS_LIMIT + 5)]
    events = RepairedEvents([OPEN, *calls]).events
    failure = Failure(
        "the server sent more than 1024 tool calls in one choice", "upstream_error", None, "bad_upstream_stream"
    )
    assert events == [OPEN, failure]


def test_a_tool_call_without_a_name_is_a_failure() -> None:
    events = RepairedEvents([OPEN, NO_ARGUMENTS, Finish(0, "tool_calls")]).events
    failure = Failure("the server sent a tool call without a name", "upstream_error", None, "incomplete_stream")
    assert events == [OPEN, failure]


def test_call_ids_may_repeat_in_another_choice() -> None:
    events: list[Event] = [
        OPEN,
        ChoiceStart(1),
        GET,
        ToolArguments(0, 0, '{"x":1}'),
        ToolCall(1, 0, "a", "get"),
        ToolArguments(1, 0, '{"x":1}'),
        Finish(0, "tool_calls"),
        Finish(1, "tool_calls"),
    ]
    repaired = RepairedEvents(events)
    assert repaired.events == events
    assert repaired.rules == []


QUIET = KeepAlive(is_chunk=True)
COMMENTS = [KeepAlive()] * 40


def test_after_some_comments_one_keep_alive_is_a_chunk() -> None:
    right: list[Event] = [OPEN, *COMMENTS, HELLO, *COMMENTS, STOP]
    assert (RepairedEvents(right).events, RepairedEvents(right).rules) == (right, [])
    repaired = RepairedEvents([OPEN, *[KeepAlive()] * 90, HELLO, KeepAlive(), STOP])
    assert repaired.events == [OPEN, *COMMENTS, QUIET, *COMMENTS, QUIET, *[KeepAlive()] * 8, HELLO, KeepAlive(), STOP]
    assert repaired.rules == ["sse-keepalive-run-limit"]


def test_before_the_first_chunk_a_limited_number_of_comments_is_sent() -> None:
    repaired = RepairedEvents([*[KeepAlive()] * 90, OPEN, HELLO, STOP])
    assert repaired.events == [*COMMENTS, OPEN, HELLO, STOP]
    assert repaired.rules == ["sse-keepalive-run-limit"]
    assert RepairedEvents([QUIET, OPEN, HELLO, STOP]).events == [KeepAlive(), OPEN, HELLO, STOP]


def test_too_many_empty_chunks_become_comments() -> None:
    right: list[Event] = [OPEN, *[QUIET] * 16, HELLO, *[QUIET] * 16, STOP]
    assert (RepairedEvents(right).events, RepairedEvents(right).rules) == (right, [])
    repaired = RepairedEvents([OPEN, *[QUIET] * 100, STOP])
    assert repaired.events == [OPEN, *[QUIET] * 16, *COMMENTS, STOP]
    assert repaired.rules == ["delta-no-noop-flood"]


@pytest.mark.no_cover
@table("silence", [[KeepAlive()] * 100_000, [KeepAlive(), QUIET] * 500, [QUIET, KeepAlive()] * 20, [QUIET] * 17])
def test_keep_alives_are_limited_and_the_result_needs_no_repair(silence: list[Event]) -> None:
    events = RepairedEvents([OPEN, *silence, STOP]).events
    assert len(events) <= 2 + 16 * (40 + 1) + 40
    assert RepairedEvents(events).events == events


@pytest.mark.no_cover
def test_a_hundred_thousand_comments_are_limited() -> None:
    repaired = RepairedEvents([OPEN, *[KeepAlive()] * 100_000, STOP])
    assert repaired.events == [OPEN, *[*COMMENTS, QUIET] * 16, *COMMENTS, STOP]


def test_text_resets_the_keep_alive_limits() -> None:
    repair = EventRepairer(CHAT, facts=RequestFacts(), repair_log=RepairLog(), new_call_id=numbered("x"))
    repair.feed([OPEN, Text(0, "a"), Text(0, "b")])
    for _ in range(50):
        assert repair.feed([KeepAlive(), Text(0, "c")]) == [KeepAlive(), Text(0, "c")]


def test_nothing_follows_a_failure() -> None:
    repair = EventRepairer(CHAT, facts=RequestFacts(), repair_log=RepairLog(), new_call_id=numbered("x"))
    assert repair.feed([OPEN, BOOM])[-1] == BOOM
    assert repair.feed([HELLO, USAGE, KeepAlive()]) == []
    assert repair.close(is_done=True) == []
