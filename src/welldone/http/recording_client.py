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

from welldone.http.address import (
    CONNECT_TIMEOUT_S,
    Address,
    check_header_line,
    check_path,
    describe_connect_error,
    ssl_context,
)
from welldone.http.response_parser import CONNECTION_LOST, ResponseParser

RESPONSE_TIMEOUT_S = 120.0
"""For one reply. All probes together should take less: 90 s with a small model on two cores."""
IDLE_TIMEOUT_S = 60.0
"""How long nothing may come: nginx gives up a server that is silent for so long."""
AFTER_DONE_TIMEOUT_S = 3.0
"""How long a body may stay open after `[DONE]`. Servers that end it need a thousandth of that."""
BODY_LIMIT_BYTES = 64 * 2**20
"""Of a body: some hundred thousand chunks, far beyond any answer that a probe asks for."""

_ARRIVALS_LIMIT = 2**16  # times that are kept; what comes later counts to the last one
_READ_BYTES = 65536
_DONE_TAIL_BYTES = 64  # more than `data: [DONE]` and the lines around it
_DONE_EVENT = re.compile(rb"(?:\A|[\r\n])data: ?\[DONE\]\s*\Z")
_ABORTED = "nobody listened any more"


class ConnectError(Exception):
    """There is no connection. The message is a clause that names no address and no secret."""

    def __init__(self, message: str, *, is_untrusted: bool = False) -> None:
        super().__init__(message)
        self.is_untrusted = is_untrusted
        """There is a server, but its certificate is not trusted."""


class RecordedResponse(msgspec.Struct, frozen=True, kw_only=True):
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
    is_aborted: bool = False
    """We left on purpose."""
    is_abandoned: bool = False
    """We stopped reading, at the time limit or the size limit: the reply might have gone on."""
    is_timed_out: bool = False
    """It was the time limit."""


