"""Reader of deltas."""

import pytest

from tests.protocol.build import ABSENT, CHAT, FALLBACK, call, call_start, delta_chunk, piece, rules, stream
from tests.table import table
from welldone.core.events import (
    ChoiceStart,
    Event,
    FieldLocation,
    Json,
    Logprobs,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    UnknownFields,
)
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import RepairOptions, RequestFacts
from welldone.dialects.chat.deltas import NO_CALL_INDEX, DeltaReader, parse_index
from welldone.stream.pipeline import StreamPipeline

OPEN = ChoiceStart(0)
NO_LIST, NO_INDEX = ["tool-calls-null"], ["tool-index-required"]
FLAT: Json = {"tool_calls": [{"index": 0, "id": "call_a", "type": "function", "name": "get", "arguments": "{}"}]}


def parts(*others: object) -> UnknownFields:
    """Event of `content` parts that are not text."""
    return UnknownFields(0, FieldLocation.DELTA, {"content_parts": list(others)})


def thinking(thinking_content: object, **members: object) -> Json:
    return {"type": "thinking", "thinking": thinking_content, **members}


class Read:
    """Result of reading the deltas of one choice."""

    def __init__(self, *deltas: Json, facts: RequestFacts | None = None, is_careful: bool = False) -> None:
        repair_log = RepairLog()
        self.reader = DeltaReader(facts or RequestFacts(), repair_log)
        if is_careful:
            self.reader.expect_split_characters()
        self.events: list[Event] = []
        for delta in deltas:
            self.reader.read(delta, 0, [], self.events)
        self.events += self.reader.close()
        self.rules = rules(repair_log)


@table(
    ("delta", "events"),
    [
        ({}, []),
        ({"content": "a"}, [Text(0, "a")]),
        ({"content": ""}, []),
        ({"content": None}, []),
        ({"role": "assistant", "content": ""}, [OPEN]),
        ({"reasoning_content": "a"}, [Reasoning(0, "a")]),
        ({"reasoning_content": None, "reasoning": None}, []),
        ({"reasoning_content": float("inf"), "reasoning": float("nan")}, []),
        ({"reasoning_content": 7}, [UnknownFields(0, FieldLocation.DELTA, {"reasoning_content": 7})]),
        ({"refusal": "a"}, [Refusal(0, "a")]),
        ({"refusal": None}, []),
        (
            {"reasoning_content": "a", "content": "b", "refusal": "c"},
            [Reasoning(0, "a"), Text(0, "b"), Refusal(0, "c")],
        ),
        ({"x": 1, "content": "a"}, [UnknownFields(0, FieldLocation.DELTA, {"x": 1}), Text(0, "a")]),
        (call_start(arguments="{}"), [ToolCall(0, 0, "call_a", "get"), ToolArguments(0, 0, "{}")]),
        (call_start(), [ToolCall(0, 0, "call_a", "get")]),
        (piece('{"a":', 2), [ToolArguments(0, 2, '{"a":')]),
        (call_start(x=1), [ToolCall(0, 0, "call_a", "get", {"x": 1})]),
        (call(0, function={"arguments": ""}, x=1), [ToolArguments(0, 0, "", {"x": 1})]),
        (piece(""), []),
        ({"function_call": None}, []),
    ],
)
def test_a_correct_delta_is_read_without_a_repair(delta: Json, events: list[Event]) -> None:
    read = Read(delta)
    assert read.events == events
    assert read.rules == []


