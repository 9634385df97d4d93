"""Repair of the Responses API: violations of single events, items and calls."""

import pytest

from tests.protocol.responses_streams import (
    CALL,
    HEAD,
    MESSAGE,
    RESPONSE,
    TEXT,
    THOUGHT,
    USAGE,
    Json,
    call_stream,
    changed,
    frame,
    numbered,
    read,
    repair,
    text_stream,
)
from tests.table import table
from welldone.dialects.responses.repair import ResponsesRepairer

# Violations by rule: `None` removes a member, {} removes the event.

CHANGES: list[tuple[str, int, Json]] = [
    ("resp-created-first", 0, {}),
    ("resp-created-full", 0, {"response": {"id": "resp_a"}}),
    ("resp-created-full", 1, {"response": None}),
    ("resp-event-name", 4, {"name": "x"}),
    ("resp-sequence-number", 4, {"sequence_number": 9}),
    ("resp-output-index", 2, {"output_index": None}),
    ("resp-output-index", 4, {"output_index": 3}),
    ("resp-output-index", 5, {"output_index": None}),
    ("resp-content-index", 3, {"content_index": 2}),
    ("resp-content-index", 4, {"content_index": None}),
    ("resp-content-index", 5, {"content_index": 4}),
    ("resp-item-id-stable", 2, {"item": MESSAGE | {"id": None}}),
    ("resp-item-id-stable", 4, {"item_id": "other"}),
    ("resp-item-id-stable", 5, {"item_id": None}),
    ("resp-item-added-first", 2, {}),
    ("resp-part-added-first", 3, {}),
    ("resp-deltas", 4, {}),
    ("resp-deltas", 4, {"delta": None}),
    ("resp-done-events", 5, {}),
    ("resp-done-events", 5, {"text": ""}),
    ("resp-done-events", 6, {}),
    ("resp-done-events", 6, {"part": TEXT}),
    ("resp-done-events", 7, {}),
    ("resp-final-output", 8, {"response": RESPONSE | {"status": "completed", "usage": USAGE, "output": []}}),
    ("resp-final-output", 8, {"response": RESPONSE | {"status": "completed", "usage": USAGE, "output": None}}),
    (
        "resp-usage",
        8,
        {"response": text_stream()[8]["response"] | {"usage": {"prompt_tokens": 5, "completion_tokens": 3}}},
    ),
    ("resp-usage", 8, {"response": text_stream()[8]["response"] | {"usage": None}}),
    ("resp-response-id", 8, {"response": text_stream()[8]["response"] | {"id": "resp_b"}}),
    ("resp-item-status", 2, {"item": MESSAGE | {"status": None}}),
    ("resp-item-status", 7, {"item": text_stream()[7]["item"] | {"status": "in_progress"}}),
    ("resp-logprobs-array", 4, {"logprobs": None}),
    ("resp-logprobs-array", 5, {"logprobs": 5}),
    ("resp-delta-equals-done", 5, {"text": "Bye"}),
]


@table(("rule", "position", "change"), CHANGES)
def test_a_violation_is_repaired_and_logged(rule: str, position: int, change: Json) -> None:
    repairer = ResponsesRepairer(fallback=HEAD)
    repaired = read(repairer.feed(changed(text_stream(), position, change)) + repairer.close())
    assert rule in repairer.repair_log.counts()
    assert repaired[-1]["type"] == "response.completed"
    output = repaired[-1]["response"]["output"]
    text = change.get("text") or "Hello"
    assert [part["text"] for part in output[0]["content"]] == [text]
    assert [value["text"] for value in repaired if value["type"] == "response.output_text.done"] == [text]
    assert {value["item_id"] for value in repaired if "item_id" in value} == {output[0]["id"]}
    assert repair(repaired)[0] == repaired


CALL_CHANGES: list[tuple[str, int, Json]] = [
    ("resp-function-ids", 1, {"item": CALL | {"id": None}}),
    ("resp-function-ids", 1, {"item": CALL | {"call_id": None}}),
    ("resp-function-ids", 1, {"item": CALL | {"name": None}}),
    ("resp-args-done", 3, {}),
    ("resp-item-added-first", 1, {}),
    ("resp-deltas", 2, {}),
    ("resp-deltas", 2, {"delta": '{"a"'}),
    ("resp-done-events", 4, {}),
]


