"""Rate limits per key, with a manual clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.table import table
from welldone.config.server import KeySettings
from welldone.gateway.errors import ApiError
from welldone.server.access.limits import (
    BucketLevel,
    InMemoryBucketStorage,
    RateLimiter,
    UsageTotals,
    format_duration,
    keep_places,
)


class Clock:
    """A manual clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _refused(subject: RateLimiter, principal: str = "a") -> ApiError:
    with pytest.raises(ApiError) as caught:
        subject.take_request(principal)
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    return caught.value


def test_without_limits_there_are_no_headers_and_no_rejections() -> None:
    subject = RateLimiter(requests_per_minute=0, tokens_per_minute=0)
    subject.charge_tokens("a", 10**9)
    assert [subject.take_request("a") for _ in range(1000)] == [{}] * 1000


def test_a_minutes_requests_may_come_at_once_and_the_next_is_rejected() -> None:
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
    assert "3 requests per minute" in error.message
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


def test_tokens_are_charged_after_the_answer_and_may_overdraw() -> None:
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
    assert "600 tokens per minute" in error.message
    clock.now += 10.0
    subject.take_request("a")


def test_a_request_rejected_for_tokens_is_not_counted() -> None:
    clock = Clock()
    subject = RateLimiter(requests_per_minute=2, tokens_per_minute=60, clock=clock)
    subject.take_request("a")
    subject.charge_tokens("a", 60)
    for _ in range(5):
        assert _refused(subject).headers["x-ratelimit-remaining-requests"] == "1"
    clock.now += 1.0
    assert subject.take_request("a")["x-ratelimit-remaining-requests"] == "0"


def test_a_bucket_does_not_overflow_and_a_clock_that_goes_back_is_ignored() -> None:
    clock = Clock()
    subject = RateLimiter(requests_per_minute=2, tokens_per_minute=0, clock=clock)
    subject.take_request("a")
    clock.now += 10_000.0
    assert subject.take_request("a")["x-ratelimit-remaining-requests"] == "1"
    clock.now -= 500.0
    assert subject.take_request("a")["x-ratelimit-remaining-requests"] == "0"


def test_a_named_key_has_its_own_limits_or_the_common_ones() -> None:
    named = [
        KeySettings(name="ci", key="k1", requests_per_minute=2),
        KeySettings(name="free", key="k2", requests_per_minute=0, tokens_per_minute=0),
    ]
    subject = RateLimiter(requests_per_minute=1, tokens_per_minute=60, named=named, clock=Clock())
    assert subject.take_request("ci")["x-ratelimit-limit-requests"] == "2"
    assert subject.take_request("ci")["x-ratelimit-limit-tokens"] == "60"
    assert "2 requests per minute" in _refused(subject, "ci").message
    assert [subject.take_request("free") for _ in range(10)] == [{}] * 10
    subject.charge_tokens("free", 10**9)
    assert subject.take_request("free") == {}
    subject.take_request("a")
    assert "1 requests per minute" in _refused(subject, "a").message


def test_a_key_may_have_a_limit_when_the_server_has_none() -> None:
    named = [KeySettings(name="ci", key="k1", tokens_per_minute=60)]
    subject = RateLimiter(requests_per_minute=0, tokens_per_minute=0, named=named, clock=Clock())
    assert subject.take_request("a") == {}
    assert subject.take_request("ci")["x-ratelimit-remaining-tokens"] == "60"
    subject.charge_tokens("ci", 60)
    assert "60 tokens per minute" in _refused(subject, "ci").message


def test_a_new_bucket_is_full_even_at_clock_zero() -> None:
    clock = Clock()
    clock.now = 0.5
    subject = RateLimiter(requests_per_minute=3, tokens_per_minute=0, clock=clock)
    assert [subject.take_request("a")["x-ratelimit-remaining-requests"] for _ in range(3)] == ["2", "1", "0"]
    _refused(subject)


def test_processes_with_shared_storage_share_the_limits() -> None:
    numbers, clock = InMemoryBucketStorage(), Clock()
    first, second = (
        RateLimiter(requests_per_minute=2, tokens_per_minute=60, principals=["a", "b"], storage=numbers, clock=clock)
        for _ in range(2)
    )
    second.take_request("b")  # the order of first requests differs between processes
    first.take_request("a")
    assert second.take_request("a")["x-ratelimit-remaining-requests"] == "0"
    _refused(first, "a")
    first.take_request("b")
    _refused(first, "b")
    clock.now += 60.0
    second.charge_tokens("a", 61)
    assert "60 tokens per minute" in _refused(first, "a").message
    first.take_request("b")