@table(
    ("delta", "events", "recorded"),
    [
        # role
        ({"role": None}, [], ["delta-role-absent-later"]),
        ({"role": "", "content": "a"}, [Text(0, "a")], ["delta-role-absent-later"]),
        ({"role": "user", "content": ""}, [OPEN], ["delta-role-assistant"]),
        ({"role": 7, "content": ""}, [OPEN], ["delta-role-assistant"]),
        ({"role": "assistant", "content": "a"}, [OPEN, Text(0, "a")], ["delta-role-content-empty"]),
        # content
        (
            {"content": [{"type": "text", "text": "a"}, {"text": "b"}, {"text": 7}]},
            [parts({"text": 7}), Text(0, "ab")],
            ["delta-content-string"],
        ),
        ({"content": ["a", {"text": "b"}, "c", 7, None]}, [parts(7), Text(0, "abc")], ["delta-content-string"]),
        ({"content": {"type": "text", "text": "a"}}, [Text(0, "a")], ["delta-content-string"]),
        (
            {"content": [{"type": "text", "text": "a", "x": 1}, thinking("b"), thinking("c", closed=True), "d"]},
            [
                parts({"type": "text", "x": 1}, {"type": "thinking", "closed": True}),
                *[Text(0, "a"), Reasoning(0, "bc"), Text(0, "d")],
            ],
            ["delta-content-string"],
        ),
        (
            {"content": [thinking([{"type": "text", "text": "a"}, "b", {"type": "reference"}, 7]), thinking(7)]},
            [
                parts(
                    {"type": "thinking", "thinking": [{"type": "reference"}, 7]}, {"type": "thinking", "thinking": 7}
                ),
                Reasoning(0, "ab"),
            ],
            ["delta-content-string"],
        ),
        ({"content": []}, [], ["delta-content-string"]),
        ({"reasoning_content": "a", "reasoning": "b"}, [Reasoning(0, "ab")], ["ext-reasoning-field"]),
        ({"reasoning_content": "a", "reasoning": "a"}, [Reasoning(0, "a")], ["ext-reasoning-field"]),
        ({"content": 7}, [Text(0, "7")], ["delta-content-string"]),
        ({"content": {"a": 1}}, [Text(0, '{"a":1}')], ["delta-content-string"]),
        # reasoning and refusal
        ({"reasoning": "a"}, [Reasoning(0, "a")], ["ext-reasoning-field"]),
        ({"reasoning": "a", "reasoning_content": "a"}, [Reasoning(0, "a")], ["ext-reasoning-field"]),
        ({"reasoning": {"a": "b"}}, [UnknownFields(0, FieldLocation.DELTA, {"reasoning": {"a": "b"}})], []),
        ({"refusal": {"a": 1}}, [Refusal(0, '{"a":1}')], ["ext-refusal"]),
        # tool calls
        ({"tool_calls": None}, [], ["tool-calls-null"]),
        ({"tool_calls": []}, [], ["tool-calls-null"]),
        (
            {"tool_calls": {"a": 1}},
            [ToolArguments(0, -1, "", {"a": 1})],
            [*NO_LIST, "tool-function-present", *NO_INDEX],
        ),
        ({"tool_calls": call_start()["tool_calls"][0]}, [ToolCall(0, 0, "call_a", "get")], [*NO_LIST]),
        ({"tool_calls": [call_start()["tool_calls"]]}, [ToolCall(0, 0, "call_a", "get")], ["tool-function-present"]),
        ({"tool_calls": [None]}, [], ["tool-function-present"]),
        (FLAT, [ToolCall(0, 0, "call_a", "get"), ToolArguments(0, 0, "{}")], ["tool-function-present"]),
        (call(0), [], ["tool-function-present"]),
        (call(0, function=None), [], ["tool-function-present"]),
        (piece("a", ABSENT), [ToolArguments(0, NO_CALL_INDEX, "a")], ["tool-index-required"]),
        (piece("a", None), [ToolArguments(0, NO_CALL_INDEX, "a")], ["tool-index-required"]),
        (piece("a", "1"), [ToolArguments(0, 1, "a")], ["tool-index-int"]),
        (piece("a", 1.0), [ToolArguments(0, 1, "a")], ["tool-index-int"]),
        (piece("a", "x"), [ToolArguments(0, NO_CALL_INDEX, "a")], ["tool-index-int"]),
        (piece("a", -1), [ToolArguments(0, NO_CALL_INDEX, "a")], ["tool-index-int"]),
        (piece("a", True), [ToolArguments(0, NO_CALL_INDEX, "a")], ["tool-index-int"]),
        (call_start(id=ABSENT), [ToolCall(0, 0, "", "get")], []),
        (call_start(id=7), [ToolCall(0, 0, "7", "get")], []),
        (call_start(id=[]), [ToolCall(0, 0, "", "get")], []),
        (call_start(type=ABSENT), [ToolCall(0, 0, "call_a", "get")], ["tool-type-first"]),
        (call_start(type="tool"), [ToolCall(0, 0, "call_a", "get")], ["tool-type-first"]),
        (call(0, id=None, type=None, function={"name": None, "arguments": "a"}), [ToolArguments(0, 0, "a")], []),
        (piece(None), [], ["tool-args-string"]),
        (piece({"a": [1]}), [ToolArguments(0, 0, '{"a":[1]}')], ["tool-args-string"]),
        (piece({}), [ToolArguments(0, 0, "{}")], ["tool-args-string"]),
        (
            {"tool_calls": [*call_start(arguments="{}")["tool_calls"], *call_start(1, "call_b", "put")["tool_calls"]]},
            [ToolCall(0, 0, "call_a", "get"), ToolArguments(0, 0, "{}"), ToolCall(0, 1, "call_b", "put")],
            ["tool-one-at-a-time"],
        ),
        (
            {"content": "a", **call_start()},
            [Text(0, "a"), ToolCall(0, 0, "call_a", "get")],
            ["tool-no-content-in-same-delta"],
        ),
        (
            {"function_call": {"name": "get", "arguments": "{}"}},
            [ToolCall(0, 0, "", "get"), ToolArguments(0, 0, "{}")],
            ["tool-legacy-function-call"],
        ),
        (
            {"function_call": {"name": "get", "arguments": "{}"}, **call_start(arguments="{}")},  # llama-cpp-python
            [ToolCall(0, 0, "call_a", "get"), ToolArguments(0, 0, "{}")],
            ["tool-legacy-function-call"],
        ),
        ({"function_call": {}}, [], ["tool-legacy-function-call"]),
        ({"function_call": "get"}, [], ["tool-legacy-function-call"]),
        (
            {"function_call": {"name": "get", "x": 1}},
            [ToolCall(0, 0, "", "get", inner_extra_fields={"x": 1})],
            ["tool-legacy-function-call"],
        ),
        (
            {"function_call": {"x": 1}},
            [ToolArguments(0, 0, "", inner_extra_fields={"x": 1})],
            ["tool-legacy-function-call"],
        ),
    ],
)
def test_a_malformed_delta_is_repaired_and_recorded(delta: Json, events: list[Event], recorded: list[str]) -> None:
    read = Read(delta)
    assert read.events == events
    assert read.rules == recorded