@table(("rule", "position", "change"), CALL_CHANGES)
def test_a_violation_in_a_call_is_repaired_and_logged(rule: str, position: int, change: Json) -> None:
    repairer = ResponsesRepairer(fallback=HEAD)
    repaired = read(repairer.feed(changed(call_stream(), position, change)) + repairer.close())
    assert rule in repairer.repair_log.counts()
    (call,) = repaired[-1]["response"]["output"]
    assert call["id"]
    assert call["call_id"]
    assert (call["name"], call["arguments"], call["status"]) == ("get", '{"a":1}', "completed")
    (done,) = [value for value in repaired if value["type"] == "response.function_call_arguments.done"]
    assert (done["name"], done["arguments"]) == ("get", '{"a":1}')
    assert "".join(value["delta"] for value in repaired if "delta" in value) == '{"a":1}'


@pytest.mark.parametrize(("name", "logged"), [("get", set()), (None, {"resp-args-done"}), ("set", {"resp-args-done"})])
def test_the_name_of_a_call_does_not_change(name: str | None, logged: set[str]) -> None:
    values = call_stream()
    values[3]["name"] = name
    repaired, repairer = repair(values)
    assert repaired == call_stream()
    assert repairer.repair_log.counts().keys() == logged


@pytest.mark.parametrize("halves", [(b"\\ud83d", b"\\ude00"), (b"\xf0\x9f", b"\x98\x80")])
def test_a_split_character_is_joined(halves: tuple[bytes, bytes]) -> None:
    values = text_stream(text="?")
    begin, delta, end = (
        values[:4],
        values[4],
        [value | {"sequence_number": 6 + n} for n, value in enumerate(values[5:])],
    )
    first, second = (frame(delta | {"sequence_number": 4 + n}).replace(b"?", half) for n, half in enumerate(halves))
    repairer = ResponsesRepairer(fallback=HEAD)
    body = b"".join(map(frame, begin)) + first + second + b"".join(map(frame, end)).replace(b"?", "😀".encode())
    repaired = read(repairer.feed(body) + repairer.close())
    assert [value["delta"] for value in repaired if "delta" in value] == ["", "😀"]
    assert repaired[-1]["response"]["output"][0]["content"][0]["text"] == "😀"
    assert repairer.repair_log.counts() == {"enc-no-lone-surrogate" if first.isascii() else "enc-valid-utf8": 2}
    cut = ResponsesRepairer(fallback=HEAD)
    lost = read(cut.feed(b"".join(map(frame, begin)) + first) + cut.close())
    assert [value["delta"] for value in lost if "delta" in value] == ["", "\ufffd"]


@pytest.mark.parametrize("status", [None, "in_progress", "completed"])
def test_reasoning_needs_no_status(status: str | None) -> None:
    thought = {key: value for key, value in THOUGHT.items() if key != "status"}
    done = {"type": "output_item.done", "output_index": 0, "item": thought | {"status": status}}
    repaired, _ = repair(
        numbered(
            {"type": "created", "response": RESPONSE},
            {"type": "output_item.added", "output_index": 0, "item": thought},
            done,
            {"type": "completed", "response": RESPONSE | {"status": "completed", "usage": USAGE}},
        )
    )
    assert repaired[1]["item"] == thought
    assert repaired[2]["item"] == thought | {"status": status and "completed"}


def test_members_that_clients_iterate_are_never_null() -> None:
    values = text_stream()
    for value in values[:2]:
        value["response"] = value["response"] | {"tools": None, "parallel_tool_calls": None, "text": None}
    repaired, _ = repair(values)
    response = repaired[0]["response"]
    assert (response["tools"], response["parallel_tool_calls"], response["text"]) == ([], True, None)


