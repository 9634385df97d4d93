"""Pass-through repair of /v1/responses."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.table import table
from welldone.protocol.dialects.base import KEEP_ALIVE
from welldone.protocol.dialects.responses.objects import RESPONSE_DEFAULTS
from welldone.protocol.dialects.responses.repair import ResponsesRepairer
from welldone.protocol.dialects.responses.writer import ResponsesDialect
from welldone.protocol.envelope import Envelope
from welldone.protocol.events import ChoiceStart, Event, Failure, Finish, Text, Usage
from welldone.protocol.request_facts import RepairOptions

Json = dict[str, Any]
HEAD = Envelope("resp_7", 1700000000, "m")
RESPONSE: Json = RESPONSE_DEFAULTS | {
    "id": "resp_a",
    "object": "response",
    "created_at": 5,
    "completed_at": None,
    "status": "in_progress",
    "model": "big",
    "output": [],
    "error": None,
    "incomplete_details": None,
    "usage": None,
    "x_region": "here",
}
USAGE: Json = {
    "input_tokens": 5,
    "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 1},
    "total_tokens": 8,
    "x_cost": 0.5,
}
CITED = {"type": "url_citation", "url": "https://example.com", "title": "t", "start_index": 0, "end_index": 1}
TEXT: Json = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
MESSAGE: Json = {"id": "msg_a", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
CALL: Json = {"id": "fc_a", "type": "function_call", "status": "in_progress", "call_id": "call_a", "name": "get"}
CALL |= {"arguments": ""}
SEARCH: Json = {"id": "ws_a", "type": "web_search_call", "status": "in_progress", "action": {"type": "search"}}
THOUGHT: Json = {"id": "rs_a", "type": "reasoning", "status": "in_progress", "summary": [], "encrypted_content": "e"}


def frame(value: Json) -> bytes:
    """Encode an event."""
    return f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode()


def numbered(*values: Json) -> list[Json]:
    """Add sequence numbers, and `response.` to the types."""
    return [
        {
            "type": f"response.{value['type']}",
            "sequence_number": number,
            **{k: v for k, v in value.items() if k != "type"},
        }
        for number, value in enumerate(values)
    ]


def read(data: bytes) -> list[Json]:
    """Decode a stream; check names and sequence numbers."""
    found = []
    for block in data.decode().removesuffix("\n\n").split("\n\n"):
        name, _, line = block.partition("\n")
        value = json.loads(line.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append(value)
    assert [value["sequence_number"] for value in found] == list(range(len(found)))
    return found


def repair(values: list[Json], repairer: ResponsesRepairer | None = None) -> tuple[list[Json], ResponsesRepairer]:
    """Repair a stream; return its events and the repairer."""
    repairer = repairer or ResponsesRepairer(fallback=HEAD)
    data = b"".join(frame(value) for value in values)
    return read(repairer.feed(data) + repairer.close()), repairer


def locators(item: Json, index: int, **members: object) -> Json:
    """Return the members that identify an item."""
    return {"item_id": item["id"], "output_index": index, **members}


def text_stream(*, text: str = "Hello") -> list[Json]:
    """Return a correct stream with one text."""
    part, part_done = TEXT, TEXT | {"text": text}
    done = MESSAGE | {"status": "completed", "content": [part_done]}
    address = locators(MESSAGE, 0, content_index=0)
    return numbered(
        {"type": "created", "response": RESPONSE},
        {"type": "in_progress", "response": RESPONSE},
        {"type": "output_item.added", "output_index": 0, "item": MESSAGE},
        {"type": "content_part.added", **address, "part": part},
        {"type": "output_text.delta", **address, "delta": text, "logprobs": []},
        {"type": "output_text.done", **address, "text": text, "logprobs": []},
        {"type": "content_part.done", **address, "part": part_done},
        {"type": "output_item.done", "output_index": 0, "item": done},
        {"type": "completed", "response": RESPONSE | {"status": "completed", "output": [done], "usage": USAGE}},
    )


def call_stream(arguments: str = '{"a":1}') -> list[Json]:
    """Return a correct stream with a function call."""
    done = CALL | {"status": "completed", "arguments": arguments}
    return numbered(
        {"type": "created", "response": RESPONSE},
        {"type": "output_item.added", "output_index": 0, "item": CALL},
        {"type": "function_call_arguments.delta", **locators(CALL, 0), "delta": arguments},
        {"type": "function_call_arguments.done", **locators(CALL, 0), "name": "get", "arguments": arguments},
        {"type": "output_item.done", "output_index": 0, "item": done},
        {"type": "completed", "response": RESPONSE | {"status": "completed", "output": [done], "usage": USAGE}},
    )


def reasoning_stream() -> list[Json]:
    """Return a correct stream with features of this dialect."""
    summed = {"type": "summary_text", "text": "sum"}
    thought = THOUGHT | {"status": "completed", "summary": [summed]}
    searched = SEARCH | {"status": "completed", "results": [1]}
    cited = TEXT | {"text": "Hi", "annotations": [CITED]}
    refused = {"type": "refusal", "refusal": "No"}
    message = MESSAGE | {"status": "completed", "content": [cited, refused]}
    custom = {
        "id": "ctc_a",
        "type": "custom_tool_call",
        "status": "in_progress",
        "call_id": "c",
        "name": "run",
        "input": "",
    }
    ran = custom | {"status": "completed", "input": "ls"}
    tools = {"id": "mcpl_a", "type": "mcp_list_tools", "server_label": "s", "tools": []}
    summary, first, second = (
        locators(THOUGHT, 0, summary_index=0),
        locators(MESSAGE, 2, content_index=0),
        locators(MESSAGE, 2, content_index=1),
    )
    shell = {"id": "sh_a", "type": "shell_call", "status": "in_progress", "call_id": "s", "action": {}}
    output = [thought, searched, message, ran, tools, shell | {"status": "completed"}]
    return numbered(
        {"type": "created", "response": RESPONSE | {"status": "queued"}},
        {"type": "queued", "response": RESPONSE | {"status": "queued"}},
        {"type": "in_progress", "response": RESPONSE, "x_more": True},
        {"type": "output_item.added", "output_index": 0, "item": THOUGHT, "x_more": 1},
        {"type": "reasoning_summary_part.added", **summary, "part": summed | {"text": ""}},
        {"type": "reasoning_summary_text.delta", **summary, "delta": "sum", "obfuscation": "xyz"},
        {"type": "reasoning_summary_text.done", **summary, "text": "sum"},
        {"type": "reasoning_summary_part.done", **summary, "part": summed},
        {"type": "output_item.added", "output_index": 1, "item": SEARCH},
        {"type": "output_item.done", "output_index": 0, "item": thought},
        {"type": "web_search_call.in_progress", **locators(SEARCH, 1)},
        {"type": "web_search_call.completed", **locators(SEARCH, 1), "x_more": 2},
        {"type": "output_item.done", "output_index": 1, "item": searched},
        {"type": "output_item.added", "output_index": 2, "item": MESSAGE},
        {"type": "content_part.added", **first, "part": TEXT},
        {
            "type": "output_text.delta",
            **first,
            "delta": "Hi",
            "logprobs": [{"token": "Hi", "logprob": -1, "top_logprobs": []}],
        },
        {"type": "output_text.annotation.added", **first, "annotation_index": 0, "annotation": CITED},
        {"type": "output_text.done", **first, "text": "Hi", "logprobs": []},
        {"type": "content_part.done", **first, "part": cited},
        {"type": "content_part.added", **second, "part": refused | {"refusal": ""}},
        {"type": "refusal.delta", **second, "delta": "No"},
        {"type": "refusal.done", **second, "refusal": "No"},
        {"type": "content_part.done", **second, "part": refused},
        {"type": "audio.transcript.delta", "delta": "la"},
        {"type": "output_item.done", "output_index": 2, "item": message},
        {"type": "output_item.added", "output_index": 3, "item": custom},
        {"type": "custom_tool_call_input.delta", **locators(custom, 3), "delta": "ls"},
        {"type": "custom_tool_call_input.done", **locators(custom, 3), "input": "ls"},
        {"type": "output_item.done", "output_index": 3, "item": ran},
        {"type": "output_item.added", "output_index": 4, "item": tools},
        {"type": "output_item.done", "output_index": 4, "item": tools},
        {"type": "output_item.added", "output_index": 5, "item": shell},
        {"type": "shell_call_command.added", "output_index": 5, "command": "ls", "command_index": 0},
        {"type": "output_item.done", "output_index": 5, "item": output[5]},
        {"type": "completed", "response": RESPONSE | {"status": "completed", "output": output, "usage": USAGE}, "x": 1},
    )


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


def test_fast_path_events_are_counted() -> None:
    repairer = ResponsesRepairer(fallback=HEAD)
    values = text_stream()
    repairer.feed(b"".join(frame(value) for value in values[:5]))
    repairer.record_fast_path(3)
    repairer.feed(b"".join(frame(value | {"sequence_number": value["sequence_number"] + 3}) for value in values[5:]))
    repairer.close()
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


# Violations by rule: `None` removes a member, {} removes the event.

CHANGES: list[tuple[str, int, Json]] = [
    ("resp-created-first", 0, {}),
    ("resp-created-full", 0, {"response": {"id": "resp_a"}}),
    ("resp-created-full", 1, {"response": 5}),
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
    ("resp-deltas", 4, {"delta": 5}),
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


def changed(values: list[Json], position: int, change: Json) -> bytes:
    """Change one event of a stream."""
    out = b""
    for number, value in enumerate(values):
        if number != position:
            out += frame(value)
        elif change:
            name = change.get("name", value["type"])
            merged = {key: item for key, item in (value | change).items() if item is not None and key != "name"}
            out += frame(merged).replace(f"event: {value['type']}".encode(), f"event: {name}".encode())
    return out


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


def test_a_call_without_a_name_is_dropped() -> None:
    values = call_stream()
    for position in (1, 4):
        values[position]["item"] = values[position]["item"] | {"name": ""}
    values[5]["response"]["output"] = []
    repaired, repairer = repair(values)
    assert repaired[-1]["response"]["output"] == []
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


def test_text_only_in_the_final_output_is_streamed() -> None:
    values = text_stream()
    repaired, repairer = repair([values[0], values[8]])
    assert [value["type"].removeprefix("response.") for value in repaired] == [
        *("created", "output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done", "completed"),
    ]
    assert repaired[-1]["response"] == values[8]["response"]
    assert "resp-final-output" in repairer.repair_log.counts()


def test_text_in_item_added_is_streamed_when_the_item_is_closed() -> None:
    values = text_stream()
    full = MESSAGE | {"content": [TEXT | {"text": "Hello"}]}
    repaired, _ = repair(
        [values[0], values[2] | {"item": full}, values[8] | {"response": RESPONSE | {"status": "completed"}}]
    )
    assert repaired[1]["item"]["content"] == []
    assert [value["delta"] for value in repaired if "delta" in value] == ["Hello"]


def test_text_in_part_added_is_streamed_when_the_part_is_closed() -> None:
    values = text_stream()
    repaired, _ = repair(
        [*values[:3], values[3] | {"part": TEXT | {"text": "Hello"}}, values[8] | {"response": RESPONSE}]
    )
    assert repaired[3]["part"]["text"] == ""
    assert [value["delta"] for value in repaired if "delta" in value] == ["Hello"]


def test_reasoning_without_a_part_gets_one() -> None:
    values = numbered(
        {"type": "created", "response": RESPONSE},
        {"type": "output_item.added", "output_index": 0, "item": THOUGHT | {"content": []}},
        {"type": "reasoning_text.delta", "item_id": "rs_a", "delta": "hm"},
        {"type": "output_item.done", "output_index": 0, "item": THOUGHT | {"status": "completed"}},
        {"type": "completed", "response": RESPONSE | {"status": "completed", "usage": USAGE}},
    )
    repaired, repairer = repair(values)
    assert repairer.repair_log.counts()["resp-reasoning-parts"] == 1
    assert repaired[2]["type"] == "response.content_part.added"
    assert repaired[-1]["response"]["output"][0]["content"] == [{"type": "reasoning_text", "text": "hm"}]


def test_a_part_without_a_type_gets_the_type_for_its_item() -> None:
    thought = numbered(
        {"type": "created", "response": RESPONSE},
        {"type": "output_item.added", "output_index": 0, "item": THOUGHT},
        {"type": "content_part.added", **locators(THOUGHT, 0, content_index=0)},
        {"type": "output_item.added", "output_index": 1, "item": MESSAGE},
        {"type": "content_part.added", **locators(MESSAGE, 1, content_index=0), "part": 5},
    )
    repaired, _ = repair(thought)
    parts = [value["part"]["type"] for value in repaired if value["type"] == "response.content_part.added"]
    assert parts == ["reasoning_text", "output_text"]


def test_items_with_the_same_id_get_unique_ids() -> None:
    second = CALL | {"call_id": "call_b"}
    values = call_stream()
    repaired, _ = repair(
        [
            *values[:5],
            values[1] | {"item": second, "output_index": 1},
            values[2] | {"output_index": 1, "delta": "{}"},
            values[4] | {"item": second | {"arguments": "{}", "status": "completed"}, "output_index": 1},
        ]
    )
    output = repaired[-1]["response"]["output"]
    assert [item["call_id"] for item in output] == ["call_a", "call_b"]
    assert [item["arguments"] for item in output] == ['{"a":1}', "{}"]
    assert len({item["id"] for item in output}) == 2


def test_items_with_the_same_index_are_distinguished_by_type() -> None:
    text = {"type": "output_text.delta", "output_index": 0, "content_index": 0, "delta": "Hi"}
    repaired, _ = repair(
        numbered(
            {"type": "created", "response": RESPONSE},
            {"type": "reasoning_text.delta", "output_index": 0, "content_index": 0, "delta": "hm"},
            *(text, text),
            {"type": "completed", "response": RESPONSE | {"status": "completed"}},
        )
    )
    output = repaired[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message"]
    assert output[1]["content"][0]["text"] == "HiHi"


@table("position", [2, 3, 6, 7], ids=["item added", "part added", "part done", "item done"])
def test_repeated_events_are_sent_once(position: int) -> None:
    values = text_stream()
    repaired, repairer = repair([*values[: position + 1], values[position], *values[position + 1 :]])
    assert [value["type"] for value in repaired] == [value["type"] for value in values]
    assert repairer.repair_log.counts().keys() <= {
        *("resp-sequence-number", "resp-item-added-first", "resp-part-added-first", "resp-done-events"),
    }


def test_events_after_done_are_dropped() -> None:
    values = reasoning_stream()
    late = [values[position] for position in (5, 6, 7, 10, 15, 16, 17)]
    repaired, repairer = repair([*values[:-1], *late, values[-1]])
    assert [value["type"] for value in repaired] == [value["type"] for value in values]
    assert repairer.repair_log.counts()["resp-done-events"] >= len(late)


@table(
    "value",
    [
        {"type": "response.web_search_call.searching", "item_id": "nobody", "output_index": 9},
        {"type": "response.function_call_arguments.delta", "item_id": "nobody", "delta": "{}"},
        {"type": "response.output_item.added", "item": {"id": "x"}},
        {"type": "response.output_item.added", "item": None},
        {"type": "response.output_item.done", "item": {"type": ""}, "output_index": 9},
        {"type": "vendor", "x": 1},
        {"type": "", "x": 1},
        {"x": 1, "type": None},
    ],
    ids=str,
)
def test_unusable_events_are_dropped(value: Json) -> None:
    values = text_stream()
    repaired, repairer = repair([values[0], value, *values[1:]])
    assert repaired == values
    assert repairer.repair_log.entries() != []


@pytest.mark.parametrize("position", [0, 1, 4])
def test_an_unknown_event_is_forwarded_after_response_created(position: int) -> None:
    values = text_stream()
    new = {"type": "response.something.new", "x": [1]}
    repaired, repairer = repair([*values[:position], *[new] * (100 if position == 0 else 1), *values[position:]])
    assert repairer.repair_log.counts()["resp-no-unknown-events"]
    forwarded = [value for value in repaired if value["type"] == new["type"]]
    assert len(forwarded) == (64 if position == 0 else 1)
    assert repaired.index(forwarded[0]) == max(position, 1)
    assert {**forwarded[0], "sequence_number": 0} == {**new, "sequence_number": 0}
    assert [value["sequence_number"] for value in repaired] == list(range(len(repaired)))
    assert [value["type"] for value in repaired if value not in forwarded] == [value["type"] for value in values]


def test_a_second_response_created_is_dropped() -> None:
    values = text_stream()
    repaired, repairer = repair([values[0], *values])
    assert repaired == values
    assert "resp-created-first" in repairer.repair_log.counts()


def test_nothing_follows_the_terminal_event() -> None:
    values = text_stream()
    repairer = ResponsesRepairer(fallback=HEAD)
    sent = b"".join(frame(value) for value in [*values, values[-1]])
    assert (
        read(repairer.feed(sent + b"data: [DONE]\n\n: ping\n\n") + repairer.close() + repairer.keep_alive()) == values
    )
    assert repairer.repair_log.counts() == {"resp-terminal-once": 2}


def test_a_progress_event_after_output_becomes_a_keep_alive() -> None:
    values = text_stream()
    repaired, _ = repair([*values[:5], values[1], *values[5:]])
    assert repaired[5] == {"type": "keepalive", "sequence_number": 5}
    assert len(repaired) == len(values) + 1


@pytest.mark.parametrize("position", [2, 8], ids=["an item", "the end"])
def test_missing_first_events_are_added(position: int) -> None:
    values = text_stream()
    repaired, repairer = repair(values[position:])
    assert repaired[0]["type"] == "response.created"
    assert repaired[-1]["response"]["output"] == values[-1]["response"]["output"]
    assert "resp-created-first" in repairer.repair_log.counts()


def test_items_keep_their_ids_if_the_final_output_has_others() -> None:
    values = call_stream()
    other = values[5]["response"]["output"][0] | {"id": "fc_other", "x_more": 1}
    odd = [7, {"type": "message"}, {"type": ["x"]}]
    values[5]["response"]["output"] = [other, *odd]
    repaired, repairer = repair(values)
    call, message = repaired[-1]["response"]["output"]
    assert call == values[4]["item"] | {"x_more": 1}
    assert message["content"] == []
    assert repairer.repair_log.counts()["resp-final-output"] == 1


def test_items_without_ids_are_matched_by_type_at_the_end() -> None:
    values = text_stream()
    nameless = [{"type": "message", "content": []}, {"type": "message"}]
    repaired, _ = repair([*values[:8], values[8] | {"response": RESPONSE | {"output": nameless}}])
    output = repaired[-1]["response"]["output"]
    assert [len(item["content"]) for item in output] == [1, 0]


def test_parts_keep_their_type_if_the_final_output_has_another() -> None:
    values = text_stream()
    parts = [{"type": "refusal", "refusal": "No"}, 5, {"type": "summary_text", "text": "x"}]
    repaired, _ = repair([*values[:5], values[7] | {"item": MESSAGE | {"content": parts, "status": "completed"}}])
    assert repaired[-1]["response"]["output"][0]["content"] == [TEXT | {"text": "Hello"}]


def test_annotations_are_kept_if_the_server_does_not_repeat_them() -> None:
    values = text_stream()
    note = {
        "type": "response.output_text.annotation.added",
        **locators(MESSAGE, 0, content_index=0),
        "annotation": CITED,
    }
    repaired, _ = repair([*values[:5], note, values[8] | {"response": RESPONSE | {"status": "completed"}}])
    assert repaired[-1]["response"]["output"][0]["content"][0]["annotations"] == [CITED]


def test_logprobs_are_kept_if_the_server_does_not_repeat_them() -> None:
    values = text_stream()
    entry = {"token": "Hello", "logprob": -1.0, "top_logprobs": []}
    repaired, _ = repair([*values[:4], values[4] | {"logprobs": [entry]}, values[8] | {"response": RESPONSE}])
    assert repaired[-1]["response"]["output"][0]["content"][0]["logprobs"] == [entry]


# End of the stream


def test_a_completed_event_with_status_incomplete_becomes_incomplete() -> None:
    values = text_stream()
    values[8]["response"] |= {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
    repaired, repairer = repair(values)
    assert repaired[-1]["type"] == "response.incomplete"
    assert repaired[-1]["response"]["incomplete_details"] == {"reason": "content_filter"}
    assert repairer.repair_log.counts() == {"resp-terminal-once": 1}


def test_an_incomplete_answer_has_a_reason_and_incomplete_items() -> None:
    values = text_stream()
    end = {"type": "response.incomplete", "response": RESPONSE | {"status": "incomplete", "usage": USAGE}}
    repaired, _ = repair([*values[:5], end])
    assert repaired[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert repaired[-1]["response"]["output"][0]["status"] == "incomplete"


def test_done_completes_the_response_if_all_items_are_done() -> None:
    repairer = ResponsesRepairer(fallback=HEAD)
    repaired = read(repairer.feed(b"".join(map(frame, text_stream()[:8])) + b"data: [DONE]\n\n") + repairer.close())
    assert repaired[-1]["type"] == "response.completed"
    assert repaired[-1]["response"]["usage"] is None
    assert repairer.failure is None


@table("count", range(9))
def test_a_truncated_stream_has_failed(count: int) -> None:
    repaired, repairer = repair(text_stream()[:count])
    assert repaired[0]["type"] == "response.created"
    assert repaired[-1]["type"] == "response.failed"
    assert repaired[-1]["response"]["error"]["code"] == "incomplete_stream"
    is_closed = count == 8
    statuses = ["completed" if is_closed else "incomplete"] * (count > 2)
    assert [item["status"] for item in repaired[-1]["response"]["output"]] == statuses
    assert repairer.failure is not None
    assert repairer.final_object == repaired[-1]["response"]


FAILED: list[tuple[Json, Json]] = [
    ({"type": "error", "code": "c", "message": "boom", "param": "p"}, {"code": "c", "message": "boom", "param": "p"}),
    ({"type": "error", "error": {"type": "rate_limit_error", "message": "boom"}}, {"code": "rate_limit_exceeded"}),
    ({"type": "error"}, {"code": "server_error", "message": "unknown error"}),
    ({"error": {"message": "boom", "code": 500}, "type": ""}, {"code": "500", "message": "boom"}),
    (
        {"type": "response.failed", "response": RESPONSE | {"error": {"code": "c", "message": "boom", "x": 1}}},
        {"code": "c", "message": "boom", "x": 1},
    ),
    ({"type": "response.failed", "response": RESPONSE}, {"code": "server_error", "message": "unknown error"}),
    (
        {"type": "response.completed", "response": RESPONSE | {"status": "failed", "error": {"message": "boom"}}},
        {"code": "server_error", "message": "boom"},
    ),
]


@table(("value", "error"), FAILED)
def test_failures_are_normalised(value: Json, error: Json) -> None:
    repaired, repairer = repair([*text_stream()[:5], value])
    assert repaired[-1]["type"] == "response.failed"
    assert repaired[-1]["response"]["error"].items() >= error.items()
    assert repaired[-1]["response"]["output"][0]["status"] == "incomplete"
    assert repairer.failure is not None


def test_an_error_event_is_forwarded_before_response_failed() -> None:
    error, failed = FAILED[0][0] | {"sequence_number": 5}, FAILED[4][0] | {"sequence_number": 6}
    failed["response"] = failed["response"] | {"status": "failed"}
    repaired, repairer = repair([*text_stream()[:5], error, failed])
    assert repaired[5] == error
    assert repaired[-1]["response"]["error"]["message"] == "boom"
    assert "resp-error" not in repairer.repair_log.counts()
    assert repairer.has_started


def test_an_error_event_at_the_end_becomes_response_failed() -> None:
    repaired, repairer = repair([FAILED[0][0]])
    assert [value["type"] for value in repaired] == ["response.created", "error", "response.failed"]
    assert "resp-error" in repairer.repair_log.counts()


def test_failures_pass_through_the_failure_mapper() -> None:
    repairer = ResponsesRepairer(fallback=HEAD)
    repairer.configure(
        0, RepairOptions(map_failure=lambda failure: msgspec.structs.replace(failure, message="trouble"))
    )
    repaired, _ = repair([FAILED[0][0]], repairer)
    assert repaired[1]["message"] == "trouble"
    assert repaired[2]["response"]["error"]["message"] == "trouble"
    assert "boom" not in json.dumps(repaired)


def test_fail_ends_the_answer() -> None:
    repairer = ResponsesRepairer(fallback=HEAD)
    sent = b"".join(frame(value) for value in text_stream()[:5])
    repaired = read(repairer.feed(sent) + repairer.fail(Failure("too slow", code="timeout")) + repairer.close())
    assert repaired[-1]["response"]["error"] == {"code": "timeout", "message": "too slow"}


def test_a_violation_of_a_strict_rule_fails_the_answer() -> None:
    repairer = ResponsesRepairer(fallback=HEAD)
    repairer.configure(0, RepairOptions(strict=frozenset({"resp-logprobs-array"})))
    repaired = read(repairer.feed(changed(text_stream(), 4, {"logprobs": None})) + repairer.close())
    assert repaired[-1]["response"]["error"]["code"] == "upstream_rule_broken"


# Keep-alives


def test_a_keep_alive_is_a_comment_and_later_a_numbered_event() -> None:
    repairer = ResponsesRepairer(fallback=HEAD)
    assert repairer.feed(b": ping\n\n") == KEEP_ALIVE
    repairer.feed(frame(text_stream()[0]))
    sent = repairer.feed(b": ping\n\n") + repairer.keep_alive() + repairer.feed(b'data: {"type":"keepalive"}\n\n')
    values = [json.loads(line[6:]) for line in sent.decode().split("\n") if line.startswith("data: ")]
    assert values == [{"type": "keepalive", "sequence_number": number} for number in (1, 2, 3)]


def test_a_numbered_keep_alive_counts_as_an_event() -> None:
    values = [
        value | {"sequence_number": value["sequence_number"] + (position > 4)}
        for position, value in enumerate(text_stream())
    ]
    values.insert(5, {"type": "keepalive", "sequence_number": 5})
    repaired, repairer = repair(values)
    assert repaired == values
    assert repairer.repair_log.entries() == []


def test_an_event_without_data_becomes_a_keep_alive_and_is_logged() -> None:
    repairer = ResponsesRepairer(fallback=HEAD)
    assert repairer.feed(b'event: keepalive\n\ndata: {"type":"keepalive"}\n\n: ping\n\n') == KEEP_ALIVE * 3
    assert repairer.repair_log.counts()["resp-keepalive"] == 2


# Non-streamed replies


def test_violations_in_a_reply_are_logged() -> None:
    nameless, message = CALL | {"id": "", "arguments": "{}", "status": "completed"}, MESSAGE
    repairer = ResponsesRepairer(fallback=HEAD, is_stream=False)
    reply = {"status": "completed", "output": [nameless, message, 5], "usage": {"prompt_tokens": 1}}
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
    writer = ResponsesDialect({}).make_writer(HEAD, lambda: None)
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
