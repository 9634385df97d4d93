"""Repair of the Responses API: replies that are not streamed, and members of the response."""

import json
from collections.abc import Callable

import pytest

from tests.protocol.responses_streams import (
    CALL,
    HEAD,
    MESSAGE,
    RESPONSE,
    TEXT,
    USAGE,
    Json,
    frame,
    numbered,
    read,
    reasoning_stream,
    repair,
    text_stream,
)
from tests.table import table
from welldone.core.envelope import Envelope
from welldone.core.events import ChoiceStart, Event, Finish, Text, Usage
from welldone.dialects.responses.repair import ResponsesRepairer
from welldone.dialects.responses.writer import ResponsesFormat


def test_violations_in_a_reply_are_logged() -> None:
    nameless, message = CALL | {"id": "", "arguments": "{}", "status": "completed"}, MESSAGE
    repairer = ResponsesRepairer(fallback=HEAD, is_stream=False)
    reply = {"status": "completed", "output": [nameless, message, None], "usage": {"prompt_tokens": 1}}
    repairer.feed_reply(json.dumps(reply).encode())
    rules = {"resp-created-full", "resp-usage", "resp-function-ids", "resp-item-status"}
    assert repairer.repair_log.counts() == dict.fromkeys(rules, 1)
    call, message = json.loads(repairer.body())["output"]
    assert call["id"]
    assert message["status"] == "completed"


@pytest.mark.parametrize("status", ["queued", "in_progress", "cancelled"])
def test_an_unfinished_reply_is_unchanged(status: str) -> None:
    repairer = ResponsesRepairer(fallback=HEAD, is_stream=False)
    repairer.feed_reply(json.dumps(RESPONSE | {"status": status}).encode())
    assert json.loads(repairer.body()) == RESPONSE | {"status": status}
    assert repairer.close() == b""
    assert repairer.failure is None
    stream = ResponsesRepairer(fallback=HEAD)
    sent = read(stream.feed_reply(json.dumps(RESPONSE | {"status": status}).encode()) + stream.close())
    assert sent[-1]["type"] == "response.failed"


@pytest.mark.parametrize(
    "reply", [{"error": {"message": "boom", "code": "c"}}, {"x": 1}, {"output": 5, "status": "failed"}]
)
def test_a_reply_without_a_response_has_failed(reply: Json) -> None:
    repairer = ResponsesRepairer(fallback=HEAD, is_stream=False)
    repairer.feed_reply(json.dumps(reply).encode())
    assert repairer.failure is not None


def test_repair_does_not_change_written_streams() -> None:
    writer = ResponsesFormat({}).make_writer(HEAD, lambda: None)
    events: list[Event] = [ChoiceStart(0), Text(0, "a\u2028"), Finish(0, "stop"), Usage(1, 1, 2, {})]
    written = b"".join([*(writer.send(event) for event in events), writer.end()])
    repairer = ResponsesRepairer(fallback=Envelope("resp_9", 1, "x"))
    assert repairer.feed(written) + repairer.close() == written


def test_events_without_locators_belong_to_the_last_open_item() -> None:
    values = reasoning_stream()
    for value in values:
        for name in ("item_id", "output_index", "content_index", "summary_index"):
            value.pop(name, None)
    repaired, repairer = repair(values)
    assert repaired == reasoning_stream()
    assert {"resp-output-index", "resp-content-index", "resp-item-id-stable"} <= repairer.repair_log.counts().keys()


@table("position", [0, 2, 3, 4, 7, 8])
def test_excessive_nesting_is_cut(position: int) -> None:
    values = text_stream()
    marked = b"".join(
        frame(value | ({"x_deep": "DEEP"} if number == position else {})) for number, value in enumerate(values)
    )
    repairer = ResponsesRepairer(fallback=HEAD)
    sent = repairer.feed(marked.replace(b'"DEEP"', b"[" * 300 + b"]" * 300)) + repairer.close()
    assert [value["type"] for value in read(sent)] == [value["type"] for value in values]
    assert b"[" * 60 in sent
    assert b"[" * 70 not in sent


