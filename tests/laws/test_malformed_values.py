"""Any malformed value at any position of a chunk is repaired to a correct stream."""

import copy
import itertools
import json
from collections.abc import Iterator
from typing import Any, TypeAlias

import pytest

from tests.laws.test_laws import FAILED, UNKNOWABLE, fix, read, violated_rules
from tests.table import table
from welldone.core.envelope import Endpoint

Path: TypeAlias = tuple[str | int, ...]
Value: TypeAlias = Any  # of a JSON text

MALFORMED_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 10**9, 10**400, 1.5, 1e300, float("nan"), float("inf")),
    *("", "0", "null", "stop", "assistant", "x" * 300, "\ud83d", "\udcff", "\u2028", "[DONE]", "<think>", "{}", "{"),
    *([], {}, [None], [1], ["a"], [[]], [{}], {"a": 1}, {"index": 0}, {"text": "a"}),
]
ENVELOPE = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "m"}
CALL = {"index": 0, "id": "call_a", "type": "function", "function": {"name": "get", "arguments": '{"x":1}'}}
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8, "prompt_tokens_details": {"cached_tokens": 1}}
TOKEN = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [{"token": "b", "logprob": -1.0, "bytes": [98]}]}


def _chat(delta: dict[str, Any], finish: str | None = None, **more: object) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": more.pop("logprobs", None), "finish_reason": finish}
    return {**ENVELOPE, "choices": [choice], **more}


def _completion(text: str, finish: str | None = None, logprobs: object = None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}
    return {**ENVELOPE, "id": "cmpl-1", "object": "text_completion", "choices": [choice]}


ROLE, TEXT, STOP = _chat({"role": "assistant", "content": ""}), _chat({"content": "a"}), _chat({}, "stop")
LISTS = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5}], "text_offset": [0]}
SAMPLES: dict[str, tuple[Endpoint, list[dict[str, Any]], int]] = {
    "role": (Endpoint.CHAT, [ROLE, TEXT, STOP], 0),
    "text": (Endpoint.CHAT, [ROLE, TEXT, STOP], 1),
    "finish": (Endpoint.CHAT, [ROLE, TEXT, STOP], 2),
    "call": (Endpoint.CHAT, [ROLE, _chat({"tool_calls": [CALL]}), _chat({}, "tool_calls")], 1),
    "function": (Endpoint.CHAT, [ROLE, _chat({"function_call": CALL["function"]}), _chat({}, "function_call")], 1),
    "reasoning": (Endpoint.CHAT, [ROLE, _chat({"reasoning_content": "t", "refusal": "r", "x": [{}]}), TEXT, STOP], 1),
    "logprobs": (
        Endpoint.CHAT,
        [ROLE, _chat({"content": "a"}, logprobs={"content": [TOKEN], "refusal": None}), STOP],
        1,
    ),
    "usage": (Endpoint.CHAT, [ROLE, TEXT, STOP, {**ENVELOPE, "choices": [], "usage": USAGE}], 3),
    "message": (Endpoint.CHAT, [{**ENVELOPE, "choices": [{"index": 0, "message": {"content": "a"}}]}, STOP], 0),
    "error": (Endpoint.CHAT, [ROLE, {"error": {"message": "m", "type": "t", "param": None, "code": None}}], 1),
    "completion": (Endpoint.COMPLETIONS, [_completion("a", logprobs=LISTS), _completion("", "stop")], 0),
    "completion's end": (Endpoint.COMPLETIONS, [_completion("a"), _completion("", "stop")], 1),
}
REQUESTS: list[dict[str, Any] | None] = [None, {"stream": True, "stream_options": {"include_usage": True}, "n": 1}]


def paths(value: object, path: Path = ()) -> Iterator[Path]:
    """Yield all positions in a JSON value."""
    yield path
    items: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, item in items:
        yield from paths(item, (*path, key))


def with_value_at(value: Value, path: Path, malformed: object) -> Value:
    """Return `value` with another value at a position."""
    if not path:
        return malformed
    changed = copy.copy(value)
    changed[path[0]] = with_value_at(value[path[0]], path[1:], malformed)
    return changed


def _without(value: Value, path: Path) -> Value:
    changed = copy.copy(value)
    if len(path) == 1:
        del changed[path[0]]
    else:
        changed[path[0]] = _without(value[path[0]], path[1:])
    return changed


def _streams(name: str, step: int) -> Iterator[tuple[Endpoint, bytes, dict[str, Any] | None]]:
    """Each position of a chunk with every `step`-th malformed value; the requests alternate."""
    endpoint, chunks, position = SAMPLES[name]
    requests = itertools.cycle(REQUESTS)
    for number, path in enumerate(paths(chunks[position])):
        malformed_chunks = [
            with_value_at(chunks[position], path, malformed) for malformed in MALFORMED_VALUES[number % step :: step]
        ]
        malformed_chunks += [_without(chunks[position], path)] if path else []
        for malformed in malformed_chunks:
            frames = [*chunks[:position], malformed, *chunks[position + 1 :]]
            yield endpoint, b"".join(_frame(frame) for frame in frames) + b"data: [DONE]\n\n", next(requests)


def _frame(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.tier3)])
@table("name", SAMPLES)
def test_a_malformed_value_anywhere_in_a_chunk_is_repaired(name: str, step: int) -> None:
    for endpoint, stream, request_ in _streams(name, step):
        fixed = fix(stream, endpoint, request_)
        assert violated_rules(fixed, endpoint, request_) <= UNKNOWABLE, stream
        twice = fix(fixed, endpoint, request_)
        if FAILED.search(fixed):
            assert read(twice, endpoint) == read(fixed, endpoint), stream
        else:
            assert twice == fixed, stream
