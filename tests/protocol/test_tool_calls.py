"""Assembler of tool calls: assignment of pieces to calls, and when events are emitted."""

from typing import TypeAlias

import pytest

from tests.protocol.build import numbered, rules
from tests.table import table
from welldone.core.events import Event, Failure, Json, ToolArguments, ToolCall
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import RequestFacts
from welldone.core.tool_calls import CALLS_LIMIT, HeldBytesBudget, JsonEndDetector, ToolCallAssembler

Piece: TypeAlias = ToolCall | ToolArguments


def call_start(number: int, id: str = "", name: str = "", extra: Json | None = None) -> ToolCall:
    return ToolCall(0, number, id, name, extra or {})


def call_piece(number: int, text: str, extra: Json | None = None) -> ToolArguments:
    return ToolArguments(0, number, text, extra or {})


class Assembled:
    """Events of pieces: `first` while they arrive, `rest` at the end."""

    def __init__(self, *pieces: Piece, facts: RequestFacts | None = None, is_cut: bool = False) -> None:
        repair_log = RepairLog()
        self.calls = ToolCallAssembler(0, repair_log, numbered("new"), HeldBytesBudget(), facts or RequestFacts())
        self.first: list[Event] = []
        for piece in pieces:
            if isinstance(piece, ToolCall):
                self.calls.start_call(piece, self.first)
            else:
                self.calls.add_arguments(piece, self.first)
        self.rest: list[Event] = []
        self.calls.close(self.rest, is_cut=is_cut)
        self.all = self.first + self.rest
        self.rules = rules(repair_log)


def test_a_correct_call_is_emitted_incrementally() -> None:
    assembled = Assembled(call_start(0, "a", "get"), call_piece(0, '{"x":'), call_piece(0, "1}"))
    assert assembled.first == [call_start(0, "a", "get"), call_piece(0, '{"x":'), call_piece(0, "1}")]
    assert assembled.rest == []
    assert assembled.rules == []
    assert len(assembled.calls) == 1
    assert assembled.calls.are_complete() is True
    assert assembled.calls.failure is None


def test_consecutive_calls_are_emitted_incrementally() -> None:
    pieces: list[Piece] = [
        call_start(0, "a", "get"),
        call_piece(0, "{}"),
        call_start(1, "b", "put"),
        call_piece(1, '{"x":1}'),
    ]
    assembled = Assembled(*pieces)
    assert assembled.first == pieces
    assert assembled.rules == []


def test_no_pieces_give_no_events() -> None:
    assembled = Assembled()
    assert assembled.all == []
    assert len(assembled.calls) == 0
    assert assembled.calls.are_complete() is True


A: list[Piece] = [call_start(0, "a", "get"), call_piece(0, '{"x":1}')]
B: list[Piece] = [call_start(1, "b", "put"), call_piece(1, '{"y":2}')]


