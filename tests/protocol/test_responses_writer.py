"""Writer of /v1/responses."""

import json
from typing import Any

import pytest

from tests.table import table
from welldone.core.answer_format import KEEP_ALIVE
from welldone.core.collect import CollectedReply, collect
from welldone.core.envelope import Envelope
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
)
from welldone.dialects.responses.objects import RESPONSE_DEFAULTS
from welldone.dialects.responses.writer import ResponsesFormat

Json = dict[str, Any]
HEAD = Envelope("resp_7", 1700000000, "m")
USAGE = Usage(5, 3, 8, {"prompt_tokens_details": {"cached_tokens": 2}, "cost": 1})


def write(events: list[Event], dialect: ResponsesFormat | None = None) -> list[Json]:
    """Write events; return the decoded stream."""
    writer = (dialect or ResponsesFormat({})).make_writer(HEAD, lambda: None)
    data = b"".join([*(writer.send(event) for event in events), writer.end()])
    return read(data)


def read(data: bytes) -> list[Json]:
    """Decode a stream; check that each event is named by its type."""
    found = []
    for block in data.decode().removesuffix("\n\n").split("\n\n"):
        name, _, line = block.partition("\n")
        value = json.loads(line.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append(value)
    return found


def kinds(values: list[Json]) -> list[str]:
    """Return the event types without their prefix."""
    return [value["type"].removeprefix("response.") for value in values]


def logprobs(token: str, raw: list[int] | None = None) -> Json:
    """Return chat's log probabilities of one token."""
    entry = {"token": token, "logprob": -0.5, "bytes": raw, "top_logprobs": []}
    top = {"token": "x", "logprob": -1.0, "bytes": [120], "vendor": 1}
    return {"content": [entry | {"top_logprobs": [top]}], "refusal": None}


def test_a_call_gets_its_namespace_back() -> None:
    events: list[Event] = [ChoiceStart(0)]
    for number, name in enumerate(("crm__find", "find")):
        events += [ToolCall(0, number, f"c{number}", name), ToolArguments(0, number, "{}")]
    dialect = ResponsesFormat({}, call_names={"crm__find": {"name": "find", "namespace": "crm"}})
    values = write([*events, Finish(0, "tool_calls")], dialect)
    items = [value["item"] for value in values if "item" in value] + values[-1]["response"]["output"]
    assert [(item["name"], item.get("namespace")) for item in items] == [
        *(("find", "crm"), ("find", "crm"), ("find", None), ("find", None)),
        *(("find", "crm"), ("find", None)),
    ]
    assert {value["name"] for value in values if value["type"].endswith("arguments.done")} == {"find"}


def test_the_events_of_a_text_response() -> None:
    values = write([ChoiceStart(0), Text(0, "Hé"), Text(0, "llo"), Finish(0, "stop"), USAGE])
    assert kinds(values) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        "completed",
    ]
    assert [value["sequence_number"] for value in values] == list(range(10))
    address = {"item_id": "msg_7_0", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "annotations": [], "logprobs": [], "text": "Héllo"}
    item = {"id": "msg_7_0", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
    assert values[0]["response"]["status"] == "in_progress"
    assert values[2]["item"] == item | {"status": "in_progress", "content": []}
    assert values[3] == {
        "type": "response.content_part.added",
        "sequence_number": 3,
        **address,
        "part": part | {"text": ""},
    }
    assert values[5] == {
        "type": "response.output_text.delta",
        "sequence_number": 5,
        "delta": "llo",
        "logprobs": [],
        **address,
    }
    assert values[6]["text"] == "Héllo"
    assert values[6]["logprobs"] == []
    assert values[7]["part"] == part
    assert values[8]["item"] == item
    assert values[9]["response"] == RESPONSE_DEFAULTS | {
        "id": "resp_7",
        "object": "response",
        "created_at": 1700000000,
        "completed_at": None,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": "m",
        "output": [item],
        "usage": {
            "input_tokens": 5,
            "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 8,
            "cost": 1,
        },
    }


def test_the_request_does_not_override_members_of_the_response() -> None:
    echo = {"instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.2, "id": "mine", "status": "done"}
    response = write([ChoiceStart(0), Finish(0, "stop")], ResponsesFormat(echo))[0]["response"]
    assert response["instructions"] == "Be brief."
    assert response["metadata"] == {"a": "b"}
    assert response["temperature"] == 0.2
    assert (response["id"], response["status"]) == ("resp_7", "in_progress")


def test_content_of_another_type_closes_the_open_item() -> None:
    values = write(
        [
            *(ChoiceStart(0), Reasoning(0, "hm"), Text(0, "a"), Refusal(0, "no"), Text(0, "b"), Reasoning(0, "oh")),
            *(
                ToolCall(0, 0, "call_1", "get", {"x": 1, "status": 2}),
                ToolArguments(0, 0, "{"),
                ToolArguments(0, 0, "}"),
            ),
            *(
                ToolCall(0, 1, "call_2", "set"),
                ToolArguments(0, 1, "{}", {"sign": "s"}),
                ToolArguments(0, 1, "", {"id": 1}),
            ),
            Finish(0, "tool_calls"),
        ]
    )
    thought, message, after, first, second = values[-1]["response"]["output"]
    assert thought == {
        "id": "rs_7_0",
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }
    assert [part.get("text", part.get("refusal")) for part in message["content"]] == ["a", "no", "b"]
    assert after["content"] == [{"type": "reasoning_text", "text": "oh"}]
    assert first == {
        "id": "fc_7_3",
        "type": "function_call",
        "status": "completed",
        "call_id": "call_1",
        "name": "get",
        "arguments": "{}",
        "x": 1,
    }
    assert (second["id"], second["arguments"], second["sign"]) == ("fc_7_4", "{}", "s")
    done = [value for value in values if value["type"] == "response.function_call_arguments.done"]
    assert [(value["name"], value["arguments"]) for value in done] == [("get", "{}"), ("set", "{}")]
    opened = [kind for kind in kinds(values) if kind.startswith(("output_item", "content_part"))]
    depth = 0
    for kind in opened:
        depth += 1 if kind.endswith("added") else -1
        assert 0 <= depth <= 2


def test_reasoning_can_be_sent_as_a_summary() -> None:
    values = write(
        [ChoiceStart(0), Reasoning(0, "h"), Reasoning(0, "m"), Finish(0, "stop")], ResponsesFormat({}, is_summary=True)
    )
    assert kinds(values)[2:-1] == [
        *("output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta"),
        *("reasoning_summary_text.delta", "reasoning_summary_text.done", "reasoning_summary_part.done"),
        "output_item.done",
    ]
    assert values[4]["summary_index"] == 0
    item = values[-1]["response"]["output"][0]
    assert item["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert item["content"] == []


def test_text_between_argument_deltas_is_queued_until_the_call_is_closed() -> None:
    values = write(
        [
            *(
                ChoiceStart(0),
                ToolCall(0, 0, "a", "get"),
                ToolArguments(0, 0, "{"),
                Text(0, "one"),
                ToolArguments(0, 0, "}"),
            ),
            *(Reasoning(0, "two"), ToolCall(0, 1, "b", "set"), Text(0, "three"), ToolArguments(0, 1, "{}")),
            Finish(0, "tool_calls"),
        ]
    )
    output = values[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["function_call", "message", "reasoning", "function_call", "message"]
    assert [item.get("arguments") for item in output] == ["{}", None, None, "{}", None]
    assert output[1]["content"][0]["text"] == "one"
    assert output[4]["content"][0]["text"] == "three"


def test_logprobs_are_attached_to_their_text() -> None:
    values = write(
        [
            *(ChoiceStart(0), Logprobs(0, logprobs("thought")), Reasoning(0, "hm"), Logprobs(0, logprobs("a"))),
            *(Text(0, "a"), Text(0, "b"), Logprobs(0, logprobs("c", [99])), Text(0, "c"), Logprobs(0, logprobs("end"))),
            *(ToolCall(0, 0, "a", "get"), Logprobs(0, logprobs("args")), ToolArguments(0, 0, "{}")),
            *(Logprobs(0, logprobs("late")), Text(0, "late"), Finish(0, "tool_calls")),
        ]
    )
    deltas = [value for value in values if value["type"] == "response.output_text.delta"]
    assert [[entry["token"] for entry in value["logprobs"]] for value in deltas] == [["a"], [], ["c"], ["late"]]
    assert deltas[0]["logprobs"][0] == {
        "token": "a",
        "bytes": [97],
        "logprob": -0.5,
        "top_logprobs": [{"token": "x", "bytes": [120], "logprob": -1.0, "vendor": 1}],
    }
    message = values[-1]["response"]["output"][1]
    assert [entry["token"] for entry in message["content"][0]["logprobs"]] == ["a", "c"]


def test_trailing_logprobs_belong_to_the_previous_text() -> None:
    values = write([ChoiceStart(0), Text(0, "a"), Logprobs(0, logprobs("a")), Finish(0, "stop")])
    assert [entry["token"] for entry in values[-1]["response"]["output"][0]["content"][0]["logprobs"]] == ["a"]
    assert write([ChoiceStart(0), Logprobs(0, {"content": None}), Text(0, "a"), Finish(0, "stop")])[4]["logprobs"] == []


@pytest.mark.parametrize(
    ("reason", "cut"), [("length", "max_output_tokens"), ("content_filter", "content_filter")], ids=str
)
def test_a_truncated_answer_and_its_last_item_are_incomplete(reason: str, cut: str) -> None:
    values = write([ChoiceStart(0), Reasoning(0, "hm"), Text(0, "a"), Finish(0, reason)])
    assert values[-1]["type"] == "response.incomplete"
    response = values[-1]["response"]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": cut}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert response["usage"] is None


def test_a_failure_closes_open_items_and_ends_the_stream() -> None:
    events: list[Event] = [ChoiceStart(0), ToolCall(0, 0, "a", "get"), Text(0, "b"), Failure("boom", param="input")]
    values = write(events)
    assert values[-1]["type"] == "response.failed"
    response = values[-1]["response"]
    assert response["error"] == {"code": "server_error", "message": "boom", "param": "input"}
    assert [item["status"] for item in response["output"]] == ["incomplete", "incomplete"]


@table(
    ("failure", "code"),
    [
        (Failure("m", code="context_length_exceeded"), "context_length_exceeded"),
        (Failure("m", type="rate_limit_error"), "rate_limit_exceeded"),
        (Failure("m", type="invalid_request_error"), "invalid_prompt"),
        (Failure("m", type="whatever"), "server_error"),
    ],
)
def test_a_failure_before_any_output_is_a_complete_stream(failure: Failure, code: str) -> None:
    values = write([failure])
    assert kinds(values) == ["created", "in_progress", "failed"]
    assert values[-1]["response"]["error"] == {"code": code, "message": "m"}


def test_the_final_error_is_an_error_event() -> None:
    (value,) = read(ResponsesFormat({}).final_error_bytes(Failure("boom", code="c")))
    assert value == {"type": "error", "sequence_number": 0, "code": "c", "message": "boom", "param": None}


def test_a_keep_alive_is_a_comment_and_the_sixth_in_a_row_a_numbered_event() -> None:
    writer = ResponsesFormat({}).make_writer(HEAD, lambda: None)
    assert writer.send(KeepAlive()) == KEEP_ALIVE
    writer.send(ChoiceStart(0))
    for number in (2, 3):
        assert [writer.send(KeepAlive(is_chunk=True)) for _ in range(5)] == [KEEP_ALIVE] * 5
        (value,) = read(writer.send(KeepAlive(is_chunk=True)))
        assert value == {"type": "keepalive", "sequence_number": number}
    writer.send(Text(0, "Hello"))
    assert writer.send(KeepAlive()) == KEEP_ALIVE


def test_unknown_fields_are_omitted() -> None:
    values = write(
        [
            *(ChoiceStart(0), Text(0, "a"), UnknownFields(0, FieldLocation.CHUNK, {"x": 1})),
            *(
                UnknownFields(0, FieldLocation.CHOICE, {"x": 1}),
                UnknownFields(0, FieldLocation.DELTA, {"x": 1}, in_own_chunk=True),
                Finish(0, "stop"),
            ),
        ]
    )
    assert [value["delta"] for value in values if "delta" in value] == ["a"]
    assert values[-1]["type"] == "response.completed"
    assert '"x"' not in json.dumps(values)


def test_the_fast_path_applies_only_while_a_text_part_is_open() -> None:
    writer = ResponsesFormat({}).make_writer(HEAD, lambda: None)
    takes = [writer.accepts_text(0, Text)]
    for event in (ChoiceStart(0), Text(0, "a"), Logprobs(0, logprobs("b")), Text(0, "b"), ToolCall(0, 0, "a", "get")):
        writer.send(event)
        takes.append(writer.accepts_text(0, Text))
    assert takes == [False, False, True, False, True, False]
    assert not writer.accepts_text(1, Text)


def test_unicode_line_breaks_are_escaped() -> None:
    writer = ResponsesFormat({}).make_writer(HEAD, lambda: None)
    sent = writer.send(ChoiceStart(0)) + writer.send(Text(0, "a\u2028")) + writer.send(Text(0, "b\u2029é"))
    assert len(sent.decode().splitlines()) == sent.count(b"\n")


def test_illegal_event_order_raises() -> None:
    writer = ResponsesFormat({}).make_writer(HEAD, lambda: None)
    with pytest.raises(EventOrderError):
        writer.send(Text(0, "a"))
    writer.send(ChoiceStart(0))
    with pytest.raises(EventOrderError):
        writer.end()


def test_the_usage_source_supplies_missing_usage() -> None:
    writer = ResponsesFormat({}).make_writer(HEAD, lambda: USAGE)
    for event in (ChoiceStart(0), Text(0, "a"), Finish(0, "stop")):
        writer.send(event)
    assert read(writer.end())[-1]["response"]["usage"]["total_tokens"] == 8


def test_the_final_response_is_stored() -> None:
    dialect = ResponsesFormat({"metadata": {"a": "b"}})
    values = write([ChoiceStart(0), Text(0, "a"), Finish(0, "stop"), USAGE], dialect)
    assert dialect.final_object == values[-1]["response"]


WHOLE: list[Event] = [
    *(ChoiceStart(0), Reasoning(0, "hm"), Logprobs(0, logprobs("a")), Text(0, "a"), Refusal(0, "no")),
    *(ToolCall(0, 0, "call_1", "get", {"x": 1}), ToolArguments(0, 0, "{}"), ToolCall(0, 1, "call_2", "set")),
    *(Finish(0, "tool_calls"), USAGE),
]


def test_a_reply_equals_the_response_of_the_terminal_event() -> None:
    dialect = ResponsesFormat({"user": "u"})
    whole = json.loads(dialect.encode_reply(HEAD, collect(WHOLE)))
    assert whole == write(WHOLE, ResponsesFormat({"user": "u"}))[-1]["response"]
    assert whole == dialect.final_object


def test_a_reply_may_be_empty() -> None:
    whole = json.loads(ResponsesFormat({}).encode_reply(HEAD, CollectedReply()))
    assert whole["output"] == []
    assert whole["status"] == "completed"


def test_the_model_is_that_of_the_server_and_the_id_is_ours() -> None:
    head = ResponsesFormat({}).envelope(Envelope("chatcmpl-1", 1, "theirs"), HEAD)
    assert head == Envelope("resp_7", 1700000000, "theirs")


def test_a_completed_response_has_completed_at() -> None:
    dialect = ResponsesFormat({}, clock=lambda: 1700000005.9)
    for reason, completed in (("stop", 1700000005), ("length", None)):
        writer = dialect.make_writer(HEAD, lambda: None)
        for event in (ChoiceStart(0), Text(0, "a"), Finish(0, reason)):
            writer.send(event)
        writer.end()
        assert dialect.final_object is not None
        assert dialect.final_object["completed_at"] == completed
