"""Which upstreams stand behind the name of a model.

A name is looked for in this order: a route with this name; a local model; the upstreams that have a model of this name;
a route with a pattern; the upstreams whose declared patterns fit; the upstreams that have not said what they have.

The target of a route is `MODEL@UPSTREAM`, `MODEL` (all that have it), or `@UPSTREAM` or `*@UPSTREAM` (the same name
there). It is never looked up among the routes again, so that there are no loops.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from welldone.engines.upstream import Upstream
from welldone.engines.upstream_settings import UpstreamSettings
from welldone.net.hints import nearest
from welldone.net.patterns import ANY, matches


class Member(msgspec.Struct, frozen=True):
    """An upstream, and what the model is called there."""

    upstream: Upstream
    model: str
    is_named: bool = True
    """Whether the configuration or the upstream's own list names this model. Otherwise the name is the client's own,
    and the upstream may answer it with any model that it has."""
    pattern: str | None = None
    """The pattern by which the client's name led here; None: that name itself is configured or listed."""


class Group(msgspec.Struct, frozen=True):
    """All that can answer for a name; at least one."""

    name: str
    """What the client says."""
    members: tuple[Member, ...]


class Local(msgspec.Struct, frozen=True):
    """A local model."""

    name: str
    pattern: str | None = None
    """As for a member of a group."""


class Target(msgspec.Struct, frozen=True):
    """Where a route leads."""

    model: str
    """Empty: as the client calls it."""
    upstream: str | None
    """None: any that has the model."""


def read_target(text: str, upstreams: Collection[str]) -> Target:
    """The target. A model's name may have an @ itself: only what names an upstream is one."""
    model, at, upstream = text.rpartition("@")
    if not at or upstream not in upstreams:
        return Target(text, None)
    return Target("" if model == ANY else model, upstream)


class Names:
    """The names of models. What upstreams list is asked anew each time, for it changes."""

    def __init__(
        self, routes: Mapping[str, Sequence[str]], upstreams: Sequence[Upstream], local_names: Collection[str]
    ) -> None:
        self._upstreams = {upstream.name: upstream for upstream in upstreams}
        self._local_names = frozenset(local_names)
        self._routes = {
            name: tuple(read_target(text, self._upstreams) for text in targets) for name, targets in routes.items()
        }
        patterns = [name for name in routes if ANY in name]
        self._patterns = sorted(patterns, key=_fixed_length, reverse=True)  # equals stay in the order of the file

    def find(self, name: str) -> Group | Local | None:
        """Who answers for the name; None: nobody."""
        targets = self._routes.get(name)
        if targets is not None:
            return self._routed(name, targets)
        found = self._surely(name)
        if found is not None:
            return found
        pattern = next((pattern for pattern in self._patterns if matches(pattern, name)), None)
        return self._maybe(name) if pattern is None else self._routed(name, self._routes[pattern], pattern)

    @property
    def patterns(self) -> Sequence[str]:
        """The routes that are patterns."""
        return self._patterns

    def exact(self) -> Iterator[str]:
        """The names that are known one by one, without patterns: of routes, then of upstreams. Some come twice."""
        yield from (name for name in self._routes if ANY not in name)
        for upstream in self._upstreams.values():
            names = (*upstream.settings.models, *(model.id for model in upstream.listed or ()))
            yield from (name for name in names if ANY not in name and _has(upstream, name))

    def _surely(self, name: str) -> Group | Local | None:
        if name in self._local_names:
            return Local(name)
        return _group(name, [Member(upstream, name) for upstream in self._upstreams.values() if _has(upstream, name)])

    def _maybe(self, name: str) -> Group | None:
        """Those whose longest pattern fits, else those that have not said what they have."""
        fits = {upstream: _fit(upstream, name) for upstream in self._upstreams.values()}
        found = [(upstream, fit) for upstream, fit in fits.items() if fit is not None]
        if found:
            best = max(_fixed_length(fit) for _, fit in found)
            found = [(upstream, fit) for upstream, fit in found if _fixed_length(fit) == best]
        else:
            found = [(one, ANY) for one in fits if one.listed is None and not one.settings.models]
        return _group(name, [Member(upstream, name, is_named=False, pattern=fit) for upstream, fit in found])

    def _routed(self, name: str, targets: Sequence[Target], pattern: str | None = None) -> Group | Local | None:
        members: dict[tuple[Upstream, str], Member] = {}
        for target in targets:
            if target.upstream is not None:
                upstream, model = self._upstreams[target.upstream], target.model or name
                is_named = bool(target.model) or _has(upstream, model)
                members.setdefault((upstream, model), Member(upstream, model, is_named, pattern))
                continue
            found = self._surely(target.model) or self._maybe(target.model)
            if isinstance(found, Local):
                return Local(found.name, pattern)
            for one in found.members if found is not None else ():
                members.setdefault((one.upstream, one.model), Member(one.upstream, one.model, pattern=pattern))
        return _group(name, list(members.values()))


def _group(name: str, members: Sequence[Member]) -> Group | None:
    return Group(name, tuple(members)) if members else None


def _has(upstream: Upstream, name: str) -> bool:
    """Whether the user or the upstream itself says that it has it. Where patterns are declared, they choose."""
    declared = upstream.settings.models
    if name in declared:
        return True
    is_wanted = not declared or _fit(upstream, name) is not None
    return is_wanted and upstream.model(name) is not None


def _fit(upstream: Upstream, name: str) -> str | None:
    """The longest declared pattern that fits, if one does."""
    fitting = (pattern for pattern in upstream.settings.models if ANY in pattern and matches(pattern, name))
    return max(fitting, key=_fixed_length, default=None)


def _fixed_length(pattern: str) -> int:
    return len(pattern.replace(ANY, ""))


def problems(
    routes: Mapping[str, Sequence[str]], upstreams: Sequence[UpstreamSettings], local_names: Collection[str]
) -> list[str]:
    """What is wrong with the routes, a line each."""
    found = []
    for name, targets in routes.items():
        if not targets:
            found.append(f"the route {name!r} has no target")
        for text in targets:
            trouble = _trouble(text, upstreams, local_names, is_alone=len(targets) == 1)
            if trouble:
                found.append(f"the route {name!r} leads to {text!r}: {trouble}")
    return found


def _trouble(
    text: str, upstreams: Sequence[UpstreamSettings], local_names: Collection[str], *, is_alone: bool
) -> str | None:
    names = [upstream.name for upstream in upstreams]
    target = read_target(text, names)
    is_known = text in local_names or any(text in upstream.models for upstream in upstreams)
    if target.upstream is None and "@" in text and not is_known:
        upstream = text.rpartition("@")[2]
        return f"there is no upstream {upstream!r}{nearest(upstream, names)}"
    if not text or ANY in target.model:
        return "a target is MODEL@UPSTREAM, MODEL or @UPSTREAM, without patterns"
    if text in local_names and not is_alone:
        return "a local model cannot share a route"
    if target.upstream is None and text not in local_names and not any(_may_have(one, text) for one in upstreams):
        known = [*local_names, *(name for upstream in upstreams for name in upstream.models)]
        return f"nobody has a model of this name{nearest(text, known)}"
    return None


def _may_have(upstream: UpstreamSettings, name: str) -> bool:
    return not upstream.models or any(matches(pattern, name) for pattern in upstream.models)
