"""Builders of chunks, frames and streams in OpenAI's format, independent of the writers under test."""

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Event, UnknownFields
from welldone.core.repair import EventRepairer
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import RequestFacts
from welldone.dialects.chat.reader import EventReader
from welldone.stream.pipeline import StreamPipeline

Json: TypeAlias = dict[str, Any]

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS
ENVELOPE = Envelope("chatcmpl-1", 1700000000, "m")
FALLBACK = Envelope("chatcmpl-ours", 1600000000, "ours")
FALLBACKS = {CHAT: FALLBACK, COMPLETIONS: Envelope("cmpl-ours", 1600000000, "ours")}
DONE = b"data: [DONE]\n\n"
ABSENT: Any = object()
"""Value of a member that is left out."""


def pack(value: object) -> bytes:
    """Compact JSON on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def frame(value: object) -> bytes:
    """SSE frame of a JSON value."""
    return b"data: " + pack(value) + b"\n\n"


def stream(*parts: object, end: bytes = DONE) -> bytes:
    """Stream of chunks; bytes are inserted unchanged."""
    return b"".join(part if isinstance(part, bytes) else frame(part) for part in parts) + end


def without(value: Json) -> Json:
    """Object without the members that are ABSENT."""
    return {key: item for key, item in value.items() if item is not ABSENT}


def chunk(*choices: object, **members: object) -> Json:
    """Chat chunk. Members are added, replaced or, if ABSENT, left out."""
    envelope = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "m"}
    return without({**envelope, "choices": list(choices), **members})


def choice(delta: object, finish: object = None, index: object = 0, **members: object) -> Json:
    """Choice of a chat chunk."""
    return without({"index": index, "delta": delta, "logprobs": None, "finish_reason": finish, **members})


def delta_chunk(delta: object, index: object = 0, **members: object) -> Json:
    """Chat chunk with one delta."""
    return chunk(choice(delta, None, index, **members))


def finish(reason: object = "stop", index: int = 0) -> Json:
    """Chunk that finishes a choice."""
    return chunk(choice({}, reason, index))


def role(index: int = 0) -> Json:
    """Chunk that starts a choice."""
    return delta_chunk({"role": "assistant", "content": ""}, index)


def content_chunks(*texts: str, index: int = 0) -> list[Json]:
    """Chat chunks with `content`."""
    return [delta_chunk({"content": text}, index) for text in texts]


def usage_chunk(usage: object, **members: object) -> Json:
    """Chunk with only usage."""
    return chunk(**{"usage": usage, **members})


def count(prompt: int = 5, completion: int = 3, **more: object) -> Json:
    """Usage object."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        **more,
    }


def call(index: object = 0, **members: object) -> Json:
    """Delta with one piece of a tool call."""
    return {"tool_calls": [without({"index": index, **members})]}


def call_start(
    index: object = 0, id: object = "call_a", name: str = "get", arguments: object = "", **more: object
) -> Json:
    """Delta that starts a tool call."""
    return call(index, **{"id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **more})


def piece(arguments: object, index: object = 0) -> Json:
    """Delta with a piece of a call's arguments."""
    return call(index, function={"arguments": arguments})


def text_chunk(*choices: object, **members: object) -> Json:
    """Completions chunk."""
    return chunk(*choices, **{"id": "cmpl-1", "object": "text_completion", **members})


def text_choice(text: object = "", finish: object = None, index: object = 0, **members: object) -> Json:
    """Choice of a completions chunk."""
    return without({"index": index, "text": text, "logprobs": None, "finish_reason": finish, **members})


def text(text: object, index: object = 0, **members: object) -> Json:
    """Completions chunk with one text."""
    return text_chunk(text_choice(text, None, index, **members))


def text_end(reason: object = "stop", index: int = 0) -> Json:
    """Completions chunk that finishes a choice."""
    return text_chunk(text_choice("", reason, index))


def entry(token: str, logprob: object = -0.5, *tops: object, **members: object) -> Json:
    """Log probability entry of a token in the shape of chat."""
    raw = list(token.encode())
    return without({"token": token, "logprob": logprob, "bytes": raw, "top_logprobs": list(tops), **members})


def top(token: str, logprob: object = -0.5) -> Json:
    """Alternative of a token."""
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


def cuts(data: bytes, size: int = 1) -> list[bytes]:
    """Split bytes into pieces of equal size."""
    return [data[start : start + size] for start in range(0, len(data), size)]


class Read:
    """Result of reading bytes."""

    def __init__(
        self,
        data: bytes,
        endpoint: Endpoint = CHAT,
        *,
        facts: RequestFacts | None = None,
        size: int | None = None,
        limit_bytes: int = 1 << 24,
    ) -> None:
        self.repair_log = RepairLog()
        reader = EventReader(
            endpoint,
            fallback=FALLBACKS[endpoint],
            facts=facts or RequestFacts(),
            repair_log=self.repair_log,
            limit_bytes=limit_bytes,
        )
        self.events: list[Event] = []
        for part in cuts(data, size or max(1, len(data))):
            self.events += reader.feed(part)
        self.events += reader.close()
        self.is_done = reader.is_done
        self.envelope = reader.chunks.envelope
        self.rules = rules(self.repair_log)


class RepairedStream:
    """Result of repairing the bytes of a stream."""

    def __init__(
        self,
        data: bytes,
        endpoint: Endpoint = CHAT,
        *,
        facts: RequestFacts | None = None,
        size: int | None = None,
        limit_bytes: int = 1 << 24,
    ) -> None:
        self.pipeline = StreamPipeline(endpoint, fallback=FALLBACKS[endpoint], facts=facts, limit_bytes=limit_bytes)
        parts = [self.pipeline.feed(part) for part in cuts(data, size or max(1, len(data)))]
        self.body = b"".join([*parts, self.pipeline.close()])
        self.rules = rules(self.pipeline.repair_log)


class RepairedEvents:
    """Result of repairing events; `events` excludes flushes."""

    def __init__(
        self,
        events: Iterable[Event],
        endpoint: Endpoint = CHAT,
        *,
        facts: RequestFacts | None = None,
        is_done: bool = True,
    ) -> None:
        self.repair_log = RepairLog()
        self.repair = EventRepairer(
            endpoint, facts=facts or RequestFacts(), repair_log=self.repair_log, new_call_id=numbered("call_new")
        )
        self.all = self.repair.feed(list(events)) + self.repair.close(is_done=is_done)
        self.events = [event for event in self.all if not is_flush(event)]
        self.rules = rules(self.repair_log)


def is_flush(event: Event) -> bool:
    """Whether an event only flushes pending fields."""
    return isinstance(event, UnknownFields) and event.in_own_chunk and not event.fields


def rules(repair_log: RepairLog) -> list[str]:
    """Rules of the log in alphabetical order."""
    return sorted(repair.rule for repair in repair_log.entries())


def numbered(stem: str) -> Callable[[], str]:
    """Generator function of ids: stem1, stem2, …"""
    return iter(f"{stem}{number}" for number in range(1, 10**6)).__next__
