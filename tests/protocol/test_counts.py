"""Usage, made whole or left out."""

from typing import Any

from tests.protocol.build import count, rules
from tests.table import table
from welldone.protocol.events import Usage
from welldone.protocol.fields import is_placeholder_usage, read_usage, usage_object
from welldone.protocol.repair_log import RepairLog


def read(usage: dict[str, Any]) -> tuple[Usage | None, list[str]]:
    notes = RepairLog()
    return read_usage(usage, notes), rules(notes)


def test_right_counts_are_taken_as_they_are() -> None:
    more = {"prompt_tokens_details": {"cached_tokens": 2}, "cost": 0.5}
    assert read(count(5, 3, **more)) == (Usage(5, 3, 8, more), [])


@table(
    ("counts", "usage"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 3}, Usage(5, 3, 8, {})),
        ({"prompt_tokens": 5, "total_tokens": 8}, Usage(5, 3, 8, {})),
        ({"completion_tokens": 3, "total_tokens": 8}, Usage(5, 3, 8, {})),
        ({"prompt_tokens": "5", "completion_tokens": 3.0, "total_tokens": None}, Usage(5, 3, 8, {})),
        ({"prompt_tokens": True, "completion_tokens": 3, "total_tokens": 8}, Usage(5, 3, 8, {})),
        ({}, None),
        ({"total_tokens": 8}, None),
        ({"prompt_tokens": 5}, None),
        ({"prompt_tokens": 5, "completion_tokens": 2.5}, None),
        ({"prompt_tokens": 5, "completion_tokens": -2.0}, None),
        ({"prompt_tokens": 5, "completion_tokens": "many"}, None),
        ({"prompt_tokens": 5, "completion_tokens": "9" * 30}, None),
        ({"prompt_tokens": 9, "total_tokens": 8}, None),
        ({"completion_tokens": 9, "total_tokens": 8}, None),
        ({"prompt_tokens": float("nan"), "completion_tokens": float("inf")}, None),
    ],
)
def test_counts_that_are_no_integers_are_mended_or_left_out(counts: dict[str, Any], usage: Usage | None) -> None:
    assert read(counts) == (usage, ["use-ints"])


@table("odd", [-5, -5.0, 2**53, -(2**60), 10**400, 1e300])
def test_a_count_that_is_negative_or_beyond_all_reason_is_none(odd: object) -> None:
    assert read(count() | {"prompt_tokens": odd}) == (Usage(5, 3, 8, {}), ["use-ints"])
    assert read(count() | {"total_tokens": odd}) == (Usage(5, 3, 8, {}), ["use-ints"])
    assert read(dict.fromkeys(count(), odd)) == (None, ["use-ints"])


def test_a_total_that_is_no_sum_is_kept_and_limits_are_charged_with_the_larger_one() -> None:
    assert read(count(5, 3) | {"total_tokens": 9}) == (Usage(5, 3, 9, {}), ["use-total-sum"])
    assert read(count(5, 3) | {"total_tokens": 6}) == (Usage(5, 3, 6, {}), ["use-total-sum"])
    assert (Usage(5, 3, 9, {}).max_tokens_counted, Usage(5, 3, 6, {}).max_tokens_counted) == (9, 8)


def test_a_total_that_is_smaller_than_a_part_is_computed() -> None:
    assert read(count(5, 3) | {"total_tokens": 4}) == (Usage(5, 3, 8, {}), ["use-total-sum"])


@table("details", [None, 7, {"a": 1, "b": None, "c": 2.5, "d": True, "e": {"f": [1]}}, {"e": 2**53}])
def test_details_are_reported_if_odd_and_kept_as_they_are(details: object) -> None:
    rule = [] if details == {"e": 2**53} else ["use-details"]
    more = {"prompt_tokens_details": details}
    assert read(count(5, 3, **more)) == (Usage(5, 3, 8, more), rule)


def test_a_detail_that_is_written_as_a_string_becomes_an_integer() -> None:
    told = {"completion_tokens_details": {"reasoning_tokens": "2", "of": "x"}}
    kept = {"completion_tokens_details": {"reasoning_tokens": 2, "of": "x"}}
    assert read(count(5, 3, **told)) == (Usage(5, 3, 8, kept), ["use-details"])


def test_members_that_are_no_counts_are_kept_whatever_they_are() -> None:
    more = {"cost": 0.00012, "cost_details": {"upstream_inference_cost": None, "a": 1.5, "b": {"c": "1"}}, "x": None}
    assert read(count(5, 3, **more)) == (Usage(5, 3, 8, more), [])


def test_usage_is_written_as_openai_does() -> None:
    assert list(usage_object(Usage(5, 3, 8, {"cost": 0.5})).items()) == [
        ("prompt_tokens", 5),
        ("completion_tokens", 3),
        ("total_tokens", 8),
        ("cost", 0.5),
    ]


def test_a_count_of_nothing_is_a_placeholder() -> None:
    assert is_placeholder_usage(Usage(0, 0, 0, {})) is True
    assert is_placeholder_usage(Usage(5, 0, 5, {})) is False
    assert is_placeholder_usage(Usage(0, 3, 3, {})) is False
