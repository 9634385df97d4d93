"""When a server is left alone, and when it is tried again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.lab import Clock
from welldone.gateway.upstream import FAILURE_THRESHOLD, OPEN_MAX_S, OPEN_S, CircuitBreaker


def _opened(clock: Clock) -> CircuitBreaker:
    breaker = CircuitBreaker(clock=clock)
    for _ in range(FAILURE_THRESHOLD):
        breaker.record_failure()
    return breaker


def test_it_opens_after_so_many_failures_in_a_row() -> None:
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


def test_it_is_half_open_after_its_time() -> None:
    clock = Clock()
    breaker = _opened(clock)
    clock.now = OPEN_S - 0.1
    assert (breaker.state, breaker.allows_request()) == ("open", False)
    clock.now = OPEN_S
    assert (breaker.state, breaker.allows_request(), breaker.retry_after_s) == ("half-open", True, 0.0)


def test_one_probe_at_a_time_may_go() -> None:
    clock = Clock()
    breaker = _opened(clock)
    clock.now = OPEN_S
    breaker.begin_request()
    assert (breaker.state, breaker.allows_request()) == ("half-open", False)
    breaker.record_success()
    assert (breaker.state, breaker.allows_request()) == ("closed", True)


def test_a_probe_that_tells_nothing_is_given_up() -> None:
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


def test_it_is_open_for_longer_each_time_up_to_a_limit() -> None:
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


def test_what_went_before_it_was_opened_tells_nothing_new() -> None:
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


def test_only_the_probe_decides_whoever_else_leaves_or_fails() -> None:
    clock = Clock()
    breaker = _opened(clock)
    through = breaker.begin_request()  # nobody else could answer it
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
    breaker.record_failure(probe)  # its time is over
    assert breaker.state == "half-open"
    breaker.cancel_request(again)
    assert breaker.allows_request()


def test_a_request_that_went_through_an_open_one_and_was_answered_closes_it() -> None:
    breaker = _opened(Clock())
    breaker.begin_request()
    breaker.record_success()
    assert breaker.state == "closed"


def test_opening_and_closing_are_told_once() -> None:
    clock, told = Clock(), []
    breaker = CircuitBreaker(clock=clock, on_change=lambda: told.append(breaker.state))
    breaker.record_success()
    for _ in range(2 * FAILURE_THRESHOLD):
        breaker.record_failure()
    clock.now = OPEN_S
    breaker.record_failure(breaker.begin_request())
    breaker.record_success()
    breaker.record_success()
    assert told == ["open", "open", "closed"]


@given(st.lists(st.sampled_from(["ask", "succeed", "fail"]) | st.floats(0, 400), max_size=60))
def test_of_a_breaker_that_was_opened_no_two_probes_are_ever_under_way(steps: list[str | float]) -> None:
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
def test_how_many_failures_it_takes_can_be_said(failures: int) -> None:
    breaker = CircuitBreaker(clock=Clock(), failure_threshold=failures, open_s=1.0)
    for _ in range(failures):
        assert breaker.state == "closed"
        breaker.record_failure()
    assert (breaker.state, breaker.retry_after_s) == ("open", 1.0)
