"""Streams of /v1/responses that are mended within their own dialect."""

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
    """One event as a right server sends it."""
    return f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode()


def numbered(*values: Json) -> list[Json]:
    """Events with their numbers, and `response.` before their types."""
    return [
        {
            "type": f"response.{value['type']}",
            "sequence_number": number,
            **{k: v for k, v in value.items() if k != "type"},
        }
        for number, value in enumerate(values)
    ]


def read(data: bytes) -> list[Json]:
    """The JSON of each event, whose name is its type."""
    found = []
    for block in data.decode().removesuffix("\n\n").split("\n\n"):
        name, _, line = block.partition("\n")
        value = json.loads(line.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append(value)
    assert [value["sequence_number"] for value in found] == list(range(len(found)))
    return found


def mend(values: list[Json], native: ResponsesRepairer | None = None) -> tuple[list[Json], ResponsesRepairer]:
    """What is made of a stream of such events, and who made it."""
    native = native or ResponsesRepairer(fallback=HEAD)
    data = b"".join(frame(value) for value in values)
    return read(native.feed(data) + native.close()), native


def of(item: Json, index: int, **members: object) -> Json:
    """The members that tell of whom an event is."""
    return {"item_id": item["id"], "output_index": index, **members}


def hello(*, text: str = "Hello") -> list[Json]:
    """The events of a right stream that says one text."""
    part, part_done = TEXT, TEXT | {"text": text}
    done = MESSAGE | {"status": "completed", "content": [part_done]}
    address = of(MESSAGE, 0, content_index=0)
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


def calling(arguments: str = '{"a":1}') -> list[Json]:
    """The events of a right stream that calls a function."""
    done = CALL | {"status": "completed", "arguments": arguments}
    return numbered(
        {"type": "created", "response": RESPONSE},
        {"type": "output_item.added", "output_index": 0, "item": CALL},
        {"type": "function_call_arguments.delta", **of(CALL, 0), "delta": arguments},
        {"type": "function_call_arguments.done", **of(CALL, 0), "name": "get", "arguments": arguments},
        {"type": "output_item.done", "output_index": 0, "item": done},
        {"type": "completed", "response": RESPONSE | {"status": "completed", "output": [done], "usage": USAGE}},
    )


def thinking() -> list[Json]:
    """The events of a right stream that says what only this dialect can say."""
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
        of(THOUGHT, 0, summary_index=0),
        of(MESSAGE, 2, content_index=0),
        of(MESSAGE, 2, content_index=1),
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
        {"type": "web_search_call.in_progress", **of(SEARCH, 1)},
        {"type": "web_search_call.completed", **of(SEARCH, 1), "x_more": 2},
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
        {"type": "custom_tool_call_input.delta", **of(custom, 3), "delta": "ls"},
        {"type": "custom_tool_call_input.done", **of(custom, 3), "input": "ls"},
        {"type": "output_item.done", "output_index": 3, "item": ran},
        {"type": "output_item.added", "output_index": 4, "item": tools},
        {"type": "output_item.done", "output_index": 4, "item": tools},
        {"type": "output_item.added", "output_index": 5, "item": shell},
        {"type": "shell_call_command.added", "output_index": 5, "command": "ls", "command_index": 0},
        {"type": "output_item.done", "output_index": 5, "item": output[5]},
        {"type": "completed", "response": RESPONSE | {"status": "completed", "output": output, "usage": USAGE}, "x": 1},
    )


@pytest.mark.parametrize("values", [hello(), calling(), thinking()], ids=["text", "call", "all"])
def test_a_right_stream_passes_with_all_that_it_says(values: list[Json]) -> None:
    mended, native = mend(values)
    assert mended == values
    assert native.repair_log.entries() == []
    assert native.final_object == values[-1]["response"]
    assert native.is_done


@pytest.mark.parametrize("values", [hello(), calling(), thinking()], ids=["text", "call", "all"])
def test_a_whole_reply_passes_with_all_that_it_says(values: list[Json]) -> None:
    response = values[-1]["response"]
    native = ResponsesRepairer(fallback=HEAD, is_stream=False)
    assert native.feed_reply(json.dumps(response).encode()) + native.close() == b""
    assert json.loads(native.body()) == response
    assert native.repair_log.entries() == []


@pytest.mark.parametrize("values", [hello(), calling(), thinking()], ids=["text", "call", "all"])
def test_a_whole_reply_can_be_streamed(values: list[Json]) -> None:
    native = ResponsesRepairer(fallback=HEAD)
    mended = read(native.feed_reply(json.dumps(values[-1]["response"]).encode()) + native.close())
    assert mended[0]["type"] == "response.created"
    assert mended[-1]["response"] == values[-1]["response"]
    assert mend(mended)[0] == mended


