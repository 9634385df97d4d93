"""Names with `*` in them, as users write them for many names at once."""

WILDCARD = "*"


def matches_wildcard(pattern: str, name: str) -> bool:
    """Whether the name fits; `*` stands for any letters or none, all else for itself. In linear time."""
    first, *rest = pattern.split(WILDCARD)
    if not rest:
        return pattern == name
    *middle, last = rest
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
