"""Load balancing between upstreams."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.upstreams import Clock, upstream
from welldone.gateway.routing import UpstreamModel, choose_upstream
from welldone.gateway.upstream import FAILURE_THRESHOLD

_WEIGHTS = st.floats(0.01, 1000)
_NAMES = ("a", "b", "c", "d", "e")


def _member(
    name: str, *, running: int = 0, weight: float = 1.0, is_healthy: bool = True, bound: float = 1.25
) -> UpstreamModel:
    member_upstream = upstream(name, weight=weight, sticky_bound=bound)
    member_upstream.running, member_upstream.is_healthy = running, is_healthy
    return UpstreamModel(member_upstream, "m")


@st.composite
def _members(draw: st.DrawFn) -> list[UpstreamModel]:
    count = draw(st.integers(1, len(_NAMES)))
    return [
        _member(name, running=draw(st.integers(0, 9)), weight=draw(_WEIGHTS), is_healthy=draw(st.booleans()))
        for name in _NAMES[:count]
    ]


@given(_members(), st.sets(st.sampled_from(_NAMES)), st.none() | st.text())
def test_available_upstreams_come_before_avoided_and_unavailable_ones(
    members: list[UpstreamModel], avoid: set[str], sticky: str | None
) -> None:
    chosen = choose_upstream(members, avoid_upstreams=avoid, sticky_key=sticky)
    available = [member for member in members if member.upstream.is_available]
    if available:
        assert chosen in available
    preferred = [member for member in available or members if member.upstream.name not in avoid]
    if preferred:
        assert chosen in preferred


@given(_members())
def test_the_least_loaded_upstream_is_chosen(members: list[UpstreamModel]) -> None:
    available = [member for member in members if member.upstream.is_available] or members
    chosen = choose_upstream(members)
    if chosen.upstream.is_available:
        loads = [member.upstream.running / member.upstream.settings.weight for member in available]
        assert chosen.upstream.running / chosen.upstream.settings.weight == min(loads)


@given(st.lists(_WEIGHTS, min_size=1, max_size=5), st.integers(1, 300))
def test_running_requests_are_distributed_by_weight(weights: list[float], requests: int) -> None:
    members = [_member(name, weight=weight) for name, weight in zip(_NAMES, weights, strict=False)]
    for _ in range(requests):
        choose_upstream(members).upstream.running += 1
    for member in members:
        fair = requests * member.upstream.settings.weight / sum(weights)
        assert fair - len(members) <= member.upstream.running <= fair + len(members)


def test_equal_upstreams_get_about_the_same_number_of_requests() -> None:
    members = [_member(name) for name in "abc"]
    counts = Counter(choose_upstream(members).upstream.name for _ in range(3000))
    assert all(700 < counts[name] < 1300 for name in "abc")  # 11 standard deviations


def test_idle_upstreams_are_chosen_in_proportion_to_their_weights() -> None:
    members = [_member(name, weight=weight) for name, weight in zip("abc", (1, 2, 5), strict=True)]
    counts = Counter(choose_upstream(members).upstream.name for _ in range(8000))
    assert all(0.8 < counts[name] / (1000 * weight) < 1.2 for name, weight in zip("abc", (1, 2, 5), strict=True))


def test_ties_are_broken_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "choices", lambda members, _: [members[-1]])
    members = [_member("a", running=1), _member("b"), _member("c")]
    assert choose_upstream(members).upstream.name == "c"
    members[2].upstream.running = 2
    assert choose_upstream(members).upstream.name == "b"


@given(st.text(), st.lists(_WEIGHTS, min_size=2, max_size=5), st.data())
def test_a_sticky_key_moves_only_when_its_own_upstream_leaves(
    sticky: str, weights: list[float], data: st.DataObject
) -> None:
    members = [_member(name, weight=weight, bound=0.0) for name, weight in zip(_NAMES, weights, strict=False)]
    chosen = choose_upstream(members, sticky_key=sticky)
    chosen.upstream.running = 1000
    assert choose_upstream(members, sticky_key=sticky) is chosen
    leaving = data.draw(st.sampled_from(members))
    leaving.upstream.is_healthy = False
    after = choose_upstream(members, sticky_key=sticky)
    assert (after is chosen) == (leaving is not chosen)
    leaving.upstream.is_healthy = True
    assert choose_upstream(members, sticky_key=sticky) is chosen


@pytest.mark.parametrize("weights", [(1, 1, 1), (1, 2, 5)])
def test_sticky_keys_are_distributed_by_weight(weights: tuple[int, ...]) -> None:
    members = [_member(name, weight=weight) for name, weight in zip(_NAMES, weights, strict=False)]
    counts = Counter(choose_upstream(members, sticky_key=f"key {number}").upstream.name for number in range(4000))
    for member, weight in zip(members, weights, strict=True):
        assert counts[member.upstream.name] == pytest.approx(4000 * weight / sum(weights), rel=0.1)


@given(
    st.lists(_WEIGHTS, min_size=2, max_size=5),
    st.lists(st.integers(0, 3), max_size=200),
    st.sampled_from([1.0, 1.25, 2.0]),
)
def test_no_upstream_gets_more_sticky_requests_than_its_bound(
    weights: list[float], keys: list[int], bound: float
) -> None:
    members = [_member(name, weight=weight, bound=bound) for name, weight in zip(_NAMES, weights, strict=False)]
    for load, key in enumerate(keys, 1):
        chosen = choose_upstream(members, sticky_key=f"key {key}").upstream
        chosen.running += 1
        assert chosen.running <= math.ceil(bound * load * chosen.settings.weight / sum(weights))


@given(st.text(), st.integers(0, 50))
def test_a_key_that_exceeds_the_bound_spills_over_to_one_other_upstream(sticky: str, load: int) -> None:
    members = [_member(name, running=load) for name in _NAMES]
    first = choose_upstream(members, sticky_key=sticky)
    first.upstream.running += load + 1
    second = choose_upstream(members, sticky_key=sticky)
    assert second is not first
    assert choose_upstream(list(reversed(members)), sticky_key=sticky) is second  # as in every other front end
    first.upstream.running = load
    assert choose_upstream(members, sticky_key=sticky) is first


def test_without_a_bound_a_key_stays() -> None:
    members = [_member(name, bound=0.0) for name in _NAMES]
    first = choose_upstream(members, sticky_key="x")
    first.upstream.running = 1000
    assert choose_upstream(members, sticky_key="x") is first


def test_a_sticky_key_selects_the_same_upstream_in_every_process() -> None:
    members = [_member(name) for name in _NAMES]
    assert [choose_upstream(members, sticky_key=word).upstream.name for word in ("red", "green", "blue")] == [
        "c",
        "e",
        "d",
    ]


def test_a_single_upstream_is_used_even_when_it_is_unavailable() -> None:
    member = _member("a", is_healthy=False)
    assert choose_upstream([member], avoid_upstreams={"a"}, sticky_key="x") is member


def test_when_none_is_available_the_one_with_the_shortest_wait_is_used() -> None:
    clock = Clock()
    early, late = upstream("early", clock=clock), upstream("late", clock=clock)
    for which, at in ((early, 0.0), (late, 10.0)):
        clock.now = at
        for _ in range(FAILURE_THRESHOLD):
            which.breaker.record_failure()
    members = [UpstreamModel(late, "m"), UpstreamModel(early, "m")]
    assert choose_upstream(members).upstream is early
    assert choose_upstream(members, sticky_key="x").upstream is early
    assert choose_upstream(members, avoid_upstreams={"early"}).upstream is late