def test_events_that_took_a_shorter_way_are_counted() -> None:
    native = ResponsesRepairer(fallback=HEAD)
    values = hello()
    native.feed(b"".join(frame(value) for value in values[:5]))
    native.record_fast_path(3)
    native.feed(b"".join(frame(value | {"sequence_number": value["sequence_number"] + 3}) for value in values[5:]))
    native.close()
    assert native.repair_log.entries() == []


def test_what_was_counted_is_known() -> None:
    native = mend(hello())[1]
    assert native.usage is not None
    assert (native.usage.prompt_tokens, native.usage.completion_tokens) == (5, 3)
    assert native.usage.extra_fields["prompt_tokens_details"]["cached_tokens"] == 2


def test_an_answer_has_started_when_something_of_it_was_heard() -> None:
    native = ResponsesRepairer(fallback=HEAD)
    started = []
    for value in hello():
        native.feed(frame(value))
        started.append(native.has_started)
    assert started == [False, False, *[True] * 7]


def test_the_model_is_the_one_that_the_client_knows() -> None:
    mended, _ = mend(hello(), ResponsesRepairer(fallback=HEAD, model="mine"))
    assert {value["response"]["model"] for value in mended if "response" in value} == {"mine"}


def test_what_a_server_does_not_repeat_of_the_request_is_filled_in() -> None:
    values = hello()
    for place in (0, 1, 8):
        values[place]["response"] = {
            key: values[place]["response"][key] for key in ("id", "output", "status") if place == 8 or key == "id"
        }
    mended, native = mend(values, ResponsesRepairer(fallback=HEAD, echo={"instructions": "Be brief."}))
    for place in (0, 1, 8):
        response = mended[place]["response"]
        assert response.keys() >= RESPONSE.keys() - {"x_region"}
        assert (response["id"], response["created_at"], response["model"]) == ("resp_a", 1700000000, "m")
        assert response["instructions"] == "Be brief."
    assert native.repair_log.counts()["resp-created-full"] == 3


# Each fault, and what becomes of it. `None` takes a member out; an event of {} is left out.

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
    ("resp-usage", 8, {"response": hello()[8]["response"] | {"usage": {"prompt_tokens": 5, "completion_tokens": 3}}}),
    ("resp-usage", 8, {"response": hello()[8]["response"] | {"usage": None}}),
    ("resp-response-id", 8, {"response": hello()[8]["response"] | {"id": "resp_b"}}),
    ("resp-item-status", 2, {"item": MESSAGE | {"status": None}}),
    ("resp-item-status", 7, {"item": hello()[7]["item"] | {"status": "in_progress"}}),
    ("resp-logprobs-array", 4, {"logprobs": None}),
    ("resp-logprobs-array", 5, {"logprobs": 5}),
    ("resp-delta-equals-done", 5, {"text": "Bye"}),
]


def changed(values: list[Json], place: int, change: Json) -> bytes:
    """A stream in which one event is changed."""
    out = b""
    for number, value in enumerate(values):
        if number != place:
            out += frame(value)
        elif change:
            name = change.get("name", value["type"])
            merged = {key: item for key, item in (value | change).items() if item is not None and key != "name"}
            out += frame(merged).replace(f"event: {value['type']}".encode(), f"event: {name}".encode())
    return out


@table(("rule", "place", "change"), CHANGES)
def test_a_fault_is_mended_and_noted(rule: str, place: int, change: Json) -> None:
    native = ResponsesRepairer(fallback=HEAD)
    mended = read(native.feed(changed(hello(), place, change)) + native.close())
    assert rule in native.repair_log.counts()
    assert mended[-1]["type"] == "response.completed"
    output = mended[-1]["response"]["output"]
    text = change.get("text") or "Hello"
    assert [part["text"] for part in output[0]["content"]] == [text]
    assert [value["text"] for value in mended if value["type"] == "response.output_text.done"] == [text]
    assert {value["item_id"] for value in mended if "item_id" in value} == {output[0]["id"]}
    assert mend(mended)[0] == mended


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


@table(("rule", "place", "change"), CALL_CHANGES)
def test_a_fault_of_a_call_is_mended_and_noted(rule: str, place: int, change: Json) -> None:
    native = ResponsesRepairer(fallback=HEAD)
    mended = read(native.feed(changed(calling(), place, change)) + native.close())
    assert rule in native.repair_log.counts()
    (call,) = mended[-1]["response"]["output"]
    assert call["id"]
    assert call["call_id"]
    assert (call["name"], call["arguments"], call["status"]) == ("get", '{"a":1}', "completed")
    (done,) = [value for value in mended if value["type"] == "response.function_call_arguments.done"]
    assert (done["name"], done["arguments"]) == ("get", '{"a":1}')
    assert "".join(value["delta"] for value in mended if "delta" in value) == '{"a":1}'


