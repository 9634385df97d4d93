"""The circuit breaker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.upstreams import Clock
from welldone.gateway.upstream import FAILURE_THRESHOLD, OPEN_MAX_S, OPEN_S, CircuitBreaker


def _opened(clock: Clock) -> CircuitBreaker:
    breaker = CircuitBreaker(clock=clock)
    for _ in range(FAILURE_THRESHOLD):
        breaker.record_failure()
    return breaker


def test_it_opens_after_consecutive_failures() -> None:
    breaker = CircuitBreaker(clock=Clock())
    for _ in range(FAILURE_THRESHOLD - 1):
        breaker.record_failure()
    breaker.record_success()
    for _ in range(FAILURE_THRESHOLD - 1):
        breaker.record_failure()
    assert (breaker.state, breaker.allows_request(), breaker.opened_at) == ("closed", True, None)
    breaker.record_failure()
    assert (breaker.state, breaker.allows_request(), breaker.opened_at) == ("open", False, 0.0)
    assert breaker.retry_after_s == OPEN_S


def test_it_is_half_open_after_the_open_period() -> None:
    clock = Clock()
    breaker = _opened(clock)
    clock.now = OPEN_S - 0.1
    assert (breaker.state, breaker.allows_request()) == ("open", False)
    clock.now = OPEN_S
    assert (breaker.state, breaker.allows_request(), breaker.retry_after_s) == ("half-open", True, 0.0)


def test_only_one_probe_is_in_flight() -> None:
    clock = Clock()
    breaker = _opened(clock)
    clock.now = OPEN_S
    breaker.begin_request()
    assert (breaker.state, breaker.allows_request()) == ("half-open", False)
    breaker.record_success()
    assert (breaker.state, breaker.allows_request()) == ("closed", True)


def test_a_probe_without_a_result_expires() -> None:
    clock = Clock()
    breaker = _opened(clock)
    clock.now = OPEN_S
    breaker.begin_request()
    clock.now += OPEN_S - 0.1
    assert not breaker.allows_request()
    clock.now += 0.1
    assert breaker.allows_request()
    breaker.begin_request()
    assert not breaker.allows_request()


def test_the_open_period_grows_up_to_a_limit() -> None:
    clock = Clock()
    breaker = _opened(clock)
    waits = []
    for _ in range(12):
        waits.append(breaker.retry_after_s)
        clock.now += breaker.retry_after_s
        breaker.record_failure(breaker.begin_request())
    assert waits == [OPEN_S * times for times in range(1, 11)] + [OPEN_MAX_S] * 2
    breaker.record_success()
    for _ in range(FAILURE_THRESHOLD):
        breaker.record_failure()
    assert breaker.retry_after_s == OPEN_S


def test_failures_of_requests_sent_before_it_opened_are_ignored() -> None:
    clock = Clock()
    breaker = _opened(clock)
    for _ in range(100):
        breaker.record_failure()
    assert breaker.retry_after_s == OPEN_S
    clock.now = OPEN_S
    breaker.record_failure()
    assert (breaker.state, breaker.allows_request()) == ("half-open", True)
    probe = breaker.begin_request()
    for _ in range(100):
        breaker.record_failure()
    assert breaker.state == "half-open"
    for _ in range(100):
        breaker.record_failure(probe)
    assert breaker.retry_after_s == 2 * OPEN_S


def test_while_open_only_the_probe_counts() -> None:
    clock = Clock()
    breaker = _opened(clock)
    through = breaker.begin_request()  # sent although it is open: no other upstream exists
    clock.now = OPEN_S
    probe = breaker.begin_request()
    later = breaker.begin_request()
    for other in (through, later):
        breaker.cancel_request(other)
        breaker.record_failure(other)
    assert (breaker.state, breaker.allows_request()) == ("half-open", False)
    breaker.record_failure(probe)
    assert (breaker.state, breaker.retry_after_s) == ("open", 2 * OPEN_S)
    breaker.cancel_request(probe)
    clock.now += 2 * OPEN_S
    again = breaker.begin_request()
    breaker.record_failure(probe)  # the probe has expired
    assert breaker.state == "half-open"
    breaker.cancel_request(again)
    assert breaker.allows_request()


def test_a_success_through_an_open_breaker_closes_it() -> None:
    breaker = _opened(Clock())
    breaker.begin_request()
    breaker.record_success()
    assert breaker.state == "closed"


def test_each_change_of_state_is_reported_once() -> None:
    clock, states = Clock(), []
    breaker = CircuitBreaker(clock=clock, on_change=lambda: states.append(breaker.state))
    breaker.record_success()
    for _ in range(2 * FAILURE_THRESHOLD):
        breaker.record_failure()
    clock.now = OPEN_S
    breaker.record_failure(breaker.begin_request())
    breaker.record_success()
    breaker.record_success()
    assert states == ["open", "open", "closed"]


@given(st.lists(st.sampled_from(["request", "succeed", "fail"]) | st.floats(0, 400), max_size=60))
def test_an_opened_breaker_never_has_two_probes_in_flight(steps: list[str | float]) -> None:
    clock = Clock()
    breaker = _opened(clock)
    probed_at: float | None = None
    probe = 0
    for step in steps:
        if isinstance(step, float):
            clock.now += step
        elif step == "succeed":
            breaker.record_success()
            probed_at = None
        elif step == "fail":
            breaker.record_failure(probe)
            probed_at = None if breaker.state != "half-open" else probed_at
        elif breaker.allows_request():
            if breaker.state == "half-open":
                assert probed_at is None or clock.now >= probed_at + OPEN_S
                probed_at = clock.now
            probe = breaker.begin_request()
        assert breaker.state == "closed" or breaker.retry_after_s <= OPEN_MAX_S
        assert (breaker.state == "open") == (breaker.retry_after_s > 0)
        if breaker.state == "half-open" and probed_at == clock.now:
            assert not breaker.allows_request()


@pytest.mark.parametrize("failures", [1, 3])
def test_the_failure_threshold_is_configurable(failures: int) -> None:
    breaker = CircuitBreaker(clock=Clock(), failure_threshold=failures, open_s=1.0)
    for _ in range(failures):
        assert breaker.state == "closed"
        breaker.record_failure()
    assert (breaker.state, breaker.retry_after_s) == ("open", 1.0)