@table(
    "later",
    [
        call(0, id=None, function={"arguments": "a"}),
        call(0, type=None, function={"arguments": "a"}),
        call(0, function={"name": None, "arguments": "a"}),
        call(0, id="", function={"arguments": "a"}),
        call(0, id="", type="", function={"name": "", "arguments": "a"}),
    ],
)
@table("first", [call_start(), piece("b")])
def test_empty_fields_in_a_later_piece_of_a_call_are_recorded(first: Json, later: Json) -> None:
    read = Read(first, later)
    assert read.events[-1] == ToolArguments(0, 0, "a")
    assert read.rules == ["tool-later-fields-absent"]


def test_a_missing_type_is_recorded_once_in_the_first_piece() -> None:
    assert Read(call_start(type=ABSENT), call_start(type=ABSENT)).rules == ["tool-type-first"]
    assert Read(call_start(), call_start(type=ABSENT)).rules == []
    assert Read(call_start(ABSENT), call_start(ABSENT, type=ABSENT)).rules == ["tool-index-required"]
    assert Read(call_start(ABSENT), call_start(ABSENT, "call_b", type=ABSENT)).rules == [
        "tool-index-required",
        "tool-type-first",
    ]


def test_a_function_call_is_correct_if_the_request_has_functions() -> None:
    read = Read({"function_call": {"name": "get"}}, facts=RequestFacts(uses_legacy_functions=True))
    assert (read.events, read.rules) == ([ToolCall(0, 0, "", "get")], [])


