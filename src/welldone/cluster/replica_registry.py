"""Who is there of each deployment, as this process knows it: Ray's side tells, ours listens."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

ReplicaMetadata = Mapping[str, Mapping[str, Any]]
"""What each replica says of itself, by the replica's name."""

ReplicaListener = Callable[[ReplicaMetadata], None]
"""Is called in a thread of Ray's."""

_LOCK = threading.Lock()  # what is heard last is what was so last
_LATEST: dict[str, ReplicaMetadata] = {}
_LISTENERS: dict[str, ReplicaListener] = {}


def subscribe(deployment: str, listener: ReplicaListener) -> None:
    """Have it told who is there: now, if that is known, and whenever it changes."""
    with _LOCK:
        _LISTENERS[deployment] = listener
        if deployment in _LATEST:
            listener(_LATEST[deployment])


def publish(deployment: str, replicas: ReplicaMetadata) -> None:
    """These are there now, and no others."""
    with _LOCK:
        _LATEST[deployment] = replicas
        if deployment in _LISTENERS:
            _LISTENERS[deployment](replicas)
