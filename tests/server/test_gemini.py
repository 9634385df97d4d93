"""Google's API."""

import json
from pathlib import Path
from typing import Any

from tests.http.aio import run
from tests.server.running_gateway import gateway
from tests.server.running_server import DONE, HELLO, ROLE, STOP, USAGE, RecordedReply, json_error
from tests.table import table
from welldone.mock.script import MockChunk, MockReply
from welldone.server.api.models import gemini_object

WHOLE = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
BROKEN = MockReply((ROLE, HELLO, MockChunk('data: {"error":{"message":"no card","code":503}}\n\n')))
BODY: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
KEY = "wd-test-key-0123456789"


def send(
    folder: Path,
    path: str,
    body: dict[str, Any] | None = None,
    *,
    reply: MockReply = WHOLE,
    headers: str = "",
    keys: tuple[str, ...] = (),
    **settings: Any,  # noqa: ANN401 - fields of ServeSettings
) -> tuple[RecordedReply, list[Any]]:
    """Return the response and the upstream's requests."""

    async def work() -> tuple[RecordedReply, list[Any]]:
        async with gateway(folder, [reply], each={"models": ("m", "org/m:8b")}, keys=keys, **settings) as server:
            response = await server.get(path, headers) if body is None else await server.post(body, path, headers)
            return response, [json.loads(one.body) for one in server.upstreams[0].requests if one.method == "POST"]

    return run(work())


@table(
    "path", ["/v1beta/models/m", "/v1/models/m", "/models/m", "/v1beta/models/org/m:8b", "/v1beta/models/org%2Fm:8b"]
)
def test_content_is_generated(tmp_path: Path, path: str) -> None:
    response, requests = send(tmp_path, f"{path}:generateContent", BODY)
    assert response.status == 200
    (candidate,) = response.json["candidates"]
    assert candidate == {
        "content": {"parts": [{"text": "Hello"}], "role": "model"},
        "finishReason": "STOP",
        "index": 0,
    }
    assert response.json["usageMetadata"]["totalTokenCount"] == 4
    assert requests[0]["messages"] == [{"role": "user", "content": "Hi"}]


def texts(elements: list[dict[str, Any]]) -> list[str]:
    return [element["candidates"][0]["content"]["parts"][0]["text"] for element in elements]


def test_a_stream_is_an_array_or_events(tmp_path: Path) -> None:
    array, requests = send(tmp_path, "/v1beta/models/m:streamGenerateContent", BODY)
    assert "application/json" in array.head
    assert "X-Accel-Buffering" in array.head
    assert texts(array.json) == ["Hello", ""]
    assert requests[0]["stream"] is True
    events, _ = send(tmp_path, "/v1beta/models/m:streamGenerateContent?alt=sse", BODY)
    assert "text/event-stream" in events.head
    frames = events.body.decode().split("\n\n")
    assert frames.pop() == ""
    assert texts([json.loads(frame.removeprefix("data: ")) for frame in frames]) == ["Hello", ""]


def test_a_failure_after_the_start_is_the_last_element(tmp_path: Path) -> None:
    path = "/v1beta/models/m:streamGenerateContent"
    array, _ = send(tmp_path, path, BODY, reply=BROKEN, early_s=0.0)
    assert array.status == 200
    assert [next(iter(element)) for element in array.json] == ["candidates", "error"]
    assert array.json[-1]["error"]["status"] == "UNAVAILABLE"


@table(
    ("path", "body", "status", "word", "field"),
    [
        ("/v1beta/models/none:generateContent", BODY, 404, "NOT_FOUND", "model"),
        ("/v1/models/m:generateContent", {}, 400, "INVALID_ARGUMENT", "contents"),
        ("/v1beta/models/m:streamGenerateContent?alt=xml", BODY, 400, "INVALID_ARGUMENT", "alt"),
        (
            "/v1beta/models/m:generateContent",
            {**BODY, "generationConfig": {"maxOutputTokens": 0}},
            400,
            "INVALID_ARGUMENT",
            "generationConfig.maxOutputTokens",
        ),
    ],
)
def test_an_error_has_googles_format(
    tmp_path: Path, path: str, body: dict[str, Any], status: int, word: str, field: str
) -> None:
    response, _ = send(tmp_path, path, body)
    error = response.json["error"]
    assert (response.status, error["code"], error["status"]) == (status, status, word)
    assert error["details"][0]["fieldViolations"][0]["field"] == field


def test_an_error_of_the_upstream_has_googles_format(tmp_path: Path) -> None:
    reply = json_error(429, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}})
    response, _ = send(tmp_path, "/v1beta/models/m:generateContent", BODY, reply=reply)
    assert (response.status, response.json["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")


@table(("path", "headers"), [("/v1beta/models", ""), ("/v1/models", f"x-goog-api-key: {KEY}\r\n")])
def test_models_are_listed_in_googles_format(tmp_path: Path, path: str, headers: str) -> None:
    response, _ = send(tmp_path, path, headers=headers)
    assert [model["name"] for model in response.json["models"]] == ["models/m", "models/org/m:8b"]
    one, _ = send(tmp_path, f"{path}/m", headers=headers)
    assert one.json["name"] == "models/m"
    assert "generateContent" in one.json["supportedGenerationMethods"]


def test_a_model_has_its_token_limits() -> None:
    found = gemini_object({"id": "m", "max_model_len": 4096})
    assert (found["inputTokenLimit"], found["outputTokenLimit"]) == (4096, 4096)


@table(
    ("path", "headers", "status"),
    [
        ("/v1beta/models/m:generateContent", "", 401),
        ("/v1beta/models/m:generateContent", f"x-goog-api-key: {KEY}\r\n", 200),
        (f"/v1beta/models/m:generateContent?key={KEY}", "", 200),
        (f"/v1/models/m:generateContent?key={KEY}", "", 200),
        ("/v1beta/models/m:generateContent?key=wrong-key-0123", "", 401),
        (f"/v1beta/models/m:generateContent?key={KEY}", "x-goog-api-key: wrong-key-0123\r\n", 400),
        (f"/v1/messages?key={KEY}", "", 401),
    ],
)
def test_a_key_is_a_header_or_in_the_query(tmp_path: Path, path: str, headers: str, status: int) -> None:
    response, _ = send(tmp_path, path, BODY, headers=headers, keys=(KEY,))
    assert response.status == status
    assert KEY not in response.raw.decode()
    assert status == 200 or path.startswith("/v1/messages") or response.json["error"]["code"] == status


def test_the_report_names_fields_without_effect(tmp_path: Path) -> None:
    body = {**BODY, "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]}
    response, _ = send(tmp_path, "/v1beta/models/m:generateContent", body, headers="x-welldone-report: 1\r\n")
    assert "x-welldone-ignored-fields: safetySettings" in response.head


def test_tools_of_a_server_are_ignored_if_so_configured(tmp_path: Path) -> None:
    body = {**BODY, "tools": [{"googleSearch": {}}]}
    response, requests = send(tmp_path, "/v1beta/models/m:generateContent", body, unknown_tools="ignore")
    assert response.status == 200
    assert "tools" not in requests[0]


def test_tokens_are_not_counted_by_an_upstream_that_cannot(tmp_path: Path) -> None:
    response, _ = send(tmp_path, "/v1beta/models/m:countTokens", BODY)
    assert (response.status, response.json["error"]["status"]) == (404, "NOT_FOUND")