@pytest.mark.parametrize("content", [{}, {"content": None}])
def test_a_role_without_content_is_recorded_only_if_text_follows(content: Json) -> None:
    opening: Json = {"role": "assistant", **content}
    assert Read(opening, {"content": "a"}).rules == ["delta-role-content-empty"]
    assert Read(opening, call_start()).rules == []
    assert Read(opening, {"reasoning_content": "a"}).rules == []


def test_a_delta_with_only_text_is_checked_only_while_state_is_pending() -> None:
    assert Read({"role": "assistant", "content": ""}).reader.is_plain_text_safe is True
    assert Read({"role": "assistant"}).reader.is_plain_text_safe is False
    assert Read({"role": "assistant"}, {"content": "a"}).reader.is_plain_text_safe is True
    assert Read({"role": "assistant"}, {"content": "a"}, is_careful=True).reader.is_plain_text_safe is False


def test_logprobs_are_after_the_role_and_before_their_text() -> None:
    events: list[Event] = []
    logprobs = Logprobs(0, {})
    DeltaReader(RequestFacts(), RepairLog()).read({"role": "assistant", "content": "a"}, 0, [logprobs], events)
    assert events == [OPEN, logprobs, Text(0, "a")]


def test_the_text_of_a_completion_is_after_its_logprobs() -> None:
    events: list[Event] = []
    reader = DeltaReader(RequestFacts(), RepairLog())
    reader.add_text("a", 2, [Logprobs(2, {})], events)
    reader.add_text("", 2, [], events)
    assert events == [Logprobs(2, {}), Text(2, "a")]


@table(
    ("first", "second", "event"),
    [
        ({"content": "\ud83d"}, {"content": "\ude00"}, Text(0, "😀")),
        ({"content": "\udcc3"}, {"content": "\udca9"}, Text(0, "é")),
        ({"reasoning_content": "\ud83d"}, {"reasoning_content": "\ude00"}, Reasoning(0, "😀")),
        ({"refusal": "\ud83d"}, {"refusal": "\ude00"}, Refusal(0, "😀")),
        (piece("\ud83d"), piece("\ude00"), ToolArguments(0, 0, "😀")),
        ({"content": "\ud83d"}, {}, Text(0, "\ufffd")),
        (piece("\ud83d", 3), {}, ToolArguments(0, 3, "\ufffd")),
    ],
)
def test_split_characters_are_joined_within_their_own_field(first: Json, second: Json, event: Event) -> None:
    assert Read(first, second, is_careful=True).events == [event]


def test_split_characters_of_two_choices_are_not_joined() -> None:
    reader = DeltaReader(RequestFacts(), RepairLog())
    reader.expect_split_characters()
    events: list[Event] = []
    reader.read({"content": "\ud83d"}, 1, [], events)
    reader.read({"content": "\ude00"}, 0, [], events)
    assert events == [Text(0, "\ufffd")]
    assert reader.close_choice(0) == []
    assert reader.close() == [Text(1, "\ufffd")]
    assert reader.close() == []


def test_names_and_unknown_fields_have_no_lone_surrogates() -> None:
    read = Read(call_start(id="\ud83d", name="\ud83d", arguments={"a": "\ud83d"}, x=["\ud83d"]), {"y": "\ud83d"})
    assert read.events == [
        ToolCall(0, 0, "\ufffd", "\ufffd", {"x": ["\ufffd"]}),
        ToolArguments(0, 0, '{"a":"\ufffd"}'),
        UnknownFields(0, FieldLocation.DELTA, {"y": "\ufffd"}),
    ]


