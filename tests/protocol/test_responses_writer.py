"""The writer of /v1/responses, and its whole reply."""

import json
from typing import Any

import pytest

from tests.table import table
from welldone.protocol.collect import CollectedReply, collect
from welldone.protocol.dialects.base import KEEP_ALIVE
from welldone.protocol.dialects.responses.objects import RESPONSE_DEFAULTS
from welldone.protocol.dialects.responses.writer import ResponsesDialect
from welldone.protocol.envelope import Envelope
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
)

Json = dict[str, Any]
HEAD = Envelope("resp_7", 1700000000, "m")
USAGE = Usage(5, 3, 8, {"prompt_tokens_details": {"cached_tokens": 2}, "cost": 1})


def write(events: list[Event], dialect: ResponsesDialect | None = None) -> list[Json]:
    """The JSON of each event of the stream that `events` make."""
    writer = (dialect or ResponsesDialect({})).make_writer(HEAD, lambda: None)
    data = b"".join([*(writer.send(event) for event in events), writer.end()])
    return read(data)


def read(data: bytes) -> list[Json]:
    """The JSON of each event, whose name is its type."""
    found = []
    for block in data.decode().removesuffix("\n\n").split("\n\n"):
        name, _, line = block.partition("\n")
        value = json.loads(line.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append(value)
    return found


def kinds(values: list[Json]) -> list[str]:
    """The types of events, in short."""
    return [value["type"].removeprefix("response.") for value in values]


def logprobs(token: str, raw: list[int] | None = None) -> Json:
    """Chat's log probabilities of one token."""
    entry = {"token": token, "logprob": -0.5, "bytes": raw, "top_logprobs": []}
    top = {"token": "x", "logprob": -1.0, "bytes": [120], "vendor": 1}
    return {"content": [entry | {"top_logprobs": [top]}], "refusal": None}


def test_an_answer_is_told_from_its_beginning_to_its_end() -> None:
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


def test_a_response_repeats_its_request_and_never_lets_it_speak_for_the_answer() -> None:
    echo = {"instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.2, "id": "mine", "status": "done"}
    response = write([ChoiceStart(0), Finish(0, "stop")], ResponsesDialect(echo))[0]["response"]
    assert response["instructions"] == "Be brief."
    assert response["metadata"] == {"a": "b"}
    assert response["temperature"] == 0.2
    assert (response["id"], response["status"]) == ("resp_7", "in_progress")


def test_another_kind_closes_what_is_open() -> None:
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


def test_reasoning_can_go_out_as_a_summary() -> None:
    values = write(
        [ChoiceStart(0), Reasoning(0, "h"), Reasoning(0, "m"), Finish(0, "stop")], ResponsesDialect({}, is_summary=True)
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


def test_text_between_the_pieces_of_a_call_waits_until_the_call_is_closed() -> None:
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


def test_log_probabilities_ride_on_the_text_that_they_are_of() -> None:
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


def test_log_probabilities_that_no_text_follows_are_those_of_the_text_before() -> None:
    values = write([ChoiceStart(0), Text(0, "a"), Logprobs(0, logprobs("a")), Finish(0, "stop")])
    assert [entry["token"] for entry in values[-1]["response"]["output"][0]["content"][0]["logprobs"]] == ["a"]
    assert write([ChoiceStart(0), Logprobs(0, {"content": None}), Text(0, "a"), Finish(0, "stop")])[4]["logprobs"] == []


@pytest.mark.parametrize(
    ("reason", "cut"), [("length", "max_output_tokens"), ("content_filter", "content_filter")], ids=str
)
def test_an_answer_that_was_cut_is_incomplete_and_so_is_its_last_item(reason: str, cut: str) -> None:
    values = write([ChoiceStart(0), Reasoning(0, "hm"), Text(0, "a"), Finish(0, reason)])
    assert values[-1]["type"] == "response.incomplete"
    response = values[-1]["response"]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": cut}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert response["usage"] is None


def test_a_failure_closes_what_is_open_and_ends_the_stream() -> None:
    said: list[Event] = [ChoiceStart(0), ToolCall(0, 0, "a", "get"), Text(0, "b"), Failure("boom", param="input")]
    values = write(said)
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
def test_a_failure_before_anything_was_said_is_a_whole_stream(failure: Failure, code: str) -> None:
    values = write([failure])
    assert kinds(values) == ["created", "in_progress", "failed"]
    assert values[-1]["response"]["error"] == {"code": code, "message": "m"}


def test_the_last_words_of_a_stream_are_an_error_event() -> None:
    (value,) = read(ResponsesDialect({}).final_error_bytes(Failure("boom", code="c")))
    assert value == {"type": "error", "sequence_number": 0, "code": "c", "message": "boom", "param": None}


def test_a_sign_of_life_is_a_comment_and_later_an_event_with_a_number() -> None:
    writer = ResponsesDialect({}).make_writer(HEAD, lambda: None)
    assert writer.send(KeepAlive()) == KEEP_ALIVE
    writer.send(ChoiceStart(0))
    (value,) = read(writer.send(KeepAlive(is_chunk=True)))
    assert value == {"type": "keepalive", "sequence_number": 2}


def test_unknown_fields_are_left_out() -> None:
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


def test_text_may_come_a_short_way_only_while_text_is_being_said() -> None:
    writer = ResponsesDialect({}).make_writer(HEAD, lambda: None)
    takes = [writer.accepts_text(0)]
    for event in (ChoiceStart(0), Text(0, "a"), Logprobs(0, logprobs("b")), Text(0, "b"), ToolCall(0, 0, "a", "get")):
        writer.send(event)
        takes.append(writer.accepts_text(0))
    assert takes == [False, False, True, False, True, False]
    assert not writer.accepts_text(1)


def test_line_breaks_of_other_planes_are_escaped() -> None:
    writer = ResponsesDialect({}).make_writer(HEAD, lambda: None)
    sent = writer.send(ChoiceStart(0)) + writer.send(Text(0, "a\u2028")) + writer.send(Text(0, "b\u2029é"))
    assert len(sent.decode().splitlines()) == sent.count(b"\n")


def test_what_comes_out_of_turn_is_refused() -> None:
    writer = ResponsesDialect({}).make_writer(HEAD, lambda: None)
    with pytest.raises(EventOrderError):
        writer.send(Text(0, "a"))
    writer.send(ChoiceStart(0))
    with pytest.raises(EventOrderError):
        writer.end()


def test_what_the_server_counted_is_told_where_nobody_said_it() -> None:
    writer = ResponsesDialect({}).make_writer(HEAD, lambda: USAGE)
    for event in (ChoiceStart(0), Text(0, "a"), Finish(0, "stop")):
        writer.send(event)
    assert read(writer.end())[-1]["response"]["usage"]["total_tokens"] == 8


def test_the_response_is_kept_as_it_was_said_last() -> None:
    dialect = ResponsesDialect({"metadata": {"a": "b"}})
    values = write([ChoiceStart(0), Text(0, "a"), Finish(0, "stop"), USAGE], dialect)
    assert dialect.final_object == values[-1]["response"]


WHOLE: list[Event] = [
    *(ChoiceStart(0), Reasoning(0, "hm"), Logprobs(0, logprobs("a")), Text(0, "a"), Refusal(0, "no")),
    *(ToolCall(0, 0, "call_1", "get", {"x": 1}), ToolArguments(0, 0, "{}"), ToolCall(0, 1, "call_2", "set")),
    *(Finish(0, "tool_calls"), USAGE),
]


def test_a_whole_reply_is_what_its_stream_ends_with() -> None:
    dialect = ResponsesDialect({"user": "u"})
    whole = json.loads(dialect.encode_reply(HEAD, collect(WHOLE)))
    assert whole == write(WHOLE, ResponsesDialect({"user": "u"}))[-1]["response"]
    assert whole == dialect.final_object


def test_a_whole_reply_may_be_empty() -> None:
    whole = json.loads(ResponsesDialect({}).encode_reply(HEAD, CollectedReply()))
    assert whole["output"] == []
    assert whole["status"] == "completed"


def test_the_model_that_answered_is_told_and_the_id_is_ours() -> None:
    head = ResponsesDialect({}).envelope(Envelope("chatcmpl-1", 1, "theirs"), HEAD)
    assert head == Envelope("resp_7", 1700000000, "theirs")


def test_an_answer_that_is_completed_says_when() -> None:
    dialect = ResponsesDialect({}, clock=lambda: 1700000005.9)
    for reason, completed in (("stop", 1700000005), ("length", None)):
        writer = dialect.make_writer(HEAD, lambda: None)
        for event in (ChoiceStart(0), Text(0, "a"), Finish(0, reason)):
            writer.send(event)
        writer.end()
        assert dialect.final_object is not None
        assert dialect.final_object["completed_at"] == completed
