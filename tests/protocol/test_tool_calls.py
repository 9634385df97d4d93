"""The tool calls of one choice: which call a piece belongs to, and when it may be said."""

from typing import TypeAlias

import pytest

from tests.protocol.build import numbered, rules
from tests.table import table
from welldone.protocol.events import Event, Failure, Json, ToolArguments, ToolCall
from welldone.protocol.repair_log import RepairLog
from welldone.protocol.tool_calls import CALLS_LIMIT, HeldBytesBudget, JsonEndDetector, ToolCallAssembler

Piece: TypeAlias = ToolCall | ToolArguments


def begin(number: int, id: str = "", name: str = "", more: Json | None = None) -> ToolCall:
    return ToolCall(0, number, id, name, more or {})


def more(number: int, text: str, extra: Json | None = None) -> ToolArguments:
    return ToolArguments(0, number, text, extra or {})


class Said:
    """What comes of pieces: as they come, and at the end."""

    def __init__(self, *pieces: Piece, is_legacy: bool = False, is_cut: bool = False) -> None:
        notes = RepairLog()
        self.calls = ToolCallAssembler(0, notes, numbered("new"), HeldBytesBudget(), is_legacy=is_legacy)
        self.first: list[Event] = []
        for piece in pieces:
            if isinstance(piece, ToolCall):
                self.calls.start_call(piece, self.first)
            else:
                self.calls.add_arguments(piece, self.first)
        self.rest: list[Event] = []
        self.calls.close(self.rest, is_cut=is_cut)
        self.all = self.first + self.rest
        self.rules = rules(notes)


def test_a_right_call_goes_out_as_it_comes() -> None:
    said = Said(begin(0, "a", "get"), more(0, '{"x":'), more(0, "1}"))
    assert said.first == [begin(0, "a", "get"), more(0, '{"x":'), more(0, "1}")]
    assert said.rest == []
    assert said.rules == []
    assert len(said.calls) == 1
    assert said.calls.are_complete() is True
    assert said.calls.failure is None


def test_calls_one_after_the_other_go_out_as_they_come() -> None:
    pieces: list[Piece] = [begin(0, "a", "get"), more(0, "{}"), begin(1, "b", "put"), more(1, '{"x":1}')]
    said = Said(*pieces)
    assert said.first == pieces
    assert said.rules == []


def test_no_call_says_nothing() -> None:
    said = Said()
    assert said.all == []
    assert len(said.calls) == 0
    assert said.calls.are_complete() is True


A: list[Piece] = [begin(0, "a", "get"), more(0, '{"x":1}')]
B: list[Piece] = [begin(1, "b", "put"), more(1, '{"y":2}')]


@table(
    ("pieces", "said", "noted"),
    [
        # numbers
        ([begin(1, "a", "get"), more(1, '{"x":1}')], A, ["tool-index-contiguous"]),
        ([*A, begin(7, "b", "put"), more(7, '{"y":2}')], A + B, ["tool-index-contiguous"]),
        ([begin(-1, "a", "get"), more(-1, '{"x":1}')], A, []),
        ([begin(-1, "a", "get"), more(-1, '{"x":1}'), begin(-1, "b", "put"), more(-1, '{"y":2}')], A + B, []),
        ([*A, begin(0, "b", "put"), more(0, '{"y":2}')], A + B, ["tool-index-distinct"]),
        # ids
        ([begin(0, "a", "get"), begin(0, "a"), more(0, '{"x":1}')], A, ["tool-id-once"]),
        ([begin(-1, "a", "get"), begin(-1, "a"), more(-1, '{"x":1}')], A, ["tool-id-once"]),
        ([begin(0, "a", "get"), begin(0, "z"), more(0, '{"x":1}')], A, ["tool-id-stable"]),
        ([begin(0, "", "get"), begin(0, "a"), more(0, '{"x":1}')], A, ["tool-id-first"]),
        ([begin(-1, "", "get"), begin(-1, "a"), more(-1, '{"x":1}')], A, ["tool-id-first"]),
        # names
        ([begin(0, "a", "get"), begin(0, "", "get"), more(0, '{"x":1}')], A, ["tool-name-once"]),
        ([begin(0, "a", "g"), begin(0, "", "et"), more(0, '{"x":1}')], A, ["tool-name-whole"]),
        ([begin(0, "a"), begin(0, "", "get"), more(0, '{"x":1}')], A, ["tool-name-whole"]),
        ([begin(-1, "a", "g"), begin(-1, "", "et"), more(-1, '{"x":1}')], A, ["tool-name-whole"]),
        # arguments
        ([begin(0, "a", "get"), more(0, "{}"), more(0, '{"x":1}')], A, ["tool-args-first-empty"]),
        # mixed
        ([A[0], B[0], B[1], A[1]], A + B, ["tool-one-at-a-time"]),
    ],
)
def test_odd_calls_are_said_one_after_the_other(pieces: list[Piece], said: list[Piece], noted: list[str]) -> None:
    found = Said(*pieces)
    assert found.all == said
    assert found.rules == noted


