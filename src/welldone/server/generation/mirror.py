"""Traffic mirroring: a share of an upstream's requests is sent to a second upstream too, and the replies are compared.

The second request is sent after the first reply has ended, on a connection of its own, and its reply is dropped after
the comparison. So the client's stream, its limits and the second upstream's queue and breaker are not affected. Busy
mirrors drop requests. Nothing of the texts is kept: a comparison has the rules that each reply violates, and the place
of the first difference.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from typing import Any, cast

import msgspec

from welldone.config.upstream import parse_mirror
from welldone.core.collect import collect
from welldone.core.envelope import Endpoint
from welldone.core.events import Event, Json
from welldone.core.text_filters import TextMode, ThinkMode
from welldone.dialects.registry import SAME_DIALECT_ENDPOINTS
from welldone.gateway.backends import BackendLease
from welldone.gateway.upstream import Upstream
from welldone.http.client import BufferedResponse, fetch
from welldone.http.connect import HttpClientError
from welldone.library.reading import parse
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.server.generation.attempt import StreamObserver
from welldone.server.generation.pipelines import reasoning_input_fields, with_reasoning_fields
from welldone.server.observe import log
from welldone.server.observe.metrics import Metrics

MAX_RUNNING = 16
"""Mirrored requests at once, from the start of the first reply. With `REPLY_LIMIT_BYTES` this bounds the memory."""
BODY_LIMIT_BYTES = 2**20
"""Longer requests are not mirrored."""
REPLY_LIMIT_BYTES = 2**20
"""Some 4,000 tokens as chunks. Longer replies are not compared."""
TIME_LIMIT_S = 300.0
"""For the second reply, whose request waits in no queue of ours."""
KEPT_COMPARISONS = 100
"""For `GET /admin/mirror`."""

_OK = 200


class _MirroredRequest(msgspec.Struct, eq=False):
    """A request for a second upstream. Collects the reply that the client gets (a `StreamObserver`)."""

    upstream: Upstream
    target: Upstream
    endpoint: str
    path: str
    body: bytes
    """With the target's name of the model."""
    model: str
    id: str
    ended: asyncio.Future[bool]
    """Whether the first reply is complete."""
    status: int = 0
    headers: Mapping[str, str] = {}
    reply: bytearray = msgspec.field(default_factory=bytearray)

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, headers

    def data(self, data: bytes) -> None:
        if len(self.reply) <= REPLY_LIMIT_BYTES:
            self.reply += data

    def end(self, error: str | None, *, is_aborted: bool = False) -> None:
        if not self.ended.done():
            self.ended.set_result(error is None and self.status == _OK)


