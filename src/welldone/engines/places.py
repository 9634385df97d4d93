"""The places that a model has in a cluster. Replicas come and go, and each takes a place that is free.

So all else has names that stay: gates, counts, what a conversation sticks to. A place is an upstream that moves.
"""

from collections.abc import Mapping, Sequence

from welldone.engines.address import Address
from welldone.engines.upstream import Upstream


class DynamicUpstreams:
    """The places of one model."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self._upstreams = tuple(upstreams)
        self._assignments: dict[str, tuple[Upstream, Address]] = {}
        """By the names of replicas."""

    def update_replicas(self, replicas: Mapping[str, Address]) -> None:
        """These are there now, and no others. For whom there is no place waits until one is free."""
        for name, (upstream, address) in list(self._assignments.items()):
            if replicas.get(name) != address:
                del self._assignments[name]
                upstream.assign(None)
        free = [upstream for upstream in self._upstreams if upstream.is_unassigned]
        new = [name for name in replicas if name not in self._assignments]
        for name, upstream in zip(new, free, strict=False):
            self._assignments[name] = (upstream, replicas[name])
            upstream.assign(replicas[name])
