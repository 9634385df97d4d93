"""Random calls of the writers' methods, legal and illegal ones."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from hypothesis import strategies as st

from tests.laws.strategies import arguments, names, texts
from welldone import ChatStream, CompletionsStream, EventOrderError, MessagesStream, ResponsesStream

AnyStream: TypeAlias = ChatStream | CompletionsStream | ResponsesStream | MessagesStream
Call: TypeAlias = tuple[str, tuple[Any, ...], int]
"""Method, arguments, choice."""

USAGE = {"prompt_tokens": 3, "completion_tokens": 5}
CHOICES = 3
WRITERS: dict[str, Callable[[dict[str, Any] | None], AnyStream]] = {
    "chat": lambda request: ChatStream("m", request=request),
    "completions": lambda request: CompletionsStream("m", request=request),
    "responses": lambda request: ResponsesStream("m", request=request),
    "messages": lambda request: MessagesStream("m", prompt_tokens=3),
}
REQUESTS: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "stream": True, "stream_options": {"include_usage": True}, "n": CHOICES, "tools": [{}]},
    "completions": {"model": "m", "stream": True, "stream_options": {"include_usage": True}, "n": CHOICES},
    "responses": {"model": "m", "stream": True, "input": "x"},
    "messages": {"model": "m", "stream": True, "thinking": {"type": "enabled"}},
}

_indexes = st.integers(0, CHOICES - 1)
_contents = st.one_of(
    st.tuples(st.sampled_from(["reasoning", "text", "text", "refusal"]), texts.map(lambda text: (text,)), _indexes),
    st.tuples(st.just("text"), st.just(("",)), _indexes),
    st.tuples(st.just("tool_call"), st.tuples(names, st.one_of(arguments, arguments.map(json.loads))), _indexes),
    st.tuples(st.just("call_in_pieces"), st.tuples(names, arguments, st.integers(0, 9)), _indexes),
    st.tuples(st.just("finish"), st.sampled_from([(None,), ("stop",), ("length",), ("tool_calls",)]), _indexes),
    st.tuples(st.just("keep_alive"), st.just(()), _indexes),
)
calls: st.SearchStrategy[list[Call]] = st.lists(_contents, max_size=15)


def write(stream: AnyStream, made: list[Call], *, fails: bool = False) -> bytes:
    """Make the calls, ignore those that are illegal, and end the stream."""
    written = b"".join(_call(stream, *call) for call in made)
    if fails:
        return written + stream.fail("broken")
    for index in range(CHOICES):
        written += _call(stream, "finish", (None,), index)
    return written


def _call(stream: AnyStream, method: str, values: tuple[Any, ...], index: int) -> bytes:
    keywords: dict[str, Any] = {} if isinstance(stream, ResponsesStream | MessagesStream) else {"index": index}
    if method == "keep_alive":
        keywords = {}
    if method == "finish":
        keywords["usage"] = USAGE
    with suppress(EventOrderError, ValueError):
        if method == "call_in_pieces" and not isinstance(stream, CompletionsStream):
            name, text, cut = values
            started = stream.tool_call(name, text[:cut], **keywords)
            return started + stream.tool_arguments(text[cut:], **keywords)
        if hasattr(stream, method):
            return bytes(getattr(stream, method)(*values, **keywords))
    return b""
