"""Every generation endpoint: its request, a correct upstream reply, and how a response ended."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from faults.client import CHAT, ClientReply, Ending
from welldone.core.answer_format import AnswerFormat
from welldone.core.collect import collect
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import ChoiceStart, Event, Finish, Text, Usage
from welldone.core.request_facts import RequestFacts
from welldone.dialects.chat.writer import ChunkFormat
from welldone.dialects.messages.writer import MessagesFormat
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.mock.script import JSON_HEADERS, MockChunk, MockReply

Json: TypeAlias = dict[str, Any]

COMPLETIONS, RESPONSES, MESSAGES = "/v1/completions", "/v1/responses", "/v1/messages"
OLLAMA_CHAT, OLLAMA_GENERATE = "/api/chat", "/api/generate"
PATHS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, OLLAMA_CHAT, OLLAMA_GENERATE)
ENDS = ("response.completed", "response.incomplete", "message_stop")
NATIVE = (RESPONSES, MESSAGES)
"""Dialects that an upstream can have; others are translated to chat or completions."""


# Requests of a client.


def request(
    path: str, content: str = "Hello", *, model: str = "hello", stream: bool = True, more: Json | None = None
) -> bytes:
    """Build the body of a request on this path, with more fields."""
    messages = [{"role": "user", "content": content}]
    fields: Mapping[str, Json] = {
        COMPLETIONS: {"prompt": content},
        RESPONSES: {"input": content},
        MESSAGES: {"messages": messages, "max_tokens": 1000},
        OLLAMA_GENERATE: {"prompt": content},
    }
    own = fields.get(path, {"messages": messages})
    return msgspec.json.encode({"model": model, "stream": stream, **own, **(more or {})})


# Replies of a correct upstream.


def reply(path: str, texts: Sequence[str], *, stream: bool = True, after_s: float = 0.0) -> MockReply:
    """Build a reply with these texts, each in its own piece after a pause, or as one JSON object."""
    events: list[Event] = [
        ChoiceStart(0),
        *(Text(0, text) for text in texts),
        Finish(0, "stop"),
        Usage(1, len(texts), 1 + len(texts), {}),
    ]
    return reply_of_events(path, events, stream=stream, after_s=after_s)


def reply_of_events(path: str, events: Sequence[Event], *, stream: bool = True, after_s: float = 0.0) -> MockReply:
    """Build a reply with these events, each in its own piece after a pause, or as one JSON object."""
    dialect, head = _dialect(path)
    if not stream:
        return MockReply(
            (MockChunk(base64=dialect.encode_reply(head, collect(events))),), headers=JSON_HEADERS, framing="length"
        )
    writer = dialect.make_writer(head, lambda: None)
    writes = [*map(writer.send, events), writer.end()]
    return MockReply(tuple(MockChunk(base64=data, after_s=after_s) for data in writes if data))


def _dialect(path: str) -> tuple[AnswerFormat, Envelope]:
    if path.endswith("/responses"):
        return ResponsesFormat({}), Envelope("resp_1", 1, "scripted")
    if path.endswith("/messages"):
        return MessagesFormat(), Envelope("msg_1", 1, "scripted")
    if path.endswith("/chat/completions"):
        return ChunkFormat(RequestFacts(include_usage=True)), Envelope("chatcmpl-1", 1, "scripted")
    return ChunkFormat(RequestFacts(include_usage=True), Endpoint.COMPLETIONS), Envelope("cmpl-1", 1, "scripted")


# Responses that a client receives.


def ending(path: str, received: ClientReply) -> Ending:
    """Return how a response ended for a client of this path."""
    if path in (CHAT, COMPLETIONS) or not _is_stream(received) or received.status != 200 or not received.is_whole:
        return received.ending
    last = _objects(received)[-1:] or [{}]
    if "error" in last[0] or last[0].get("type") == "response.failed":
        return "error event"
    is_finished = last[0].get("done") is True or last[0].get("type") in ENDS
    return "whole" if is_finished else "truncated"


Parts: TypeAlias = dict[tuple[str, int], str]
"""Content of an answer by its kind (`text`, `reasoning`, `call`) and the index of its choice."""
_Pieces: TypeAlias = Iterator[tuple[str, int, str]]


def text(path: str, received: ClientReply) -> str:
    """Return the text of a response with one choice, also of a partial one."""
    return parts(path, received).get(("text", 0), "")


def parts(path: str, received: ClientReply) -> Parts:
    """Return the content of a response, also of a partial one. A call is its name, then its arguments."""
    is_stream = _is_stream(received)
    if received.status != 200 or not (is_stream or received.is_whole):
        return {}
    found: Parts = {}
    for one in _objects(received) if is_stream else [msgspec.json.decode(received.body)]:
        for kind, index, piece in _READERS[path](one):
            if piece:
                found[kind, index] = found.get((kind, index), "") + piece
    return found


def _is_stream(received: ClientReply) -> bool:
    return received.is_stream or b"application/x-ndjson" in received.head.lower()


def _objects(received: ClientReply) -> list[Json]:
    """Parse the JSON of all events or lines."""
    lines = (line.removeprefix(b"data: ") for line in received.body.split(b"\n"))
    return [msgspec.json.decode(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]


def _of_choices(value: Json) -> _Pieces:
    for choice in value.get("choices", ()):
        index, own = choice["index"], choice.get("delta") or choice.get("message") or {}
        yield "text", index, choice.get("text") or own.get("content") or ""
        yield "reasoning", index, own.get("reasoning_content") or ""
        for call in own.get("tool_calls") or ():
            yield "call", index, call["function"].get("name", "") + call["function"].get("arguments", "")


_RESPONSE_DELTAS = {
    "response.output_text.delta": "text",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.function_call_arguments.delta": "call",
}


def _of_responses(value: Json) -> _Pieces:
    if value.get("object") == "response":
        for item in value["output"]:
            kind = "reasoning" if item["type"] == "reasoning" else "text"
            for part in (*(item.get("summary") or ()), *(item.get("content") or ())):
                yield kind, 0, part["text"]
            yield "call", 0, item.get("name", "") + item.get("arguments", "")
    elif value["type"] == "response.output_item.added":
        yield "call", 0, value["item"].get("name", "")
    elif kind := _RESPONSE_DELTAS.get(value["type"], ""):
        yield kind, 0, value["delta"]


def _of_messages(value: Json) -> _Pieces:
    own = value.get("delta") or value.get("content_block") or {}
    for block in value.get("content", (own,)):
        yield "text", 0, block.get("text", "")
        yield "reasoning", 0, block.get("thinking", "")
        yield "call", 0, block.get("name", "") + block.get("partial_json", "")
        if block.get("input"):
            yield "call", 0, msgspec.json.encode(block["input"]).decode()


def _of_ollama(value: Json) -> _Pieces:
    own = value.get("message", value)
    yield "text", 0, own.get("content") or own.get("response") or ""
    yield "reasoning", 0, own.get("thinking") or ""


_READERS: Mapping[str, Callable[[Json], _Pieces]] = {
    CHAT: _of_choices,
    COMPLETIONS: _of_choices,
    RESPONSES: _of_responses,
    MESSAGES: _of_messages,
    OLLAMA_CHAT: _of_ollama,
    OLLAMA_GENERATE: _of_ollama,
}