@table(
    ("pieces", "assembled", "recorded"),
    [
        # numbers
        ([call_start(1, "a", "get"), call_piece(1, '{"x":1}')], A, ["tool-index-contiguous"]),
        ([*A, call_start(7, "b", "put"), call_piece(7, '{"y":2}')], A + B, ["tool-index-contiguous"]),
        ([call_start(-1, "a", "get"), call_piece(-1, '{"x":1}')], A, []),
        # two calls of one tool at one index
        (
            [*A, call_start(0, "b", "get"), call_piece(0, '{"y":2}')],
            [*A, call_start(1, "b", "get"), call_piece(1, '{"y":2}')],
            ["tool-index-distinct"],
        ),
        (
            [
                call_start(-1, "a", "get"),
                call_piece(-1, '{"x":1}'),
                call_start(-1, "b", "put"),
                call_piece(-1, '{"y":2}'),
            ],
            A + B,
            [],
        ),
        ([*A, call_start(0, "b", "put"), call_piece(0, '{"y":2}')], A + B, ["tool-index-distinct"]),
        # ids
        ([call_start(0, "a", "get"), call_start(0, "a"), call_piece(0, '{"x":1}')], A, ["tool-id-once"]),
        ([call_start(-1, "a", "get"), call_start(-1, "a"), call_piece(-1, '{"x":1}')], A, ["tool-id-once"]),
        ([call_start(0, "a", "get"), call_start(0, "z"), call_piece(0, '{"x":1}')], A, ["tool-id-stable"]),
        ([call_start(0, "", "get"), call_start(0, "a"), call_piece(0, '{"x":1}')], A, ["tool-id-first"]),
        ([call_start(-1, "", "get"), call_start(-1, "a"), call_piece(-1, '{"x":1}')], A, ["tool-id-first"]),
        # names
        ([call_start(0, "a", "get"), call_start(0, "", "get"), call_piece(0, '{"x":1}')], A, ["tool-name-once"]),
        ([call_start(0, "a", "g"), call_start(0, "", "et"), call_piece(0, '{"x":1}')], A, ["tool-name-whole"]),
        ([call_start(0, "a"), call_start(0, "", "get"), call_piece(0, '{"x":1}')], A, ["tool-name-whole"]),
        ([call_start(-1, "a", "g"), call_start(-1, "", "et"), call_piece(-1, '{"x":1}')], A, ["tool-name-whole"]),
        # arguments
        ([call_start(0, "a", "get"), call_piece(0, "{}"), call_piece(0, '{"x":1}')], A, ["tool-args-first-empty"]),
        # mixed
        ([A[0], B[0], B[1], A[1]], A + B, ["tool-one-at-a-time"]),
    ],
)
def test_malformed_calls_are_emitted_one_after_the_other(
    pieces: list[Piece], assembled: list[Piece], recorded: list[str]
) -> None:
    found = Assembled(*pieces)
    assert found.all == assembled
    assert found.rules == recorded


def test_pieces_after_a_repeated_start_continue_the_call() -> None:
    assembled = Assembled(
        call_start(0, "a", "get"), call_piece(0, '{"x"'), call_start(0, "a", "get"), call_piece(0, ":1}")
    )
    assert assembled.all == [call_start(0, "a", "get"), call_piece(0, '{"x"'), call_piece(0, ":1}")]
    assert assembled.rules == ["tool-id-once", "tool-name-once"]


def test_calls_are_numbered_in_the_order_of_their_start() -> None:
    assembled = Assembled(
        call_start(5, "b", "put"), call_start(2, "a", "get"), call_piece(5, '{"y":2}'), call_piece(2, '{"x":1}')
    )
    assert assembled.all == [
        call_start(0, "b", "put"),
        call_piece(0, '{"y":2}'),
        call_start(1, "a", "get"),
        call_piece(1, '{"x":1}'),
    ]


def test_a_missing_id_is_generated() -> None:
    assembled = Assembled(call_start(0, "", "get"), call_piece(0, "{}"), call_start(1, "", "put"), call_piece(1, "{}"))
    assert assembled.all == [
        call_start(0, "new1", "get"),
        call_piece(0, "{}"),
        call_start(1, "new2", "put"),
        call_piece(1, "{}"),
    ]
    assert assembled.rules == ["tool-id-first"]


def test_a_late_id_is_dropped() -> None:
    assembled = Assembled(call_start(0, "", "get"), call_piece(0, '{"x":1}'), call_start(0, "a"))
    assert assembled.all == [call_start(0, "new1", "get"), call_piece(0, '{"x":1}')]
    assert assembled.rules == ["tool-id-first", "tool-id-stable"]


def test_a_duplicate_id_is_replaced() -> None:
    same = Assembled(call_start(0, "a", "get"), call_piece(0, "{}"), call_start(1, "a", "put"), call_piece(1, "{}"))
    assert same.all == [
        call_start(0, "a", "get"),
        call_piece(0, "{}"),
        call_start(1, "new1", "put"),
        call_piece(1, "{}"),
    ]
    assert same.rules == ["tool-id-stable"]


