"""States of a stream: how far it was read; and the transition tables of what is written, by choice and as a whole."""

from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum, auto
from typing import TypeAlias

from welldone.core import events as ev
from welldone.core.events import Event, Failure, Usage


class PartState(IntEnum):
    """How far a part has come."""

    WAITING = auto()
    """Only keep-alives were received."""
    ANSWERING = auto()
    FINISHED = auto()
    """Every choice has a finish reason; usage and `[DONE]` may follow."""
    FINISHED_WITH_USAGE = auto()
    """Usage was received as well, on a chunk of its own."""
    DONE = auto()
    """The end marker was received: nothing relevant can follow."""
    STOPPED = auto()
    """A stop string was found: the upstream request can be aborted."""
    FAILED = auto()
    CUT = auto()
    """The stream failed, and another one may continue it: see `Pipeline.continue_part` and `release_failure`."""


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
_BEFORE_START: Mapping[type[Event], ChoiceState]
_BEFORE_START = {ev.ChoiceStart: ChoiceState.STREAMING, ev.UnknownFields: ChoiceState.NEW}
_COMPLETIONS_CONTENT: tuple[type[Event], ...] = (ev.Text, ev.Logprobs, ev.UnknownFields)
_CHAT_CONTENT: tuple[type[Event], ...] = (ev.Text, ev.Reasoning, ev.Refusal, ev.Logprobs, ev.UnknownFields)

CHAT_TRANSITIONS: ChoiceTransitions = {
    ChoiceState.NEW: _BEFORE_START,
    ChoiceState.STREAMING: dict.fromkeys(_CHAT_CONTENT, ChoiceState.STREAMING)
    | {ev.ToolCall: ChoiceState.IN_TOOL_CALLS, ev.Finish: ChoiceState.FINISHED},
    ChoiceState.IN_TOOL_CALLS: dict.fromkeys((*_CHAT_CONTENT, ev.ToolCall, ev.ToolArguments), ChoiceState.IN_TOOL_CALLS)
    | {ev.Finish: ChoiceState.FINISHED},
    ChoiceState.FINISHED: {},
}

COMPLETIONS_TRANSITIONS: ChoiceTransitions = {
    ChoiceState.NEW: _BEFORE_START,
    ChoiceState.STREAMING: dict.fromkeys(_COMPLETIONS_CONTENT, ChoiceState.STREAMING)
    | {ev.Finish: ChoiceState.FINISHED},
    ChoiceState.IN_TOOL_CALLS: {},
    ChoiceState.FINISHED: {},
}

STREAM_TRANSITIONS: Mapping[StreamState, Mapping[type[Event], StreamState]] = {
    StreamState.RUNNING: {
        Usage: StreamState.USAGE_SENT,
        Failure: StreamState.FAILED,
        ev.KeepAlive: StreamState.RUNNING,
        ev.UnknownFields: StreamState.RUNNING,
    },
    StreamState.USAGE_SENT: {ev.KeepAlive: StreamState.USAGE_SENT},
    StreamState.FAILED: {},
    StreamState.ENDED: {},
}

# For each event: Python 3.11 takes 15 times as long to look up a member of an enum.
_RUNNING, _NEW, _FINISHED = StreamState.RUNNING, ChoiceState.NEW, ChoiceState.FINISHED
_TEXT_STATES = (ChoiceState.STREAMING, ChoiceState.IN_TOOL_CALLS)