@pytest.mark.parametrize(("name", "noted"), [("get", set()), (None, {"resp-args-done"}), ("set", {"resp-args-done"})])
def test_the_name_of_a_call_stays(name: str | None, noted: set[str]) -> None:
    values = calling()
    values[3]["name"] = name
    mended, native = mend(values)
    assert mended == calling()
    assert native.repair_log.counts().keys() == noted


@pytest.mark.parametrize("halves", [(b"\\ud83d", b"\\ude00"), (b"\xf0\x9f", b"\x98\x80")])
def test_a_character_in_halves_becomes_whole(halves: tuple[bytes, bytes]) -> None:
    values = hello(text="?")
    begin, delta, end = (
        values[:4],
        values[4],
        [value | {"sequence_number": 6 + n} for n, value in enumerate(values[5:])],
    )
    first, second = (frame(delta | {"sequence_number": 4 + n}).replace(b"?", half) for n, half in enumerate(halves))
    native = ResponsesRepairer(fallback=HEAD)
    body = b"".join(map(frame, begin)) + first + second + b"".join(map(frame, end)).replace(b"?", "😀".encode())
    mended = read(native.feed(body) + native.close())
    assert [value["delta"] for value in mended if "delta" in value] == ["", "😀"]
    assert mended[-1]["response"]["output"][0]["content"][0]["text"] == "😀"
    assert native.repair_log.counts() == {"enc-no-lone-surrogate" if first.isascii() else "enc-valid-utf8": 2}
    cut = ResponsesRepairer(fallback=HEAD)
    lost = read(cut.feed(b"".join(map(frame, begin)) + first) + cut.close())
    assert [value["delta"] for value in lost if "delta" in value] == ["", "\ufffd"]


@pytest.mark.parametrize("status", [None, "in_progress", "completed"])
def test_reasoning_needs_no_status(status: str | None) -> None:
    thought = {key: value for key, value in THOUGHT.items() if key != "status"}
    done = {"type": "output_item.done", "output_index": 0, "item": thought | {"status": status}}
    mended, _ = mend(
        numbered(
            {"type": "created", "response": RESPONSE},
            {"type": "output_item.added", "output_index": 0, "item": thought},
            done,
            {"type": "completed", "response": RESPONSE | {"status": "completed", "usage": USAGE}},
        )
    )
    assert mended[1]["item"] == thought
    assert mended[2]["item"] == thought | {"status": status and "completed"}


def test_members_that_clients_go_through_are_never_null() -> None:
    values = hello()
    for value in values[:2]:
        value["response"] = value["response"] | {"tools": None, "parallel_tool_calls": None, "text": None}
    mended, _ = mend(values)
    response = mended[0]["response"]
    assert (response["tools"], response["parallel_tool_calls"], response["text"]) == ([], True, None)


def test_an_id_that_is_made_is_not_that_of_another() -> None:
    taken = [MESSAGE | {"id": id} for id in ("msg_7_2", "msg_7_2_", None, "msg_7_2_")]
    added = [{"type": "output_item.added", "output_index": n, "item": item} for n, item in enumerate(taken)]
    mended, _ = mend(numbered({"type": "created", "response": RESPONSE}, *added))
    ids = [value["item"]["id"] for value in mended if value["type"] == "response.output_item.added"]
    assert ids == ["msg_7_2", "msg_7_2_", "msg_7_2__", "msg_7_3"]


def test_a_part_that_its_item_cannot_have_is_left_out() -> None:
    thought = {"id": "rs_a", "type": "reasoning", "summary": []}
    done = thought | {"content": [TEXT | {"text": "x"}]}
    added = {"type": "output_item.added", "output_index": 0, "item": thought}
    ended = {"type": "output_item.done", "output_index": 0, "item": done}
    mended, _ = mend(numbered({"type": "created", "response": RESPONSE}, added, ended))
    assert mended[2]["item"] == mended[-1]["response"]["output"][0] == thought | {"content": []}


def test_what_an_item_said_of_itself_holds_at_the_end_and_all_else_may_change() -> None:
    picture = {"id": "ig_a", "type": "image_generation_call", "status": "generating", "name": "a", "result": "x"}
    changed_at_end = picture | {"status": "completed", "name": "b", "result": "y"}
    response = RESPONSE | {"status": "completed", "usage": USAGE, "output": [changed_at_end]}
    mended, _ = mend(
        numbered(
            {"type": "created", "response": RESPONSE},
            {"type": "output_item.added", "output_index": 0, "item": picture},
            {"type": "output_item.done", "output_index": 0, "item": picture},
            {"type": "completed", "response": response},
        )
    )
    assert mended[2]["item"] == picture
    assert mended[-1]["response"]["output"] == [changed_at_end | {"name": "a"}]


