"""Reference server with /v1/responses and /v1/messages: the judge finds no violation."""

import json
from typing import Any

import pytest

from tests.table import table
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply, with_raw_http
from welldone.mock.server import MockHttpRequest
from welldone.rules.judge import judge
from welldone.rules.trace import Trace, read_capture

RESPONSES, MESSAGES, COUNT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"
MODELS = ("ideal", "ideal-thinking")
Json = dict[str, Any]

CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
RESPONSES_TOOL: Json = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": True}
MESSAGES_TOOL: Json = {"name": "get_weather", "input_schema": CITY}
WEATHER = "What is the weather in Paris?"
CALL: Json = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city":"Paris"}'}
OUTPUT: Json = {"type": "function_call_output", "call_id": "c1", "output": "Sunny"}
USE: Json = {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"city": "Paris"}}
RESULT: Json = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "Sunny"}]}
CAT: Json = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}

REQUESTS: dict[str, dict[str, Json]] = {
    RESPONSES: {
        "text": {},
        "instructions": {"instructions": "Be brief.", "metadata": {"a": "b"}},
        "emoji": {"input": "emoji"},
        "items": {
            "input": [
                {"role": "developer", "content": "Be brief."},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say: a b c"}]},
            ]
        },
        "length": {"input": "Count", "max_output_tokens": 16},
        "reasoning": {"model": "ideal-thinking"},
        "summary": {"model": "ideal-thinking", "reasoning": {"summary": "auto"}},
        "truncated reasoning": {"model": "ideal-thinking", "max_output_tokens": 2},
        "logprobs": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        "call": {"input": WEATHER, "tools": [RESPONSES_TOOL], "tool_choice": "required"},
        "named call": {
            "input": WEATHER,
            "tools": [RESPONSES_TOOL],
            "tool_choice": {"type": "function", "name": "get_weather"},
        },
        "calls": {"input": "The weather in both Paris and Rome", "tools": [RESPONSES_TOOL], "model": "ideal-thinking"},
        "result": {"input": [{"role": "user", "content": WEATHER}, CALL, OUTPUT], "tools": [RESPONSES_TOOL]},
        "earlier reasoning": {
            "input": [{"type": "reasoning", "id": "rs_1", "summary": []}, {"role": "user", "content": "Hi"}]
        },
        "json": {"text": {"format": {"type": "json_object"}}},
        "schema": {"text": {"format": {"type": "json_schema", "name": "cat", "schema": CAT, "strict": True}}},
        "plain text": {"text": {"format": {"type": "text"}}},
    },
    MESSAGES: {
        "text": {},
        "system": {"system": [{"type": "text", "text": "Be brief."}], "metadata": {"user_id": "u"}},
        "emoji": {"messages": [{"role": "user", "content": "emoji"}]},
        "length": {"messages": [{"role": "user", "content": "Count"}], "max_tokens": 5},
        "stop": {"messages": [{"role": "user", "content": "Say: one two"}], "stop_sequences": ["never", " two"]},
        "reasoning": {"model": "ideal-thinking", "thinking": {"type": "enabled", "budget_tokens": 1024}},
        "truncated reasoning": {"model": "ideal-thinking", "max_tokens": 2},
        "call": {
            "messages": [{"role": "user", "content": WEATHER}],
            "tools": [MESSAGES_TOOL],
            "tool_choice": {"type": "any"},
        },
        "named call": {
            "messages": [{"role": "user", "content": WEATHER}],
            "tools": [MESSAGES_TOOL, {"type": "web_search_20250305", "name": "web_search"}],
            "tool_choice": {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
        },
        "no call": {
            "messages": [{"role": "user", "content": WEATHER}],
            "tools": [MESSAGES_TOOL],
            "tool_choice": {"type": "none"},
        },
        "calls": {
            "messages": [{"role": "user", "content": "The weather in both Paris and Rome"}],
            "tools": [MESSAGES_TOOL],
        },
        "result": {
            "messages": [
                {"role": "user", "content": WEATHER},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}, USE]},
                {"role": "user", "content": [RESULT, {"type": "text", "text": "Well?"}]},
            ],
            "tools": [MESSAGES_TOOL],
        },
    },
}
CASES = [
    pytest.param(path, fields, id=f"{path} {name}")
    for path, requests in REQUESTS.items()
    for name, fields in requests.items()
]