def test_a_deprecated_function_call_needs_no_id() -> None:
    assembled = Assembled(call_start(0, "", "get"), call_piece(0, "{}"), facts=RequestFacts(uses_legacy_functions=True))
    assert assembled.all == [call_start(0, "new1", "get"), call_piece(0, "{}")]
    assert assembled.rules == []


def test_a_name_is_held_until_it_is_complete() -> None:
    assembled = Assembled(call_start(0, "a", "get"))
    assert assembled.first == []
    assert assembled.rest == [call_start(0, "a", "get"), call_piece(0, "{}")]
    assert assembled.rules == ["tool-args-no-arg-call"]


def test_a_call_without_arguments_gets_an_empty_object() -> None:
    assembled = Assembled(call_start(0, "a", "get"), call_start(1, "b", "put"), call_piece(1, '{"y":2}'))
    assert assembled.all == [call_start(0, "a", "get"), call_piece(0, "{}"), *B]
    assert "tool-args-no-arg-call" in assembled.rules


def test_a_truncated_answer_gets_no_placeholder_arguments() -> None:
    assembled = Assembled(call_start(0, "a", "get"), is_cut=True)
    assert assembled.all == [call_start(0, "a", "get")]
    assert assembled.rules == []


def test_an_empty_object_may_be_the_real_arguments() -> None:
    assembled = Assembled(call_start(0, "a", "get"), call_piece(0, "{}"))
    assert assembled.first == []
    assert assembled.rest == [call_start(0, "a", "get"), call_piece(0, "{}")]
    followed = Assembled(call_start(0, "a", "get"), call_piece(0, "{}"), call_start(1, "b", "put"), call_piece(1, "{}"))
    assert followed.first == []
    assert followed.rest == [
        call_start(0, "a", "get"),
        call_piece(0, "{}"),
        call_start(1, "b", "put"),
        call_piece(1, "{}"),
    ]
    assert followed.rules == []


def test_an_empty_object_is_sent_with_the_arguments_of_a_later_call() -> None:
    empty: list[Piece] = [
        call_start(0, "a", "get"),
        call_piece(0, "{}"),
        call_start(1, "b", "get"),
        call_piece(1, "{}"),
    ]
    assembled = Assembled(*empty, call_start(2, "c", "put"), call_piece(2, '{"x":1}'))
    assert assembled.first == [*empty, call_start(2, "c", "put"), call_piece(2, '{"x":1}')]
    # The call between has no arguments yet: the second repair of this output would wait for them too.
    waiting = Assembled(*empty[:2], call_start(1, "b", "get"), call_start(2, "c", "put"), call_piece(2, '{"x":1}'))
    assert waiting.first == []


def test_the_start_of_a_call_is_held_after_a_placeholder() -> None:
    assembled = Assembled(
        call_start(0, "", "get"), call_piece(0, "{}"), call_start(0, "a", "", {"s": 1}), call_piece(0, '{"x":1}')
    )
    assert assembled.all == [call_start(0, "a", "get", {"s": 1}), call_piece(0, '{"x":1}')]
    assert assembled.rules == ["tool-args-first-empty", "tool-id-first"]


def test_a_repeated_name_after_complete_arguments_is_no_new_call() -> None:
    for number in (0, -1):
        assembled = Assembled(
            call_start(number, "a", "get"), call_piece(number, '{"x":1}'), call_start(number, "", "get")
        )
        assert assembled.all == A


def test_a_repeated_name_before_the_next_call_is_no_new_call() -> None:
    assembled = Assembled(
        call_start(0, "a", "get"),
        call_piece(0, '{"x":1}'),
        call_start(0, "", "get"),
        call_start(1, "b", "put"),
        call_piece(1, '{"y":2}'),
    )
    assert assembled.all == A + B


