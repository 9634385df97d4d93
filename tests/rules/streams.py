"""Streams for tests, independent of the writers of the package."""

import json
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
ASKS_USAGE = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}


def frame(value: object) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def envelope(choices: object, **members: object) -> dict[str, Any]:
    common = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "m"}
    return {**common, "choices": choices, **members}


def choice(delta: object, finish: object = None, index: int = 0, logprobs: object = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def chat(*deltas: object, finish: object = "stop", end: bytes = DONE) -> bytes:
    """Return a chat stream of one choice: role, deltas, finish."""
    entries = [choice({"role": "assistant", "content": ""}), *map(choice, deltas)]
    if finish is not None:
        entries.append(choice({}, finish))
    return b"".join(frame(envelope([one])) for one in entries) + end


def completion(*texts: object, finish: object = "stop", end: bytes = DONE) -> bytes:
    """Return a completions stream of one choice."""
    entries = [{"index": 0, "text": text, "logprobs": None, "finish_reason": None} for text in texts]
    entries.append({"index": 0, "text": "", "logprobs": None, "finish_reason": finish})
    return b"".join(frame(envelope([one], id="cmpl-1", object="text_completion")) for one in entries) + end


def call(index: int, **members: object) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, **members}]}


# Reference streams: everything that a correct server may send

texts = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp"), exclude_characters="\ufffd\x85"), min_size=1)


def _spelled(text: str) -> dict[str, Any]:
    entry = {"token": text, "logprob": -0.25, "bytes": list(text.encode())}
    return {"content": [{**entry, "top_logprobs": [entry]}], "refusal": None}


@st.composite
def choices(draw: st.DrawFn, index: int) -> list[dict[str, Any]]:
    """Entries of one choice of a correct stream."""
    kind = draw(st.sampled_from(("text", "logprobs", "refusal", "tools")))
    entries = [choice({"role": "assistant", "content": ""}, index=index)]
    entries += [choice({"reasoning_content": text}, index=index) for text in draw(st.lists(texts, max_size=2))]
    if kind == "tools":
        for number in range(draw(st.integers(1, 3))):
            kind, member = draw(st.sampled_from((("function", "arguments"), ("custom", "input"))))
            first = {"id": f"call_{number}", "type": kind, kind: {"name": "get", member: ""}}
            entries.append(choice(call(number, **first), index=index))
            for piece in ('{"x', '":', f"{number}}}") if kind == "function" else ("{}", "{ not JSON"):
                entries.append(choice(call(number, **{kind: {member: piece}}), index=index))
        return [*entries, choice({}, "tool_calls", index)]
    # Each text starts with a new letter, so that none looks like cumulative content.
    words = [f"{number}{text}" for number, text in enumerate(draw(st.lists(texts, max_size=3)))]
    if kind == "logprobs" and len(entries) == 1:
        entries += [choice({"content": word}, index=index, logprobs=_spelled(word)) for word in words]
    else:
        entries += [choice({"refusal" if kind == "refusal" else "content": word}, index=index) for word in words]
    return [*entries, choice({}, draw(st.sampled_from(("stop", "length", "content_filter"))), index)]


@st.composite
def reference_streams(draw: st.DrawFn) -> tuple[bytes, dict[str, Any] | None]:
    """A correct chat stream and its request."""
    parts = [draw(choices(index)) for index in range(draw(st.integers(1, 3)))]
    asks = draw(st.booleans())
    extras: dict[str, Any] = {"usage": None} if asks else {}
    extras |= draw(st.sampled_from(({}, {"system_fingerprint": "fp_1"}, {"service_tier": "default", "provider": "x"})))
    frames = [frame(envelope([one], **extras)) for one in _interleave(parts, alternately=draw(st.booleans()))]
    if asks:
        frames.append(frame(envelope([], **{**extras, "usage": USAGE})))
    fails = draw(st.booleans())
    if fails:
        error = {"message": "out of memory", "type": "server_error", "param": None, "code": None}
        frames = [*frames[: draw(st.integers(1, len(frames)))], frame({"error": error})]
    gap = draw(st.sampled_from((b"", b": keep-alive\n", b": keep-alive\n\n")))
    request = {**ASKS_USAGE, "n": len(parts)} if asks else {"stream": True, "n": len(parts)}
    return gap.join([b"", *frames, DONE]), request if asks or draw(st.booleans()) else None


def _interleave(parts: list[list[dict[str, Any]]], *, alternately: bool) -> Iterable[dict[str, Any]]:
    if not alternately:
        return [one for part in parts for one in part]
    longest = max(map(len, parts))
    return [part[position] for position in range(longest) for part in parts if position < len(part)]


# Streams with arbitrary values in any member

_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_words = st.sampled_from(("", "null", "stop", "assistant", "function", "error", "<think>", "{}", "call_1", "0"))
anything = st.recursive(
    _scalars | _words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | _words, inner, max_size=3),
    max_leaves=6,
)


def _maybe(members: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """An object with some of these members, each with the given or an arbitrary value."""
    return anything | st.fixed_dictionaries({}, optional={key: anything | value for key, value in members.items()})


def _some(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(value, max_size=3)


_index = st.integers(-1, 2)
_usage = _maybe(dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), st.integers(0, 2)))
_entry = _maybe({"token": texts, "logprob": st.floats(), "bytes": _some(_index), "top_logprobs": _some(anything)})
_function = _maybe({"name": _words, "arguments": st.sampled_from(("", "{}", '{"a', '":1}'))})
_call = _maybe({"index": _index, "id": _words, "type": _words, "function": _function})
_delta = _maybe(
    {
        "role": _words,
        "content": _words,
        "tool_calls": _some(_call),
        "reasoning": _words,
        "reasoning_content": _words,
        "refusal": _words,
        "annotations": _some(_maybe({"type": _words, "url_citation": anything})),
        "audio": _maybe({"data": _words}),
    }
)
_choice = _maybe(
    {
        "index": _index,
        "delta": _delta,
        "message": _delta,
        "text": _words,
        "finish_reason": _words,
        "logprobs": _maybe({"content": _some(_entry), "refusal": _some(_entry), "top_logprobs": _some(anything)}),
    }
)
_chunk = _maybe(
    {
        "id": _words,
        "object": _words,
        "created": _index,
        "model": _words,
        "choices": _some(_choice),
        "usage": _usage,
        "error": _maybe({"message": _words, "code": anything}),
        "detail": anything,
    }
)
_payload = _chunk.map(lambda value: json.dumps(value).encode()) | st.sampled_from(
    (b"[DONE]", b"", b": x", b"{", b"[done]")
)
_prefix = st.sampled_from((b"data: ", b"data:", b"data:  ", b"", b"error: ", b"event: x\ndata: ", b"id: 1\ndata: "))
_ending = st.sampled_from((b"\n\n", b"\n", b"\r\n\r\n", b"\r\r", b""))
odd_streams = st.lists(st.tuples(_prefix, _payload, _ending).map(b"".join), max_size=8).map(b"".join)
