"""Who of several upstreams gets a request."""

import hashlib
import math
import random
from collections.abc import Callable, Collection, Sequence

from welldone.engines.names import Member

Draw = Callable[[Sequence[Member]], Member]

_HASH_BYTES = 8
_HASHES = 2.0 ** (8 * _HASH_BYTES)


def _draw(members: Sequence[Member]) -> Member:
    return random.choices(members, [member.upstream.settings.weight for member in members])[0]


def choose(
    members: Sequence[Member],
    *,
    avoid: Collection[str] = (),
    sticky: str | None = None,
    draw: Draw = _draw,
) -> Member:
    """One of the members, of which there is at least one.

    Those that are available come first, then those that are not to be avoided. Of these the same `sticky` text always
    gets the same one; without it the least busy gets the request, and among equals chance decides, by their weights: a
    turn that goes round would start with the same one in each worker. Where none is available, it is the one that will
    be soonest.
    """
    ranks = [(not member.upstream.is_available, member.upstream.name in avoid) for member in members]
    best = min(ranks)
    equals = [member for member, rank in zip(members, ranks, strict=True) if rank == best]
    is_unavailable = best[0]
    if is_unavailable:
        return _least(equals, lambda member: member.upstream.retry_after_s, draw)
    if sticky is not None:
        return _least(equals, lambda member: _distance(sticky, member), draw)
    return _least(equals, _load, draw)


def _least(members: Sequence[Member], measure: Callable[[Member], float], draw: Draw) -> Member:
    measures = [measure(member) for member in members]
    least = min(measures)
    return draw([member for member, measured in zip(members, measures, strict=True) if measured == least])


def _load(member: Member) -> float:
    """How busy it is, for what it can take."""
    return member.upstream.running / member.upstream.settings.weight


def _distance(sticky: str, member: Member) -> float:
    """Weighted rendezvous hashing: when one leaves, only its own keys move, and each has a share as its weight."""
    text = f"{member.upstream.name}\0{sticky}".encode(errors="surrogatepass")
    number = int.from_bytes(hashlib.blake2b(text, digest_size=_HASH_BYTES).digest())
    return -math.log((number + 0.5) / _HASHES) / member.upstream.settings.weight
