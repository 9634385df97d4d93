"""Server for an ASGI application without a socket: its connections are in memory, for the HTTP clients of this package.

It behaves like uvicorn: one HTTP chunk for each body message, `http.disconnect` after the client has left, status 500
for an exception before the head, and a lost connection for an exception after it. It understands only what the clients
of this package send: one HTTP/1.1 request for each connection, with a Content-Length.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Self, TypeAlias
from urllib.parse import unquote

from welldone.http.address import BODILESS_STATUSES, PHRASES, Address

ASGIEvent: TypeAlias = MutableMapping[str, Any]
ASGIApplication: TypeAlias = Callable[
    [ASGIEvent, Callable[[], Awaitable[ASGIEvent]], Callable[[ASGIEvent], Awaitable[None]]], Awaitable[None]
]

LOG = logging.getLogger("welldone.asgi_server")
_VERSION = {"version": "3.0", "spec_version": "2.3"}  # as uvicorn: the application listens for disconnects
_INTERNAL_ERROR = b"Internal Server Error"


class InProcessServer:
    """Runs an ASGI application with its lifespan in the event loop of the caller: `async with InProcessServer(app)`."""

    def __init__(self, app: ASGIApplication) -> None:
        self._app = app
        self._state: dict[str, Any] = {}
        self._lifespan: _Lifespan | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._lifespan = _Lifespan(self._app, self._state)
        await self._lifespan.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._lifespan is not None:
            await self._lifespan.stop()

    async def connect(self, address: Address, protocol: asyncio.Protocol) -> None:
        """Connect a client's protocol to the application."""
        scope = {
            "type": "http",
            "asgi": _VERSION,
            "http_version": "1.1",
            "scheme": "http" if address.tls is None else "https",
            "root_path": "",
            "client": ("127.0.0.1", 1),
            "server": (address.host, address.port),
            "state": self._state.copy(),
            "extensions": {},
        }
        protocol.connection_made(_Connection(protocol, lambda request: self._answer(scope, request)))

    def _answer(self, scope: ASGIEvent, request: "_Request") -> None:
        task = asyncio.create_task(request.run(self._app, scope))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class StartupFailedError(Exception):
    """The application failed while it started. The message is its reason."""


class _Lifespan:
    """Startup and shutdown of an application (https://asgi.readthedocs.io/en/latest/specs/lifespan.html)."""

    def __init__(self, app: ASGIApplication, state: dict[str, Any]) -> None:
        self._app = app
        self._state = state
        self._events: asyncio.Queue[ASGIEvent] = asyncio.Queue()
        self._answers: asyncio.Queue[ASGIEvent | None] = asyncio.Queue()  # None: the application returned
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the application. One that does not support the protocol is used without it."""
        self._task = asyncio.create_task(self._run())
        answer = await self._exchange("lifespan.startup")
        if answer is not None and answer["type"] == "lifespan.startup.failed":
            raise StartupFailedError(f"the application did not start: {answer.get('message') or 'no reason given'}")

    async def stop(self) -> None:
        """Stop the application."""
        if self._task is not None and not self._task.done():
            await self._exchange("lifespan.shutdown")
            await self._task

    async def _exchange(self, event: str) -> ASGIEvent | None:
        self._events.put_nowait({"type": event})
        return await self._answers.get()

    async def _run(self) -> None:
        scope = {"type": "lifespan", "asgi": _VERSION, "state": self._state}
        try:
            await self._app(scope, self._events.get, self._answers.put)
        except Exception as error:  # most often: it supports only HTTP
            LOG.debug("the application has no lifespan", exc_info=error)
        self._answers.put_nowait(None)


class _Connection(asyncio.Transport):
    """The client's end of a connection."""

    def __init__(self, protocol: asyncio.Protocol, answer: Callable[["_Request"], None]) -> None:
        super().__init__()
        self._protocol = protocol
        self._answer = answer
        self._request: _Request | None = None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the limits: nothing is buffered."""

    def get_write_buffer_size(self) -> int:
        """Return 0: what is written has been read."""
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send a complete request."""
        self._request = _Request(bytes(data), self._protocol)
        self._answer(self._request)

    def is_closing(self) -> bool:
        """Return whether the client has closed the connection."""
        return self._request is not None and self._request.has_disconnected

    def close(self) -> None:
        """Close the connection."""
        if self._request is not None:
            self._request.disconnect()

    abort = close


class _Request:
    """A request and its response."""

    def __init__(self, data: bytes, protocol: asyncio.Protocol) -> None:
        head, _, self._body = data.partition(b"\r\n\r\n")
        line, *fields = head.split(b"\r\n")
        method, target, _ = line.split(b" ", 2)
        path, _, query = target.partition(b"?")
        headers = (field.partition(b":") for field in fields)
        self._method = method.decode()
        self._scope = {
            "method": self._method,
            "path": unquote(path.decode("latin-1")),
            "raw_path": path,
            "query_string": query,
            "headers": [(name.strip().lower(), value.strip()) for name, _, value in headers],
        }
        self._protocol = protocol
        self._disconnected = asyncio.Event()
        self._is_received = False
        self._has_started = False
        self._has_body = True
        self._is_chunked = False
        self._is_complete = False

    @property
    def has_disconnected(self) -> bool:
        """Whether the client has closed the connection."""
        return self._disconnected.is_set()

    def disconnect(self) -> None:
        """Tell the application that the client has closed the connection."""
        self._disconnected.set()

    async def run(self, app: ASGIApplication, scope: ASGIEvent) -> None:
        """Answer the request."""
        try:
            await app({**scope, **self._scope}, self._receive, self._send)
        except Exception:
            LOG.exception("exception in the ASGI application (%s %s)", self._method, self._scope["path"])
        if not self._has_started:
            await self._send({"type": "http.response.start", "status": 500, "headers": [(b"connection", b"close")]})
            await self._send({"type": "http.response.body", "body": _INTERNAL_ERROR})
        if not self._is_complete and not self.has_disconnected:
            self._protocol.eof_received()

    async def _receive(self) -> ASGIEvent:
        if not self._is_received:
            self._is_received = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: ASGIEvent) -> None:
        if message["type"] == "http.response.start":
            self._has_started = True
            self._deliver(self._encode_head(message))
        elif message["type"] == "http.response.body" and not self._is_complete:
            body, is_last = bytes(message.get("body", b"")), not message.get("more_body", False)
            if self._is_chunked:
                body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"0\r\n\r\n" if is_last else b"")
            if self._has_body:
                self._deliver(body)
            if is_last:
                self._is_complete = True
                self._disconnected.set()
        if not self._is_complete:
            await asyncio.sleep(0)  # an application that never waits must not block the timers of the client

    def _deliver(self, data: bytes) -> None:
        if data and not self.has_disconnected:
            self._protocol.data_received(data)

    def _encode_head(self, message: ASGIEvent) -> bytes:
        status = int(message["status"])
        headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        self._has_body = self._method != "HEAD" and status not in BODILESS_STATUSES
        self._is_chunked = self._has_body and not any(name.lower() == b"content-length" for name, _ in headers)
        if self._is_chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        lines = [f"HTTP/1.1 {status} {PHRASES.get(status, '')}".encode(), *(b"%b: %b" % header for header in headers)]
        return b"\r\n".join(lines) + b"\r\n\r\n"