def test_pieces_behind_a_repeated_head_go_on() -> None:
    said = Said(begin(0, "a", "get"), more(0, '{"x"'), begin(0, "a", "get"), more(0, ":1}"))
    assert said.all == [begin(0, "a", "get"), more(0, '{"x"'), more(0, ":1}")]
    assert said.rules == ["tool-id-once", "tool-name-once"]


def test_calls_are_numbered_in_the_order_in_which_they_began() -> None:
    said = Said(begin(5, "b", "put"), begin(2, "a", "get"), more(5, '{"y":2}'), more(2, '{"x":1}'))
    assert said.all == [begin(0, "b", "put"), more(0, '{"y":2}'), begin(1, "a", "get"), more(1, '{"x":1}')]


def test_an_id_that_never_comes_is_made() -> None:
    said = Said(begin(0, "", "get"), more(0, "{}"), begin(1, "", "put"), more(1, "{}"))
    assert said.all == [begin(0, "new1", "get"), more(0, "{}"), begin(1, "new2", "put"), more(1, "{}")]
    assert said.rules == ["tool-id-first"]


def test_an_id_that_comes_too_late_is_dropped() -> None:
    said = Said(begin(0, "", "get"), more(0, '{"x":1}'), begin(0, "a"))
    assert said.all == [begin(0, "new1", "get"), more(0, '{"x":1}')]
    assert said.rules == ["tool-id-first", "tool-id-stable"]


def test_an_id_that_another_call_has_is_made_anew() -> None:
    same = Said(begin(0, "a", "get"), more(0, "{}"), begin(1, "a", "put"), more(1, "{}"))
    assert same.all == [begin(0, "a", "get"), more(0, "{}"), begin(1, "new1", "put"), more(1, "{}")]
    assert same.rules == ["tool-id-stable"]


def test_a_deprecated_function_call_needs_no_id() -> None:
    said = Said(begin(0, "", "get"), more(0, "{}"), is_legacy=True)
    assert said.all == [begin(0, "new1", "get"), more(0, "{}")]
    assert said.rules == []


def test_a_name_waits_until_it_is_whole() -> None:
    said = Said(begin(0, "a", "get"))
    assert said.first == []
    assert said.rest == [begin(0, "a", "get"), more(0, "{}")]
    assert said.rules == ["tool-args-no-arg-call"]


def test_a_call_without_arguments_has_an_empty_object() -> None:
    said = Said(begin(0, "a", "get"), begin(1, "b", "put"), more(1, '{"y":2}'))
    assert said.all == [begin(0, "a", "get"), more(0, "{}"), *B]
    assert "tool-args-no-arg-call" in said.rules


def test_where_the_answer_was_cut_no_arguments_are_made_up() -> None:
    said = Said(begin(0, "a", "get"), is_cut=True)
    assert said.all == [begin(0, "a", "get")]
    assert said.rules == []


