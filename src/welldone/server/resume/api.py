"""Resume of streams: the opt-in of a request, `GET` and `DELETE /v1/streams/{id}`, and readers of a stream.

The first connection of a resumable stream is a reader like any later one. A reader that is slow delays neither the
generation nor other readers: it takes one batch of events after the other, and waits for its client in between.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from welldone.config.server import ServeSettings
from welldone.core import sse
from welldone.gateway.errors import ApiError, internal_error, invalid_request, shutting_down
from welldone.gateway.stream_endings import error_ending, server_gone
from welldone.http.messages import HttpRequest, HttpResponse, StreamingResponse
from welldone.rules.trace import guess_endpoint
from welldone.schemas.errors import shorten_value
from welldone.server.access.store import StoreUnavailableError
from welldone.server.context import RequestContext, json_response, random_hex, response_headers
from welldone.server.observe import log
from welldone.server.parts import ServerParts
from welldone.server.resume.sources import StoreCopies, StoreSource, WorkerStreams, WriterDiedError
from welldone.server.resume.streams import (
    EventBatch,
    EventSource,
    ReaderFormat,
    ResumableStream,
    StreamHead,
    StreamLostError,
    StreamRegistry,
    StreamState,
)


class DetachedResponse(StreamingResponse):
    """A response without a connection."""

    def __init__(self, stream: ResumableStream) -> None:  # the base class needs a connection
        self._events = stream
        self.write_framed: Callable[[bytes], None] = stream.write

    def chunk_framing(self, size: int) -> tuple[bytes, bytes]:
        """Return no framing: each reader's connection adds its own."""
        return b"", b""

    def on_backpressure(self, callback: Callable[[], object]) -> None:
        """Set the callback for a full stream."""
        self._events.on_backpressure = callback

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Ignore it: the generation goes on."""

    @property
    def has_backpressure(self) -> bool:
        """Whether the stream is full of events that nobody has received."""
        return self._events.has_backpressure

    @property
    def is_open(self) -> bool:
        """Whether the stream has not ended."""
        return self._events.state is StreamState.RUNNING

    def write(self, data: bytes) -> None:
        """Add output to the stream."""
        self._events.write(data)

    async def drain(self) -> None:
        """Wait until a reader has received enough."""
        await self._events.drain()

    async def end(self, trailers: Mapping[str, str] | None = None, *, last: bytes = b"") -> None:
        """End the stream after the `last` data."""
        self._events.write(last)
        self._events.trailers = trailers or {}
        self._events.end(StreamState.COMPLETE)

    def abort(self) -> None:
        """End the stream without its last events."""
        self._events.end(StreamState.CUT)


class DetachedRequest(HttpRequest):
    """A request whose response is written to a stream."""

    def __init__(self, request: HttpRequest, stream: ResumableStream) -> None:  # the base class needs a connection
        self.method: str = request.method
        self.path: str = request.path
        self.query: str = request.query
        self.headers: Mapping[str, str] = request.headers
        self.stream: StreamingResponse | None = None
        self.on_body_data: Callable[[int], object] | None = None
        self.events = stream
        """Where the response is written."""
        self._request = request

    def header_values(self, name: str) -> list[str]:
        """Return all values of a header."""
        return self._request.header_values(name)

    async def start_stream(
        self,
        headers: Mapping[str, str],
        *,
        status: int = 200,
        trailers: Sequence[str] = (),
        first: bytes = b"",
        holds_head: bool = False,
    ) -> StreamingResponse:
        """Open the stream; its readers send the head."""
        response = DetachedResponse(self.events)
        self.stream = response
        if not self.events.opened.done():
            self.events.opened.set_result(StreamHead(headers, tuple(trailers)))
        response.write(first)
        return response


RESUME_HEADER = "x-welldone-resume"
"""Request header that asks for a resumable stream."""
STREAM_ID_HEADER = "x-welldone-stream-id"
LAST_EVENT_HEADER = "Last-Event-ID"
_REFUSALS = ("", "0", "false")
_NUMBER_DIGITS = 15  # of an event; a stream has fewer
_EVENT_STREAM = dict(sse.HEADERS)["Content-Type"]
_LOGGED_FIELDS = ("prompt_tokens", "completion_tokens", "upstream", "error", "reason")
_STOP_S = 2.0  # to write the error events of streams at shutdown, and to copy them to the store

Generate = Callable[[RequestContext], Awaitable[object]]
"""Generates the response to a request."""


class ResumeService:
    """The resumable streams of a server, and the handlers of `/v1/streams/{id}`."""

    def __init__(self, parts: ServerParts) -> None:
        self.settings: ServeSettings = parts.settings
        self._metrics = parts.metrics
        self._store = parts.stream_store
        self._body_budget = parts.body_budget
        self.registry: StreamRegistry = StreamRegistry(parts.settings)
        parts.metrics.watch("welldone_resumable_streams", lambda: len(self.registry))
        parts.metrics.watch("welldone_resumable_bytes", lambda: self.registry.size_bytes)
        self._workers = WorkerStreams(parts.worker_sync, self.registry)
        self._copies = None if parts.stream_store is None else StoreCopies(parts.stream_store, self.registry)

    async def wait_idle(self, within_s: float) -> bool:
        """Wait for generations without a connection whose rest another front end can send; whether all have ended."""
        tasks = [stream.task for stream in self.registry.streams if stream.task is not None]
        if self._copies is None or not tasks:
            return True
        _, pending = await asyncio.wait(tasks, timeout=within_s)
        return not pending

    async def close(self) -> None:
        """End all generations without a connection."""
        running = [stream for stream in self.registry.streams if stream.task is not None]
        for stream in running:
            stream.stop_generation(shutting_down())
        tasks = [stream.task for stream in running if stream.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_S)
        for task in tasks:
            task.cancel()
        if self._copies is not None:
            await self._copies.close(_STOP_S)

    # Generation.

    def is_requested(self, ctx: RequestContext) -> bool:
        """Whether the client asks for a resumable stream."""
        headers = ctx.request.headers
        return (
            RESUME_HEADER in headers
            and headers[RESUME_HEADER].strip().lower() not in _REFUSALS
            and self.registry.is_enabled
            and not isinstance(ctx.request, DetachedRequest)
        )

    async def generate(self, ctx: RequestContext, generate: Generate) -> None:
        """Generate a stream that its client can resume; beyond the limit of streams, one that it cannot.

        Raises:
            ApiError: it failed before anything was sent.
        """
        stream = self.open(ctx.principal, f"stream_{random_hex(24)}")
        if stream is None:
            await generate(ctx)
            return
        detached = msgspec.structs.replace(ctx, request=DetachedRequest(ctx.request, stream))
        task = stream.task = asyncio.create_task(run_detached(stream, generate(detached), ctx.id))
        try:
            await self.follow(ctx, stream, ReaderFormat(has_ids=True))
        except ApiError:
            self.registry.remove(stream)
            raise
        except asyncio.CancelledError:
            if not stream.opened.done():  # the client does not know the id
                task.cancel()
                self.registry.remove(stream)
            elif not task.done():
                self._let_run(ctx, task)
            raise

    def open(self, principal: str, stream_id: str, *, is_background: bool = False) -> ResumableStream | None:
        """Open a stream; None beyond the limit of streams."""
        stream = self.registry.open(principal, stream_id, is_background=is_background)
        if stream is not None and self._copies is not None:
            self._copies.start(stream)
        return stream

    async def follow(self, ctx: RequestContext, stream: ResumableStream, form: ReaderFormat) -> None:
        """Send a new stream to its first reader.

        Raises:
            ApiError: the generation failed before the stream was open.
        """
        stream.attach()
        try:
            head = await asyncio.shield(stream.opened)
            headers = {**head.headers, STREAM_ID_HEADER: stream.id} if form.has_ids else head.headers
            response = await ctx.request.start_stream(headers, trailers=head.trailer_names)
            if await self._send_events(response, stream, await stream.read(0, 0.0), 0, form):
                await response.end(stream.trailers)
            if stream.task is not None and stream.state is StreamState.COMPLETE:
                await asyncio.wait([stream.task])  # for its log fields
        finally:
            stream.detach()

    def _let_run(self, ctx: RequestContext, task: asyncio.Task[None]) -> None:
        """Let a generation go on whose client disconnected."""
        body_bytes, ctx.body_bytes = ctx.body_bytes, 0  # the body is counted until the end of the generation

        def ended(_: asyncio.Task[None]) -> None:
            self._body_budget.client_bytes -= body_bytes
            fields = {name: ctx.log_fields[name] for name in _LOGGED_FIELDS if name in ctx.log_fields}
            log.event(
                logging.INFO,
                "the generation of a stream ended without its first client",
                {"request_id": ctx.id} | fields,
            )

        task.add_done_callback(ended)

    # Resume.

    async def get(self, ctx: RequestContext) -> HttpResponse | None:
        """`GET /streams/{id}`."""
        after = self.read_event_number(ctx.request.headers.get(LAST_EVENT_HEADER), LAST_EVENT_HEADER)
        source = await self.find(ctx.principal, _stream_id(ctx))
        if source is None:
            raise self._not_found()
        return await self.send_rest(ctx, source, after, ReaderFormat(has_ids=True))

    async def delete(self, ctx: RequestContext) -> HttpResponse:
        """`DELETE /streams/{id}`: end the generation, and forget the events."""
        source = await self.find(ctx.principal, _stream_id(ctx))
        if source is None:
            raise self._not_found()
        await source.stop()
        return json_response({"id": _stream_id(ctx), "object": "stream", "deleted": True})

    async def find(self, principal: str, stream_id: str) -> EventSource | None:
        """Return a stream of this principal, from whichever process has it.

        Raises:
            StoreUnavailableError: no process here has it, and the store did not say whether it has it.
        """
        source: EventSource | None = self.registry.get(principal, stream_id)
        if source is None:
            source = await self._workers.find(principal, stream_id)
        if source is None and self._store is not None:
            source = await StoreSource(self._store, principal, stream_id).find()
        return source

    async def send_rest(
        self, ctx: RequestContext, source: EventSource, after: int, form: ReaderFormat
    ) -> HttpResponse | None:
        """Send the events of a stream after the one with this number, and go on until its end.

        Raises:
            ApiError: these events are no longer kept, or there is no such event.
        """
        source.attach()
        try:
            batch = await source.read(after, 0.0)
            if after > batch.count:
                first, number = form.first_number, after + form.first_number - 1
                self._metrics.count_resume("invalid")
                message = f"There is no event {number}: the stream has {batch.count} events so far, from {first} on."
                raise invalid_request(message, param=form.param, code="invalid_event_number")
            if after < batch.dropped:
                self._metrics.count_resume("gone")
                number = batch.dropped + form.first_number - 1
                message = f"The events up to {number} are no longer kept: the stream has reached its limit of memory."
                raise ApiError(410, message, param=form.param, code="events_dropped")
            if after == batch.count and batch.state is StreamState.CUT:
                self._metrics.count_resume("gone")
                message = "The stream has ended without its last events: it was stopped, or nobody read it in time."
                raise ApiError(410, message, param=form.param, code="stream_incomplete")
            self._metrics.count_resume("resumed")
            ctx.log_fields["resumed_after"] = after
            if ctx.request.method == "HEAD" or (form.has_ids and is_last(batch, after)):
                # WHATWG SSE: a 204 tells an EventSource not to connect again.
                return HttpResponse(204 if is_last(batch, after) else 200, content_type=_EVENT_STREAM)
            response = await ctx.request.start_stream({**dict(sse.HEADERS), **response_headers(ctx)})
            try:
                if await self._send_events(response, source, batch, after, form):
                    await response.end()
            except WriterDiedError as error:
                # Without an id: if the process is only late, a client may go on where it was.
                ctx.log_fields["error"] = server_gone().code
                response.write(error_ending(guess_endpoint(error.first), error.first, error.count))
                await response.end()
        except StreamLostError:
            raise self._not_found() from None
        finally:
            source.detach()
        return None

    async def _send_events(
        self, response: StreamingResponse, source: EventSource, batch: EventBatch, after: int, form: ReaderFormat
    ) -> bool:
        """Send the events of a batch and all later ones. Returns False if the connection was reset before the end."""
        try:
            while batch.dropped <= after:
                response.write(form.encode(batch.events, after))
                after += len(batch.events)
                if response.has_backpressure:
                    async with asyncio.timeout(self.settings.write_s):
                        await response.drain()
                if is_last(batch, after):
                    if batch.state is StreamState.CUT:
                        break
                    return True
                batch = await source.read(after, self.settings.keep_alive_s)
                if not batch.events and batch.state is StreamState.RUNNING:
                    response.write(form.keep_alive)
        except (StreamLostError, StoreUnavailableError, TimeoutError):
            pass
        response.abort()  # so that the client does not mistake the rest for the whole
        return False

    def read_event_number(self, text: str | None, param: str) -> int:
        """Parse the number of an event; 0 if there is none.

        Raises:
            ApiError: it is not a number.
        """
        if not text:
            return 0
        if not (text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS):
            self._metrics.count_resume("invalid")
            message = f"{param} must be the number of an event, but is {shorten_value(text)!r}."
            raise invalid_request(message, param=param, code="invalid_event_number")
        return int(text)

    def _not_found(self) -> ApiError:
        self._metrics.count_resume("not_found")
        if not self.registry.is_enabled:
            return ApiError(404, "This server keeps no streams (--resume-time).", code="stream_not_found")
        message = (
            "There is no such stream for this API key. A stream can be resumed up to "
            f"{self.settings.resume_s:g} seconds after its end, or after its client disconnected, unless newer ones "
            "needed its memory. Servers that share no store (--limits-store) cannot resume each other's streams."
        )
        return ApiError(404, message, code="stream_not_found")


async def run_detached(stream: ResumableStream, work: Awaitable[object], request_id: str) -> None:
    """Run a generation that writes to a stream."""
    try:
        await work
    except ApiError as error:
        stream.fail(error)
    except Exception as error:  # noqa: BLE001 - outermost layer of a task: logged, and reported to the client
        log.event(logging.ERROR, "a request failed", {"request_id": request_id}, error=error)
        stream.fail(internal_error(request_id))
    finally:
        stream.fail(ApiError(503, "The stream was stopped.", code="stream_stopped"))  # unless it has ended
        stream.abort = stream.on_backpressure = None  # a reference cycle would wait for the garbage collector


def is_last(batch: EventBatch, after: int) -> bool:
    """Whether the stream has no event after this number, and will have none."""
    return batch.state is not StreamState.RUNNING and after >= batch.count


def _stream_id(ctx: RequestContext) -> str:
    return ctx.request.path.rpartition("/")[2]
