"""Upstreams for tests: settings, replies to probes, and a manual clock."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from welldone.config.upstream import UpstreamSettings
from welldone.core.json_budget import run_to_completion
from welldone.gateway.upstream import Upstream
from welldone.http.client import BufferedResponse
from welldone.http.connect import HttpClientError

SILENCE = HttpClientError("no connection to the server")
NOWHERE = "http://127.0.0.1:1/v1"


class Clock:
    """A clock that tests set."""

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
    **settings: Any,  # noqa: ANN401 - those of UpstreamSettings
) -> Upstream:
    """Create an upstream. `listed`: the models that it lists; None: not probed yet."""
    created = Upstream(UpstreamSettings(name=name, url=url, **settings), clock=clock or Clock(), on_change=on_change)
    if listed is not None:
        run_to_completion(created.record_model_list_in_steps(models(*({"id": model} for model in listed))))
    return created


def models(*objects: dict[str, Any]) -> BufferedResponse:
    """Return a reply to `GET /v1/models`."""
    return BufferedResponse(200, {}, json.dumps({"object": "list", "data": objects}).encode())


def status(code: int) -> BufferedResponse:
    """Return an empty reply."""
    return BufferedResponse(code, {}, b"")
