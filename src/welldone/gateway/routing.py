"""Resolution of model names to upstreams, and load balancing.

A name is looked up in this order: a route with this name; a local model; upstreams that list or declare this model;
a route with a matching pattern; upstreams whose declared patterns match; upstreams without any list of models.

The target of a route is `MODEL@UPSTREAM`, `MODEL` (all upstreams that have it), or `@UPSTREAM` or `*@UPSTREAM` (the
same name there). Targets are not looked up among the routes again, so that there are no loops.
"""

import hashlib
import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from welldone.config.settings import WILDCARD, did_you_mean, matches_wildcard
from welldone.config.upstream import UpstreamSettings
from welldone.gateway.upstream import Upstream


class UpstreamModel(msgspec.Struct, frozen=True):
    """An upstream, and the name of the model there."""

    upstream: Upstream
    model: str
    is_configured_or_listed: bool = True
    """Whether the configuration or the upstream's list contains this model. Otherwise the name comes from the client,
    and the upstream may answer with any of its models."""
    pattern: str | None = None
    """The pattern that matched the client's name; None if that name itself is configured or listed."""


class UpstreamGroup(msgspec.Struct, frozen=True):
    """The upstreams that serve a model name; at least one."""

    name: str
    """The name in the client's request."""
    members: tuple[UpstreamModel, ...]


class LocalRoute(msgspec.Struct, frozen=True):
    """A model name that resolves to a local model."""

    name: str
    pattern: str | None = None
    """As in `UpstreamModel`."""


class RouteTarget(msgspec.Struct, frozen=True):
    """A parsed target of a route."""

    model: str
    """Empty: the name in the client's request."""
    upstream: str | None
    """None: any upstream that has the model."""


def parse_route_target(text: str, upstreams: Collection[str]) -> RouteTarget:
    """Split a target. Names of models may contain an @: only the name of a configured upstream counts as one."""
    model, at, upstream = text.rpartition("@")
    if not at or upstream not in upstreams:
        return RouteTarget(text, None)
    return RouteTarget("" if model == WILDCARD else model, upstream)