def test_an_empty_object_may_be_all_there_is() -> None:
    said = Said(begin(0, "a", "get"), more(0, "{}"))
    assert said.first == []
    assert said.rest == [begin(0, "a", "get"), more(0, "{}")]
    followed = Said(begin(0, "a", "get"), more(0, "{}"), begin(1, "b", "put"), more(1, "{}"))
    assert followed.first == [begin(0, "a", "get"), more(0, "{}")]
    assert followed.rest == [begin(1, "b", "put"), more(1, "{}")]
    assert followed.rules == []


def test_the_head_waits_for_what_it_may_still_learn_behind_a_placeholder() -> None:
    said = Said(begin(0, "", "get"), more(0, "{}"), begin(0, "a", "", {"s": 1}), more(0, '{"x":1}'))
    assert said.all == [begin(0, "a", "get", {"s": 1}), more(0, '{"x":1}')]
    assert said.rules == ["tool-args-first-empty", "tool-id-first"]


def test_a_name_repeated_behind_whole_arguments_is_no_new_call() -> None:
    for number in (0, -1):
        said = Said(begin(number, "a", "get"), more(number, '{"x":1}'), begin(number, "", "get"))
        assert said.all == A


def test_a_name_repeated_before_the_next_call_is_no_new_call() -> None:
    said = Said(begin(0, "a", "get"), more(0, '{"x":1}'), begin(0, "", "get"), begin(1, "b", "put"), more(1, '{"y":2}'))
    assert said.all == A + B


def test_another_name_behind_whole_arguments_is_a_call_without_arguments() -> None:
    for number, noted in ((0, ["tool-args-no-arg-call", "tool-id-first", "tool-index-distinct"]), (-1, [])):
        said = Said(begin(number, "a", "get"), more(number, '{"x":1}'), begin(number, "", "put"))
        assert said.first == A
        assert said.rest == [begin(1, "new1", "put"), more(1, "{}")]
        assert set(noted) <= set(said.rules)


def test_a_repeated_name_gives_its_number_back() -> None:
    repeated: list[Piece] = [*A, begin(0, "", "get"), *B]
    again = Said(*repeated, begin(0, "a"))
    assert (again.all, again.rules) == (A + B, ["tool-id-once", "tool-index-distinct"])
    third = Said(*repeated, begin(0, "c", "sum"), more(0, "[3]"))
    assert third.all == [*A, *B, begin(2, "c", "sum"), more(2, "[3]")]


def test_a_name_behind_whole_arguments_is_a_new_call_if_arguments_follow() -> None:
    for number in (0, -1):
        said = Said(
            begin(number, "", "get"), more(number, '{"x":1}'), begin(number, "", "put"), more(number, '{"y":2}')
        )
        assert said.all == [begin(0, "new1", "get"), A[1], begin(1, "new2", "put"), B[1]]


def test_more_of_a_call_that_is_over_is_dropped() -> None:
    said = Said(*A, *B, more(0, "{}"))
    assert said.all == A + B
    assert said.rules == ["tool-one-at-a-time"]


@table(
    ("pieces", "noted"),
    [
        ([*A, *B], []),
        ([A[0], B[0], B[1]], ["tool-args-no-arg-call"]),
        ([A[0], B[0], A[1], B[1]], ["tool-one-at-a-time"]),
        ([A[0], more(0, '{"x":'), B[0], B[1], more(0, "1}")], ["tool-one-at-a-time"]),
        ([*A, begin(0, "", "get"), *B], ["tool-index-distinct"]),
    ],
)
def test_only_pieces_of_a_call_before_the_last_are_out_of_turn(pieces: list[Piece], noted: list[str]) -> None:
    assert Said(*pieces).rules == noted


def test_arguments_without_a_call_have_no_name() -> None:
    for number in (0, -1):
        said = Said(more(number, "{}"))
        assert said.all == []
        assert said.calls.failure == Failure(
            "the server called a tool without naming it", "upstream_error", None, "incomplete_stream"
        )


def test_a_name_may_come_behind_its_arguments() -> None:
    assert Said(more(0, '{"x":'), begin(0, "a", "get"), more(0, "1}")).all == [
        begin(0, "a", "get"),
        more(0, '{"x":'),
        more(0, "1}"),
    ]


