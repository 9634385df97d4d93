"""Reference server with Gemini's API: the judge finds no violation, and invalid requests get Google's errors."""

import json
from typing import Any

from tests.table import table
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply, with_raw_http
from welldone.mock.server import MockHttpRequest
from welldone.rules.judge import judge
from welldone.rules.trace import Trace, read_capture

Json = dict[str, Any]
WHOLE, STREAM = "/v1beta/models/ideal:generateContent", "/v1/models/ideal:streamGenerateContent"
EVENTS, COUNT = f"{STREAM}?alt=sse", "/v1/models/ideal:countTokens"
MODELS = ("ideal", "ideal-thinking")


def text(value: str, role: str = "user") -> Json:
    return {"role": role, "parts": [{"text": value}]}


HELLO: Json = {"contents": [text("Say hello.")]}
FUNCTION: Json = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS: Json = {"tools": [{"googleSearch": {}}, {"functionDeclarations": [FUNCTION, {"name": "get_time"}]}]}
WEATHER = text("What is the weather in Paris?")
CALL: Json = {"role": "model", "parts": [{"functionCall": {"name": "get_weather", "args": {}}}]}
RESULT: Json = {"parts": [{"functionResponse": {"name": "get_weather", "response": {"result": "Sunny"}}}]}


def choice(mode: str, *names: str) -> Json:
    config = {"mode": mode} | ({"allowedFunctionNames": list(names)} if names else {})
    return {"toolConfig": {"functionCallingConfig": config}}


def config(**members: object) -> Json:
    return {**HELLO, "generationConfig": members}


REQUESTS: dict[str, Json] = {
    "text": HELLO,
    "system": {**HELLO, "systemInstruction": {"parts": [{"text": "Be brief."}]}},
    "conversation": {"contents": [text("Hi"), text("Hello", "model"), text("emoji")]},
    "length": config(maxOutputTokens=2),
    "stop": {**config(stopSequences=["two"]), "contents": [text("Say: one two")]},
    "snake case": {**HELLO, "generation_config": {"max_output_tokens": 2, "candidate_count": 2}},
    "candidates": config(candidateCount=2),
    "logprobs": config(responseLogprobs=True, logprobs=2),
    "call": {"contents": [WEATHER], **TOOLS, **choice("ANY")},
    "named call": {"contents": [WEATHER], **TOOLS, **choice("ANY", "get_time")},
    "no call": {"contents": [WEATHER], **TOOLS, **choice("NONE")},
    "result": {"contents": [WEATHER, CALL, RESULT], **TOOLS},
    "json": config(responseMimeType="application/json"),
    "schema": config(responseMimeType="application/json", responseJsonSchema={"properties": {"age": {}}}),
    "thoughts": config(thinkingConfig={"includeThoughts": True}),
    "earlier thoughts": {
        "contents": [text("Hi"), {"role": "model", "parts": [{"text": "Hm", "thought": True}]}, WEATHER]
    },
}


def answer(path: str, request: object, model: str = "ideal", **headers: str) -> MockReply:
    body = request if isinstance(request, str) else json.dumps(request)
    http_request = MockHttpRequest("POST", path.replace("ideal", model), headers, body)
    return ReferenceServer(models=(model,)).answer(http_request)


def parts(body: bytes) -> list[Json]:
    elements = json.loads(body)
    found = elements if isinstance(elements, list) else [elements]
    return [part for one in found for part in one["candidates"][0]["content"]["parts"]]


@table("path", [WHOLE, STREAM, EVENTS])
@table("request_", REQUESTS.values(), ids=REQUESTS)
@table("model", MODELS)
def test_no_reply_violates_a_rule(path: str, request_: Json, model: str) -> None:
    reply = answer(path, request_, model)
    raw = b"".join(chunk.data for chunk in with_raw_http(reply).pieces)
    capture = read_capture(raw)
    trace = Trace(
        body=capture.body,
        endpoint="gemini",
        path=path,
        request=request_,
        status=capture.status,
        headers=capture.headers,
        complete=capture.complete,
        chunk_sizes=capture.chunk_sizes,
    )
    assert (reply.status, judge(trace).findings) == (200, ())


def test_a_function_is_called_and_its_result_is_read() -> None:
    (call,) = parts(answer(WHOLE, REQUESTS["call"]).body)
    assert (call["functionCall"]["name"], call["functionCall"]["args"]) == ("get_weather", {"city": "Paris"})
    assert parts(answer(WHOLE, REQUESTS["named call"]).body)[0]["functionCall"]["name"] == "get_time"
    assert "Sunny" in parts(answer(WHOLE, REQUESTS["result"]).body)[0]["text"]


def test_a_slow_stream_has_empty_lines_as_keep_alives() -> None:
    http_request = MockHttpRequest("POST", EVENTS, {}, json.dumps(HELLO))
    body = ReferenceServer(gap_s=25.0).answer(http_request).body
    assert body.startswith(b"\n\ndata: ")
    assert judge(Trace(body=body, endpoint="gemini", path=EVENTS)).findings == ()


def test_tokens_are_counted() -> None:
    counts = [
        json.loads(answer(COUNT, body).body)["totalTokens"]
        for body in (
            HELLO,
            {"contents": [text("Say hello, and more.")]},
            {"generateContentRequest": REQUESTS["system"]},
        )
    ]
    assert 0 < counts[0] < counts[1]
    assert counts[0] < counts[2]


WRONG: dict[str, tuple[object, int]] = {
    "no JSON": ("{", 400),
    "no contents": ({}, 400),
    "no parts": ({"contents": [{"role": "user"}]}, 400),
    "an image": ({"contents": [{"parts": [{"inlineData": {"data": "", "mimeType": "image/png"}}]}]}, 400),
    "a name twice": ({**HELLO, "toolConfig": {}, "tool_config": {}}, 400),
    "a limit of 0": (config(maxOutputTokens=0), 400),
    "functions as text": ({**HELLO, "tools": [{"functionDeclarations": "f"}]}, 400),
    "a function as text": ({**HELLO, "tools": [{"functionDeclarations": ["f"]}]}, 400),
}


@table("path", [WHOLE, STREAM, EVENTS])
@table(("request_", "status"), WRONG.values(), ids=WRONG)
def test_an_invalid_request_gets_googles_error(path: str, request_: object, status: int) -> None:
    reply = answer(path, request_)
    assert reply.status == status
    assert judge(Trace(body=reply.body, endpoint="gemini", path=path, status=reply.status)).findings == ()


@table(
    ("method", "path", "status"),
    [
        ("GET", WHOLE, 405),
        ("POST", "/v1/models/other:generateContent", 404),
        ("POST", "/v1beta/other", 404),
        ("GET", "/v1beta/models/ideal", 200),
        ("GET", "/v1beta/models", 200),
    ],
)
def test_paths_of_google(method: str, path: str, status: int) -> None:
    reply = ReferenceServer().answer(MockHttpRequest(method, path, {}, json.dumps(HELLO)))
    assert reply.status == status
    if status >= 400:
        assert judge(Trace(body=reply.body, endpoint="gemini", path=path, status=status)).findings == ()


@table(
    ("headers", "status"),
    [({"x-goog-api-key": "k"}, 200), ({"authorization": "Bearer k"}, 200), ({"x-api-key": "k"}, 401), ({}, 401)],
)
def test_the_key_is_in_googles_header(headers: dict[str, str], status: int) -> None:
    http_request = MockHttpRequest("POST", WHOLE, headers, json.dumps(HELLO))
    assert ReferenceServer(key="k").answer(http_request).status == status
