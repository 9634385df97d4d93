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
from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any, Literal, cast

import msgspec

from welldone.config.upstream import parse_mirror
from welldone.gateway.backends import BackendLease
from welldone.gateway.upstream import Upstream
from welldone.http.client import fetch
from welldone.http.connect import HttpClientError
from welldone.library.reading import collect, parse
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import Json
from welldone.protocol.text_filters import TextMode, ThinkMode
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.server.generation.pipelines import reasoning_input_fields, with_reasoning_fields
from welldone.server.observe import log
from welldone.server.observe.metrics import Metrics

MirrorOutcome = Literal["identical", "different", "failed", "dropped"]

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

_READABLE = (Endpoint.CHAT, Endpoint.COMPLETIONS)
_OK = 200


class ReplySummary(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one of the two replies."""

    upstream: str
    status: int | None = None
    """None if there was no complete reply."""
    characters: int | None = None
    """Length of the answer: reasoning, text and tool calls."""
    findings: dict[str, int] = {}
    """Violations by rule, as `welldone lint` counts them."""
    duration_s: float | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of two replies to the same request."""

    at: float
    """Unix time."""
    request_id: str
    model: str
    outcome: MirrorOutcome
    first_difference: int | None = None
    """Characters that both answers have in common at their start; None unless they differ."""
    problem: str | None = None
    """Why the mirrored request failed."""
    reply: ReplySummary
    mirrored: ReplySummary


class TrafficMirror:
    """Mirrors requests of upstreams with `mirror`. `find` returns the upstream of a name."""

    def __init__(
        self,
        find: Callable[[str], Upstream | None],
        metrics: Metrics,
        *,
        now: Callable[[], float] = time.time,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.comparisons: deque[Comparison] = deque(maxlen=KEPT_COMPARISONS)
        self._find = find
        self._metrics = metrics
        self._now = now
        self._draw = draw
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, lease: BackendLease, endpoint: Endpoint, path: str, body: Json, id_: str) -> "_FirstReply | None":
        """Return the observer of a reply if its request is mirrored.

        Requests that an upstream stores are not mirrored: they have side effects.
        """
        upstream = lease.upstream
        if upstream is None or not upstream.settings.mirror:
            return None
        mirror = parse_mirror(upstream.settings.mirror)
        target = self._find(mirror.upstream)
        if target is None or endpoint not in _READABLE or body.get("store") is True or self._draw() >= mirror.share:
            return None
        body = {**body, "model": mirror.model or lease.model}
        if endpoint is Endpoint.CHAT:
            body = with_reasoning_fields(body, reasoning_input_fields(target, body["model"]))
        encoded = msgspec.json.encode(body)
        if self._running >= MAX_RUNNING or not target.is_available or len(encoded) > BODY_LIMIT_BYTES:
            self.count_dropped(target)
            return None
        self._running += 1
        return _FirstReply(self, upstream, target, _MirroredRequest(endpoint, path, encoded, lease.model, id_))

    def reply_ended(self, first: "_FirstReply", body: bytes | None) -> None:
        """Send the second request, unless the first one failed or has a long reply."""
        if body is None:
            self._running -= 1
            return
        task = asyncio.create_task(self._compare(first, body), name=f"mirror to {first.target.name}")
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._running -= 1

    def count_dropped(self, target: Upstream) -> None:
        """Count a request that is not mirrored."""
        self._metrics.count_mirrored(target.name, "dropped")

    async def close(self) -> None:
        """Cancel the requests in progress."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _compare(self, first: "_FirstReply", body: bytes) -> None:
        request, target = first.request, first.target
        began, problem, reply = time.monotonic(), None, None
        try:
            # On a new connection, with the target's own key and headers. The client's headers are not sent.
            reply = await fetch(
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
        duration_s = round(time.monotonic() - began, 3)
        here = await asyncio.to_thread(_read_reply, request, first.upstream, _OK, first.headers, body)
        there = _Reply(ReplySummary(upstream=target.name, duration_s=duration_s), None)
        if reply is not None:
            there = await asyncio.to_thread(
                _read_reply, request, target, reply.status, reply.headers, reply.body, duration_s
            )
            problem = None if there.text is not None else f"status {reply.status}, or an error in the reply"
        outcome: MirrorOutcome = "failed"
        difference = None
        if here.text is not None and there.text is not None:
            outcome = "identical" if here.text == there.text else "different"
            difference = None if outcome == "identical" else _first_difference(here.text, there.text)
        comparison = Comparison(
            at=self._now(),
            request_id=request.id,
            model=request.model,
            outcome=outcome,
            first_difference=difference,
            problem=problem,
            reply=msgspec.structs.replace(here.summary, duration_s=first.duration_s),
            mirrored=there.summary,
        )
        self.comparisons.append(comparison)
        self._metrics.count_mirrored(target.name, outcome)
        _log_comparison(comparison)


class _MirroredRequest(msgspec.Struct, frozen=True):
    endpoint: Endpoint
    path: str
    body: bytes
    """For the second upstream."""
    model: str
    id: str


class _FirstReply:
    """Collects the reply that the client gets (a `StreamObserver`)."""

    def __init__(self, mirror: TrafficMirror, upstream: Upstream, target: Upstream, request: _MirroredRequest) -> None:
        self.upstream: Upstream = upstream
        self.target: Upstream = target
        self.request: _MirroredRequest = request
        self.headers: Mapping[str, str] = {}
        self.duration_s: float = 0.0
        self._mirror = mirror
        self._status = 0
        self._body: bytearray | None = bytearray()  # None: too long
        self._began = time.monotonic()
        self._is_finished = False

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Keep status and headers."""
        self._status, self.headers = status, headers

    def data(self, data: bytes) -> None:
        """Keep a piece of the body."""
        if self._body is not None:
            self._body += data
            if len(self._body) > REPLY_LIMIT_BYTES:
                self._body = None

    def end(self, error: str | None, *, is_aborted: bool = False) -> None:
        """Compare a complete reply."""
        if self._is_finished:
            return
        self._is_finished = True
        self.duration_s = round(time.monotonic() - self._began, 3)
        is_complete = error is None and self._status == _OK and self._body is not None
        if self._body is None:
            self._mirror.count_dropped(self.target)
        self._mirror.reply_ended(self, bytes(self._body) if is_complete and self._body is not None else None)
        self._body = None


class _Reply(msgspec.Struct, frozen=True):
    summary: ReplySummary
    text: str | None
    """The answer; None if the reply is not one."""


def _read_reply(
    request: _MirroredRequest,
    upstream: Upstream,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    duration_s: float | None = None,
) -> _Reply:
    """Judge a reply and read its answer. Runs in a thread."""
    sent: Json = msgspec.json.decode(request.body)
    endpoint = request.endpoint.value
    trace = Trace(
        body=body, endpoint=endpoint, request=sent, status=status, headers=tuple(headers.items()), complete=True
    )
    text = None
    if status == _OK:
        think, mode = cast("ThinkMode", upstream.settings.think), cast("TextMode", upstream.settings.text)
        events = parse(body, cast("Any", endpoint), request=sent, think=think, text=mode)
        text = _answer_text(collect(events))
    summary = ReplySummary(
        upstream=upstream.name,
        status=status,
        characters=None if text is None else len(text),
        findings=judge(trace).counts,
        duration_s=duration_s,
    )
    return _Reply(summary, text)


def _answer_text(reply: Json) -> str | None:
    """Return reasoning, text and tool calls of all choices without their ids; None for an error."""
    if "error" in reply:
        return None
    pieces = []
    for choice in reply["choices"]:
        message = choice.get("message", {})
        calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
        texts = (message.get("reasoning_content"), message.get("content"), choice.get("text"))
        pieces += [*(text or "" for text in texts), *(f"{call.get('name')}({call.get('arguments')})" for call in calls)]
    return "".join(pieces)


def _first_difference(one: str, other: str) -> int:
    return next(place for place, (a, b) in enumerate(zip_longest(one, other)) if a != b)


def _log_comparison(comparison: Comparison) -> None:
    here, there = comparison.reply, comparison.mirrored
    fields: dict[str, log.FieldValue] = {
        "request_id": comparison.request_id,
        "upstream": here.upstream,
        "mirror": there.upstream,
        "outcome": comparison.outcome,
    }
    if comparison.first_difference is not None:
        fields["first_difference"] = comparison.first_difference
    if comparison.problem is not None:
        fields["reason"] = comparison.problem
    for name, summary in (("rules", here), ("mirror_rules", there)):
        if summary.findings:
            fields[name] = tuple(summary.findings)
    log.event(logging.INFO, "mirrored", fields)
