"""The load generator, a program of its own: so many streams at once, each asks again when its answer is whole.

It reads runs from standard input, a line of JSON each, and answers each with a line. It looks for bytes and parses
nothing, so that it measures the server and not itself; what CPU it took stands in its answer.
"""

import asyncio
import random
import re
import sys
import time
from typing import cast

import msgspec
import uvloop

TEXT, NO_TEXT = b'"content":"', b'"content":""'  # inside a text the quotes have a backslash before them
TOKENS = re.compile(rb'"completion_tokens":(\d+)')
DONE, LAST_CHUNK = b"data: [DONE]\n\n", b"0\r\n\r\n"
RIGHT = b"HTTP/1.1 200 "
QUESTION = "Tell me a story about a cook who makes a stew for the whole village."
ANSWER_LIMIT_S = 120.0  # 64 answers of 64 tokens in a row took 30 s at most: a hang is a failure
FRAME_LIMIT_BYTES = 1 << 20  # a frame has some hundred bytes


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What to do."""

    socket: str | None = None
    """The path of a unix socket; else the port on loopback."""
    port: int = 0
    key: str | None = None
    model: str
    streams: int
    answers: int
    tokens: int
    seed: int
    """Chooses the prompts. No two runs have one in common, else the second would find it in the cache."""

    def __repr__(self) -> str:
        """Without the key."""
        return f"Run({self.socket or self.port}, {self.streams} streams)"


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. Failed answers are counted, and nothing else of them is."""

    seconds: float
    cpu_s: float
    tokens: int
    """As the server counts them."""
    frames: int
    """Those with text in them."""
    first_s: list[float]
    between_s: list[float]
    """Between a frame with text and the next one of the same answer. Two that came in one read are 0 apart."""
    failed: list[str]


class AnswerError(Exception):
    """There is no whole answer; why."""


class Answer(asyncio.Protocol):
    """One request, on a connection of its own, and when each piece of its answer came."""

    def __init__(self, request: bytes) -> None:
        self.began = time.perf_counter()
        self.arrivals: list[float] = []
        self.tokens = 0
        self.whole: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._status = b""
        self._is_done = False

    def close(self) -> None:
        """Leave."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by their class
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count the whole frames, and keep the rest."""
        now = time.perf_counter()
        data = self._rest + data
        self._status = self._status or data[: len(RIGHT) + 16]
        end = data.rfind(b"\n\n") + 2
        if end > 1:
            self._frames(data[:end], now)
            data = data[end:]
        self._rest = data
        if self._is_done and data.endswith(LAST_CHUNK):
            self._settle(None)
        elif len(data) > FRAME_LIMIT_BYTES:
            self._settle("a frame without an end")

    def connection_lost(self, error: Exception | None) -> None:
        """The server has closed the connection."""
        self._settle("cut off")

    def _frames(self, frames: bytes, now: float) -> None:
        texts = frames.count(TEXT) - frames.count(NO_TEXT)
        self.arrivals += [now] * texts
        if (count := TOKENS.search(frames)) is not None:
            self.tokens = int(count[1])
        self._is_done = frames.endswith(DONE)

    def _settle(self, trouble: str | None) -> None:
        if self.whole.done():
            return
        if not self._status.startswith(RIGHT):
            trouble = self._status.partition(b"\r")[0].decode("latin-1") or "no reply"
        elif trouble is None and not (self.tokens and self.arrivals):
            trouble = "an answer without text or usage"
        if trouble is None:
            self.whole.set_result(None)
        else:
            self.whole.set_exception(AnswerError(trouble))


def request(run: Run, number: int) -> bytes:
    """A request, byte for byte the same for all who are asked. Digits first: prompts share no beginning but the
    template's, and each digit is one token, so that all are as long."""
    digits = random.Random(f"{run.seed} {number}").randrange(10**7, 10**8)
    body = msgspec.json.encode(
        {
            "model": run.model,
            "messages": [{"role": "user", "content": f"{digits} {QUESTION}"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": run.tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
    )
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        f"Host: {'localhost' if run.socket is not None else f'127.0.0.1:{run.port}'}",
        "Connection: close",  # llama.cpp closes after a stream anyway
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    if run.key is not None:
        lines.append(f"Authorization: Bearer {run.key}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


async def hear(run: Run, number: int) -> Answer:
    """One whole answer.

    Raises:
        AnswerError: there is none.
    """
    answer = Answer(request(run, number))
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            if run.socket is not None:
                await loop.create_unix_connection(lambda: answer, run.socket)
            else:
                await loop.create_connection(lambda: answer, "127.0.0.1", run.port)
            await answer.whole
    except TimeoutError:
        raise AnswerError(f"not whole within {ANSWER_LIMIT_S:g} s") from None
    except OSError as error:
        raise AnswerError(error.strerror or "no connection") from None
    finally:
        answer.close()
    return answer


async def do(run: Run) -> Heard:
    """All answers of a run."""
    numbers = iter(range(run.answers))
    answers: list[Answer] = []
    failed: list[str] = []

    async def stream() -> None:
        for number in numbers:  # all streams draw from it
            try:
                answers.append(await hear(run, number))
            except AnswerError as error:
                failed.append(str(error))

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(stream() for _ in range(run.streams)))
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    pairs = [pair for answer in answers for pair in zip(answer.arrivals, answer.arrivals[1:], strict=False)]
    return Heard(
        seconds=seconds,
        cpu_s=cpu_s,
        tokens=sum(answer.tokens for answer in answers),
        frames=sum(len(answer.arrivals) for answer in answers),
        first_s=[answer.arrivals[0] - answer.began for answer in answers],
        between_s=[after - before for before, after in pairs],
        failed=failed,
    )


def main() -> None:
    """Do what each line says, until there is none."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin.buffer:
            heard = runner.run(do(msgspec.json.decode(line, type=Run)))
            sys.stdout.buffer.write(msgspec.json.encode(heard) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
