"""What was mended, by rule."""

from tests.table import table
from welldone.protocol import catalog
from welldone.protocol.repair_log import RepairEntry, RepairLog, format_json


def test_a_fault_is_noted_once_and_counted() -> None:
    notes = RepairLog()
    notes.frame, notes.byte = 3, 120
    notes.record(catalog.delta.ROLE_ONCE, "first")
    notes.record(catalog.fin.KEY_PRESENT)
    notes.frame, notes.byte = 4, 150
    notes.record(catalog.delta.ROLE_ONCE, "second")
    assert notes.entries() == [
        RepairEntry("delta-role-once", 2, 3, 120, "first"),
        RepairEntry("fin-key-present", 1, 3, 120, ""),
    ]


def test_rules_of_the_other_endpoint_are_not_noted() -> None:
    for endpoint, noted in (("chat", "fin-key-present"), ("completions", "cmpl-finish")):
        notes = RepairLog(endpoint)
        notes.record(catalog.fin.KEY_PRESENT)
        notes.record(catalog.cmpl.FINISH)
        notes.record(catalog.end.DONE_SENT)
        assert [note.rule for note in notes.entries()] == [noted, "end-done-sent"]


def test_nothing_noted_is_an_empty_list() -> None:
    assert RepairLog().entries() == []


def test_what_was_heard_is_cut_to_what_a_log_line_holds() -> None:
    notes = RepairLog()
    notes.record(catalog.enc.STRICT_JSON, "x" * 200)
    notes.record(catalog.enc.VALID_UTF8, "x" * 201)
    notes.record(catalog.env.ID_PRESENT, {"id": None})
    assert [note.observed for note in notes.entries()] == ["x" * 200, "x" * 199 + "…", '{"id":null}']


def test_notes_stay_as_few_as_the_rules_however_often_they_are_made() -> None:
    notes = RepairLog()
    for number in range(100_000):
        notes.record(catalog.fin.KEY_PRESENT, number)
    assert notes.entries() == [RepairEntry("fin-key-present", 100_000, 0, 0, "0")]


@table(
    ("strict", "broken"),
    [
        (set(), None),
        ({"fin-key-present"}, "fin-key-present"),
        ({"fin-key-present", "delta-role-once"}, "delta-role-once"),
        ({"end-done-sent"}, None),
        ({"tool-args-json-object"}, "tool-args-json-object"),
        ({"all"}, "delta-role-once"),
    ],
)
def test_the_first_rule_that_may_not_be_broken_is_told(strict: set[str], broken: str | None) -> None:
    notes = RepairLog("chat")
    notes.strict_rules = frozenset(strict)
    # The first has a mend that can only report, the second is of the other endpoint: neither is among "all".
    for fault in (catalog.tool.ARGS_JSON_OBJECT, catalog.cmpl.FINISH, catalog.delta.ROLE_ONCE, catalog.fin.KEY_PRESENT):
        notes.record(fault)
    assert notes.broken_rule == broken


def test_after_a_hush_nothing_is_noted() -> None:
    notes = RepairLog()
    notes.strict_rules = frozenset({"all"})
    notes.record(catalog.tool.ARGS_JSON_OBJECT)
    notes.mute()
    notes.record(catalog.tool.ARGS_JSON_OBJECT)
    notes.record(catalog.delta.ROLE_ONCE)
    assert [(note.rule, note.count) for note in notes.entries()] == [("tool-args-json-object", 1)]
    assert notes.broken_rule is None


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@table(
    ("value", "shown"),
    [
        (None, "null"),
        ("é", '"é"'),
        ([1, {"a": 2.5}], '[1,{"a":2.5}]'),
        ("\ud83d", "(something that cannot be shown)"),
    ],
)
def test_a_value_is_shown_as_json(value: object, shown: str) -> None:
    assert format_json(value) == shown


def test_a_value_that_is_nested_too_deeply_is_not_shown() -> None:
    assert format_json(nested(100_000)) == "(something that cannot be shown)"
