"""Small builders: chunks, frames and streams as OpenAI writes them, made without the writers that they test."""

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import Event, UnknownFields
from welldone.protocol.pipeline import StreamPipeline
from welldone.protocol.reader import EventReader
from welldone.protocol.repair import EventRepairer
from welldone.protocol.repair_log import RepairLog
from welldone.protocol.request_facts import RequestFacts

Json: TypeAlias = dict[str, Any]

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS
HEAD = Envelope("chatcmpl-1", 1700000000, "m")
FALLBACK = Envelope("chatcmpl-ours", 1600000000, "ours")
FALLBACKS = {CHAT: FALLBACK, COMPLETIONS: Envelope("cmpl-ours", 1600000000, "ours")}
DONE = b"data: [DONE]\n\n"
GONE: Any = object()
"""The value of a member that is not there."""


def pack(value: object) -> bytes:
    """JSON on one line, without a space too much."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def frame(value: object) -> bytes:
    """The frame that carries a JSON value."""
    return b"data: " + pack(value) + b"\n\n"


def stream(*parts: object, end: bytes = DONE) -> bytes:
    """A stream of chunks; bytes stand in it as they are."""
    return b"".join(part if isinstance(part, bytes) else frame(part) for part in parts) + end


def without(value: Json) -> Json:
    """An object less what is GONE."""
    return {key: item for key, item in value.items() if item is not GONE}


def chunk(*choices: object, **members: object) -> Json:
    """A chat chunk. Members are added, changed or, if GONE, left out."""
    envelope = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "m"}
    return without({**envelope, "choices": list(choices), **members})


def choice(delta: object, finish: object = None, index: object = 0, **members: object) -> Json:
    """A choice of a chat chunk."""
    return without({"index": index, "delta": delta, "logprobs": None, "finish_reason": finish, **members})


def say(delta: object, index: object = 0, **members: object) -> Json:
    """A chat chunk that says one delta."""
    return chunk(choice(delta, None, index, **members))


def finish(reason: object = "stop", index: int = 0) -> Json:
    """The chunk that ends a choice."""
    return chunk(choice({}, reason, index))


def role(index: int = 0) -> Json:
    """The chunk that opens a choice."""
    return say({"role": "assistant", "content": ""}, index)


def words(*texts: str, index: int = 0) -> list[Json]:
    """Chunks of text."""
    return [say({"content": text}, index) for text in texts]


def counted(usage: object, **members: object) -> Json:
    """A chunk with nothing but usage."""
    return chunk(**{"usage": usage, **members})


def count(prompt: int = 5, completion: int = 3, **more: object) -> Json:
    """A usage object."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        **more,
    }


def call(index: object = 0, **members: object) -> Json:
    """A delta with one piece of a tool call."""
    return {"tool_calls": [without({"index": index, **members})]}


def named(index: object = 0, id: object = "call_a", name: str = "get", arguments: object = "", **more: object) -> Json:
    """The delta that begins a tool call."""
    return call(index, **{"id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **more})


def piece(arguments: object, index: object = 0) -> Json:
    """A delta with more of a call's arguments."""
    return call(index, function={"arguments": arguments})


def text_chunk(*choices: object, **members: object) -> Json:
    """A completions chunk."""
    return chunk(*choices, **{"id": "cmpl-1", "object": "text_completion", **members})


def text_choice(text: object = "", finish: object = None, index: object = 0, **members: object) -> Json:
    """A choice of a completions chunk."""
    return without({"index": index, "text": text, "logprobs": None, "finish_reason": finish, **members})


def text(text: object, index: object = 0, **members: object) -> Json:
    """A completions chunk that says one text."""
    return text_chunk(text_choice(text, None, index, **members))


def text_end(reason: object = "stop", index: int = 0) -> Json:
    """The chunk that ends a choice of a completion."""
    return text_chunk(text_choice("", reason, index))


def entry(token: str, logprob: object = -0.5, *tops: object, **members: object) -> Json:
    """A token with its log probability, as chat has it."""
    raw = list(token.encode())
    return without({"token": token, "logprob": logprob, "bytes": raw, "top_logprobs": list(tops), **members})


def top(token: str, logprob: object = -0.5) -> Json:
    """A token that might have been."""
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


def cuts(data: bytes, size: int = 1) -> list[bytes]:
    """The bytes in pieces of one size."""
    return [data[start : start + size] for start in range(0, len(data), size)]


class Read:
    """What a reader makes of bytes."""

    def __init__(
        self,
        data: bytes,
        endpoint: Endpoint = CHAT,
        *,
        asked: RequestFacts | None = None,
        size: int | None = None,
        limit_bytes: int = 1 << 24,
    ) -> None:
        self.notes = RepairLog()
        reader = EventReader(
            endpoint,
            fallback=FALLBACKS[endpoint],
            facts=asked or RequestFacts(),
            repair_log=self.notes,
            limit_bytes=limit_bytes,
        )
        self.events: list[Event] = []
        for part in cuts(data, size or max(1, len(data))):
            self.events += reader.feed(part)
        self.events += reader.close()
        self.is_done = reader.is_done
        self.head = reader.envelope
        self.rules = rules(self.notes)


class Fixed:
    """What a pipe makes of bytes."""

    def __init__(
        self,
        data: bytes,
        endpoint: Endpoint = CHAT,
        *,
        asked: RequestFacts | None = None,
        size: int | None = None,
        limit_bytes: int = 1 << 24,
    ) -> None:
        self.pipe = StreamPipeline(endpoint, fallback=FALLBACKS[endpoint], facts=asked, limit_bytes=limit_bytes)
        parts = [self.pipe.feed(part) for part in cuts(data, size or max(1, len(data)))]
        self.body = b"".join([*parts, self.pipe.close()])
        self.rules = rules(self.pipe.repair_log)


class Mended:
    """What repair makes of events; `events` are those that say something."""

    def __init__(
        self,
        events: Iterable[Event],
        endpoint: Endpoint = CHAT,
        *,
        asked: RequestFacts | None = None,
        is_done: bool = True,
    ) -> None:
        self.notes = RepairLog()
        self.repair = EventRepairer(
            endpoint, facts=asked or RequestFacts(), repair_log=self.notes, new_call_id=numbered("call_new")
        )
        self.all = self.repair.feed(list(events)) + self.repair.close(is_done=is_done)
        self.events = [event for event in self.all if not is_nudge(event)]
        self.rules = rules(self.notes)


def is_nudge(event: Event) -> bool:
    """Whether an event says nothing itself, but lets out what waits for the next chunk."""
    return isinstance(event, UnknownFields) and event.in_own_chunk and not event.fields


def rules(notes: RepairLog) -> list[str]:
    """The rules that were noted, in alphabetical order."""
    return sorted(note.rule for note in notes.entries())


def numbered(stem: str) -> Callable[[], str]:
    """A maker of ids: stem1, stem2, and so on."""
    return iter(f"{stem}{number}" for number in range(1, 10**6)).__next__
