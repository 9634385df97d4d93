"""Base classes of the dialects: how requests are built, and how the stream of an answer is timed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from welldone.bench.report import BenchRecord
from welldone.core.events import Usage
from welldone.core.lenient_json import clean_unicode

MAX_MESSAGE_CHARS = 100
"""Characters of a message: many share a line of the report."""
OutputKind: TypeAlias = Literal["role", "text", "refusal", "reasoning", "tool"]


class StreamTimer(ABC):
    """Writes the events of one stream, with their times, into the record of its request."""

    def __init__(self, record: BenchRecord) -> None:
        self.texts: list[str] = []
        """Text of the visible answer, in pieces."""
        self.hidden_texts: list[str] = []
        """Reasoning, refusals and tool calls, which are tokens too."""
        self.failure: str | None = None
        """The server's error message in one line; None if it did not fail."""
        self._record = record

    @property
    def answer(self) -> str:
        """The visible answer, for the next turn of the conversation, with lone surrogates replaced."""
        return clean_unicode("".join(self.texts))

    @property
    def all_text(self) -> str:
        """All generated text, for the token counter."""
        return clean_unicode("".join(self.hidden_texts)) + self.answer

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether the final event has arrived: clients disconnect then, and some servers close much later."""

    @property
    @abstractmethod
    def truncation(self) -> str:
        """What a finished stream lacks to be complete; empty if it is complete."""

    @property
    @abstractmethod
    def rules(self) -> tuple[str, ...]:
        """The rules that the stream broke."""

    @abstractmethod
    def feed(self, data: bytes, now: float) -> None:
        """Process received bytes."""

    @abstractmethod
    def close(self, now: float) -> None:
        """Process the end of the stream."""

    # For the dialects.

    def _on_output(self, output_kind: OutputKind, now: float, text: str = "") -> None:
        """Record generated text, and the time of the first output of its kind."""
        field = "content_s" if output_kind in ("text", "refusal") else f"{output_kind}_s"
        if getattr(self._record, field) is None:
            setattr(self._record, field, now)
        if text:
            (self.texts if output_kind == "text" else self.hidden_texts).append(text)
            self._record.times.append(now)

    def _on_usage(self, usage: Usage) -> None:
        # Servers that do not count tokens report 0.
        record = self._record
        record.prompt_tokens = usage.prompt_tokens or record.prompt_tokens
        record.tokens = usage.completion_tokens or None

    def _on_failure(self, message: str) -> None:
        self.failure = " ".join(message.split())[:MAX_MESSAGE_CHARS] or "an error"


# The interface of a dialect.

JsonBody: TypeAlias = dict[str, Any]
HeaderPairs: TypeAlias = tuple[tuple[str, str], ...]


class BenchDialect(msgspec.Struct, frozen=True):
    """Builds requests of one API and times its streams."""

    path: str
    stream_timer: Callable[[BenchRecord, JsonBody], StreamTimer]
    """Returns the timer for the answer to a request with this body."""
    messages_field: str = "messages"
    system_field: str = ""
    """Field for the system prompt; empty if it is a message."""
    max_tokens_field: str = "max_tokens"
    min_max_tokens: int = 1
    """The smallest `max_tokens` that servers accept."""
    preferred_fields: Mapping[str, Any] = {}
    """Fields of every request, unless the server rejects them."""
    fixed_headers: HeaderPairs = ()
    key_header: str = ""
    """Header for the key, in addition to `Authorization`."""
    convert_message: Callable[[JsonBody, int], JsonBody] = lambda message, position: message
    """Converts a message from the format of chat, given its position."""

    def headers(self, key: str | None) -> HeaderPairs:
        """Return additional headers of every request."""
        if key is None or not self.key_header:
            return self.fixed_headers
        return (*self.fixed_headers, (self.key_header, key))

    def body(self, common_fields: JsonBody, messages: list[JsonBody], max_tokens: int | None) -> JsonBody:
        """Return a streaming request with the common fields and these messages, given in the format of chat."""
        fields: JsonBody = {"stream": True}
        if self.system_field:
            system = "\n\n".join([message["content"] for message in messages if message["role"] == "system"])
            messages = [message for message in messages if message["role"] != "system"]
            fields |= {self.system_field: system} if system else {}
        if max_tokens is not None:
            fields[self.max_tokens_field] = max_tokens
        converted = [self.convert_message(message, position) for position, message in enumerate(messages)]
        return {**common_fields, self.messages_field: converted, **fields}
