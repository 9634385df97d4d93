"""State machine of a stream: all transitions of both dialects."""

import pytest

from tests.protocol.build import CHAT, COMPLETIONS
from tests.table import table
from welldone.core import state
from welldone.core.envelope import Endpoint
from welldone.core.events import (
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
    WelldoneError,
)
from welldone.core.state import ChoiceState, StreamState, StreamStateMachine

OPEN, STOP, CALL = ChoiceStart(0), Finish(0, "stop"), ToolCall(0, 0, "a", "get")
SAMPLES: dict[str, Event] = {
    "ChoiceStart": OPEN,
    "Text": Text(0, "a"),
    "Reasoning": Reasoning(0, "a"),
    "Refusal": Refusal(0, "a"),
    "ToolCall": CALL,
    "ToolArguments": ToolArguments(0, 0, "{}"),
    "Logprobs": Logprobs(0, {}),
    "Finish": STOP,
    "UnknownFields": UnknownFields(0, FieldLocation.DELTA, {"x": 1}),
    "Usage": Usage(1, 1, 2, {}),
    "Failure": Failure("boom"),
    "KeepAlive": KeepAlive(),
}
FIELDS = UnknownFields(0, FieldLocation.CHUNK, {"x": 1})

STREAMING_EVENTS = {"Text", "Reasoning", "Refusal", "Logprobs", "UnknownFields", "ToolCall", "Finish"}
EVENTS_TO_STATE: dict[tuple[Endpoint, ChoiceState], list[Event]] = {
    (CHAT, ChoiceState.NEW): [],
    (CHAT, ChoiceState.STREAMING): [OPEN],
    (CHAT, ChoiceState.IN_TOOL_CALLS): [OPEN, CALL],
    (CHAT, ChoiceState.FINISHED): [OPEN, STOP],
    (COMPLETIONS, ChoiceState.NEW): [],
    (COMPLETIONS, ChoiceState.STREAMING): [OPEN],
    (COMPLETIONS, ChoiceState.FINISHED): [OPEN, STOP],
}
LEGAL: dict[tuple[Endpoint, ChoiceState], set[str]] = {
    (CHAT, ChoiceState.NEW): {"ChoiceStart", "UnknownFields"},
    (CHAT, ChoiceState.STREAMING): STREAMING_EVENTS,
    (CHAT, ChoiceState.IN_TOOL_CALLS): STREAMING_EVENTS | {"ToolArguments"},
    (CHAT, ChoiceState.FINISHED): set(),
    (COMPLETIONS, ChoiceState.NEW): {"ChoiceStart", "UnknownFields"},
    (COMPLETIONS, ChoiceState.STREAMING): {"Text", "Logprobs", "UnknownFields", "Finish"},
    (COMPLETIONS, ChoiceState.FINISHED): set(),
}
AFTER = {"ChoiceStart": ChoiceState.STREAMING, "ToolCall": ChoiceState.IN_TOOL_CALLS, "Finish": ChoiceState.FINISHED}
STREAM_EVENTS = {"Usage", "Failure", "KeepAlive"}


def machine_after(endpoint: Endpoint, *events: Event) -> StreamStateMachine:
    table = state.CHAT_TRANSITIONS if endpoint is CHAT else state.COMPLETIONS_TRANSITIONS
    machine = StreamStateMachine(table, is_ordered=endpoint is CHAT)
    for event in events:
        machine.accept(event)
    return machine


def rejected(machine: StreamStateMachine, event: Event) -> EventOrderError:
    with pytest.raises(EventOrderError) as caught:
        machine.accept(event)
    return caught.value


@table(("endpoint", "choice_state"), EVENTS_TO_STATE)
@table("name", [name for name in SAMPLES if name not in STREAM_EVENTS])
def test_each_choice_event_is_legal_only_in_its_states(
    endpoint: Endpoint, choice_state: ChoiceState, name: str
) -> None:
    machine = machine_after(endpoint, *EVENTS_TO_STATE[endpoint, choice_state])
    event = (
        ToolCall(0, 1, "b", "get") if (name, choice_state) == ("ToolCall", ChoiceState.IN_TOOL_CALLS) else SAMPLES[name]
    )
    if name in LEGAL[endpoint, choice_state]:
        machine.accept(event)
        assert machine.choice_states.get(0, ChoiceState.NEW) is AFTER.get(name, choice_state)
    else:
        error = rejected(machine, event)
        assert error.event == repr(event)
        assert error.state == f"choice 0 is {choice_state.value}, the stream running"
        assert set(error.legal.split(", ")) - {""} == LEGAL[endpoint, choice_state]
        assert machine.choice_states.get(0, ChoiceState.NEW) is choice_state


