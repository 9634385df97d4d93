"""`RepairMiddleware` for ASGI applications (https://asgi.readthedocs.io/en/latest/specs/www.html)."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from welldone.asgi.response_repair import REQUEST_LIMIT_BYTES, AnswerMiddleware, ResponseRepair

ASGIScope: TypeAlias = MutableMapping[str, Any]
ASGIMessage: TypeAlias = MutableMapping[str, Any]
ASGIReceive: TypeAlias = Callable[[], Awaitable[ASGIMessage]]
ASGISend: TypeAlias = Callable[[ASGIMessage], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[ASGIScope, ASGIReceive, ASGISend], Awaitable[None]]

HEAD_DELAY_S = 1.0
"""Longest time that the head of a stream waits for the first event: the default of the gateway's `--early`."""


class RepairMiddleware(AnswerMiddleware[ASGIApp]):
    """Repairs the answers of an ASGI application: streams as they pass, whole replies and errors at their end.

    For the parameters see `AnswerMiddleware`.
    """

    async def __call__(self, scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        """Run the application for one connection."""
        endpoint = None
        if scope["type"] == "http":
            endpoint = self._find_endpoint(scope["method"], scope["path"])
        if endpoint is None:
            await self.app(scope, receive, send)
            return
        repair = ResponseRepair(self._settings, endpoint, scope["method"], scope["path"])
        exchange = _Exchange(repair, receive, send)
        try:
            await self.app(scope, exchange.receive, exchange.send)
            await exchange.end(is_failed=False)
        except Exception:
            # The client gets a complete stream, the server's log the exception.
            with contextlib.suppress(OSError):  # the client has disconnected
                await exchange.end(is_failed=True)
            raise
        finally:
            exchange.stop_timer()
            self._report(repair, is_complete=exchange.is_complete)
        self._require_valid(repair, is_complete=exchange.is_complete)


class _Exchange:
    """One request and its response."""

    def __init__(self, repair: ResponseRepair, receive: ASGIReceive, send: ASGISend) -> None:
        self.is_complete = False
        """Whether the application ended the response, and it was sent."""
        self._repair = repair
        self._receive = receive
        self._send = send
        self._request: list[bytes] | None = []
        self._request_bytes = 0
        self._has_whole_request = False
        self._start: ASGIMessage = {}
        self._is_head_sent = False
        self._is_open = False  # the head was sent completely
        self._timer: asyncio.TimerHandle | None = None  # opens a stream whose first event takes too long
        self._opening: asyncio.Task[None] | None = None
        self._is_over = False  # the response is complete, the client has disconnected, or nothing may be sent

    async def receive(self) -> ASGIMessage:
        """Pass the request on, and keep its body to read its fields."""
        message = await self._receive()
        if message["type"] == "http.request" and self._request is not None and not self._has_whole_request:
            body = message.get("body", b"")
            self._request.append(body)
            self._request_bytes += len(body)
            self._has_whole_request = not message.get("more_body", False)
            if self._request_bytes > REQUEST_LIMIT_BYTES:
                self._request = None
        elif message["type"] == "http.disconnect":
            self._is_over = True
        return message

    async def send(self, message: ASGIMessage) -> None:
        """Pass the response on, repaired."""
        feed = self._repair.feed
        if message["type"] == "http.response.body" and feed is not None:
            out = feed(message.get("body", b""))
            if message.get("more_body", False):
                if out:
                    await self._send_body(out, more_body=True)
                return
            out += self._repair.finish()
            await self._send_body(out, more_body=False)
            self.is_complete = self._is_over = True
        elif message["type"] == "http.response.start":
            request = b"".join(self._request) if self._request is not None and self._has_whole_request else None
            self._request = None
            self._start = message
            self._repair.start(message["status"], message.get("headers", ()), request)
            if self._repair.is_opening:
                self._start_timer()
            await self._send_head()
        else:
            if feed is not None and not self._is_head_sent:  # such as http.response.pathsend
                await self._open()
            await self._send(message)

    async def end(self, *, is_failed: bool) -> None:
        """Complete the response of an application that failed, or returned, before its end.

        If it failed before the head was sent, nothing is sent: the server answers with its own error.
        """
        if self._opening is not None:
            await self._opening
        if self._is_over or self._repair.feed is None or (is_failed and not self._is_head_sent):
            return
        self._is_over = True
        # An application that returns before the end of its response has broken it off too.
        broken_off = self._repair.fail(None if is_failed else "incomplete_stream") if self._is_head_sent else b""
        await self._send_body(broken_off or self._repair.finish("finish"), more_body=False)

    def stop_timer(self) -> None:
        """Stop the timer of the head."""
        if self._timer is not None:
            self._timer.cancel()

    def _start_timer(self) -> None:
        try:
            self._timer = asyncio.get_running_loop().call_later(HEAD_DELAY_S, self._open_late)
        except RuntimeError:  # not asyncio but trio, under hypercorn
            self._repair.open()

    def _open_late(self) -> None:
        self._opening = asyncio.ensure_future(self._open())

    async def _open(self) -> None:
        self._repair.open()
        await self._send_head()

    async def _send_head(self) -> None:
        head = self._repair.head
        if head is not None and not self._is_head_sent:
            self._is_head_sent = True
            await self._send({**self._start, "status": head.status, "headers": head.headers})

    async def _send_body(self, body: bytes, *, more_body: bool) -> None:
        if not self._is_open:
            self.stop_timer()
            if self._opening is not None:  # the head is being sent
                await self._opening
            await self._send_head()
            self._is_open = True
        await self._send({"type": "http.response.body", "body": body, "more_body": more_body})
