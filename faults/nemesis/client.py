"""A client that performs a `ClientAction`: sends a request, reads, perhaps slowly, perhaps disconnects."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

import msgspec

from faults.client import ClientConnection
from faults.nemesis import dialects
from faults.nemesis.client_actions import ClientAction
from faults.nemesis.history import ObservedReply
from faults.nemesis.upstream_actions import Json, UpstreamAction

LIMIT_S = 120.0
"""Longer than any answer on a busy machine: turns a hang into a failure."""
_SLOW_S = 0.02
_SLOW_BYTES = 4096
"""Receive buffer of a slow reader, so that it is soon full."""
_MORE_TOKENS = 3
"""Tokens that a client reads when it comes back, before it leaves again."""
_LEAVE_AFTER_S = 0.002
"""Delay per token before disconnecting, for a buffered reply."""
_EVENT_NUMBER = re.compile(rb"^id: (\d+)\n", re.MULTILINE)
_STAYS = ClientAction(UpstreamAction("none"), is_stream=False, reuses_connection=False)


class _LeftError(Exception):
    """The client disconnects."""


class Client:
    """One client, with a key of its own, one request at a time."""

    def __init__(self, port: int, key: str, moments: Iterator[int], body_of: Callable[[ClientAction], Json]) -> None:
        self._port = port
        self._key = key
        self._moments = moments
        self._body_of = body_of
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, action: ClientAction) -> ObservedReply:
        """Send a request and return everything received."""
        observed, body = ObservedReply(), bytearray()
        await self._exchange(action, observed, body, self._request(action))
        if observed.stream_id:
            await self._come_back(action, observed, body)
            observed.numbers = [int(number) for number in _EVENT_NUMBER.findall(body)]
        dialects.read("chat" if action.wrong == "no path" else action.dialect, observed, bytes(body))
        return observed

    async def _come_back(self, action: ClientAction, observed: ObservedReply, body: bytearray) -> None:
        """Get the rest of the stream after each disconnect, or stop its generation."""
        left = action.returns or 0
        while observed.has_left:
            rest, received = ObservedReply(), bytearray()
            path = f"/v1/streams/{observed.stream_id}"
            if not left:
                await self._exchange(_STAYS, rest, received, self._head("DELETE", path))
                if rest.status != 200:
                    observed.resume_errors = [*observed.resume_errors, f"DELETE: {rest.status} {bytes(received)!r}"]
                return
            left -= 1
            del body[body.rfind(b"\n\n") + 2 if b"\n\n" in body else 0 :]  # after the last complete event
            numbers = _EVENT_NUMBER.findall(body)
            headers = [f"Last-Event-ID: {numbers[-1].decode()}"] if numbers else []
            leaves_after = _MORE_TOKENS if left else None
            again = msgspec.structs.replace(action, leaves_after=leaves_after, reuses_connection=False)
            await self._exchange(again, rest, received, self._head("GET", path, *headers))
            observed.has_left, observed.is_closed, observed.beyond = rest.has_left, rest.is_closed, rest.beyond
            if observed.first_text_at is None:
                observed.first_text_at = rest.first_text_at
            if rest.status == 200:
                body += received
            elif rest.status not in (0, 204):
                observed.resume_errors = [*observed.resume_errors, f"resume: {rest.status} {bytes(received)!r}"]

    async def _exchange(self, action: ClientAction, observed: ObservedReply, body: bytearray, payload: bytes) -> None:
        """Send a request and add what is received."""
        try:
            reader, writer = await self._connect(action)
        except (ConnectionError, TimeoutError):
            return
        is_reusable = False
        try:
            async with asyncio.timeout(LIMIT_S):
                is_reusable = await self._talk(action, observed, body, reader, writer, payload)
        except _LeftError:
            observed.has_left = True
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError, ValueError):
            pass  # `is_closed` stays False
        finally:
            if is_reusable:
                self._connection = reader, writer
            else:
                ClientConnection(reader, writer).disconnect(is_reset=observed.has_left and action.is_rude)

    def close(self) -> None:
        """Close the idle connection."""
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    async def _connect(self, action: ClientAction) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        open_connection, self._connection = self._connection, None
        if open_connection is not None and not action.is_slow:
            return open_connection
        if open_connection is not None:
            open_connection[1].close()
        connection = socket.socket()
        connection.setblocking(False)
        if action.is_slow:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BYTES)
        try:
            async with asyncio.timeout(LIMIT_S):
                await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self._port))
                return await asyncio.open_connection(sock=connection, limit=_SLOW_BYTES if action.is_slow else 2**16)
        except BaseException:
            connection.close()
            raise

    async def _talk(
        self,
        action: ClientAction,
        observed: ObservedReply,
        body: bytearray,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        payload: bytes,
    ) -> bool:
        """Send and receive; return whether the connection can be reused."""
        if action.leaves_after == 0 and action.is_slow:
            writer.write(payload[: len(payload) // 2])
            raise _LeftError
        writer.write(payload)
        if action.leaves_after is None or (action.is_stream and action.leaves_after):
            return await self._receive(action, observed, body, reader)
        try:
            async with asyncio.timeout(_LEAVE_AFTER_S * action.leaves_after):
                return await self._receive(action, observed, body, reader)
        except TimeoutError:
            raise _LeftError from None

    async def _receive(
        self, action: ClientAction, observed: ObservedReply, body: bytearray, reader: asyncio.StreamReader
    ) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        observed.status = int(head.removeprefix(b"http/1.1 ")[:3])
        observed.is_stream = b"text/event-stream" in head or b"application/x-ndjson" in head
        if found := re.search(rb"\r\nx-welldone-stream-id: (\S+)", head):
            observed.stream_id = found[1].decode()
        sign = f"{action.order.marker}:".encode()
        async for data in _pieces(reader, head):
            body += data
            if action.is_slow:
                await asyncio.sleep(_SLOW_S)
            if sign in data or (observed.first_text_at is None and sign in body):
                if observed.first_text_at is None:
                    observed.first_text_at = next(self._moments)
                if action.is_stream and action.leaves_after and body.count(sign) >= action.leaves_after:
                    raise _LeftError
        observed.is_closed = True
        if action.reuses_connection and b"\r\nconnection: close" not in head:
            return True
        with suppress(ConnectionError):
            observed.beyond = await reader.read()
        return False

    def _request(self, action: ClientAction) -> bytes:
        body = self._body_of(action)
        if action.wrong == "no text":
            payload = {name: value for name, value in body.items() if name not in ("messages", "prompt", "input")}
            body = payload | (
                {"messages": 7} if action.dialect == "ollama" else {}
            )  # in Ollama's API, no messages means: load the model
        data = b'{"model": ' if action.wrong == "no json" else msgspec.json.encode(body)
        key = "wd-nobody-has-this-key-0" if action.wrong == "wrong key" else self._key
        head = self._head(
            "POST",
            "/v1/nowhere" if action.wrong == "no path" else dialects.PATHS[action.dialect],
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
            *(["Content-Encoding: gzip"] if action.wrong == "packed" else []),
            *(["x-welldone-resume: 1"] if action.returns is not None else []),
            key="" if action.wrong == "no key" else key,
            is_kept=action.reuses_connection,
        )
        return head + data

    def _head(self, method: str, path: str, *headers: str, key: str | None = None, is_kept: bool = False) -> bytes:
        """The head of a request, with the key of the client unless another one is given."""
        key = self._key if key is None else key
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: 127.0.0.1:{self._port}",
            f"Connection: {'keep-alive' if is_kept else 'close'}",
            *([f"Authorization: Bearer {key}"] if key else []),
            *headers,
        ]
        return "\r\n".join([*lines, "", ""]).encode()


async def _pieces(reader: asyncio.StreamReader, head: bytes) -> AsyncIterator[bytes]:
    """Yield the body without chunked framing."""
    if head.startswith(b"http/1.1 204"):
        return
    if b"\r\ntransfer-encoding: chunked" in head:
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass  # trailers
    else:
        yield await reader.readexactly(int(head.partition(b"\r\ncontent-length:")[2].split(b"\r\n", 1)[0]))
