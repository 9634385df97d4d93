"""Usage objects of different servers."""

from typing import Any

from tests.protocol.build import (
    CHAT,
    FALLBACK,
    choice,
    chunk,
    content_chunks,
    count,
    role,
    rules,
    stream,
    usage_chunk,
)
from tests.table import table
from welldone.core.events import Usage
from welldone.core.fields import is_placeholder_usage, read_usage, usage_object
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import RequestFacts
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.stream.pipeline import StreamPipeline


def read(usage: dict[str, Any]) -> tuple[Usage | None, list[str]]:
    repair_log = RepairLog()
    return read_usage(usage, repair_log), rules(repair_log)


def test_correct_usage_is_read_unchanged() -> None:
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
def test_counts_that_are_not_integers_are_repaired_or_dropped(counts: dict[str, Any], usage: Usage | None) -> None:
    assert read(counts) == (usage, ["use-ints"])


@table("malformed", [-5, -5.0, 2**53, -(2**60), 10**400, 1e300])
def test_a_negative_or_huge_count_is_dropped(malformed: object) -> None:
    assert read(count() | {"prompt_tokens": malformed}) == (Usage(5, 3, 8, {}), ["use-ints"])
    assert read(count() | {"total_tokens": malformed}) == (Usage(5, 3, 8, {}), ["use-ints"])
    assert read(dict.fromkeys(count(), malformed)) == (None, ["use-ints"])


def test_a_total_that_is_not_the_sum_stays_and_limits_count_the_larger_one() -> None:
    assert read(count(5, 3) | {"total_tokens": 9}) == (Usage(5, 3, 9, {}), ["use-total-sum"])
    assert read(count(5, 3) | {"total_tokens": 6}) == (Usage(5, 3, 6, {}), ["use-total-sum"])
    assert (Usage(5, 3, 9, {}).max_tokens_counted, Usage(5, 3, 6, {}).max_tokens_counted) == (9, 8)


def test_a_total_that_is_smaller_than_a_part_is_recomputed() -> None:
    assert read(count(5, 3) | {"total_tokens": 4}) == (Usage(5, 3, 8, {}), ["use-total-sum"])


@table("details", [None, 7, {"a": 1, "b": None, "c": 2.5, "d": True, "e": {"f": [1]}}, {"e": 2**53}])
def test_malformed_details_are_recorded_and_stay_unchanged(details: object) -> None:
    rule = [] if details == {"e": 2**53} else ["use-details"]
    more = {"prompt_tokens_details": details}
    assert read(count(5, 3, **more)) == (Usage(5, 3, 8, more), rule)


def test_a_detail_that_is_a_string_becomes_an_integer() -> None:
    sent = {"completion_tokens_details": {"reasoning_tokens": "2", "of": "x"}}
    read_details = {"completion_tokens_details": {"reasoning_tokens": 2, "of": "x"}}
    assert read(count(5, 3, **sent)) == (Usage(5, 3, 8, read_details), ["use-details"])


def test_other_members_of_usage_stay_unchanged() -> None:
    more = {"cost": 0.00012, "cost_details": {"upstream_inference_cost": None, "a": 1.5, "b": {"c": "1"}}, "x": None}
    assert read(count(5, 3, **more)) == (Usage(5, 3, 8, more), [])


def test_usage_is_written_in_openai_s_format() -> None:
    assert list(usage_object(Usage(5, 3, 8, {"cost": 0.5})).items()) == [
        ("prompt_tokens", 5),
        ("completion_tokens", 3),
        ("total_tokens", 8),
        ("cost", 0.5),
    ]


def test_usage_of_zero_tokens_is_a_placeholder() -> None:
    assert is_placeholder_usage(Usage(0, 0, 0, {})) is True
    assert is_placeholder_usage(Usage(5, 0, 5, {})) is False
    assert is_placeholder_usage(Usage(0, 3, 3, {})) is False


@table(
    ("in_choice", "after", "choices", "usage"),
    [
        (count(5, 3), [], 1, Usage(5, 3, 8, {})),
        (count(5, 3), [usage_chunk(count(5, 4))], 1, Usage(5, 4, 9, {})),
        (count(5, 3), [usage_chunk(count(0, 0))], 1, Usage(5, 3, 8, {})),
        (count(0, 0), [], 1, None),
        ({"prompt_tokens": 5}, [], 1, None),
        ("none", [], 1, None),
        (count(5, 3), [], 2, None),  # one of two counts
    ],
)
def test_usage_in_the_last_choice_counts_unless_there_is_one_on_a_chunk(
    in_choice: object, after: list[object], choices: int, usage: Usage | None
) -> None:
    last = chunk(choice({}, "stop", usage=in_choice))
    facts = RequestFacts(include_usage=True, choice_count=choices)
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=facts)
    sent = pipeline.feed(stream(role(), *content_chunks("a"), last, *after)) + pipeline.close()
    assert pipeline.usage == usage
    assert b'"stop","usage":' in sent  # the member is forwarded


def test_usage_that_came_before_precedes_usage_in_a_choice() -> None:
    first = chunk(choice({"content": "a"}), usage=count(5, 4))
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK)
    pipeline.feed(stream(role(), first, chunk(choice({}, "stop", usage=count(5, 3)))))
    assert pipeline.usage == Usage(5, 4, 9, {})


def test_usage_in_a_choice_is_reported() -> None:
    start = [role(), *content_chunks("a")]
    misplaced = chunk(choice({}, "stop", usage=count()))
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    for request, end, findings in (
        (None, [misplaced], ["use-null-elsewhere tolerated"]),
        (usage, [misplaced], ["use-null-elsewhere tolerated", "use-final-chunk breaks"]),
        ({"stream": True}, [misplaced], []),
        (None, [misplaced, usage_chunk(count())], []),
        (usage, [misplaced, usage_chunk(count())], []),
    ):
        report = judge(Trace(body=stream(*start, *end), request=request))
        assert sorted(f"{one.rule} {one.severity}" for one in report.findings) == sorted(findings)
