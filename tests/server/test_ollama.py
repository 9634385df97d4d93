"""Ollama's API."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.http.aio import run
from tests.server.requests.builders import CAPABILITIES, MODEL
from tests.server.running_gateway import gateway
from tests.server.running_server import DONE, HELLO, ROLE, STOP, USAGE, RecordedReply
from tests.table import table
from welldone.gateway.errors import ApiError
from welldone.mock.script import MockReply
from welldone.server.api.models import ollama_object
from welldone.server.requests.chat import read_chat
from welldone.server.requests.fields import rename_error_param
from welldone.server.requests.ollama import OLLAMA_PARAM_NAMES, read_ollama_chat, read_ollama_generate

WHOLE = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
PNG = "iVBORw0KGgo="


def test_a_model_with_an_odd_timestamp_is_listed() -> None:
    listed = [{"id": "old", "created": -5}, {"id": "new", "created": 10**30}]
    assert [ollama_object(one)["modified_at"] for one in listed] == ["1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]


@table(
    ("field", "name"),
    [
        ({"options": {"num_predict": "x"}}, "options.num_predict"),
        ({"options": {"temperature": "x"}}, "options.temperature"),
        ({"think": "x" * 999}, "think"),
        ({"format": {"type": 5}}, "format"),
    ],
)
def test_an_error_names_the_field_of_the_client(field: dict[str, Any], name: str) -> None:
    chat = read_ollama_chat({"model": "m", "messages": [{"role": "user", "content": "Hi"}], **field})
    with pytest.raises(ApiError) as caught:
        read_chat(chat, MODEL, CAPABILITIES)
    rename_error_param(caught.value, OLLAMA_PARAM_NAMES)
    assert f"'{name}'" in caught.value.message


def send(folder: Path, path: str, body: dict[str, Any] | None = None) -> tuple[RecordedReply, list[Any]]:
    """Return the response and the upstream's requests."""

    async def work() -> tuple[RecordedReply, list[Any]]:
        async with gateway(folder, [WHOLE], each={"models": ("m",)}) as server:
            response = await server.get(path) if body is None else await server.post(body, path)
            return response, [json.loads(one.body) for one in server.upstreams[0].requests if one.method == "POST"]

    return run(work())


