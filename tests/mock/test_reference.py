"""Reference server with chat and completions: correct replies, prompts, limits, tools, schemas and errors."""

import json
from typing import Any

import pytest

from tests.engines.supervisors import fetch_reply, run
from tests.mock.raw_client import connect
from tests.table import table
from welldone.http.address import Address
from welldone.mock.reference import choices
from welldone.mock.reference.choices import count_tokens, repeat_to_length, tokenize
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.reference.tool_calls import SchemaSampler
from welldone.mock.script import MockReply, MockScript, with_raw_http
from welldone.mock.server import MockHttpRequest, MockServer
from welldone.rules.judge import judge
from welldone.rules.trace import Trace, read_capture

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ENDPOINTS = {CHAT: "chat", COMPLETIONS: "completions"}
MODELS = ("ideal", "ideal-thinking")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "Tells the time"}}
NAMED_CHOICE = {"type": "function", "function": {"name": "clock"}}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 3},
        "age": {"type": "integer", "minimum": 18, "maximum": 99},
        "mood": {"enum": ["good", "bad"]},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2},
        "home": {"$ref": "#/$defs/home"},
        "note": {"type": ["string", "null"]},
    },
    "required": ["name", "age", "mood", "tags", "home", "note"],
    "$defs": {"home": {"type": "object", "properties": {"street": {"type": "string"}}, "required": ["street"]}},
}
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
TOOL_MESSAGES = [
    {"role": "user", "content": "What is the weather in Paris?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "17 degrees"},
]

SHELL = {"type": "custom", "custom": {"name": "shell", "description": "Runs a command"}}
CUSTOM_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "shell", "input": "ls"}}],
}

CHAT_REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several choices": {"n": 3},
    "emoji": {"say": "Some emoji, please"},
    "multi-byte": {"say": "Repeat exactly: 👋🌍 naïve café, 你好"},
    "line breaks": {"say": "Say: a\nb\u2028c\u0085d"},
    "count": {"say": "Count to 5"},
    "story": {"say": "Write a long story"},
    "quoted": {"say": 'Reply with "one two" and nothing else'},
    "nothing": {"say": 'Say: ""'},
    "length": {"say": "Count", "max_tokens": 8},
    "length, new name": {"say": "Count", "max_completion_tokens": 8},
    "length of one": {"max_tokens": 1},
    "stop": {"say": "Say: one two three", "stop": "e tw"},
    "stop at once": {"say": "Say: one two", "stop": ["one"]},
    "stop that never comes": {"stop": ["today!", "x", "y", "z"]},
    "stop null": {"stop": None},
    "logprobs": {"logprobs": True},
    "top logprobs": {"logprobs": True, "top_logprobs": 20},
    "logprobs of emoji and choices": {"say": "emoji", "logprobs": True, "top_logprobs": 1, "n": 2},
    "sampling": {"temperature": 0, "top_p": 1, "seed": 1, "presence_penalty": 0, "logit_bias": {"1": 5}},
    "unknown members": {"foo": {"bar": 1}, "reasoning_effort": "low", "store": False},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Say: hi"}]}]},
    "developer": {"messages": [{"role": "developer", "content": "Be short"}, {"role": "user", "content": "Hi"}]},
    "thinking": {"model": "ideal-thinking"},
    "thinking, cut": {"model": "ideal-thinking", "max_tokens": 5},
    "thinking, call": {"model": "ideal-thinking", "tools": [CLOCK], "tool_choice": "required"},
    "tool, auto": {"say": "What is the weather in Paris?", "tools": [WEATHER, CLOCK]},
    "tool, parallel": {"say": "What is the weather in both Paris and New York?", "tools": [WEATHER]},
    "tool, choices": {"say": "The weather, please", "tools": [WEATHER], "n": 2},
    "tool, required": {"tools": [WEATHER, CLOCK], "tool_choice": "required"},
    "tool, named": {"tools": [WEATHER, CLOCK], "tool_choice": NAMED_CHOICE},
    "tool, none": {"say": "What is the weather?", "tools": [WEATHER], "tool_choice": "none"},
    "tool, unused": {"tools": [WEATHER, {"type": "web_search"}]},
    "tool, cut": {"say": "What is the weather in Paris?", "tools": [WEATHER], "max_tokens": 6},
    "tool, cut at once": {"say": "What is the weather in Paris?", "tools": [WEATHER], "max_tokens": 1},
    "tool, result": {"messages": TOOL_MESSAGES, "tools": [WEATHER]},
    "custom tool": {"say": "Use the shell", "tools": [SHELL, WEATHER]},
    "custom tool, named": {"tools": [SHELL, CLOCK], "tool_choice": {"type": "custom", "custom": {"name": "shell"}}},
    "custom tool, cut": {"tools": [SHELL], "tool_choice": "required", "max_tokens": 2},
    "custom tool, result": {"messages": [TOOL_MESSAGES[0], CUSTOM_CALL, TOOL_MESSAGES[-1]], "tools": [SHELL]},
    "json object": {"response_format": {"type": "json_object"}},
    "json schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}},
    "json text": {"response_format": {"type": "text"}},
}
COMPLETION_REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several choices": {"n": 3},
    "prompts": {"prompt": ["Say: a", "Say: b b", "c"], "n": 2},
    "tokens": {"prompt": [1, 2, 3], "echo": True},
    "lists of tokens": {"prompt": [[1, 2], [3]]},
    "echo": {"prompt": "Once upon", "echo": True},
    "echo alone": {"prompt": "Once upon", "echo": True, "max_tokens": 0, "logprobs": 1},
    "logprobs": {"logprobs": 3},
    "no tops": {"logprobs": 0},
    "echo with logprobs": {"prompt": "Once upon a time", "echo": True, "logprobs": 2, "n": 2},
    "length": {"prompt": "Count"},
    "stop": {"prompt": "Say: one two three", "stop": " two"},
    "nothing": {"prompt": "", "max_tokens": 0},
    "emoji": {"prompt": "emoji", "max_tokens": 100},
    "no suffix": {"suffix": None, "best_of": 1},
}


