"""What may follow what: the whole table, walked for both dialects."""

import pytest

from tests.table import table
from tests.wire.build import CHAT, COMPLETIONS
from welldone.wire import automaton
from welldone.wire.automaton import Automaton, Phase, Stage
from welldone.wire.errors import OutOfTurnError, WelldoneError
from welldone.wire.events import (
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
from welldone.wire.head import Endpoint

OPEN, STOP, CALL = Opening(0), Finish(0, "stop"), ToolCall(0, 0, "a", "get")
SAMPLES: dict[str, Event] = {
    "Opening": OPEN,
    "Text": Text(0, "a"),
    "Reasoning": Reasoning(0, "a"),
    "Refusal": Refusal(0, "a"),
    "ToolCall": CALL,
    "ToolArguments": ToolArguments(0, 0, "{}"),
    "Logprobs": Logprobs(0, {}),
    "Finish": STOP,
    "Extra": Extra(0, Place.DELTA, {"x": 1}),
    "Usage": Usage(1, 1, 2, {}),
    "Failure": Failure("boom"),
    "KeepAlive": KeepAlive(),
}
FIELDS = Extra(0, Place.CHUNK, {"x": 1})

SPOKEN = {"Text", "Reasoning", "Refusal", "Logprobs", "Extra", "ToolCall", "Finish"}
WAYS: dict[tuple[Endpoint, Phase], list[Event]] = {
    (CHAT, Phase.FRESH): [],
    (CHAT, Phase.SPEAKING): [OPEN],
    (CHAT, Phase.CALLING): [OPEN, CALL],
    (CHAT, Phase.FINISHED): [OPEN, STOP],
    (COMPLETIONS, Phase.FRESH): [],
    (COMPLETIONS, Phase.SPEAKING): [OPEN],
    (COMPLETIONS, Phase.FINISHED): [OPEN, STOP],
}
LEGAL: dict[tuple[Endpoint, Phase], set[str]] = {
    (CHAT, Phase.FRESH): {"Opening", "Extra"},
    (CHAT, Phase.SPEAKING): SPOKEN,
    (CHAT, Phase.CALLING): SPOKEN | {"ToolArguments"},
    (CHAT, Phase.FINISHED): set(),
    (COMPLETIONS, Phase.FRESH): {"Opening", "Extra"},
    (COMPLETIONS, Phase.SPEAKING): {"Text", "Logprobs", "Extra", "Finish"},
    (COMPLETIONS, Phase.FINISHED): set(),
}
AFTER = {"Opening": Phase.SPEAKING, "ToolCall": Phase.CALLING, "Finish": Phase.FINISHED}
OF_THE_STREAM = {"Usage", "Failure", "KeepAlive"}


def watch(endpoint: Endpoint, *events: Event) -> Automaton:
    table = automaton.CHAT if endpoint is CHAT else automaton.COMPLETIONS
    watcher = Automaton(table, is_ordered=endpoint is CHAT)
    for event in events:
        watcher.accept(event)
    return watcher


def refused(watcher: Automaton, event: Event) -> OutOfTurnError:
    with pytest.raises(OutOfTurnError) as caught:
        watcher.accept(event)
    return caught.value


@table(("endpoint", "phase"), WAYS)
@table("name", [name for name in SAMPLES if name not in OF_THE_STREAM])
def test_each_event_of_a_choice_is_legal_in_its_phases_and_in_no_other(
    endpoint: Endpoint, phase: Phase, name: str
) -> None:
    watcher = watch(endpoint, *WAYS[endpoint, phase])
    event = ToolCall(0, 1, "b", "get") if (name, phase) == ("ToolCall", Phase.CALLING) else SAMPLES[name]
    if name in LEGAL[endpoint, phase]:
        watcher.accept(event)
        assert watcher.phases.get(0, Phase.FRESH) is AFTER.get(name, phase)
    else:
        error = refused(watcher, event)
        assert error.event == repr(event)
        assert error.phase == f"choice 0 is {phase.value}, the stream running"
        assert set(error.legal.split(", ")) - {""} == LEGAL[endpoint, phase]
        assert watcher.phases.get(0, Phase.FRESH) is phase


STAGES: dict[Stage, list[Event]] = {
    Stage.RUNNING: [OPEN],
    Stage.COUNTED: [OPEN, STOP, SAMPLES["Usage"]],
    Stage.FAILED: [OPEN, SAMPLES["Failure"]],
}
LEGAL_IN_STAGE: dict[Stage, set[str]] = {
    Stage.RUNNING: {"Usage", "Failure", "KeepAlive", "Extra"},
    Stage.COUNTED: {"KeepAlive"},
    Stage.FAILED: set(),
    Stage.ENDED: set(),
}


@table("stage", Stage)
@table("name", ["Usage", "Failure", "KeepAlive", "Extra"])
def test_each_event_of_the_stream_is_legal_in_its_stages_and_in_no_other(stage: Stage, name: str) -> None:
    watcher = watch(CHAT, *STAGES.get(stage, [OPEN, STOP]))
    if stage is Stage.ENDED:
        watcher.end()
    event = FIELDS if name == "Extra" else SAMPLES[name]
    if name in LEGAL_IN_STAGE[stage] and not (name == "Usage" and stage is Stage.RUNNING):
        watcher.accept(event)
        assert watcher.stage is (Stage.FAILED if name == "Failure" else stage)
    else:
        error = refused(watcher, event)
        assert error.event == repr(event)
        assert error.phase == f"the stream is {stage.value}"
        assert set(error.legal.split(", ")) - {""} == LEGAL_IN_STAGE[stage] - {name}
        assert watcher.stage is stage


@table("stage", [Stage.COUNTED, Stage.FAILED, Stage.ENDED])
@table("name", [name for name in SAMPLES if name not in OF_THE_STREAM])
def test_no_choice_goes_on_when_the_stream_does_not(stage: Stage, name: str) -> None:
    watcher = watch(CHAT, *STAGES.get(stage, [OPEN, STOP]))
    if stage is Stage.ENDED:
        watcher.end()
    assert refused(watcher, SAMPLES[name]).legal == ""


def test_usage_comes_when_each_choice_has_finished() -> None:
    usage = SAMPLES["Usage"]
    assert refused(watch(CHAT), usage).phase == "the stream is running"
    assert refused(watch(CHAT, OPEN, Opening(1), STOP), usage).phase == "the stream is running"
    assert watch(CHAT, OPEN, STOP, usage).stage is Stage.COUNTED


def test_what_comes_too_soon_or_too_late_is_not_named_as_legal() -> None:
    assert refused(watch(CHAT, OPEN), SAMPLES["Usage"]).legal == "Failure, KeepAlive, Extra"
    assert refused(watch(CHAT, OPEN, STOP), FIELDS).legal == "Usage, Failure, KeepAlive"


def test_fields_of_a_chunk_come_while_there_is_a_chunk_to_ride_on() -> None:
    assert watch(CHAT, FIELDS).stage is Stage.RUNNING
    assert watch(CHAT, OPEN, Opening(1), STOP, FIELDS).stage is Stage.RUNNING
    assert refused(watch(CHAT, OPEN, STOP), FIELDS).phase == "the stream is running"


@pytest.mark.parametrize("kind", [Text, Reasoning, Refusal])
def test_a_text_is_not_empty(kind: type[Text] | type[Reasoning] | type[Refusal]) -> None:
    assert refused(watch(CHAT, OPEN), kind(0, "")).event == repr(kind(0, ""))


def test_the_choices_of_a_chat_open_in_order() -> None:
    assert watch(CHAT, OPEN, Opening(1), Opening(2)).phases == dict.fromkeys(range(3), Phase.SPEAKING)
    refused(watch(CHAT), Opening(1))
    refused(watch(CHAT, OPEN), Opening(2))
    refused(watch(CHAT), Opening(-1))


def test_the_choices_of_a_completion_open_in_any_order() -> None:
    assert watch(COMPLETIONS, Opening(2), OPEN).phases == {2: Phase.SPEAKING, 0: Phase.SPEAKING}
    refused(watch(COMPLETIONS), Opening(-1))


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
    events: list[Event] = [OPEN, Opening(1), CALL, ToolCall(1, 0, "b", "get"), ToolCall(0, 1, "c", "get")]
    assert watch(CHAT, *events).phases == {0: Phase.CALLING, 1: Phase.CALLING}


@pytest.mark.parametrize("event", [ToolArguments(0, 0, "{}"), ToolArguments(0, 2, "{}"), ToolArguments(0, 1, "")])
def test_arguments_belong_to_the_last_call_and_say_something(event: ToolArguments) -> None:
    watcher = watch(CHAT, OPEN, CALL, ToolCall(0, 1, "b", "get"), ToolArguments(0, 1, "{}"))
    assert refused(watcher, event).event == repr(event)
    watcher.accept(ToolArguments(0, 1, "", {"x": 1}))
    assert watcher.phases == {0: Phase.CALLING}


def test_what_stands_alone_comes_when_its_choice_is_open() -> None:
    alone = Extra(0, Place.DELTA, {"x": 1}, alone=True)
    refused(watch(CHAT), alone)
    assert watch(CHAT, OPEN, alone).phases == {0: Phase.SPEAKING}


def test_a_stream_ends_when_each_choice_has_finished_or_after_a_failure() -> None:
    for events in ([OPEN, STOP], [OPEN, STOP, SAMPLES["Usage"]], [OPEN, SAMPLES["Failure"]], [SAMPLES["Failure"]]):
        watcher = watch(CHAT, *events)
        watcher.end()
        assert watcher.stage is Stage.ENDED


@table("events", [[], [OPEN], [OPEN, Opening(1), STOP], [KeepAlive()]])
def test_a_stream_does_not_end_while_something_is_open(events: list[Event]) -> None:
    watcher = watch(CHAT, *events)
    with pytest.raises(OutOfTurnError, match="the end while the stream is running") as caught:
        watcher.end()
    assert caught.value.legal == "Failure, or Finish for each choice"
    assert watcher.stage is Stage.RUNNING


def test_a_stream_ends_once() -> None:
    watcher = watch(CHAT, OPEN, STOP)
    watcher.end()
    with pytest.raises(OutOfTurnError, match="the end while the stream is ended"):
        watcher.end()


def test_the_error_says_what_came_and_what_is_legal() -> None:
    error = refused(watch(COMPLETIONS), Text(0, "a"))
    assert (
        str(error) == "Text(index=0, text='a') while choice 0 is fresh, the stream running; legal now: Opening, Extra"
    )
    assert str(refused(watch(CHAT, OPEN, STOP), OPEN)).endswith("legal now: nothing")
    assert isinstance(error, WelldoneError)
