"""The server on a Ray cluster: `serve run welldone.cluster:app config=welldone.toml`, or `welldone scale`.

Ray Serve places, supervises and scales replicas. A *front* replica is a gateway; each of its upstreams is an *engine*
replica, a server with one model. Requests and answers between the two do not pass through Ray.
"""

import importlib


def __getattr__(name: str) -> object:
    """Import `app` on demand: parts of this package must work without Ray."""
    if name == "app":
        return importlib.import_module("welldone.cluster.application").app
    raise AttributeError(name)