def test_another_name_after_complete_arguments_is_a_call_without_arguments() -> None:
    for number, recorded in ((0, ["tool-args-no-arg-call", "tool-id-first", "tool-index-distinct"]), (-1, [])):
        assembled = Assembled(
            call_start(number, "a", "get"), call_piece(number, '{"x":1}'), call_start(number, "", "put")
        )
        assert assembled.first == A
        assert assembled.rest == [call_start(1, "new1", "put"), call_piece(1, "{}")]
        assert set(recorded) <= set(assembled.rules)


def test_a_repeated_name_releases_its_index() -> None:
    repeated: list[Piece] = [*A, call_start(0, "", "get"), *B]
    again = Assembled(*repeated, call_start(0, "a"))
    assert (again.all, again.rules) == (A + B, ["tool-id-once", "tool-index-distinct"])
    third = Assembled(*repeated, call_start(0, "c", "sum"), call_piece(0, "[3]"))
    assert third.all == [*A, *B, call_start(2, "c", "sum"), call_piece(2, "[3]")]


def test_a_name_after_complete_arguments_is_a_new_call_if_arguments_follow() -> None:
    for number in (0, -1):
        assembled = Assembled(
            call_start(number, "", "get"),
            call_piece(number, '{"x":1}'),
            call_start(number, "", "put"),
            call_piece(number, '{"y":2}'),
        )
        assert assembled.all == [call_start(0, "new1", "get"), A[1], call_start(1, "new2", "put"), B[1]]


@table("text", ['{"x":2}', "}", " x"])
def test_more_arguments_of_a_complete_call_are_a_failure(text: str) -> None:
    assembled = Assembled(*A, *B, call_piece(0, text))
    assert assembled.all == A + B
    assert assembled.calls.failure == Failure(
        "the server sent more arguments of the tool call 'get' after the next call",
        "upstream_error",
        None,
        "bad_upstream_stream",
    )


LATE: list[Piece] = [call_piece(0, "\n")]


@table(
    ("pieces", "late", "recorded"),
    [
        ([*A, *B, call_piece(0, "\n")], LATE, []),
        ([*A, *B, call_piece(0, "", {"s": 1})], [call_piece(0, "", {"s": 1})], []),
        ([*A, *B, call_start(0, "a", "", {"s": 1})], [call_piece(0, "", {"s": 1})], ["tool-id-once"]),
        ([*A, B[0], call_piece(1, '{"y"'), call_piece(0, "\n"), call_piece(1, ":2}")], LATE, ["tool-one-at-a-time"]),
    ],
)
def test_white_space_and_fields_of_a_complete_call_follow_the_last_call(
    pieces: list[Piece], late: list[Piece], recorded: list[str]
) -> None:
    assembled = Assembled(*pieces)
    assert assembled.rest == late
    assert "".join(event.text for event in assembled.first if isinstance(event, ToolArguments)) == '{"x":1}{"y":2}'
    assert assembled.rules == recorded
    assert assembled.calls.failure is None


def test_white_space_before_the_arguments_of_the_next_call_stays_in_place() -> None:
    assembled = Assembled(*A, B[0], call_piece(0, "\n"), B[1])
    assert assembled.all == [*A, call_piece(0, "\n"), *B]


def test_a_dialect_that_ends_calls_drops_white_space_after_the_end() -> None:
    assembled = Assembled(
        *A, *B, call_piece(0, "\n"), call_start(0, "a", "", {"s": 1}), facts=RequestFacts(ends_calls=True)
    )
    assert assembled.all == A + B


@table(
    "again",
    [
        [call_start(0, "b", "get")],
        [call_start(0, "b", "get"), call_start(0, "c", "get")],
        [call_start(0, "b", "get"), call_start(0, "b", "get")],
        [call_start(0, "b", "get"), call_start(0, "a", "get")],
    ],
)
def test_a_call_that_starts_again_with_another_id_is_one_call(again: list[Piece]) -> None:
    assembled = Assembled(call_start(0, "a", "get"), *again, call_piece(0, '{"x":1}'))
    assert assembled.all == A
    assert {"tool-id-stable", "tool-index-distinct"} <= set(assembled.rules)
    # The second id belongs to it from then on.
    repeated = Assembled(call_start(0, "a", "get"), *again, call_piece(0, '{"x":'), again[0], call_piece(0, "1}"))
    assert repeated.all == [A[0], call_piece(0, '{"x":'), call_piece(0, "1}")]


