"""Assertions and goodput limits: parsing, errors, results."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.reports import OTHER, record, step
from tests.table import table
from welldone.bench.report import StepResult
from welldone.bench.settings import Assertion, GoodputBound
from welldone.bench.stats import check_assertions, distribution, parse_assertion, parse_goodput_bound

STEP = msgspec.structs.replace(
    step("throughput", [record(number) for number in range(8)]),
    outcomes={"ok": 8, "cut": 1, "timed out": 1, "unfinished": 3},
    due=20,
    good=6,
    request_rate=4.0,
    token_rate=120.0,
    times={name: distribution(number / 10 for number in range(100)) for name in ("ttft", "gap", "rate")},
)


@table(
    ("text", "metric", "statistic", "is_below", "limit"),
    [
        ("ttft.p99<800ms", "ttft", "p99", True, 0.8),
        ("token_rate>100", "token_rate", "", False, 100),
        ("error_rate<1%", "error_rate", "", True, 0.01),
        ("error_rate<=0.01", "error_rate", "", True, 0.01),
        ("e2e.mean<2s", "e2e", "mean", True, 2),
        ("itl.p50 < 50 ms", "itl", "p50", True, 0.05),
        ("request_rate>=4", "request_rate", "", False, 4),
        ("goodput>95%", "goodput", "", False, 0.95),
        ("goodput>=57%", "goodput", "", False, 57 / 100),
        (" stall.p99.9<1.5s ", "stall", "p99.9", True, 1.5),
        ("rate.min>20", "rate", "min", False, 20),
    ],
)
def test_an_assertion_is_parsed(text: str, metric: str, statistic: str, is_below: bool, limit: float) -> None:
    assert parse_assertion(text) == Assertion(text, metric, statistic, is_below, limit)


@table(
    ("text", "match"),
    [
        ("", "as in ttft.p99<800ms"),
        ("ttft.p99", "as in ttft.p99<800ms"),
        ("ttft.p99=800ms", "then < <= > or >="),
        ("ttft.p99<-1ms", "is not an assertion"),
        ("ttft.p99<1e3ms", "another unit|is not an assertion"),
        ("ttft.p99<800ms please", "is not an assertion"),
        ("latency.p99<800ms", "no metric 'latency'; there are head, "),
        ("ttft<800ms", "ttft is not one number; write ttft. and one of mean, min, max, p50"),
        ("ttft.p98<800ms", "no statistic 'p98'"),
        ("ttft.p99<800", "write ttft.p99<800ms or ttft.p99<800s"),
        ("ttft.p99<800%", "another unit"),
        ("token_rate.p50>1", "write it without .p50"),
        ("token_rate>1ms", "write token_rate>1$"),
        ("error_rate<1s", "write error_rate<1% or error_rate<1$"),
    ],
)
def test_an_invalid_assertion_is_rejected_with_a_hint(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        parse_assertion(text)


@given(st.text(max_size=30) | st.from_regex(r"(ttft|rate|goodput)(\.p\d\d)?[<>]=?\d+(ms|s|%)?", fullmatch=True))
def test_any_text_is_an_assertion_or_a_value_error(text: str) -> None:
    try:
        found = parse_assertion(text)
    except ValueError:
        with pytest.raises(ValueError, match=re.escape(repr(text))):
            parse_assertion(text)
        return
    assert found.text == text
    assert found.limit >= 0
    assert len(check_assertions([found], [STEP])) == 1


@pytest.mark.parametrize(
    ("text", "wanted"), [("ttft:500", GoodputBound("ttft", 0.5)), ("itl:37.5", GoodputBound("itl", 0.0375))]
)
def test_a_limit_is_in_milliseconds(text: str, wanted: GoodputBound) -> None:
    assert parse_goodput_bound(text) == wanted


@table("text", ["", "ttft", "ttft:", "ttft:fast", "ttft:-1", "tpot:50", "ttft:500ms", "ttft=500"])
def test_an_invalid_limit_is_rejected_with_a_hint(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a limit: write ttft, itl, e2e, .* as in ttft:500"):
        parse_goodput_bound(text)


@table(
    ("text", "value", "passes"),
    [
        ("token_rate>100", 120.0, True),
        ("token_rate<100", 120.0, False),
        ("request_rate>4", 4.0, False),
        ("request_rate>=4", 4.0, True),
        ("request_rate<4", 4.0, False),
        ("request_rate<=4", 4.0, True),
        ("error_rate<=20%", 0.2, True),  # unfinished requests are not failures
        ("error_rate<20%", 0.2, False),
        ("goodput>=30%", 0.3, True),  # of all due requests
        ("goodput>50%", 0.3, False),
        ("ttft.mean<5s", 4.95, True),
        ("ttft.min<1ms", 0.0, True),
        ("ttft.max<9s", 9.9, False),
        ("ttft.p90<9s", 8.91, True),
        ("ttft.p99<1000s", None, False),  # a hundred samples are too few
        ("gap.p50<5s", 4.95, True),
        ("rate.p50>5", 4.95, False),
    ],
)
def test_an_assertion_is_judged_by_the_numbers_of_the_step(text: str, value: float | None, passes: bool) -> None:
    (checked,) = check_assertions([parse_assertion(text)], [STEP])
    assert (checked.text, checked.step, checked.passed) == (text, "throughput", passes)
    assert checked.value == (None if value is None else pytest.approx(value))


@table(
    ("text", "odd"),
    [
        ("goodput>0%", msgspec.structs.replace(STEP, good=None)),
        ("goodput>=0%", msgspec.structs.replace(STEP, due=0, good=0)),
        ("error_rate<100%", msgspec.structs.replace(STEP, outcomes={"unfinished": 2})),
        ("ttft.mean<9s", msgspec.structs.replace(STEP, times={"ttft": distribution([])})),
    ],
)
def test_an_assertion_on_a_missing_value_fails(text: str, odd: StepResult) -> None:
    (checked,) = check_assertions([parse_assertion(text)], [odd])
    assert (checked.value, checked.passed) == (None, False)


def test_every_step_of_the_first_server_except_the_warm_up_is_checked() -> None:
    ids = ("warmup", "throughput", "constant@1.20req/s")
    steps = [msgspec.structs.replace(STEP, id=id, target=url) for id in ids for url in (STEP.target, OTHER)]
    found = check_assertions([parse_assertion("token_rate>1"), parse_assertion("request_rate>9")], steps)
    assert [(checked.text, checked.step, checked.passed) for checked in found] == [
        ("token_rate>1", "throughput", True),
        ("token_rate>1", "constant@1.20req/s", True),
        ("request_rate>9", "throughput", False),
        ("request_rate>9", "constant@1.20req/s", False),
    ]


def test_without_a_step_nothing_is_checked() -> None:
    assert check_assertions([parse_assertion("token_rate>1")], []) == ()
