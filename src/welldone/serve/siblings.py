"""What a server needs that is one of several processes on one port: what the others know, and what all know together.

Each process answers whoever connects to its socket, which stands in a folder that no other user can enter. A question
is one line of JSON that says what is wanted. The answer is bytes and a mark that it is whole.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from welldone.net.shared import SharedNumbers
from welldone.serve.metrics_pages import merge

_WAIT_S = 1.0
"""For a sibling's answer: it is made in milliseconds, and who asks for metrics gives up after some seconds."""

_QUESTION_LIMIT_BYTES = 64 * 2**10
"""Names and numbers: some hundred bytes."""

_ANSWER_LIMIT_BYTES = 32 * 2**20
"""A page with the most models and a hundred upstreams has some 2 MB; the longest step of a tape some 25, as JSON."""

_END = b"\0"
"""The last byte: an answer without it is not whole. Neither JSON nor a page of metrics can hold it."""

_METRICS = "metrics"

Question = Mapping[str, Any]
Respond = Callable[[Question], Awaitable[bytes]]
"""Answers a question, soon; nothing where there is nothing to say."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One of several processes that serve together."""

    number: int
    """From 1 to `count`."""
    count: int
    sockets: tuple[socket.socket, ...]
    """They listen, and all workers accept on them."""
    numbers: SharedNumbers
    """For the rates of keys."""
    folder: Path
    """Where the workers' own sockets are."""
    ready: Callable[[], None]
    """To be called when it serves."""


class Siblings:
    """The other processes, as one of them sees them. `render` gives its own page, and may be called in a thread."""

    def __init__(self, worker: Worker, render: Callable[[], tuple[str, bytes]]) -> None:
        self._worker = worker
        self._render = render
        self._answers: dict[str, Respond] = {}
        self._server: asyncio.Server | None = None

    @property
    def count(self) -> int:
        """How many processes there are, this one included."""
        return self._worker.count

    def register(self, what: str, answer: Respond) -> None:
        """Let the others ask this process for something."""
        self._answers[what] = answer

    async def start(self) -> None:
        """Begin to answer the others."""
        path = self._path(self._worker.number)
        self._server = await asyncio.start_unix_server(self._say, path, limit=_QUESTION_LIMIT_BYTES)

    async def stop(self) -> None:
        """End that."""
        if self._server is not None:
            self._server.close()

    async def gather(self, what: str, question: Question) -> list[bytes]:
        """What the others answer. Who has nothing to say, or says it too late, is left out."""
        return [answer for answer in await self._ask_all(what, question) if answer]

    async def page(self) -> tuple[str, bytes]:
        """The content type and the body of the page of all. Who does not answer in time is left out."""
        answers = await self._ask_all(_METRICS, {})
        heard = [answer.decode() for answer in answers if answer is not None]
        kind, own = await asyncio.to_thread(self._render)
        text = await asyncio.to_thread(merge, [own.decode(), *heard], len(answers) - len(heard))
        return kind, text.encode()

    def _path(self, number: int) -> Path:
        return self._worker.folder / f"{number}.sock"

    async def _say(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_WAIT_S):
                    writer.write(await self._answer(await _question(reader)) + _END)
                    await writer.drain()
        finally:
            writer.close()

    async def _answer(self, question: Question) -> bytes:
        what = question.get("what")
        if what == _METRICS:
            return (await asyncio.to_thread(self._render))[1]
        answer = self._answers.get(str(what))
        return b"" if answer is None else await answer(question)

    async def _ask_all(self, what: str, question: Question) -> list[bytes | None]:
        others = [number for number in range(1, self._worker.count + 1) if number != self._worker.number]
        line = msgspec.json.encode({**question, "what": what}) + b"\n"
        return await asyncio.gather(*(self._ask(number, line) for number in others))

    async def _ask(self, number: int, line: bytes) -> bytes | None:
        """A sibling's answer, if it gives one in time."""
        body = bytearray()
        try:
            async with asyncio.timeout(_WAIT_S):
                reader, writer = await asyncio.open_unix_connection(self._path(number))
                try:
                    writer.write(line)
                    while (piece := await reader.read(65536)) and len(body) <= _ANSWER_LIMIT_BYTES:
                        body += piece
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return None
        return bytes(body.removesuffix(_END)) if body.endswith(_END) else None


async def _question(reader: asyncio.StreamReader) -> Question:
    """What is asked; nothing where it is too long, or cut."""
    try:
        return msgspec.json.decode(await reader.readline(), type=dict[str, Any])
    except (ValueError, msgspec.DecodeError):
        return {}
