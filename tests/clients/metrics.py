"""Counters of the server, from /metrics."""

import re
import time
import urllib.request

from tests.support.server import Running

# Longer than a server needs to notice a disconnect.
LIMIT_S = 20.0


def read(server: Running, name: str) -> float:
    """Return the sum over all labels; 0 if the metric is missing."""
    request = urllib.request.Request(f"{server.root}/metrics", headers=server.headers())
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=LIMIT_S) as reply:
        page = reply.read().decode()
    rows = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", page, re.MULTILINE)
    return sum(float(value) for value in rows)


def wait_for(server: Running, name: str, expected: float) -> None:
    """Poll until the metric has the value; each request takes long enough that no pause is needed."""
    deadline = time.monotonic() + LIMIT_S
    while (value := read(server, name)) != expected:
        assert time.monotonic() < deadline, f"{name} is {value}, not {expected}"
