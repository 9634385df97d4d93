"""Hostile input costs no more than its length, in work and in memory. Work is counted in calls: time would lie."""

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType

import pytest

from tests.laws.strategies import HEAD
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.wire import faults
from welldone.wire.faults.catalogue import ALL
from welldone.wire.head import Endpoint
from welldone.wire.pipe import Pipe

PIECE_BYTES = 4096
ENVELOPE = b'{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":'


def _tool(entry: bytes) -> bytes:
    return b"data: " + ENVELOPE + b'[{"index":0,"delta":{"tool_calls":[' + entry + b']},"finish_reason":null}]}\n\n'


HOSTILE: dict[str, Callable[[int], bytes]] = {
    "braces": lambda size: b"{" * size,
    "brackets in a frame": lambda size: b"data: " + b"[" * size + b"\n\n",
    "one long line": lambda size: b"data: " + b"x" * size + b"\n\n",
    "a long line that never ends": lambda size: b"data: " + b"x" * size,
    "empty frames": lambda size: b"\n" * size,
    "frames with empty data": lambda size: b"data: \n\n" * (size // 8),
    "comments": lambda size: b": \n" * (size // 3),
    "data lines without an empty one": lambda size: b'data: {"a":1\n' * (size // 13),
    "carriage returns": lambda size: b"\r" * size,
    "quotes that are escaped": lambda size: b"data: " + b"\\'" * (size // 2) + b"\n\n",
    "names without end": lambda size: _tool(b'{"index":0,"function":{"name":"x"}}') * (size // 130),
    "calls without end": lambda size: b"".join(
        _tool(b'{"index":%d,"id":"i%d","function":{"name":"x","arguments":"{"}}' % (n, n)) for n in range(size // 150)
    ),
    "roles without end": lambda size: (
        (b"data: " + ENVELOPE + b'[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}\n\n') * (size // 150)
    ),
    "text that repeats itself": lambda size: b"".join(
        b"data: " + ENVELOPE + b'[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n' % (b"a" * n)
        for n in range(1, max(2, int((size * 2) ** 0.5) - 150))
    ),
    "thoughts that never end": lambda size: (
        b"data: "
        + ENVELOPE
        + b'[{"index":0,"delta":{"reasoning_content":"x"},"finish_reason":null}]}\n\n'
        + (b"data: " + ENVELOPE + b'[{"index":0,"delta":{"content":"<think></thin"},"finish_reason":null}]}\n\n')
        * (size // 150)
    ),
}


def _fix(data: bytes) -> Pipe:
    pipe = Pipe(Endpoint.CHAT, fallback=HEAD[Endpoint.CHAT])
    for start in range(0, len(data), PIECE_BYTES):
        pipe.feed(data[start : start + PIECE_BYTES])
    pipe.close()
    return pipe


def _judge(data: bytes) -> None:
    judge(Trace(body=data))


def _calls(work: Callable[[bytes], object], data: bytes) -> int:
    """How many functions are called, ours and those in C."""
    count = 0

    def watch(frame: FrameType, what: str, argument: object) -> None:
        nonlocal count
        count += what in ("call", "c_call")

    sys.setprofile(watch)
    try:
        work(data)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("work", [_fix, _judge], ids=["fix", "judge"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_twice_the_input_is_at_most_twice_the_work(kind: str, work: Callable[[bytes], object]) -> None:
    small, large = (_calls(work, HOSTILE[kind](size)) for size in (60_000, 120_000))
    assert large <= 2.2 * small + 2000


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_input_ends_by_itself_with_few_notes(kind: str) -> None:
    pipe = _fix(HOSTILE[kind](1_000_000))
    assert len(pipe.notes.all()) <= len(ALL)


def test_a_line_beyond_the_limit_is_dropped_and_ends_the_stream() -> None:
    pipe = Pipe(Endpoint.CHAT, fallback=HEAD[Endpoint.CHAT], limit_bytes=1_000_000)
    tracemalloc.start()
    for _ in range(10_000_000 // PIECE_BYTES):
        pipe.feed(b"x" * PIECE_BYTES)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pipe.failure is not None
    assert faults.enc.STRICT_JSON.id in {note.rule for note in pipe.notes.all()}
    assert peak < 4_000_000
