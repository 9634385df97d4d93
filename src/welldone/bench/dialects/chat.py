"""/v1/chat/completions: the core's reader says what the parts of an answer are.

Repair only notes which rules the stream breaks; what it would say instead nobody hears.
"""

from collections.abc import Mapping
from typing import Any

from welldone.bench.dialects.dialect import Body, Headers
from welldone.bench.dialects.ear import Ear
from welldone.bench.dialects.quick import Quick
from welldone.bench.record import Record
from welldone.wire.asked import Asked, read_request
from welldone.wire.events import (
    Event,
    Failure,
    Finish,
    Opening,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    Usage,
)
from welldone.wire.head import Endpoint, Head
from welldone.wire.notes import Notes
from welldone.wire.reader import Reader
from welldone.wire.repair import Repair

_NOBODY = Head("chatcmpl-bench", 0, "bench")


class Chat:
    """How chat is asked and heard."""

    path = "/chat/completions"
    wanted: Mapping[str, Any] = {"stream_options": {"include_usage": True}}
    least_tokens = 1

    def headers(self, key: str | None) -> Headers:
        return ()

    def body(self, members: Body, messages: list[Body], limit_tokens: int | None) -> Body:
        body = {**members, "messages": messages, "stream": True}
        return body if limit_tokens is None else body | {"max_tokens": limit_tokens}

    def ear(self, record: Record, body: Body) -> Ear:
        return ChatEar(record, read_request(body))


class ChatEar(Ear):
    """Hears one stream of chat."""

    def __init__(self, record: Record, asked: Asked) -> None:
        super().__init__(record)
        self._notes = Notes(Endpoint.CHAT)
        self._reader = Reader(Endpoint.CHAT, fallback=_NOBODY, asked=asked, notes=self._notes)
        self._repair = Repair(Endpoint.CHAT, asked=asked, notes=self._notes, mint=lambda: "call_bench")
        self._quick = Quick(self._reader, self._repair)

    @property
    def is_done(self) -> bool:
        return self._reader.is_done

    @property
    def cut(self) -> str:
        is_whole = self._reader.is_done or self._record.finish
        return "" if is_whole else "the stream ended without a finish_reason"

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(self._notes.counts())

    def feed(self, data: bytes, now: float) -> None:
        texts, data = self._quick.take(data)
        self.texts += texts
        self._record.times.extend([now] * len(texts))
        if data:
            self._read(data, now)

    def close(self, now: float) -> None:
        self._read(self._quick.close(), now)
        self._take(self._reader.close(), now)
        self._repair.close(is_done=self._reader.is_done)

    def _read(self, data: bytes, now: float) -> None:
        """Read what takes no short way, and learn from it."""
        events: list[Event] = []
        said: list[Event] = []
        frames = self._reader.frames(data)
        for frame in frames:
            said = self._reader.read(frame)
            events += said
        self._take(events + self._reader.check(), now)
        if frames:
            self._quick.learn(frames[-1].raw, said)

    def _take(self, events: list[Event], now: float) -> None:
        for event in events:
            if type(event) is Text:
                self._say(event.text, now)
            else:
                self._take_other(event, now)
        self._repair.feed(events)

    def _take_other(self, event: Event, now: float) -> None:
        match event:
            case Opening():
                self._open(now)
            case Reasoning(text=text):
                self._think(text, now)
            case Refusal(text=text):
                self._refuse(text, now)
            case ToolCall():
                self._call(now)
            case ToolArguments(text=text):
                self._mutter(text, now)
            case Finish(reason=reason):
                self._record.finish = reason
            case Usage():
                self._count(event)
            case Failure(message=message):
                self._fail(message)
            case _:
                pass  # signs of life, logprobs, fields of its own
