"""One attempt at one part of a response: an HTTP exchange with an engine or upstream, up to its end or failure.

The server sends a stream, a whole reply, or an error. The headers tell which; if they are wrong, the first byte does.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum, auto
from typing import NamedTuple, Protocol

import msgspec

from welldone.core.events import Failure
from welldone.core.json_budget import STEPWISE_LIMIT_BYTES
from welldone.core.template import TransferFraming
from welldone.gateway import error_mapping
from welldone.gateway.backends import BackendLease
from welldone.gateway.error_mapping import OVERLOAD_CODES, AttemptFailure
from welldone.gateway.errors import SHUTTING_DOWN, ApiError
from welldone.gateway.upstream import OUTCOME_UNFINISHED
from welldone.http.client import Exchange, split_chunk_framing
from welldone.http.connect import HttpClientError
from welldone.http.messages import StreamingResponse
from welldone.server.generation.token_cost import OutputTokenEstimator
from welldone.server.observe.counters import StreamTimes
from welldone.stream.fast_path import FastPath
from welldone.stream.stream_template import TemplatedStream

_TURN_S = 0.005  # time slice for parsing a whole reply; a single step may take longer
_STATUS_BY_ERROR = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "BadRequestError": 400,  # vLLM, SGLang
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "overloaded_error": 503,
    **dict.fromkeys((*OVERLOAD_CODES, SHUTTING_DOWN), 503),
}
"""HTTP status of an error event, by its type or (Responses, other welldone servers) by its code; 502 for others."""
_RETRY_AFTER_S = 1.0  # for overload errors in events, which have no Retry-After
_SSE_TYPE = "text/event-stream"
_KEEP_ALIVE_FACTOR = 6
"""Multiple of `first_byte_s` without content that is allowed while keep-alives arrive: an hour by default."""
_FRAME_ENDS = (b"\n\n", b"\r\n\r\n")
_OK = 200
_NO_FRAMING = HttpClientError("it has neither a length nor a last chunk, so nothing shows whether it is complete")
_OUTCOMES = {"incomplete_stream": error_mapping.OUTCOME_CUT, "bad_upstream_stream": error_mapping.OUTCOME_UNREADABLE}
"""Outcomes of failures that are found in a stream, by code; those of an upstream's own errors are statuses."""
_BROKEN_STREAMS = (error_mapping.OUTCOME_CUT, error_mapping.OUTCOME_UNREADABLE, OUTCOME_UNFINISHED)


class _ReplyKind(Enum):
    UNKNOWN = auto()
    STREAM = auto()
    FULL_BODY = auto()
    ERROR = auto()


class AttemptStage(IntEnum):
    """How far an attempt has come. It never goes back; the result of the attempt tells how it ended."""

    CREATED = auto()
    SENT = auto()
    RECEIVING = auto()
    """Bytes of the stream have arrived, perhaps only half a frame."""
    STARTED = auto()
    """An event of the stream has been processed."""
    GENERATING = auto()
    """Text, reasoning, a tool call or a finish reason has arrived."""


# Python 3.11 takes 15 times as long to look up a member of an enum, and each attempt needs a dozen.
_UNKNOWN, _STREAM, _FULL_BODY, _ERROR = _ReplyKind
_CREATED, _SENT, _RECEIVING, _STARTED, _GENERATING = AttemptStage


class AttemptListener(Protocol):
    """Receives the reply to an attempt."""

    def on_accepted(self) -> None:
        """Note the start of a reply."""

    def on_data(self, data: bytes, part: int) -> AttemptStage:
        """Process bytes of a part's stream, and return how far it is now."""

    def on_full_body(self, data: bytes, part: int) -> Iterator[None]:
        """Process a whole reply of a part, in steps between which the event loop may run."""

    def on_end(self, part: int, *, is_lost: bool) -> bool:
        """Process the end of a part's stream, or the loss of its connection. Returns whether the reply is complete."""

    def survives_restart(self, attempt: "UpstreamAttempt") -> bool:
        """Whether the answer goes on if the local engine of this attempt is replaced."""


class StreamObserver(Protocol):
    """Receives the bytes of one exchange: the trace recorder, the inspector, the traffic mirror."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Receive the status and headers."""

    def data(self, data: bytes) -> None:
        """Receive bytes of the body."""

    def end(self, error: str | None, *, is_aborted: bool = False) -> None:
        """Receive the end, with an error message if the reply is incomplete. Later calls are ignored."""


class _FastPathTarget(NamedTuple):
    path: FastPath | TemplatedStream
    push: Callable[[bytes], None]
    record_chunk: Callable[[], float]