def test_a_chat_streams_json_lines_by_default(tmp_path: Path) -> None:
    response, upstream_requests = send(
        tmp_path, "/api/chat", {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    )
    assert response.status == 200
    assert "application/x-ndjson" in response.head
    assert "X-Accel-Buffering: no" in response.head
    lines = [json.loads(line) for line in response.body.splitlines()]
    assert [line["message"]["content"] for line in lines] == ["Hello", ""]
    assert (lines[-1]["done_reason"], lines[-1]["prompt_eval_count"], lines[-1]["eval_count"]) == ("stop", 3, 1)
    assert 0 <= lines[-1]["total_duration"] < 60e9
    assert upstream_requests[0]["messages"] == [{"role": "user", "content": "Hi"}]


def test_generate_returns_a_whole_reply_without_stream(tmp_path: Path) -> None:
    response, upstream_requests = send(
        tmp_path, "/api/generate", {"model": "m", "prompt": "Hi", "system": "Be brief.", "stream": False}
    )
    assert response.json["response"] == "Hello"
    assert response.json["done"] is True
    assert [one["role"] for one in upstream_requests[0]["messages"]] == ["system", "user"]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_an_empty_request_loads_the_model(tmp_path: Path, path: str) -> None:
    response, upstream_requests = send(tmp_path, path, {"model": "m"})
    assert (response.json["done_reason"], upstream_requests) == ("load", [])


def test_models_and_version_are_listed(tmp_path: Path) -> None:
    tags, _ = send(tmp_path, "/api/tags")
    assert [one["name"] for one in tags.json["models"]] == ["m"]
    assert tags.json["models"][0]["modified_at"].endswith("Z")
    version, _ = send(tmp_path, "/api/version")
    assert version.json["version"]


@pytest.mark.parametrize(("body", "status"), [({"model": "x", "prompt": "a"}, 404), ({"model": "m", "raw": True}, 400)])
def test_errors_are_strings(tmp_path: Path, body: dict[str, Any], status: int) -> None:
    response, _ = send(tmp_path, "/api/generate", body)
    assert response.status == status
    assert isinstance(response.json["error"], str)


def test_options_become_fields_of_chat() -> None:
    options = {"num_predict": 5, "temperature": 0.5, "num_ctx": 9, "stop": ["x"]}
    chat = read_ollama_chat({"model": "m", "messages": [], "options": options, "think": False, "format": "json"})
    assert chat == {
        "model": "m",
        "stream": True,
        "messages": [],
        "max_tokens": 5,
        "temperature": 0.5,
        "stop": ["x"],
        "reasoning_effort": "none",
        "response_format": {"type": "json_object"},
    }


@pytest.mark.parametrize(("options", "most"), [({"num_predict": -2}, -1), ({"num_predict": 7}, 7), ({}, None)])
def test_num_predict_becomes_max_tokens(options: dict[str, Any], most: int | None) -> None:
    assert read_ollama_generate({"prompt": "a", "options": options}).get("max_tokens") == most


def test_format_becomes_response_format() -> None:
    form = read_ollama_generate({"prompt": "a", "format": {"type": "object"}, "think": "low"})
    assert form["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert form["reasoning_effort"] == "low"


def test_tool_calls_and_results_are_paired_by_order() -> None:
    calls = [{"function": {"name": name, "arguments": {"a": 1}}} for name in "fg"]
    messages = [
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": calls},
        {"role": "tool", "content": "1", "tool_name": "f"},
        {"role": "tool", "content": "2"},
        {"role": "tool", "content": "3"},
    ]
    translated = read_ollama_chat({"messages": messages, "tools": [{"type": "function"}]})
    assert [call["id"] for call in translated["messages"][0]["tool_calls"]] == ["call_1", "call_2"]
    assert translated["messages"][0]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert translated["messages"][0]["reasoning_content"] == "hm"
    assert [one["tool_call_id"] for one in translated["messages"][1:]] == ["call_1", "call_2", "call_0"]
    assert translated["tools"] == [{"type": "function"}]


@pytest.mark.parametrize(("image", "kind"), [(PNG, "png"), ("/9j/4AAQ", "jpeg"), ("R0lGODdh", "gif")])
def test_images_become_content_parts(image: str, kind: str) -> None:
    content = read_ollama_generate({"prompt": "What?", "images": [image]})["messages"][0]["content"]
    assert content[0]["image_url"]["url"] == f"data:image/{kind};base64,{image}"
    assert content[1] == {"type": "text", "text": "What?"}


@table(
    "body",
    [
        {"messages": ["x"]},
        {"messages": [{"role": "user", "content": 1}]},
        {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
        {"messages": [], "format": "xml"},
        {"messages": [], "stream": "yes"},
    ],
)
def test_invalid_requests_are_rejected(body: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        read_ollama_chat(body)
    assert caught.value.status == 400


@table("name", ["suffix", "template", "context", "raw"])
def test_unsupported_fields_are_rejected(name: str) -> None:
    with pytest.raises(ApiError, match=name):
        read_ollama_generate({"prompt": "a", name: [1]})


def test_an_unknown_path_is_a_404_in_the_format_of_ollama(tmp_path: Path) -> None:
    response, _ = send(tmp_path, "/api/ps")
    assert response.status == 404
    assert isinstance(response.json["error"], str)


def test_a_long_silence_does_not_end_a_stream(tmp_path: Path) -> None:
    slow = MockReply((ROLE, msgspec.structs.replace(HELLO, after_s=0.3), STOP, USAGE, DONE))

    async def work() -> RecordedReply:
        async with gateway(tmp_path, [slow], keep_alive_s=0.05, early_s=0.01) as server:
            return await server.post({"model": "m", "prompt": "Hi"}, "/api/generate")

    assert "Hello" in run(work()).body.decode()
