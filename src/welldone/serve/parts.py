"""One part of an answer: an exchange with a server, from its first byte to its end, however that comes.

What the server sends is a stream, a whole reply, or a refusal. Its head says which; where the head is wrong, its first
byte does.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import NamedTuple, Protocol

from welldone.net.inbound import Stream
from welldone.net.outbound import Exchange, OutboundError, around_chunk
from welldone.serve import refusals
from welldone.serve.backends import Seat
from welldone.serve.charging import Received
from welldone.serve.errors import ApiError
from welldone.serve.refusals import BUSY, WAITED
from welldone.serve.taping import Taping
from welldone.serve.times import StreamTimes
from welldone.serve.troubles import ERROR_LIMIT_BYTES, ERROR_S, LEFT, TIMEOUT, Trouble, refused, timed_out, unreachable
from welldone.wire.budget import WHOLE_LIMIT_BYTES as _WHOLE_LIMIT_BYTES
from welldone.wire.events import Failure
from welldone.wire.lane import Framing
from welldone.wire.pipe import Pipe

_TURN_S = 0.005  # in which a whole reply is read before others have their turn; a step of it may take longer
_STATUSES = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "overloaded_error": 503,
    **dict.fromkeys(BUSY, 503),
}
"""Of errors that come as events, by their type or, in Responses and from our own servers, by their code; of all others
502."""
_WAIT_S = 1.0  # before another try, where an event says that there is too much to do: it cannot say how long
_SSE = "text/event-stream"
_LIFE = 6
"""How often `first_byte_s` may pass without content while a server shows that it lives: an hour, by its default."""
_FRAME_ENDS = (b"\n\n", b"\r\n\r\n")
_OK = 200


class Hearer(Protocol):
    """Who hears a part: the answer that it belongs to."""

    param: str
    """What a request that is too long has too much of."""

    def accepted(self) -> None:
        """The server has begun with it."""

    def wake(self) -> None:
        """The silence that is allowed has changed."""

    def heard(self, data: bytes, part: int) -> bool:
        """More of its stream; whether the part has said something by now, and not only that it is there."""

    def heard_whole(self, data: bytes, part: int) -> Iterator[None]:
        """Its reply, which was not streamed; each step takes a turn."""

    def ended(self, part: int) -> None:
        """It has ended as it should."""

    @property
    def has_content(self) -> bool:
        """Whether what was heard last had something of the answer in it, and not only a role or a sign of life."""

    @property
    def is_congested(self) -> bool:
        """Whether the client takes less than it is given."""

    def is_done(self, part: int) -> bool:
        """Whether the stream has said that it is at its end."""

    def fail(self, error: Exception) -> None:
        """A mistake of ours."""


class _Kind(Enum):
    UNKNOWN = auto()
    STREAM = auto()
    WHOLE = auto()
    REFUSAL = auto()


class _Flow(NamedTuple):
    """Where plain text goes."""

    pipe: Pipe
    push: Callable[[bytes], None]
    more: Callable[[], float]


class Part:
    """A part that is asked for. Who asks again makes a new one: what the old one still hears is lost."""

    def __init__(self, answer: Hearer, number: int, *, attempt: int = 1) -> None:
        self.number = number
        self.attempt = attempt
        """Which one it is: after the first it gets a connection of its own."""
        self.is_asked = False
        self.is_sent = False
        """Whether the request has gone out."""
        self.has_heard = False
        """Whether some bytes of its stream were heard, perhaps half a frame."""
        self.has_begun = False
        """Whether something of its answer was heard."""
        self.has_ended = False
        self.heard_at = 0.0
        """When it last sent something, be it a sign of life."""
        self._said_at = 0.0  # when it last sent some of the answer; at first, when it was asked
        self._has_content = False  # some of the answer came: text, thoughts, a call, an end
        self.sent_at = 0.0
        """When something of it last went out without a detour."""
        self.received = Received()
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._seat: Seat | None = None
        self._exchange: Exchange | None = None
        self._tape: Taping | None = None
        self._flow: _Flow | None = None
        self._is_between = True  # no frame has begun and not ended: what begins with a colon now is a comment
        self._kind = _Kind.UNKNOWN
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._kept = bytearray()  # of what is not streamed
        self._over: asyncio.Future[Trouble | None] = self._loop.create_future()
        self._unsent_bytes = 0  # of the request, while there is no exchange
        self._steps: Iterator[None] | None = None  # in which a whole reply is read; they hold us
        self._timer: asyncio.TimerHandle | None = None  # it holds us, and with us the request

    @property
    def is_charged(self) -> bool:
        """Whether a server has worked on it, or may have: it was sent, and neither refused nor lost before a reply."""
        if not self.is_sent:
            return False
        trouble = self._over.result() if self._over.done() else None
        return trouble is None or self._status == _OK or trouble.outcome == TIMEOUT

    @property
    def patience_s(self) -> float:
        """How long it may be silent. While it reads its prompt, silence is no sign of trouble: also after a role, which
        some servers send at once."""
        if self._seat is None:
            return 0.0
        return self._seat.idle_s if self._has_content else self._seat.first_byte_s

    @property
    def deadline(self) -> float:
        """When it is given up: after silence, or after signs of life (comments, empty chunks) without content."""
        if self._seat is None:
            return self.heard_at
        said_at = max(self._said_at, self.sent_at)
        times = 1 if self._has_content else _LIFE
        life_s = max(self._seat.idle_s, times * self._seat.first_byte_s)
        return min(self.heard_at + self.patience_s, said_at + life_s)

    async def ask(
        self, seat: Seat, path: str, body: bytes, tape: Taping | None, headers: Iterable[tuple[str, str]]
    ) -> Trouble | None:
        """Ask for it, and wait until all of it was heard; what went wrong, if something did."""
        self._seat, self._tape = seat, tape
        self._unsent_bytes = len(body)
        self.is_asked = True
        self.heard_at = self._said_at = time.monotonic()
        self._answer.wake()  # from now on there is a limit to the silence
        try:
            self._exchange = await seat.send(
                seat.address,
                "POST",
                seat.base + path,
                self,
                body=body,
                accept=_SSE,
                headers=headers,
                is_fresh=self.attempt > 1,
            )
            self.is_sent = True
            if self._answer.is_congested:
                self.pause()  # the others are paused, and it goes on with them
        except OutboundError as error:
            self._settle(unreachable(error))
        del body
        self._unsent_bytes = 0
        if self._over.done():
            self.close()  # the reply came, and was no good, before we had the exchange in hand
        trouble = await self._over
        self.is_asked = False
        return trouble

    @property
    def held_bytes(self) -> int:
        """What of its request the server has not taken yet."""
        return self._unsent_bytes if self._exchange is None else self._exchange.unsent_bytes

    def flow(self, pipe: Pipe, stream: Stream, times: StreamTimes) -> None:
        """The client's stream is open, and has no other part: from now on plain text goes there without a detour."""
        exchange = self._exchange
        if self._flow is None and self._tape is None and exchange is not None and exchange.is_chunked:
            pipe.take_short_way(Framing(around_chunk, stream.frame))
            stream.when_lost(self._stop_flow)
            self._flow = _Flow(pipe, stream.push, times.more)
            exchange.shortcut = self._take

    def _stop_flow(self) -> None:
        self._flow = None

    def close(self) -> None:
        """Leave the server."""
        self._flow = self._steps = None
        self._forget()
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None  # it holds us: rings are left to the collector, which stops all for a while
        if self._tape is not None and not self._over.done():
            self._tape.end(LEFT.error.message, is_left=True)

    def time_out(self) -> None:
        """It was silent for too long."""
        self.give_up(timed_out(self.patience_s))

    def finish(self) -> None:
        """Take the stream as whole, if it has not ended yet: some servers leave it open after its end."""
        if not self._over.done():
            self.end(None)
            self.close()

    def finish_after(self, seconds: float) -> None:
        """Take the stream as whole if it has not ended by then, and before its silence is taken for a failure. What a
        slow client holds up is still to be heard."""
        if self._seat is not None:
            seconds = min(seconds, self._seat.idle_s / 2)

        def finish() -> None:
            if self._answer.is_congested:
                self.finish_after(seconds)
            else:
                self.finish()

        self._do_after(seconds, finish)

    def _do_after(self, seconds: float, do: Callable[[], None]) -> None:
        self._forget()
        if not self._over.done():
            self._timer = self._loop.call_later(seconds, do)

    def _forget(self) -> None:
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
        self.heard_at = self._said_at = time.monotonic()  # the silence was not the server's
        if self._exchange is not None:
            self._exchange.resume()

    # What the exchange calls.

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The reply begins."""
        if self._over.done():
            return
        self._status, self._headers = status, headers
        if self._tape is not None:
            self._tape.head(status, headers)
        if status != _OK:
            self._kind = _Kind.REFUSAL
            self._do_after(ERROR_S, self._refuse)
        elif headers.get("content-encoding", "identity").lower() != "identity":
            self.give_up(_garbage(refusals.encoded()))
        elif headers.get("content-type", _SSE).lower().startswith(_SSE):
            self._kind = _Kind.STREAM
            self._answer.accepted()

    def _take(self, data: bytes) -> bool:
        """A chunk as it came: the hot path, without a detour from socket to socket. Whether it may be taken."""
        flow = self._flow
        if flow is None or (short := flow.pipe.short) is None or (sent := short(data)) is None:
            return False
        flow.push(sent)
        self.received.chunks += 1
        self.received.bytes += len(data)
        self.heard_at = self.sent_at = flow.more()
        return True

    def data(self, data: bytes) -> None:
        """More of it."""
        if self._tape is not None:
            self._tape.data(data)
        if self._over.done():
            return
        self.received.add(data)
        self.heard_at = time.monotonic()
        if self._kind is not _Kind.STREAM:
            self._keep(data)
        elif not (self._is_between and _is_silence(data)):  # of signs of life we make our own
            self._is_between = data.endswith(_FRAME_ENDS)
            self._hear(data)

    def _hear(self, data: bytes) -> None:
        """More of a stream."""
        self.has_heard = True
        try:
            has_begun = self._answer.heard(data, self.number)
        except Exception as error:  # noqa: BLE001 - a mistake of ours ends this answer, and is logged
            self._answer.fail(error)
            return
        self.has_begun = self.has_begun or has_begun
        if self._answer.has_content:
            self._said_at = self.heard_at
            if not self._has_content:
                self._has_content = True
                self._answer.wake()  # from now on less silence is allowed

    def end(self, error: OutboundError | None) -> None:
        """It has ended."""
        if self._over.done():
            return
        if self._tape is not None:
            self._tape.end(None if error is None else str(error))
        if error is not None and not (self._kind is _Kind.STREAM and self._answer.is_done(self.number)):
            self._lose(error)
        elif self._kind is _Kind.REFUSAL:
            self._refuse()
        elif self._kind is _Kind.STREAM:
            self._end()
        elif self._kind is _Kind.WHOLE:
            self._steps = self._answer.heard_whole(bytes(self._kept), self.number)
            self._kept.clear()
            self._take_steps()
        else:
            self.give_up(_garbage(refusals.empty()))

    def _take_steps(self) -> None:
        """Read on in a whole reply, until the turn is over; others are served before the next."""
        steps = self._steps
        ends = time.monotonic() + _TURN_S
        try:
            for _ in steps or ():
                if self._over.done():
                    break
                if time.monotonic() > ends:
                    self.heard_at = time.monotonic()  # the silence is not the server's
                    self._loop.call_soon(self._take_steps)
                    return
        except Exception as mistake:  # noqa: BLE001 - a mistake of ours ends this answer, and is logged
            self._answer.fail(mistake)
        if steps is not None and not self._over.done():
            self._end()
        self._steps = None

    def _end(self) -> None:
        self.has_ended = True
        try:
            self._answer.ended(self.number)
        except Exception as mistake:  # noqa: BLE001 - a mistake of ours ends this answer, and is logged
            self._answer.fail(mistake)
        self._settle(None)

    def _keep(self, data: bytes) -> None:
        """What is not streamed, or not known to be."""
        self._kept += data
        if self._kind is _Kind.UNKNOWN:
            self._recognise(data)
        if self._kind is _Kind.REFUSAL and len(self._kept) > ERROR_LIMIT_BYTES:
            self._refuse()
        elif len(self._kept) > _WHOLE_LIMIT_BYTES:
            self.give_up(_garbage(refusals.too_large()))

    def _recognise(self, data: bytes) -> None:
        """Tell by its first byte what a reply is whose head does not say it."""
        start = data.lstrip()[:1]  # what was kept before has none
        if not start:
            return
        if start in b"{[":
            self._kind = _Kind.WHOLE
        elif start == b"<":
            self.give_up(_garbage(refusals.not_an_answer()))
        else:
            self._kind = _Kind.STREAM
            self._answer.accepted()
            kept, self._kept = bytes(self._kept), bytearray()
            self._hear(kept)

    def _refuse(self) -> None:
        if self._over.done() or self._seat is None:
            return
        body, param = bytes(self._kept), self._answer.param
        self.give_up(refused(self._status, self._headers, body, param, self._seat.upstream))

    def _lose(self, error: OutboundError) -> None:
        is_ours = self._seat is not None and self._seat.upstream is None
        said = refusals.died() if is_ours else refusals.lost(str(error))
        self._settle(Trouble(said, "lost", is_stale=error.is_stale, is_lost=not self.has_begun))

    def give_up(self, trouble: Trouble) -> None:
        """Hear no more of it."""
        self._settle(trouble)
        self.close()

    def _settle(self, trouble: Trouble | None) -> None:
        """Tell it here and now: who waits for the part may be gone before its turn comes."""
        if self._over.done():
            return
        self._over.set_result(trouble)
        self._forget()
        if self._seat is not None:
            self._seat.report(trouble)
        if self._tape is not None:
            self._tape.end(None if trouble is None else trouble.error.message, is_left=True)


def _is_silence(data: bytes) -> bool:
    """Whether these are comments, and nothing else. One in which a chunk may be hidden is for the reader to judge."""
    is_said = data[:1] != b":" or data[-1:] != b"\n" or b'"choices"' in data
    return not is_said and all(line[:1] in (b"", b":") for line in data.splitlines())


def from_failure(failure: Failure) -> Trouble:
    """What a server's stream said, or showed, to be wrong."""
    status = _STATUSES.get(failure.type) or _STATUSES.get(failure.code or "", 502)
    wait_s = _WAIT_S if status in (429, 503) else None
    error = ApiError(status, failure.message, param=failure.param, code=failure.code, retry_after_s=wait_s)
    return Trouble(
        error,
        "garbage" if status == 502 else str(status),
        is_fault=status >= 500 and failure.code not in BUSY,
        is_worth_another=status != 400 and failure.code != WAITED,
    )


def _garbage(error: ApiError) -> Trouble:
    return Trouble(error, "garbage")
