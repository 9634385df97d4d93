"""Immutable sets of choice indexes. Most streams have one choice and share its set: an own set takes 216 bytes."""

EMPTY: frozenset[int] = frozenset()
_FIRST = frozenset({0})


def with_index(indexes: frozenset[int], index: int) -> frozenset[int]:
    """Return the set with `index` in it."""
    if index in indexes:
        return indexes
    return indexes | {index} if indexes or index else _FIRST
