"""What a dialect is: how the events of an answer are said to a client, as a stream and whole."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Protocol, TypeAlias

import msgspec

from welldone.wire import sse
from welldone.wire.asked import RequestFacts
from welldone.wire.collect import CollectedReply
from welldone.wire.events import Event, Failure, Json, Usage
from welldone.wire.head import Envelope

KEEP_ALIVE = sse.comment(b"keep-alive")
"""A sign of life that every client of every dialect passes over."""

UsageSource: TypeAlias = Callable[[], Usage | None]
"""What the server has counted so far: some dialects say it before the answer is whole."""


class DialectWriter(Protocol):
    """Bytes of a right stream out of legal events."""

    def send(self, event: Event) -> bytes:
        """The bytes that say `event`; none where it is said later. OutOfTurnError where it may not come now."""

    def accepts_text(self, index: int) -> bool:
        """Whether text of this choice may come now, with nothing that waits to ride on it."""

    def end(self) -> bytes:
        """The bytes that end the stream. OutOfTurnError where something is still open."""


class Dialect(ABC):
    """How one client is answered. Made for one answer: it knows what its request asked for."""

    IS_CHAT: ClassVar[bool] = False
    """Whether plain text goes out in chunks of chat, which all look the same but for their text."""
    BUFFERS_OUTPUT: ClassVar[bool] = False
    """Whether a stream keeps all that was said, to say it again at its end: then its length must be bounded."""
    REPORTS_PROMPT_TOKENS_FIRST: ClassVar[bool] = False
    """Whether the prompt's tokens are said before the answer: then the server is asked to count as it goes."""
    HEADERS: ClassVar[tuple[tuple[str, str], ...]] = sse.HEADERS
    """The headers of a stream."""
    INITIAL_KEEP_ALIVE: ClassVar[bytes] = KEEP_ALIVE
    """A sign of life in a stream that has said nothing yet."""
    final_object: Json | None = None
    """The answer as an object, when it has come to its end, in a dialect in which it can be asked for again."""

    def envelope(self, upstream: Envelope | None, fallback: Envelope) -> Envelope:
        """The envelope that goes out, by what the server said of itself and what we would say."""
        return upstream or fallback

    def restrict(self, facts: RequestFacts, *, is_stream: bool) -> RequestFacts:
        """The facts of the request, with what this dialect has no room for."""
        return facts

    @abstractmethod
    def make_writer(self, envelope: Envelope, usage_source: UsageSource) -> DialectWriter:
        """The writer of a stream."""

    @abstractmethod
    def encode_reply(self, envelope: Envelope, reply: CollectedReply) -> bytes:
        """The reply to a request that did not ask for a stream."""

    @abstractmethod
    def final_error_bytes(self, failure: Failure) -> bytes:
        """The end of a stream that can say nothing more than that it failed."""


class TranslatedDialect(Dialect):
    """A dialect that its server does not speak: the id and the time are ours, and only the model is the server's."""

    def envelope(self, upstream: Envelope | None, fallback: Envelope) -> Envelope:
        """Our own envelope, with the model that answered."""
        return fallback if upstream is None else msgspec.structs.replace(fallback, model=upstream.model)

    def restrict(self, facts: RequestFacts, *, is_stream: bool) -> RequestFacts:
        """There is room for one choice."""
        return msgspec.structs.replace(facts, choice_count=1)
