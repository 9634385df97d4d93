"""Which upstreams stand behind the name of a model.

A name is looked for in this order: a route with this name; a local model; the upstreams that have a model of this name;
a route with a pattern; the upstreams whose declared patterns fit; the upstreams that have not said what they have.

The target of a route is `MODEL@UPSTREAM`, `MODEL` (all that have it), or `@UPSTREAM` or `*@UPSTREAM` (the same name
there). It is never looked up among the routes again, so that there are no loops.
"""

import hashlib
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec

from welldone.config.settings import WILDCARD, did_you_mean, matches_wildcard
from welldone.config.upstream import UpstreamSettings
from welldone.gateway.upstream import Upstream


class UpstreamModel(msgspec.Struct, frozen=True):
    """An upstream, and what the model is called there."""

    upstream: Upstream
    model: str
    is_configured_or_listed: bool = True
    """Whether the configuration or the upstream's own list names this model. Otherwise the name is the client's own,
    and the upstream may answer it with any model that it has."""
    pattern: str | None = None
    """The pattern by which the client's name led here; None: that name itself is configured or listed."""


class UpstreamGroup(msgspec.Struct, frozen=True):
    """All that can answer for a name; at least one."""

    name: str
    """What the client says."""
    members: tuple[UpstreamModel, ...]


class LocalRoute(msgspec.Struct, frozen=True):
    """A local model."""

    name: str
    pattern: str | None = None
    """As for a member of a group."""


class RouteTarget(msgspec.Struct, frozen=True):
    """Where a route leads."""

    model: str
    """Empty: as the client calls it."""
    upstream: str | None
    """None: any that has the model."""


def parse_route_target(text: str, upstreams: Collection[str]) -> RouteTarget:
    """The target. A model's name may have an @ itself: only what names an upstream is one."""
    model, at, upstream = text.rpartition("@")
    if not at or upstream not in upstreams:
        return RouteTarget(text, None)
    return RouteTarget("" if model == WILDCARD else model, upstream)


class ModelRouter:
    """The names of models. What upstreams list is asked anew each time, for it changes."""

    def __init__(
        self, routes: Mapping[str, Sequence[str]], upstreams: Sequence[Upstream], local_names: Collection[str]
    ) -> None:
        self._upstreams = {upstream.name: upstream for upstream in upstreams}
        self._local_names = frozenset(local_names)
        self._routes = {
            name: tuple(parse_route_target(text, self._upstreams) for text in targets)
            for name, targets in routes.items()
        }
        patterns = [name for name in routes if WILDCARD in name]
        self._patterns = sorted(patterns, key=_fixed_length, reverse=True)  # equals stay in the order of the file

    def resolve(self, name: str) -> UpstreamGroup | LocalRoute | None:
        """Who answers for the name; None: nobody."""
        targets = self._routes.get(name)
        if targets is not None:
            return self._resolve_route(name, targets)
        found = self._resolve_exact(name)
        if found is not None:
            return found
        pattern = next((pattern for pattern in self._patterns if matches_wildcard(pattern, name)), None)
        return (
            self._resolve_pattern(name)
            if pattern is None
            else self._resolve_route(name, self._routes[pattern], pattern)
        )

    @property
    def patterns(self) -> Sequence[str]:
        """The routes that are patterns."""
        return self._patterns

    def exact_names(self) -> Iterator[str]:
        """The names that are known one by one, without patterns: of routes, then of upstreams. Some come twice."""
        yield from (name for name in self._routes if WILDCARD not in name)
        for upstream in self._upstreams.values():
            names = (*upstream.settings.models, *(model.id for model in upstream.listed_models or ()))
            yield from (name for name in names if WILDCARD not in name and _offers_model(upstream, name))

    def _resolve_exact(self, name: str) -> UpstreamGroup | LocalRoute | None:
        if name in self._local_names:
            return LocalRoute(name)
        return _make_group(
            name,
            [UpstreamModel(upstream, name) for upstream in self._upstreams.values() if _offers_model(upstream, name)],
        )

    def _resolve_pattern(self, name: str) -> UpstreamGroup | None:
        """Those whose longest pattern fits, else those that have not said what they have."""
        fits = {upstream: _longest_pattern(upstream, name) for upstream in self._upstreams.values()}
        found = [(upstream, fit) for upstream, fit in fits.items() if fit is not None]
        if found:
            best = max(_fixed_length(fit) for _, fit in found)
            found = [(upstream, fit) for upstream, fit in found if _fixed_length(fit) == best]
        else:
            found = [(one, WILDCARD) for one in fits if one.listed_models is None and not one.settings.models]
        return _make_group(
            name, [UpstreamModel(upstream, name, is_configured_or_listed=False, pattern=fit) for upstream, fit in found]
        )

    def _resolve_route(
        self, name: str, targets: Sequence[RouteTarget], pattern: str | None = None
    ) -> UpstreamGroup | LocalRoute | None:
        members: dict[tuple[Upstream, str], UpstreamModel] = {}
        for target in targets:
            if target.upstream is not None:
                upstream, model = self._upstreams[target.upstream], target.model or name
                is_named = bool(target.model) or _offers_model(upstream, model)
                members.setdefault((upstream, model), UpstreamModel(upstream, model, is_named, pattern))
                continue
            found = self._resolve_exact(target.model) or self._resolve_pattern(target.model)
            if isinstance(found, LocalRoute):
                return LocalRoute(found.name, pattern)
            for one in found.members if found is not None else ():
                members.setdefault((one.upstream, one.model), UpstreamModel(one.upstream, one.model, pattern=pattern))
        return _make_group(name, list(members.values()))


