"""Search of the Hub and download of models for the page, for admins. One download runs at a time, in a child process.

A downloaded model is in the models folder; the server serves it after a start with its name.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qs

import msgspec

from welldone.engines.models.hub_child import HubEvent, HubJob
from welldone.engines.models.install import PullError, PullErrorKind, parse_hub_source
from welldone.engines.models.store import model_name_of
from welldone.gateway.errors import ApiError, invalid_request
from welldone.http.messages import HttpResponse
from welldone.server.context import RequestContext, json_response
from welldone.server.inspector.children import start_child
from welldone.server.observe import log
from welldone.server.requests import fields
from welldone.server.requests.fields import read_body

_CHILD_MODULE = "welldone.engines.models.hub_child"
_BODY_LIMIT_BYTES = 4096
_TEXT_LIMIT = 200  # characters of a search or a source
_RESULTS_LIMIT = 30  # repositories of a search: more are not read
_FILES_LIMIT = 100  # repositories have up to about 40 quantisations
_LINE_LIMIT_BYTES = 2**20
CONCURRENT_LOOKUPS = 2
"""Searches and lists at once. Each is a process of about 60 MB for a second or two."""
LOOKUP_TIMEOUT_S = 60.0


class PullRequest(msgspec.Struct, kw_only=True):
    """A request to `POST /page/api/pull`."""

    source: Annotated[str, msgspec.Meta(min_length=1, max_length=_TEXT_LIMIT)]


class DownloadState(StrEnum):
    """State of the latest download."""

    IDLE = "idle"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class DownloadView(msgspec.Struct, kw_only=True):
    """The latest download."""

    state: DownloadState = DownloadState.IDLE
    source: str = ""
    file: str = ""
    """The file in progress: a split model has several."""
    done_bytes: int = 0
    total_bytes: int | None = None
    error: str | None = None
    model: str | None = None
    """Name of the downloaded model, for `welldone serve -m`."""


class Downloads:
    """Handlers of search and download. `environment` has the variables of the Hub, such as HF_TOKEN."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], *, check_admin: Callable[[str], None], body_s: float
    ) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._check_admin = check_admin
        self._body_s = body_s
        self._lookups = 0
        self._task: asyncio.Task[None] | None = None
        self.view: DownloadView = DownloadView()

    async def search(self, ctx: RequestContext) -> HttpResponse:
        """`GET …/hub/search?q=WORDS`: repositories with GGUF models."""
        job = HubJob(action="search", text=self._read_query(ctx, "q"), limit=_RESULTS_LIMIT)
        return await self._look_up(job, "repositories")

    async def list_files(self, ctx: RequestContext) -> HttpResponse:
        """`GET …/hub/files?repository=OWNER/REPO`: its models, with their quantisations and sizes."""
        text = self._read_query(ctx, "repository")
        _check_source(text, "repository")
        return await self._look_up(HubJob(action="files", text=text, limit=_FILES_LIMIT), "models")

    async def get(self, ctx: RequestContext) -> HttpResponse:
        """`GET …/pull`: the latest download."""
        self._check_admin(ctx.principal)
        return json_response(self.view)

    async def start(self, ctx: RequestContext) -> HttpResponse:
        """`POST …/pull`: start a download."""
        self._check_admin(ctx.principal)
        headers = ctx.request.headers
        data = await ctx.request.read_body(limit_bytes=_BODY_LIMIT_BYTES, timeout_s=self._body_s)
        body = read_body(data, headers.get("Content-Type"), is_browser="Origin" in headers)
        source = _check_source(fields.read_fields(body, PullRequest).source, "source")
        if self._task is not None:
            message = f"The server is downloading {self.view.source}. Wait for it, or cancel it."
            raise ApiError(409, message, code="download_running")
        self.view = DownloadView(state=DownloadState.RUNNING, source=source)
        self._task = asyncio.create_task(self._pull(self.view))
        return json_response(self.view)

    async def cancel(self, ctx: RequestContext) -> HttpResponse:
        """`DELETE …/pull`: cancel the download. What it has is kept, and a later one resumes it."""
        self._check_admin(ctx.principal)
        await self.close()
        return json_response(self.view)

    async def close(self) -> None:
        """End the download, if there is one."""
        if (task := self._task) is not None:
            task.cancel()
            await asyncio.wait([task])

    def _read_query(self, ctx: RequestContext, name: str) -> str:
        self._check_admin(ctx.principal)
        try:
            (text,) = parse_qs(ctx.request.query, max_num_fields=4)[name]
        except (ValueError, KeyError):
            text = ""
        if not text.strip() or len(text) > _TEXT_LIMIT or not text.isprintable():
            raise invalid_request(f"'{name}' must have 1 to {_TEXT_LIMIT} printable characters.", param=name)
        return text.strip()

    async def _look_up(self, job: HubJob, name: str) -> HttpResponse:
        if self._lookups == CONCURRENT_LOOKUPS:
            raise ApiError(429, "Other searches are running. Try again.", code="too_many_searches", retry_after_s=1.0)
        self._lookups += 1
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S), self._events(job) as events:
                async for event in events:
                    if event.result is not None:
                        return json_response({name: event.result})
                    if event.error is not None:
                        raise _api_error(event)
        except TimeoutError:
            raise ApiError(504, "The Hub does not answer in time. Try again.", code="hub_unavailable") from None
        finally:
            self._lookups -= 1
        raise ApiError(502, "The search ended without a result. Try again.", code="hub_unavailable")

    async def _pull(self, view: DownloadView) -> None:
        """Download a model, and keep its view up to date."""
        log.event(logging.INFO, "model download started", {"source": view.source})
        job = HubJob(action="pull", text=view.source, folder=str(self._folder))
        view.error = "The download ended without a result. Try again."
        try:
            async with self._events(job) as events:
                async for event in events:
                    if event.file is not None:
                        view.file, view.done_bytes, view.total_bytes = event.file, event.done_bytes, event.total_bytes
                    elif event.result is not None:
                        view.model = model_name_of(Path(event.result))
                        view.error = None
                    else:
                        view.error = event.error
            if view.error is None:
                view.state = DownloadState.DONE
        except asyncio.CancelledError:
            view.state, view.error = DownloadState.CANCELLED, None
            raise
        except ApiError as error:
            view.error = error.message
        finally:
            self._task = None
            if view.state is DownloadState.RUNNING:
                view.state = DownloadState.FAILED
            level = logging.WARNING if view.error else logging.INFO
            more = {"error": view.error} if view.error else {}
            log.event(level, f"model download {view.state.value}", {"source": view.source, **more})

    @asynccontextmanager
    async def _events(self, job: HubJob) -> AsyncIterator[AsyncIterator[HubEvent]]:
        """Run a job in a child process, which ends with the block."""
        child = await start_child(_CHILD_MODULE, self._environment, "for this", limit=_LINE_LIMIT_BYTES)
        stdin, stdout = child.stdin, child.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(msgspec.json.encode(job) + b"\n")  # open until the end: its EOF ends the child
            yield _read_events(stdout)
        finally:
            with suppress(ProcessLookupError):
                child.kill()
            stdin.close()
            await child.wait()


async def _read_events(stdout: asyncio.StreamReader) -> AsyncIterator[HubEvent]:
    while line := await stdout.readline():
        yield msgspec.json.decode(line, type=HubEvent)


def _check_source(text: str, param: str) -> str:
    """Return the source on the Hub; other sources are refused, since the server would fetch any URL for a client."""
    try:
        return str(parse_hub_source(text))
    except PullError as error:
        raise invalid_request(f"{error}.", param=param) from None


def _api_error(event: HubEvent) -> ApiError:
    message = f"{event.error}."
    if event.error_kind == PullErrorKind.USER_ERROR:
        return invalid_request(message)
    return ApiError(502, message, code="hub_unavailable")