def test_a_call_that_never_gets_a_name_is_left_out() -> None:
    values = calling()
    for place in (1, 4):
        values[place]["item"] = values[place]["item"] | {"name": ""}
    values[5]["response"]["output"] = []
    mended, native = mend(values)
    assert mended[-1]["response"]["output"] == []
    assert native.repair_log.counts()["resp-function-ids"] == 2


def test_arguments_that_came_at_once_are_said_in_a_delta() -> None:
    values = calling()
    values[1]["item"] = CALL | {"arguments": '{"b":2}'}
    values = [values[0], values[1], values[5] | {"response": RESPONSE | {"status": "completed", "usage": USAGE}}]
    mended, _ = mend(values)
    assert mended[-1]["response"]["output"][0]["arguments"] == '{"b":2}'
    assert mended[1]["item"]["arguments"] == ""
    assert mended[2]["delta"] == '{"b":2}'


def test_arguments_that_were_a_place_holder_at_first_are_forgotten() -> None:
    values = calling()
    values[1]["item"] = CALL | {"arguments": "{}"}
    mended, _ = mend([values[0], values[1], values[2]])
    assert mended[-2]["item"]["arguments"] == '{"a":1}'


@pytest.mark.parametrize(("arguments", "broken"), [("{}", 0), ("{", 1), ("[]", 1)])
def test_arguments_that_are_no_object_are_counted(arguments: str, broken: int) -> None:
    assert mend(calling(arguments))[1].invalid_arguments_count == broken


def test_text_that_stands_only_in_the_output_is_streamed() -> None:
    values = hello()
    mended, native = mend([values[0], values[8]])
    assert [value["type"].removeprefix("response.") for value in mended] == [
        *("created", "output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done", "completed"),
    ]
    assert mended[-1]["response"] == values[8]["response"]
    assert "resp-final-output" in native.repair_log.counts()


def test_text_that_stood_in_the_item_when_it_was_added_is_streamed_when_it_is_closed() -> None:
    values = hello()
    full = MESSAGE | {"content": [TEXT | {"text": "Hello"}]}
    mended, _ = mend(
        [values[0], values[2] | {"item": full}, values[8] | {"response": RESPONSE | {"status": "completed"}}]
    )
    assert mended[1]["item"]["content"] == []
    assert [value["delta"] for value in mended if "delta" in value] == ["Hello"]


def test_text_that_stood_in_the_part_when_it_was_added_is_streamed_when_it_is_closed() -> None:
    values = hello()
    mended, _ = mend([*values[:3], values[3] | {"part": TEXT | {"text": "Hello"}}, values[8] | {"response": RESPONSE}])
    assert mended[3]["part"]["text"] == ""
    assert [value["delta"] for value in mended if "delta" in value] == ["Hello"]


def test_thoughts_without_a_part_get_one() -> None:
    values = numbered(
        {"type": "created", "response": RESPONSE},
        {"type": "output_item.added", "output_index": 0, "item": THOUGHT | {"content": []}},
        {"type": "reasoning_text.delta", "item_id": "rs_a", "delta": "hm"},
        {"type": "output_item.done", "output_index": 0, "item": THOUGHT | {"status": "completed"}},
        {"type": "completed", "response": RESPONSE | {"status": "completed", "usage": USAGE}},
    )
    mended, native = mend(values)
    assert native.repair_log.counts()["resp-reasoning-parts"] == 1
    assert mended[2]["type"] == "response.content_part.added"
    assert mended[-1]["response"]["output"][0]["content"] == [{"type": "reasoning_text", "text": "hm"}]


def test_a_part_without_a_type_is_of_the_type_that_its_item_has() -> None:
    thought = numbered(
        {"type": "created", "response": RESPONSE},
        {"type": "output_item.added", "output_index": 0, "item": THOUGHT},
        {"type": "content_part.added", **of(THOUGHT, 0, content_index=0)},
        {"type": "output_item.added", "output_index": 1, "item": MESSAGE},
        {"type": "content_part.added", **of(MESSAGE, 1, content_index=0), "part": 5},
    )
    mended, _ = mend(thought)
    parts = [value["part"]["type"] for value in mended if value["type"] == "response.content_part.added"]
    assert parts == ["reasoning_text", "output_text"]


