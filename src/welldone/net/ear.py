"""The HTTP client of who listens closely: one request, and all that came back, byte for byte, with its times.

It listens to strangers, who may mean ill: every size and every wait is bounded, and what came before something went
wrong is kept. Redirects are not followed. It needs no library of others.
"""

import asyncio
import contextlib
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from typing import cast

import msgspec

from welldone.net.address import Address, check_line, check_path, context
from welldone.net.framing import LOST, Reading
from welldone.net.reasons import CONNECT_S, reason

WITHIN_S = 120.0
"""For one reply. All probes together should take less: 90 s with a small model on two cores."""
QUIET_S = 60.0
"""How long nothing may come: nginx gives up a server that is silent for so long."""
AFTER_DONE_S = 3.0
"""How long a body may stay open after `[DONE]`. Servers that end it need a thousandth of that."""
LIMIT_BYTES = 64 * 2**20
"""Of a body: some hundred thousand chunks, far beyond any answer that a probe asks for."""

_ARRIVALS_LIMIT = 2**16  # times that are kept; what comes later counts to the last one
_READ_BYTES = 65536
_TAIL_BYTES = 64  # more than `data: [DONE]` and the lines around it
_DONE = re.compile(rb"(?:\A|[\r\n])data: ?\[DONE\]\s*\Z")
_LEFT = "nobody listened any more"


class ListenError(Exception):
    """There is no connection. The message is a clause that names no address and no secret."""

    def __init__(self, message: str, *, is_untrusted: bool = False) -> None:
        super().__init__(message)
        self.is_untrusted = is_untrusted
        """There is a server, but its certificate is not trusted."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A reply, byte for byte, with the times at which it came: seconds from the end of the request."""

    status: int | None
    """None: no whole head came."""
    headers: tuple[tuple[str, str], ...]
    """As they were sent, in their order, also such as come twice."""
    body: bytes
    """Without the framing of HTTP, and unpacked where it came compressed with gzip or deflate."""
    pieces: tuple[int, ...] | None
    """How many bytes of the body each chunk of HTTP gave; None where it came without chunks."""
    is_complete: bool
    """The body ended as its framing says: with the last chunk, at its length, or with the connection without one."""
    head_s: float | None
    """When the head was whole."""
    arrivals: tuple[tuple[float, int], ...]
    """When more of the body came, and how many bytes of it were there then."""
    ended_s: float
    error: str | None
    """Why the listening ended before the reply was whole; None: it is whole, or we left."""
    is_left: bool = False
    """We left on purpose."""
    is_given_up: bool = False
    """We stopped reading, at the time limit or the size limit: the reply might have gone on."""
    is_timed_out: bool = False
    """It was the time limit."""