def test_unknown_members_of_a_call_are_kept() -> None:
    said = Said(
        begin(0, "a", "get", {"s": 1}), begin(0, "a", "", {"t": 2}), more(0, "{}", {"u": 3}), more(0, "", {"v": 4})
    )
    assert said.all == [begin(0, "a", "get", {"s": 1, "t": 2}), more(0, "{}", {"u": 3}), more(0, "", {"v": 4})]


def test_members_that_come_late_are_not_lost() -> None:
    said = Said(begin(0, "a", "get"), more(0, '{"x"'), begin(0, "a", "", {"s": 1}), more(0, ":1}"))
    assert said.all == [begin(0, "a", "get"), more(0, '{"x"'), more(0, "", {"s": 1}), more(0, ":1}")]
    behind = Said(*A, begin(0, "a", "get", {"s": 1}))
    assert behind.first == [*A, more(0, "", {"s": 1})]
    assert behind.rules == ["tool-id-once", "tool-name-once"]


@table(
    ("pieces", "is_whole"),
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
def test_arguments_are_whole_when_what_they_open_is_closed(pieces: list[str], is_whole: bool) -> None:
    said = Said(begin(0, "a", "get"), *(more(0, piece) for piece in pieces))
    assert said.calls.are_complete() is is_whole


@table(
    ("text", "is_whole", "is_open"),
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
def test_the_end_of_json_is_told_however_it_is_cut(text: str, is_whole: bool, is_open: bool) -> None:
    for size in range(1, len(text) + 1):
        end = JsonEndDetector()
        for start in range(0, len(text), size):
            end.feed(text[start : start + size])
        assert (end.is_complete, end.is_open) == (is_whole, is_open)


def test_too_many_calls_are_a_failure() -> None:
    pieces = [begin(number, f"id{number}", "get") for number in range(CALLS_LIMIT + 1)]
    assert Said(*pieces[:-1]).calls.failure is None
    failure = Said(*pieces).calls.failure
    assert failure == Failure(
        "the server sent more than 1024 tool calls in one choice", "upstream_error", None, "bad_upstream_stream"
    )


def test_what_is_held_back_of_mixed_calls_is_bounded() -> None:
    calls = ToolCallAssembler(0, RepairLog(), numbered("new"), HeldBytesBudget())
    out: list[Event] = []
    calls.start_call(begin(0, "a", "get"), out)
    calls.start_call(begin(1, "b", "put"), out)
    for _ in range(17):
        calls.add_arguments(more(1, "x" * 1024 * 1024), out)
    assert calls.failure == Failure(
        "the server sent tool calls that are mixed beyond what can be kept",
        "upstream_error",
        None,
        "bad_upstream_stream",
    )
    assert out == [begin(0, "a", "get")]


@pytest.mark.no_cover
def test_a_hundred_thousand_pieces_are_as_many_events() -> None:
    said = Said(begin(0, "a", "get"), *(more(0, "x") for _ in range(100_000)))
    assert len(said.all) == 100_001


def test_a_name_without_end_is_a_failure() -> None:
    assert Said(begin(0, "a", "g"), *[begin(0, "", "et" * 300)] * 2).calls.failure == Failure(
        "the server sent a tool's name of more than 1024 characters", "upstream_error", None, "bad_upstream_stream"
    )


def test_what_came_beside_a_placeholder_stays() -> None:
    said = Said(begin(0, "a", "get"), ToolArguments(0, 0, "{}", {"x": 1}), more(0, '{"y":2}'))
    assert said.first == [begin(0, "a", "get"), ToolArguments(0, 0, "", {"x": 1}), more(0, '{"y":2}')]


@table("times", [1, 2, 3, 4])
def test_a_placeholder_that_is_repeated_is_said_once(times: int) -> None:
    pieces: list[Piece] = [begin(0, "a", "get"), more(0, "{}")]
    said = Said(*pieces * times)
    assert said.all == pieces