class TrafficMirror:
    """Mirrors requests of upstreams with `mirror`. `find` returns the upstream of a name."""

    def __init__(self, find: Callable[[str], Upstream | None], metrics: Metrics) -> None:
        self.comparisons: deque[Json] = deque(maxlen=KEPT_COMPARISONS)
        """As in the reply of `GET /admin/mirror`."""
        self._find = find
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, lease: BackendLease, endpoint: Endpoint, path: str, body: Json, id_: str) -> StreamObserver | None:
        """Return the observer of a reply if its request is mirrored.

        Requests that an upstream stores are not mirrored: they have side effects.
        """
        upstream = lease.upstream
        if upstream is None or not upstream.settings.mirror:
            return None
        mirror = parse_mirror(upstream.settings.mirror)
        target = self._find(mirror.upstream)
        is_readable = endpoint not in SAME_DIALECT_ENDPOINTS
        if target is None or not is_readable or body.get("store") is True or random.random() >= mirror.share:
            return None
        body = {**body, "model": mirror.model or lease.model}
        if endpoint.is_chat:
            body = with_reasoning_fields(body, reasoning_input_fields(target, body["model"]))
        encoded = msgspec.json.encode(body)
        if len(self._tasks) >= MAX_RUNNING or not target.is_available or len(encoded) > BODY_LIMIT_BYTES:
            self._metrics.count_mirrored(target.name, "dropped")
            return None
        ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        request = _MirroredRequest(upstream, target, endpoint.value, path, encoded, lease.model, id_, ended)
        task = asyncio.create_task(self._compare(request), name=f"mirror to {target.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return request

    async def close(self) -> None:
        """Cancel the requests in progress."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _compare(self, request: _MirroredRequest) -> None:
        """Wait for the first reply. Unless it failed or is too long, send the second request and compare the two."""
        target, began = request.target, time.monotonic()
        is_complete = await request.ended
        if len(request.reply) > REPLY_LIMIT_BYTES:
            self._metrics.count_mirrored(target.name, "dropped")
            return
        if not is_complete:
            return
        sent, second, problem = time.monotonic(), None, None
        try:
            # On a new connection, with the target's own key and headers. The client's headers are not sent.
            second = await fetch(
                target.address,
                "POST",
                request.path,
                timeout_s=TIME_LIMIT_S,
                limit_bytes=REPLY_LIMIT_BYTES,
                body=request.body,
                accept="text/event-stream",
            )
        except HttpClientError as error:
            problem = str(error)
        seconds = (sent - began, time.monotonic() - sent)
        first = BufferedResponse(_OK, request.headers, bytes(request.reply))
        request.reply.clear()
        here, answer = await asyncio.to_thread(_read_reply, request, request.upstream, first, seconds[0])
        there, mirrored = await asyncio.to_thread(_read_reply, request, target, second, seconds[1])
        if second is not None and mirrored is None:
            problem = f"status {second.status}, or an error in the reply"
        outcome, difference = "failed", None
        if answer is not None and mirrored is not None:
            difference = await asyncio.to_thread(_first_difference, answer, mirrored)
            outcome = "identical" if difference is None else "different"
        about: dict[str, log.FieldValue] = {"outcome": outcome, "first_difference": difference}
        self.comparisons.append(
            {"at": time.time(), "request_id": request.id, "model": request.model, **about}
            | {"problem": problem, "reply": here, "mirrored": there}
        )
        self._metrics.count_mirrored(target.name, outcome)
        about = {"request_id": request.id, "upstream": request.upstream.name, "mirror": target.name, **about}
        about |= {"reason": problem, "rules": [*here["findings"]] or None, "mirror_rules": [*there["findings"]] or None}
        log.event(logging.INFO, "mirrored", {name: value for name, value in about.items() if value is not None})


def _first_difference(answer: str, mirrored: str) -> int | None:
    pairs = enumerate(zip_longest(answer, mirrored))
    return None if answer == mirrored else next(place for place, (one, other) in pairs if one != other)


def _read_reply(
    request: _MirroredRequest, upstream: Upstream, reply: BufferedResponse | None, seconds: float
) -> tuple[Json, str | None]:
    """Judge a reply. Return its description, and reasoning, text and tool calls of its answer. Runs in a thread."""
    findings: Mapping[str, int] = {}
    answer = None
    if reply is not None:
        body, headers = msgspec.json.decode(request.body), tuple(reply.headers.items())
        endpoint, status = request.endpoint, reply.status
        trace = Trace(body=reply.body, endpoint=endpoint, request=body, status=status, headers=headers, complete=True)
        findings = judge(trace).counts
        if status == _OK:
            think, mode = cast("ThinkMode", upstream.settings.think), cast("TextMode", upstream.settings.text)
            answer = _answer_text(parse(reply.body, cast("Any", endpoint), request=body, think=think, text=mode))
    description: Json = {"upstream": upstream.name, "status": None if reply is None else reply.status}
    description |= {"characters": None if answer is None else len(answer), "findings": findings}
    return description | {"duration_s": round(seconds, 3)}, answer


def _answer_text(events: Iterable[Event]) -> str | None:
    reply = collect(events)
    texts: list[str] = []
    for _, choice in sorted(reply.choices.items()):
        texts += [choice.reasoning, choice.text, *(f"{call.name}({call.arguments})" for call in choice.tool_calls)]
    return "".join(texts) if reply.failure is None else None
