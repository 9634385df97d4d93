"""What may follow what: the tables that say which events are legal now, for a choice and for the whole stream."""

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

from welldone.wire.errors import OutOfTurnError
from welldone.wire.events import (
    ChoiceEvent,
    Event,
    Extra,
    Failure,
    Finish,
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


class Phase(Enum):
    """How far a choice has come."""

    FRESH = "fresh"
    SPEAKING = "speaking"
    CALLING = "calling"
    FINISHED = "finished"


class Stage(Enum):
    """How far the stream has come."""

    RUNNING = "running"
    COUNTED = "counted"
    """The usage was said: only the end may follow."""
    FAILED = "failed"
    ENDED = "ended"


ChoiceTable: TypeAlias = Mapping[Phase, Mapping[type[Event], Phase]]

CHAT: ChoiceTable = {
    # Unknown fields that ride on the first chunk come before it.
    Phase.FRESH: {Opening: Phase.SPEAKING, Extra: Phase.FRESH},
    Phase.SPEAKING: {
        Text: Phase.SPEAKING,
        Reasoning: Phase.SPEAKING,
        Refusal: Phase.SPEAKING,
        Logprobs: Phase.SPEAKING,
        Extra: Phase.SPEAKING,
        ToolCall: Phase.CALLING,
        Finish: Phase.FINISHED,
    },
    Phase.CALLING: {
        Text: Phase.CALLING,
        Reasoning: Phase.CALLING,
        Refusal: Phase.CALLING,
        Logprobs: Phase.CALLING,
        Extra: Phase.CALLING,
        ToolCall: Phase.CALLING,
        ToolArguments: Phase.CALLING,
        Finish: Phase.FINISHED,
    },
    Phase.FINISHED: {},
}

COMPLETIONS: ChoiceTable = {
    # Unknown fields that ride on the first chunk come before it.
    Phase.FRESH: {Opening: Phase.SPEAKING, Extra: Phase.FRESH},
    Phase.SPEAKING: {
        Text: Phase.SPEAKING,
        Logprobs: Phase.SPEAKING,
        Extra: Phase.SPEAKING,
        Finish: Phase.FINISHED,
    },
    Phase.CALLING: {},
    Phase.FINISHED: {},
}

STREAM: Mapping[Stage, Mapping[type[Event], Stage]] = {
    Stage.RUNNING: {
        Usage: Stage.COUNTED,
        Failure: Stage.FAILED,
        KeepAlive: Stage.RUNNING,
        Extra: Stage.RUNNING,
    },
    Stage.COUNTED: {KeepAlive: Stage.COUNTED},
    Stage.FAILED: {},
    Stage.ENDED: {},
}


class Automaton:
    """Watches that a writer's caller keeps to the tables."""

    def __init__(self, table: ChoiceTable, *, is_ordered: bool) -> None:
        self.stage = Stage.RUNNING
        self.phases: dict[int, Phase] = {}
        self._table = table
        self._is_ordered = is_ordered  # choices must first appear in the order of their index
        self._calls: dict[int, int] = {}

    def accept(self, event: Event) -> None:
        """Move on by `event`.

        Raises:
            OutOfTurnError: it may not come now.
        """
        if type(event) is Text and event.text and self.takes_text(event.index):
            return  # the common case
        match event:
            case Usage() | Failure() | KeepAlive() | Extra(place=Place.CHUNK):
                self._accept_for_stream(event)
            case _:
                self._accept_for_choice(event)

    def takes_text(self, index: int) -> bool:
        """Whether by all tables more text of this choice may come, and nothing changes by it."""
        phase = self.phases.get(index)
        return self.stage is Stage.RUNNING and (phase is Phase.SPEAKING or phase is Phase.CALLING)

    def end(self) -> None:
        """The stream ends: after a failure, or when each choice has finished.

        Raises:
            OutOfTurnError: something is still open.
        """
        if self.stage is Stage.ENDED or not (self.stage is Stage.FAILED or self._is_whole()):
            raise OutOfTurnError("the end", f"the stream is {self.stage.value}", "Failure, or Finish for each choice")
        self.stage = Stage.ENDED

    def _accept_for_stream(self, event: Event) -> None:
        after = STREAM[self.stage].get(type(event))
        # Usage comes when all is said; what rides on a chunk comes while there is one to ride on.
        is_too_soon = isinstance(event, Usage) and not self._is_whole()
        is_too_late = isinstance(event, Extra) and self._is_whole()
        if after is None or is_too_soon or is_too_late:
            legal = {kind: stage for kind, stage in STREAM[self.stage].items() if kind is not type(event)}
            raise OutOfTurnError(repr(event), f"the stream is {self.stage.value}", _names(legal))
        self.stage = after

    def _accept_for_choice(self, event: ChoiceEvent) -> None:
        index = event.index
        phase = self.phases.get(index, Phase.FRESH)
        after = self._table[phase].get(type(event))
        if after is None or self.stage is not Stage.RUNNING or not self._is_in_order(event):
            legal = self._table[phase] if self.stage is Stage.RUNNING else {}
            raise OutOfTurnError(
                repr(event), f"choice {index} is {phase.value}, the stream {self.stage.value}", _names(legal)
            )
        if after is not Phase.FRESH:
            self.phases[index] = after

    def _is_in_order(self, event: ChoiceEvent) -> bool:
        """What a table cannot say: numbers that must come one after the other, and texts that must not be empty."""
        match event:
            case Text(text=text) | Reasoning(text=text) | Refusal(text=text):
                return text != ""
            case Opening(index=index):
                return index == len(self.phases) if self._is_ordered else index >= 0
            case ToolCall(index=index, call=call, id=id, name=name):
                if call != self._calls.get(index, 0) or not id or not name:
                    return False
                self._calls[index] = call + 1
                return True
            case ToolArguments(index=index, call=call):
                return call == self._calls[index] - 1 and bool(event.text or event.more or event.inner)
            case Extra(index=index, alone=True):
                return index in self.phases
            case _:
                return True

    def _is_whole(self) -> bool:
        return bool(self.phases) and all(phase is Phase.FINISHED for phase in self.phases.values())


def _names(legal: Mapping[type[Event], object]) -> str:
    return ", ".join(kind.__name__ for kind in legal)
