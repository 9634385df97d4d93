"""Who is there of each deployment, as this process knows it: Ray's side tells, ours listens."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

Found = Mapping[str, Mapping[str, Any]]
"""What each replica says of itself, by the replica's name."""

Hear = Callable[[Found], None]
"""Is called in a thread of Ray's."""

_LOCK = threading.Lock()  # what is heard last is what was so last
_KNOWN: dict[str, Found] = {}
_HEARERS: dict[str, Hear] = {}


def listen(deployment: str, hear: Hear) -> None:
    """Have it told who is there: now, if that is known, and whenever it changes."""
    with _LOCK:
        _HEARERS[deployment] = hear
        if deployment in _KNOWN:
            hear(_KNOWN[deployment])


def tell(deployment: str, found: Found) -> None:
    """These are there now, and no others."""
    with _LOCK:
        _KNOWN[deployment] = found
        if deployment in _HEARERS:
            _HEARERS[deployment](found)