def _make_group(name: str, members: Sequence[UpstreamModel]) -> UpstreamGroup | None:
    return UpstreamGroup(name, tuple(members)) if members else None


def _offers_model(upstream: Upstream, name: str) -> bool:
    """Whether the user or the upstream itself says that it has it. Where patterns are declared, they choose."""
    declared = upstream.settings.models
    if name in declared:
        return True
    is_wanted = not declared or _longest_pattern(upstream, name) is not None
    return is_wanted and upstream.listed_model(name) is not None


def _longest_pattern(upstream: Upstream, name: str) -> str | None:
    """The longest declared pattern that fits, if one does."""
    fitting = (
        pattern for pattern in upstream.settings.models if WILDCARD in pattern and matches_wildcard(pattern, name)
    )
    return max(fitting, key=_fixed_length, default=None)


def _fixed_length(pattern: str) -> int:
    return len(pattern.replace(WILDCARD, ""))


def route_problems(
    routes: Mapping[str, Sequence[str]], upstreams: Sequence[UpstreamSettings], local_names: Collection[str]
) -> list[str]:
    """What is wrong with the routes, a line each."""
    found = []
    for name, targets in routes.items():
        if not targets:
            found.append(f"the route {name!r} has no target")
        for text in targets:
            trouble = _route_target_problem(text, upstreams, local_names, is_only_target=len(targets) == 1)
            if trouble:
                found.append(f"the route {name!r} leads to {text!r}: {trouble}")
    return found


def _route_target_problem(
    text: str, upstreams: Sequence[UpstreamSettings], local_names: Collection[str], *, is_only_target: bool
) -> str | None:
    names = [upstream.name for upstream in upstreams]
    target = parse_route_target(text, names)
    is_known = text in local_names or any(text in upstream.models for upstream in upstreams)
    if target.upstream is None and "@" in text and not is_known:
        upstream = text.rpartition("@")[2]
        return f"there is no upstream {upstream!r}{did_you_mean(upstream, names)}"
    if not text or WILDCARD in target.model:
        return "a target is MODEL@UPSTREAM, MODEL or @UPSTREAM, without patterns"
    if text in local_names and not is_only_target:
        return "a local model cannot share a route"
    if (
        target.upstream is None
        and text not in local_names
        and not any(_may_offer_model(one, text) for one in upstreams)
    ):
        known = [*local_names, *(name for upstream in upstreams for name in upstream.models)]
        return f"nobody has a model of this name{did_you_mean(text, known)}"
    return None


def _may_offer_model(upstream: UpstreamSettings, name: str) -> bool:
    return not upstream.models or any(matches_wildcard(pattern, name) for pattern in upstream.models)


# Who of several upstreams gets a request.


TieBreaker = Callable[[Sequence[UpstreamModel]], UpstreamModel]

_HASH_BYTES = 8
_HASHES = 2.0 ** (8 * _HASH_BYTES)


def _weighted_random(members: Sequence[UpstreamModel]) -> UpstreamModel:
    return random.choices(members, [member.upstream.settings.weight for member in members])[0]


def choose_upstream(
    members: Sequence[UpstreamModel],
    *,
    avoid_upstreams: Collection[str] = (),
    sticky_key: str | None = None,
    tie_breaker: TieBreaker = _weighted_random,
) -> UpstreamModel:
    """One of the members, of which there is at least one.

    Those that are available come first, then those that are not to be avoided. Of these the same `sticky` text always
    gets the same one; without it the least busy gets the request, and among equals chance decides, by their weights: a
    turn that goes round would start with the same one in each worker. Where none is available, it is the one that will
    be soonest.
    """
    ranks = [(not member.upstream.is_available, member.upstream.name in avoid_upstreams) for member in members]
    best = min(ranks)
    equals = [member for member, rank in zip(members, ranks, strict=True) if rank == best]
    is_unavailable = best[0]
    if is_unavailable:
        return _choose_min(equals, lambda member: member.upstream.retry_after_s, tie_breaker)
    if sticky_key is not None:
        return _choose_min(equals, lambda member: _rendezvous_score(sticky_key, member), tie_breaker)
    return _choose_min(equals, _load, tie_breaker)


def _choose_min(
    members: Sequence[UpstreamModel], cost: Callable[[UpstreamModel], float], tie_breaker: TieBreaker
) -> UpstreamModel:
    measures = [cost(member) for member in members]
    least = min(measures)
    return tie_breaker([member for member, measured in zip(members, measures, strict=True) if measured == least])


def _load(member: UpstreamModel) -> float:
    """How busy it is, for what it can take."""
    return member.upstream.running / member.upstream.settings.weight


def _rendezvous_score(sticky_key: str, member: UpstreamModel) -> float:
    """Weighted rendezvous hashing: when one leaves, only its own keys move, and each has a share as its weight."""
    text = f"{member.upstream.name}\0{sticky_key}".encode(errors="surrogatepass")
    number = int.from_bytes(hashlib.blake2b(text, digest_size=_HASH_BYTES).digest())
    return -math.log((number + 0.5) / _HASHES) / member.upstream.settings.weight
