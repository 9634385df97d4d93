"""Text that is the JSON of a tool call: models of the built-in engine, and upstreams."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models import tiny
from tests.support.raw import STREAM, chat, fetch
from tests.support.server import Running, serving
from tests.support.upstream import Upstream, gateway, upstream
from welldone.mock.script import CHUNK_TEMPLATE, HELLO_REPLY, MockChunk, MockReply

PIECES = ("```json\n", '{"name": "get_time"', ', "arguments": ', '{"zone": "UTC"}', "}\n```")
TEXT = "".join(PIECES)
PARAMETERS = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]}
FUNCTION = {"name": "get_time", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
FIELDS: dict[str, Any] = {"tools": TOOLS, "max_tokens": 20}
CALLED = [("get_time", '{"zone": "UTC"}')]


@pytest.fixture(scope="module")
def reciting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Models that write a call as text; the setting or the name of the model tells what becomes of it."""
    folder = tmp_path_factory.mktemp("reciting")
    names = {"coder": ("Qwen2.5 Coder 1.5B Instruct", ""), "other": ("tiny", "")}
    names |= {"on": ("tiny", "json_tool_calls = true"), "off": ("qwen2.5-coder", 'json_tool_calls = "off"')}
    tables = ["[defaults]\nthreads = 1\nctx_size = 2048\nparallel = 2"]
    for model, (name, setting) in names.items():
        file = tiny.reciting_model(name, *PIECES).write(folder / f"{model}.gguf")
        tables.append(f'[models.{model}]\nfile = "{file}"\n{setting}')
    (folder / "welldone.toml").write_text("\n".join(tables))
    with serving([], folder=folder, is_awaited=False) as running:
        yield running
        assert running.end() == 0


@STREAM
@pytest.mark.parametrize(("model", "is_converted"), [("coder", True), ("on", True), ("other", False), ("off", False)])
def test_a_local_model_converts_by_its_setting_or_its_name(
    reciting: Running, model: str, is_converted: bool, stream: bool
) -> None:
    answer = chat(reciting, "Hello", model=model, stream=stream, n=2, **FIELDS)
    for choice in answer.choices:
        if is_converted:
            assert (choice.text, choice.calls, choice.finish) == ("", CALLED, "tool_calls")
        else:
            assert (choice.text, choice.calls, choice.finish) == (TEXT, [], "stop")
    assert answer.counts[1] == 2 * (len(PIECES) + 1)
    plain = chat(reciting, "Hello", model=model, stream=stream, max_tokens=20)
    assert (plain.text, plain.choice.finish) == (TEXT, "stop")


def test_other_dialects_of_a_local_model_get_the_call(reciting: Running) -> None:
    tool = {"name": "get_time", "input_schema": PARAMETERS}
    messages = [{"role": "user", "content": "Hello"}]
    message = fetch(
        reciting, "/v1/messages", {"model": "coder", "max_tokens": 20, "messages": messages, "tools": [tool]}
    ).ok()
    assert [(block["name"], block["input"]) for block in message["content"]] == [("get_time", {"zone": "UTC"})]
    assert message["stop_reason"] == "tool_use"
    fields = {"model": "coder", "input": "Hello", "tools": [{"type": "function", **FUNCTION}]}
    (item,) = fetch(reciting, "/v1/responses", fields).ok()["output"]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", *CALLED[0])


@pytest.fixture(scope="module")
def printing_upstream() -> Iterator[Upstream]:
    role, _, stop, done = HELLO_REPLY.pieces
    chunks = [MockChunk(CHUNK_TEMPLATE % (json.dumps({"content": piece}), "null")) for piece in PIECES]
    counts = {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}
    usage = MockChunk(f"data: {json.dumps({'choices': [], 'usage': counts})}\n\n")
    with upstream(lambda _: MockReply((role, *chunks, stop, usage, done))) as running:
        yield running


@pytest.mark.parametrize("is_set", [False, True])
def test_an_upstream_converts_only_if_it_is_set(printing_upstream: Upstream, tmp_path: Path, is_set: bool) -> None:
    each = {"json_tool_calls": True} if is_set else {}
    with gateway(tmp_path, printing_upstream.url, each=each) as running:
        for stream in (False, True):
            fields = FIELDS | {"model": "scripted", "stream": stream}
            answer = chat(running, "Hello", **fields)
            expected = ("", CALLED, "tool_calls") if is_set else (TEXT, [], "stop")
            assert (answer.text, answer.choice.calls, answer.choice.finish) == expected
            assert chat(running, "Hello", **fields, response_format={"type": "json_object"}).text == TEXT
        assert running.end() == 0
        assert sum("converted_calls=1" in line for line in running.log.all) == (2 if is_set else 0)
