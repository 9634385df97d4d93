"""Replica registry: the current replicas of each deployment, in this process.

Ray's router publishes updates; front replicas subscribe to them. The state lives in this module, since Ray copies the
module of the router into other processes.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

ReplicaMetadata = Mapping[str, Mapping[str, Any]]
"""Metadata by replica name."""

ReplicaListener = Callable[[ReplicaMetadata], None]
"""Is called in a thread of Ray."""

_LOCK = threading.Lock()  # keeps the order of updates
_LATEST: dict[str, ReplicaMetadata] = {}
_LISTENERS: dict[str, ReplicaListener] = {}


def subscribe(deployment: str, listener: ReplicaListener) -> None:
    """Call the listener with the replicas of a deployment: now, if they are known, and on each change."""
    with _LOCK:
        _LISTENERS[deployment] = listener
        if deployment in _LATEST:
            listener(_LATEST[deployment])


def publish(deployment: str, replicas: ReplicaMetadata) -> None:
    """Set the replicas of a deployment and call its listener."""
    with _LOCK:
        _LATEST[deployment] = replicas
        if deployment in _LISTENERS:
            _LISTENERS[deployment](replicas)