def test_a_call_that_starts_again_keeps_the_fields_of_both_starts() -> None:
    starts = [call_start(0, "a", "get", {"s": 1}), call_start(0, "b", "get", {"t": 2})]
    assert Assembled(*starts, call_piece(0, '{"x":1}')).all == [call_start(0, "a", "get", {"s": 1, "t": 2}), A[1]]


def test_starts_of_one_tool_without_arguments_are_separate_calls() -> None:
    starts: list[Piece] = [call_start(0, "a", "get", {"s": 1}), call_start(0, "b", "get", {"t": 2})]
    more: list[Piece] = [call_start(1, "c", "put"), call_piece(1, '{"y":2}')]
    for after in (more[:0], more):
        assembled = Assembled(*starts, *after)
        expected = [
            call_start(0, "a", "get", {"s": 1}),
            call_piece(0, "{}"),
            call_start(1, "b", "get", {"t": 2}),
            call_piece(1, "{}"),
            *([call_start(2, "c", "put"), call_piece(2, '{"y":2}')] if after else []),
        ]
        assert assembled.all == expected
        assert {"tool-args-no-arg-call", "tool-index-distinct"} <= set(assembled.rules)


@table(
    ("pieces", "recorded"),
    [
        ([*A, *B], []),
        ([A[0], B[0], B[1]], ["tool-args-no-arg-call"]),
        ([A[0], B[0], A[1], B[1]], ["tool-one-at-a-time"]),
        ([A[0], call_piece(0, '{"x":'), B[0], B[1], call_piece(0, "1}")], ["tool-one-at-a-time"]),
        ([*A, call_start(0, "", "get"), *B], ["tool-index-distinct"]),
    ],
)
def test_only_pieces_of_an_earlier_call_are_recorded_as_interleaved(pieces: list[Piece], recorded: list[str]) -> None:
    assert Assembled(*pieces).rules == recorded


def test_arguments_without_a_call_are_a_failure() -> None:
    for number in (0, -1):
        assembled = Assembled(call_piece(number, "{}"))
        assert assembled.all == []
        assert assembled.calls.failure == Failure(
            "the server sent a tool call without a name", "upstream_error", None, "incomplete_stream"
        )


def test_a_name_may_follow_its_arguments() -> None:
    assert Assembled(call_piece(0, '{"x":'), call_start(0, "a", "get"), call_piece(0, "1}")).all == [
        call_start(0, "a", "get"),
        call_piece(0, '{"x":'),
        call_piece(0, "1}"),
    ]


def test_extra_fields_of_a_call_are_forwarded() -> None:
    assembled = Assembled(
        call_start(0, "a", "get", {"s": 1}),
        call_start(0, "a", "", {"t": 2}),
        call_piece(0, "{}", {"u": 3}),
        call_piece(0, "", {"v": 4}),
    )
    assert assembled.all == [
        call_start(0, "a", "get", {"s": 1, "t": 2}),
        call_piece(0, "{}", {"u": 3}),
        call_piece(0, "", {"v": 4}),
    ]


def test_late_extra_fields_are_forwarded() -> None:
    assembled = Assembled(
        call_start(0, "a", "get"), call_piece(0, '{"x"'), call_start(0, "a", "", {"s": 1}), call_piece(0, ":1}")
    )
    assert assembled.all == [
        call_start(0, "a", "get"),
        call_piece(0, '{"x"'),
        call_piece(0, "", {"s": 1}),
        call_piece(0, ":1}"),
    ]
    behind = Assembled(*A, call_start(0, "a", "get", {"s": 1}))
    assert behind.first == [*A, call_piece(0, "", {"s": 1})]
    assert behind.rules == ["tool-id-once", "tool-name-once"]