async def record_response(
    address: Address,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    headers: Iterable[tuple[str, str | None]] = (),
    timeout_s: float = RESPONSE_TIMEOUT_S,
    idle_timeout_s: float = IDLE_TIMEOUT_S,
    after_done_s: float = AFTER_DONE_TIMEOUT_S,
    limit_bytes: int = BODY_LIMIT_BYTES,
    leave: Callable[[bytes], bool] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> RecordedResponse:
    """Ask, and hear the reply to its end.

    A header of `headers` replaces one of the usual ones; None removes it. `leave` is asked with the body so far after
    each read, once the head is there: where it says yes, the connection is aborted at once.

    Raises:
        ListenError: there is no connection.
        ValueError: the path or a header cannot be sent.
    """
    request = _encode_request(address, method, path, body, headers)
    patience = _Timeouts(timeout_s, idle_timeout_s, after_done_s)
    line = _RecordingConnection(request, ResponseParser(method, limit_bytes), patience, leave, clock)
    try:
        await _connect(address, line)
        await line.done
    finally:
        line.close()
    return line.recorded()


class _Timeouts(msgspec.Struct, frozen=True):
    """How long to wait for what."""

    timeout_s: float
    idle_timeout_s: float
    after_done_s: float

    def next_deadline(self, started: float, last_activity: float, parser: ResponseParser) -> tuple[float, str, bool]:
        """Until when to wait for the next byte, what to say then, and whether the reply might have gone on."""
        if parser.status is None:
            silence = [
                (started + self.timeout_s, self.timeout_s),
                (last_activity + self.idle_timeout_s, self.idle_timeout_s),
            ]
            when, limit_s = min(silence)
            return when, f"no reply within {limit_s:g} s", True
        limits = [
            (started + self.timeout_s, f"the reply was not whole within {self.timeout_s:g} s", True),
            (last_activity + self.idle_timeout_s, f"nothing came for {self.idle_timeout_s:g} s", True),
        ]
        if _DONE_EVENT.search(parser.body[-_DONE_TAIL_BYTES:]):
            limits.append((last_activity + self.after_done_s, "the body did not end after [DONE]", False))
        return min(limits)


class _RecordingConnection(asyncio.Protocol):
    """A connection with one request and its reply."""

    def __init__(
        self,
        request: bytes,
        parser: ResponseParser,
        timeouts: _Timeouts,
        leave: Callable[[bytes], bool] | None,
        clock: Callable[[], float],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()
        self._request = request
        self._parser = parser
        self._timeouts = timeouts
        self._should_abort = leave
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._started = 0.0  # by the loop's clock, as the waits are
        self._sent_at: float | None = None
        self._head_at: float | None = None
        self._ended_at = 0.0
        self._arrivals: list[tuple[float, int]] = []
        self._is_aborted = False
        self._is_timed_out = False

    def close(self) -> None:
        """Leave at once."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def recorded(self) -> RecordedResponse:
        """What was heard."""
        reading = self._parser
        # A reply may come before the request is sent whole: its times begin with it.
        begun = min(at for at in (self._sent_at, self._head_at, self._ended_at) if at is not None)
        return RecordedResponse(
            status=reading.status,
            headers=tuple(reading.headers) if reading.status is not None else (),
            body=bytes(reading.body),
            pieces=reading.pieces,
            is_complete=reading.is_complete,
            head_s=None if self._head_at is None else self._head_at - begun,
            arrivals=tuple((at - begun, size) for at, size in self._arrivals),
            ended_s=self._ended_at - begun,
            error=None if self._is_aborted else reading.error,
            is_aborted=self._is_aborted,
            is_abandoned=self._is_timed_out or reading.is_over_limit,
            is_timed_out=self._is_timed_out,
        )

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast("asyncio.Transport", transport)
        self._started = self._loop.time()
        self._restart_timer()
        self._transport.set_write_buffer_limits(0)  # so that it is said when the last byte is out
        self._transport.write(self._request)
        self._request = b""
        if not self._transport.get_write_buffer_size():
            self.resume_writing()

    def resume_writing(self) -> None:
        """The request is sent."""
        self._sent_at = self._clock()
        self._restart_timer()

    def data_received(self, data: bytes) -> None:
        """More of the reply."""
        now = self._clock()
        before = len(self._parser.body)
        self._parser.feed(data)
        if self._head_at is None and self._parser.status is not None:
            self._head_at = now
        if len(self._parser.body) > before:
            if len(self._arrivals) >= _ARRIVALS_LIMIT:
                self._arrivals.pop()
            self._arrivals.append((now, len(self._parser.body)))
        if not self._parser.is_done and self._head_at is not None and self._should_abort is not None:
            self._is_aborted = self._should_abort(bytes(self._parser.body))
            if self._is_aborted:
                self._parser.fail(_ABORTED)
        if self._parser.is_done:
            self._finish()
        else:
            self._restart_timer()

    def eof_received(self) -> None:
        """The server says no more; whether it still listens does not matter."""
        self._parser.feed_eof()
        self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone; a reply may have come before."""
        if not self.done.done():
            self._drain_socket()
            self._parser.fail(CONNECTION_LOST)
            self._finish()

    def _drain_socket(self) -> None:
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
            while not self.done.done() and (data := rest.recv(_READ_BYTES)):
                self.data_received(data)

    def _restart_timer(self) -> None:
        """Wait for the next byte, for a while."""
        if self._timer is not None:
            self._timer.cancel()
        when, why, is_timed_out = self._timeouts.next_deadline(self._started, self._loop.time(), self._parser)
        self._timer = self._loop.call_at(when, self._on_timeout, why, is_timed_out)

    def _on_timeout(self, reason: str, is_timed_out: bool) -> None:
        self._is_timed_out = is_timed_out
        self._parser.fail(reason)
        self._finish()

    def _finish(self) -> None:
        if not self.done.done():
            self._ended_at = self._clock()
            self.done.set_result(None)
            self.close()


async def _connect(address: Address, connection: _RecordingConnection) -> None:
    loop = asyncio.get_running_loop()
    tls = None if address.tls is None else ssl_context(address.tls)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if address.socket is not None:
                await loop.create_unix_connection(lambda: connection, address.socket)
            else:
                await loop.create_connection(lambda: connection, address.host, address.port, ssl=tls)
    except OSError as error:
        raise ConnectError(
            describe_connect_error(error), is_untrusted=isinstance(error, ssl.SSLCertVerificationError)
        ) from None


def _encode_request(
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
        check_header_line(line)
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")
