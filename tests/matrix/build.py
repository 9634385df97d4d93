"""The base stream of the matrix, and helpers that derive malformed streams from it.

Independent of our writers: a malformed stream must not depend on the code under test.
"""

import json
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
Part: TypeAlias = Json | bytes | None
"""A part of a stream: a chunk, raw bytes, or nothing."""

ABSENT = object()
"""Removes a member."""
DONE = b"data: [DONE]\n\n"
HEAD: Json = {"id": "chatcmpl-base", "object": "chat.completion.chunk", "created": 1600000000, "model": "base"}
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
ZERO = dict.fromkeys(USAGE, 0)


def frame(value: object, *, ascii_only: bool = False) -> bytes:
    """Encode an event with `value` as compact JSON."""
    return b"data: " + json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":")).encode() + b"\n\n"


def changed(old: Json, members: Json) -> Json:
    """Replace members of an object."""
    return {key: value for key, value in {**old, **members}.items() if value is not ABSENT}


def chunk(delta: Json, finish: str | None = None, *, index: int = 0) -> Json:
    """Return a chunk with one choice."""
    return {**HEAD, "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}]}


def but(old: Json, **members: object) -> Json:
    """Replace top-level members of a chunk."""
    return changed(old, members)


def but_choice(old: Json, **members: object) -> Json:
    """Replace members of the choices of a chunk."""
    return but(old, choices=[changed(choice, members) for choice in old["choices"]])


def but_delta(old: Json, **members: object) -> Json:
    """Replace members of the deltas of a chunk."""
    return but(old, choices=[{**choice, "delta": changed(choice["delta"], members)} for choice in old["choices"]])


ROLE = chunk({"role": "assistant", "content": ""})
HELLO = chunk({"content": "Hello"})
WORLD = chunk({"content": " world"})
STOP = chunk({}, "stop")
NOTHING = chunk({})
COUNTED = {**HEAD, "choices": [], "usage": USAGE}
BASE = [ROLE, HELLO, WORLD, STOP, COUNTED]


def stream(*parts: Part) -> bytes:
    """Join parts into a stream."""
    return b"".join(frame(part) if isinstance(part, dict) else part or b"" for part in parts)


def text(
    *,
    role: Part = ROLE,
    hello: Part = HELLO,
    world: Part = WORLD,
    stop: Part = STOP,
    counted: Part = COUNTED,
    end: Part = DONE,
) -> bytes:
    """Replace parts of the base stream."""
    return stream(role, hello, world, stop, counted, end)


def amid(*parts: Part) -> bytes:
    """Insert parts into the middle of the base stream."""
    return stream(ROLE, HELLO, *parts, WORLD, STOP, COUNTED, DONE)


def every(**members: object) -> bytes:
    """Replace top-level members of every chunk of the base stream."""
    return stream(*(but(one, **members) for one in BASE), DONE)


def every_choice(**members: object) -> bytes:
    """Replace members of every choice of the base stream."""
    return stream(*(but_choice(one, **members) for one in BASE), DONE)


def unfinished(**members: object) -> bytes:
    """Replace members of every unfinished choice of the base stream."""
    role, hello, world = (but_choice(one, **members) for one in (ROLE, HELLO, WORLD))
    return text(role=role, hello=hello, world=world)


def later(**members: object) -> bytes:
    """Replace members of the deltas after the role."""
    return text(hello=but_delta(HELLO, **members), world=but_delta(WORLD, **members))


def failed(*parts: Part) -> bytes:
    """Replace everything after the first word of the base stream with `parts`."""
    return stream(ROLE, HELLO, *parts)


OPENING = chunk({"role": "assistant", "content": None})
CALLED = chunk({}, "tool_calls")
FIRST: Json = {"index": 0, "id": "call_a", "type": "function", "function": {"name": "get", "arguments": ""}}
SECOND: Json = {"index": 1, "id": "call_b", "type": "function", "function": {"name": "put", "arguments": ""}}


def begin(old: Json = FIRST, **members: object) -> Json:
    """Return the first entry of a call; `name` and `arguments` are those of its function."""
    inner: Json = {key: members.pop(key) for key in ("name", "arguments") if key in members}
    return changed({**old, "function": changed(old["function"], inner)}, members)


def more(piece: str, **members: object) -> Json:
    """Return a later entry of a call; `name` is that of its function."""
    inner = {"name": members.pop("name"), "arguments": piece} if "name" in members else {"arguments": piece}
    return changed({"index": 0, "function": inner}, members)


X, ONE = more('{"x"'), more(":1}")
WHOLE = begin(arguments='{"x":1}')


def delta(*entries: Json, **members: object) -> Json:
    """Return a chunk whose delta has these tool call entries and other members."""
    return chunk({**members, "tool_calls": list(entries)})


def calls(*parts: Part, role: Part = OPENING, finish: Part = CALLED) -> bytes:
    """Return a stream of tool calls. A dict without choices is a tool call entry."""
    chunks = [delta(part) if isinstance(part, dict) and "choices" not in part else part for part in parts]
    return stream(role, *chunks, finish, COUNTED, DONE)
