"""State machine of a stream: transition tables for each choice and for the whole stream."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeAlias

from welldone.protocol.events import (
    ChoiceEvent,
    ChoiceStart,
    Event,
    EventOrderError,
    Failure,
    FieldLocation,
    Finish,
    KeepAlive,
    Logprobs,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    UnknownFields,
    Usage,
)


class ChoiceState(StrEnum):
    """State of a choice."""

    NEW = "new"
    STREAMING = "streaming"
    IN_TOOL_CALLS = "in tool calls"
    FINISHED = "finished"


class StreamState(StrEnum):
    """State of the stream."""

    RUNNING = "running"
    USAGE_SENT = "usage sent"
    """Only keep-alives and the end may follow."""
    FAILED = "failed"
    ENDED = "ended"


ChoiceTransitions: TypeAlias = Mapping[ChoiceState, Mapping[type[Event], ChoiceState]]

# Unknown fields of the first chunk precede it.
_BEFORE_START: Mapping[type[Event], ChoiceState] = {ChoiceStart: ChoiceState.STREAMING, UnknownFields: ChoiceState.NEW}
_COMPLETIONS_CONTENT: tuple[type[Event], ...] = (Text, Logprobs, UnknownFields)
_CHAT_CONTENT: tuple[type[Event], ...] = (Text, Reasoning, Refusal, Logprobs, UnknownFields)

CHAT_TRANSITIONS: ChoiceTransitions = {
    ChoiceState.NEW: _BEFORE_START,
    ChoiceState.STREAMING: dict.fromkeys(_CHAT_CONTENT, ChoiceState.STREAMING)
    | {ToolCall: ChoiceState.IN_TOOL_CALLS, Finish: ChoiceState.FINISHED},
    ChoiceState.IN_TOOL_CALLS: dict.fromkeys((*_CHAT_CONTENT, ToolCall, ToolArguments), ChoiceState.IN_TOOL_CALLS)
    | {Finish: ChoiceState.FINISHED},
    ChoiceState.FINISHED: {},
}

COMPLETIONS_TRANSITIONS: ChoiceTransitions = {
    ChoiceState.NEW: _BEFORE_START,
    ChoiceState.STREAMING: dict.fromkeys(_COMPLETIONS_CONTENT, ChoiceState.STREAMING) | {Finish: ChoiceState.FINISHED},
    ChoiceState.IN_TOOL_CALLS: {},
    ChoiceState.FINISHED: {},
}

STREAM_TRANSITIONS: Mapping[StreamState, Mapping[type[Event], StreamState]] = {
    StreamState.RUNNING: {
        Usage: StreamState.USAGE_SENT,
        Failure: StreamState.FAILED,
        KeepAlive: StreamState.RUNNING,
        UnknownFields: StreamState.RUNNING,
    },
    StreamState.USAGE_SENT: {KeepAlive: StreamState.USAGE_SENT},
    StreamState.FAILED: {},
    StreamState.ENDED: {},
}


class StreamStateMachine:
    """Checks that the events sent to a writer follow the tables."""

    def __init__(self, transitions: ChoiceTransitions, *, is_ordered: bool) -> None:
        self.stream_state = StreamState.RUNNING
        self.choice_states: dict[int, ChoiceState] = {}
        self._transitions = transitions
        self._is_ordered = is_ordered  # choices must start in the order of their index
        self._call_counts: dict[int, int] = {}

    def accept(self, event: Event) -> None:
        """Advance by `event`.

        Raises:
            EventOrderError: the event is not legal in the current state.
        """
        if type(event) is Text and event.text and self.accepts_text(event.index):
            return  # common case
        if isinstance(event, Usage | Failure | KeepAlive) or (
            isinstance(event, UnknownFields) and event.location is FieldLocation.CHUNK
        ):
            after = STREAM_TRANSITIONS[self.stream_state].get(type(event))
            # Usage follows the last choice; unknown fields need a later chunk that carries them.
            is_too_soon = isinstance(event, Usage) and not self._all_finished()
            is_too_late = isinstance(event, UnknownFields) and self._all_finished()
            if after is None or is_too_soon or is_too_late:
                legal = [kind for kind in STREAM_TRANSITIONS[self.stream_state] if kind is not type(event)]
                raise EventOrderError(repr(event), f"the stream is {self.stream_state.value}", _event_names(legal))
            self.stream_state = after
        else:
            self._accept_for_choice(event)

    def accepts_text(self, index: int) -> bool:
        """Whether text of this choice is legal and changes no state."""
        state = self.choice_states.get(index)
        return self.stream_state is StreamState.RUNNING and (
            state is ChoiceState.STREAMING or state is ChoiceState.IN_TOOL_CALLS
        )

    def end(self) -> None:
        """End the stream, which must have failed or have finished every choice.

        Raises:
            EventOrderError: a choice is not finished, or the stream has already ended.
        """
        if self.stream_state is StreamState.ENDED or not (
            self.stream_state is StreamState.FAILED or self._all_finished()
        ):
            raise EventOrderError(
                "the end", f"the stream is {self.stream_state.value}", "Failure, or Finish for each choice"
            )
        self.stream_state = StreamState.ENDED

    def _accept_for_choice(self, event: ChoiceEvent) -> None:
        index = event.index
        state = self.choice_states.get(index, ChoiceState.NEW)
        after = self._transitions[state].get(type(event))
        if after is None or self.stream_state is not StreamState.RUNNING or not self._is_valid_in_sequence(event):
            legal = self._transitions[state] if self.stream_state is StreamState.RUNNING else {}
            raise EventOrderError(
                repr(event),
                f"choice {index} is {state.value}, the stream {self.stream_state.value}",
                _event_names(legal),
            )
        if after is not ChoiceState.NEW:
            self.choice_states[index] = after

    def _is_valid_in_sequence(self, event: ChoiceEvent) -> bool:
        """Conditions that the tables do not express: consecutive numbers and non-empty texts."""
        match event:
            case Text(text=text) | Reasoning(text=text) | Refusal(text=text):
                return text != ""
            case ChoiceStart(index=index):
                return index == len(self.choice_states) if self._is_ordered else index >= 0
            case ToolCall(index=index, call_index=call, id=id, name=name):
                if call != self._call_counts.get(index, 0) or not id or not name:
                    return False
                self._call_counts[index] = call + 1
                return True
            case ToolArguments(index=index, call_index=call):
                return call == self._call_counts[index] - 1 and bool(
                    event.text or event.extra_fields or event.inner_extra_fields
                )
            case UnknownFields(index=index, in_own_chunk=True):
                return index in self.choice_states
            case _:
                return True

    def _all_finished(self) -> bool:
        return bool(self.choice_states) and all(state is ChoiceState.FINISHED for state in self.choice_states.values())


def _event_names(legal: Iterable[type[Event]]) -> str:
    return ", ".join(kind.__name__ for kind in legal)