EVENTS_TO_STREAM_STATE: dict[StreamState, list[Event]] = {
    StreamState.RUNNING: [OPEN],
    StreamState.USAGE_SENT: [OPEN, STOP, SAMPLES["Usage"]],
    StreamState.FAILED: [OPEN, SAMPLES["Failure"]],
}
LEGAL_IN_STREAM_STATE: dict[StreamState, set[str]] = {
    StreamState.RUNNING: {"Usage", "Failure", "KeepAlive", "UnknownFields"},
    StreamState.USAGE_SENT: {"KeepAlive"},
    StreamState.FAILED: set(),
    StreamState.ENDED: set(),
}


@table("expected_state", StreamState)
@table("name", ["Usage", "Failure", "KeepAlive", "UnknownFields"])
def test_each_stream_event_is_legal_only_in_its_states(expected_state: StreamState, name: str) -> None:
    machine = machine_after(CHAT, *EVENTS_TO_STREAM_STATE.get(expected_state, [OPEN, STOP]))
    if expected_state is StreamState.ENDED:
        machine.end()
    event = FIELDS if name == "UnknownFields" else SAMPLES[name]
    if name in LEGAL_IN_STREAM_STATE[expected_state] and not (
        name == "Usage" and expected_state is StreamState.RUNNING
    ):
        machine.accept(event)
        assert machine.stream_state is (StreamState.FAILED if name == "Failure" else expected_state)
    else:
        error = rejected(machine, event)
        assert error.event == repr(event)
        assert error.state == f"the stream is {expected_state.value}"
        assert set(error.legal.split(", ")) - {""} == LEGAL_IN_STREAM_STATE[expected_state] - {name}
        assert machine.stream_state is expected_state


@table("expected_state", [StreamState.USAGE_SENT, StreamState.FAILED, StreamState.ENDED])
@table("name", [name for name in SAMPLES if name not in STREAM_EVENTS])
def test_choice_events_are_illegal_when_the_stream_is_not_running(expected_state: StreamState, name: str) -> None:
    machine = machine_after(CHAT, *EVENTS_TO_STREAM_STATE.get(expected_state, [OPEN, STOP]))
    if expected_state is StreamState.ENDED:
        machine.end()
    assert rejected(machine, SAMPLES[name]).legal == ""


def test_usage_is_legal_after_each_choice_has_finished() -> None:
    usage = SAMPLES["Usage"]
    assert rejected(machine_after(CHAT), usage).state == "the stream is running"
    assert rejected(machine_after(CHAT, OPEN, ChoiceStart(1), STOP), usage).state == "the stream is running"
    assert machine_after(CHAT, OPEN, STOP, usage).stream_state is StreamState.USAGE_SENT


def test_an_event_that_is_too_early_or_too_late_is_not_listed_as_legal() -> None:
    assert rejected(machine_after(CHAT, OPEN), SAMPLES["Usage"]).legal == "Failure, KeepAlive, UnknownFields"
    assert rejected(machine_after(CHAT, OPEN, STOP), FIELDS).legal == "Usage, Failure, KeepAlive"


def test_chunk_fields_are_legal_while_a_choice_is_not_finished() -> None:
    assert machine_after(CHAT, FIELDS).stream_state is StreamState.RUNNING
    assert machine_after(CHAT, OPEN, ChoiceStart(1), STOP, FIELDS).stream_state is StreamState.RUNNING
    assert rejected(machine_after(CHAT, OPEN, STOP), FIELDS).state == "the stream is running"


@pytest.mark.parametrize("kind", [Text, Reasoning, Refusal])
def test_an_empty_text_is_illegal(kind: type[Text] | type[Reasoning] | type[Refusal]) -> None:
    assert rejected(machine_after(CHAT, OPEN), kind(0, "")).event == repr(kind(0, ""))


