"""The dialect of /v1/messages: events as its stream, and as its whole reply."""

from typing import ClassVar, assert_never

import msgspec

from welldone.wire.asked import CUT_SHORT, Asked
from welldone.wire.automaton import CHAT, Automaton, Stage
from welldone.wire.collect import Answer, Reply
from welldone.wire.counts import read_timings
from welldone.wire.dialects.arguments import CUSTOM_MEMBER
from welldone.wire.dialects.dialect import KEEP_ALIVE, Counted, Translated
from welldone.wire.dialects.messages.counts import usage_object
from welldone.wire.dialects.messages.objects import (
    content_of,
    message_object,
    stop_of,
    text_block,
    thinking_block,
    tool_block,
)
from welldone.wire.dialects.messages.scribe import PING, Scribe, last_words
from welldone.wire.dialects.stream import escape
from welldone.wire.events import (
    Event,
    Extra,
    Failure,
    Finish,
    Json,
    KeepAlive,
    Logprobs,
    Opening,
    Place,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    Usage,
)
from welldone.wire.head import Head

_HELD_CHARACTERS = 4 * 1024 * 1024  # said between two pieces of one call: far more than any model's longest answer


_CUSTOM_START, _CUSTOM_END = f'{{"{CUSTOM_MEMBER}":"', '"}'
"""What stands around the text of a custom call."""


class MessagesWriter:
    """A right stream of messages, of one choice.

    `stops` are the request's stop sequences. Blocks come one after the other: what is said between two pieces of one
    call's arguments waits until that call has ended.
    """

    def __init__(
        self, head: Head, counted: Counted, *, stops: tuple[str, ...] = (), shows_thoughts: bool = True
    ) -> None:
        self._head = head
        self._counted = counted
        self._stops = stops
        self._shows_thoughts = shows_thoughts
        self._automaton = Automaton(CHAT, is_ordered=True)
        self._scribe = Scribe()
        self._said: type[Event] | None = None  # what the open block is of
        self._held: list[Text | Reasoning | Refusal] = []
        self._held_characters = 0
        self._call: ToolCall | None = None  # a call that has no arguments yet: its block has not begun
        self._is_custom = False  # the open call is a custom one
        self._is_called = False
        self._is_refused = False
        self._timings: Json | None = None
        self._usage: Usage | None = None
        self._finish: Finish | None = None
        self._stop: str | None = None

    def send(self, event: Event) -> bytes:
        """The bytes that say `event`; none where it is said later, or cannot be said here.

        Raises:
            OutOfTurnError: it may not come now.
        """
        self._automaton.accept(event)
        if type(event) is Text and self._said is Text:
            return self._scribe.say(event.text)
        return self._send(event)

    def takes_text(self, index: int) -> bool:
        """Whether text may come now, and would go out at once."""
        return self._said is Text and self._automaton.takes_text(index)

    def end(self) -> bytes:
        """Why the message stopped, what was counted, and its end; nothing after a failure.

        Raises:
            OutOfTurnError: something is still open.
        """
        is_failed = self._automaton.stage is Stage.FAILED
        self._automaton.end()
        finish = self._finish
        if is_failed or finish is None:
            return b""
        stop = finish.stop or self._stop
        reason, stop = stop_of(finish.reason, stop, is_called=self._is_called, is_refused=self._is_refused)
        return self._scribe.end({"stop_reason": reason, "stop_sequence": stop}, usage_object(self._counts()))

    def _send(self, event: Event) -> bytes:
        match event:
            case Text() | Reasoning() | Refusal():
                return self._say(event)
            case ToolCall():
                out = self._begin() + self._end_block()
                self._said, self._call, self._is_custom = ToolCall, event, event.is_custom
                return out
            case ToolArguments(text=text):
                return self._argue(text)
            case Finish(reason=reason):
                self._finish = event
                return self._begin() + self._end_block(is_cut=reason in CUT_SHORT)
            case Usage():
                self._usage = event
                return b""
            case Failure():
                # What is open stays open: a client might run a call whose block has ended.
                return last_words(event)
            case KeepAlive():
                return PING if self._scribe.has_started else KEEP_ALIVE
            case Extra():
                self._learn(event)
                return b""
            case Opening() | Logprobs():
                return b""  # the message begins when there is something to say; probabilities have no place in it
            case _:
                assert_never(event)

    def _say(self, event: Text | Reasoning | Refusal) -> bytes:
        if isinstance(event, Reasoning) and not self._shows_thoughts:
            return b""
        if self._said is ToolCall:
            self._held.append(event)
            self._held_characters += len(event.text)
            return b"" if self._held_characters <= _HELD_CHARACTERS else self._end_block()
        opened = b""
        if self._said is not type(event):
            opened = self._begin() + self._close()
            opened += self._scribe.open(thinking_block() if isinstance(event, Reasoning) else text_block())
            self._said = type(event)
            self._is_refused |= isinstance(event, Refusal)
        return opened + self._scribe.say(event.text)

    def _argue(self, text: str) -> bytes:
        """More of a call's arguments; none where they only had members that a block cannot be given later."""
        if not text or self._said is not ToolCall:
            return b""
        return self._open_call() + self._scribe.say(_inside_string(text) if self._is_custom else text)

    def _open_call(self) -> bytes:
        """The block of a call begins with its arguments: a client would run one that was cut before them."""
        call, self._call = self._call, None
        if call is None:
            return b""
        self._is_called = True
        opened = self._scribe.open(tool_block(call.id, call.name, {}, call.more))
        return opened + (self._scribe.say(_CUSTOM_START) if call.is_custom else b"")

    def _begin(self) -> bytes:
        """The start of the message, once: as late as can be, since it says how long the prompt is."""
        if self._scribe.has_started:
            return b""
        usage = usage_object(self._counts()) | {"output_tokens": 0}
        usage.pop("output_tokens_details", None)
        return self._scribe.start(message_object(self._head, usage, content=[], reason=None, stop=None))

    def _end_block(self, *, is_cut: bool = False) -> bytes:
        """End what is open, and say what waited for its end."""
        ended = self._close(is_cut=is_cut)
        held, self._held, self._held_characters = self._held, [], 0
        return ended + b"".join(map(self._say, held)) + self._close()

    def _close(self, *, is_cut: bool = False) -> bytes:
        said, self._said = self._said, None
        last = b""
        if said is ToolCall and is_cut:
            self._call = None
        elif said is ToolCall:
            is_bare = self._call is not None
            last = self._open_call()
            if self._is_custom:
                last += self._scribe.say(_CUSTOM_END)
            elif is_bare:
                last += self._scribe.say("{}")
        elif said is Reasoning:
            # Some clients take a thought along only if a signature came, be it empty.
            last = self._scribe.delta({"type": "signature_delta", "signature": ""})
        return last + self._scribe.close()

    def _learn(self, event: Extra) -> None:
        """Two unknown fields tell what this dialect can say: llama.cpp's counts, and vLLM's stop string."""
        timings, stop = event.fields.get("timings"), event.fields.get("stop_reason")
        if event.place is Place.CHUNK and isinstance(timings, dict):
            self._timings = timings
        if event.place is Place.CHOICE and isinstance(stop, str) and stop in self._stops:
            self._stop = stop

    def _counts(self) -> Usage | None:
        """What is known of the tokens by now."""
        known = self._usage or self._counted()
        return read_timings(self._timings) if known is None and self._timings is not None else known


