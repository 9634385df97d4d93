"""The dialect of /v1/responses: events as its stream, and as its whole reply."""

from collections.abc import Callable
from typing import ClassVar, assert_never

import msgspec

from welldone.wire import automaton
from welldone.wire.automaton import Automaton
from welldone.wire.collect import Answer, Reply
from welldone.wire.dialects.dialect import Counted, Translated
from welldone.wire.dialects.responses.counts import usage_object
from welldone.wire.dialects.responses.objects import (
    Clock,
    call_item,
    call_members,
    completed_at,
    error_object,
    message_item,
    part_object,
    reasoning_item,
    response_object,
    text_logprobs,
)
from welldone.wire.dialects.responses.scribe import Item, Scribe, Strand, frame
from welldone.wire.dialects.stream import escape
from welldone.wire.events import (
    ChoiceEvent,
    Event,
    Extra,
    Failure,
    Finish,
    Json,
    KeepAlive,
    Logprobs,
    Opening,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    Usage,
)
from welldone.wire.head import ID_PREFIX, Endpoint, Head

_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons of an answer that is not whole, in the words of this dialect."""


class ResponsesWriter:
    """A right stream of responses, of one choice. `on_end` is told the Response as it was said last.

    `is_summary`: reasoning goes out as a summary of it, since that is what the client asked for. `is_silent`: no bytes
    are made, only the Response. `clock`: the time of day, for `completed_at`; without one it is null.
    """

    def __init__(
        self,
        head: Head,
        echo: Json,
        counted: Counted,
        on_end: Callable[[Json], None],
        *,
        is_summary: bool = False,
        is_silent: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._automaton = Automaton(automaton.CHAT, is_ordered=True)
        self._scribe = Scribe(response_object(head, echo), is_silent=is_silent)
        self._stem = head.id.removeprefix(ID_PREFIX[Endpoint.RESPONSES])
        self._counted = counted
        self._on_end = on_end
        self._clock = clock
        self._thought = "summary_text" if is_summary else "reasoning_text"
        self._item: Item | None = None  # what is being said
        self._part: Strand | None = None
        self._text: Strand | None = None  # the same, if it is a text that nothing waits to ride on
        self._logprobs: list[Json] = []  # those of what comes next
        # Said with its log probabilities, when the call that is being said has come to its end.
        self._waiting: list[tuple[Text | Reasoning | Refusal, list[Json]]] = []
        self._usage: Usage | None = None
        self._reason = ""

    def send(self, event: Event) -> bytes:
        """The bytes that say `event`; none where it is said later.

        Raises:
            OutOfTurnError: it may not come now.
        """
        self._automaton.accept(event)
        if type(event) is Text and self._text is not None:
            return self._scribe.piece(self._text, event.text)
        self._hear(event)
        return self._scribe.take()

    def takes_text(self, index: int) -> bool:
        """Whether text may come now, with nothing that waits to ride on it."""
        return self._text is not None and self._automaton.takes_text(index)

    def end(self) -> bytes:
        """The bytes that end the stream: usage comes last, and the last event has it.

        Raises:
            OutOfTurnError: something is still open.
        """
        self._automaton.end()
        if self._scribe.final is None:
            cut = _CUT.get(self._reason)
            if cut is None:
                self._end("completed", {})
            else:
                self._end("incomplete", {"incomplete_details": {"reason": cut}})
        return self._scribe.take()

    def _hear(self, event: Event) -> None:
        match event:
            case Usage():
                self._usage = event
            case Failure():
                self._begin()
                self._close("incomplete")
                self._end("failed", {"error": error_object(event)})
            case KeepAlive():
                self._scribe.keep_alive()
            case _:
                self._hear_choice(event)

    def _hear_choice(self, event: ChoiceEvent) -> None:
        match event:
            case Opening():
                self._begin()
            case Logprobs(value=value):
                self._logprobs += text_logprobs(value)
                self._text = None
            case Text() | Reasoning() | Refusal():
                said = event, self._ridden()
                if self._item is not None and self._item.call is not None:
                    self._waiting.append(said)  # more of the call's arguments may follow
                else:
                    self._say(*said)
            case ToolCall():
                self._ridden()
                self._close("completed")
                id = self._mint("ctc" if event.is_custom else "fc")
                self._item = self._scribe.open_item(call_item(id, event))
            case ToolArguments():
                self._ridden()
                self._add_arguments(event)
            case Finish(reason=reason):
                self._reason = reason
                self._close("incomplete" if reason in _CUT else "completed")
            case Extra():
                pass  # this dialect has no place for them
            case _:
                assert_never(event)

    def _begin(self) -> None:
        if not self._scribe.has_begun:
            self._scribe.respond("response.created")
            self._scribe.respond("response.in_progress")

    def _end(self, status: str, changed: Json) -> None:
        usage = self._usage or self._counted()
        counted = None if usage is None else usage_object(usage)
        ended = {"completed_at": completed_at(status, self._clock), "usage": counted}
        self._on_end(self._scribe.end(status, changed | ended))

    def _ridden(self) -> list[Json]:
        """The log probabilities that came with what is said now; only text has a place for them."""
        logprobs, self._logprobs = self._logprobs, []
        return logprobs

    def _say(self, event: Text | Reasoning | Refusal, logprobs: list[Json]) -> None:
        match event:
            case Text(text=text):
                part = self._open("message", "output_text")
                part.logprobs += logprobs
                self._scribe.say(part, text, {"logprobs": logprobs} if logprobs else None)
                self._text = part
            case Refusal(text=text):
                self._scribe.say(self._open("message", "refusal"), text)
            case Reasoning(text=text):
                self._scribe.say(self._open("reasoning", self._thought), text)
            case _:
                assert_never(event)

    def _open(self, item: str, kind: str) -> Strand:
        """The part that more is said of; what is of another kind is closed."""
        if self._part is not None:
            if self._part.kind == kind:
                return self._part
            self._close_part(self._part)
        if self._item is None or self._item.kind != item:
            self._close_item("completed")
            value = message_item(self._mint("msg")) if item == "message" else reasoning_item(self._mint("rs"))
            self._item = self._scribe.open_item(value)
        self._part = self._scribe.open_part(self._item, part_object(kind))
        return self._part

    def _add_arguments(self, event: ToolArguments) -> None:
        item = self._scribe.items[-1]  # a call has begun, and nothing else since
        item.value |= call_members(event.more)
        if event.text and item.call is not None:
            self._scribe.say(item.call, event.text)

    def _close(self, status: str) -> None:
        """Close what is open; then say what waited for that, and close it too."""
        waiting, self._waiting = self._waiting, []
        self._close_item(status)
        for event, logprobs in waiting:
            self._say(event, logprobs)
        self._close_item(status)

    def _close_item(self, status: str) -> None:
        if self._part is not None:
            self._close_part(self._part)
        if self._item is not None:
            self._scribe.close_item(self._item, status)
            self._item = None

    def _close_part(self, part: Strand) -> None:
        if part.kind == "output_text":
            part.logprobs += self._ridden()  # no text came that they could ride on
        self._scribe.close_part(part)
        self._part = self._text = None

    def _mint(self, prefix: str) -> str:
        """The id of the next item: made of the stream's own, so that the same input gives the same bytes."""
        return f"{prefix}_{self._stem}_{len(self._scribe.items)}"


