"""Limits: each key its own, paid by a clock that the test holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.table import table
from welldone.config.server import KeySettings
from welldone.gateway.errors import ApiError
from welldone.server.access.limits import BucketLevel, InMemoryBucketStorage, RateLimiter, UsageTotals, format_duration


class Clock:
    """Time that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _refused(subject: RateLimiter, principal: str = "a") -> ApiError:
    with pytest.raises(ApiError) as caught:
        subject.take_request(principal)
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    return caught.value


def test_without_limits_there_are_no_headers_and_no_refusals() -> None:
    subject = RateLimiter(requests_per_minute=0, tokens_per_minute=0)
    subject.charge_tokens("a", 10**9)
    assert [subject.take_request("a") for _ in range(1000)] == [{}] * 1000


def test_a_minutes_requests_may_come_at_once_and_the_next_one_waits() -> None:
    clock = Clock()
    subject = RateLimiter(requests_per_minute=3, tokens_per_minute=0, clock=clock)
    assert subject.take_request("a") == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "20s",
    }
    subject.take_request("a")
    assert subject.take_request("a")["x-ratelimit-remaining-requests"] == "0"
    error = _refused(subject)
    assert error.retry_after_s == 20.0
    assert error.headers["x-ratelimit-reset-requests"] == "1m0s"
    assert "3 requests a minute" in error.message
    clock.now += 19.9
    _refused(subject)
    clock.now += 0.1
    subject.take_request("a")
    _refused(subject)


def test_each_principal_has_its_own_limits() -> None:
    subject = RateLimiter(requests_per_minute=1, tokens_per_minute=0, clock=Clock())
    subject.take_request("a")
    _refused(subject, "a")
    subject.take_request("b")


def test_tokens_are_paid_after_the_answer_and_a_debt_is_waited_for() -> None:
    clock = Clock()
    subject = RateLimiter(requests_per_minute=0, tokens_per_minute=600, clock=clock)
    assert subject.take_request("a")["x-ratelimit-remaining-tokens"] == "600"
    subject.charge_tokens("a", 100)
    headers = subject.take_request("a")
    assert headers["x-ratelimit-remaining-tokens"] == "500"
    assert headers["x-ratelimit-reset-tokens"] == "10s"
    assert "x-ratelimit-limit-requests" not in headers
    subject.charge_tokens("a", 599)
    error = _refused(subject)
    assert error.retry_after_s == pytest.approx(10.0)
    assert error.headers["x-ratelimit-remaining-tokens"] == "0"
    assert "600 tokens a minute" in error.message
    clock.now += 10.0
    subject.take_request("a")


def test_a_request_that_the_tokens_refuse_is_not_counted() -> None:
    clock = Clock()
    subject = RateLimiter(requests_per_minute=2, tokens_per_minute=60, clock=clock)
    subject.take_request("a")
    subject.charge_tokens("a", 60)
    for _ in range(5):
        assert _refused(subject).headers["x-ratelimit-remaining-requests"] == "1"
    clock.now += 1.0
    assert subject.take_request("a")["x-ratelimit-remaining-requests"] == "0"


def test_an_unused_bucket_does_not_grow_and_a_clock_that_goes_back_takes_nothing() -> None:
    clock = Clock()
    subject = RateLimiter(requests_per_minute=2, tokens_per_minute=0, clock=clock)
    subject.take_request("a")
    clock.now += 10_000.0
    assert subject.take_request("a")["x-ratelimit-remaining-requests"] == "1"
    clock.now -= 500.0
    assert subject.take_request("a")["x-ratelimit-remaining-requests"] == "0"


def test_a_named_key_has_rates_of_its_own_and_the_servers_where_it_says_nothing() -> None:
    named = [
        KeySettings(name="ci", key="k1", requests_per_minute=2),
        KeySettings(name="free", key="k2", requests_per_minute=0, tokens_per_minute=0),
    ]
    subject = RateLimiter(requests_per_minute=1, tokens_per_minute=60, named=named, clock=Clock())
    assert subject.take_request("ci")["x-ratelimit-limit-requests"] == "2"
    assert subject.take_request("ci")["x-ratelimit-limit-tokens"] == "60"
    assert "2 requests a minute" in _refused(subject, "ci").message
    assert [subject.take_request("free") for _ in range(10)] == [{}] * 10
    subject.charge_tokens("free", 10**9)
    assert subject.take_request("free") == {}
    subject.take_request("a")
    assert "1 requests a minute" in _refused(subject, "a").message


def test_a_key_may_have_a_rate_where_the_server_has_none() -> None:
    named = [KeySettings(name="ci", key="k1", tokens_per_minute=60)]
    subject = RateLimiter(requests_per_minute=0, tokens_per_minute=0, named=named, clock=Clock())
    assert subject.take_request("a") == {}
    assert subject.take_request("ci")["x-ratelimit-remaining-tokens"] == "60"
    subject.charge_tokens("ci", 60)
    assert "60 tokens a minute" in _refused(subject, "ci").message


