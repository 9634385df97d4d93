"""Repair log."""

from hypothesis import given
from hypothesis import strategies as st

from tests.table import table
from welldone.core.repair_log import RepairEntry, RepairLog, format_json, shorten


def test_violations_of_a_rule_have_one_entry_with_a_count() -> None:
    repair_log = RepairLog()
    repair_log.frame, repair_log.byte = 3, 120
    repair_log.record("delta-role-once", "first")
    repair_log.record("fin-key-present")
    repair_log.frame, repair_log.byte = 4, 150
    repair_log.record("delta-role-once", "second")
    assert repair_log.entries() == [
        RepairEntry("delta-role-once", 2, 3, 120, "first"),
        RepairEntry("fin-key-present", 1, 3, 120, ""),
    ]


def test_rules_of_another_endpoint_are_not_recorded() -> None:
    for endpoint, recorded in (("chat", "fin-key-present"), ("completions", "cmpl-finish")):
        repair_log = RepairLog(endpoint)
        repair_log.record("fin-key-present")
        repair_log.record("cmpl-finish")
        repair_log.record("end-done-sent")
        assert [repair.rule for repair in repair_log.entries()] == [recorded, "end-done-sent"]


def test_an_empty_log_has_no_entries() -> None:
    assert RepairLog().entries() == []


def test_the_observed_value_is_shortened() -> None:
    repair_log = RepairLog()
    repair_log.record("enc-strict-json", "x" * 200)
    repair_log.record("enc-valid-utf8", "x" * 201)
    repair_log.record("env-id-present", {"id": None})
    assert [repair.observed for repair in repair_log.entries()] == ["x" * 200, "x" * 199 + "…", '{"id":null}']


_WORDS = st.text(max_size=4) | st.builds("{}{}".format, st.text(min_size=1, max_size=3), st.just("ä\n" * 150))
_VALUES = st.recursive(
    _WORDS | st.none() | st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=8,
)


@given(_VALUES, st.integers(1, 300))
def test_the_observed_value_is_the_start_of_its_json(value: object, count: int) -> None:
    repair_log = RepairLog()
    repair_log.record("env-id-present", [value] * count)
    assert repair_log.entries()[0].observed == shorten(format_json([value] * count), 200)


def test_the_log_has_at_most_one_entry_per_rule() -> None:
    repair_log = RepairLog()
    for number in range(100_000):
        repair_log.record("fin-key-present", number)
    assert repair_log.entries() == [RepairEntry("fin-key-present", 100_000, 0, 0, "0")]


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
def test_the_first_violated_strict_rule_is_stored(strict: set[str], broken: str | None) -> None:
    repair_log = RepairLog("chat")
    repair_log.strict_rules = frozenset(strict)
    # The first has no repair, the second belongs to another endpoint: "all" includes neither.
    for rule in ("tool-args-json-object", "cmpl-finish", "delta-role-once", "fin-key-present"):
        repair_log.record(rule)
    assert repair_log.broken_rule == broken


def test_a_muted_log_records_nothing() -> None:
    repair_log = RepairLog()
    repair_log.strict_rules = frozenset({"all"})
    repair_log.record("tool-args-json-object")
    repair_log.mute()
    repair_log.record("tool-args-json-object")
    repair_log.record("delta-role-once")
    assert [(repair.rule, repair.count) for repair in repair_log.entries()] == [("tool-args-json-object", 1)]
    assert repair_log.broken_rule is None


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
        ("\ud83d", "(value that cannot be encoded)"),
    ],
)
def test_a_value_is_formatted_as_json(value: object, shown: str) -> None:
    assert format_json(value) == shown


def test_a_value_that_is_nested_too_deeply_is_not_formatted() -> None:
    assert format_json(nested(100_000)) == "(value that cannot be encoded)"