def test_only_the_new_part_of_a_cumulative_message_is_emitted() -> None:
    reader = DeltaReader(RequestFacts(), RepairLog())
    calls = [{"id": "a"}]
    first = {"role": "assistant", "content": "Hel", "reasoning": "so", "tool_calls": calls}
    assert reader.add_message({}, first, 0) == first
    assert reader.add_message({}, {"content": "Hello", "reasoning": "so", "tool_calls": calls}, 0) == {
        "content": "lo",
        "reasoning": "so",
    }
    assert reader.add_message({}, {"content": None, "tool_calls": None}, 0) == {"content": None}
    assert reader.add_message({}, {"content": "Hello"}, 1) == {"content": "Hello"}


@table(
    ("texts", "new"),
    [
        # each extends the previous one: cumulative
        (["a", "ab", "abc"], ["a", "b", "c"]),
        (["Hello", "Hello", "Hello you"], ["Hello", "", " you"]),
        # increments
        (["Hel", "lo", "lo you"], ["Hel", "lo", "lo you"]),
        (["ha", "ha", "haha"], ["ha", "ha", "haha"]),
        (["a", "ab", "b", "bc"], ["a", "b", "b", "bc"]),
    ],
)
@table("key", ["content", "reasoning_content", "reasoning", "refusal"])
def test_texts_of_messages_are_cumulative_or_increments(key: str, texts: list[str], new: list[str]) -> None:
    reader = DeltaReader(RequestFacts(), RepairLog())
    assert [reader.add_message({}, {key: text}, 0)[key] for text in texts] == new


@table(
    ("value", "number"),
    [
        ("0", 0),
        ("12", 12),
        (3.0, 3),
        (0.0, 0),
        ("", None),
        ("-1", None),
        ("1.0", None),
        ("²", None),
        ("1" * 10, None),
        (2.5, None),
        (-1.0, None),
        (1e9, None),
        (float("nan"), None),
        (float("inf"), None),
        (True, None),
        (None, None),
        ([], None),
    ],
)
def test_an_index_is_parsed_from_a_string_or_float(value: object, number: int | None) -> None:
    assert parse_index(value) == number


def test_the_number_of_calls_with_split_characters_is_bounded() -> None:
    read = Read(*(piece("\ud83d", number) for number in range(5000)), is_careful=True)
    at_once = [event for event in read.events if event == ToolArguments(0, 4999, "\ufffd")]
    assert (len(read.events), at_once) == (5000, [ToolArguments(0, 4999, "\ufffd")])


@table(
    ("deltas", "names"),
    [
        ([{"content": "a"}, {"reasoning": ""}, {"reasoning_content": None}, {"reasoning": {"a": 1}}], []),
        ([{"reasoning_content": "", "reasoning": "a"}, {"reasoning": "b"}], [("reasoning",)]),
        ([{"role": "assistant", "reasoning_content": "a", "reasoning": None}], [("reasoning_content",)]),
        ([{"reasoning": "a", "reasoning_content": "b"}], [("reasoning_content", "reasoning")]),
        ([{"reasoning": "a"}, {"reasoning_content": "b"}], [("reasoning",)]),
    ],
)
def test_the_fields_of_the_first_reasoning_are_reported(deltas: list[Json], names: list[tuple[str, ...]]) -> None:
    reported: dict[tuple[str, ...], None] = {}  # the pipelines that are compared all report them
    options = RepairOptions(on_reasoning=lambda fields: reported.update({tuple(fields): None}))
    StreamPipeline(CHAT, fallback=FALLBACK, options=options).feed(stream(*map(delta_chunk, deltas)))
    assert list(reported) == names