def body_of(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return a request with all required fields. `say` is the prompt."""
    prompt = fields.get("say", "Hi")
    rest = {key: value for key, value in fields.items() if key != "say"}
    content = {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
    return {"model": "ideal"} | content | rest


def http_request(method: str, path: str, body: str = "", **headers: str) -> MockHttpRequest:
    return MockHttpRequest(method, path, {name.replace("_", "-"): value for name, value in headers.items()}, body)


def trace_of(path: str, reference: ReferenceServer | None = None, **fields: Any) -> Trace:  # noqa: ANN401 - fields of a request
    """Return the trace of the reply to a request."""
    body = body_of(path, fields)
    reply = (reference or ReferenceServer(models=MODELS)).answer(http_request("POST", path, json.dumps(body)))
    received = read_capture(with_raw_http(reply).body)
    return Trace(
        body=received.body,
        endpoint=ENDPOINTS[path],
        request=body,
        status=received.status,
        headers=received.headers,
        complete=received.complete,
        chunk_sizes=received.chunk_sizes,
    )


def buffered(path: str = CHAT, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a request
    """Return the buffered reply to a request."""
    found: dict[str, Any] = json.loads(trace_of(path, **fields).body)
    return found


def text(path: str = CHAT, **fields: Any) -> str:  # noqa: ANN401 - fields of a request
    """Return the text of the first choice."""
    choice = buffered(path, **fields)["choices"][0]
    content: str = choice["message"]["content"] if path == CHAT else choice["text"]
    return content


def calls(**fields: Any) -> list[tuple[str, dict[str, Any]]]:  # noqa: ANN401 - fields of a request
    """Return the names and arguments of the tool calls."""
    tool_calls = buffered(**fields)["choices"][0]["message"].get("tool_calls", [])
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in tool_calls]


def chunks(trace: Trace) -> list[dict[str, Any]]:
    lines = trace.body.decode().split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


def error(reply: MockReply) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reply.body)["error"]
    return found


CASES = [(CHAT, name, fields) for name, fields in CHAT_REQUESTS.items()]
CASES += [(COMPLETIONS, name, fields) for name, fields in COMPLETION_REQUESTS.items()]
each_case = table(("path", "fields"), [pytest.param(p, f, id=f"{p} {n}") for p, n, f in CASES])


@each_case
@table("options", [{}, {"stream": True}, {"stream": True} | USAGE], ids=["buffered", "stream", "usage"])
def test_the_judge_finds_nothing(path: str, fields: dict[str, Any], options: dict[str, Any]) -> None:
    judged = judge(trace_of(path, **fields, **options))
    assert judged.findings == ()
    assert judged.missing == ()


@each_case
def test_a_stream_has_the_content_of_the_buffered_reply(path: str, fields: dict[str, Any]) -> None:
    reply = buffered(path, **fields)
    streamed = chunks(trace_of(path, **fields, stream=True, **USAGE))
    for choice in reply["choices"]:
        parts = [entry for chunk in streamed for entry in chunk["choices"] if entry["index"] == choice["index"]]
        streamed_text = "".join(part.get("delta", {}).get("content") or part.get("text", "") for part in parts)
        assert streamed_text == ((choice["message"]["content"] or "") if path == CHAT else choice["text"])
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        pieces = [call for part in parts for call in part.get("delta", {}).get("tool_calls", [])]
        buffered_calls = choice.get("message", {}).get("tool_calls", [])
        assert "".join(map(arguments, pieces)) == "".join(map(arguments, buffered_calls))
    assert streamed[-1]["usage"] == reply["usage"]


def arguments(call: dict[str, Any]) -> str:
    found: str = call["function"]["arguments"] if "function" in call else call["custom"]["input"]
    return found


@table(
    ("prompt", "answer"),
    [
        ("Hello", "Hello! How can I help you today?"),
        ("Say: hi there", "hi there"),
        ("Repeat exactly: a: b", "a: b"),
        ('Say: "x y"', "x y"),
        ('Please write "x y".', "x y"),
        ("Say: ", ""),
        ("Count from 1 to 4.", "1, 2, 3, 4"),
        ("An emoji, please", choices.EMOJI_TEXT),
        ("Tell me a long story", choices.LONG_TEXT),
    ],
)
@table("path", [CHAT, COMPLETIONS])
def test_the_prompt_selects_the_text(path: str, prompt: str, answer: str) -> None:
    assert text(path, say=prompt, max_tokens=2000) == answer


def test_counting_reaches_the_token_limit() -> None:
    reply = buffered(say="Count", max_tokens=600)
    assert reply["usage"]["completion_tokens"] == 600
    assert reply["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_token_limit_is_applied_and_is_the_finish_reason(name: str) -> None:
    limit: dict[str, Any] = {name: 2}
    reply = buffered(say="Say: one two three", **limit)
    assert reply["choices"][0]["message"]["content"] == "one two"
    assert reply["choices"][0]["finish_reason"] == "length"


def test_max_completion_tokens_takes_precedence() -> None:
    assert text(say="Say: one two three", max_tokens=1, max_completion_tokens=2) == "one two"


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_ends_at_the_context_length(stream: bool) -> None:
    trace = trace_of(CHAT, ReferenceServer(context=20), say="Count", stream=stream)
    assert b'"finish_reason":"length"' in trace.body
    assert judge(trace).findings == ()


@table(
    ("stop", "expected", "reason"),
    [
        ("two", "one ", "stop"),
        ("e tw", "on", "stop"),
        (["three", "two"], "one ", "stop"),
        (["e two three", "two"], "one ", "stop"),
        ("one", "", "stop"),
        ("three four", "one two three", "stop"),
        ([], "one two three", "stop"),
    ],
)
@table("path", [CHAT, COMPLETIONS])
def test_the_text_ends_exactly_before_a_stop_string(path: str, stop: object, expected: str, reason: str) -> None:
    reply = buffered(path, say="Say: one two three", stop=stop)
    assert text(path, say="Say: one two three", stop=stop) == expected
    assert reply["choices"][0]["finish_reason"] == reason


def test_a_stop_string_truncated_by_the_limit_is_text() -> None:
    reply = buffered(say="Say: one two three", stop="two three", max_tokens=2)
    assert (reply["choices"][0]["message"]["content"], reply["choices"][0]["finish_reason"]) == ("one two", "length")


def test_usage_covers_all_choices() -> None:
    one, three = (buffered(n=n, max_tokens=4)["usage"]["completion_tokens"] for n in (1, 3))
    assert (one, three) == (4, 12)


def test_log_probabilities_match_the_text() -> None:
    choice = buffered(say="emoji", logprobs=True, top_logprobs=3)["choices"][0]
    entries = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == choice["message"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == choice["message"]["content"]
    assert {len({top["token"] for top in entry["top_logprobs"]}) for entry in entries} == {3}
    assert buffered()["choices"][0]["logprobs"] is None


def test_a_reasoning_model_sends_and_counts_its_reasoning() -> None:
    reply = buffered(model="ideal-thinking")
    assert reply["choices"][0]["message"]["reasoning_content"] == choices.REASONING_TEXT
    reasoning_tokens = reply["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < reasoning_tokens < reply["usage"]["completion_tokens"]
    assert "reasoning_content" not in buffered()["choices"][0]["message"]


@table(
    ("fields", "expected"),
    [
        ({"say": "What is the weather in Paris?"}, [("get_weather", "Paris")]),
        (
            {"say": "Weather in Paris and in New York, in celsius"},
            [("get_weather", "Paris"), ("get_weather", "New York")],
        ),
        ({"say": "Weather in Paris and Rome", "parallel_tool_calls": False}, [("get_weather", "Paris")]),
        ({"say": "The time and the weather in Rome?"}, [("get_weather", "Rome"), ("clock", None)]),
        ({"say": "Use clock"}, [("clock", None)]),
        ({"say": "Hi"}, []),
        ({"say": "Hi", "tool_choice": "required"}, [("get_weather", "something")]),
        ({"say": "Weather in Rome", "tool_choice": NAMED_CHOICE}, [("clock", None)]),
        ({"say": "Weather in Rome", "tool_choice": "none"}, []),
        ({"say": "Do both, clock and clock", "tools": [CLOCK]}, [("clock", None), ("clock", None)]),
        ({"messages": TOOL_MESSAGES}, []),
        ({"messages": TOOL_MESSAGES, "tool_choice": "required"}, [("get_weather", "Paris")]),
    ],
)
def test_tools_are_called_if_the_prompt_mentions_them(fields: dict[str, Any], expected: list[tuple[str, Any]]) -> None:
    reply = calls(**{"tools": [WEATHER, CLOCK]} | fields)
    assert [(name, arguments.get("city")) for name, arguments in reply] == expected
    assert all(arguments == {} for name, arguments in reply if name == "clock")


def test_tool_calls_have_unique_ids_and_streamed_arguments() -> None:
    reference = ReferenceServer()
    fields = {"say": "Weather in Paris and in Rome", "tools": [WEATHER], "n": 2, "stream": True}
    received = [entry for _ in range(2) for entry in chunks(trace_of(CHAT, reference, **fields))]
    entries = [
        call for chunk in received for entry in chunk["choices"] for call in entry["delta"].get("tool_calls", [])
    ]
    ids = [entry["id"] for entry in entries if "id" in entry]
    assert len(set(ids)) == len(ids) == 8
    assert len(entries) > 3 * len(ids)


def test_tool_results_are_in_the_answer() -> None:
    second_result = {"role": "tool", "tool_call_id": "b", "content": "rain"}
    answer = text(messages=[*TOOL_MESSAGES, second_result], tools=[WEATHER])
    assert "17 degrees; rain" in answer


def test_a_json_answer_matches_its_schema() -> None:
    response_format = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON, "strict": True}}
    answer = json.loads(text(say="In a bad mood, 44 years", response_format=response_format))
    assert answer == {
        "name": "Hel",
        "age": 44,
        "mood": "bad",
        "tags": ["something", "something"],
        "home": {"street": "something"},
        "note": "something",
    }
    assert isinstance(json.loads(text(response_format={"type": "json_object"})), dict)


@table(
    ("schema", "value"),
    [
        ({}, "something"),
        (True, "something"),
        ({"type": "object"}, {}),
        ({"const": 5}, 5),
        ({"type": "null"}, None),
        ({"type": ["null"]}, None),
        ({"type": "boolean"}, True),
        ({"type": "integer"}, 1),
        ({"type": "integer", "maximum": -5}, -5),
        ({"type": "integer", "exclusiveMinimum": 7}, 8),
        ({"type": "integer", "exclusiveMaximum": -7}, -8),
        ({"type": "integer", "minimum": 7, "multipleOf": 5}, 10),
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63}, 1),
        ({"type": "number", "minimum": 2.5}, 2.5),
        ({"type": "string", "format": "date"}, "2025-01-31"),
        ({"type": "string", "minLength": 12}, "something..."),
        ({"type": "string", "maxLength": 4}, "some"),
        ({"items": {"type": "null"}}, [None]),
        ({"type": "array", "minItems": 3, "items": {"const": 1}}, [1, 1, 1]),
        ({"anyOf": [{"const": 1}, {"const": 2}]}, 1),
        ({"properties": {"a/b": {"$ref": "#/properties/c"}, "c": {"const": 1}}}, {"a/b": 1, "c": 1}),
        ({"properties": {"me": {"$ref": "#"}}}, {"me": {"me": {}}}),
    ],
)
def test_a_sample_matches_its_schema(schema: Any, value: object) -> None:  # noqa: ANN401 - any JSON
    assert SchemaSampler(schema).sample() == value


@table(
    "schema",
    [
        {"type": "strnig"},
        {"type": 5},
        {"$ref": "#/$defs/gone"},
        {"$ref": "http://example.org/"},
        {"$ref": "#"},
        {"properties": {"me": {"$ref": "#"}}, "required": ["me"]},
        {"type": "object", "properties": []},
        {"type": "array", "minItems": 10**9},
        {"type": "array", "minItems": -1},
        {"type": "string", "minLength": 10**9},
        {"type": "integer", "minimum": 2, "maximum": 1},
        {"type": "integer", "multipleOf": 0},
        {"type": "number", "minimum": 10**400},
        {"const": [[[[]]]], "type": 5, "$ref": 7},
        {"type": "array", "minItems": 100, "items": {"type": "array", "minItems": 1000}},
        {"items": 5},
    ],
)
def test_an_unsupported_schema_is_rejected(schema: dict[str, Any]) -> None:
    response_format = {"type": "json_schema", "json_schema": {"name": "p", "schema": schema}}
    trace = trace_of(CHAT, response_format=response_format, stream=True)
    assert trace.status == 400
    assert judge(trace).findings == ()


def test_choices_of_several_prompts_are_in_the_order_of_the_prompts() -> None:
    reply = buffered(COMPLETIONS, prompt=["Say: a", "Say: b"], n=2)
    assert [(entry["index"], entry["text"]) for entry in reply["choices"]] == [(0, "a"), (1, "a"), (2, "b"), (3, "b")]


def test_a_completion_has_16_tokens_by_default() -> None:
    assert buffered(COMPLETIONS, say="Count")["usage"]["completion_tokens"] == 16


def test_an_echo_precedes_the_text_and_counts_for_offsets() -> None:
    prompt = "Once upon a time"
    choice = buffered(COMPLETIONS, prompt=prompt, echo=True, logprobs=1)["choices"][0]
    assert choice["text"] == prompt + choices.text_for(prompt, "Hello! How can I help you today?")
    logprobs = choice["logprobs"]
    assert logprobs["text_offset"][0] == 0
    assert logprobs["token_logprobs"][0] is None
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)


INVALID_CHATS: dict[str, tuple[str, object]] = {
    "no messages": ("messages", {"messages": ...}),
    "messages null": ("messages", {"messages": None}),
    "messages empty": ("messages", {"messages": []}),
    "messages text": ("messages", {"messages": "Hi"}),
    "message text": ("messages[0]", {"messages": ["Hi"]}),
    "no role": ("messages[0].role", {"messages": [{"content": "Hi"}]}),
    "unknown role": ("messages[0].role", {"messages": [{"role": "wizard", "content": "Hi"}]}),
    "no content": ("messages[0].content", {"messages": [{"role": "user"}]}),
    "content number": ("messages[0].content", {"messages": [{"role": "user", "content": 5}]}),
    "content empty list": ("messages[0].content", {"messages": [{"role": "user", "content": []}]}),
    "assistant without anything": ("messages[0].content", {"messages": [{"role": "assistant", "content": None}]}),
    "no tool_call_id": ("messages[0].tool_call_id", {"messages": [{"role": "tool", "content": "x"}]}),
    "image": (
        "messages[0].content[0]",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
    ),
    "temperature text": ("temperature", {"temperature": "hot"}),
    "temperature 6": ("temperature", {"temperature": 6}),
    "temperature true": ("temperature", {"temperature": True}),
    "top_p": ("top_p", {"top_p": -0.1}),
    "max_tokens text": ("max_tokens", {"max_tokens": "five"}),
    "max_tokens 0": ("max_tokens", {"max_tokens": 0}),
    "max_completion_tokens": ("max_completion_tokens", {"max_completion_tokens": -1}),
    "n 0": ("n", {"n": 0}),
    "n 129": ("n", {"n": 129}),
    "stop number": ("stop", {"stop": 7}),
    "stop numbers": ("stop[0]", {"stop": [7]}),
    "stop empty": ("stop[0]", {"stop": ""}),
    "17 stops": ("stop", {"stop": list("abcdefghijklmnopq")}),
    "stream text": ("stream", {"stream": "yes"}),
    "stream_options alone": ("stream_options", {"stream": False, "stream_options": {"include_usage": True}}),
    "include_usage": ("stream_options.include_usage", {"stream_options": {"include_usage": 1}}),
    "tools object": ("tools", {"tools": WEATHER}),
    "tool without type": ("tools[0].type", {"tools": [{}]}),
    "tool without function": ("tools[0].function", {"tools": [{"type": "function"}]}),
    "tool without name": ("tools[0].function.name", {"tools": [{"type": "function", "function": {}}]}),
    "tool_choice word": ("tool_choice", {"tools": [WEATHER], "tool_choice": "maybe"}),
    "tool_choice unknown": ("tool_choice", {"tools": [WEATHER], "tool_choice": NAMED_CHOICE}),
    "tool_choice without tools": ("tool_choice", {"tool_choice": "required"}),
    "response_format text": ("response_format", {"response_format": "json"}),
    "response_format unknown": ("response_format.type", {"response_format": {"type": "xml"}}),
    "response_format bare": ("response_format.json_schema", {"response_format": {"type": "json_schema"}}),
    "logprobs number": ("logprobs", {"logprobs": 1}),
    "top_logprobs alone": ("top_logprobs", {"top_logprobs": 1}),
    "top_logprobs 999": ("top_logprobs", {"logprobs": True, "top_logprobs": 999}),
}
INVALID_COMPLETIONS: dict[str, tuple[str, object]] = {
    "no prompt": ("prompt", {"prompt": ...}),
    "prompt empty": ("prompt", {"prompt": []}),
    "prompt number": ("prompt", {"prompt": 5}),
    "prompt mixed": ("prompt[1]", {"prompt": ["a", 1]}),
    "prompts": ("prompt", {"prompt": ["a"] * 65, "n": 2}),
    "suffix": ("suffix", {"suffix": "the end"}),
    "logprobs 6": ("logprobs", {"logprobs": 6}),
    "logprobs true": ("logprobs", {"logprobs": True}),
    "best_of": ("best_of", {"n": 2, "best_of": 1}),
    "max_tokens": ("max_tokens", {"max_tokens": -1}),
}
INVALID = [(CHAT, *case) for case in INVALID_CHATS.values()] + [
    (COMPLETIONS, *case) for case in INVALID_COMPLETIONS.values()
]


@table(("path", "param", "fields"), INVALID, ids=[*INVALID_CHATS, *INVALID_COMPLETIONS])
def test_an_invalid_request_is_rejected_with_its_param(path: str, param: str, fields: dict[str, Any]) -> None:
    body = {key: value for key, value in (body_of(path, {"stream": True}) | fields).items() if value is not ...}
    reply = ReferenceServer().answer(http_request("POST", path, json.dumps(body)))
    assert reply.status == 400
    body_error = error(reply)
    assert (body_error["type"], body_error["param"]) == ("invalid_request_error", param)
    assert body_error["code"] is None or isinstance(body_error["code"], str)
    received = read_capture(with_raw_http(reply).body)
    trace = Trace(body=received.body, request=body, status=400, headers=received.headers, complete=True)
    assert judge(trace).findings == ()


@table("path", [CHAT, COMPLETIONS])
@table("body", ["", "{", "[]", '"x"', "null", "[" * 100_000, '{"a":' * 100_000, '{"n":NaN}'])
def test_an_invalid_body_is_rejected(path: str, body: str) -> None:
    reply = ReferenceServer().answer(http_request("POST", path, body))
    assert reply.status == 400
    assert error(reply)["type"] == "invalid_request_error"


def test_an_unknown_model_is_not_found() -> None:
    for reply in (
        ReferenceServer().answer(http_request("POST", CHAT, json.dumps(body_of(CHAT, {"model": "gone"})))),
        ReferenceServer().answer(http_request("GET", "/v1/models/gone")),
    ):
        assert (reply.status, error(reply)["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_prompt_beyond_the_context_is_rejected(path: str) -> None:
    reply = ReferenceServer(context=50).answer(
        http_request("POST", path, json.dumps(body_of(path, {"say": "word " * 60})))
    )
    assert (reply.status, error(reply)["code"]) == (400, "context_length_exceeded")


def test_models_are_listed_in_openais_format() -> None:
    reference = ReferenceServer(models=("a", "org/b c"))
    listed = json.loads(reference.answer(http_request("GET", "/v1/models?x=1")).body)
    assert listed["object"] == "list"
    assert [(model["id"], model["object"]) for model in listed["data"]] == [("a", "model"), ("org/b c", "model")]
    assert all(type(model["created"]) is int and model["owned_by"] for model in listed["data"])
    assert json.loads(reference.answer(http_request("GET", "/v1/models/org/b%20c")).body) == listed["data"][1]


@table(
    ("method", "path", "status", "allowed"),
    [
        ("GET", CHAT, 405, "POST, OPTIONS"),
        ("DELETE", "/v1/models", 405, "GET, HEAD, OPTIONS"),
        ("POST", "/v1/models/ideal", 405, "GET, HEAD, OPTIONS"),
        ("POST", "/v1/embeddings", 404, None),
        ("GET", "/", 404, None),
    ],
)
def test_unknown_paths_and_methods_are_rejected(method: str, path: str, status: int, allowed: str | None) -> None:
    reply = ReferenceServer().answer(http_request(method, path))
    assert (reply.status, reply.headers.get("Allow")) == (status, allowed)
    assert error(reply)["message"]


@table(
    ("headers", "status"),
    [({}, 401), ({"authorization": "Bearer no"}, 401), ({"authorization": "Bearer s3cret"}, 200)],
)
@table("path", ["/v1/models", "/metrics"])
def test_the_key_is_required(headers: dict[str, str], status: int, path: str) -> None:
    reference = ReferenceServer(key="s3cret")
    reply = reference.answer(http_request("GET", path, **headers))
    assert reply.status == status
    assert status == 200 or (error(reply)["code"], reply.headers["WWW-Authenticate"]) == ("invalid_api_key", "Bearer")
    assert b"s3cret" not in reply.body
    assert reference.answer(http_request("GET", "/health")).status == 200


def test_a_preflight_allows_all_requested_headers() -> None:
    names = "authorization, x-stainless-os,x y,\nevil"
    reply = ReferenceServer(key="k").answer(
        http_request("OPTIONS", CHAT, origin="http://a", access_control_request_headers=names)
    )
    assert (reply.status, reply.body) == (204, b"")
    assert reply.headers["Access-Control-Allow-Origin"] == "*"
    assert "POST" in reply.headers["Access-Control-Allow-Methods"]
    assert reply.headers["Access-Control-Allow-Headers"] == "authorization, x-stainless-os, evil"
    assert b"content-length" not in with_raw_http(reply).body.lower()
    assert ReferenceServer().answer(http_request("POST", CHAT)).headers["Access-Control-Allow-Origin"] == "*"


def test_head_has_the_content_length_of_get() -> None:
    head, get = (ReferenceServer().answer(http_request(method, "/v1/models")) for method in ("HEAD", "GET"))
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == str(len(get.body))


@pytest.mark.parametrize("stream", [True, False])
def test_there_is_a_delay_before_each_token(stream: bool) -> None:
    reference = ReferenceServer(gap_s=0.5)
    reply = reference.answer(
        http_request("POST", CHAT, json.dumps(body_of(CHAT, {"say": "Say: a b", "stream": stream, "n": 2})))
    )
    assert sum(piece.after_s for piece in reply.pieces) == 1.0
    assert reply.after_s == 0.0
    assert not stream or reply.pieces[0].after_s == 0.0


def test_a_long_delay_is_filled_with_keep_alive_comments() -> None:
    reply = ReferenceServer(gap_s=25).answer(
        http_request("POST", CHAT, json.dumps(body_of(CHAT, {"say": "Say: a", "stream": True})))
    )
    assert [piece.after_s for piece in reply.pieces] == [0, 10, 10, 5, 0, 0]
    assert reply.body.count(b": keep-alive\n\n") == 2


@table("value", ["", " ", "Hello  big\nworlds\n", choices.EMOJI_TEXT, choices.LONG_TEXT, "\u2028x"])
def test_tokens_concatenate_to_the_text(value: str) -> None:
    tokens = tokenize(value)
    assert "".join(tokens) == value
    assert count_tokens([value], 10**6) == len(tokens)
    for end in range(len(tokens)):
        assert tokenize("".join(tokens[:end])) == tokens[:end]


@table(
    ("value", "count", "expected"),
    [("Hello you", 1, "Hello"), ("Hello you", 5, "Hello you Hello you Hello"), (" a", 3, " a a a"), ("", 3, "")],
)
def test_a_text_is_repeated_to_a_length(value: str, count: int, expected: str) -> None:
    assert repeat_to_length(value, count) == expected


def test_the_gauge_counts_requests_in_progress() -> None:
    async def main() -> None:
        reference = ReferenceServer(gap_s=3600)
        server = MockServer(MockScript(), reference.answer, handles_all=True)
        async with await server.listen(), connect(server.port) as client:
            address = Address(port=server.port)

            async def gauge() -> bytes:
                return (await fetch_reply(address, "/metrics")).body.splitlines()[-1]

            assert await gauge() == b"llamacpp:requests_processing 0"
            client.send(body_of(CHAT, {"stream": True}))
            await client.reader.readuntil(b"\n\n")  # the first event has no delay
            assert await gauge() == b"llamacpp:requests_processing 1"
            client.close()
            await server.wait_until(lambda: any(entry.end == "left" for entry in server.requests))
            assert await gauge() == b"llamacpp:requests_processing 0"

    run(main())


def test_a_connection_is_kept_open_after_every_kind_of_reply() -> None:
    async def main() -> None:
        server = MockServer(MockScript(), ReferenceServer().answer, handles_all=True)
        async with await server.listen(), connect(server.port) as client:
            for request in (b"OPTIONS /v1/models", b"HEAD /v1/models", b"GET /v1/x", b"GET /counts"):
                client.writer.write(request + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            body = b'{"messages":[{"role":"user","content":"\xff"}]}'
            client.writer.write(b"POST %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
            client.send({"messages": [{"role": "user", "content": "Hi"}]}, "Connection: close")
            received = await client.read_rest()
            assert [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]] == [204, 200, 404, 200, 400, 200]
            assert (server.counts.connections, server.counts.requests) == (1, 6)
            assert [entry.method for entry in server.requests] == ["OPTIONS", "HEAD", "GET", "POST", "POST"]

    run(main())
