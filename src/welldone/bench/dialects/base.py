"""Base classes of the dialects: how requests are built, and how the stream of an answer is timed."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from welldone.bench.record import BenchRecord
from welldone.protocol.events import Usage
from welldone.protocol.lenient_json import clean_unicode

MAX_MESSAGE_CHARS = 100
"""Characters of a message: many share a line of the report."""


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

    def _on_role(self, now: float) -> None:
        if self._record.role_s is None:
            self._record.role_s = now

    def _on_text(self, text: str, now: float) -> None:
        record = self._record
        self.texts.append(text)
        record.times.append(now)
        if record.content_s is None:
            record.content_s = now

    def _on_refusal(self, text: str, now: float) -> None:
        self._on_hidden_text(text, now)
        if self._record.content_s is None:
            self._record.content_s = now

    def _on_reasoning(self, text: str, now: float) -> None:
        self._on_hidden_text(text, now)
        if self._record.reasoning_s is None:
            self._record.reasoning_s = now

    def _on_tool_call(self, now: float) -> None:
        if self._record.tool_s is None:
            self._record.tool_s = now

    def _on_hidden_text(self, text: str, now: float) -> None:
        """Record other generated text, such as the arguments of a tool call."""
        self.hidden_texts.append(text)
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


class BenchDialect(Protocol):
    """Builds requests of one API and times its streams."""

    path: str
    preferred_fields: Mapping[str, Any]
    """Fields of every request, unless the server rejects them."""
    min_max_tokens: int
    """The smallest `max_tokens` that servers accept."""

    def headers(self, key: str | None) -> HeaderPairs:
        """Return additional headers of every request."""

    def body(self, common_fields: JsonBody, messages: list[JsonBody], max_tokens: int | None) -> JsonBody:
        """Return a streaming request with the common fields and these messages, given in the format of chat."""

    def stream_timer(self, record: BenchRecord, body: JsonBody) -> StreamTimer:
        """Return the timer for the answer to this request."""


def split_system_prompt(messages: list[JsonBody]) -> tuple[str, list[JsonBody]]:
    """Split messages into the system prompt and the others: some APIs have a separate field for it."""
    system = [message["content"] for message in messages if message["role"] == "system"]
    return "\n\n".join(system), [message for message in messages if message["role"] != "system"]
