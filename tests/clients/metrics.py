"""What the server counts, read from its /metrics."""

import re
import time
import urllib.request

from tests.live.server import Running

# A server that has not noticed by then does not notice.
LIMIT_S = 20.0


def read(server: Running, name: str) -> float:
    """The sum over all labels; 0 where nothing was counted yet."""
    request = urllib.request.Request(f"{server.root}/metrics", headers=server.headers())
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=LIMIT_S) as reply:
        page = reply.read().decode()
    rows = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", page, re.MULTILINE)
    return sum(float(value) for value in rows)


def wait_for(server: Running, name: str, wanted: float) -> None:
    """Ask until the number is there: each question takes its time, so nothing else need wait."""
    deadline = time.monotonic() + LIMIT_S
    while (value := read(server, name)) != wanted:
        assert time.monotonic() < deadline, f"{name} is {value}, not {wanted}"
