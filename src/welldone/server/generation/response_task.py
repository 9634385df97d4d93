"""The way of one answer: from the queue to the engine, and from the engine's bytes to the client's.

The handler's task sleeps until something happens; the bytes of the answer pass by it, from socket to socket. It wakes
to open the stream, to keep a silent line alive, to wait for a slow client, and at the end.
"""

import asyncio
import copy
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
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
from welldone.protocol.merger import FanOut
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline
from welldone.protocol.request_facts import think_mode_for
from welldone.protocol.text_filters import TextMode, ThinkMode
from welldone.server.body_budget import BodyBudget
from welldone.server.generation.attempt import UpstreamAttempt, classify_failure
from welldone.server.generation.observer import CompositeObserver, StreamObserver
from welldone.server.generation.report_headers import ReportHeaders
from welldone.server.generation.token_cost import TokenCost, estimate_prompt_tokens
from welldone.server.inspector.captures import StreamCapture
from welldone.server.observe import log
from welldone.server.observe.recording import TraceRecorder
from welldone.server.observe.timing import StreamTimes
from welldone.server.requests.fields import ValidatedRequest

_BUFFER_LIMIT_BYTES = 64 * 1024  # as much as asyncio lets wait for a client: more comes when the stream is open
_KEEP_ALIVE_LIMIT = 45  # in a row: clients give up at some hundred lines without data, and a comment has two
_WHOLE_LIMIT_BYTES = 256 * 2**20  # of a stream that is kept for a whole reply: a million tokens
_DONE_GRACE_S = 2.0  # for a [DONE] after the usage: servers send both at once
_USAGE_GRACE_S = 10.0  # for the usage after the last finish_reason; some servers send that reason on each chunk
_CLOSE_GRACE_S = 0.5  # for what a server says after [DONE], which is nothing that counts
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


