"""How many requests a server says that it works on, where it says so."""

import re
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from welldone.check.reply import ProbeRequest
from welldone.check.session import Session
from welldone.rules.choices import as_list, as_object, is_int

Gauge: TypeAlias = Callable[[Session], Awaitable[float | None]]

_GAUGE_METRICS = (
    "llamacpp:requests_processing",  # of llama.cpp, and of welldone
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "tgi_batch_current_size",
)
_METRIC_SAMPLE = re.compile(
    rf"^(?:{'|'.join(_GAUGE_METRICS)})(?:\{{.*\}})?[ \t]+([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?)(?=[ \t\r]|$)", re.M
)
"""A line of Prometheus' text. Such a number is small; an exponent is never needed for it."""


async def find_gauge(session: Session) -> Gauge | None:
    """The one that the server has."""
    for gauge in (_slots_gauge, _metrics_gauge):
        if await gauge(session) is not None:
            return gauge
    return None


async def _slots_gauge(session: Session) -> float | None:
    """As llama.cpp shows it: a list of the places where it can work. Older versions have a number for its state."""
    reply = await session.send(ProbeRequest(method="GET", path="/slots", is_root=True), is_judged=False)
    slots = [as_object(slot) for slot in as_list(reply.view.first_value.json)] if reply.is_ok else []
    states = [slot.get("is_processing", slot.get("state")) for slot in slots]
    if not states or not all(isinstance(state, bool) or is_int(state) for state in states):
        return None
    return sum(bool(state) for state in states)


async def _metrics_gauge(session: Session) -> float | None:
    """As most servers count, for Prometheus."""
    headers = (("Accept", "text/plain"),)
    reply = await session.send(
        ProbeRequest(method="GET", path="/metrics", headers=headers, is_root=True), is_judged=False
    )
    numbers = _METRIC_SAMPLE.findall(reply.view.body_text) if reply.is_ok else []
    return sum(map(float, numbers)) if numbers else None
