"""Hears one answer, and writes down when each part of it came. The core's reader says what the parts are.

The clock is read once for each read of the socket, before anything is made of its bytes: what this costs is not the
server's. Repair only notes which rules the stream breaks; what it would say instead nobody hears.
"""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from welldone.bench.quick import Quick
from welldone.bench.record import End, Record
from welldone.drawing.texts import in_a_line
from welldone.net.outbound import OutboundError
from welldone.wire.asked import Asked
from welldone.wire.events import (
    Event,
    Failure,
    Finish,
    Opening,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    Usage,
)
from welldone.wire.head import Endpoint, Head
from welldone.wire.notes import Notes
from welldone.wire.reader import Reader
from welldone.wire.repair import Repair

_NOBODY = Head("chatcmpl-bench", 0, "bench")
_ERROR_LIMIT_BYTES = 4096  # of a refusal that is read for its message
_SHOWN = 100  # characters of a message: many share a line of the report
_MOST_CHUNKS = 1_000_000  # of an answer: the longest contexts of today hold a million tokens
_LINGER_S = 0.1
"""How long the end of the reply is waited for after `[DONE]`: it comes with it, or soon, and the connection can be used
again then. Who does not send it holds up a user for so long."""


class Listener:
    """The receiver of one reply. `over` is set when it has ended, however it did."""

    def __init__(self, record: Record, now: Callable[[], float], asked: Asked) -> None:
        self.record = record
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_stale = False
        """The connection had been used before and was dead: the request may be sent again."""
        self.texts: list[str] = []
        """The visible answer, for who goes on with it."""
        self.unseen: list[str] = []
        """Thoughts, refusals and calls, which are tokens too."""
        self._now = now
        self._notes = Notes(Endpoint.CHAT)
        self._reader = Reader(Endpoint.CHAT, fallback=_NOBODY, asked=asked, notes=self._notes)
        self._repair = Repair(Endpoint.CHAT, asked=asked, notes=self._notes, mint=lambda: "call_bench")
        self._quick = Quick(self._reader, self._repair)
        self._error = bytearray()
        self._failure = ""
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
        self._is_stream = status < 400 and kind == "text/event-stream"
        if status < 400 and not self._is_stream:
            self._failure = f"the reply is no stream but {kind or 'nothing'}"[:_SHOWN]

    def data(self, data: bytes) -> None:
        """More of it."""
        now = self._now()
        if self._is_settled:
            return
        if self._is_stream:
            texts, data = self._quick.take(data)
            self.texts += texts
            self.record.times.extend([now] * len(texts))
            if data:
                self._read(data, now)
                self._look_for_end(now)
            if len(self.record.times) > _MOST_CHUNKS:
                self.settle(End.BROKEN, f"an answer of more than {_MOST_CHUNKS:,} chunks")
        elif len(self._error) < _ERROR_LIMIT_BYTES:
            self._error += data[:_ERROR_LIMIT_BYTES]

    def _look_for_end(self, now: float) -> None:
        """After an error nothing counts, and after `[DONE]` clients have left: some servers close much later."""
        if self._reader.has_failed:
            self.end(None)
        elif self._reader.is_done and self._done_s is None:
            self._done_s = now
            self._lingering = asyncio.get_running_loop().call_later(_LINGER_S, self.end, None)

    def end(self, error: OutboundError | None) -> None:
        """It has ended."""
        now = self._now()
        if self._is_settled:
            return
        self.is_stale = error is not None and error.is_stale
        if self._is_stream:
            self._read(self._quick.close(), now)
            self._take(self._reader.close(), now)
            self._repair.close(is_done=self._reader.is_done)
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
        record.rules = tuple(self._notes.counts())
        if not self.over.done():  # who waits for it may have been cancelled, and it with them
            self.over.set_result(None)

    # What is made of it.

    def _read(self, data: bytes, now: float) -> None:
        """Read what takes no short way, and learn from it."""
        events: list[Event] = []
        said: list[Event] = []
        frames = self._reader.frames(data)
        for frame in frames:
            said = self._reader.read(frame)
            events += said
        self._take(events + self._reader.check(), now)
        if frames:
            self._quick.learn(frames[-1].raw, said)

    def _take(self, events: list[Event], now: float) -> None:
        record = self.record
        for event in events:
            kind = type(event)
            if kind is Text:
                self.texts.append(event.text)  # type: ignore[union-attr]  # mypy does not follow type()
                record.times.append(now)
                if record.content_s is None:
                    record.content_s = now
            else:
                self._take_other(event, now)
        self._repair.feed(events)

    def _take_other(self, event: Event, now: float) -> None:
        record = self.record
        match event:
            case Opening():
                record.role_s = record.role_s or now
            case Reasoning(text=text):
                record.reasoning_s = record.reasoning_s or now
                record.times.append(now)
                self.unseen.append(text)
            case Refusal(text=text):
                record.content_s = record.content_s or now
                record.times.append(now)
                self.unseen.append(text)
            case ToolCall():
                record.tool_s = record.tool_s or now
            case ToolArguments(text=text):
                record.times.append(now)
                self.unseen.append(text)
            case Finish(reason=reason):
                record.finish = reason
            case Usage(prompt_tokens=prompt, completion_tokens=completion):
                # Who has not counted says 0: that is no number of tokens.
                record.prompt_tokens, record.tokens = prompt or record.prompt_tokens, completion or None
            case Failure(message=message):
                self._failure = " ".join(message.split())[:_SHOWN] or "an error"
            case _:
                pass  # signs of life, logprobs, fields of its own

    def _verdict(self, error: OutboundError | None) -> tuple[End, str]:
        status = self.record.status
        if status is None:
            return End.CUT, str(error or "no reply")
        if status >= 400:
            return End.REFUSED, f"{status}: {self._complaint()}"
        if not self._is_stream:
            return End.BROKEN, self._failure
        if self._reader.has_failed:
            return End.FAILED, self._failure
        if not (self._reader.is_done or self.record.finish):
            return End.CUT, str(error or "the stream ended without a finish_reason")
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
        return in_a_line(text, _SHOWN)
