"""The HTTP client: one request, and its reply pushed on as it comes, without a task between socket and socket.

Bytes go from `data_received` straight to the receiver. Who is slow to send them on pauses the reading, and the kernel's
buffers fill up to the server: nothing piles up here. Redirects are not followed, and nothing is unpacked.
"""

import asyncio
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypedDict, Unpack, cast

import httptools
import msgspec

from welldone.net.address import Address as Address
from welldone.net.address import Tls as Tls
from welldone.net.address import check_headers, check_line, check_path, context
from welldone.net.address import read_url as read_url
from welldone.net.reasons import CONNECT_S, is_our_fault, reason
from welldone.net.resolving import RESOLVER

_BESIDE_LIMIT_BYTES = 65536  # of a head with those of early hints, or of trailers; aiohttp and nginx refuse 8 to 32 KB
_TURN_BYTES = 8 * 1024
"""What one reply may say before others have their turn. uvloop reads up to 256 KB at once, and 32 times in a row: bytes
as odd as can be, which take 3 us each to mend, would silence all other streams for seconds."""
_NOT_HTTP = (httptools.HttpParserError, httptools.HttpParserUpgrade)
_SIZE = re.compile(rb"[0-9a-fA-F]{1,7}\r\n")
_REQUEST_TIMEOUT = 408
STALE_S = 1.0
"""A server that has closed an idle connection answers what is sent there with a reset, or with the 408 of its time-out,
within one round trip: 0.3 s around the world. One that took longer may have worked on the request."""
_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class OutboundError(Exception):
    """The server could not be reached, or its reply is no whole HTTP reply. The message names no address."""

    def __init__(self, message: str, *, is_stale: bool = False, is_our_fault: bool = False) -> None:
        super().__init__(message)
        self.is_our_fault = is_our_fault
        """This machine could not make a connection: the server is not to blame."""
        self.is_stale = is_stale
        """A connection that had been used before was lost at once, before any byte of the reply, or answered with the
        408 of an idle connection: the server had closed it and never read the request, which may be sent again."""


class Receiver(Protocol):
    """Who gets a reply, piece by piece. Nothing here may raise or wait."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The reply begins; names of headers are in lower case. Of a header that comes twice the first counts."""

    def data(self, data: bytes) -> None:
        """More of its body."""

    def end(self, error: OutboundError | None) -> None:
        """It has ended: whole, or with what went wrong. Called once, also where nothing else was."""


class Home(Protocol):
    """Where connections wait to be used again."""

    stale_s: float
    """How soon one that was closed while it waited shows it."""

    def take(self, address: Address) -> asyncio.Transport | None:
        """A connection that waits, if there is one."""

    def give_back(self, address: Address, transport: asyncio.Transport) -> None:
        """A connection whose reply was whole, and which may stay open."""

    def drop(self, address: Address) -> None:
        """One that had waited was dead: so are the others, most likely."""


class Message(TypedDict, total=False):
    """What a request may have beside its method and path."""

    body: bytes
    accept: str
    content_type: str
    headers: Iterable[tuple[str, str]]