def test_the_choices_of_a_chat_start_in_order() -> None:
    assert machine_after(CHAT, OPEN, ChoiceStart(1), ChoiceStart(2)).choice_states == dict.fromkeys(
        range(3), ChoiceState.STREAMING
    )
    rejected(machine_after(CHAT), ChoiceStart(1))
    rejected(machine_after(CHAT, OPEN), ChoiceStart(2))
    rejected(machine_after(CHAT), ChoiceStart(-1))


def test_completions_choices_start_in_any_order() -> None:
    assert machine_after(COMPLETIONS, ChoiceStart(2), OPEN).choice_states == {
        2: ChoiceState.STREAMING,
        0: ChoiceState.STREAMING,
    }
    rejected(machine_after(COMPLETIONS), ChoiceStart(-1))


@table(
    "event",
    [
        ToolCall(0, 1, "b", "get"),
        ToolCall(0, -1, "b", "get"),
        ToolCall(0, 0, "", "get"),
        ToolCall(0, 0, "a", ""),
    ],
)
def test_a_tool_call_needs_the_next_index_an_id_and_a_name(event: ToolCall) -> None:
    assert rejected(machine_after(CHAT, OPEN), event).event == repr(event)


def test_calls_are_numbered_per_choice() -> None:
    events: list[Event] = [OPEN, ChoiceStart(1), CALL, ToolCall(1, 0, "b", "get"), ToolCall(0, 1, "c", "get")]
    assert machine_after(CHAT, *events).choice_states == {0: ChoiceState.IN_TOOL_CALLS, 1: ChoiceState.IN_TOOL_CALLS}


@pytest.mark.parametrize("event", [ToolArguments(0, 0, "{}"), ToolArguments(0, 2, "{}"), ToolArguments(0, 1, "")])
def test_arguments_must_belong_to_the_last_call_and_have_content(event: ToolArguments) -> None:
    machine = machine_after(CHAT, OPEN, CALL, ToolCall(0, 1, "b", "get"), ToolArguments(0, 1, "{}"))
    assert rejected(machine, event).event == repr(event)
    machine.accept(ToolArguments(0, 1, "", {"x": 1}))
    assert machine.choice_states == {0: ChoiceState.IN_TOOL_CALLS}


def test_fields_in_their_own_chunk_need_an_open_choice() -> None:
    fields = UnknownFields(0, FieldLocation.DELTA, {"x": 1}, in_own_chunk=True)
    rejected(machine_after(CHAT), fields)
    assert machine_after(CHAT, OPEN, fields).choice_states == {0: ChoiceState.STREAMING}


def test_a_stream_ends_when_each_choice_has_finished_or_after_a_failure() -> None:
    for events in ([OPEN, STOP], [OPEN, STOP, SAMPLES["Usage"]], [OPEN, SAMPLES["Failure"]], [SAMPLES["Failure"]]):
        machine = machine_after(CHAT, *events)
        machine.end()
        assert machine.stream_state is StreamState.ENDED


@table("events", [[], [OPEN], [OPEN, ChoiceStart(1), STOP], [KeepAlive()]])
def test_a_stream_cannot_end_while_a_choice_is_open(events: list[Event]) -> None:
    machine = machine_after(CHAT, *events)
    with pytest.raises(EventOrderError, match="the end while the stream is running") as caught:
        machine.end()
    assert caught.value.legal == "Failure, or Finish for each choice"
    assert machine.stream_state is StreamState.RUNNING


def test_a_stream_ends_once() -> None:
    machine = machine_after(CHAT, OPEN, STOP)
    machine.end()
    with pytest.raises(EventOrderError, match="the end while the stream is ended"):
        machine.end()


def test_the_error_has_the_event_and_the_legal_events() -> None:
    error = rejected(machine_after(COMPLETIONS), Text(0, "a"))
    assert (
        str(error)
        == "Text(index=0, text='a') while choice 0 is new, the stream running; legal now: ChoiceStart, UnknownFields"
    )
    assert str(rejected(machine_after(CHAT, OPEN, STOP), OPEN)).endswith("legal now: nothing")
    assert isinstance(error, WelldoneError)
