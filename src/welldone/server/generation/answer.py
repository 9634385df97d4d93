"""One answer: the attempts at its parts, their recovery, and its result. `ClientStream` sends it.

The handler's task sleeps most of the time: the callbacks of the attempts forward the bytes from socket to socket. It
wakes to open the stream, to send keep-alives, to wait for a slow client, and at the end.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import msgspec

from welldone.core.continuation import Continuation, ContinuationWay
from welldone.core.envelope import Envelope
from welldone.core.events import Json
from welldone.core.fields import BROKEN_OFF
from welldone.core.request_facts import RepairOptions
from welldone.core.state import PartState
from welldone.dialects.registry import DIALECTS
from welldone.gateway.backends import Backend, BackendLease
from welldone.gateway.error_mapping import AttemptFailure, reply_too_large
from welldone.gateway.errors import ApiError, internal_error
from welldone.gateway.upstream import dialect_headers
from welldone.http.messages import HttpResponse
from welldone.http.turns import next_turn
from welldone.server.context import RequestContext, response_headers
from welldone.server.generation.answer_pipeline import AnswerPipeline
from welldone.server.generation.attempt import AttemptStage, StreamObserver, UpstreamAttempt, classify_failure
from welldone.server.generation.client_stream import REPORT_REQUEST_HEADER, ClientStream, ReportHeaders, ResponseState
from welldone.server.generation.continuation import NO_WAY, Continuations
from welldone.server.generation.pipelines import (
    GenerationRequest,
    pipeline_factory,
    reasoning_fields_for,
    reasoning_input_fields,
    repair_options,
    template_key,
    upstream_dialect,
    with_reasoning_fields,
)
from welldone.server.generation.recovery import AttemptOutput, Continue, GiveUp, Recovery
from welldone.server.generation.retry import RetryLoop
from welldone.server.generation.targets import sticky_key
from welldone.server.generation.token_cost import TokenCost, estimate_prompt_tokens
from welldone.server.inspector.captures import StreamCapture
from welldone.server.observe import log
from welldone.server.observe.counters import StreamTimes
from welldone.server.parts import ServerParts
from welldone.server.requests.fields import ValidatedRequest
from welldone.server.requests.upstream_dialects import translate_request

_BUFFERED_LIMIT_BYTES = 256 * 2**20  # of a stream that becomes a whole reply: a million tokens
_GRACE_S = {
    PartState.FINISHED: 10.0,  # for the usage after the last finish_reason; some servers send one with each chunk
    PartState.FINISHED_WITH_USAGE: 2.0,  # for [DONE] after the usage: servers send both at once
    PartState.DONE: 0.5,  # for the end of the body after [DONE]
}
"""How long the end of a body is awaited."""
_NEVER_S = 86_400.0


# Python 3.11 takes 15 times as long to look up a member of an enum, and each response needs a dozen.
_WAITING, _STARTED, _SENDING, _COMPLETE, _FAILED = ResponseState
_RECEIVING, _HAS_EVENT, _GENERATING = tuple(AttemptStage)[2:]


class Answer:
    """The answer to one request."""

    def __init__(
        self,
        ctx: RequestContext,
        backend: Backend,
        gen_request: GenerationRequest,
        request: ValidatedRequest,
        parts: ServerParts,
        *,
        times: StreamTimes,
        reread_request: Callable[[], Awaitable[ValidatedRequest]] | None = None,
        capture: StreamCapture | None = None,
    ) -> None:
        settings = parts.settings
        self._ctx = ctx
        self.backend = backend
        self._gen_request = gen_request
        self._request = request
        self._parts = parts
        self._settings = settings
        self.times = times
        self._report: ReportHeaders | None = None
        if settings.report or REPORT_REQUEST_HEADER in ctx.request.headers:
            # As in /page/api/state: only admins see upstreams, unless the operator shows them to everyone.
            shows_upstreams = settings.report or parts.keys.is_admin(ctx.principal)
            self._report = ReportHeaders(times, shows_upstreams, request.ignored_fields)
        self._reread_request = reread_request  # validates again when the model is loaded and its capabilities are known
        self._reread_lock = asyncio.Lock()
        self._may_use_template = reread_request is None
        self._capture = capture
        self.continuations: Continuations = Continuations(backend, settings.continuation, ctx.id, times)
        make_factory = partial(
            pipeline_factory,
            gen_request,
            request,
            backend,
            reasoning=reasoning_fields_for(ctx.request.headers.get("User-Agent"), settings.reasoning),
            # Several choices are requested separately: one of them can be requested again, whatever the setting.
            is_continuable=self.continuations.is_on or len(request.bodies) > 1,
        )
        fallback = Envelope(gen_request.id, int(parts.now()), backend.name)
        self.pipeline: AnswerPipeline = AnswerPipeline(make_factory, fallback, capture)
        self.error: ApiError | None = None
        """Why the response failed."""
        self._part_count = len(request.bodies)
        self.retries: RetryLoop = RetryLoop(
            backend,
            parts=self._part_count,
            sticky=sticky_key(ctx, gen_request.body, backend.upstreams),
            trace=ctx.trace,
        )
        self._attempts: dict[int, UpstreamAttempt] = {}  # the last attempt at each part
        self._ended_count = 0
        self.client: ClientStream = ClientStream(ctx.request, self._attempts, write_s=settings.write_s)
        self._received_bytes = 0
        self.cost: TokenCost = TokenCost(prompt_copies=self._part_count // request.prompt_count)

    @property
    def is_stream(self) -> bool:
        """Whether the client requested a stream."""
        return self._request.is_stream

    @property
    def response_model(self) -> str | None:
        """The name of the model in the response, if it is known."""
        if self.backend.reported_model is not None:
            return self.backend.reported_model
        envelope = self.pipeline.parts[0].envelope if self.pipeline.parts else None
        return None if envelope is None else envelope.model

    def _prepare_pipeline(self, lease: BackendLease, part: int) -> RepairOptions:
        """Configure the pipeline for an upstream."""
        dialect = upstream_dialect(self._gen_request, lease.upstream)
        options, slot = repair_options(lease, self._request.bodies[part], dialect), None
        if self._may_use_template:
            key = template_key(self._gen_request, self._request, lease, options, self.backend.reported_model)
            slot = None if key is None else self._parts.templates.slot(key)
        self.pipeline.configure(part, options, slot)
        return options

    async def run(self) -> HttpResponse | None:
        """Produce the response; returns None if it was streamed.

        Raises:
            ApiError: it failed before anything was sent.
        """
        if not self.backend.upstreams:
            self.backend.check_capacity()
        workers = 1 if self._part_count == 1 else min(self._part_count, self.backend.slots)
        tasks = [asyncio.create_task(self._run_worker(is_first=number == 0)) for number in range(workers)]
        try:
            if self._request.is_stream:
                await self._stream_response()
                return None
            return await self._buffered_response()
        finally:
            self.client.enter(_FAILED)  # unless it has ended before
            if self.client.state is not _COMPLETE or self.pipeline.active.usage is None:
                for attempt in self._attempts.values():
                    if attempt.is_billable:
                        self.cost.add_incomplete(attempt.output_estimate)
            for attempt in self._attempts.values():
                attempt.close()
            if self.client.state is not _COMPLETE or self._part_count > 1:  # else the worker is about to end
                for task in tasks:
                    task.cancel()
            self._attempts.clear()  # a reference cycle would wait for the garbage collector
            self.client.buffered.clear()
            if self.client.state is _COMPLETE:
                self.pipeline.learn()

    def abort(self, error: ApiError) -> None:
        """End the response with an error."""
        if self.client.state >= _COMPLETE or self.error is not None:
            return
        self.error = error
        try:
            self.client.send(self.pipeline.fail(error.to_failure()))
        except Exception as internal_error:  # noqa: BLE001 - the client gets an end of the stream in any case
            log.event(logging.ERROR, "a response could not be ended", error=internal_error)
            self.client.send(self.pipeline.current.encode_failure(error.to_failure()))
        finally:
            self._end(_FAILED)

    # Attempts and retries.

    async def _run_worker(self, *, is_first: bool) -> None:
        """Run pending parts. A final failure ends the response."""
        try:
            await self.retries.run(self, is_first=is_first)
        except ApiError as error:
            self.abort(error)
        except Exception as error:  # noqa: BLE001 - outermost layer of a task: logged, and reported to the client
            log.event(logging.ERROR, "a response failed", error=error)
            self.abort(internal_error(self._ctx.id))

    async def _reread_body(self, part: int) -> Json:
        async with self._reread_lock:  # once for all parts
            if self._reread_request is not None:
                self._request, self._reread_request = await self._reread_request(), None
        return self._request.bodies[part]

    async def run_attempt(self, lease: BackendLease, part: int, number: int) -> AttemptFailure | None:
        """Make an attempt at a part."""
        param = DIALECTS[self._gen_request.endpoint].prompt_field
        # Paused while the other parts are; all are resumed together.
        attempt = UpstreamAttempt(self, lease, part, number, param=param, is_paused=self.client.has_backpressure)
        self._attempts[part] = attempt
        self.times.record_attempt(lease.waited_s)
        self.continuations.models.setdefault(part, lease.model)
        way: ContinuationWay | None = None
        body = self._request.bodies[part]
        if (first_failure := self.continuations.failure_of(part)) is not None:
            planned = await self._continue_part(lease, part)
            if planned is None:
                return msgspec.structs.replace(first_failure, is_retryable=False)
            way, body = planned
        dialect = self._prepare_pipeline(lease, part).upstream_dialect
        if self._part_count > 1:
            await next_turn()  # encoding and sending a long body takes milliseconds
        if self._reread_request is not None:
            body = await self._reread_body(part)
        await self._parts.body_budget.reserve(attempt)
        try:
            if self.client.state >= _COMPLETE:
                return None
            if lease.upstream is not None:
                body, attempt.is_tool_stream = lease.upstream.choose_form(lease.model, body)
            endpoint = self._gen_request.endpoint
            if dialect is not None:
                body = translate_request({**body, "model": lease.model}, dialect, endpoint)
                endpoint = dialect
            elif lease.upstream is not None and endpoint.is_chat:
                body = with_reasoning_fields(body, reasoning_input_fields(lease.upstream, lease.model))
            sent_dialect = DIALECTS[endpoint]
            path, body = sent_dialect.make_target(sent_dialect.path, body, lease.model)
            encoded = [msgspec.json.encode(body)]
            estimate = attempt.output_estimate
            estimate.prompt_tokens = estimate_prompt_tokens(body, len(encoded[0]))
            is_same_dialect, sent = self._gen_request.is_same_dialect, self._request.bodies[part]
            estimate.has_long_chunks = is_same_dialect or bool(sent.get("logprobs") or sent.get("top_logprobs"))
            observers: list[StreamObserver] = []
            if self._parts.recorder is not None and lease.upstream is not None:
                observers.append(self._parts.recorder.begin(path, body, lease.name, self._ctx.id))
            if self._part_count == number == 1 and way is None:
                first_reply = self._parts.mirror.begin(lease, endpoint, path, body, self._ctx.id)
                observers += [] if first_reply is None else [first_reply]
            del body
            if self._capture is not None:
                is_local = lease.upstream is None
                observers.append(self._capture.begin_attempt(part, lease.name, encoded[0], is_local=is_local, way=way))
            # `pop`: this frame must not keep the body in memory during the reply, n times for n parts.
            headers = dialect_headers(lease.address, endpoint, self._gen_request.forwarded_headers)
            await attempt.send(path, encoded.pop(), observers, headers)
            if not attempt.pending_body_bytes:
                self._parts.body_budget.release(attempt)
            failure = await attempt.result
            if failure is not None and first_failure is not None:  # the client gets the first error
                failure = msgspec.structs.replace(failure, error=first_failure.error)
            return failure
        finally:
            self._parts.body_budget.release(attempt)

    def output(self, part: int, failure: AttemptFailure) -> AttemptOutput:
        """Return what is possible with the output of a failed attempt."""
        if self.client.state >= _COMPLETE:
            return AttemptOutput(can_discard=False)
        is_empty = self._attempts[part].stage < _RECEIVING
        can_discard = is_empty or self._is_retractable or self._can_rewind(part)
        is_first = is_empty and self._part_count == 1 and self.continuations.failure_of(part) is None
        return AttemptOutput(can_discard, None if is_first else self._can_continue(part, failure))

    def _can_continue(self, part: int, failure: AttemptFailure) -> bool | None:
        if not (self.pipeline.parts and self.continuations.is_on):
            return None
        delivered = self.pipeline.delivered(part)
        is_empty = delivered is None or not delivered.has_content
        if self.client.state is _WAITING and is_empty and self._part_count == 1:
            return None  # nothing was sent: the output of all parts can be discarded
        return delivered is not None and self.continuations.may_continue(self._request.bodies[part], delivered, failure)

    def recover(self, part: int, failure: AttemptFailure, recovery: Recovery) -> None:
        """Discard the output of a failed attempt, or let the next one continue it."""
        if isinstance(recovery, GiveUp):
            self.continuations.ways += [NO_WAY] if recovery.lacks_way else []
            if self.client.state < _COMPLETE and self.pipeline.current.part_state(part) is PartState.CUT:
                self._fail_part(part, self.pipeline.release_failure(part))
            return
        attempt = self._attempts[part]
        if isinstance(recovery, Continue):
            self.continuations.begin(part, failure)
            self.cost.add_continued(attempt.output_estimate)
        else:
            if self._can_rewind(part):
                self.pipeline.continue_part(part, Continuation(way=ContinuationWay.REPLAY, failure=BROKEN_OFF))
            elif attempt.stage >= _RECEIVING:
                self._discard_output()
            if attempt.is_billable:
                self.cost.add_wasted(attempt.output_estimate)
        del self._attempts[part]

    def survives_restart(self, attempt: UpstreamAttempt) -> bool:
        """Whether the answer goes on if the local engine of this attempt is replaced while it generates."""
        if attempt.number >= self.backend.max_attempts or attempt.is_paused:
            return False  # Unread bytes may contain a tool call, which cannot be continued.
        if attempt.stage < _RECEIVING:
            return True
        part = attempt.part_index
        parts = self.pipeline.parts
        if not parts or not parts[part].can_continue:
            return False
        delivered = parts[part].delivered
        return delivered is not None and self.continuations.survives_restart(self._request.bodies[part], delivered)

    async def _continue_part(self, lease: BackendLease, part: int) -> tuple[ContinuationWay, Json] | None:
        """Prepare pipeline and request for the rest of a part; None if this backend cannot continue it."""
        delivered = self.pipeline.delivered(part)
        assert delivered is not None
        planned = await self.continuations.plan(lease, part, self._request.bodies[part], delivered)
        if planned is None:
            return None
        continuation, body = planned
        self.pipeline.continue_part(part, continuation)
        return continuation.way, body

    def _can_rewind(self, part: int) -> bool:
        """Whether one of several choices can be requested again, since the client has nothing of it but its role."""
        return self._part_count > 1 and not self.pipeline.has_sent(part)

    @property
    def _is_retractable(self) -> bool:
        """Whether the output of an upstream can be discarded, since the client has received nothing of it."""
        return bool(self.backend.upstreams) and self.client.state < _SENDING and self._part_count == 1

    def _discard_output(self) -> None:
        self.client.discard()
        self._ended_count = 0
        self.pipeline.reset()

    @property
    def continuation_outcome(self) -> str:
        """Result of the continuations, as a metric label."""
        if self.client.state is _COMPLETE:
            return "complete"
        if any(part.has_differed for part in self.pipeline.parts):
            return "differed"
        return "left" if self.pipeline.current.failure is None and self.error is None else "failed"

    # Callbacks of the attempts.

    def on_accepted(self) -> None:
        """Note the start of a reply."""
        # The first event of an upstream is awaited too: it may be an error, which then becomes an HTTP status.
        if not self.backend.upstreams:
            self.client.enter(_STARTED)

    def on_data(self, data: bytes, part: int) -> AttemptStage:
        """Process bytes of a part's stream, and return how far it is now."""
        if self.client.state >= _COMPLETE:
            return _RECEIVING
        self._received_bytes += len(data)
        if self._received_bytes > _BUFFERED_LIMIT_BYTES and self.pipeline.current.retains_output:
            self.abort(reply_too_large().error)
            return _RECEIVING
        output, state, has_content = self.pipeline.feed(data, part)
        if state is PartState.FAILED:
            self._fail_part(part, output)
            return _HAS_EVENT
        if state is PartState.CUT:
            self.client.send(output)  # of the frames before the failure
            self._cut_part(part)
            return _HAS_EVENT
        if state is PartState.WAITING:
            self.client.send(output)
            return _RECEIVING
        self._send_part(part, output, state)
        return _GENERATING if has_content else _HAS_EVENT

    def _send_part(self, part: int, output: bytes | None, state: PartState) -> None:
        """Send output of a part that has not failed."""
        self.times.record_chunk()
        self.client.send(output)
        if state is PartState.ANSWERING:
            self._enable_fast_path()
        elif state is PartState.STOPPED:
            self._attempts[part].finish()  # at a stop string: the engine would generate on
        else:
            # Some servers leave the body open after [DONE], or never send it; the response is complete all the same.
            self._attempts[part].finish_after(_GRACE_S[state])

    def _enable_fast_path(self) -> None:
        """Use the fast path for text chunks, once the stream is open."""
        stream = self.client.stream
        if stream is None or not self._part_count == len(self._attempts) == 1:
            return  # a queued stream has no attempt yet
        if (path := self.pipeline.fast_path) is not None:
            self._attempts[0].enable_fast_path(path, stream, self.times)

    def on_full_body(self, data: bytes, part: int) -> Iterator[None]:
        """Process a whole reply of a part, in steps between which the event loop may run."""
        if self.client.state >= _COMPLETE:
            return
        self.times.record_chunk()
        for output in self.pipeline.feed_reply_in_steps(data, part):
            if self.pipeline.current.failure is not None:
                self._fail_part(part, output)
                return
            self.client.send(output)
            yield
            if self.client.state >= _COMPLETE:
                return

    def on_end(self, part: int, *, is_lost: bool) -> bool:
        """Process the end of a part's stream, or the loss of its connection. Returns whether the reply is complete."""
        if is_lost and not self.pipeline.is_complete(part):
            return False
        if self.client.state >= _COMPLETE:
            return True
        output, state, _ = self.pipeline.close(part)
        if state is PartState.FAILED:
            self._fail_part(part, output)
            return True
        if state is PartState.CUT:
            self.client.send(output)
            self._cut_part(part)
            return True
        self._ended_count += 1
        attempt = self._attempts[part]
        if attempt.is_tool_stream and self.pipeline.active.result.invalid_arguments_count > 0:
            attempt.stop_tool_streams()
        if self._ended_count < self._part_count:
            self.client.send(output)
        else:
            self.client.send_last(output)
            self._end(_COMPLETE)
        return True

    def _cut_part(self, part: int) -> None:
        """Handle an error event or an incomplete or invalid stream that another attempt may continue."""
        stream = self.pipeline.parts[part]
        failure = stream.repairer.failure
        assert failure is not None
        attempt_failure = classify_failure(failure)
        if stream.has_differed:
            error = attempt_failure.error
            attempt_failure = AttemptFailure(error, "differed", is_server_fault=False, has_differed=True)
        elif self._is_retractable and not self._can_continue(part, attempt_failure):
            # Now: the worker could be too late to discard the output before it is sent.
            self._fail_part(part, self.pipeline.release_failure(part))
        self._attempts[part].fail(attempt_failure)

    def _fail_part(self, part: int, data: bytes | None) -> None:
        """Handle an error event or an invalid stream."""
        failure, parts = self.pipeline.current.failure, self.pipeline.parts
        assert failure is not None
        has_differed = bool(parts) and parts[part].has_differed
        if not has_differed:
            attempt_failure = classify_failure(failure)
            self._attempts[part].fail(attempt_failure)
            if self._is_retractable:
                self._discard_output()  # the worker retries, or ends the response with an HTTP status
                return
            if self.backend.upstreams and self.client.stream is None:
                self.error = attempt_failure.error  # an HTTP status, since no stream is open
        self.client.send(data)
        self.client.send(self.pipeline.close(part).output)
        self._end(_FAILED)
        if has_differed:
            self._attempts[part].finish()  # the server of this attempt is not at fault

    # The handler's task.

    async def _buffered_response(self) -> HttpResponse:
        while self.client.state < _COMPLETE:
            await self.client.wait(_NEVER_S)
        if self.error is not None:
            raise self.error
        failure = self.pipeline.current.failure
        if failure is not None:
            raise classify_failure(failure).error
        headers = response_headers(self._ctx)
        if self._report is not None:
            headers |= self._report.headers(self.retries.upstream) | self._trailers()
        return HttpResponse(200, await self.pipeline.body(), headers=headers)

    async def _stream_response(self) -> None:
        client = self.client
        await client.wait_for_start(self._settings.early_s)
        if self.error is not None:
            raise self.error
        names = () if self._report is None else self._report.trailer_names
        await client.open(self._stream_headers(), trailers=names)
        if client.state < _COMPLETE:
            self._enable_fast_path()
        while client.state < _COMPLETE:
            if not client.is_blocked:
                sent_at = max((attempt.last_sent_at for attempt in self._attempts.values()), default=0.0)
                await client.wait_with_keep_alive(sent_at, self._settings.keep_alive_s, self.pipeline.keep_alive)
            elif (failure := await client.drain()) is not None:
                self.error = failure.error
                self.pipeline.current.fail(self.error.to_failure())  # for logs and metrics only
                self._end(_FAILED)
        await client.end(self._trailers())

    def _stream_headers(self) -> dict[str, str]:
        report = {} if self._report is None else self._report.headers(self.retries.upstream)
        return {**self.pipeline.headers, **response_headers(self._ctx), **report}

    def _trailers(self) -> dict[str, str]:
        if self._report is None:
            return {}
        return self._report.trailers(self.pipeline.active.result, self.retries.upstream, self.continuations.ways)

    def _end(self, state: ResponseState) -> None:
        self.retries.stop()
        self.client.enter(state)