class ResponseTask:
    """One answer that is being given."""

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
        self._reread_request = (
            reread_request  # reads the request once more, when the model is loaded and its abilities are known
        )
        self._endpoint = Endpoint(request.endpoint)
        self._path = _UPSTREAM_PATHS[self._endpoint]
        self.param = _PROMPT_PARAMS[self._endpoint]
        self._envelope = envelope
        self._dialect = dialect
        self._echo = echo or {}
        self._forwarded_headers = forwarded_headers or {}
        self._reasoning_fields = reasoning_fields
        self._clock = cache(time.time)  # when the answer ended: a replay of it tells the same
        self.pipeline = self._make_pipeline()
        self.error: ApiError | None = None
        """Why there is no answer, if there is none."""
        self._stream: StreamingResponse | None = None
        self._buffered = bytearray()  # what came before the stream was open
        self._attempts = [UpstreamAttempt(self, number) for number in range(len(request.bodies))]
        self._ended_count = 0
        self._is_started = False  # the engine has begun
        self._has_sent = False  # the client has heard something of the answer
        self._is_finished = False
        self._wakeup = asyncio.Event()
        self._last_sent_at = time.monotonic()  # when something was last sent
        self._received_bytes = 0
        self._keep_alive_count = 0
        self._is_paused = False  # nothing is heard until the client has read
        self._pending_attempts: deque[UpstreamAttempt] = deque()
        self.is_complete = False
        """Whether all of it came."""
        self.cost = TokenCost(prompt_copies=len(request.bodies) // request.prompt_count)

    def _make_pipeline(self) -> StreamPipeline | BufferedPipeline | PassthroughRepairer:
        if self._capture is not None:
            self._capture.pipeline_created(self._pipeline_factory())
        return self._pipeline_factory()()

    def _pipeline_factory(self) -> Callable[[], StreamPipeline | BufferedPipeline | PassthroughRepairer]:
        """How a pipe for the request is made, once. It holds nothing of us: a watch may keep it for long."""
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
            dialect=copy.copy(self._dialect),  # it may keep the end of its answer: each pipe has one of its own
            reasoning=self._reasoning_fields,
        )

    @property
    def final(self) -> Json | None:
        """The answer as an object, when it has come to its end, where its dialect has one."""
        return self.pipeline.final_object

    async def run(self) -> HttpResponse | None:
        """Give the answer; None where it was streamed.

        Raises:
            ApiError: there is none, and nothing was sent.
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
            self._is_finished = True
            self._estimate_cost()
            for part in self._attempts:
                part.close()
            for task in tasks:
                task.cancel()
            self._attempts = []  # they hold us: rings are left to the collector
            self._buffered.clear()

    def abort(self, error: ApiError) -> None:
        """End the answer with an error, wherever it is."""
        if self._is_finished or self.error is not None:
            return
        self.error = error
        if self._capture is not None:
            self._capture.fail(error.to_failure())
        try:
            self._send(self.pipeline.fail(error.to_failure()))
        except Exception as mistake:  # noqa: BLE001 - whatever is wrong with us, the client hears an end
            log.event(logging.ERROR, "an answer could not be ended", error=mistake)
            self._send(self.pipeline.encode_failure(error.to_failure()))
        finally:
            self._finish()

    # What they cost.

    def _estimate_cost(self) -> None:
        """Estimate the cost of what was asked for, unless the usage of a whole answer says it."""
        if self.is_complete and self.pipeline.usage is not None:
            return
        prompts: dict[int, int] = {}  # choices of one prompt are asked for one after the other
        for part in self._attempts:
            if part.is_billable:
                number = part.part_index // self.cost.prompt_copies
                if number not in prompts:
                    prompts[number] = estimate_prompt_tokens(self._request.bodies[part.part_index])
                self.cost.prompt_tokens += prompts[number]
                self.cost.completion_tokens += part.output_estimate.tokens(has_logprobs=self._has_logprobs)

    def _count_wasted(self, attempt: UpstreamAttempt) -> None:
        """Another attempt is made at a part."""
        if attempt.is_billable:
            received = attempt.output_estimate.tokens(has_logprobs=self._has_logprobs)
            self.cost.wasted_tokens += estimate_prompt_tokens(self._request.bodies[attempt.part_index]) + received

    @property
    def _has_logprobs(self) -> bool:
        """Whether the length of a chunk says little of its text. Events of native streams repeat the request."""
        body = self._request.bodies[0]
        wanted = (body.get("logprobs"), body.get("top_logprobs"))
        return any(value not in (None, False) for value in wanted) or self._endpoint in SAME_DIALECT_ENDPOINTS

    # How the parts are asked for.

    async def _run_worker(self, *, is_first: bool) -> None:
        """Ask for one part after the other, in one seat. What goes wrong ends the whole answer."""
        avoid: set[str] = set()
        trouble: AttemptFailure | None = None
        try:
            while self._pending_attempts and not self._is_finished:
                async with self.backend.lease(avoid, self._sticky) as seat:
                    self.times.record_queued(seat.waited_s)
                    trouble = await self._run_attempts(seat)
                avoid.add(seat.name)
        except ApiError as error:
            # One place is enough: who gets no second one has its parts asked for in the first.
            if is_first or trouble is not None or error.status not in (429, 503):
                self.abort(error if trouble is None else trouble.error)
        except EngineError as error:
            self.abort(engine_unavailable(error))
        except Exception as error:  # noqa: BLE001 - the edge of a task: it logs, and the client gets an honest error
            self.fail(error)

    async def _run_attempts(self, lease: BackendLease) -> AttemptFailure | None:
        """Ask for parts in this seat, until there are no more, or one is better asked for elsewhere."""
        while self._pending_attempts and not self._is_finished:
            part = self._pending_attempts.popleft()
            trouble = await self._run_attempt(part, lease)
            if trouble is None:
                continue
            self.report.failed_attempts.append(f"{lease.name}:{trouble.outcome}")
            if self._is_finished:
                continue
            if not self._may_retry(part, trouble, lease):
                self.abort(trouble.error)
                return None
            if part.has_received:
                self._discard_output()
            self._count_wasted(part)
            self._attempts[part.part_index] = UpstreamAttempt(
                self, part.part_index, attempt_number=part.attempt_number + 1
            )
            self._pending_attempts.appendleft(self._attempts[part.part_index])
            if self.backend.has_alternative({lease.name}) or not await lease.prepare_retry(trouble):
                return trouble
        return None

    async def _run_attempt(self, attempt: UpstreamAttempt, lease: BackendLease) -> AttemptFailure | None:
        self.report.add_attempt(lease)
        self.times.record_sent()
        self._configure_pipeline(attempt, lease)
        async with self._body_budget.reserve(attempt):
            if self._is_finished:
                return None
            body = self._upstream_body(attempt.part_index, lease)
            encoded = [msgspec.json.encode(body)]
            tape: StreamObserver | None = None
            if self._recorder is not None and lease.upstream is not None:
                tape = self._recorder.begin(self._path, body, lease.name, self.report.request_id)
            if self._capture is not None:
                watching = self._capture.begin_attempt(
                    attempt.part_index, lease.name, encoded[0], is_local=lease.upstream is None
                )
                tape = watching if tape is None else CompositeObserver((tape, watching))
            # It is not held here while the answer comes: `n` parts would hold it n times.
            return await attempt.run(
                lease, self._path, encoded.pop(), tape, upstream_headers(lease, self._forwarded_headers)
            )

    def _configure_pipeline(self, attempt: UpstreamAttempt, lease: BackendLease) -> None:
        tuned = lease.upstream
        if tuned is None:
            return
        think = think_mode_for(cast("ThinkMode", tuned.settings.think), self._request.bodies[attempt.part_index])
        text = cast("TextMode", tuned.settings.text)
        strict = frozenset(tuned.settings.strict)
        reword = partial(error_mapping.sanitize_failure, secrets=tuned.secrets)
        self.pipeline.configure(attempt.part_index, think=think, text=text, strict=strict, map_failure=reword)
        if self._capture is not None:
            self._capture.tune(attempt.part_index, think=think, text=text, strict=strict, reword=reword)

    def _may_retry(self, attempt: UpstreamAttempt, failure: AttemptFailure, lease: BackendLease) -> bool:
        """Where nothing of the part has gone out yet, and somebody may do better."""
        if (
            attempt.attempt_number >= self.backend.max_attempts
            or not failure.is_retryable
            or (attempt.has_received and not self._is_retractable)
        ):
            return False
        if lease.upstream is None:
            return failure.is_disconnect
        return failure.is_stale or lease.is_gone or self.backend.has_alternative({lease.name})

    @property
    def _is_retractable(self) -> bool:
        """Whether the client has heard nothing of what an upstream said, so that it can be taken back."""
        return bool(self.backend.upstreams) and not self._has_sent and len(self._attempts) == 1

    def _discard_output(self) -> None:
        """Forget what was heard of the answer."""
        self._buffered.clear()
        self._is_paused = False
        self._is_started = False
        self._ended_count = 0
        self.pipeline = self._make_pipeline()

    # What the parts call.

    def fail(self, error: Exception) -> None:
        """A mistake of ours."""
        log.event(logging.ERROR, "an answer failed", error=error)
        self.abort(ApiError(500, "The server failed. Its log says why.", code="internal_error"))

    def _upstream_body(self, part: int, lease: BackendLease) -> Json:
        if self._reread_request is not None:
            self._request = self._reread_request()
            self._reread_request = None
        return {**self._request.bodies[part], "model": lease.model}

    def wake(self) -> None:
        """The silence that is allowed has changed."""
        self._wakeup.set()

    def on_accepted(self) -> None:
        """The engine has begun with a part."""
        # Of an upstream the first word is waited for as well: it may be an error, which still gets its status.
        if not self._is_started and not self.backend.upstreams:
            self._mark_started()

    def on_data(self, data: bytes, part: int) -> bool:
        """More of a part's stream; whether it has said something by now."""
        if self._is_finished:
            return False
        self._received_bytes += len(data)
        if self._capture is not None:
            self._capture.feed(data, part)
        if self._received_bytes > _WHOLE_LIMIT_BYTES and self.pipeline.retains_output:
            self.abort(reply_too_large())
            return False
        said = self.pipeline.feed(data, part)
        if self.pipeline.failure is not None:
            self._fail_part(part, said)
            return True
        if not self.pipeline.has_part_started(part):
            if isinstance(self.pipeline, PassthroughRepairer):
                self._send(said)  # that an answer will come: it has events for that
            return False
        self.times.record_chunk()
        self._send(said)
        if self.pipeline.is_part_stopped(part):
            self._attempts[part].finish()  # the engine would go on, and is left at once
        elif self.pipeline.is_part_done(part):
            # Some servers leave the body open after this: nobody waits for them.
            self._attempts[part].finish_after(_CLOSE_GRACE_S)
        elif self.pipeline.is_part_complete(part):
            # Some servers send no [DONE] and leave the body open: the answer is whole all the same.
            self._attempts[part].finish_after(_DONE_GRACE_S if self.pipeline.has_part_usage(part) else _USAGE_GRACE_S)
        else:
            self._enable_fast_path()
        return True

    def _enable_fast_path(self) -> None:
        """Let plain text flow without a detour, once the stream is open."""
        if (
            self._stream is not None
            and len(self._attempts) == 1
            and isinstance(self.pipeline, StreamPipeline)
            and self.pipeline.supports_fast_path
        ):
            self._attempts[0].enable_fast_path(self.pipeline, self._stream, self.times)

    def on_full_body(self, data: bytes, part: int) -> Iterator[None]:
        """A part's reply, which was not streamed; each step takes a turn."""
        if self._is_finished:
            return
        self.times.record_chunk()
        if self._capture is not None:
            self._capture.buffered_reply(data, part)
        for said in self.pipeline.feed_reply_in_steps(data, part):
            if self.pipeline.failure is not None:
                self._fail_part(part, said)
                return
            self._send(said)
            yield
            if self._is_finished:
                return

    @property
    def has_content(self) -> bool:
        """Whether what was heard last had something of the answer in it."""
        return self.pipeline.has_content

    @property
    def has_backpressure(self) -> bool:
        """Whether the client takes less than it is given."""
        return self._stream is not None and self._stream.has_backpressure

    def is_done(self, part: int) -> bool:
        """Whether a part has said `[DONE]`."""
        return self.pipeline.is_part_done(part)

    def on_end(self, part: int) -> None:
        """A part's stream has ended."""
        if self._is_finished:
            return
        self._ended_count += 1
        said = self._close_part(part)
        if self.pipeline.failure is not None:
            self._fail_part(part, said)
            return
        self._send(said)
        if self._ended_count == len(self._attempts):
            self.is_complete = True
            self._finish()

    def _fail_part(self, part: int, data: bytes | None) -> None:
        """A part has failed by what it said: if nothing went out yet, whoever waits for the part decides."""
        failure = self.pipeline.failure
        assert failure is not None
        trouble = classify_failure(failure)
        self._attempts[part].fail(trouble)
        if self._is_retractable:
            self._discard_output()  # whoever waits for the part decides: another is asked, or this is a status
            return
        if self.backend.upstreams and self._stream is None:
            self.error = trouble.error  # then it is a status
        self._send(data)
        self._send(self._close_part(part))
        self._finish()

    def _close_part(self, part: int) -> bytes | None:
        if self._capture is not None:
            self._capture.close(part)
        return self.pipeline.close(part)

    def _mark_started(self) -> None:
        self._is_started = True
        self._wakeup.set()

    # What the handler's task does.

    async def _buffered_response(self) -> HttpResponse:
        while not self._is_finished:
            await self._wait(_NEVER_S)
        if self.error is not None:
            raise self.error
        failure = self.pipeline.failure
        if failure is not None:
            raise classify_failure(failure).error
        assert not isinstance(self.pipeline, StreamPipeline)
        if self._capture is not None:
            self._capture.send_body()
        told = {**self.report.headers(), **self.report.trailers(self.pipeline)}
        # The body of a long answer is made in a thread: that is Python code, so the event loop still gets its turns.
        is_long = isinstance(self.pipeline, BufferedPipeline) and self.pipeline.is_body_slow
        body = await asyncio.to_thread(self.pipeline.body) if is_long else self.pipeline.body()
        return HttpResponse(200, body, headers={**self._headers(), **told})

    async def _stream_response(self) -> None:
        # A refusal that comes at once gets its status; who waits longer gets the head of the stream, and signs of life.
        late = time.monotonic() + self._settings.early_s
        while not (self._is_started or self._is_finished) and (left_s := late - time.monotonic()) > 0:
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
        while not self._is_finished:
            if self._is_paused or stream.has_backpressure:
                await self._drain_client(stream)
            else:
                await self._wait(self._keep_alive(stream))
        await stream.end(self.report.trailers(self.pipeline))

    async def _wait(self, limit_s: float) -> None:
        """Wait until something has changed, or the time is over. An engine that is silent for too long is given up."""
        self._wakeup.clear()
        if self._is_finished:
            return
        now = time.monotonic()
        left_s = limit_s
        for part in self._attempts:
            if part.is_running and not part.has_ended:
                left_s = min(left_s, part.deadline - now)
                if part.deadline <= now:
                    part.time_out()
                    left_s = 0.0
        if left_s <= 0:
            await asyncio.sleep(0)  # whoever waits for the part decides what becomes of it
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._wakeup.wait()

    def _keep_alive(self, stream: StreamingResponse) -> float:
        """Send a sign of life if the line has been silent for so long; how long until the next is due."""
        now = time.monotonic()
        sent_at = max(part.last_sent_at for part in self._attempts)
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
        """Hear no more until the client has read: now, since the loop may read megabytes more before the task wakes."""
        self._is_paused = True
        for part in self._attempts:
            part.pause()
        self._wakeup.set()

    async def _drain_client(self, stream: StreamingResponse) -> None:
        """Wait for a client that reads more slowly than the engine writes; one that does not read at all is left."""
        self._pause_upstreams()
        self._is_paused = False
        try:
            async with asyncio.timeout(self._settings.write_s):
                await stream.drain()
        except TimeoutError:
            self.error = ApiError(408, "The client does not read.", code="client_too_slow")
            self.pipeline.fail(self.error.to_failure())  # nobody hears it, but it is counted and logged
            self._is_finished = True
            stream.abort()
        for part in self._attempts:
            part.resume()

    def _send(self, data: bytes | None) -> None:
        """Send bytes on, or keep them until the stream is open."""
        if not data:
            return
        stream = self._stream
        if stream is None:
            if not data.replace(KEEP_ALIVE, b""):
                return  # a sign of life is no answer: a failure is still a status
            self._buffered += data
            self._mark_started()
            if len(self._buffered) > _BUFFER_LIMIT_BYTES:
                self._pause_upstreams()
        else:
            self._has_sent = True
            self._keep_alive_count = 0
            self._last_sent_at = time.monotonic()
            stream.write(data)

    def _finish(self) -> None:
        self._is_finished = True
        self._wakeup.set()
