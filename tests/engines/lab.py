"""Upstreams for tests: their settings, what they list, and a clock that goes when it is told to."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from welldone.config.upstream import UpstreamSettings
from welldone.gateway.upstream import Upstream
from welldone.http.client import BufferedResponse, HttpClientError

SILENCE = HttpClientError("no connection to the server")
NOWHERE = "http://127.0.0.1:1/v1"


class Clock:
    """Seconds, as told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def upstream(
    name: str = "lab",
    *,
    listed: Sequence[str] | None = None,
    clock: Callable[[], float] | None = None,
    on_change: Callable[[Upstream], None] = lambda _: None,
    url: str = NOWHERE,
    **settings: Any,  # noqa: ANN401 - UpstreamSettings' own
) -> Upstream:
    """An upstream. `listed` is what it lists; None: that is not known."""
    made = Upstream(UpstreamSettings(name=name, url=url, **settings), clock=clock or Clock(), on_change=on_change)
    if listed is not None:
        made.record_model_list(models(*({"id": model} for model in listed)))
    return made


def models(*objects: dict[str, Any]) -> BufferedResponse:
    """A reply to `GET /v1/models`."""
    return BufferedResponse(200, {}, json.dumps({"object": "list", "data": objects}).encode())


def status(code: int) -> BufferedResponse:
    """A reply with nothing in it."""
    return BufferedResponse(code, {}, b"")
