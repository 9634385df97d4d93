"""One part of an answer: an exchange with a server, from its first byte to its end, however that comes.

What the server sends is a stream, a whole reply, or a refusal. Its head says which; where the head is wrong, its first
byte does.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import NamedTuple, Protocol

from welldone.gateway import error_mapping
from welldone.gateway.backends import BackendLease
from welldone.gateway.error_mapping import (
    CLIENT_DISCONNECTED,
    ERROR_BODY_TIMEOUT_S,
    ERROR_LIMIT_BYTES,
    OUTCOME_TIMEOUT,
    OVERLOAD_CODES,
    QUEUE_TIMEOUT,
    AttemptFailure,
    connection_failure,
    status_failure,
    timeout_failure,
)
from welldone.gateway.errors import ApiError
from welldone.http.client import Exchange, HttpClientError, split_chunk_framing
from welldone.http.server import StreamingResponse
from welldone.protocol.events import Failure
from welldone.protocol.fast_path import TransferFraming
from welldone.protocol.json_budget import STEPWISE_LIMIT_BYTES as _WHOLE_LIMIT_BYTES
from welldone.protocol.pipeline import StreamPipeline
from welldone.server.generation.observer import StreamObserver
from welldone.server.generation.token_cost import OutputTokenEstimator
from welldone.server.observe.timing import StreamTimes

_TURN_S = 0.005  # in which a whole reply is read before others have their turn; a step of it may take longer
_STATUS_BY_ERROR = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "overloaded_error": 503,
    **dict.fromkeys(OVERLOAD_CODES, 503),
}
"""Of errors that come as events, by their type or, in Responses and from our own servers, by their code; of all others
502."""
_RETRY_AFTER_S = 1.0  # before another try, where an event says that there is too much to do: it cannot say how long
_SSE_TYPE = "text/event-stream"
_KEEP_ALIVE_FACTOR = 6
"""How often `first_byte_s` may pass without content while a server shows that it lives: an hour, by its default."""
_FRAME_ENDS = (b"\n\n", b"\r\n\r\n")
_OK = 200


class AttemptListener(Protocol):
    """Who hears a part: the answer that it belongs to."""

    param: str
    """What a request that is too long has too much of."""

    def on_accepted(self) -> None:
        """The server has begun with it."""

    def wake(self) -> None:
        """The silence that is allowed has changed."""

    def on_data(self, data: bytes, part: int) -> bool:
        """More of its stream; whether the part has said something by now, and not only that it is there."""

    def on_full_body(self, data: bytes, part: int) -> Iterator[None]:
        """Its reply, which was not streamed; each step takes a turn."""

    def on_end(self, part: int) -> None:
        """It has ended as it should."""

    @property
    def has_content(self) -> bool:
        """Whether what was heard last had something of the answer in it, and not only a role or a sign of life."""

    @property
    def has_backpressure(self) -> bool:
        """Whether the client takes less than it is given."""

    def is_done(self, part: int) -> bool:
        """Whether the stream has said that it is at its end."""

    def fail(self, error: Exception) -> None:
        """A mistake of ours."""


class _ReplyKind(Enum):
    UNKNOWN = auto()
    STREAM = auto()
    FULL_BODY = auto()
    ERROR = auto()


class _FastPathTarget(NamedTuple):
    """Where plain text goes."""

    pipeline: StreamPipeline
    push: Callable[[bytes], None]
    record_chunk: Callable[[], float]


class UpstreamAttempt:
    """A part that is asked for. Who asks again makes a new one: what the old one still hears is lost."""

    def __init__(self, listener: AttemptListener, part_index: int, *, attempt_number: int = 1) -> None:
        self.part_index = part_index
        self.attempt_number = attempt_number
        """Which one it is: after the first it gets a connection of its own."""
        self.is_running = False
        self.is_sent = False
        """Whether the request has gone out."""
        self.has_received = False
        """Whether some bytes of its stream were heard, perhaps half a frame."""
        self.has_begun = False
        """Whether something of its answer was heard."""
        self.has_ended = False
        self.last_received_at = 0.0
        """When it last sent something, be it a sign of life."""
        self._last_content_at = 0.0  # when it last sent some of the answer; at first, when it was asked
        self._has_content = False  # some of the answer came: text, thoughts, a call, an end
        self.last_sent_at = 0.0
        """When something of it last went out without a detour."""
        self.output_estimate = OutputTokenEstimator()
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._lease: BackendLease | None = None
        self._exchange: Exchange | None = None
        self._observer: StreamObserver | None = None
        self._fast_path: _FastPathTarget | None = None
        self._is_between_frames = True  # no frame has begun and not ended: what begins with a colon now is a comment
        self._reply_kind = _ReplyKind.UNKNOWN
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._buffer = bytearray()  # of what is not streamed
        self._result: asyncio.Future[AttemptFailure | None] = self._loop.create_future()
        self._unsent_bytes = 0  # of the request, while there is no exchange
        self._steps: Iterator[None] | None = None  # in which a whole reply is read; they hold us
        self._timer: asyncio.TimerHandle | None = None  # it holds us, and with us the request

    @property
    def is_billable(self) -> bool:
        """Whether a server has worked on it, or may have: it was sent, and neither refused nor lost before a reply."""
        if not self.is_sent:
            return False
        trouble = self._result.result() if self._result.done() else None
        return trouble is None or self._status == _OK or trouble.outcome == OUTCOME_TIMEOUT

    @property
    def silence_limit_s(self) -> float:
        """How long it may be silent. While it reads its prompt, silence is no sign of trouble: also after a role, which
        some servers send at once."""
        if self._lease is None:
            return 0.0
        return self._lease.idle_s if self._has_content else self._lease.first_byte_s

    @property
    def deadline(self) -> float:
        """When it is given up: after silence, or after signs of life (comments, empty chunks) without content."""
        if self._lease is None:
            return self.last_received_at
        said_at = max(self._last_content_at, self.last_sent_at)
        times = 1 if self._has_content else _KEEP_ALIVE_FACTOR
        life_s = max(self._lease.idle_s, times * self._lease.first_byte_s)
        return min(self.last_received_at + self.silence_limit_s, said_at + life_s)

    async def run(
        self,
        lease: BackendLease,
        path: str,
        body: bytes,
        observer: StreamObserver | None,
        headers: Iterable[tuple[str, str]],
    ) -> AttemptFailure | None:
        """Ask for it, and wait until all of it was heard; what went wrong, if something did."""
        self._lease, self._observer = lease, observer
        self._unsent_bytes = len(body)
        self.is_running = True
        self.last_received_at = self._last_content_at = time.monotonic()
        self._listener.wake()  # from now on there is a limit to the silence
        try:
            self._exchange = await lease.send(
                lease.address,
                "POST",
                lease.path_prefix + path,
                self,
                body=body,
                accept=_SSE_TYPE,
                headers=headers,
                is_fresh=self.attempt_number > 1,
            )
            self.is_sent = True
            if self._listener.has_backpressure:
                self.pause()  # the others are paused, and it goes on with them
        except HttpClientError as error:
            self._settle(connection_failure(error))
        del body
        self._unsent_bytes = 0
        if self._result.done():
            self.close()  # the reply came, and was no good, before we had the exchange in hand
        trouble = await self._result
        self.is_running = False
        return trouble

    @property
    def pending_body_bytes(self) -> int:
        """What of its request the server has not taken yet."""
        return self._unsent_bytes if self._exchange is None else self._exchange.unsent_bytes

    def enable_fast_path(self, pipeline: StreamPipeline, stream: StreamingResponse, times: StreamTimes) -> None:
        """The client's stream is open, and has no other part: from now on plain text goes there without a detour."""
        exchange = self._exchange
        if self._fast_path is None and self._observer is None and exchange is not None and exchange.is_chunked:
            pipeline.enable_fast_path(TransferFraming(split_chunk_framing, stream.chunk_framing))
            stream.on_disconnect(self._disable_fast_path)
            self._fast_path = _FastPathTarget(pipeline, stream.write_framed, times.record_chunk)
            exchange.fast_path = self._forward_fast

    def _disable_fast_path(self) -> None:
        self._fast_path = None

    def close(self) -> None:
        """Leave the server."""
        self._fast_path = self._steps = None
        self._cancel_timer()
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None  # it holds us: rings are left to the collector, which stops all for a while
        if self._observer is not None and not self._result.done():
            self._observer.end(CLIENT_DISCONNECTED.error.message, is_aborted=True)

    def time_out(self) -> None:
        """It was silent for too long."""
        self.fail(timeout_failure(self.silence_limit_s))

    def finish(self) -> None:
        """Take the stream as whole, if it has not ended yet: some servers leave it open after its end."""
        if not self._result.done():
            self.end(None)
            self.close()

    def finish_after(self, seconds: float) -> None:
        """Take the stream as whole if it has not ended by then, and before its silence is taken for a failure. What a
        slow client holds up is still to be heard."""
        if self._lease is not None:
            seconds = min(seconds, self._lease.idle_s / 2)

        def finish() -> None:
            if self._listener.has_backpressure:
                self.finish_after(seconds)
            else:
                self.finish()

        self._schedule(seconds, finish)

    def _schedule(self, seconds: float, callback: Callable[[], None]) -> None:
        self._cancel_timer()
        if not self._result.done():
            self._timer = self._loop.call_later(seconds, callback)

    def _cancel_timer(self) -> None:
        """What was to be done later is not."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pause(self) -> None:
        """Hear no more for now."""
        if self._exchange is not None:
            self._exchange.pause()

    def resume(self) -> None:
        """Hear on."""
        self.last_received_at = self._last_content_at = time.monotonic()  # the silence was not the server's
        if self._exchange is not None:
            self._exchange.resume()

    # What the exchange calls.

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The reply begins."""
        if self._result.done():
            return
        self._status, self._headers = status, headers
        if self._observer is not None:
            self._observer.head(status, headers)
        if status != _OK:
            self._reply_kind = _ReplyKind.ERROR
            self._schedule(ERROR_BODY_TIMEOUT_S, self._fail_with_status)
        elif headers.get("content-encoding", "identity").lower() != "identity":
            self.fail(_invalid_reply(error_mapping.compressed_reply()))
        elif headers.get("content-type", _SSE_TYPE).lower().startswith(_SSE_TYPE):
            self._reply_kind = _ReplyKind.STREAM
            self._listener.on_accepted()

    def _forward_fast(self, data: bytes) -> bool:
        """A chunk as it came: the hot path, without a detour from socket to socket. Whether it may be taken."""
        flow = self._fast_path
        if flow is None or (short := flow.pipeline.try_fast_path) is None or (sent := short(data)) is None:
            return False
        flow.push(sent)
        self.output_estimate.chunks += 1
        self.output_estimate.bytes += len(data)
        self.last_received_at = self.last_sent_at = flow.record_chunk()
        return True

    def data(self, data: bytes) -> None:
        """More of it."""
        if self._observer is not None:
            self._observer.data(data)
        if self._result.done():
            return
        self.output_estimate.add(data)
        self.last_received_at = time.monotonic()
        if self._reply_kind is not _ReplyKind.STREAM:
            self._buffer_data(data)
        elif not (self._is_between_frames and _is_comment_only(data)):  # of signs of life we make our own
            self._is_between_frames = data.endswith(_FRAME_ENDS)
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        """More of a stream."""
        self.has_received = True
        try:
            has_begun = self._listener.on_data(data, self.part_index)
        except Exception as error:  # noqa: BLE001 - a mistake of ours ends this answer, and is logged
            self._listener.fail(error)
            return
        self.has_begun = self.has_begun or has_begun
        if self._listener.has_content:
            self._last_content_at = self.last_received_at
            if not self._has_content:
                self._has_content = True
                self._listener.wake()  # from now on less silence is allowed

    def end(self, error: HttpClientError | None) -> None:
        """It has ended."""
        if self._result.done():
            return
        if self._observer is not None:
            self._observer.end(None if error is None else str(error))
        if error is not None and not (
            self._reply_kind is _ReplyKind.STREAM and self._listener.is_done(self.part_index)
        ):
            self._fail_disconnected(error)
        elif self._reply_kind is _ReplyKind.ERROR:
            self._fail_with_status()
        elif self._reply_kind is _ReplyKind.STREAM:
            self._complete()
        elif self._reply_kind is _ReplyKind.FULL_BODY:
            self._steps = self._listener.on_full_body(bytes(self._buffer), self.part_index)
            self._buffer.clear()
            self._read_in_steps()
        else:
            self.fail(_invalid_reply(error_mapping.empty_reply()))

    def _read_in_steps(self) -> None:
        """Read on in a whole reply, until the turn is over; others are served before the next."""
        steps = self._steps
        ends = time.monotonic() + _TURN_S
        try:
            for _ in steps or ():
                if self._result.done():
                    break
                if time.monotonic() > ends:
                    self.last_received_at = time.monotonic()  # the silence is not the server's
                    self._loop.call_soon(self._read_in_steps)
                    return
        except Exception as mistake:  # noqa: BLE001 - a mistake of ours ends this answer, and is logged
            self._listener.fail(mistake)
        if steps is not None and not self._result.done():
            self._complete()
        self._steps = None

    def _complete(self) -> None:
        self.has_ended = True
        try:
            self._listener.on_end(self.part_index)
        except Exception as mistake:  # noqa: BLE001 - a mistake of ours ends this answer, and is logged
            self._listener.fail(mistake)
        self._settle(None)

    def _buffer_data(self, data: bytes) -> None:
        """What is not streamed, or not known to be."""
        self._buffer += data
        if self._reply_kind is _ReplyKind.UNKNOWN:
            self._detect_reply_kind(data)
        if self._reply_kind is _ReplyKind.ERROR and len(self._buffer) > ERROR_LIMIT_BYTES:
            self._fail_with_status()
        elif len(self._buffer) > _WHOLE_LIMIT_BYTES:
            self.fail(_invalid_reply(error_mapping.reply_too_large()))

    def _detect_reply_kind(self, data: bytes) -> None:
        """Tell by its first byte what a reply is whose head does not say it."""
        start = data.lstrip()[:1]  # what was kept before has none
        if not start:
            return
        if start in b"{[":
            self._reply_kind = _ReplyKind.FULL_BODY
        elif start == b"<":
            self.fail(_invalid_reply(error_mapping.unrecognized_reply()))
        else:
            self._reply_kind = _ReplyKind.STREAM
            self._listener.on_accepted()
            kept, self._buffer = bytes(self._buffer), bytearray()
            self._receive(kept)

    def _fail_with_status(self) -> None:
        if self._result.done() or self._lease is None:
            return
        body, param = bytes(self._buffer), self._listener.param
        self.fail(status_failure(self._status, self._headers, body, param, self._lease.upstream))

    def _fail_disconnected(self, error: HttpClientError) -> None:
        is_ours = self._lease is not None and self._lease.upstream is None
        said = error_mapping.engine_died() if is_ours else error_mapping.upstream_disconnected(str(error))
        self._settle(AttemptFailure(said, "lost", is_stale=error.is_stale, is_disconnect=not self.has_begun))

    def fail(self, failure: AttemptFailure) -> None:
        """Hear no more of it."""
        self._settle(failure)
        self.close()

    def _settle(self, failure: AttemptFailure | None) -> None:
        """Tell it here and now: who waits for the part may be gone before its turn comes."""
        if self._result.done():
            return
        self._result.set_result(failure)
        self._cancel_timer()
        if self._lease is not None:
            self._lease.report(failure)
        if self._observer is not None:
            self._observer.end(None if failure is None else failure.error.message, is_aborted=True)


def _is_comment_only(data: bytes) -> bool:
    """Whether these are comments, and nothing else. One in which a chunk may be hidden is for the reader to judge."""
    is_said = data[:1] != b":" or data[-1:] != b"\n" or b'"choices"' in data
    return not is_said and all(line[:1] in (b"", b":") for line in data.splitlines())


def classify_failure(failure: Failure) -> AttemptFailure:
    """What a server's stream said, or showed, to be wrong."""
    status = _STATUS_BY_ERROR.get(failure.type) or _STATUS_BY_ERROR.get(failure.code or "", 502)
    wait_s = _RETRY_AFTER_S if status in (429, 503) else None
    error = ApiError(status, failure.message, param=failure.param, code=failure.code, retry_after_s=wait_s)
    return AttemptFailure(
        error,
        "garbage" if status == 502 else str(status),
        is_server_fault=status >= 500 and failure.code not in OVERLOAD_CODES,
        is_retryable=status != 400 and failure.code != QUEUE_TIMEOUT,
    )


def _invalid_reply(error: ApiError) -> AttemptFailure:
    return AttemptFailure(error, "garbage")