class StreamStateMachine:
    """Checks that the events sent to a writer follow the tables."""

    def __init__(self, transitions: ChoiceTransitions, *, is_ordered: bool) -> None:
        self.stream_state: StreamState = StreamState.RUNNING
        self.choice_states: dict[int, ChoiceState] = {}
        self._transitions = transitions
        self._is_ordered = is_ordered  # choices must start in the order of their index
        self._call_counts: dict[int, int] = {}

    def accept(self, event: Event) -> None:
        """Advance by `event`.

        Raises:
            EventOrderError: the event is not legal in the current state.
        """
        if type(event) is ev.Text and event.text and self.accepts_text(event.index):
            return  # common case
        if isinstance(event, (Usage, Failure, ev.KeepAlive)) or (
            isinstance(event, ev.UnknownFields) and event.location is ev.FieldLocation.CHUNK
        ):
            after = STREAM_TRANSITIONS[self.stream_state].get(type(event))
            # Usage follows the last choice; unknown fields need a later chunk that carries them.
            is_too_soon = isinstance(event, Usage) and not self._all_finished()
            is_too_late = isinstance(event, ev.UnknownFields) and self._all_finished()
            if after is None or is_too_soon or is_too_late:
                legal = [option for option in STREAM_TRANSITIONS[self.stream_state] if option is not type(event)]
                raise ev.EventOrderError(repr(event), f"the stream is {self.stream_state.value}", _event_names(legal))
            self.stream_state = after
        else:
            self._accept_for_choice(event)

    def accepts_text(self, index: int) -> bool:
        """Whether text of this choice is legal and changes no state."""
        return self.stream_state is _RUNNING and self.choice_states.get(index) in _TEXT_STATES

    def end(self) -> bool:
        """End the stream, which must have failed or have finished every choice; return whether it has not failed.

        Raises:
            EventOrderError: a choice is not finished, or the stream has already ended.
        """
        has_failed = self.stream_state is StreamState.FAILED
        if self.stream_state is StreamState.ENDED or not (has_failed or self._all_finished()):
            state = f"the stream is {self.stream_state.value}"
            raise ev.EventOrderError("the end", state, "Failure, or Finish for each choice")
        self.stream_state = StreamState.ENDED
        return not has_failed

    def _accept_for_choice(self, event: ev.ChoiceEvent) -> None:
        index = event.index
        state = self.choice_states.get(index, _NEW)
        after = self._transitions[state].get(type(event))
        if after is None or self.stream_state is not _RUNNING or not self._is_valid_in_sequence(event):
            legal = self._transitions[state] if self.stream_state is StreamState.RUNNING else {}
            states = f"choice {index} is {state.value}, the stream {self.stream_state.value}"
            raise ev.EventOrderError(repr(event), states, _event_names(legal))
        if after is not _NEW:
            self.choice_states[index] = after

    def _is_valid_in_sequence(self, event: ev.ChoiceEvent) -> bool:
        """Conditions that the tables do not express: consecutive numbers and non-empty texts."""
        match event:
            case ev.Text(text=text) | ev.Reasoning(text=text) | ev.Refusal(text=text):
                return text != ""
            case ev.ChoiceStart(index=index):
                return index == len(self.choice_states) if self._is_ordered else index >= 0
            case ev.ToolCall(index=index, call_index=number, id=id, name=name):
                if number != self._call_counts.get(index, 0) or not id or not name:
                    return False
                self._call_counts[index] = number + 1
                return True
            case ev.ToolArguments(index=index, call_index=number):
                is_empty = not (event.text or event.extra_fields or event.inner_extra_fields)
                # White space and fields may follow the start of a later call.
                is_known = 0 <= number < self._call_counts[index]
                return is_known and (number == self._call_counts[index] - 1 or not event.text.strip()) and not is_empty
            case ev.UnknownFields(index=index, in_own_chunk=True):
                return index in self.choice_states
            case _:
                return True

    def _all_finished(self) -> bool:
        return bool(self.choice_states) and all(state is _FINISHED for state in self.choice_states.values())


def _event_names(legal: Iterable[type[Event]]) -> str:
    return ", ".join(event_type.__name__ for event_type in legal)


NO_INDEXES: frozenset[int] = frozenset()
_FIRST = frozenset({0})


def with_index(indexes: frozenset[int], index: int) -> frozenset[int]:
    """Return the set with `index` in it. Most streams have one choice and share its set: an own set takes 216 bytes."""
    if index in indexes:
        return indexes
    return indexes | {index} if indexes or index else _FIRST