def test_a_process_whose_clock_is_behind_does_not_refill_twice() -> None:
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
def test_durations_have_openais_format(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(
    st.integers(1, 10_000),
    st.integers(1, 10_000),
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 1000)), max_size=30),
)
def test_a_request_after_retry_after_is_admitted(requests: int, tokens: int, steps: list[tuple[float, int]]) -> None:
    clock = Clock()
    subject = RateLimiter(requests_per_minute=requests, tokens_per_minute=tokens, clock=clock)
    for pause_s, spent in steps:
        clock.now += pause_s
        try:
            subject.take_request("a")
        except ApiError as error:
            assert error.retry_after_s is not None  # noqa: PT017 - both branches of the try are right
            clock.now += error.retry_after_s
            subject.take_request("a")
        subject.charge_tokens("a", spent)


@given(st.integers(1, 100), st.lists(st.floats(0, 2), max_size=200))
def test_no_minute_admits_more_than_twice_the_limit(per_minute: int, pauses: list[float]) -> None:
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


def test_status_reports_the_remaining_limits_without_charging() -> None:
    subject = RateLimiter(requests_per_minute=3, tokens_per_minute=100, clock=Clock())
    subject.take_request("a")
    subject.charge_tokens("a", 30)
    first = subject.status("a")
    assert (first.requests, first.tokens) == (BucketLevel(3, 2), BucketLevel(100, 70))
    assert first.spent == UsageTotals(1, 30)
    assert subject.status("a") == first
    subject.charge_tokens("a", 200)
    assert subject.status("a").tokens == BucketLevel(100, 0)


def test_rejected_requests_are_not_counted_as_usage() -> None:
    subject = RateLimiter(requests_per_minute=1, tokens_per_minute=0, clock=Clock())
    subject.take_request("a")
    _refused(subject)
    assert subject.status("a").spent == UsageTotals(1, 0)


def test_usage_is_counted_without_limits() -> None:
    subject = RateLimiter(requests_per_minute=0, tokens_per_minute=0, principals=["a", "b"])
    subject.take_request("a")
    subject.charge_tokens("a", 7)
    usage = subject.status("a")
    assert (usage.requests, usage.tokens, usage.spent) == (None, None, UsageTotals(1, 7))
    assert subject.principals == ["a"]
    assert subject.totals() == {"a": UsageTotals(1, 7)}


def test_principals_with_limits_are_listed_before_their_first_request() -> None:
    named = [KeySettings(name="b", key="k" * 8, tokens_per_minute=5)]
    subject = RateLimiter(requests_per_minute=0, tokens_per_minute=0, named=named, principals=["a", "b"], clock=Clock())
    assert subject.principals == ["b"]
    assert subject.status("b").tokens == BucketLevel(5, 5)


def test_a_reload_keeps_the_places_of_keys_that_workers_share() -> None:
    clock, storage = Clock(), InMemoryBucketStorage()
    names = ["a", "b", "c"]
    one, other = (RateLimiter(2, 0, principals=names, storage=storage, clock=clock) for _ in range(2))
    for name in names:
        one.take_request(name)
    places = keep_places(names, ["c", "d", "a", "e"], storage)
    assert places == ["a", "d", "c", "e"]
    for limiter in (one, other):
        limiter.reload(2, 0, named=(), principals=["c", "d", "a", "e"], places=places)
    restarted = RateLimiter(2, 0, principals=places, storage=storage, clock=clock)
    other.take_request("c")
    _refused(restarted, "c")
    one.take_request("b")  # of a request in progress, whose key was removed: it is not charged to `d`
    other.take_request("d")
    restarted.take_request("d")
    _refused(one, "d")
    places = keep_places(places, ["a"], storage)
    assert places == ["a", "", "", ""]
    restarted = RateLimiter(2, 0, principals=places, storage=storage, clock=clock)
    restarted.take_request("a")
    _refused(one, "a")
    assert one.status("b").spent.requests == 2


def test_a_reload_forgets_removed_keys_at_the_next_one() -> None:
    limiter = RateLimiter(2, 0, principals=["a"])
    limiter.take_request("a")
    limiter.reload(2, 0, named=(), principals=["b"])
    assert limiter.totals() == {"a": UsageTotals(requests=1)}
    limiter.reload(2, 0, named=(), principals=["b"])
    assert limiter.totals() == {}
    limiter.reload(1, 0, named=[KeySettings(name="b", key="k", requests_per_minute=3)], principals=["b"])
    assert limiter.status("b").requests == BucketLevel(3, 3)


def test_a_reload_keeps_the_keys_of_a_shared_store() -> None:
    limiter = RateLimiter(2, 0, principals=["a"])
    limiter.take_request("stored")
    limiter.reload(2, 0, named=(), principals=["b", "c"])
    limiter.take_request("b")
    limiter.take_request("stored")
    _refused(limiter, "stored")
    assert limiter.status("c").requests == BucketLevel(2, 2)