def test_generated_ids_are_unique() -> None:
    taken = [MESSAGE | {"id": id} for id in ("msg_7_2", "msg_7_2_", None, "msg_7_2_")]
    added = [{"type": "output_item.added", "output_index": n, "item": item} for n, item in enumerate(taken)]
    repaired, _ = repair(numbered({"type": "created", "response": RESPONSE}, *added))
    ids = [value["item"]["id"] for value in repaired if value["type"] == "response.output_item.added"]
    assert ids == ["msg_7_2", "msg_7_2_", "msg_7_2__", "msg_7_3"]


def test_a_part_that_does_not_fit_its_item_is_dropped() -> None:
    thought = {"id": "rs_a", "type": "reasoning", "summary": []}
    done = thought | {"content": [TEXT | {"text": "x"}]}
    added = {"type": "output_item.added", "output_index": 0, "item": thought}
    ended = {"type": "output_item.done", "output_index": 0, "item": done}
    repaired, _ = repair(numbered({"type": "created", "response": RESPONSE}, added, ended))
    assert repaired[2]["item"] == repaired[-1]["response"]["output"][0] == thought | {"content": []}


def test_stable_members_of_an_item_hold_and_others_may_change() -> None:
    picture = {"id": "ig_a", "type": "image_generation_call", "status": "generating", "name": "a", "result": "x"}
    changed_at_end = picture | {"status": "completed", "name": "b", "result": "y"}
    response = RESPONSE | {"status": "completed", "usage": USAGE, "output": [changed_at_end]}
    repaired, _ = repair(
        numbered(
            {"type": "created", "response": RESPONSE},
            {"type": "output_item.added", "output_index": 0, "item": picture},
            {"type": "output_item.done", "output_index": 0, "item": picture},
            {"type": "completed", "response": response},
        )
    )
    assert repaired[2]["item"] == picture
    assert repaired[-1]["response"]["output"] == [changed_at_end | {"name": "a"}]


def test_a_call_without_a_name_is_an_error() -> None:
    values = call_stream()
    for position in (1, 4):
        values[position]["item"] = values[position]["item"] | {"name": ""}
    values[5]["response"]["output"] = []
    repaired, repairer = repair(values)
    assert repaired[-1]["type"] == "response.failed"
    assert repairer.repair_log.counts()["resp-function-ids"] == 2


def test_arguments_without_deltas_are_sent_as_a_delta() -> None:
    values = call_stream()
    values[1]["item"] = CALL | {"arguments": '{"b":2}'}
    values = [values[0], values[1], values[5] | {"response": RESPONSE | {"status": "completed", "usage": USAGE}}]
    repaired, _ = repair(values)
    assert repaired[-1]["response"]["output"][0]["arguments"] == '{"b":2}'
    assert repaired[1]["item"]["arguments"] == ""
    assert repaired[2]["delta"] == '{"b":2}'


def test_placeholder_arguments_are_discarded() -> None:
    values = call_stream()
    values[1]["item"] = CALL | {"arguments": "{}"}
    repaired, _ = repair([values[0], values[1], values[2]])
    assert repaired[-2]["item"]["arguments"] == '{"a":1}'


@pytest.mark.parametrize(("arguments", "broken"), [("{}", 0), ("{", 1), ("[]", 1)])
def test_invalid_arguments_are_counted(arguments: str, broken: int) -> None:
    assert repair(call_stream(arguments))[1].result.invalid_arguments_count == broken


@table("heartbeat", [b'data: {"ts":17}\n\n', b'data: "ping"\n\n', b'event: heartbeat\ndata: {"ts":17}\n\n'])
def test_a_heartbeat_is_no_part_of_the_answer(heartbeat: bytes) -> None:
    repairer = ResponsesRepairer(fallback=HEAD)
    *events, last = map(frame, text_stream())
    repaired = read(repairer.feed(b"".join([heartbeat.join(events), heartbeat, last])) + repairer.close())
    assert repaired == text_stream()
    assert "resp-no-unknown-events" in repairer.repair_log.counts()


def test_content_in_an_object_that_is_no_event_is_an_error() -> None:
    repairer = ResponsesRepairer(fallback=HEAD)
    foreign = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'
    assert read(repairer.feed(foreign.join(map(frame, text_stream()))))[-1]["type"] == "response.failed"