def _inside_string(text: str) -> str:
    """A piece of text as it stands in a JSON string."""
    return msgspec.json.encode(text)[1:-1].decode()


class Messages(Translated):
    """Answers as /v1/messages gives them. `stops` are the request's stop sequences.

    `shows_thoughts`: who did not ask for thinking looks for the text in the first block.
    """

    COUNTS_FIRST: ClassVar[bool] = True

    def __init__(self, *, stops: tuple[str, ...] = (), shows_thoughts: bool = True) -> None:
        self._stops = stops
        self._shows_thoughts = shows_thoughts

    def writer(self, head: Head, counted: Counted) -> MessagesWriter:
        """The writer of a stream."""
        return MessagesWriter(head, counted, stops=self._stops, shows_thoughts=self._shows_thoughts)

    def whole(self, head: Head, reply: Reply) -> bytes:
        """The reply to a request that did not ask for a stream."""
        answer = reply.answers.get(0) or Answer()
        if not self._shows_thoughts:
            answer = msgspec.structs.replace(answer, reasoning="")
        told = answer.choice_fields.get("stop_reason")
        stop = answer.stop or (told if told in self._stops else None)
        reason, stop = stop_of(answer.reason, stop, is_called=bool(answer.calls), is_refused=bool(answer.refusal))
        message = message_object(head, usage_object(reply.usage), content=content_of(answer), reason=reason, stop=stop)
        return escape(msgspec.json.encode(message))

    def limited(self, asked: Asked, *, is_stream: bool) -> Asked:
        """Calls have objects; in a stream they are text, which clients read themselves."""
        return msgspec.structs.replace(super().limited(asked, is_stream=is_stream), object_calls=not is_stream)

    def last_words(self, failure: Failure) -> bytes:
        """An error event; nothing follows it."""
        return last_words(failure)
