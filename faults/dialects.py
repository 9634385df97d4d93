"""Every generation endpoint: its request, a correct upstream reply, and how a response ended."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from faults.client import CHAT, ClientReply, Ending
from welldone.mock.script import JSON_HEADERS, MockChunk, MockReply
from welldone.protocol.collect import collect
from welldone.protocol.dialects.anthropic.writer import MessagesDialect
from welldone.protocol.dialects.base import Dialect
from welldone.protocol.dialects.chat import ChunkDialect
from welldone.protocol.dialects.responses.writer import ResponsesDialect
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import ChoiceStart, Event, Finish, Text, Usage
from welldone.protocol.request_facts import RequestFacts

Json: TypeAlias = dict[str, Any]

COMPLETIONS, RESPONSES, MESSAGES = "/v1/completions", "/v1/responses", "/v1/messages"
OLLAMA_CHAT, OLLAMA_GENERATE = "/api/chat", "/api/generate"
PATHS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, OLLAMA_CHAT, OLLAMA_GENERATE)
NATIVE = (RESPONSES, MESSAGES)
"""Dialects that an upstream can have; others are translated to chat or completions."""


# Requests of a client.


def request(path: str, content: str = "Hello", *, model: str = "hello", stream: bool = True) -> bytes:
    """Build the body of a request on this path."""
    messages = [{"role": "user", "content": content}]
    fields: Mapping[str, Json] = {
        COMPLETIONS: {"prompt": content},
        RESPONSES: {"input": content},
        MESSAGES: {"messages": messages, "max_tokens": 1000},
        OLLAMA_GENERATE: {"prompt": content},
    }
    return msgspec.json.encode({"model": model, "stream": stream, **fields.get(path, {"messages": messages})})


# Replies of a correct upstream.


def reply(path: str, texts: Sequence[str], *, stream: bool = True, after_s: float = 0.0) -> MockReply:
    """Build a reply with these texts, each in its own piece after a pause, or as one JSON object."""
    dialect, head = _dialect(path)
    events: list[Event] = [
        ChoiceStart(0),
        *(Text(0, text) for text in texts),
        Finish(0, "stop"),
        Usage(1, len(texts), 1 + len(texts), {}),
    ]
    if not stream:
        return MockReply(
            (MockChunk(base64=dialect.encode_reply(head, collect(events))),), headers=JSON_HEADERS, framing="length"
        )
    writer = dialect.make_writer(head, lambda: None)
    writes = [*map(writer.send, events), writer.end()]
    return MockReply(tuple(MockChunk(base64=data, after_s=after_s) for data in writes if data))


def _dialect(path: str) -> tuple[Dialect, Envelope]:
    if path.endswith("/responses"):
        return ResponsesDialect({}), Envelope("resp_1", 1, "scripted")
    if path.endswith("/messages"):
        return MessagesDialect(), Envelope("msg_1", 1, "scripted")
    if path.endswith("/chat/completions"):
        return ChunkDialect(RequestFacts(include_usage=True)), Envelope("chatcmpl-1", 1, "scripted")
    return ChunkDialect(RequestFacts(include_usage=True), Endpoint.COMPLETIONS), Envelope("cmpl-1", 1, "scripted")


# Responses that a client receives.


def ending(path: str, received: ClientReply) -> Ending:
    """Return how a response ended for a client of this path."""
    if path in (CHAT, COMPLETIONS) or not _is_stream(received) or received.status != 200 or not received.is_whole:
        return received.ending
    last = _objects(received)[-1:] or [{}]
    if "error" in last[0] or last[0].get("type") == "response.failed":
        return "error event"
    is_finished = last[0].get("done") is True or last[0].get("type") in ("response.completed", "message_stop")
    return "whole" if is_finished else "truncated"


def text(path: str, received: ClientReply) -> str:
    """Return the text of a response, also of a partial one."""
    if received.status != 200:
        return ""
    is_stream = _is_stream(received)
    if not is_stream and not received.is_whole:
        return ""
    objects = _objects(received) if is_stream else [msgspec.json.decode(received.body)]
    pick = (_STREAMED if is_stream else _WHOLE)[path]
    return "".join(piece for one in objects for piece in pick(one))


def _is_stream(received: ClientReply) -> bool:
    return received.is_stream or b"application/x-ndjson" in received.head.lower()


def _objects(received: ClientReply) -> list[Json]:
    """Parse the JSON of all events or lines."""
    lines = (line.removeprefix(b"data: ") for line in received.body.split(b"\n"))
    return [msgspec.json.decode(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]


def _of_choices(field: str) -> Callable[[Json], Iterator[str]]:
    def pick(value: Json) -> Iterator[str]:
        for choice in value.get("choices", ()):
            yield (choice.get(field) or {}).get("content") or ""

    return pick


def _of_completions(value: Json) -> Iterator[str]:
    for choice in value.get("choices", ()):
        yield choice["text"]


def _of_responses(value: Json) -> Iterator[str]:
    if value["type"] == "response.output_text.delta":
        yield value["delta"]


def _of_response(value: Json) -> Iterator[str]:
    for item in value["output"]:
        for part in item["content"]:
            yield part["text"]


def _of_messages(value: Json) -> Iterator[str]:
    if value["type"] == "content_block_delta":
        yield value["delta"].get("text", "")


def _of_message(value: Json) -> Iterator[str]:
    for block in value["content"]:
        yield block.get("text", "")


def _of_ollama_chat(value: Json) -> Iterator[str]:
    yield value.get("message", {}).get("content", "")


def _of_ollama_generate(value: Json) -> Iterator[str]:
    yield value.get("response", "")


_STREAMED: Mapping[str, Callable[[Json], Iterator[str]]] = {
    CHAT: _of_choices("delta"),
    COMPLETIONS: _of_completions,
    RESPONSES: _of_responses,
    MESSAGES: _of_messages,
    OLLAMA_CHAT: _of_ollama_chat,
    OLLAMA_GENERATE: _of_ollama_generate,
}
_WHOLE = {**_STREAMED, CHAT: _of_choices("message"), RESPONSES: _of_response, MESSAGES: _of_message}