class Responses(Translated):
    """Answers as /v1/responses gives them.

    `echo`: what a Response repeats of its request. `is_summary`: the client asked for a summary of the reasoning.
    `clock`: the time of day.
    """

    KEEPS: ClassVar[bool] = True

    def __init__(self, echo: Json, *, is_summary: bool = False, clock: Clock | None = None) -> None:
        self._echo = echo
        self._clock = clock
        self._is_summary = is_summary

    def writer(self, head: Head, counted: Counted) -> ResponsesWriter:
        """The writer of a stream."""
        return self._writer(head, counted, is_silent=False)

    def _writer(self, head: Head, counted: Counted, *, is_silent: bool) -> ResponsesWriter:
        return ResponsesWriter(
            head,
            self._echo,
            counted,
            self._ended,
            is_summary=self._is_summary,
            is_silent=is_silent,
            clock=self._clock,
        )

    def whole(self, head: Head, reply: Reply) -> bytes:
        """The reply to a request that did not ask for a stream: what the stream of the same answer ends with."""
        writer = self._writer(head, lambda: reply.usage, is_silent=True)
        for event in _events(reply.answers.get(0) or Answer()):
            writer.send(event)
        writer.end()
        return escape(msgspec.json.encode(self.final))

    def last_words(self, failure: Failure) -> bytes:
        """An error event: what came before it, and its numbers, are not known."""
        error = error_object(failure)
        return frame({"type": "error", "sequence_number": 0, "param": None, **error})

    def _ended(self, response: Json) -> None:
        self.final = response


def _events(answer: Answer) -> list[Event]:
    """The events that an answer may have been."""
    events: list[Event] = [Opening(0)]
    if answer.reasoning:
        events.append(Reasoning(0, answer.reasoning))
    if answer.logprobs is not None:
        events.append(Logprobs(0, answer.logprobs))
    if answer.text:
        events.append(Text(0, answer.text))
    if answer.refusal:
        events.append(Refusal(0, answer.refusal))
    for number, call in enumerate(answer.calls):
        events.append(ToolCall(0, number, call.id, call.name, call.more, call.is_custom))
        if call.arguments:
            events.append(ToolArguments(0, number, call.arguments, {}, call.is_custom))
    return [*events, Finish(0, answer.reason)]
