"""HTTP routes of the inspector: captures, lint, rule pages; the route table of the whole page."""

import asyncio
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs

import msgspec

from welldone.core.catalog import RULES
from welldone.gateway.errors import ApiError, invalid_request
from welldone.http.messages import HttpResponse
from welldone.rules.rule_pages import read_page
from welldone.server.context import RequestContext, Route, RouteHandler, json_response
from welldone.server.inspector import lint
from welldone.server.inspector.assets import ASSETS_PATH, StaticSite
from welldone.server.inspector.captures import CaptureStore
from welldone.server.inspector.downloads import Downloads
from welldone.server.inspector.lint import LintJob, lint_in_child, run_lint_job
from welldone.server.inspector.state import StateApi
from welldone.server.observe.workers import WorkerQuery, WorkerSync

CONCURRENT_LINTS = 1
"""Captures linted at once. Each takes about 100 MB and one CPU core for up to a few seconds."""
CONCURRENT_UPLOADS = 8
"""Captures uploaded at once, 64 MiB in all: more than one, so that a slow upload does not block others."""
_UPLOAD_LIMIT_BYTES = 2 * lint.LINT_LIMIT_BYTES  # base64 adds a third, JSON escapes usually less
_THREAD_LIMIT_BYTES = 64 * 2**10
"""Shorter captures are linted in a thread (under 50 ms), longer ones in a child process: a thread would compete with
all streams for the interpreter lock."""
_RETRY_S = 1.0
_STEP_DIGITS = 9  # of a step number
_CAPTURE_TOPIC = "tape"
_RULE_FIELDS = ("id", "summary", "severity", "repairability", "repair", "affects", "endpoints")
_API_PREFIX = "/page/api/"
_NESTED_PATH = re.compile(r"^(/page/(?:assets|api/[a-z]+)/).+")


class InspectorApi:
    """Handlers of the inspector. `is_admin` decides whether a principal sees the servers behind this one."""

    def __init__(
        self, captures: CaptureStore, *, worker_sync: WorkerSync, body_s: float, is_admin: Callable[[str], bool]
    ) -> None:
        self._captures = captures
        self._worker_sync = worker_sync
        self._body_s = body_s
        self._is_admin = is_admin
        self._threads = ThreadPoolExecutor(CONCURRENT_LINTS, "lint")
        self._lint_slots = threading.BoundedSemaphore(CONCURRENT_LINTS)
        self._uploads = 0
        worker_sync.register(_CAPTURE_TOPIC, self._encode_capture)

    async def get_capture(self, ctx: RequestContext) -> HttpResponse:
        """`GET …/tapes/{id}?from=N`: the steps of a capture from step N on, from whichever worker has it."""
        query = {"principal": ctx.principal, "id": _last_path_segment(ctx), "from": _read_first_step(ctx.request.query)}
        body = await self._encode_capture(query)
        if not body:
            body = next(iter(await self._worker_sync.gather(_CAPTURE_TOPIC, query)), b"")
        if not body:
            raise ApiError(404, "No capture has this id. It has not started yet, or was discarded.", code="not_found")
        return HttpResponse(200, body)

    async def _encode_capture(self, query: WorkerQuery) -> bytes:
        """Return the capture as JSON; empty if this process does not have it."""
        principal = query["principal"]
        capture = self._captures.find(principal, query["id"])
        if capture is None:
            return b""
        return msgspec.json.encode(await capture.read_steps(query["from"], is_admin=self._is_admin(principal)))

    async def lint(self, ctx: RequestContext) -> HttpResponse:
        """`POST …/lint`: findings in an uploaded capture, and its repaired form."""
        if self._uploads == CONCURRENT_UPLOADS:
            raise _too_many_lints()
        self._uploads += 1
        headers = ctx.request.headers
        try:
            data = await ctx.request.read_body(limit_bytes=_UPLOAD_LIMIT_BYTES, timeout_s=self._body_s)
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
        # A thread cannot be cancelled: its slot is free when it ends, even if the client has disconnected.
        future = self._threads.submit(run_lint_job, job)
        future.add_done_callback(lambda _: self._lint_slots.release())
        return HttpResponse(200, await asyncio.wrap_future(future))

    async def get_rule(self, ctx: RequestContext) -> HttpResponse:
        """`GET …/rules/{id}`: a catalogue entry with its page in Markdown."""
        rule = RULES.get(_last_path_segment(ctx))
        if rule is None:
            raise ApiError(404, "No rule has this id; `welldone rules` lists all.", code="not_found")
        page = await asyncio.to_thread(read_page, rule.id)
        return json_response({**{name: getattr(rule, name) for name in _RULE_FIELDS}, "page": page})


def _too_many_lints() -> ApiError:
    return ApiError(429, "Another capture is being linted. Try again.", code="too_many_lints", retry_after_s=_RETRY_S)


def _last_path_segment(ctx: RequestContext) -> str:
    return ctx.request.path.rpartition("/")[2]


def _read_first_step(query: str) -> int:
    try:
        start = parse_qs(query, max_num_fields=1).get("from", ["0"])[-1]
    except ValueError:
        start = ""
    if not (start.isascii() and start.isdigit() and len(start) <= _STEP_DIGITS):
        raise invalid_request("'from' must be the number of a step.", param="from")
    return int(start)


def download_routes(downloads: Downloads) -> dict[str, Route]:
    """Return the routes that search and download models, by path."""
    return {
        f"{_API_PREFIX}hub/search": Route("page", {"GET": downloads.search}, is_rate_limited=True),
        f"{_API_PREFIX}hub/files": Route("page", {"GET": downloads.list_files}, is_rate_limited=True),
        f"{_API_PREFIX}pull": Route(
            "page", {"GET": downloads.get, "POST": downloads.start, "DELETE": downloads.cancel}
        ),
    }


def inspector_routes(site: StaticSite, state: StateApi, inspector: InspectorApi) -> dict[str, Route]:
    """Return all routes of the page by path. A path that ends with `*` matches everything below it."""

    def get(handler: RouteHandler, *, is_public: bool = False) -> Route:
        return Route("page", {"GET": handler}, is_public=is_public)

    return {
        "/": get(site.get_index, is_public=True),
        f"{ASSETS_PATH}*": get(site.get_asset, is_public=True),
        f"{_API_PREFIX}state": get(state.get_state),
        f"{_API_PREFIX}recordings/*": get(state.get_recording),
        f"{_API_PREFIX}tapes/*": get(inspector.get_capture),
        f"{_API_PREFIX}rules/*": get(inspector.get_rule),
        f"{_API_PREFIX}lint": Route("page", {"POST": inspector.lint}, is_rate_limited=True),
    }


def wildcard_path(path: str) -> str:
    """Return the `*` path that matches a path of the page; other paths are returned unchanged."""
    return _NESTED_PATH.sub(r"\1*", path)