class Exchange(asyncio.Protocol):
    """One request and its reply. The connection is its own until the reply is whole."""

    def __init__(self, request: bytes, receiver: Receiver, address: Address, home: Home | None = None) -> None:
        self._request = request
        self._receiver = receiver
        self._address = address
        self.home = home
        """Where the connection goes after the reply; without one it is closed."""
        self._bodies: list[bytes] = []
        self.on_body = self._bodies.append  # httptools calls it for each piece: no function of ours stands between
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._is_between = False  # the parser stands between two chunks of the body
        self.shortcut: Callable[[bytes], bool] | None = None
        """Gets a chunk of the body before the parser does, as it came, with its frame; tells whether it took it."""
        self._transport: asyncio.Transport | None = None
        self._late = bytearray()  # what was read, and waits for its turn
        self._turn: asyncio.Handle | None = None
        self._is_paused = False
        self._lost: tuple[Exception | None] | None = None  # the connection, while something waits for its turn
        self._headers: dict[str, str] = {}
        self._beside_bytes = 0
        self._has_head = False
        self._has_length = False
        self._stale_until = 0.0  # on a connection that had another request before
        self._is_timed_out = False  # by a server that closes an idle connection
        self._is_over = False
        self._is_whole = False
        self._may_stay = False

    def close(self) -> None:
        """Leave: the server sees at once that nobody listens. The receiver hears nothing more."""
        self._end()
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> None:
        self._is_over = True
        self._late.clear()
        if self._turn is not None:
            self._turn.cancel()  # it holds us
            self._turn = None
        self.shortcut = None
        self._parser = None  # it holds us, and we held it: rings are left to the collector, which stops all for a while

    @property
    def is_chunked(self) -> bool:
        """Whether the reply comes in chunks."""
        return "chunked" in self._headers.get("transfer-encoding", "")

    def pause(self) -> None:
        """Read no more for now."""
        self._is_paused = True
        if self._transport is not None and not self._is_over:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self._is_paused = False
        if self._late or self._lost is not None:
            self._wait_for_turn()
        elif self._transport is not None and not self._is_over:
            self._transport.resume_reading()

    def begin_on(self, transport: asyncio.Transport, stale_s: float) -> None:
        """Send the request on a connection that had another before."""
        self._stale_until = asyncio.get_running_loop().time() + stale_s
        transport.set_protocol(self)
        self.connection_made(transport)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by their class
        if self._is_over:
            self._transport.abort()
            return
        self._transport.write(self._request)
        self._request = b""

    def data_received(self, data: bytes) -> None:
        """Hand on what came: in one piece, or a little at a time."""
        if len(data) > _TURN_BYTES or self._late:
            self._late += data
            if self._transport is not None:
                self._transport.pause_reading()
            self._wait_for_turn()
        else:
            self._hear(data)

    @property
    def unsent_bytes(self) -> int:
        """What of the request the server has not taken yet."""
        return len(self._request) if self._transport is None else self._transport.get_write_buffer_size()

    def _wait_for_turn(self) -> None:
        if self._turn is None and not self._is_over:
            self._turn = asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        """Hand on a little of what was read; then others have their turn."""
        self._turn = None
        if self._is_paused:
            return
        data = bytes(self._late[:_TURN_BYTES])
        del self._late[:_TURN_BYTES]
        self._hear(data)
        if self._is_over or self._is_paused:
            return
        if self._late:
            self._wait_for_turn()
        elif self._lost is not None:
            self.connection_lost(*self._lost)
        elif self._transport is not None:
            self._transport.resume_reading()

    def _hear(self, data: bytes) -> None:
        shortcut = self.shortcut
        if shortcut is not None and self._is_between:
            if shortcut(data):
                return
            data = self._take_chunks(data, shortcut)
        if data:
            self._parse(data)

    def _take_chunks(self, data: bytes, shortcut: Callable[[bytes], bool]) -> bytes:
        """Hand on whole chunks that came together, as long as each is taken; what is left."""
        start = 0
        while size := _SIZE.match(data, start):
            end = size.end() + int(size[0], 16) + 2
            if end >= len(data) or not shortcut(data[start:end]):
                break
            start = end
        return data[start:]

    def _parse(self, data: bytes) -> None:
        if self._parser is None:
            return
        self._is_between = False
        error = None
        try:
            self._parser.feed_data(data)
        except _NOT_HTTP:
            self._may_stay = False
            error = OutboundError("the reply is not HTTP")
        if self._is_timed_out:
            self._finish_stale()
            return
        # What has begun after a chunk and is no whole line yet shows in that the data does not end with one.
        self._is_between = self._is_between and not self._is_whole and data.endswith(b"\r\n")
        if self._bodies:
            self._beside_bytes = 0
            body = self._bodies[0] if len(self._bodies) == 1 else b"".join(self._bodies)
            self._bodies.clear()
            if not self._is_over:
                self._receiver.data(body)
        else:
            self._beside_bytes += len(data)
            if self._beside_bytes > _BESIDE_LIMIT_BYTES:
                error = OutboundError("the head of the reply is too long")
        if self._is_whole:
            self._finish(None)
        elif error is not None:
            self._finish(error)

    def connection_lost(self, error: Exception | None) -> None:
        """The reply is over, whole or not."""
        if self._is_over:
            return
        if self._late:
            self._lost = (error,)
            return
        # Without a length the end of the connection is the end of the reply.
        if self._has_head and not self._has_length and error is None:
            self._finish(None)
            return
        if self._may_be_stale and not self._has_head and not self._beside_bytes:
            self._finish_stale()
            return
        self._finish(OutboundError("the connection was lost before the reply was whole"))

    @property
    def _may_be_stale(self) -> bool:
        return bool(self._stale_until) and asyncio.get_running_loop().time() < self._stale_until

    def _finish_stale(self) -> None:
        """The server had closed the connection before the request came."""
        if self.home is not None:
            self.home.drop(self._address)
        self._may_stay = False
        self._bodies.clear()
        self._finish(OutboundError("the connection was lost before the reply was whole", is_stale=True))

    # What httptools calls.

    def on_message_begin(self) -> None:
        """A reply begins; after the one that was asked for there is no other."""
        if self._is_whole:
            raise OutboundError("there is more than the reply")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the reply; after its body it is a trailer, which nobody here needs."""
        if not self._has_head:
            self._headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        status = 0 if self._parser is None else self._parser.get_status_code()
        if status < 200:
            self._headers = {}
            return
        if status == _REQUEST_TIMEOUT and self._may_be_stale:
            self._is_timed_out = True
            return
        self._has_head = True
        self._has_length = "content-length" in self._headers or "transfer-encoding" in self._headers
        self._receiver.head(status, self._headers)

    def on_chunk_header(self) -> None:
        """A chunk of the body begins."""
        self._is_between = False

    def on_chunk_complete(self) -> None:
        """A chunk of the body is whole."""
        self._is_between = True

    def on_message_complete(self) -> None:
        """The reply is whole."""
        self._is_whole = self._has_head
        self._may_stay = self._is_whole and self._parser is not None and self._parser.should_keep_alive()

    def _finish(self, error: OutboundError | None) -> None:
        if self._is_over:
            return
        transport = self._transport
        # A reply that came before the whole request was sent leaves the rest of it in the way of the next.
        is_clean = self._may_stay and not self._late
        if is_clean and self.home and transport and not transport.get_write_buffer_size():
            self._end()
            self._transport = None
            transport.resume_reading()
            self.home.give_back(self._address, transport)
        else:
            self.close()
        self._receiver.end(error)


def around_chunk(data: bytes) -> tuple[bytes, bytes] | None:
    """What stands before and after the content of a chunk; None where this is not one whole chunk with content."""
    line = _SIZE.match(data)
    size = 0 if line is None else int(line[0], 16)
    if line is None or not size or len(data) != line.end() + size + 2 or not data.endswith(b"\r\n"):
        return None
    return line[0], b"\r\n"


async def send(
    address: Address,
    method: str,
    path: str,
    receiver: Receiver,
    *,
    home: Home | None = None,
    is_fresh: bool = False,
    **message: Unpack[Message],
) -> Exchange:
    """Begin an exchange. The reply goes to the receiver. Without a home the connection ends with it.

    `is_fresh`: on a new connection. One that waits may be closed just now, and who asks again has met one that was.

    Raises:
        OutboundError: there is no connection.
        ValueError: the path or a header cannot be sent.
    """
    request = _request(address, method, path, is_last=home is None, **message)
    exchange = Exchange(request, receiver, address)
    transport = None if home is None or is_fresh else home.take(address)
    if home is not None and transport is not None:
        exchange.begin_on(transport, home.stale_s)
    else:
        await _connect(address, exchange)
    # Not before: whoever is cancelled while it connects may have its reply already, and uvloop closes that connection
    # without a word to anybody.
    exchange.home = home
    return exchange


async def _connect(address: Address, exchange: Exchange) -> None:
    loop = asyncio.get_running_loop()
    tls = None if address.tls is None else context(address.tls)
    try:
        async with asyncio.timeout(CONNECT_S):
            if address.socket is not None:
                await loop.create_unix_connection(lambda: exchange, address.socket)
            else:
                await _connect_to(address, exchange, tls)
    except OSError as error:
        exchange.close()
        raise OutboundError(reason(error), is_our_fault=is_our_fault(error)) from None
    except asyncio.CancelledError:
        exchange.close()
        raise


async def _connect_to(address: Address, exchange: Exchange, tls: ssl.SSLContext | None) -> None:
    """Connect to the first address of a name that takes the connection."""
    loop = asyncio.get_running_loop()
    name = None if tls is None else address.host
    found = await RESOLVER.find(address.host)
    for place, host in enumerate(found, 1):
        try:
            await loop.create_connection(lambda: exchange, host, address.port, ssl=tls, server_hostname=name)
        except OSError:
            if place == len(found):
                raise
        else:
            return


class Fetched(msgspec.Struct, frozen=True):
    """A whole reply."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def fetch(
    address: Address,
    method: str,
    path: str,
    *,
    within_s: float,
    limit_bytes: int = 1 << 20,
    home: Home | None = None,
    is_fresh: bool = False,
    **message: Unpack[Message],
) -> Fetched:
    """A whole reply, bounded in time and size.

    Raises:
        OutboundError: there is none.
        ValueError: the path or a header cannot be sent.
    """
    gathered = _Gathered(limit_bytes)
    exchange: Exchange | None = None
    message.setdefault("accept", "application/json")
    try:
        async with asyncio.timeout(within_s):
            exchange = await send(address, method, path, gathered, home=home, is_fresh=is_fresh, **message)
            return await gathered.whole
    except TimeoutError:
        raise OutboundError(f"no reply within {within_s:g} s") from None
    finally:
        if exchange is not None:
            exchange.close()


