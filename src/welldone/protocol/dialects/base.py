"""What a dialect is: how the events of an answer are said to a client, as a stream and whole."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, Protocol, TypeAlias

import msgspec

from welldone.protocol import sse
from welldone.protocol.collect import CollectedChoice, CollectedReply, CollectedToolCall
from welldone.protocol.envelope import Envelope
from welldone.protocol.events import Event, Failure, Json, Usage
from welldone.protocol.lenient_json import normalise_object_text
from welldone.protocol.request_facts import TRUNCATED_REASONS, RequestFacts

# The arguments of a call as the object that Messages and Ollama carry.


CUSTOM_INPUT_MEMBER = "input"
"""The member that has the free text of a custom call, in dialects that know calls with an object only."""


def arguments_object(text: str, *, is_custom: bool, is_cut: bool) -> msgspec.Raw | None:
    """The object; None where the call is incomplete and must not be delivered: a client would run it.

    `is_cut`: the answer was cut, and this may be the place. The text of a custom call has no end that can be seen.
    """
    if is_custom:
        return None if is_cut else msgspec.Raw(msgspec.json.encode({CUSTOM_INPUT_MEMBER: text}))
    if not text.strip():
        return None if is_cut else msgspec.Raw(b"{}")
    return normalise_object_text(text)


def complete_tool_calls(answer: CollectedChoice) -> Iterator[tuple[CollectedToolCall, msgspec.Raw]]:
    """The calls of a whole answer that may be delivered, each with its object. Only the last custom call may be cut."""
    for call in answer.tool_calls:
        may_be_cut = answer.finish_reason in TRUNCATED_REASONS and (call is answer.tool_calls[-1] or not call.is_custom)
        given = arguments_object(call.arguments, is_custom=call.is_custom, is_cut=may_be_cut)
        if given is not None:
            yield call, given


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
