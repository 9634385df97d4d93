"""Backoff between restarts of an engine."""

import pytest

from welldone.engines.supervisor import BACKOFF_MAX_S, BACKOFF_RESET_S, MAX_FAILED_STARTS, RestartBackoff


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_delay_doubles_up_to_a_limit() -> None:
    backoff = RestartBackoff(_Clock())
    assert [backoff.record_exit() for _ in range(6)] == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4])
    assert [backoff.record_exit() for _ in range(2000)][-1] == BACKOFF_MAX_S


def test_the_delay_is_reset_after_a_time_of_running() -> None:
    clock = _Clock()
    backoff = RestartBackoff(clock)
    for _ in range(4):
        backoff.record_exit()
    backoff.record_ready()
    clock.now += BACKOFF_RESET_S - 1
    assert backoff.record_exit() == pytest.approx(3.2)
    backoff.record_ready()
    clock.now += BACKOFF_RESET_S
    assert backoff.record_exit() == 0


def test_an_engine_that_ran_is_restarted_at_once_the_first_time() -> None:
    backoff, delays = RestartBackoff(_Clock()), []
    for _ in range(3):
        backoff.record_ready()
        delays.append(backoff.record_exit())
    assert delays == pytest.approx([0, 0.4, 0.8])


def test_only_failed_starts_exhaust_the_backoff() -> None:
    backoff = RestartBackoff(_Clock())
    for _ in range(2 * MAX_FAILED_STARTS):
        backoff.record_ready()
        backoff.record_exit()
    assert not backoff.is_exhausted
    for _ in range(MAX_FAILED_STARTS - 1):
        backoff.record_exit()
    assert not backoff.is_exhausted
    backoff.record_exit()
    assert backoff.is_exhausted
    backoff.record_ready()
    assert not backoff.is_exhausted