@table(
    ("sent", "clock", "completed"),
    [(9, None, 9), (9.5, lambda: 7.0, 9.5), (None, lambda: 7.5, 7), ("soon", lambda: 7.5, 7), (None, None, None)],
)
def test_completed_at_comes_from_the_server_or_the_clock(
    sent: object, clock: Callable[[], float] | None, completed: float | None
) -> None:
    repairer = ResponsesRepairer(fallback=HEAD, is_stream=False, clock=clock)
    repairer.feed_reply(json.dumps(RESPONSE | {"status": "completed", "usage": USAGE, "completed_at": sent}).encode())
    repairer.close()
    assert repairer.final_object is not None
    assert repairer.final_object["completed_at"] == completed


@table(
    ("name", "odd", "right"),
    [
        ("presence_penalty", "none", 0.0),
        ("store", "yes", True),
        ("top_logprobs", True, 0),
        ("temperature", None, None),
        ("instructions", [{"role": "user"}], [{"role": "user"}]),
        (
            "tools",
            [{"type": "function", "name": "get", "parameters": []}, {"type": "x"}, 7],
            [
                {"type": "function", "name": "get", "description": None, "parameters": None, "strict": None},
                {"type": "x"},
                7,
            ],
        ),
    ],
)
def test_an_invalid_member_gets_its_default(name: str, odd: object, right: object) -> None:
    repairer = ResponsesRepairer(fallback=HEAD, is_stream=False)
    repairer.feed_reply(json.dumps(RESPONSE | {"status": "completed", "usage": USAGE, name: odd}).encode())
    repairer.close()
    assert repairer.final_object is not None
    assert repairer.final_object[name] == right
    assert [note.rule for note in repairer.repair_log.entries()] == (["resp-object-schema"] if odd != right else [])


@pytest.mark.parametrize("details", [None, {"reason": "content_filter"}, {}])
def test_an_incomplete_response_gets_a_reason(details: Json | None) -> None:
    repairer = ResponsesRepairer(fallback=HEAD, is_stream=False)
    whole = RESPONSE | {"status": "incomplete", "usage": USAGE, "incomplete_details": details}
    repairer.feed_reply(json.dumps(whole).encode())
    repairer.close()
    assert repairer.final_object is not None
    assert repairer.final_object["incomplete_details"] == (details or {"reason": "max_output_tokens"})
    assert ("resp-object-schema" in {note.rule for note in repairer.repair_log.entries()}) is not bool(details)


@table(
    ("type_", "container", "name"),
    [
        ("output_item.added", "item", "role"),
        ("output_item.done", "item", "role"),
        ("content_part.added", "part", "annotations"),
        ("content_part.done", "part", "annotations"),
    ],
)
def test_missing_required_members_of_items_and_parts_are_added(type_: str, container: str, name: str) -> None:
    done = TEXT | {"text": "a"}
    address = {"item_id": "msg_a", "output_index": 0, "content_index": 0}
    whole = MESSAGE | {"status": "completed", "content": [done]}
    events = numbered(
        {"type": "created", "response": RESPONSE},
        {"type": "output_item.added", "output_index": 0, "item": dict(MESSAGE)},
        {"type": "content_part.added", **address, "part": dict(TEXT)},
        {"type": "output_text.delta", **address, "delta": "a", "logprobs": []},
        {"type": "output_text.done", **address, "text": "a", "logprobs": []},
        {"type": "content_part.done", **address, "part": dict(done)},
        {"type": "output_item.done", "output_index": 0, "item": dict(whole)},
        {"type": "completed", "response": RESPONSE | {"status": "completed", "output": [whole], "usage": USAGE}},
    )
    right, _ = repair(events)
    odd = json.loads(json.dumps(events))
    next(event for event in odd if event["type"] == f"response.{type_}")[container].pop(name)
    repaired, repairer = repair(odd)
    assert repaired == right
    assert [note.rule for note in repairer.repair_log.entries()] == ["resp-object-schema"]


@pytest.mark.parametrize("name", ["id", "role", "content"])
def test_missing_required_members_of_items_in_a_reply_are_logged(name: str) -> None:
    item = {key: value for key, value in MESSAGE.items() if key != name} | {"status": "completed"}
    repairer = ResponsesRepairer(fallback=HEAD, is_stream=False)
    repairer.feed_reply(json.dumps(RESPONSE | {"status": "completed", "usage": USAGE, "output": [item]}).encode())
    repairer.close()
    assert "resp-object-schema" in {note.rule for note in repairer.repair_log.entries()}
    assert repairer.final_object is not None
    assert repairer.final_object["output"][0].keys() >= MESSAGE.keys()
