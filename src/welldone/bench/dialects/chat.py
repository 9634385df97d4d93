"""/v1/chat/completions: the core's reader says what the parts of an answer are.

Repair only notes which rules the stream breaks; what it would say instead nobody hears.
"""

from collections.abc import Mapping
from typing import Any

from welldone.bench.dialects.dialect import JsonBody, HeaderPairs
from welldone.bench.dialects.ear import StreamTimer
from welldone.bench.dialects.quick import ChunkFastPath
from welldone.bench.record import BenchRecord
from welldone.wire.asked import RequestFacts, read_request_facts
from welldone.wire.events import (
    Event,
    Failure,
    Finish,
    ChoiceStart,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    Usage,
)
from welldone.wire.head import Endpoint, Envelope
from welldone.wire.notes import RepairLog
from welldone.wire.reader import EventReader
from welldone.wire.repair import EventRepairer

_CHAT_ENVELOPE = Envelope("chatcmpl-bench", 0, "bench")


class ChatBenchDialect:
    """How chat is asked and heard."""

    path = "/chat/completions"
    preferred_fields: Mapping[str, Any] = {"stream_options": {"include_usage": True}}
    min_max_tokens = 1

    def headers(self, key: str | None) -> HeaderPairs:
        return ()

    def body(self, common_fields: JsonBody, messages: list[JsonBody], max_tokens: int | None) -> JsonBody:
        body = {**common_fields, "messages": messages, "stream": True}
        return body if max_tokens is None else body | {"max_tokens": max_tokens}

    def stream_timer(self, record: BenchRecord, body: JsonBody) -> StreamTimer:
        return ChatStreamTimer(record, read_request_facts(body))


class ChatStreamTimer(StreamTimer):
    """Hears one stream of chat."""

    def __init__(self, record: BenchRecord, facts: RequestFacts) -> None:
        super().__init__(record)
        self._repair_log = RepairLog(Endpoint.CHAT)
        self._reader = EventReader(Endpoint.CHAT, fallback=_CHAT_ENVELOPE, facts=facts, repair_log=self._repair_log)
        self._repair = EventRepairer(
            Endpoint.CHAT, facts=facts, repair_log=self._repair_log, new_call_id=lambda: "call_bench"
        )
        self._fast_path = ChunkFastPath(self._reader, self._repair)

    @property
    def is_done(self) -> bool:
        return self._reader.is_done

    @property
    def truncation(self) -> str:
        is_whole = self._reader.is_done or self._record.finish_reason
        return "" if is_whole else "the stream ended without a finish_reason"

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(self._repair_log.counts())

    def feed(self, data: bytes, now: float) -> None:
        texts, data = self._fast_path.take(data)
        self.texts += texts
        self._record.times.extend([now] * len(texts))
        if data:
            self._read(data, now)

    def close(self, now: float) -> None:
        self._read(self._fast_path.close(), now)
        self._record_events(self._reader.close(), now)
        self._repair.close(is_done=self._reader.is_done)

    def _read(self, data: bytes, now: float) -> None:
        """Read what takes no short way, and learn from it."""
        events: list[Event] = []
        said: list[Event] = []
        frames = self._reader.decode_frames(data)
        for frame in frames:
            said = self._reader.read_frame(frame)
            events += said
        self._record_events(events + self._reader.check_length(), now)
        if frames:
            self._fast_path.learn(frames[-1].raw, said)

    def _record_events(self, events: list[Event], now: float) -> None:
        for event in events:
            if type(event) is Text:
                self._on_text(event.text, now)
            else:
                self._record_other(event, now)
        self._repair.feed(events)

    def _record_other(self, event: Event, now: float) -> None:
        match event:
            case ChoiceStart():
                self._on_role(now)
            case Reasoning(text=text):
                self._on_reasoning(text, now)
            case Refusal(text=text):
                self._on_refusal(text, now)
            case ToolCall():
                self._on_tool_call(now)
            case ToolArguments(text=text):
                self._on_hidden_text(text, now)
            case Finish(reason=reason):
                self._record.finish_reason = reason
            case Usage():
                self._on_usage(event)
            case Failure(message=message):
                self._on_failure(message)
            case _:
                pass  # signs of life, logprobs, fields of its own
