"""Load generator in its own process: a fixed number of concurrent streams, each followed by the next request.

Each line of standard input is a run in JSON; each line of output is its result. The generator searches for byte
patterns and parses nothing, so that it measures the server and not itself; its own CPU time is part of the result.
"""

import asyncio
import random
import re
import sys
import time
from typing import cast

import msgspec
import uvloop

TEXT, NO_TEXT = (
    b'"content":"',
    b'"content":""',
)  # quotes inside a text are escaped, so these patterns do not match there
TOKENS = re.compile(rb'"completion_tokens":(\d+)')
PROMPT_TOKENS = re.compile(rb'"prompt_tokens":(\d+)')
DONE, LAST_CHUNK = b"data: [DONE]\n\n", b"0\r\n\r\n"
OK_STATUS = b"HTTP/1.1 200 "
QUESTION = "Tell me a story about a cook who makes a stew for the whole village."
ANSWER_LIMIT_S = 120.0  # 64 answers of 64 tokens in a row took at most 30 s: the limit turns a hang into a failure
FRAME_LIMIT_BYTES = 1 << 20  # a frame has a few hundred bytes


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one run."""

    socket: str | None = None
    """Path of a Unix socket; None: the port on loopback."""
    port: int = 0
    key: str | None = None
    model: str
    streams: int
    answers: int
    tokens: int
    questions: int = 1
    """How often the prompt repeats its question."""
    seed: int
    """Selects the prompts. Two runs never share one, since the prompt cache would answer the second."""

    def __repr__(self) -> str:
        """Without the key."""
        return f"Run({self.socket or self.port}, {self.streams} streams)"


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one run. Failed answers appear only in `failed`."""

    seconds: float
    cpu_s: float
    tokens: int
    """From the usage that the server reports."""
    prompt_tokens: int = 0
    frames: int
    """Frames with text."""
    first_s: list[float]
    between_s: list[float]
    """Time between consecutive frames with text of an answer; 0 for frames of the same read."""
    failed: list[str]


class AnswerError(Exception):
    """The answer is missing or incomplete."""


class Answer(asyncio.Protocol):
    """One request on its own connection, and the arrival time of each frame of its answer."""

    def __init__(self, request: bytes) -> None:
        self.began = time.perf_counter()
        self.arrivals: list[float] = []
        self.tokens = 0
        self.prompt_tokens = 0
        self.completed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._status = b""
        self._is_done = False

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from it
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count complete frames and buffer the rest."""
        now = time.perf_counter()
        data = self._rest + data
        self._status = self._status or data[: len(OK_STATUS) + 16]
        end = data.rfind(b"\n\n") + 2
        if end > 1:
            self._count_frames(data[:end], now)
            data = data[end:]
        self._rest = data
        if self._is_done and data.endswith(LAST_CHUNK):
            self._settle(None)
        elif len(data) > FRAME_LIMIT_BYTES:
            self._settle("a frame longer than the limit")

    def connection_lost(self, error: Exception | None) -> None:
        """Fail unless the answer is complete."""
        self._settle("connection closed early")

    def _count_frames(self, frames: bytes, now: float) -> None:
        texts = frames.count(TEXT) - frames.count(NO_TEXT)
        self.arrivals += [now] * texts
        if (count := TOKENS.search(frames)) is not None:
            self.tokens = int(count[1])
        if (count := PROMPT_TOKENS.search(frames)) is not None:
            self.prompt_tokens = int(count[1])
        self._is_done = frames.endswith(DONE)

    def _settle(self, failure: str | None) -> None:
        if self.completed.done():
            return
        if not self._status.startswith(OK_STATUS):
            failure = self._status.partition(b"\r")[0].decode("latin-1") or "no reply"
        elif failure is None and not (self.tokens and self.arrivals):
            failure = "an answer without text or usage"
        if failure is None:
            self.completed.set_result(None)
        else:
            self.completed.set_exception(AnswerError(failure))


def request(run: Run, number: int) -> bytes:
    """Build a request; its bytes are the same for every target.

    The prompt starts with digits: prompts then share no prefix but the template's, and since each digit is one token,
    all have the same length.
    """
    digits = random.Random(f"{run.seed} {number}").randrange(10**7, 10**8)
    body = msgspec.json.encode(
        {
            "model": run.model,
            "messages": [{"role": "user", "content": f"{digits}{f' {QUESTION}' * run.questions}"}],
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


async def fetch_answer(run: Run, number: int) -> Answer:
    """Send one request and read the complete answer.

    Raises:
        AnswerError: the answer is missing or incomplete.
    """
    answer = Answer(request(run, number))
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            if run.socket is not None:
                await loop.create_unix_connection(lambda: answer, run.socket)
            else:
                await loop.create_connection(lambda: answer, "127.0.0.1", run.port)
            await answer.completed
    except TimeoutError:
        raise AnswerError(f"not complete within {ANSWER_LIMIT_S:g} s") from None
    except OSError as error:
        raise AnswerError(error.strerror or "no connection") from None
    finally:
        answer.close()
    return answer


async def run_load(run: Run) -> LoadResult:
    """Request all answers of a run."""
    numbers = iter(range(run.answers))
    answers: list[Answer] = []
    failed: list[str] = []

    async def stream() -> None:
        for number in numbers:  # shared by all streams
            try:
                answers.append(await fetch_answer(run, number))
            except AnswerError as error:
                failed.append(str(error))

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(stream() for _ in range(run.streams)))
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    pairs = [pair for answer in answers for pair in zip(answer.arrivals, answer.arrivals[1:], strict=False)]
    return LoadResult(
        seconds=seconds,
        cpu_s=cpu_s,
        tokens=sum(answer.tokens for answer in answers),
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        frames=sum(len(answer.arrivals) for answer in answers),
        first_s=[answer.arrivals[0] - answer.began for answer in answers],
        between_s=[after - before for before, after in pairs],
        failed=failed,
    )


def main() -> None:
    """Execute runs until the input closes."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin.buffer:
            result = runner.run(run_load(msgspec.json.decode(line, type=Run)))
            sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