async def listen(
    address: Address,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    headers: Iterable[tuple[str, str | None]] = (),
    within_s: float = WITHIN_S,
    quiet_s: float = QUIET_S,
    after_done_s: float = AFTER_DONE_S,
    limit_bytes: int = LIMIT_BYTES,
    leave: Callable[[bytes], bool] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Recording:
    """Ask, and hear the reply to its end.

    A header of `headers` replaces one of the usual ones; None removes it. `leave` is asked with the body so far after
    each read, once the head is there: where it says yes, the connection is aborted at once.

    Raises:
        ListenError: there is no connection.
        ValueError: the path or a header cannot be sent.
    """
    request = _request(address, method, path, body, headers)
    patience = _Patience(within_s, quiet_s, after_done_s)
    line = _Line(request, Reading(method, limit_bytes), patience, leave, clock)
    try:
        await _connect(address, line)
        await line.over
    finally:
        line.close()
    return line.recording()


class _Patience(msgspec.Struct, frozen=True):
    """How long to wait for what."""

    within_s: float
    quiet_s: float
    after_done_s: float

    def limit(self, begun: float, heard: float, reading: Reading) -> tuple[float, str, bool]:
        """Until when to wait for the next byte, what to say then, and whether the reply might have gone on."""
        if reading.status is None:
            silence = [(begun + self.within_s, self.within_s), (heard + self.quiet_s, self.quiet_s)]
            when, limit_s = min(silence)
            return when, f"no reply within {limit_s:g} s", True
        limits = [
            (begun + self.within_s, f"the reply was not whole within {self.within_s:g} s", True),
            (heard + self.quiet_s, f"nothing came for {self.quiet_s:g} s", True),
        ]
        if _DONE.search(reading.body[-_TAIL_BYTES:]):
            limits.append((heard + self.after_done_s, "the body did not end after [DONE]", False))
        return min(limits)


class _Line(asyncio.Protocol):
    """A connection with one request and its reply."""

    def __init__(
        self,
        request: bytes,
        reading: Reading,
        patience: _Patience,
        leave: Callable[[bytes], bool] | None,
        clock: Callable[[], float],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._request = request
        self._reading = reading
        self._patience = patience
        self._leave = leave
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._begun = 0.0  # by the loop's clock, as the waits are
        self._sent_at: float | None = None
        self._head_at: float | None = None
        self._ended_at = 0.0
        self._arrivals: list[tuple[float, int]] = []
        self._is_left = False
        self._is_timed_out = False

    def close(self) -> None:
        """Leave at once."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def recording(self) -> Recording:
        """What was heard."""
        reading = self._reading
        # A reply may come before the request is sent whole: its times begin with it.
        begun = min(at for at in (self._sent_at, self._head_at, self._ended_at) if at is not None)
        return Recording(
            status=reading.status,
            headers=tuple(reading.headers) if reading.status is not None else (),
            body=bytes(reading.body),
            pieces=reading.pieces,
            is_complete=reading.is_complete,
            head_s=None if self._head_at is None else self._head_at - begun,
            arrivals=tuple((at - begun, size) for at, size in self._arrivals),
            ended_s=self._ended_at - begun,
            error=None if self._is_left else reading.error,
            is_left=self._is_left,
            is_given_up=self._is_timed_out or reading.is_beyond,
            is_timed_out=self._is_timed_out,
        )

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast("asyncio.Transport", transport)
        self._begun = self._loop.time()
        self._wait()
        self._transport.set_write_buffer_limits(0)  # so that it is said when the last byte is out
        self._transport.write(self._request)
        self._request = b""
        if not self._transport.get_write_buffer_size():
            self.resume_writing()

    def resume_writing(self) -> None:
        """The request is sent."""
        self._sent_at = self._clock()
        self._wait()

    def data_received(self, data: bytes) -> None:
        """More of the reply."""
        now = self._clock()
        before = len(self._reading.body)
        self._reading.feed(data)
        if self._head_at is None and self._reading.status is not None:
            self._head_at = now
        if len(self._reading.body) > before:
            if len(self._arrivals) >= _ARRIVALS_LIMIT:
                self._arrivals.pop()
            self._arrivals.append((now, len(self._reading.body)))
        if not self._reading.is_over and self._head_at is not None and self._leave is not None:
            self._is_left = self._leave(bytes(self._reading.body))
            if self._is_left:
                self._reading.end(_LEFT)
        if self._reading.is_over:
            self._settle()
        else:
            self._wait()

    def eof_received(self) -> None:
        """The server says no more; whether it still listens does not matter."""
        self._reading.close()
        self._settle()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone; a reply may have come before."""
        if not self.over.done():
            self._hear_rest()
            self._reading.end(LOST)
            self._settle()

    def _hear_rest(self) -> None:
        """Take what the kernel still has.

        Who refuses a request before it is whole closes the connection, and our next byte to it is an error: asyncio
        then reads no more, although the refusal may be there.
        """
        transport = self._transport
        if transport is None or transport.get_extra_info("sslcontext") is not None:
            return  # of TLS there is no telling what the bytes say
        ours = transport.get_extra_info("socket").fileno()
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(ours)) as rest:
            rest.setblocking(False)
            while not self.over.done() and (data := rest.recv(_READ_BYTES)):
                self.data_received(data)

    def _wait(self) -> None:
        """Wait for the next byte, for a while."""
        if self._timer is not None:
            self._timer.cancel()
        when, why, is_timed_out = self._patience.limit(self._begun, self._loop.time(), self._reading)
        self._timer = self._loop.call_at(when, self._give_up, why, is_timed_out)

    def _give_up(self, why: str, is_timed_out: bool) -> None:
        self._is_timed_out = is_timed_out
        self._reading.end(why)
        self._settle()

    def _settle(self) -> None:
        if not self.over.done():
            self._ended_at = self._clock()
            self.over.set_result(None)
            self.close()


async def _connect(address: Address, line: _Line) -> None:
    loop = asyncio.get_running_loop()
    tls = None if address.tls is None else context(address.tls)
    try:
        async with asyncio.timeout(CONNECT_S):
            if address.socket is not None:
                await loop.create_unix_connection(lambda: line, address.socket)
            else:
                await loop.create_connection(lambda: line, address.host, address.port, ssl=tls)
    except OSError as error:
        raise ListenError(reason(error), is_untrusted=isinstance(error, ssl.SSLCertVerificationError)) from None


def _request(
    address: Address, method: str, path: str, body: bytes | None, headers: Iterable[tuple[str, str | None]]
) -> bytes:
    """The request, with the headers that the SDKs of OpenAI send."""
    check_path(address.prefix + path)
    usual: list[tuple[str, str | None]] = [
        ("Host", address.authority),
        ("User-Agent", "welldone"),
        ("Accept", "application/json"),
        ("Accept-Encoding", "gzip, deflate"),
        ("Connection", "keep-alive"),
        ("Authorization", None if address.key is None else f"Bearer {address.key}"),
        ("Content-Type", None if body is None else "application/json"),
        ("Content-Length", None if body is None else str(len(body))),
    ]
    fields = {name.lower(): (name, value) for name, value in (*usual, *address.headers, *headers)}
    lines = [f"{name}: {value}" for name, value in fields.values() if value is not None]
    lines.insert(0, f"{method} {address.prefix}{path} HTTP/1.1")
    for line in lines:
        check_line(line)
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")
