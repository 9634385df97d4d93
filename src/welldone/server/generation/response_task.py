"""Production of one response: queueing, upstream attempts and retries, and the stream to the client.

The handler's task sleeps most of the time: the callbacks of the attempts forward the bytes from socket to socket. It
wakes to open the stream, to send keep-alives, to wait for a slow client, and at the end.
"""

import asyncio
import copy
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import Enum, auto
from functools import cache, partial
from typing import cast

import msgspec

from welldone.config.server import ServeSettings
from welldone.engines.errors import EngineError
from welldone.gateway import error_mapping
from welldone.gateway.backends import Backend, BackendLease, upstream_headers
from welldone.gateway.error_mapping import AttemptFailure, engine_unavailable, reply_too_large
from welldone.gateway.errors import ApiError
from welldone.http.server import HttpRequest, HttpResponse, StreamingResponse
from welldone.protocol.dialects.base import KEEP_ALIVE, Dialect
from welldone.protocol.dialects.registry import SAME_DIALECT_ENDPOINTS, passthrough_repairer_for
from welldone.protocol.dialects.same_dialect import PassthroughRepairer
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import Json
from welldone.protocol.fan_out import FanOut
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline
from welldone.protocol.request_facts import think_mode_for
from welldone.protocol.result import PartState
from welldone.protocol.text_filters import TextMode, ThinkMode
from welldone.server.body_budget import BodyBudget
from welldone.server.generation.attempt import AttemptStage, UpstreamAttempt, classify_failure
from welldone.server.generation.observer import CompositeObserver, StreamObserver
from welldone.server.generation.report_headers import ReportHeaders
from welldone.server.generation.token_cost import TokenCost, estimate_prompt_tokens
from welldone.server.inspector.captures import StreamCapture
from welldone.server.observe import log
from welldone.server.observe.recording import TraceRecorder
from welldone.server.observe.timing import StreamTimes
from welldone.server.requests.fields import ValidatedRequest

_EARLY_LIMIT_BYTES = 64 * 1024  # output before the stream is open; asyncio's own high-water mark
_KEEP_ALIVE_LIMIT = 45  # in a row: some clients give up after a hundred lines without data, and a comment has two
_BUFFERED_LIMIT_BYTES = 256 * 2**20  # of a stream that becomes a whole reply: a million tokens
_GRACE_S = {
    PartState.FINISHED: 10.0,  # for the usage after the last finish_reason; some servers send one with each chunk
    PartState.FINISHED_WITH_USAGE: 2.0,  # for [DONE] after the usage: servers send both at once
    PartState.DONE: 0.5,  # for the end of the body after [DONE]
}
"""How long the end of a body is awaited."""
_NEVER_S = 86_400.0
_UPSTREAM_PATHS = {
    Endpoint.CHAT: "/chat/completions",
    Endpoint.COMPLETIONS: "/completions",
    Endpoint.RESPONSES: "/responses",
    Endpoint.MESSAGES: "/messages",
}
_PROMPT_PARAMS = {
    Endpoint.CHAT: "messages",
    Endpoint.COMPLETIONS: "prompt",
    Endpoint.RESPONSES: "input",
    Endpoint.MESSAGES: "messages",
}


class ResponseState(Enum):
    """State of a response, as seen by the client."""

    WAITING = auto()
    """The backend has not started its reply; the stream may be open, with keep-alives only."""
    STARTED = auto()
    """The backend has started its reply, and the client has received nothing of it."""
    SENDING = auto()
    """The client has received a part of the reply: from here on there is no retry."""
    COMPLETE = auto()
    """All parts have ended without failure."""
    FAILED = auto()


_NEXT_STATES = {
    ResponseState.WAITING: (
        ResponseState.STARTED,
        ResponseState.SENDING,
        ResponseState.COMPLETE,
        ResponseState.FAILED,
    ),
    ResponseState.STARTED: (
        ResponseState.WAITING,  # a retry, which discards the output
        ResponseState.SENDING,
        ResponseState.COMPLETE,
        ResponseState.FAILED,
    ),
    ResponseState.SENDING: (ResponseState.COMPLETE, ResponseState.FAILED),
    ResponseState.COMPLETE: (),
    ResponseState.FAILED: (),
}


