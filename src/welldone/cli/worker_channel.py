"""Messages between the supervisor and a worker: a worker asks for a reload, the supervisor sends what to apply.

A message is encoded as MessagePack, after its length.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from welldone.server.reload import NewConfig, ReloadResult

_LENGTH = struct.Struct("!I")
_READ_BYTES = 65_536


class ReloadRequest(msgspec.Struct, frozen=True, tag=True):
    """A worker has received a request to reload."""

    number: int


class Applied(msgspec.Struct, frozen=True, tag=True):
    """A worker has applied a configuration."""

    problem: str | None
    """Why it could not; None if it did."""


class Finished(msgspec.Struct, frozen=True, tag=True):
    """A reload has ended."""

    result: ReloadResult
    requests: tuple[int, ...]
    """Requests of the worker that it answers."""


Message: TypeAlias = ReloadRequest | Applied | Finished | NewConfig


def _decode_path(expected_type: type, value: Any) -> object:  # noqa: ANN401 - msgspec's hook
    return Path(value) if expected_type is Path else value


_ENCODER = msgspec.msgpack.Encoder(enc_hook=str)  # paths are the only values without an encoding
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message, dec_hook=_decode_path)


def _encode(message: Message) -> bytes:
    data = _ENCODER.encode(message)
    return _LENGTH.pack(len(data)) + data


class SupervisorEnd:
    """The end of the supervisor, which has no event loop. A worker that does not read does not block it."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._received = bytearray()
        self._unsent = bytearray()

    def fileno(self) -> int:
        """The descriptor, to wait for messages."""
        return self._end.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether `flush` should be called again soon."""
        return bool(self._unsent)

    def send(self, message: Message) -> None:
        """Send a message, or what fits of it."""
        self._unsent += _encode(message)
        self.flush()

    def flush(self) -> None:
        """Send more of the unsent messages."""
        with suppress(BlockingIOError):
            try:
                while self._unsent:
                    del self._unsent[: self._end.send(self._unsent)]
            except (BrokenPipeError, ConnectionResetError):  # the worker is ending
                self._unsent.clear()

    def receive(self) -> list[Message]:
        """Return the complete messages that have arrived."""
        with suppress(BlockingIOError, ConnectionResetError):
            while data := self._end.recv(_READ_BYTES):
                self._received += data
        messages = []
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            end = _LENGTH.size + length
            if len(self._received) < end:
                break
            messages.append(_DECODER.decode(self._received[_LENGTH.size : end]))
            del self._received[:end]
        return messages

    def close(self) -> None:
        """Close the end in this process."""
        self._end.close()


class WorkerEnd:
    """The end of a worker. `apply` applies a configuration; `on_finished` gets the result of every reload."""

    def __init__(
        self, end: socket.socket, apply: Callable[[NewConfig], None], on_finished: Callable[[ReloadResult], None]
    ) -> None:
        self._end = end
        self._apply = apply
        self._on_finished = on_finished
        self._numbers = count()
        self._pending: dict[int, asyncio.Future[ReloadResult]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to receive messages."""
        reader, self._writer = await asyncio.open_connection(sock=self._end)
        self._task = asyncio.create_task(self._receive(reader, self._writer), name="supervisor")

    def close(self) -> None:
        """Receive no more messages."""
        if self._writer is not None and self._task is not None:
            self._task.cancel()
            self._writer.close()

    async def request_reload(self) -> ReloadResult:
        """Ask for a reload of all workers, and return its result."""
        assert self._writer is not None
        number = next(self._numbers)
        self._pending[number] = asyncio.get_running_loop().create_future()
        self._writer.write(_encode(ReloadRequest(number)))
        try:
            return await self._pending[number]
        finally:
            del self._pending[number]

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # the supervisor has ended, and ends the worker
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                message = _DECODER.decode(await reader.readexactly(length))
                if isinstance(message, NewConfig):
                    problem = None
                    try:
                        self._apply(message)
                    except (OSError, ValueError) as error:
                        problem = str(error)
                    writer.write(_encode(Applied(problem)))
                elif isinstance(message, Finished):
                    self._on_finished(message.result)
                    for number in message.requests:
                        if (waiting := self._pending.get(number)) is not None and not waiting.done():
                            waiting.set_result(message.result)
