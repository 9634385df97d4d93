"""The paths of the page."""

import asyncio
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import parse_qs

import msgspec

from welldone.gateway.errors import ApiError, invalid_request
from welldone.http.server import HttpResponse
from welldone.protocol.catalog import RULES_BY_ID
from welldone.rules.rule_pages import read_page
from welldone.server.app import RequestContext, Route, RouteHandler, json_response
from welldone.server.inspector import lint
from welldone.server.inspector.assets import ASSETS_PATH, AssetHandlers, AssetSource
from welldone.server.inspector.captures import CaptureStore
from welldone.server.inspector.lint import LintJob, lint_in_child, run_lint_job
from welldone.server.inspector.recent import RecentRequests
from welldone.server.inspector.state import StateApi
from welldone.server.observe.workers import WorkerQuery, WorkerSync

# What the stream inspector asks for: tapes of answers, the verdict on a captured stream, the page of a rule.


CONCURRENT_LINTS = 1
"""Captures that are judged at once: each takes some 100 MB, and a processor, for up to some seconds."""
CONCURRENT_UPLOADS = 8
"""Captures that are read at once, since slow senders must not keep others out: 64 MiB in all."""
_BODY_LIMIT_BYTES = 2 * lint.LINT_LIMIT_BYTES  # of a request: a capture grows by a third in base64, and less as text
_THREAD_LIMIT_BYTES = 64 * 2**10
"""A shorter capture is judged in a thread, within 50 ms; a longer one in a process of its own: threads share the
interpreter with all streams."""
_RETRY_S = 1.0
_STEP_DIGITS = 9  # of a step's number
_CAPTURE_TOPIC = "tape"


class InspectorApi:
    """Answers the inspector. `is_admin`: whether a principal may know of the servers behind this one."""

    def __init__(
        self, captures: CaptureStore, *, worker_sync: WorkerSync | None, body_s: float, is_admin: Callable[[str], bool]
    ) -> None:
        self._captures = captures
        self._worker_sync = worker_sync
        self._body_s = body_s
        self._is_admin = is_admin
        self._threads = ThreadPoolExecutor(CONCURRENT_LINTS, "lint")
        self._lint_slots = threading.BoundedSemaphore(CONCURRENT_LINTS)
        self._uploads = 0
        if worker_sync is not None:
            worker_sync.register(_CAPTURE_TOPIC, self._encode_capture)

    async def get_capture(self, ctx: RequestContext) -> HttpResponse:
        """`GET …/tapes/{id}?from=N`."""
        question = {
            "principal": ctx.principal,
            "id": _last_path_segment(ctx),
            "from": _read_first_step(ctx.request.query),
        }
        found = await self._encode_capture(question)
        if not found and self._worker_sync is not None:
            found = next(iter(await self._worker_sync.gather(_CAPTURE_TOPIC, question)), b"")
        if not found:
            raise ApiError(404, "There is no such tape: it is not there yet, or not any more.", code="not_found")
        return HttpResponse(200, found)

    async def _encode_capture(self, question: WorkerQuery) -> bytes:
        """What this process has to say of a tape; nothing where it has none."""
        principal = question["principal"]
        watch = self._captures.find(principal, question["id"])
        if watch is None:
            return b""
        return msgspec.json.encode(await watch.read_steps(question["from"], is_admin=self._is_admin(principal)))

    async def lint(self, ctx: RequestContext) -> HttpResponse:
        """`POST …/lint`."""
        if self._uploads == CONCURRENT_UPLOADS:
            raise _too_many_lints()
        self._uploads += 1
        headers = ctx.request.headers
        try:
            data = await ctx.request.read_body(limit_bytes=_BODY_LIMIT_BYTES, timeout_s=self._body_s)
        finally:
            self._uploads -= 1
        if not self._lint_slots.acquire(blocking=False):
            raise _too_many_lints()
        job = LintJob(data, headers.get("Content-Type"), "Origin" in headers)
        if len(data) > _THREAD_LIMIT_BYTES:
            try:
                return HttpResponse(200, await lint_in_child(job))
            finally:
                self._lint_slots.release()
        # The room is free when the thread is, be it that nobody waits for it any more.
        working = self._threads.submit(run_lint_job, job)
        working.add_done_callback(lambda _: self._lint_slots.release())
        return HttpResponse(200, await asyncio.wrap_future(working))

    async def get_rule(self, ctx: RequestContext) -> HttpResponse:
        """`GET …/rules/{id}`."""
        fault = RULES_BY_ID.get(_last_path_segment(ctx))
        if fault is None:
            raise ApiError(404, "There is no such rule.", code="not_found")
        text = await asyncio.to_thread(read_page, fault.id)
        told = {name: getattr(fault, name) for name in ("id", "rule", "severity", "mend", "how", "hurts", "endpoints")}
        return json_response({**told, "page": text})


def _too_many_lints() -> ApiError:
    return ApiError(429, "Another capture is being judged.", code="too_many_lints", retry_after_s=_RETRY_S)


def _last_path_segment(ctx: RequestContext) -> str:
    """The last name in the path."""
    return ctx.request.path.rpartition("/")[2]


def _read_first_step(query: str) -> int:
    """The step that is asked for first."""
    try:
        start = parse_qs(query, max_num_fields=1).get("from", ["0"])[-1]
    except ValueError:
        start = ""
    if not (start.isascii() and start.isdigit() and len(start) <= _STEP_DIGITS):
        raise invalid_request("'from' must be the number of a step.", param="from")
    return int(start)


_API_PREFIX = "/page/api/"
_NESTED_PATH = re.compile(r"^(/page/(?:assets|api/[a-z]+)/).+")


class InspectorServices(NamedTuple):
    """What a server with a page has besides."""

    site: AssetSource
    recent: RecentRequests
    captures: CaptureStore


def inspector_routes(assets: AssetHandlers, state: StateApi, inspector: InspectorApi) -> dict[str, Route]:
    """All routes of the page. A path that ends with `*` has others below it."""

    def shown(action: RouteHandler, *, is_open: bool = False) -> Route:
        return Route("page", {"GET": action}, is_public=is_open)

    return {
        "/": shown(assets.index, is_open=True),
        f"{ASSETS_PATH}*": shown(assets.asset, is_open=True),
        f"{_API_PREFIX}state": shown(state.get_state),
        f"{_API_PREFIX}recordings/*": shown(state.get_recording),
        f"{_API_PREFIX}tapes/*": shown(inspector.get_capture),
        f"{_API_PREFIX}rules/*": shown(inspector.get_rule),
        f"{_API_PREFIX}lint": Route("page", {"POST": inspector.lint}, is_rate_limited=True),
    }


def wildcard_path(path: str) -> str:
    """The path under which a route stands, for one that has names below it."""
    return _NESTED_PATH.sub(r"\1*", path)