class _Gathered:
    """A receiver that gathers a whole reply."""

    def __init__(self, limit_bytes: int) -> None:
        self.whole: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        self._limit = limit_bytes
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._body = bytearray()

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self._status, self._headers = status, headers

    def data(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > self._limit:
            self._settle(OutboundError(f"a reply of more than {self._limit:,} bytes"))

    def end(self, error: OutboundError | None) -> None:
        self._settle(error)

    def _settle(self, error: OutboundError | None) -> None:
        if self.whole.done():
            return
        if error is not None:
            self.whole.set_exception(error)
        else:
            self.whole.set_result(Fetched(self._status, self._headers, bytes(self._body)))


def _request(
    address: Address,
    method: str,
    path: str,
    *,
    is_last: bool,
    body: bytes = b"",
    accept: str = "*/*",
    content_type: str = "application/json",
    headers: Iterable[tuple[str, str]] = (),
) -> bytes:
    more = (*address.headers, *headers)
    check_headers(more)
    check_path(address.prefix + path)
    # Some front servers refuse a request that does not say who sends it.
    fields = {"Host": address.authority, "User-Agent": "welldone", "Accept": accept, "Accept-Encoding": "identity"}
    if is_last:
        fields["Connection"] = "close"
    if address.key is not None:
        fields["Authorization"] = f"Bearer {address.key}"
    fields.update((name.title(), value) for name, value in more)
    if body or method in _METHODS_WITH_BODY:
        fields |= {"Content-Type": content_type, "Content-Length": str(len(body))}
    lines = [f"{method} {address.prefix}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    for line in lines:
        check_line(line)
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body
