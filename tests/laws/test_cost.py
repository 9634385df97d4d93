"""Hostile input takes linear work and bounded memory. Work is counted in function calls, since times vary."""

import cProfile
import json
import tracemalloc
from collections.abc import Callable

import pytest

from tests.laws.strategies import ENVELOPES
from tests.protocol import gemini_streams as gemini
from tests.table import table
from welldone.core.catalog import RULES
from welldone.core.envelope import Endpoint, Envelope
from welldone.dialects.gemini.repair import GeminiRepairer
from welldone.dialects.messages.repair import MessagesRepairer
from welldone.dialects.responses.repair import ResponsesRepairer
from welldone.dialects.same_dialect import PassthroughRepairer
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.stream.pipeline import StreamPipeline

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
    "data lines without a blank line": lambda size: b'data: {"a":1\n' * (size // 13),
    "carriage returns": lambda size: b"\r" * size,
    "quotes that are escaped": lambda size: b"data: " + b"\\'" * (size // 2) + b"\n\n",
    "names without end": lambda size: _tool(b'{"index":0,"function":{"name":"x"}}') * (size // 130),
    "calls without end": lambda size: b"".join(
        _tool(b'{"index":%d,"id":"i%d","function":{"name":"x","arguments":"{"}}' % (n, n)) for n in range(size // 150)
    ),
    "roles without end": lambda size: (
        (b"data: " + ENVELOPE + b'[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}\n\n') * (size // 150)
    ),
    "cumulative text": lambda size: b"".join(
        b"data: " + ENVELOPE + b'[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n' % (b"a" * n)
        for n in range(1, int((22_500 + 2 * size) ** 0.5) - 150)
    ),
    "reasoning without end": lambda size: (
        b"data: "
        + ENVELOPE
        + b'[{"index":0,"delta":{"reasoning_content":"x"},"finish_reason":null}]}\n\n'
        + (b"data: " + ENVELOPE + b'[{"index":0,"delta":{"content":"<think></thin"},"finish_reason":null}]}\n\n')
        * (size // 150)
    ),
}


def _fix(data: bytes) -> StreamPipeline:
    pipeline = StreamPipeline(Endpoint.CHAT, fallback=ENVELOPES[Endpoint.CHAT])
    for start in range(0, len(data), PIECE_BYTES):
        pipeline.feed(data[start : start + PIECE_BYTES])
    pipeline.close()
    return pipeline


def _judge(data: bytes) -> None:
    judge(Trace(body=data))


def _calls(work: Callable[[bytes], object], data: bytes) -> int:
    """Number of Python and C function calls. The profiler in C counts ten times as fast as a function in Python."""
    profile = cProfile.Profile()
    profile.runcall(work, data)
    return sum(entry.callcount for entry in profile.getstats())


@table("work", [_fix, _judge], ids=["fix", "judge"])
@table("kind", HOSTILE)
def test_twice_the_input_is_at_most_twice_the_work(kind: str, work: Callable[[bytes], object]) -> None:
    small, large = (_calls(work, HOSTILE[kind](size)) for size in (20_000, 40_000))
    assert large <= 2.2 * small + 2000


@pytest.mark.parametrize("size", [60_000, pytest.param(1_000_000, marks=pytest.mark.tier3)])
@table("kind", HOSTILE)
def test_hostile_input_gives_a_bounded_log(kind: str, size: int) -> None:
    pipeline = _fix(HOSTILE[kind](size))
    assert len(pipeline.repair_log.entries()) <= len(RULES)


def test_a_line_beyond_the_limit_ends_the_stream_in_bounded_memory() -> None:
    pipeline = StreamPipeline(Endpoint.CHAT, fallback=ENVELOPES[Endpoint.CHAT], limit_bytes=1_000_000)
    tracemalloc.start()
    for _ in range(10_000_000 // PIECE_BYTES):
        pipeline.feed(b"x" * PIECE_BYTES)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pipeline.failure is not None
    assert "enc-strict-json" in {note.rule for note in pipeline.repair_log.entries()}
    assert peak < 4_000_000


def _events(kind: str, *values: object) -> bytes:
    """Events of one type with these members."""
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (kind.encode(), json.dumps({"type": kind, **value}).encode())
        for value in values
        if isinstance(value, dict)
    )


def _item(number: int, kind: str = "message") -> dict[str, object]:
    call = {"call_id": f"c{number}", "name": "f", "arguments": ""} if kind == "function_call" else {}
    return {"output_index": number, "item": {"id": f"i{number}", "type": kind, **call}}


def _block(index: int, kind: str = "text") -> dict[str, object]:
    return {"index": index, "content_block": {"type": kind, "text": "", "id": f"t{index}", "name": "f", "input": {}}}


def _piece(index: int, kind: str = "text_delta", member: str = "text") -> dict[str, object]:
    return {"index": index, "delta": {"type": kind, member: "x"}}


_ADDED, _DONE = "response.output_item.added", "response.output_item.done"
_PART, _DELTA, _ARGUMENTS = (
    f"response.{name}" for name in ("content_part.added", "output_text.delta", "function_call_arguments.delta")
)
_BEGIN = _events("message_start", {"message": {"content": [], "usage": {"input_tokens": 1, "output_tokens": 1}}})
_START, _MORE, _STOP = "content_block_start", "content_block_delta", "content_block_stop"

HOSTILE_RESPONSES: dict[str, Callable[[int], bytes]] = {
    "items without end": lambda size: _events(_ADDED, *(_item(n) for n in range(size // 120))),
    "interleaved calls": lambda size: (
        _events(_ADDED, *(_item(n, "function_call") for n in range(50)))
        + _events(
            _ARGUMENTS, *({"item_id": f"i{n % 50}", "output_index": n % 50, "delta": "x"} for n in range(size // 120))
        )
    ),
    "items of the same id": lambda size: _events(_ADDED, *(_item(0) | {"output_index": n} for n in range(size // 120))),
    "parts without end": lambda size: (
        _events(_ADDED, _item(0)) + _events(_PART, *({"item_id": "i0", "content_index": n} for n in range(size // 120)))
    ),
    "one item of many parts": lambda size: _events(
        _DONE,
        {"item": {"id": "i", "type": "message", "content": [{"type": "output_text", "text": "x"}] * (size // 40)}},
    ),
    "one message that never has an index": lambda size: _events(_DELTA, *({"delta": "x"} for _ in range(size // 80))),
    "indices that jump": lambda size: _events(
        _DELTA, *({"item_id": f"i{n}", "content_index": 7 * n, "delta": "x"} for n in range(size // 120))
    ),
    "a final response with a long output": lambda size: _events(
        "response.completed", {"response": {"output": [{"type": "message", "content": []}] * (size // 40)}}
    ),
    "responses without end": lambda size: _events(
        "response.in_progress", *({"response": {"id": f"r{n}"}} for n in range(size // 80))
    ),
    "a deep object": lambda size: b'event: x\ndata: {"type":' + b'{"a":' * (size // 5) + b"\n\n",
}
HOSTILE_MESSAGES: dict[str, Callable[[int], bytes]] = {
    "blocks without end": lambda size: _BEGIN + _events(_START, *(_block(n) for n in range(size // 150))),
    "open calls without end": lambda size: (
        _BEGIN + _events(_START, *(_block(n, "tool_use") for n in range(size // 150)))
    ),
    "interleaved calls": lambda size: (
        _BEGIN
        + _events(_START, *(_block(n, "tool_use") for n in range(50)))
        + _events(_MORE, *(_piece(n % 50, "input_json_delta", "partial_json") for n in range(size // 150)))
        + _events(_STOP, *({"index": n} for n in range(50)))
    ),
    "interleaved texts": lambda size: (
        _BEGIN + _events(_START, _block(0), _block(1)) + _events(_MORE, *(_piece(n % 2) for n in range(size // 120)))
    ),
    "deltas of no block": lambda size: _BEGIN + _events(_MORE, *(_piece(n) for n in range(size // 120))),
    "stops of no block": lambda size: _BEGIN + _events(_STOP, *({"index": n} for n in range(size // 80))),
    "citations without end": lambda size: (
        _BEGIN
        + _events(_START, _block(0))
        + _events(
            _MORE, *({"index": 0, "delta": {"type": "citations_delta", "citation": {}}} for _ in range(size // 150))
        )
    ),
    "a start event with a long content": lambda size: _events(
        "message_start", {"message": {"content": [{"type": "text", "text": "x"}] * (size // 40)}}
    ),
    "message deltas without end": lambda size: (
        _BEGIN + _events("message_delta", *({"delta": {"x": n}} for n in range(size // 80)))
    ),
}
_TEXT: dict[str, object] = {"text": "x"}
_CALL: dict[str, object] = {"functionCall": {"name": "f", "args": {}}}
HOSTILE_GEMINI: dict[str, Callable[[int], bytes]] = {
    "texts without end": lambda size: gemini.frames(*[gemini.element(gemini.candidate(_TEXT))] * (size // 120)),
    "calls without end": lambda size: gemini.frames(*[gemini.element(gemini.candidate(_CALL))] * (size // 120)),
    "alternating parts": lambda size: gemini.frames(
        *[gemini.element(gemini.candidate(part)) for part in (_TEXT, {"text": "x", "thought": True})] * (size // 240)
    ),
    "candidates in turn": lambda size: gemini.frames(
        *(gemini.element(gemini.candidate(_TEXT, index=n % 100)) for n in range(size // 120))
    ),
    "an element with many parts": lambda size: gemini.frames(gemini.element(gemini.candidate(*[_TEXT] * (size // 15)))),
    "an element with many candidates": lambda size: gemini.frames(
        gemini.element(*[gemini.candidate(_TEXT)] * (size // 80))
    ),
    "log probabilities without end": lambda size: gemini.frames(
        *[gemini.element({"logprobsResult": {"chosenCandidates": [{"token": "x"}] * 3}})] * (size // 150)
    ),
}
REPAIRERS: dict[
    str, tuple[type[ResponsesRepairer | MessagesRepairer | GeminiRepairer], dict[str, Callable[[int], bytes]]]
] = {
    "responses": (ResponsesRepairer, HOSTILE_RESPONSES | HOSTILE),
    "messages": (MessagesRepairer, HOSTILE_MESSAGES | HOSTILE),
    "gemini": (GeminiRepairer, HOSTILE_GEMINI | HOSTILE),
}
CASES = [(endpoint, kind) for endpoint, (_, kinds) in REPAIRERS.items() for kind in kinds]


def _repair(endpoint: str, data: bytes, *, is_stream: bool = True) -> PassthroughRepairer:
    repairer = REPAIRERS[endpoint][0](fallback=Envelope("x_1", 1, "m"), is_stream=is_stream)
    for start in range(0, len(data), PIECE_BYTES):
        repairer.feed(data[start : start + PIECE_BYTES])
    repairer.close()
    return repairer


@pytest.mark.tier3
@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "buffered"])
@pytest.mark.parametrize(("endpoint", "kind"), CASES)
def test_twice_the_input_is_at_most_twice_the_work_of_a_passthrough_repairer(
    endpoint: str, kind: str, is_stream: bool
) -> None:
    def work(data: bytes) -> object:
        return _repair(endpoint, data, is_stream=is_stream)

    small, large = (_calls(work, REPAIRERS[endpoint][1][kind](size)) for size in (60_000, 120_000))
    assert large <= 2.2 * small + 2000


@pytest.mark.tier3
@pytest.mark.parametrize(("endpoint", "kind"), CASES)
def test_twice_the_input_is_at_most_twice_the_work_of_the_judge(endpoint: str, kind: str) -> None:
    def work(data: bytes) -> object:
        return judge(Trace(body=data, endpoint=endpoint))

    small, large = (_calls(work, REPAIRERS[endpoint][1][kind](size)) for size in (60_000, 120_000))
    assert large <= 2.2 * small + 2000