def test_items_that_share_one_id_get_their_own() -> None:
    second = CALL | {"call_id": "call_b"}
    values = calling()
    mended, _ = mend(
        [
            *values[:5],
            values[1] | {"item": second, "output_index": 1},
            values[2] | {"output_index": 1, "delta": "{}"},
            values[4] | {"item": second | {"arguments": "{}", "status": "completed"}, "output_index": 1},
        ]
    )
    output = mended[-1]["response"]["output"]
    assert [item["call_id"] for item in output] == ["call_a", "call_b"]
    assert [item["arguments"] for item in output] == ['{"a":1}', "{}"]
    assert len({item["id"] for item in output}) == 2


def test_items_that_share_one_index_are_told_apart_by_what_they_are() -> None:
    text = {"type": "output_text.delta", "output_index": 0, "content_index": 0, "delta": "Hi"}
    mended, _ = mend(
        numbered(
            {"type": "created", "response": RESPONSE},
            {"type": "reasoning_text.delta", "output_index": 0, "content_index": 0, "delta": "hm"},
            *(text, text),
            {"type": "completed", "response": RESPONSE | {"status": "completed"}},
        )
    )
    output = mended[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message"]
    assert output[1]["content"][0]["text"] == "HiHi"


@table("place", [2, 3, 6, 7], ids=["item added", "part added", "part done", "item done"])
def test_what_is_said_twice_goes_out_once(place: int) -> None:
    values = hello()
    mended, native = mend([*values[: place + 1], values[place], *values[place + 1 :]])
    assert [value["type"] for value in mended] == [value["type"] for value in values]
    assert native.repair_log.counts().keys() <= {
        *("resp-sequence-number", "resp-item-added-first", "resp-part-added-first", "resp-done-events"),
    }


def test_what_comes_after_its_end_is_dropped() -> None:
    values = thinking()
    late = [values[place] for place in (5, 6, 7, 10, 15, 16, 17)]
    mended, native = mend([*values[:-1], *late, values[-1]])
    assert [value["type"] for value in mended] == [value["type"] for value in values]
    assert native.repair_log.counts()["resp-done-events"] >= len(late)


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
def test_what_nobody_could_use_is_dropped(value: Json) -> None:
    values = hello()
    mended, native = mend([values[0], value, *values[1:]])
    assert mended == values
    assert native.repair_log.entries() != []


@pytest.mark.parametrize("place", [0, 1, 4])
def test_an_event_of_a_newer_api_is_forwarded_once_the_response_has_begun(place: int) -> None:
    values = hello()
    new = {"type": "response.something.new", "x": [1]}
    mended, native = mend([*values[:place], *[new] * (100 if place == 0 else 1), *values[place:]])
    assert native.repair_log.counts()["resp-no-unknown-events"]
    forwarded = [value for value in mended if value["type"] == new["type"]]
    assert len(forwarded) == (64 if place == 0 else 1)
    assert mended.index(forwarded[0]) == max(place, 1)
    assert {**forwarded[0], "sequence_number": 0} == {**new, "sequence_number": 0}
    assert [value["sequence_number"] for value in mended] == list(range(len(mended)))
    assert [value["type"] for value in mended if value not in forwarded] == [value["type"] for value in values]


def test_a_second_beginning_is_dropped() -> None:
    values = hello()
    mended, native = mend([values[0], *values])
    assert mended == values
    assert "resp-created-first" in native.repair_log.counts()


def test_nothing_follows_the_end() -> None:
    values = hello()
    native = ResponsesRepairer(fallback=HEAD)
    sent = b"".join(frame(value) for value in [*values, values[-1]])
    assert read(native.feed(sent + b"data: [DONE]\n\n: ping\n\n") + native.close() + native.keep_alive()) == values
    assert native.repair_log.counts() == {"resp-terminal-once": 2}


def test_a_response_that_goes_on_after_its_output_has_begun_is_a_sign_of_life() -> None:
    values = hello()
    mended, _ = mend([*values[:5], values[1], *values[5:]])
    assert mended[5] == {"type": "keepalive", "sequence_number": 5}
    assert len(mended) == len(values) + 1


@pytest.mark.parametrize("place", [2, 8], ids=["an item", "the end"])
def test_a_stream_may_begin_late(place: int) -> None:
    values = hello()
    mended, native = mend(values[place:])
    assert mended[0]["type"] == "response.created"
    assert mended[-1]["response"]["output"] == values[-1]["response"]["output"]
    assert "resp-created-first" in native.repair_log.counts()


def test_items_that_got_other_ids_at_the_end_keep_theirs() -> None:
    values = calling()
    other = values[5]["response"]["output"][0] | {"id": "fc_other", "x_more": 1}
    odd = [7, {"type": "message"}, {"type": ["x"]}]
    values[5]["response"]["output"] = [other, *odd]
    mended, native = mend(values)
    call, message = mended[-1]["response"]["output"]
    assert call == values[4]["item"] | {"x_more": 1}
    assert message["content"] == []
    assert native.repair_log.counts()["resp-final-output"] == 1


def test_items_without_names_are_known_by_their_type_at_the_end() -> None:
    values = hello()
    nameless = [{"type": "message", "content": []}, {"type": "message"}]
    mended, _ = mend([*values[:8], values[8] | {"response": RESPONSE | {"output": nameless}}])
    output = mended[-1]["response"]["output"]
    assert [len(item["content"]) for item in output] == [1, 0]


def test_parts_that_are_of_another_type_at_the_end_stay_what_they_were() -> None:
    values = hello()
    parts = [{"type": "refusal", "refusal": "No"}, 5, {"type": "summary_text", "text": "x"}]
    mended, _ = mend([*values[:5], values[7] | {"item": MESSAGE | {"content": parts, "status": "completed"}}])
    assert mended[-1]["response"]["output"][0]["content"] == [TEXT | {"text": "Hello"}]


def test_an_annotation_is_kept_where_its_server_does_not_repeat_it() -> None:
    values = hello()
    note = {"type": "response.output_text.annotation.added", **of(MESSAGE, 0, content_index=0), "annotation": CITED}
    mended, _ = mend([*values[:5], note, values[8] | {"response": RESPONSE | {"status": "completed"}}])
    assert mended[-1]["response"]["output"][0]["content"][0]["annotations"] == [CITED]


def test_log_probabilities_are_kept_where_their_server_does_not_repeat_them() -> None:
    values = hello()
    entry = {"token": "Hello", "logprob": -1.0, "top_logprobs": []}
    mended, _ = mend([*values[:4], values[4] | {"logprobs": [entry]}, values[8] | {"response": RESPONSE}])
    assert mended[-1]["response"]["output"][0]["content"][0]["logprobs"] == [entry]


# How it ends.


def test_an_end_that_says_that_the_answer_was_cut_is_incomplete() -> None:
    values = hello()
    values[8]["response"] |= {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
    mended, native = mend(values)
    assert mended[-1]["type"] == "response.incomplete"
    assert mended[-1]["response"]["incomplete_details"] == {"reason": "content_filter"}
    assert native.repair_log.counts() == {"resp-terminal-once": 1}


def test_an_incomplete_answer_has_a_reason_and_what_is_open_is_incomplete() -> None:
    values = hello()
    end = {"type": "response.incomplete", "response": RESPONSE | {"status": "incomplete", "usage": USAGE}}
    mended, _ = mend([*values[:5], end])
    assert mended[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert mended[-1]["response"]["output"][0]["status"] == "incomplete"


def test_done_in_place_of_an_end_is_one_where_all_items_are_whole() -> None:
    native = ResponsesRepairer(fallback=HEAD)
    mended = read(native.feed(b"".join(map(frame, hello()[:8])) + b"data: [DONE]\n\n") + native.close())
    assert mended[-1]["type"] == "response.completed"
    assert mended[-1]["response"]["usage"] is None
    assert native.failure is None


@table("count", range(9))
def test_a_stream_that_breaks_off_has_failed(count: int) -> None:
    mended, native = mend(hello()[:count])
    assert mended[0]["type"] == "response.created"
    assert mended[-1]["type"] == "response.failed"
    assert mended[-1]["response"]["error"]["code"] == "incomplete_stream"
    is_closed = count == 8
    statuses = ["completed" if is_closed else "incomplete"] * (count > 2)
    assert [item["status"] for item in mended[-1]["response"]["output"]] == statuses
    assert native.failure is not None
    assert native.final_object == mended[-1]["response"]


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
def test_a_failure_is_told_in_one_way(value: Json, error: Json) -> None:
    mended, native = mend([*hello()[:5], value])
    assert mended[-1]["type"] == "response.failed"
    assert mended[-1]["response"]["error"].items() >= error.items()
    assert mended[-1]["response"]["output"][0]["status"] == "incomplete"
    assert native.failure is not None


def test_an_error_event_goes_on_before_the_failure_that_follows_it() -> None:
    error, failed = FAILED[0][0] | {"sequence_number": 5}, FAILED[4][0] | {"sequence_number": 6}
    failed["response"] = failed["response"] | {"status": "failed"}
    mended, native = mend([*hello()[:5], error, failed])
    assert mended[5] == error
    assert mended[-1]["response"]["error"]["message"] == "boom"
    assert "resp-error" not in native.repair_log.counts()
    assert native.has_started


def test_an_error_event_that_nothing_follows_is_a_failure() -> None:
    mended, native = mend([FAILED[0][0]])
    assert [value["type"] for value in mended] == ["response.created", "error", "response.failed"]
    assert "resp-error" in native.repair_log.counts()


def test_a_failure_is_told_in_the_words_that_may_go_out() -> None:
    native = ResponsesRepairer(fallback=HEAD)
    native.configure(0, map_failure=lambda failure: msgspec.structs.replace(failure, message="trouble"))
    mended, _ = mend([FAILED[0][0]], native)
    assert mended[1]["message"] == "trouble"
    assert mended[2]["response"]["error"]["message"] == "trouble"
    assert "boom" not in json.dumps(mended)


def test_an_answer_can_be_broken_off() -> None:
    native = ResponsesRepairer(fallback=HEAD)
    sent = b"".join(frame(value) for value in hello()[:5])
    mended = read(native.feed(sent) + native.fail(Failure("too slow", code="timeout")) + native.close())
    assert mended[-1]["response"]["error"] == {"code": "timeout", "message": "too slow"}


def test_a_strict_rule_that_is_broken_fails_the_answer() -> None:
    native = ResponsesRepairer(fallback=HEAD)
    native.configure(0, strict=frozenset({"resp-logprobs-array"}))
    mended = read(native.feed(changed(hello(), 4, {"logprobs": None})) + native.close())
    assert mended[-1]["response"]["error"]["code"] == "upstream_rule_broken"


# Signs of life.


def test_a_sign_of_life_is_a_comment_and_later_an_event_with_a_number() -> None:
    native = ResponsesRepairer(fallback=HEAD)
    assert native.feed(b": ping\n\n") == KEEP_ALIVE
    native.feed(frame(hello()[0]))
    sent = native.feed(b": ping\n\n") + native.keep_alive() + native.feed(b'data: {"type":"keepalive"}\n\n')
    values = [json.loads(line[6:]) for line in sent.decode().split("\n") if line.startswith("data: ")]
    assert values == [{"type": "keepalive", "sequence_number": number} for number in (1, 2, 3)]


def test_a_numbered_sign_of_life_counts_as_an_event() -> None:
    values = [
        value | {"sequence_number": value["sequence_number"] + (place > 4)} for place, value in enumerate(hello())
    ]
    values.insert(5, {"type": "keepalive", "sequence_number": 5})
    mended, native = mend(values)
    assert mended == values
    assert native.repair_log.entries() == []


def test_an_event_without_data_is_a_sign_of_life_and_a_fault() -> None:
    native = ResponsesRepairer(fallback=HEAD)
    assert native.feed(b'event: keepalive\n\ndata: {"type":"keepalive"}\n\n: ping\n\n') == KEEP_ALIVE * 3
    assert native.repair_log.counts()["resp-keepalive"] == 2


# Replies that were not streamed.


def test_faults_of_a_whole_reply_are_noted() -> None:
    nameless, message = CALL | {"id": "", "arguments": "{}", "status": "completed"}, MESSAGE
    native = ResponsesRepairer(fallback=HEAD, is_stream=False)
    reply = {"status": "completed", "output": [nameless, message, 5], "usage": {"prompt_tokens": 1}}
    native.feed_reply(json.dumps(reply).encode())
    rules = {"resp-created-full", "resp-usage", "resp-function-ids", "resp-item-status"}
    assert native.repair_log.counts() == dict.fromkeys(rules, 1)
    call, said = json.loads(native.body())["output"]
    assert call["id"]
    assert said["status"] == "completed"


@pytest.mark.parametrize("status", ["queued", "in_progress", "cancelled"])
def test_a_whole_reply_that_goes_on_elsewhere_stays_what_it_is(status: str) -> None:
    native = ResponsesRepairer(fallback=HEAD, is_stream=False)
    native.feed_reply(json.dumps(RESPONSE | {"status": status}).encode())
    assert json.loads(native.body()) == RESPONSE | {"status": status}
    assert native.close() == b""
    assert native.failure is None
    stream = ResponsesRepairer(fallback=HEAD)
    sent = read(stream.feed_reply(json.dumps(RESPONSE | {"status": status}).encode()) + stream.close())
    assert sent[-1]["type"] == "response.failed"


@pytest.mark.parametrize(
    "reply", [{"error": {"message": "boom", "code": "c"}}, {"x": 1}, {"output": 5, "status": "failed"}]
)
def test_a_whole_reply_that_is_no_answer_has_failed(reply: Json) -> None:
    native = ResponsesRepairer(fallback=HEAD, is_stream=False)
    native.feed_reply(json.dumps(reply).encode())
    assert native.failure is not None


def test_what_is_written_is_not_changed_by_mending() -> None:
    writer = ResponsesDialect({}).make_writer(HEAD, lambda: None)
    events: list[Event] = [ChoiceStart(0), Text(0, "a\u2028"), Finish(0, "stop"), Usage(1, 1, 2, {})]
    written = b"".join([*(writer.send(event) for event in events), writer.end()])
    native = ResponsesRepairer(fallback=Envelope("resp_9", 1, "x"))
    assert native.feed(written) + native.close() == written


def test_events_that_name_nobody_are_about_what_began_last() -> None:
    values = thinking()
    for value in values:
        for name in ("item_id", "output_index", "content_index", "summary_index"):
            value.pop(name, None)
    mended, native = mend(values)
    assert mended == thinking()
    assert {"resp-output-index", "resp-content-index", "resp-item-id-stable"} <= native.repair_log.counts().keys()


@table("place", [0, 2, 3, 4, 7, 8])
def test_nesting_that_an_encoder_might_not_take_is_cut(place: int) -> None:
    values = hello()
    marked = b"".join(
        frame(value | ({"x_deep": "DEEP"} if number == place else {})) for number, value in enumerate(values)
    )
    native = ResponsesRepairer(fallback=HEAD)
    sent = native.feed(marked.replace(b'"DEEP"', b"[" * 300 + b"]" * 300)) + native.close()
    assert [value["type"] for value in read(sent)] == [value["type"] for value in values]
    assert b"[" * 60 in sent
    assert b"[" * 70 not in sent


@table(
    ("told", "clock", "completed"),
    [(9, None, 9), (9.5, lambda: 7.0, 9.5), (None, lambda: 7.5, 7), ("soon", lambda: 7.5, 7), (None, None, None)],
)
def test_the_time_of_completion_is_its_servers_own_or_ours(
    told: object, clock: Callable[[], float] | None, completed: float | None
) -> None:
    native = ResponsesRepairer(fallback=HEAD, is_stream=False, clock=clock)
    native.feed_reply(json.dumps(RESPONSE | {"status": "completed", "usage": USAGE, "completed_at": told}).encode())
    native.close()
    assert native.final_object is not None
    assert native.final_object["completed_at"] == completed


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
def test_a_member_that_its_schema_does_not_allow_gets_its_default(name: str, odd: object, right: object) -> None:
    native = ResponsesRepairer(fallback=HEAD, is_stream=False)
    native.feed_reply(json.dumps(RESPONSE | {"status": "completed", "usage": USAGE, name: odd}).encode())
    native.close()
    assert native.final_object is not None
    assert native.final_object[name] == right
    assert [note.rule for note in native.repair_log.entries()] == (["resp-object-schema"] if odd != right else [])


@pytest.mark.parametrize("details", [None, {"reason": "content_filter"}, {}])
def test_an_answer_that_was_cut_has_a_reason(details: Json | None) -> None:
    native = ResponsesRepairer(fallback=HEAD, is_stream=False)
    whole = RESPONSE | {"status": "incomplete", "usage": USAGE, "incomplete_details": details}
    native.feed_reply(json.dumps(whole).encode())
    native.close()
    assert native.final_object is not None
    assert native.final_object["incomplete_details"] == (details or {"reason": "max_output_tokens"})
    assert ("resp-object-schema" in {note.rule for note in native.repair_log.entries()}) is not bool(details)


@table(
    ("type_", "place", "name"),
    [
        ("output_item.added", "item", "role"),
        ("output_item.done", "item", "role"),
        ("content_part.added", "part", "annotations"),
        ("content_part.done", "part", "annotations"),
    ],
)
def test_an_item_or_part_without_a_required_member_gets_it(type_: str, place: str, name: str) -> None:
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
    right, _ = mend(events)
    odd = json.loads(json.dumps(events))
    next(event for event in odd if event["type"] == f"response.{type_}")[place].pop(name)
    mended, native = mend(odd)
    assert mended == right
    assert [note.rule for note in native.repair_log.entries()] == ["resp-object-schema"]


@pytest.mark.parametrize("name", ["id", "role", "content"])
def test_an_item_of_a_whole_reply_without_a_required_member_is_noted(name: str) -> None:
    item = {key: value for key, value in MESSAGE.items() if key != name} | {"status": "completed"}
    native = ResponsesRepairer(fallback=HEAD, is_stream=False)
    native.feed_reply(json.dumps(RESPONSE | {"status": "completed", "usage": USAGE, "output": [item]}).encode())
    native.close()
    assert "resp-object-schema" in {note.rule for note in native.repair_log.entries()}
    assert native.final_object is not None
    assert native.final_object["output"][0].keys() >= MESSAGE.keys()
