"""Hears one reply: its head, its end, and, where it is a stream, when each part of the answer came.

The clock is read once for each read of the socket, before anything is made of its bytes: what this costs is not the
server's.
"""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from welldone.bench.dialects.ear import MAX_MESSAGE_CHARS, StreamTimer
from welldone.bench.record import RequestOutcome, BenchRecord
from welldone.drawing.texts import single_line
from welldone.net.outbound import HttpClientError

_ERROR_LIMIT_BYTES = 4096  # of a refusal that is read for its message
_MAX_CHUNKS = 1_000_000  # of an answer: the longest contexts of today hold a million tokens
_LINGER_S = 0.1
"""How long the end of the reply is waited for after the answer's: it comes with it, or soon, and the connection can be
used again then. Who does not send it holds up a user for so long."""


class BenchReceiver:
    """The receiver of one reply. `over` is set when it has ended, however it did."""

    def __init__(self, record: BenchRecord, now: Callable[[], float], timer: StreamTimer) -> None:
        self.record = record
        self.timer = timer
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_stale = False
        """The connection had been used before and was dead: the request may be sent again."""
        self._now = now
        self._error_body = bytearray()
        self._content_type = ""
        self._is_stream = False
        self._is_settled = False
        self._done_s: float | None = None
        self._linger_timer: asyncio.TimerHandle | None = None

    # What the exchange calls.

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The reply begins."""
        self.record.head_s = self._now()
        self.record.status = status
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        self._content_type = kind or "nothing"
        self._is_stream = status < 400 and kind == "text/event-stream"

    def data(self, data: bytes) -> None:
        """More of it."""
        now = self._now()
        if self._is_settled:
            return
        if self._is_stream:
            self.timer.feed(data, now)
            self._check_end(now)
            if len(self.record.times) > _MAX_CHUNKS:
                self.settle(RequestOutcome.BROKEN, f"an answer of more than {_MAX_CHUNKS:,} chunks")
        elif len(self._error_body) < _ERROR_LIMIT_BYTES:
            self._error_body += data[:_ERROR_LIMIT_BYTES]

    def _check_end(self, now: float) -> None:
        """After an error nothing counts, and after its end clients have left: some servers close much later."""
        if self.timer.failure is not None:
            self.end(None)
        elif self._done_s is None and self.timer.is_done:
            self._done_s = now
            self._linger_timer = asyncio.get_running_loop().call_later(_LINGER_S, self.end, None)

    def end(self, error: HttpClientError | None) -> None:
        """It has ended."""
        now = self._now()
        if self._is_settled:
            return
        self.is_stale = error is not None and error.is_stale
        if self._is_stream:
            self.timer.close(now)
        self.settle(*self._outcome(error))

    def settle(self, outcome: RequestOutcome, error: str = "") -> None:
        """Write down how it ended."""
        if self._is_settled:
            return
        self._is_settled = True
        if self._done_s is not None:  # whoever gave up waiting for more: the answer was whole
            outcome, error = self._outcome(None)
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        record = self.record
        record.ended_s = self._now() if self._done_s is None else self._done_s
        record.outcome, record.error = outcome, error
        record.rules = self.timer.rules
        if not self.done.done():  # who waits for it may have been cancelled, and it with them
            self.done.set_result(None)

    def _outcome(self, error: HttpClientError | None) -> tuple[RequestOutcome, str]:
        status = self.record.status
        if status is None:
            return RequestOutcome.CUT, str(error or "no reply")
        if status >= 400:
            return RequestOutcome.REFUSED, f"{status}: {self._error_message()}"
        if not self._is_stream:
            return RequestOutcome.BROKEN, f"the reply is no stream but {self._content_type}"[:MAX_MESSAGE_CHARS]
        if self.timer.failure is not None:
            return RequestOutcome.FAILED, self.timer.failure
        if self.timer.truncation:
            return RequestOutcome.CUT, str(error or self.timer.truncation)
        if not self.record.times and self.record.tool_s is None:
            return RequestOutcome.BROKEN, "the answer is empty"
        return RequestOutcome.OK, ""

    def _error_message(self) -> str:
        """What a refusal says, in a line."""
        try:
            said = msgspec.json.decode(bytes(self._error_body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            said = None
        error = said.get("error", said) if isinstance(said, dict) else said
        message = error.get("message") if isinstance(error, dict) else error
        text = message if isinstance(message, str) else self._error_body.decode("utf-8", "replace")
        return single_line(text, MAX_MESSAGE_CHARS)
