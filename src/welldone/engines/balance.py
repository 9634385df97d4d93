"""Who of several upstreams gets a request."""

import hashlib
import math
import random
from collections.abc import Callable, Collection, Sequence

from welldone.engines.names import UpstreamModel

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
