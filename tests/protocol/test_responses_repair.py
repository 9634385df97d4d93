"""Repair of the Responses API: correct streams are unchanged, and what is read from them."""

import json

import pytest

from tests.protocol.responses_streams import (
    HEAD,
    RESPONSE,
    Json,
    call_stream,
    frame,
    read,
    reasoning_stream,
    repair,
    text_stream,
)
from welldone.dialects.responses.repair import ResponsesRepairer


@pytest.mark.parametrize("values", [text_stream(), call_stream(), reasoning_stream()], ids=["text", "call", "all"])
def test_a_correct_stream_keeps_all_its_content(values: list[Json]) -> None:
    repaired, repairer = repair(values)
    assert repaired == values
    assert repairer.repair_log.entries() == []
    assert repairer.final_object == values[-1]["response"]
    assert repairer.is_done


@pytest.mark.parametrize("values", [text_stream(), call_stream(), reasoning_stream()], ids=["text", "call", "all"])
def test_a_correct_reply_keeps_all_its_content(values: list[Json]) -> None:
    response = values[-1]["response"]
    repairer = ResponsesRepairer(fallback=HEAD, is_stream=False)
    assert repairer.feed_reply(json.dumps(response).encode()) + repairer.close() == b""
    assert json.loads(repairer.body()) == response
    assert repairer.repair_log.entries() == []


@pytest.mark.parametrize("values", [text_stream(), call_stream(), reasoning_stream()], ids=["text", "call", "all"])
def test_a_reply_can_be_sent_as_a_stream(values: list[Json]) -> None:
    repairer = ResponsesRepairer(fallback=HEAD)
    repaired = read(repairer.feed_reply(json.dumps(values[-1]["response"]).encode()) + repairer.close())
    assert repaired[0]["type"] == "response.created"
    assert repaired[-1]["response"] == values[-1]["response"]
    assert repair(repaired)[0] == repaired


def test_members_of_the_response_can_be_replaced() -> None:
    """The id of a background response is known before the upstream has chosen its own."""
    own = {"id": "resp_own", "background": True}
    values = text_stream()
    repairer = ResponsesRepairer(fallback=HEAD, members=own)
    repaired = read(repairer.feed(b"".join(map(frame, values))) + repairer.close())
    assert repaired == [
        value | {"response": value["response"] | own} if "response" in value else value for value in values
    ]
    assert repairer.repair_log.entries() == []
    other = [value | {"response": value["response"] | {"id": "resp_b"}} for value in values[-1:]]
    repairer = ResponsesRepairer(fallback=HEAD, members=own)
    repairer.feed(b"".join(map(frame, values[:-1] + other)))
    assert [entry.rule for entry in repairer.repair_log.entries()] == ["resp-response-id"]


@pytest.mark.parametrize("has_texts", [False, True])
def test_an_observer_of_events_gets_the_texts_that_are_not_parsed(has_texts: bool) -> None:
    events: list[object] = []
    texts: list[str] = []
    repairer = ResponsesRepairer(fallback=HEAD)
    repairer.on_event = lambda value, _: events.append(value)
    repairer.on_text = texts.append if has_texts else None
    values = text_stream(text="Hello")
    for value in (*values[:5], *(values[4] | {"sequence_number": number} for number in (5, 6, 7))):
        repairer.feed(frame(value))
    assert (len(events), texts) == ((5, ["Hello"] * 3) if has_texts else (8, []))
    assert repairer.repair_log.entries() == []


def test_usage_is_read() -> None:
    repairer = repair(text_stream())[1]
    assert repairer.usage is not None
    assert (repairer.usage.prompt_tokens, repairer.usage.completion_tokens) == (5, 3)
    assert repairer.usage.extra_fields["prompt_tokens_details"]["cached_tokens"] == 2


def test_an_answer_has_started_when_output_was_received() -> None:
    repairer = ResponsesRepairer(fallback=HEAD)
    started = []
    for value in text_stream():
        repairer.feed(frame(value))
        started.append(repairer.has_started)
    assert started == [False, False, *[True] * 7]


def test_the_model_name_of_the_client_is_used() -> None:
    repaired, _ = repair(text_stream(), ResponsesRepairer(fallback=HEAD, model="mine"))
    assert {value["response"]["model"] for value in repaired if "response" in value} == {"mine"}


def test_missing_echoed_members_are_added() -> None:
    values = text_stream()
    for position in (0, 1, 8):
        values[position]["response"] = {
            key: values[position]["response"][key] for key in ("id", "output", "status") if position == 8 or key == "id"
        }
    repaired, repairer = repair(values, ResponsesRepairer(fallback=HEAD, echo={"instructions": "Be brief."}))
    for position in (0, 1, 8):
        response = repaired[position]["response"]
        assert response.keys() >= RESPONSE.keys() - {"x_region"}
        assert (response["id"], response["created_at"], response["model"]) == ("resp_a", 1700000000, "m")
        assert response["instructions"] == "Be brief."
    assert repairer.repair_log.counts()["resp-created-full"] == 3