class UpstreamAttempt:
    """One attempt at a part. A retry makes a new object: late data of the old one is dropped."""

    def __init__(
        self,
        listener: AttemptListener,
        lease: BackendLease,
        part_index: int,
        number: int,
        *,
        param: str,
        is_paused: bool = False,
    ) -> None:
        self.lease = lease
        self.part_index = part_index
        self.number = number
        """From the second on, attempts use a new connection instead of a pooled one."""
        self.stage: AttemptStage = _CREATED
        self.last_received_at: float = 0.0
        """Time of the last bytes, including keep-alives."""
        self._last_content_at = 0.0  # time of the last content; at first, of the request
        self.is_paused: bool = is_paused
        """Whether nothing is read from the server, because the client is slow."""
        self.last_sent_at: float = 0.0
        """Time of the last chunk on the fast path."""
        self.is_tool_stream: bool = False
        """Whether it streams the answer to a request with tools, at an upstream with `stream = "auto"`."""
        self.output_estimate: OutputTokenEstimator = OutputTokenEstimator()
        self._listener = listener
        self._param = param  # to blame for a prompt that is too long
        self._loop = asyncio.get_running_loop()
        self._exchange: Exchange | None = None
        self._observers: Sequence[StreamObserver] = ()
        self._fast_path: _FastPathTarget | None = None
        self._is_between_frames = True  # the last data ended with a complete frame
        self._reply_kind = _UNKNOWN
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._buffer = bytearray()  # of a reply that is not streamed
        self.result: asyncio.Future[AttemptFailure | None] = self._loop.create_future()
        """The failure, or None, after the end of the reply. An internal error is an exception."""
        self._body_bytes = 0  # of the request
        # These two refer back to this object: they are cleared early, so that no cycle keeps the request alive.
        self._steps: Iterator[None] | None = None
        self._timer: asyncio.TimerHandle | None = None  # for what ends the attempt next if nothing arrives

    @property
    def is_billable(self) -> bool:
        """Whether a server may have worked on it: it was sent, and neither rejected nor disconnected before a reply."""
        if self.stage < _SENT:
            return False
        failure = self.result.result() if self.result.done() and self.result.exception() is None else None
        return failure is None or self._status == _OK or failure.outcome == error_mapping.OUTCOME_TIMEOUT

    @property
    def is_generating(self) -> bool:
        """Whether the prompt has been processed."""
        return self.stage is _GENERATING

    @property
    def survives_restart(self) -> bool:
        """Whether the answer goes on if its local engine is replaced."""
        return self._listener.survives_restart(self)

    def _watch_silence(self) -> None:
        """Time out after silence, or after only keep-alives, but not while the client is slow.

        The longest silence is `first_byte_s` while the prompt is processed, `idle_s` after the first content. A role
        alone is not content: some servers send it before they process the prompt.
        """
        lease, now, is_generating = self.lease, time.monotonic(), self.stage is _GENERATING
        limit_s = lease.idle_s if is_generating else lease.first_byte_s
        keep_alive_s = max(lease.idle_s, (1 if is_generating else _KEEP_ALIVE_FACTOR) * lease.first_byte_s)
        last_content_at = max(self._last_content_at, self.last_sent_at)
        deadline = min(self.last_received_at + limit_s, last_content_at + keep_alive_s)
        if now >= deadline and not self.is_paused:
            self.fail(error_mapping.timeout_failure(limit_s))
        # `idle_s` at most, since the deadline is earlier after the first content.
        self._schedule(lease.idle_s if self.is_paused else min(lease.idle_s, deadline - now), self._watch_silence)

    async def send(
        self,
        path: str,
        body: bytes,
        observers: Sequence[StreamObserver],
        headers: Iterable[tuple[str, str | None]],
    ) -> None:
        """Send the request. `result` is set at the end of the reply."""
        lease, self._observers = self.lease, observers
        lease.watch(self)
        self._body_bytes = len(body)
        self.last_received_at = self._last_content_at = time.monotonic()
        self._watch_silence()
        try:
            self._exchange = await lease.send(
                lease.address,
                "POST",
                path,
                self,
                body=body,
                accept=_SSE_TYPE,
                headers=headers,
                own_headers=lease.trace_headers,
                is_fresh=self.number > 1,
            )
            self.stage = max(self.stage, _SENT)  # the reply may have begun
            if self.is_paused:
                self._exchange.pause_reading()
        except HttpClientError as error:
            self._body_bytes = 0
            self._settle(error_mapping.connection_failure(error, lease.upstream))
        if self.result.done():
            self.close()  # the reply failed before `lease.send` returned the exchange

    @property
    def pending_body_bytes(self) -> int:
        """Bytes of the request's body until the server has read all of it: a rest keeps the whole in memory."""
        return self._body_bytes if self._exchange is None or self._exchange.unsent_bytes else 0

    def enable_fast_path(self, path: FastPath | TemplatedStream, stream: StreamingResponse, times: StreamTimes) -> None:
        """Forward plain text chunks straight to the client's stream, which must have no other part."""
        exchange = self._exchange
        is_new = self._fast_path is None or self._fast_path.path is not path
        if is_new and not self._observers and exchange is not None and exchange.is_chunked:
            path.use_framing(TransferFraming(split_chunk_framing, stream.chunk_framing))
            stream.on_disconnect(self._disable_fast_path)
            self._fast_path = _FastPathTarget(path, stream.write_framed, times.record_chunk)
            exchange.fast_path = self._forward_fast

    def _disable_fast_path(self) -> None:
        self._fast_path = None

    def close(self) -> None:
        """Close the exchange."""
        self._fast_path = self._steps = None
        self._cancel_timer()
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None  # a reference cycle would wait for the garbage collector, which stops the loop
        if not self.result.done():
            for observer in self._observers:
                observer.end(error_mapping.CLIENT_DISCONNECTED.error.message, is_aborted=True)

    def finish(self) -> None:
        """Treat the stream as complete, if it is still open: some servers do not close it after the end marker."""
        if not self.result.done():
            self.end(None)
            self.close()

    def finish_after(self, seconds: float) -> None:
        """Call `finish` after `seconds`, but before the silence counts as a failure; later while the client is slow."""
        if self._exchange is not None and self._exchange.is_complete:
            return
        seconds = min(seconds, self.lease.idle_s / 2)

        def finish() -> None:
            if self.is_paused:
                self.finish_after(seconds)
            else:
                self.finish()

        self._schedule(seconds, finish)

    def _schedule(self, seconds: float, callback: Callable[[], None]) -> None:
        self._cancel_timer()
        if not self.result.done():
            self._timer = self._loop.call_later(seconds, callback)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pause(self) -> None:
        """Stop reading from the server."""
        self.is_paused = True
        if self._exchange is not None:
            self._exchange.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self.is_paused = False
        self.last_received_at = self._last_content_at = time.monotonic()  # the server is not to blame for the silence
        if self._exchange is not None:
            self._exchange.resume_reading()

    # Callbacks of the exchange.

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Receive the status and headers."""
        if self.result.done():
            return
        self._status, self._headers = status, headers
        for observer in self._observers:
            observer.head(status, headers)
        if status != _OK:
            self._reply_kind = _ERROR
            self._schedule(error_mapping.ERROR_BODY_TIMEOUT_S, self._fail_with_status)
        elif headers.get("content-encoding", "identity").lower() != "identity":
            self.fail(error_mapping.compressed_reply())
        elif headers.get("content-type", _SSE_TYPE).lower().startswith(_SSE_TYPE):
            self._reply_kind = _STREAM
            self._listener.on_accepted()

    def _forward_fast(self, data: bytes) -> bool:
        """Forward one chunk from socket to socket: the hot path. Returns False if it needs the full pipeline."""
        target = self._fast_path
        if target is None or (rewrite := target.path.rewrite) is None or (sent := rewrite(data)) is None:
            return False
        target.push(sent)
        estimate = self.output_estimate
        estimate.chunks += 1
        estimate.bytes += len(data)
        self.last_received_at = self.last_sent_at = target.record_chunk()
        return True

    def data(self, data: bytes) -> None:
        """Receive bytes of the body."""
        for observer in self._observers:
            observer.data(data)
        if self.result.done():
            return
        self.output_estimate.add(data)
        self.last_received_at = time.monotonic()
        if self._reply_kind is not _STREAM:
            self._buffer_data(data)
        elif not (self._is_between_frames and _is_comment_only(data)):  # we send our own keep-alives
            self._is_between_frames = data.endswith(_FRAME_ENDS)
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        try:
            stage = self._listener.on_data(data, self.part_index)
        except Exception as error:  # noqa: BLE001 - an internal error ends this response, and is logged
            self._crash(error)
            return
        self.stage = max(self.stage, stage)
        if stage is _GENERATING:
            self._last_content_at = self.last_received_at

    def end(self, error: HttpClientError | None) -> None:
        """Receive the end of the body."""
        if self.result.done():
            return
        for observer in self._observers:
            observer.end(None if error is None else str(error))
        upstream = self.lease.upstream
        if self._reply_kind is _STREAM:
            if error is None and upstream is not None and upstream.settings.ends == "close":
                error = None if self._headers.keys() & {"content-length", "transfer-encoding"} else _NO_FRAMING
            self._complete(error)
        elif error is not None:
            self._settle(error_mapping.disconnect_failure(error, upstream, has_head=self._status > 0))
        elif self._reply_kind is _ERROR:
            self._fail_with_status()
        elif self._reply_kind is _FULL_BODY:
            self._steps = self._listener.on_full_body(bytes(self._buffer), self.part_index)
            self._buffer.clear()
            self._read_in_steps()
        else:
            self.fail(error_mapping.empty_reply())

    def _read_in_steps(self) -> None:
        """Parse a whole reply for one time slice, then let the event loop run."""
        steps = self._steps
        slice_end = time.monotonic() + _TURN_S
        try:
            for _ in steps or ():
                if self.result.done():
                    break
                if time.monotonic() > slice_end:
                    self.last_received_at = time.monotonic()  # the server is not to blame for the silence
                    self._loop.call_soon(self._read_in_steps)
                    return
        except Exception as error:  # noqa: BLE001 - an internal error ends this response, and is logged
            self._crash(error)
        if steps is not None and not self.result.done():
            self._complete()
        self._steps = None

    def _complete(self, error: HttpClientError | None = None) -> None:
        """End the reply. It may be complete although its connection was lost."""
        try:
            is_complete = self._listener.on_end(self.part_index, is_lost=error is not None)
        except Exception as internal_error:  # noqa: BLE001 - it ends this response, and is logged
            self._crash(internal_error)
            return
        upstream = self.lease.upstream
        self._settle(
            None if error is None or is_complete else error_mapping.disconnect_failure(error, upstream, has_head=True)
        )

    def _crash(self, error: Exception) -> None:
        """Let the task that waits for the result raise an internal error."""
        if self.result.done():
            raise error
        self.close()
        self.result.set_exception(error)

    def _buffer_data(self, data: bytes) -> None:
        self._buffer += data
        # The first byte tells the kind of reply, if the headers do not. Earlier data was only whitespace.
        if self._reply_kind is _UNKNOWN and (start := data.lstrip()[:1]):
            if start in b"{[":
                self._reply_kind = _FULL_BODY
            elif start == b"<":
                self.fail(error_mapping.unrecognized_reply())
            else:
                self._reply_kind = _STREAM
                self._listener.on_accepted()
                buffered, self._buffer = bytes(self._buffer), bytearray()
                self._receive(buffered)
        if self._reply_kind is _ERROR and len(self._buffer) > error_mapping.ERROR_LIMIT_BYTES:
            self._fail_with_status()
        elif len(self._buffer) > STEPWISE_LIMIT_BYTES:
            self.fail(error_mapping.reply_too_large())

    def _fail_with_status(self) -> None:
        if not self.result.done():
            body, upstream = bytes(self._buffer), self.lease.upstream
            self.fail(error_mapping.status_failure(self._status, self._headers, body, self._param, upstream))

    def fail(self, failure: AttemptFailure) -> None:
        """End the attempt with a failure."""
        self._settle(failure)
        self.close()

    def _settle(self, failure: AttemptFailure | None) -> None:
        """Set the result and report it to the lease at once: the waiting task may be cancelled before it runs."""
        if self.result.done():
            return
        if self.is_tool_stream and failure is not None and failure.outcome in _BROKEN_STREAMS:
            failure = msgspec.structs.replace(failure, goes_unstreamed=True)
            self.stop_tool_streams()
        self.result.set_result(failure)
        self._cancel_timer()
        self.lease.report(failure)
        if self.lease.trace is not None:
            self.lease.trace.end(None if failure is None else failure.outcome)
        for observer in self._observers:
            observer.end(None if failure is None else failure.error.message, is_aborted=True)

    def stop_tool_streams(self) -> None:
        """Ask this upstream for no more streams with tools: the arguments of a call are broken."""
        if self.lease.upstream is not None:
            self.lease.upstream.stop_tool_streams(self.lease.model)


def _is_comment_only(data: bytes) -> bool:
    """Whether the data consists of SSE comments. Comments that may hide a chunk are left to the reader."""
    if data[:1] != b":" or data[-1:] != b"\n" or b'"choices"' in data:
        return False
    return all(line[:1] in (b"", b":") for line in data.splitlines())


def classify_failure(failure: Failure) -> AttemptFailure:
    """Map a failure in a server's stream to an attempt failure."""
    status = _STATUS_BY_ERROR.get(failure.type) or _STATUS_BY_ERROR.get(failure.code or "", 502)
    retry_after_s = _RETRY_AFTER_S if status in (429, 503) else None
    error = ApiError(status, failure.message, param=failure.param, code=failure.code, retry_after_s=retry_after_s)
    is_unfinished = error_mapping.is_unfinished(failure)
    outcome = OUTCOME_UNFINISHED if is_unfinished else _OUTCOMES.get(failure.code or "", str(status))
    return AttemptFailure(
        error,
        outcome,
        is_server_fault=status >= 500 and failure.code not in OVERLOAD_CODES and not is_unfinished,
        is_retryable=status != 400 and failure.code != error_mapping.QUEUE_TIMEOUT,
    )
