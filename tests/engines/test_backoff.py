"""How long an engine's next start waits."""

import pytest

from welldone.engines.backoff import CALM_S, DEATHS, LIMIT_S, Backoff


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_waits_double_up_to_a_limit() -> None:
    backoff = Backoff(_Clock())
    assert [backoff.died() for _ in range(6)] == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4])
    assert [backoff.died() for _ in range(2000)][-1] == LIMIT_S


def test_a_time_of_health_makes_a_new_start() -> None:
    clock = _Clock()
    backoff = Backoff(clock)
    for _ in range(4):
        backoff.died()
    backoff.is_ready()
    clock.now += CALM_S - 1
    assert backoff.died() == pytest.approx(3.2)
    backoff.is_ready()
    clock.now += CALM_S
    assert backoff.died() == pytest.approx(0.2)


def test_only_deaths_without_being_ready_take_the_hope() -> None:
    backoff = Backoff(_Clock())
    for _ in range(2 * DEATHS):
        backoff.is_ready()
        backoff.died()
    assert not backoff.is_hopeless
    for _ in range(DEATHS - 1):
        backoff.died()
    assert not backoff.is_hopeless
    backoff.died()
    assert backoff.is_hopeless
    backoff.is_ready()
    assert not backoff.is_hopeless