def test_a_new_bucket_is_full_also_on_a_machine_that_has_just_started() -> None:
    clock = Clock()
    clock.now = 0.5
    subject = RateLimiter(requests_per_minute=3, tokens_per_minute=0, clock=clock)
    assert [subject.take_request("a")["x-ratelimit-remaining-requests"] for _ in range(3)] == ["2", "1", "0"]
    _refused(subject)


def test_processes_that_share_the_numbers_share_the_limits() -> None:
    numbers, clock = InMemoryBucketStorage(), Clock()
    first, second = (
        RateLimiter(requests_per_minute=2, tokens_per_minute=60, principals=["a", "b"], storage=numbers, clock=clock)
        for _ in range(2)
    )
    second.take_request("b")  # the order in which they come is another one in each process
    first.take_request("a")
    assert second.take_request("a")["x-ratelimit-remaining-requests"] == "0"
    _refused(first, "a")
    first.take_request("b")
    _refused(first, "b")
    clock.now += 60.0
    second.charge_tokens("a", 61)
    assert "60 tokens a minute" in _refused(first, "a").message
    first.take_request("b")


def test_a_process_whose_clock_is_behind_is_not_paid_twice() -> None:
    numbers, early, late = InMemoryBucketStorage(), Clock(), Clock()
    late.now += 30.0
    first, second = (
        RateLimiter(requests_per_minute=2, tokens_per_minute=0, storage=numbers, clock=clock) for clock in (early, late)
    )
    first.take_request("a")
    first.take_request("a")
    second.take_request("a")
    _refused(first, "a")
    _refused(second, "a")


@table(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (-1.0, "0s"),
        (0.0001, "1ms"),
        (0.02, "20ms"),
        (0.9999, "1s"),
        (1.0, "1s"),
        (8.64, "8.64s"),
        (59.9999, "1m0s"),
        (60.0, "1m0s"),
        (360.0, "6m0s"),
        (432.2, "7m13s"),
        (3603.0, "1h0m3s"),
        (1e6, "277h46m40s"),
    ],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(
    st.integers(1, 10_000),
    st.integers(1, 10_000),
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 1000)), max_size=30),
)
def test_who_comes_when_told_is_let_in(requests: int, tokens: int, steps: list[tuple[float, int]]) -> None:
    clock = Clock()
    subject = RateLimiter(requests_per_minute=requests, tokens_per_minute=tokens, clock=clock)
    for pause_s, spent in steps:
        clock.now += pause_s
        try:
            subject.take_request("a")
        except ApiError as error:
            assert error.retry_after_s is not None  # noqa: PT017  # both ways of the try are right
            clock.now += error.retry_after_s
            subject.take_request("a")
        subject.charge_tokens("a", spent)


@given(st.integers(1, 100), st.lists(st.floats(0, 2), max_size=200))
def test_no_minute_and_a_bucket_lets_more_through_than_twice_the_limit(per_minute: int, pauses: list[float]) -> None:
    clock = Clock()
    subject = RateLimiter(requests_per_minute=per_minute, tokens_per_minute=0, clock=clock)
    passed: list[float] = []
    for pause_s in pauses:
        clock.now += pause_s
        try:
            subject.take_request("a")
        except ApiError:
            continue
        passed.append(clock.now)
        assert sum(at > clock.now - 60 for at in passed) <= 2 * per_minute


def test_usage_tells_what_is_left_and_takes_nothing() -> None:
    subject = RateLimiter(requests_per_minute=3, tokens_per_minute=100, clock=Clock())
    subject.take_request("a")
    subject.charge_tokens("a", 30)
    first = subject.status("a")
    assert (first.requests, first.tokens) == (BucketLevel(3, 2), BucketLevel(100, 70))
    assert first.spent == UsageTotals(1, 30)
    assert subject.status("a") == first
    subject.charge_tokens("a", 200)
    assert subject.status("a").tokens == BucketLevel(100, 0)


def test_what_was_refused_is_not_spent() -> None:
    subject = RateLimiter(requests_per_minute=1, tokens_per_minute=0, clock=Clock())
    subject.take_request("a")
    _refused(subject)
    assert subject.status("a").spent == UsageTotals(1, 0)


def test_without_limits_what_was_spent_is_counted_all_the_same() -> None:
    subject = RateLimiter(requests_per_minute=0, tokens_per_minute=0, principals=["a", "b"])
    subject.take_request("a")
    subject.charge_tokens("a", 7)
    usage = subject.status("a")
    assert (usage.requests, usage.tokens, usage.spent) == (None, None, UsageTotals(1, 7))
    assert subject.principals == ["a"]
    assert subject.totals() == {"a": UsageTotals(1, 7)}


def test_who_has_a_limit_is_named_also_before_asking() -> None:
    named = [KeySettings(name="b", key="k" * 8, tokens_per_minute=5)]
    subject = RateLimiter(requests_per_minute=0, tokens_per_minute=0, named=named, principals=["a", "b"], clock=Clock())
    assert subject.principals == ["b"]
    assert subject.status("b").tokens == BucketLevel(5, 5)
