"""Hears one reply: its head, its end, and, where it is a stream, when each part of the answer came.

The clock is read once for each read of the socket, before anything is made of its bytes: what this costs is not the
server's.
"""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from welldone.bench.dialects.ear import SHOWN, Ear
from welldone.bench.record import End, Record
from welldone.drawing.texts import in_a_line
from welldone.net.outbound import OutboundError

_ERROR_LIMIT_BYTES = 4096  # of a refusal that is read for its message
_MOST_CHUNKS = 1_000_000  # of an answer: the longest contexts of today hold a million tokens
_LINGER_S = 0.1
"""How long the end of the reply is waited for after the answer's: it comes with it, or soon, and the connection can be
used again then. Who does not send it holds up a user for so long."""


class Listener:
    """The receiver of one reply. `over` is set when it has ended, however it did."""

    def __init__(self, record: Record, now: Callable[[], float], ear: Ear) -> None:
        self.record = record
        self.ear = ear
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_stale = False
        """The connection had been used before and was dead: the request may be sent again."""
        self._now = now
        self._error = bytearray()
        self._kind = ""
        self._is_stream = False
        self._is_settled = False
        self._done_s: float | None = None
        self._lingering: asyncio.TimerHandle | None = None

    # What the exchange calls.

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The reply begins."""
        self.record.head_s = self._now()
        self.record.status = status
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        self._kind = kind or "nothing"
        self._is_stream = status < 400 and kind == "text/event-stream"

    def data(self, data: bytes) -> None:
        """More of it."""
        now = self._now()
        if self._is_settled:
            return
        if self._is_stream:
            self.ear.feed(data, now)
            self._look_for_end(now)
            if len(self.record.times) > _MOST_CHUNKS:
                self.settle(End.BROKEN, f"an answer of more than {_MOST_CHUNKS:,} chunks")
        elif len(self._error) < _ERROR_LIMIT_BYTES:
            self._error += data[:_ERROR_LIMIT_BYTES]

    def _look_for_end(self, now: float) -> None:
        """After an error nothing counts, and after its end clients have left: some servers close much later."""
        if self.ear.failure is not None:
            self.end(None)
        elif self._done_s is None and self.ear.is_done:
            self._done_s = now
            self._lingering = asyncio.get_running_loop().call_later(_LINGER_S, self.end, None)

    def end(self, error: OutboundError | None) -> None:
        """It has ended."""
        now = self._now()
        if self._is_settled:
            return
        self.is_stale = error is not None and error.is_stale
        if self._is_stream:
            self.ear.close(now)
        self.settle(*self._verdict(error))

    def settle(self, end: End, why: str = "") -> None:
        """Write down how it ended."""
        if self._is_settled:
            return
        self._is_settled = True
        if self._done_s is not None:  # whoever gave up waiting for more: the answer was whole
            end, why = self._verdict(None)
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        record = self.record
        record.ended_s = self._now() if self._done_s is None else self._done_s
        record.end, record.why = end, why
        record.rules = self.ear.rules
        if not self.over.done():  # who waits for it may have been cancelled, and it with them
            self.over.set_result(None)

    def _verdict(self, error: OutboundError | None) -> tuple[End, str]:
        status = self.record.status
        if status is None:
            return End.CUT, str(error or "no reply")
        if status >= 400:
            return End.REFUSED, f"{status}: {self._complaint()}"
        if not self._is_stream:
            return End.BROKEN, f"the reply is no stream but {self._kind}"[:SHOWN]
        if self.ear.failure is not None:
            return End.FAILED, self.ear.failure
        if self.ear.cut:
            return End.CUT, str(error or self.ear.cut)
        if not self.record.times and self.record.tool_s is None:
            return End.BROKEN, "the answer is empty"
        return End.OK, ""

    def _complaint(self) -> str:
        """What a refusal says, in a line."""
        try:
            said = msgspec.json.decode(bytes(self._error))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            said = None
        error = said.get("error", said) if isinstance(said, dict) else said
        message = error.get("message") if isinstance(error, dict) else error
        text = message if isinstance(message, str) else self._error.decode("utf-8", "replace")
        return in_a_line(text, SHOWN)
