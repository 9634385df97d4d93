"""What may follow what: the whole table, walked for both dialects."""

import pytest

from tests.protocol.build import CHAT, COMPLETIONS
from tests.table import table
from welldone.protocol import state
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import (
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
from welldone.protocol.state import ChoiceState, StreamState, StreamStateMachine

OPEN, STOP, CALL = ChoiceStart(0), Finish(0, "stop"), ToolCall(0, 0, "a", "get")
SAMPLES: dict[str, Event] = {
    "Opening": OPEN,
    "Text": Text(0, "a"),
    "Reasoning": Reasoning(0, "a"),
    "Refusal": Refusal(0, "a"),
    "ToolCall": CALL,
    "ToolArguments": ToolArguments(0, 0, "{}"),
    "Logprobs": Logprobs(0, {}),
    "Finish": STOP,
    "Extra": UnknownFields(0, FieldLocation.DELTA, {"x": 1}),
    "Usage": Usage(1, 1, 2, {}),
    "Failure": Failure("boom"),
    "KeepAlive": KeepAlive(),
}
FIELDS = UnknownFields(0, FieldLocation.CHUNK, {"x": 1})

SPOKEN = {"Text", "Reasoning", "Refusal", "Logprobs", "Extra", "ToolCall", "Finish"}
WAYS: dict[tuple[Endpoint, ChoiceState], list[Event]] = {
    (CHAT, ChoiceState.NEW): [],
    (CHAT, ChoiceState.STREAMING): [OPEN],
    (CHAT, ChoiceState.IN_TOOL_CALLS): [OPEN, CALL],
    (CHAT, ChoiceState.FINISHED): [OPEN, STOP],
    (COMPLETIONS, ChoiceState.NEW): [],
    (COMPLETIONS, ChoiceState.STREAMING): [OPEN],
    (COMPLETIONS, ChoiceState.FINISHED): [OPEN, STOP],
}
LEGAL: dict[tuple[Endpoint, ChoiceState], set[str]] = {
    (CHAT, ChoiceState.NEW): {"Opening", "Extra"},
    (CHAT, ChoiceState.STREAMING): SPOKEN,
    (CHAT, ChoiceState.IN_TOOL_CALLS): SPOKEN | {"ToolArguments"},
    (CHAT, ChoiceState.FINISHED): set(),
    (COMPLETIONS, ChoiceState.NEW): {"Opening", "Extra"},
    (COMPLETIONS, ChoiceState.STREAMING): {"Text", "Logprobs", "Extra", "Finish"},
    (COMPLETIONS, ChoiceState.FINISHED): set(),
}
AFTER = {"Opening": ChoiceState.STREAMING, "ToolCall": ChoiceState.IN_TOOL_CALLS, "Finish": ChoiceState.FINISHED}
OF_THE_STREAM = {"Usage", "Failure", "KeepAlive"}


def watch(endpoint: Endpoint, *events: Event) -> StreamStateMachine:
    table = state.CHAT_TRANSITIONS if endpoint is CHAT else state.COMPLETIONS_TRANSITIONS
    watcher = StreamStateMachine(table, is_ordered=endpoint is CHAT)
    for event in events:
        watcher.accept(event)
    return watcher


def refused(watcher: StreamStateMachine, event: Event) -> EventOrderError:
    with pytest.raises(EventOrderError) as caught:
        watcher.accept(event)
    return caught.value


@table(("endpoint", "phase"), WAYS)
@table("name", [name for name in SAMPLES if name not in OF_THE_STREAM])
def test_each_event_of_a_choice_is_legal_in_its_phases_and_in_no_other(
    endpoint: Endpoint, phase: ChoiceState, name: str
) -> None:
    watcher = watch(endpoint, *WAYS[endpoint, phase])
    event = ToolCall(0, 1, "b", "get") if (name, phase) == ("ToolCall", ChoiceState.IN_TOOL_CALLS) else SAMPLES[name]
    if name in LEGAL[endpoint, phase]:
        watcher.accept(event)
        assert watcher.choice_states.get(0, ChoiceState.NEW) is AFTER.get(name, phase)
    else:
        error = refused(watcher, event)
        assert error.event == repr(event)
        assert error.phase == f"choice 0 is {phase.value}, the stream running"
        assert set(error.legal.split(", ")) - {""} == LEGAL[endpoint, phase]
        assert watcher.choice_states.get(0, ChoiceState.NEW) is phase


STAGES: dict[StreamState, list[Event]] = {
    StreamState.RUNNING: [OPEN],
    StreamState.USAGE_SENT: [OPEN, STOP, SAMPLES["Usage"]],
    StreamState.FAILED: [OPEN, SAMPLES["Failure"]],
}
LEGAL_IN_STAGE: dict[StreamState, set[str]] = {
    StreamState.RUNNING: {"Usage", "Failure", "KeepAlive", "Extra"},
    StreamState.USAGE_SENT: {"KeepAlive"},
    StreamState.FAILED: set(),
    StreamState.ENDED: set(),
}


@table("stage", StreamState)
@table("name", ["Usage", "Failure", "KeepAlive", "Extra"])
def test_each_event_of_the_stream_is_legal_in_its_stages_and_in_no_other(stage: StreamState, name: str) -> None:
    watcher = watch(CHAT, *STAGES.get(stage, [OPEN, STOP]))
    if stage is StreamState.ENDED:
        watcher.end()
    event = FIELDS if name == "Extra" else SAMPLES[name]
    if name in LEGAL_IN_STAGE[stage] and not (name == "Usage" and stage is StreamState.RUNNING):
        watcher.accept(event)
        assert watcher.stream_state is (StreamState.FAILED if name == "Failure" else stage)
    else:
        error = refused(watcher, event)
        assert error.event == repr(event)
        assert error.phase == f"the stream is {stage.value}"
        assert set(error.legal.split(", ")) - {""} == LEGAL_IN_STAGE[stage] - {name}
        assert watcher.stream_state is stage


@table("stage", [StreamState.USAGE_SENT, StreamState.FAILED, StreamState.ENDED])
@table("name", [name for name in SAMPLES if name not in OF_THE_STREAM])
def test_no_choice_goes_on_when_the_stream_does_not(stage: StreamState, name: str) -> None:
    watcher = watch(CHAT, *STAGES.get(stage, [OPEN, STOP]))
    if stage is StreamState.ENDED:
        watcher.end()
    assert refused(watcher, SAMPLES[name]).legal == ""


def test_usage_comes_when_each_choice_has_finished() -> None:
    usage = SAMPLES["Usage"]
    assert refused(watch(CHAT), usage).phase == "the stream is running"
    assert refused(watch(CHAT, OPEN, ChoiceStart(1), STOP), usage).phase == "the stream is running"
    assert watch(CHAT, OPEN, STOP, usage).stream_state is StreamState.USAGE_SENT


def test_what_comes_too_soon_or_too_late_is_not_named_as_legal() -> None:
    assert refused(watch(CHAT, OPEN), SAMPLES["Usage"]).legal == "Failure, KeepAlive, Extra"
    assert refused(watch(CHAT, OPEN, STOP), FIELDS).legal == "Usage, Failure, KeepAlive"


def test_fields_of_a_chunk_come_while_there_is_a_chunk_to_ride_on() -> None:
    assert watch(CHAT, FIELDS).stream_state is StreamState.RUNNING
    assert watch(CHAT, OPEN, ChoiceStart(1), STOP, FIELDS).stream_state is StreamState.RUNNING
    assert refused(watch(CHAT, OPEN, STOP), FIELDS).phase == "the stream is running"


@pytest.mark.parametrize("kind", [Text, Reasoning, Refusal])
def test_a_text_is_not_empty(kind: type[Text] | type[Reasoning] | type[Refusal]) -> None:
    assert refused(watch(CHAT, OPEN), kind(0, "")).event == repr(kind(0, ""))


def test_the_choices_of_a_chat_open_in_order() -> None:
    assert watch(CHAT, OPEN, ChoiceStart(1), ChoiceStart(2)).choice_states == dict.fromkeys(
        range(3), ChoiceState.STREAMING
    )
    refused(watch(CHAT), ChoiceStart(1))
    refused(watch(CHAT, OPEN), ChoiceStart(2))
    refused(watch(CHAT), ChoiceStart(-1))


def test_the_choices_of_a_completion_open_in_any_order() -> None:
    assert watch(COMPLETIONS, ChoiceStart(2), OPEN).choice_states == {
        2: ChoiceState.STREAMING,
        0: ChoiceState.STREAMING,
    }
    refused(watch(COMPLETIONS), ChoiceStart(-1))


@table(
    "event",
    [
        ToolCall(0, 1, "b", "get"),
        ToolCall(0, -1, "b", "get"),
        ToolCall(0, 0, "", "get"),
        ToolCall(0, 0, "a", ""),
    ],
)
def test_a_call_has_the_next_number_and_an_id_and_a_name(event: ToolCall) -> None:
    assert refused(watch(CHAT, OPEN), event).event == repr(event)


def test_each_choice_numbers_its_own_calls() -> None:
    events: list[Event] = [OPEN, ChoiceStart(1), CALL, ToolCall(1, 0, "b", "get"), ToolCall(0, 1, "c", "get")]
    assert watch(CHAT, *events).choice_states == {0: ChoiceState.IN_TOOL_CALLS, 1: ChoiceState.IN_TOOL_CALLS}


@pytest.mark.parametrize("event", [ToolArguments(0, 0, "{}"), ToolArguments(0, 2, "{}"), ToolArguments(0, 1, "")])
def test_arguments_belong_to_the_last_call_and_say_something(event: ToolArguments) -> None:
    watcher = watch(CHAT, OPEN, CALL, ToolCall(0, 1, "b", "get"), ToolArguments(0, 1, "{}"))
    assert refused(watcher, event).event == repr(event)
    watcher.accept(ToolArguments(0, 1, "", {"x": 1}))
    assert watcher.choice_states == {0: ChoiceState.IN_TOOL_CALLS}


def test_what_stands_alone_comes_when_its_choice_is_open() -> None:
    alone = UnknownFields(0, FieldLocation.DELTA, {"x": 1}, in_own_chunk=True)
    refused(watch(CHAT), alone)
    assert watch(CHAT, OPEN, alone).choice_states == {0: ChoiceState.STREAMING}


def test_a_stream_ends_when_each_choice_has_finished_or_after_a_failure() -> None:
    for events in ([OPEN, STOP], [OPEN, STOP, SAMPLES["Usage"]], [OPEN, SAMPLES["Failure"]], [SAMPLES["Failure"]]):
        watcher = watch(CHAT, *events)
        watcher.end()
        assert watcher.stream_state is StreamState.ENDED


@table("events", [[], [OPEN], [OPEN, ChoiceStart(1), STOP], [KeepAlive()]])
def test_a_stream_does_not_end_while_something_is_open(events: list[Event]) -> None:
    watcher = watch(CHAT, *events)
    with pytest.raises(EventOrderError, match="the end while the stream is running") as caught:
        watcher.end()
    assert caught.value.legal == "Failure, or Finish for each choice"
    assert watcher.stream_state is StreamState.RUNNING


def test_a_stream_ends_once() -> None:
    watcher = watch(CHAT, OPEN, STOP)
    watcher.end()
    with pytest.raises(EventOrderError, match="the end while the stream is ended"):
        watcher.end()


def test_the_error_says_what_came_and_what_is_legal() -> None:
    error = refused(watch(COMPLETIONS), Text(0, "a"))
    assert (
        str(error) == "Text(index=0, text='a') while choice 0 is fresh, the stream running; legal now: Opening, Extra"
    )
    assert str(refused(watch(CHAT, OPEN, STOP), OPEN)).endswith("legal now: nothing")
    assert isinstance(error, WelldoneError)