def _body(path: str, fields: Json) -> Json:
    content = (
        {"input": "Hi"} if path == RESPONSES else {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100}
    )
    return {"model": "ideal"} | content | fields


def _reply(path: str, body: object, reference: ReferenceServer | None = None, **headers: str) -> MockReply:
    data = body if isinstance(body, str) else json.dumps(body)
    header_fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return (reference or ReferenceServer(models=MODELS)).answer(MockHttpRequest("POST", path, header_fields, data))


def _trace(path: str, fields: Json) -> Trace:
    body = _body(path, fields)
    received = read_capture(with_raw_http(_reply(path, body)).body)
    return Trace(
        body=received.body,
        endpoint=path.removeprefix("/v1/"),
        request=body,
        status=received.status,
        headers=received.headers,
        complete=received.complete,
        chunk_sizes=received.chunk_sizes,
    )


def _buffered(path: str, **fields: Any) -> Json:  # noqa: ANN401 - as requests have them
    found: Json = json.loads(_reply(path, _body(path, fields)).body)
    return found


def _events(path: str, fields: Json) -> list[Json]:
    frames = _reply(path, _body(path, fields) | {"stream": True}).body.decode().split("\n\n")
    return [json.loads(frame.partition("data: ")[2]) for frame in frames if frame]


@table(("path", "fields"), CASES)
@table("stream", [True, False], ids=["stream", "buffered"])
def test_the_judge_finds_nothing(path: str, fields: Json, stream: bool) -> None:
    judged = judge(_trace(path, fields | {"stream": stream}))
    assert judged.findings == ()
    assert judged.missing == ()


@table("fields", REQUESTS[RESPONSES].values(), ids=REQUESTS[RESPONSES].keys())
def test_the_last_event_of_a_responses_stream_equals_the_buffered_reply(fields: Json) -> None:
    streamed, buffered = _events(RESPONSES, fields)[-1]["response"], _buffered(RESPONSES, **fields)
    assert _without_ids(streamed["output"]) == _without_ids(buffered["output"])
    for name in ("status", "incomplete_details", "usage", "metadata", "instructions", "model"):
        assert streamed[name] == buffered[name]


def _without_ids(output: list[Json]) -> list[Json]:
    """Remove the ids, which are new each time."""
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in output]


@table("fields", REQUESTS[MESSAGES].values(), ids=REQUESTS[MESSAGES].keys())
def test_a_messages_stream_has_the_content_of_the_buffered_reply(fields: Json) -> None:
    events, buffered = _events(MESSAGES, fields), _buffered(MESSAGES, **fields)
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    for kind in ("text", "thinking"):
        expected = "".join(block[kind] for block in buffered["content"] if block["type"] == kind)
        assert "".join(delta.get(kind, "") for delta in deltas) == expected
    inputs = [block["input"] for block in buffered["content"] if block["type"] == "tool_use"]
    assert "".join(delta.get("partial_json", "") for delta in deltas) == "".join(map(json.dumps, inputs))
    end = next(event for event in events if event["type"] == "message_delta")
    assert end["delta"]["stop_reason"] == buffered["stop_reason"]
    assert end["usage"]["output_tokens"] == buffered["usage"]["output_tokens"]