_RETRACTABLE_STATES = (ResponseState.WAITING, ResponseState.STARTED)


class ResponseTask:
    """The production of one response."""

    def __init__(
        self,
        http_request: HttpRequest,
        request: ValidatedRequest,
        backend: Backend,
        *,
        reread_request: Callable[[], ValidatedRequest] | None = None,
        sticky: str | None = None,
        envelope: Envelope,
        dialect: Dialect | None = None,
        echo: Json | None = None,
        forwarded_headers: Mapping[str, str] | None = None,
        reasoning_fields: tuple[str, ...],
        settings: ServeSettings,
        report: ReportHeaders,
        headers: Callable[[], Mapping[str, str]],
        recorder: TraceRecorder | None = None,
        capture: StreamCapture | None = None,
        body_budget: BodyBudget | None = None,
    ) -> None:
        self._http_request = http_request
        self._body_budget = body_budget or BodyBudget()
        self._request = request
        self.backend = backend
        self._sticky = sticky
        self._settings = settings
        self.report = report
        self.times: StreamTimes = report.times
        self._headers = headers
        self._recorder = recorder
        self._capture = capture
        self._reread_request = reread_request  # validates again when the model is loaded and its capabilities are known
        self._endpoint = Endpoint(request.endpoint)
        self._path = _UPSTREAM_PATHS[self._endpoint]
        self.param = _PROMPT_PARAMS[self._endpoint]
        self._envelope = envelope
        self._dialect = dialect
        self._echo = echo or {}
        self._forwarded_headers = forwarded_headers or {}
        self._reasoning_fields = reasoning_fields
        self._clock = cache(time.time)  # read once: a replay in the inspector has the same time of completion
        self.pipeline = self._make_pipeline()
        self.error: ApiError | None = None
        """Why the response failed."""
        self._stream: StreamingResponse | None = None
        self._buffered = bytearray()  # output before the stream is open
        self._attempts = [UpstreamAttempt(self, number) for number in range(len(request.bodies))]
        self._ended_count = 0
        self.state = ResponseState.WAITING
        self._wakeup = asyncio.Event()
        self._last_sent_at = time.monotonic()
        self._received_bytes = 0
        self._keep_alive_count = 0
        self._is_paused = False  # attempts are paused until the client has read
        self._pending_attempts: deque[UpstreamAttempt] = deque()
        self.cost = TokenCost(prompt_copies=len(request.bodies) // request.prompt_count)

    def _make_pipeline(self) -> StreamPipeline | BufferedPipeline | PassthroughRepairer:
        if self._capture is not None:
            self._capture.pipeline_created(self._pipeline_factory())
        return self._pipeline_factory()()

    def _pipeline_factory(self) -> Callable[[], StreamPipeline | BufferedPipeline | PassthroughRepairer]:
        """Return a factory without a reference to this object: a capture may keep it for long."""
        request = self._request
        if self._endpoint in SAME_DIALECT_ENDPOINTS:
            return partial(
                passthrough_repairer_for,
                self._endpoint,
                fallback=self._envelope,
                request=self._echo,
                model=self.backend.reported_model,
                is_stream=request.is_stream,
                clock=self._clock,
            )
        return partial(
            StreamPipeline if request.is_stream else BufferedPipeline,
            self._endpoint,
            fallback=self._envelope,
            facts=msgspec.structs.replace(request.facts, is_usage_forced=True, top_logprobs=request.top_logprobs),
            fan_out=FanOut(len(request.bodies), request.prompt_count, tuple(request.echo or ())),
            forced=request.forced_call,
            model=self.backend.reported_model,
            dialect=copy.copy(self._dialect),  # it has state: each pipeline needs its own
            reasoning=self._reasoning_fields,
        )

    def _enter(self, state: ResponseState) -> None:
        """Change the state, unless the response has ended or is already further."""
        if state in _NEXT_STATES[self.state]:
            self.state = state

    @property
    def _is_ended(self) -> bool:
        return not _NEXT_STATES[self.state]

    @property
    def final(self) -> Json | None:
        """The complete response as an object, if its dialect has one."""
        return self.pipeline.final_object

    async def run(self) -> HttpResponse | None:
        """Produce the response; returns None if it was streamed.

        Raises:
            ApiError: it failed before anything was sent.
        """
        self.backend.check_capacity()
        self._pending_attempts = deque(self._attempts)
        workers = min(len(self._attempts), self.backend.slots)
        tasks = [asyncio.create_task(self._run_worker(is_first=number == 0)) for number in range(workers)]
        try:
            if self._request.is_stream:
                await self._stream_response()
                return None
            return await self._buffered_response()
        finally:
            self._enter(ResponseState.FAILED)  # unless it has ended before
            self._estimate_cost()
            for attempt in self._attempts:
                attempt.close()
            for task in tasks:
                task.cancel()
            self._attempts = []  # a reference cycle would wait for the garbage collector
            self._buffered.clear()

    def abort(self, error: ApiError) -> None:
        """End the response with an error."""
        if self._is_ended or self.error is not None:
            return
        self.error = error
        if self._capture is not None:
            self._capture.fail(error.to_failure())
        try:
            self._send(self.pipeline.fail(error.to_failure()))
        except Exception as internal_error:  # noqa: BLE001 - the client gets an end of the stream in any case
            log.event(logging.ERROR, "a response could not be ended", error=internal_error)
            self._send(self.pipeline.encode_failure(error.to_failure()))
        finally:
            self._end(ResponseState.FAILED)

    def _estimate_cost(self) -> None:
        """Estimate the token cost, unless the usage of a complete response has it."""
        if self.state is ResponseState.COMPLETE and self.pipeline.usage is not None:
            return
        prompts: dict[int, int] = {}  # tokens by number of the prompt; its choices are consecutive parts
        for attempt in self._attempts:
            if attempt.is_billable:
                number = attempt.part_index // self.cost.prompt_copies
                if number not in prompts:
                    prompts[number] = estimate_prompt_tokens(self._request.bodies[attempt.part_index])
                self.cost.prompt_tokens += prompts[number]
                self.cost.completion_tokens += attempt.output_estimate.tokens(has_logprobs=self._has_logprobs)

    @property
    def _has_logprobs(self) -> bool:
        """Whether chunks are longer than their text. Events of same-dialect streams repeat the request."""
        body = self._request.bodies[0]
        logprobs = (body.get("logprobs"), body.get("top_logprobs"))
        return any(value not in (None, False) for value in logprobs) or self._endpoint in SAME_DIALECT_ENDPOINTS

    # Attempts and retries.

    async def _run_worker(self, *, is_first: bool) -> None:
        """Run pending attempts one after the other, each with a leased slot. A final failure ends the response."""
        avoid: set[str] = set()
        failure: AttemptFailure | None = None
        try:
            while self._pending_attempts and not self._is_ended:
                async with self.backend.lease(avoid, self._sticky) as lease:
                    self.times.record_queued(lease.waited_s)
                    failure = await self._run_attempts(lease)
                avoid.add(lease.name)
        except ApiError as error:
            # One slot is enough: if there is no second one, the first worker runs all attempts.
            if is_first or failure is not None or error.status not in (429, 503):
                self.abort(error if failure is None else failure.error)
        except EngineError as error:
            self.abort(engine_unavailable(error))
        except Exception as error:  # noqa: BLE001 - outermost layer of a task: logged, and reported to the client
            self.fail(error)

    async def _run_attempts(self, lease: BackendLease) -> AttemptFailure | None:
        """Run pending attempts with this lease. Returns a failure that is to be retried elsewhere."""
        while self._pending_attempts and not self._is_ended:
            attempt = self._pending_attempts.popleft()
            part = attempt.part_index
            failure = await self._run_attempt(attempt, lease)
            if failure is None:
                continue
            self.report.failed_attempts.append(f"{lease.name}:{failure.outcome}")
            if self._is_ended:
                continue
            if not self._may_retry(attempt, failure, lease):
                self.abort(failure.error)
                return None
            if attempt.stage >= AttemptStage.RECEIVING:
                self._discard_output()
            if attempt.is_billable:
                received = attempt.output_estimate.tokens(has_logprobs=self._has_logprobs)
                self.cost.wasted_tokens += estimate_prompt_tokens(self._request.bodies[part]) + received
            self._attempts[part] = UpstreamAttempt(self, part, attempt_number=attempt.attempt_number + 1)
            self._pending_attempts.appendleft(self._attempts[part])
            if self.backend.has_alternative({lease.name}) or not await lease.prepare_retry(failure):
                return failure
        return None

    async def _run_attempt(self, attempt: UpstreamAttempt, lease: BackendLease) -> AttemptFailure | None:
        self.report.add_attempt(lease)
        self.times.record_sent()
        self._configure_pipeline(attempt, lease)
        async with self._body_budget.reserve(attempt):
            if self._is_ended:
                return None
            if self._reread_request is not None:
                self._request = self._reread_request()
                self._reread_request = None
            body = {**self._request.bodies[attempt.part_index], "model": lease.model}
            encoded = [msgspec.json.encode(body)]
            observer: StreamObserver | None = None
            if self._recorder is not None and lease.upstream is not None:
                observer = self._recorder.begin(self._path, body, lease.name, self.report.request_id)
            if self._capture is not None:
                capture = self._capture.begin_attempt(
                    attempt.part_index, lease.name, encoded[0], is_local=lease.upstream is None
                )
                observer = capture if observer is None else CompositeObserver((observer, capture))
            # `pop`: this frame must not keep the body in memory during the reply, n times for n parts.
            return await attempt.run(
                lease, self._path, encoded.pop(), observer, upstream_headers(lease, self._forwarded_headers)
            )

    def _configure_pipeline(self, attempt: UpstreamAttempt, lease: BackendLease) -> None:
        upstream = lease.upstream
        if upstream is None:
            return
        think = think_mode_for(cast("ThinkMode", upstream.settings.think), self._request.bodies[attempt.part_index])
        text = cast("TextMode", upstream.settings.text)
        strict = frozenset(upstream.settings.strict)
        sanitize = partial(error_mapping.sanitize_failure, secrets=upstream.secrets)
        self.pipeline.configure(attempt.part_index, think=think, text=text, strict=strict, map_failure=sanitize)
        if self._capture is not None:
            self._capture.configure(attempt.part_index, think=think, text=text, strict=strict, map_failure=sanitize)

    def _may_retry(self, attempt: UpstreamAttempt, failure: AttemptFailure, lease: BackendLease) -> bool:
        """Whether nothing of the part has been sent, and another attempt may succeed."""
        if (
            attempt.attempt_number >= self.backend.max_attempts
            or not failure.is_retryable
            or (attempt.stage >= AttemptStage.RECEIVING and not self._is_retractable)
        ):
            return False
        if lease.upstream is None:
            return failure.is_disconnect
        return failure.is_stale or lease.is_gone or self.backend.has_alternative({lease.name})

    @property
    def _is_retractable(self) -> bool:
        """Whether the output of an upstream can be discarded, since the client has received nothing of it."""
        return bool(self.backend.upstreams) and self.state in _RETRACTABLE_STATES and len(self._attempts) == 1

    def _discard_output(self) -> None:
        self._buffered.clear()
        self._is_paused = False
        self._enter(ResponseState.WAITING)
        self._ended_count = 0
        self.pipeline = self._make_pipeline()

    # Callbacks of the attempts.

    def fail(self, error: Exception) -> None:
        """Log an internal error and end the response with a 500."""
        log.event(logging.ERROR, "a response failed", error=error)
        message = f"Internal server error (request id {self.report.request_id}); see the server log."
        self.abort(ApiError(500, message, code="internal_error"))

    def wake(self) -> None:
        """Wake the handler's task: a deadline has changed."""
        self._wakeup.set()

    def on_accepted(self) -> None:
        """Note the start of a reply."""
        # The first event of an upstream is awaited too: it may be an error, which then becomes an HTTP status.
        if not self.backend.upstreams:
            self._mark_started()

    def on_data(self, data: bytes, part: int) -> bool:
        """Process bytes of a part's stream. Returns whether the part has produced an event by now."""
        if self._is_ended:
            return False
        self._received_bytes += len(data)
        if self._capture is not None:
            self._capture.feed(data, part)
        if self._received_bytes > _BUFFERED_LIMIT_BYTES and self.pipeline.retains_output:
            self.abort(reply_too_large())
            return False
        output = self.pipeline.feed(data, part)
        state = self.pipeline.part_state(part)
        if state is PartState.FAILED:
            self._fail_part(part, output)
            return True
        if state is PartState.WAITING:
            if isinstance(self.pipeline, PassthroughRepairer):
                self._send(output)  # events before the first content, such as `response.created`
            return False
        self.times.record_chunk()
        self._send(output)
        if state is PartState.ANSWERING:
            self._enable_fast_path()
        elif state is PartState.STOPPED:
            self._attempts[part].finish()  # at a stop string: the engine would generate on
        else:
            # Some servers leave the body open after [DONE], or never send it; the response is complete all the same.
            self._attempts[part].finish_after(_GRACE_S[state])
        return True

    def _enable_fast_path(self) -> None:
        """Use the fast path for text chunks, once the stream is open."""
        if (
            self._stream is not None
            and len(self._attempts) == 1
            and isinstance(self.pipeline, StreamPipeline)
            and self.pipeline.dialect.IS_CHAT
        ):
            self._attempts[0].enable_fast_path(self.pipeline, self._stream, self.times)

    def on_full_body(self, data: bytes, part: int) -> Iterator[None]:
        """Process a whole reply of a part, in steps between which the event loop may run."""
        if self._is_ended:
            return
        self.times.record_chunk()
        if self._capture is not None:
            self._capture.buffered_reply(data, part)
        for output in self.pipeline.feed_reply_in_steps(data, part):
            if self.pipeline.failure is not None:
                self._fail_part(part, output)
                return
            self._send(output)
            yield
            if self._is_ended:
                return

    @property
    def has_content(self) -> bool:
        """Whether the last data had content."""
        return self.pipeline.has_content

    @property
    def has_backpressure(self) -> bool:
        """Whether the client reads too slowly."""
        return self._stream is not None and self._stream.has_backpressure

    def is_done(self, part: int) -> bool:
        """Whether a part has sent `[DONE]`."""
        return self.pipeline.part_state(part) >= PartState.DONE

    def on_end(self, part: int) -> None:
        """Process the end of a part's stream."""
        if self._is_ended:
            return
        self._ended_count += 1
        output = self._close_part(part)
        if self.pipeline.failure is not None:
            self._fail_part(part, output)
            return
        self._send(output)
        if self._ended_count == len(self._attempts):
            self._end(ResponseState.COMPLETE)

    def _fail_part(self, part: int, data: bytes | None) -> None:
        """Handle an error event or an invalid stream."""
        failure = self.pipeline.failure
        assert failure is not None
        attempt_failure = classify_failure(failure)
        self._attempts[part].fail(attempt_failure)
        if self._is_retractable:
            self._discard_output()  # the worker retries, or ends the response with an HTTP status
            return
        if self.backend.upstreams and self._stream is None:
            self.error = attempt_failure.error  # an HTTP status, since no stream is open
        self._send(data)
        self._send(self._close_part(part))
        self._end(ResponseState.FAILED)

    def _close_part(self, part: int) -> bytes | None:
        if self._capture is not None:
            self._capture.close(part)
        return self.pipeline.close(part)

    def _mark_started(self) -> None:
        self._enter(ResponseState.STARTED)
        self._wakeup.set()

    # The handler's task.

    async def _buffered_response(self) -> HttpResponse:
        while not self._is_ended:
            await self._wait(_NEVER_S)
        if self.error is not None:
            raise self.error
        failure = self.pipeline.failure
        if failure is not None:
            raise classify_failure(failure).error
        assert not isinstance(self.pipeline, StreamPipeline)
        if self._capture is not None:
            self._capture.send_body()
        report = {**self.report.headers(), **self.report.trailers(self.pipeline)}
        # A long body is encoded in a thread: the GIL switches between them, so the event loop still runs.
        is_slow = isinstance(self.pipeline, BufferedPipeline) and self.pipeline.is_body_slow
        body = await asyncio.to_thread(self.pipeline.body) if is_slow else self.pipeline.body()
        return HttpResponse(200, body, headers={**self._headers(), **report})

    async def _stream_response(self) -> None:
        # An early error becomes an HTTP status. After `early_s` the stream is opened, and queued requests receive
        # keep-alives.
        early_end = time.monotonic() + self._settings.early_s
        while self.state is ResponseState.WAITING and (left_s := early_end - time.monotonic()) > 0:
            await self._wait(left_s)
        if self.error is not None:
            raise self.error
        stream = await self._http_request.start_stream(
            {**self.pipeline.headers, **self._headers(), **self.report.headers()}, trailers=self.report.trailer_names
        )
        self._stream = stream
        stream.on_backpressure(self._pause_upstreams)
        pending, self._buffered = bytes(self._buffered), bytearray()
        self._send(pending)
        self._enable_fast_path()
        while not self._is_ended:
            if self._is_paused or stream.has_backpressure:
                await self._drain_client(stream)
            else:
                await self._wait(self._keep_alive(stream))
        await stream.end(self.report.trailers(self.pipeline))

    async def _wait(self, limit_s: float) -> None:
        """Wait for a wakeup or the time limit. Attempts past their deadline time out."""
        self._wakeup.clear()
        if self._is_ended:
            return
        now = time.monotonic()
        left_s = limit_s
        for attempt in self._attempts:
            if attempt.is_running:
                left_s = min(left_s, attempt.deadline - now)
                if attempt.deadline <= now:
                    attempt.time_out()
                    left_s = 0.0
        if left_s <= 0:
            await asyncio.sleep(0)  # the worker retries or aborts
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._wakeup.wait()

    def _keep_alive(self, stream: StreamingResponse) -> float:
        """Send a keep-alive if one is due. Returns the time until the next one."""
        now = time.monotonic()
        sent_at = max(attempt.last_sent_at for attempt in self._attempts)
        if sent_at > self._last_sent_at:
            self._last_sent_at = sent_at
            self._keep_alive_count = 0
        due_s = self._last_sent_at + self._settings.keep_alive_s - now
        if due_s > 0:
            return due_s
        self._last_sent_at = now
        if self._keep_alive_count < _KEEP_ALIVE_LIMIT:
            self._keep_alive_count += 1
            if self._capture is not None:
                self._capture.keep_alive()
            stream.write(self.pipeline.keep_alive())
        return self._settings.keep_alive_s

    def _pause_upstreams(self) -> None:
        """Stop reading until the client has read; at once, since the loop may read megabytes before the task wakes."""
        self._is_paused = True
        for attempt in self._attempts:
            attempt.pause()
        self._wakeup.set()

    async def _drain_client(self, stream: StreamingResponse) -> None:
        """Wait for a slow client; abort if it does not read at all."""
        self._pause_upstreams()
        self._is_paused = False
        try:
            async with asyncio.timeout(self._settings.write_s):
                await stream.drain()
        except TimeoutError:
            message = f"The client has read nothing for {self._settings.write_s:g} s."
            self.error = ApiError(408, message, code="client_too_slow")
            self.pipeline.fail(self.error.to_failure())  # for logs and metrics only
            self._enter(ResponseState.FAILED)
            stream.abort()
        for attempt in self._attempts:
            attempt.resume()

    def _send(self, data: bytes | None) -> None:
        """Send bytes to the client, or buffer them until the stream is open."""
        if not data:
            return
        stream = self._stream
        if stream is None:
            if not data.replace(KEEP_ALIVE, b""):
                return  # a keep-alive alone: a failure can still become an HTTP status
            self._buffered += data
            self._mark_started()
            if len(self._buffered) > _EARLY_LIMIT_BYTES:
                self._pause_upstreams()
        else:
            self._enter(ResponseState.SENDING)
            self._keep_alive_count = 0
            self._last_sent_at = time.monotonic()
            stream.write(data)

    def _end(self, state: ResponseState) -> None:
        self._enter(state)
        self._wakeup.set()
