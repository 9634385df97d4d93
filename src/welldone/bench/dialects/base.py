"""An ear: makes of the bytes of one answer what its record holds. What all dialects write down stands here."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from welldone.bench.record import BenchRecord
from welldone.protocol.events import Usage
from welldone.protocol.lenient_json import clean_unicode

MAX_MESSAGE_CHARS = 100
"""Characters of a message: many share a line of the report."""


class StreamTimer(ABC):
    """Hears one stream. Whoever feeds it says when the bytes came."""

    def __init__(self, record: BenchRecord) -> None:
        self.texts: list[str] = []
        """The visible answer, in pieces."""
        self.hidden_texts: list[str] = []
        """Thoughts, refusals and calls, which are tokens too."""
        self.failure: str | None = None
        """What the server said of its failure, in a line; None where it did not fail."""
        self._record = record

    @property
    def answer(self) -> str:
        """The visible answer, for who goes on with it. Pieces may have had halves of characters."""
        return clean_unicode("".join(self.texts))

    @property
    def all_text(self) -> str:
        """All that was said, for who counts it."""
        return clean_unicode("".join(self.hidden_texts)) + self.answer

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether the event came that ends an answer: clients leave then, and some servers close much later."""

    @property
    @abstractmethod
    def truncation(self) -> str:
        """What the answer lacks to be whole, in words, when its stream has ended; nothing where it is whole."""

    @property
    @abstractmethod
    def rules(self) -> tuple[str, ...]:
        """The rules that the stream broke."""

    @abstractmethod
    def feed(self, data: bytes, now: float) -> None:
        """More of it."""

    @abstractmethod
    def close(self, now: float) -> None:
        """It has ended."""

    # What dialects write down.

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
        """More of what is no visible answer, such as the arguments of a call."""
        self.hidden_texts.append(text)
        self._record.times.append(now)

    def _on_usage(self, usage: Usage) -> None:
        # Who has not counted says 0: that is no number of tokens.
        record = self._record
        record.prompt_tokens = usage.prompt_tokens or record.prompt_tokens
        record.tokens = usage.completion_tokens or None

    def _on_failure(self, message: str) -> None:
        self.failure = " ".join(message.split())[:MAX_MESSAGE_CHARS] or "an error"


# What a dialect is to a load test: where it is asked, in which words, and who hears the answer.


JsonBody: TypeAlias = dict[str, Any]
HeaderPairs: TypeAlias = tuple[tuple[str, str], ...]


class BenchDialect(Protocol):
    """How a server is asked and heard."""

    path: str
    preferred_fields: Mapping[str, Any]
    """Members that every request has, unless the server does not understand them."""
    min_max_tokens: int
    """The smallest limit that servers take."""

    def headers(self, key: str | None) -> HeaderPairs:
        """What every request has besides, by the key of the server."""

    def body(self, common_fields: JsonBody, messages: list[JsonBody], max_tokens: int | None) -> JsonBody:
        """A request for a stream: what all have in common, and what is said in this one, as chat says it."""

    def stream_timer(self, record: BenchRecord, body: JsonBody) -> StreamTimer:
        """Who hears the answer to this request."""


def split_system_prompt(messages: list[JsonBody]) -> tuple[str, list[JsonBody]]:
    """What the system says, and what the others do: some dialects have another place for the first."""
    system = [message["content"] for message in messages if message["role"] == "system"]
    return "\n\n".join(system), [message for message in messages if message["role"] != "system"]