def test_finish_reasons_are_those_of_each_dialect() -> None:
    truncated = _buffered(RESPONSES, **REQUESTS[RESPONSES]["length"])
    assert (truncated["status"], truncated["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    ended = {name: _buffered(MESSAGES, **REQUESTS[MESSAGES][name]) for name in ("text", "length", "stop", "call")}
    reasons = {name: (message["stop_reason"], message["stop_sequence"]) for name, message in ended.items()}
    assert reasons == {
        "text": ("end_turn", None),
        "length": ("max_tokens", None),
        "stop": ("stop_sequence", " two"),
        "call": ("tool_use", None),
    }


def test_tool_calls_and_results_are_supported() -> None:
    item = _buffered(RESPONSES, **REQUESTS[RESPONSES]["call"])["output"][-1]
    assert (item["name"], json.loads(item["arguments"])) == ("get_weather", {"city": "Paris"})
    block = _buffered(MESSAGES, **REQUESTS[MESSAGES]["named call"])["content"][-1]
    assert (block["name"], block["input"]) == ("get_weather", {"city": "Paris"})
    assert "Sunny" in _buffered(RESPONSES, **REQUESTS[RESPONSES]["result"])["output"][-1]["content"][0]["text"]
    assert _buffered(MESSAGES, **REQUESTS[MESSAGES]["no call"])["content"][0]["type"] == "text"


def test_a_final_tool_result_is_the_answer() -> None:
    messages = [*REQUESTS[MESSAGES]["result"]["messages"][:2], {"role": "user", "content": [RESULT]}]
    assert "Sunny" in _buffered(MESSAGES, messages=messages)["content"][0]["text"]


def test_a_response_echoes_its_request() -> None:
    requests = {"instructions": "Be brief.", "temperature": 0.5, "tools": [RESPONSES_TOOL], "store": False}
    response = _buffered(RESPONSES, **requests)
    assert {name: response[name] for name in ("instructions", "temperature", "store")} == {
        name: requests[name] for name in ("instructions", "temperature", "store")
    }
    assert response["tools"][0]["name"] == "get_weather"


def test_count_tokens_agrees_with_the_usage_of_the_answer() -> None:
    body = _body(MESSAGES, {})
    del body["max_tokens"]
    count = json.loads(_reply(COUNT, body).body)
    assert count == {"input_tokens": _buffered(MESSAGES)["usage"]["input_tokens"]}


ITEM: Json = {"role": "user", "content": "Hi"}
IMAGE: Json = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}


@table(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": [{"content": "Hi"}]}, "input[0].type"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [ITEM, {"role": "user", "content": [IMAGE]}]}, "input[1].content[0]"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "schema": CAT}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "cat"}}}, "text.format.schema"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ],
)
def test_an_invalid_responses_request_is_rejected_with_its_param(fields: Json, param: str) -> None:
    reply = _reply(RESPONSES, _body(RESPONSES, fields))
    assert reply.status == 400
    assert json.loads(reply.body)["error"]["param"] == param


@table(
    ("fields", "status", "kind"),
    [
        ({"messages": []}, 400, "invalid_request_error"),
        ({"messages": [{"role": "system", "content": "x"}]}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": []}]}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, 400, "invalid_request_error"),
        ({"max_tokens": 0}, 400, "invalid_request_error"),
        ({"max_tokens": None}, 400, "invalid_request_error"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": "a " * 5000}]}, 400, "invalid_request_error"),
        ({"model": "none"}, 404, "not_found_error"),
    ],
)
def test_an_invalid_messages_request_is_rejected_in_anthropics_format(fields: Json, status: int, kind: str) -> None:
    reply = _reply(MESSAGES, _body(MESSAGES, fields))
    body = json.loads(reply.body)
    assert (reply.status, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert judge(Trace(body=reply.body, endpoint="messages", status=reply.status)).findings == ()


@table(
    ("path", "headers", "status"),
    [
        (MESSAGES, {"x_api_key": "sk-right"}, 200),
        (MESSAGES, {"authorization": "Bearer sk-right"}, 200),
        (MESSAGES, {"x_api_key": "sk-wrong", "authorization": "Bearer sk-right"}, 401),
        (MESSAGES, {}, 401),
        (RESPONSES, {"authorization": "Bearer sk-right"}, 200),
        (RESPONSES, {"x_api_key": "sk-right"}, 401),
    ],
)
def test_each_dialect_has_its_own_key_header(path: str, headers: dict[str, str], status: int) -> None:
    reply = _reply(path, _body(path, {}), ReferenceServer(key="sk-right"), **headers)
    assert reply.status == status
    if status == 401 and path == MESSAGES:
        assert json.loads(reply.body)["error"]["type"] == "authentication_error"


@table("path", [RESPONSES, MESSAGES, COUNT])
@table("body", ["", "{", "[]", "7", '{"model":7}'])
def test_an_invalid_body_is_rejected(path: str, body: str) -> None:
    assert _reply(path, body).status == 400


def test_there_is_a_delay_before_each_token() -> None:
    for path in (RESPONSES, MESSAGES):
        reply = _reply(path, _body(path, {"stream": True}), ReferenceServer(gap_s=0.25))
        delays = [chunk.after_s for chunk in reply.pieces]
        assert set(delays) == {0.0, 0.25}
        assert reply.end == "whole"
