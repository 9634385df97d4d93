"""The server on a Ray cluster: `serve run welldone.cluster:app config=welldone.toml`, or `welldone scale`.

Ray Serve places processes on machines, watches them, and makes them more or fewer. What they do there is what a single
machine does: a *front* is a gateway, and each of its upstreams is an *engine*, which is a server with one model. No
request and no byte of an answer passes through Ray between the two.
"""

import importlib


def __getattr__(name: str) -> object:
    """`app` is made when it is asked for: parts of this package do without Ray."""
    if name == "app":
        return importlib.import_module("welldone.cluster.application").app
    raise AttributeError(name)