@table(
    ("pieces", "is_complete"),
    [
        (['{"x":1}'], True),
        (['{"x":', "1"], False),
        (['{"x":"', '}"'], False),
        (['{"x":"}"', "}"], True),
        (['{"x":"\\"', '"}'], True),
        (['{"x":"\\', '""', "}"], True),
        (['{"x":"\\', '"}'], False),
        (["[[", "]"], False),
        (["}"], False),
        (["12"], True),
    ],
)
def test_arguments_are_complete_when_all_brackets_are_closed(pieces: list[str], is_complete: bool) -> None:
    assembled = Assembled(call_start(0, "a", "get"), *(call_piece(0, piece) for piece in pieces))
    assert assembled.calls.are_complete() is is_complete


@table(
    ("text", "is_complete", "is_open"),
    [
        ("", False, False),
        ("12", False, False),
        ("{", False, True),
        ("{}", True, False),
        ("{}{", False, True),
        ('"a"', True, False),
        ('"a', False, True),
        ('"\\"', False, True),
        ('[{"a":["]"]}]', True, False),
        ("}{", False, False),
        ("\\{}", True, False),
    ],
)
def test_the_end_of_json_is_detected_for_all_boundaries(text: str, is_complete: bool, is_open: bool) -> None:
    for size in range(1, len(text) + 1):
        end = JsonEndDetector()
        for start in range(0, len(text), size):
            end.feed(text[start : start + size])
        assert (end.is_complete, end.is_open) == (is_complete, is_open)


def test_more_calls_than_the_limit_are_a_failure() -> None:
    pieces = [call_start(number, f"id{number}", "get") for number in range(CALLS_LIMIT + 1)]
    assert Assembled(*pieces[:-1]).calls.failure is None
    failure = Assembled(*pieces).calls.failure
    assert failure == Failure(
        "the server sent more than 1024 tool calls in one choice", "upstream_error", None, "bad_upstream_stream"
    )


def test_held_pieces_of_interleaved_calls_are_limited() -> None:
    calls = ToolCallAssembler(0, RepairLog(), numbered("new"), HeldBytesBudget(), RequestFacts())
    out: list[Event] = []
    calls.start_call(call_start(0, "a", "get"), out)
    calls.start_call(call_start(1, "b", "put"), out)
    for _ in range(17):
        calls.add_arguments(call_piece(1, "x" * 1024 * 1024), out)
    assert calls.failure == Failure(
        "the server sent interleaved tool calls that exceed the buffer limit",
        "upstream_error",
        None,
        "bad_upstream_stream",
    )
    assert out == []


@pytest.mark.no_cover
def test_a_hundred_thousand_pieces_give_as_many_events() -> None:
    assembled = Assembled(call_start(0, "a", "get"), *(call_piece(0, "x") for _ in range(100_000)))
    assert len(assembled.all) == 100_001


def test_an_endless_name_is_a_failure() -> None:
    assert Assembled(call_start(0, "a", "g"), *[call_start(0, "", "et" * 300)] * 2).calls.failure == Failure(
        "the server sent a tool name of more than 1024 characters", "upstream_error", None, "bad_upstream_stream"
    )


def test_extra_fields_of_a_placeholder_stay() -> None:
    assembled = Assembled(call_start(0, "a", "get"), ToolArguments(0, 0, "{}", {"x": 1}), call_piece(0, '{"y":2}'))
    assert assembled.first == [call_start(0, "a", "get"), ToolArguments(0, 0, "", {"x": 1}), call_piece(0, '{"y":2}')]


@table("times", [1, 2, 3, 4])
def test_a_repeated_placeholder_is_emitted_once(times: int) -> None:
    pieces: list[Piece] = [call_start(0, "a", "get"), call_piece(0, "{}")]
    assembled = Assembled(*pieces * times)
    assert assembled.all == pieces