class ModelRouter:
    """Resolves names of models. Model lists are read on each call, since they change."""

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
        self.patterns: list[str] = sorted(patterns, key=_fixed_length, reverse=True)  # equal lengths stay in file order
        """The names of routes that are patterns, the most specific first."""

    def resolve(self, name: str) -> UpstreamGroup | LocalRoute | None:
        """Resolve a name; None if nothing serves it."""
        targets = self._routes.get(name)
        if targets is not None:
            return self._resolve_route(name, targets)
        exact = self._resolve_exact(name)
        if exact is not None:
            return exact
        for pattern in self.patterns:
            if matches_wildcard(pattern, name):
                return self._resolve_route(name, self._routes[pattern], pattern)
        return self._resolve_pattern(name)

    def exact_names(self) -> Iterator[str]:
        """All known names without patterns: of routes, then of upstreams. May contain duplicates."""
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
        """The upstreams with the most specific matching pattern, else those without any list of models."""
        patterns = {upstream: _longest_pattern(upstream, name) for upstream in self._upstreams.values()}
        matches = [(upstream, pattern) for upstream, pattern in patterns.items() if pattern is not None]
        if matches:
            best = max(_fixed_length(pattern) for _, pattern in matches)
            matches = [(upstream, pattern) for upstream, pattern in matches if _fixed_length(pattern) == best]
        else:
            unlisted = (server for server in patterns if server.listed_models is None and not server.settings.models)
            matches = [(upstream, WILDCARD) for upstream in unlisted]
        return _make_group(
            name,
            [
                UpstreamModel(upstream, name, is_configured_or_listed=False, pattern=pattern)
                for upstream, pattern in matches
            ],
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
            resolved = self._resolve_exact(target.model) or self._resolve_pattern(target.model)
            if isinstance(resolved, LocalRoute):
                return LocalRoute(resolved.name, pattern)
            for member in resolved.members if resolved is not None else ():
                key = (member.upstream, member.model)
                members.setdefault(key, UpstreamModel(*key, pattern=pattern))
        return _make_group(name, list(members.values()))


def _make_group(name: str, members: Sequence[UpstreamModel]) -> UpstreamGroup | None:
    return UpstreamGroup(name, tuple(members)) if members else None


def _offers_model(upstream: Upstream, name: str) -> bool:
    """Whether `models =` names the model, or the upstream lists it and `models =` does not exclude it."""
    declared = upstream.settings.models
    if name in declared:
        return True
    is_included = not declared or _longest_pattern(upstream, name) is not None
    return is_included and upstream.listed_model(name) is not None


def _longest_pattern(upstream: Upstream, name: str) -> str | None:
    matching = (
        pattern for pattern in upstream.settings.models if WILDCARD in pattern and matches_wildcard(pattern, name)
    )
    return max(matching, key=_fixed_length, default=None)


def _fixed_length(pattern: str) -> int:
    return len(pattern.replace(WILDCARD, ""))


def route_problems(
    routes: Mapping[str, Sequence[str]], upstreams: Sequence[UpstreamSettings], local_names: Collection[str]
) -> list[str]:
    """Validate the routes: one line per problem."""
    problems = []
    for name, targets in routes.items():
        if not targets:
            problems.append(f"the route {name!r} has no target")
        for text in targets:
            problem = _route_target_problem(text, upstreams, local_names, is_only_target=len(targets) == 1)
            if problem:
                problems.append(f"the route {name!r} has the target {text!r}: {problem}")
    return problems


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
        return "expected MODEL@UPSTREAM, MODEL or @UPSTREAM, without patterns"
    if text in local_names and not is_only_target:
        return "a local model must be the only target"
    if (
        target.upstream is None
        and text not in local_names
        and not any(matches_wildcard(pattern, text) for server in upstreams for pattern in server.models or (WILDCARD,))
    ):
        known = [*local_names, *(name for upstream in upstreams for name in upstream.models)]
        return f"no upstream has a model of this name{did_you_mean(text, known)}"
    return None


_HASH_BYTES = 8
_HASHES = 2.0 ** (8 * _HASH_BYTES)


def choose_upstream(
    members: Sequence[UpstreamModel], *, avoid_upstreams: Collection[str] = (), sticky_key: str | None = None
) -> UpstreamModel:
    """Choose one of the members (at least one).

    Available upstreams come first, then those not in `avoid_upstreams`. Among these a `sticky_key` selects the same one
    while its load is within its bound; without it the least loaded is chosen, and ties are broken at random by weight
    (round robin would start at the same upstream in each worker). When none is available, the one that will be
    available first is chosen.
    """
    if len(members) == 1:
        return members[0]
    ranks = [(not member.upstream.is_available, member.upstream.name in avoid_upstreams) for member in members]
    best = min(ranks)
    equals = [member for member, rank in zip(members, ranks, strict=True) if rank == best]
    is_unavailable, _ = best
    if is_unavailable:
        costs = [member.upstream.retry_after_s for member in equals]
    elif sticky_key is not None:
        return _choose_sticky(sticky_key, equals)
    else:  # running requests relative to the weight
        costs = [member.upstream.running / member.upstream.settings.weight for member in equals]
    least = min(costs)
    cheapest = [member for member, cost in zip(equals, costs, strict=True) if cost == least]
    return random.choices(cheapest, [member.upstream.settings.weight for member in cheapest])[0]


def _choose_sticky(sticky_key: str, members: Sequence[UpstreamModel]) -> UpstreamModel:
    """Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016), in the order of rendezvous hashing.

    No upstream gets more than `sticky_bound` times its share of the running requests: what exceeds it goes to the next
    one in the order of the key, which is the same in every process. So a key that spills over does so to one place.
    """
    ordered = sorted(members, key=lambda member: _rendezvous_score(sticky_key, member))
    load = 1 + sum(member.upstream.running for member in members)
    weight = sum(member.upstream.settings.weight for member in members)
    for member in ordered:
        settings = member.upstream.settings
        share = load * settings.weight / weight
        if not settings.sticky_bound or member.upstream.running < math.ceil(settings.sticky_bound * share):
            return member
    return ordered[0]


def _rendezvous_score(sticky_key: str, member: UpstreamModel) -> float:
    """Weighted rendezvous hashing: when a member leaves, only its own keys move."""
    text = f"{member.upstream.name}\0{sticky_key}".encode(errors="surrogatepass")
    number = int.from_bytes(hashlib.blake2b(text, digest_size=_HASH_BYTES).digest())
    return -math.log((number + 0.5) / _HASHES) / member.upstream.settings.weight
