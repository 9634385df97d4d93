"""Models: names, listing, metadata, loading and unloading, and engines that are commands."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.raw import LIMIT_S, STREAM, Json, chat, complete, fetch
from tests.support.server import Running, serving
from tests.support.upstream import eventually
from welldone.config.builtin_model import DEFAULT_MODEL

pytestmark = pytest.mark.tier3

CONTEXT_NAMES = ("context_length", "context_window", "max_model_len", "max_context_length", "loaded_context_length")


@contextmanager
def configured(folder: Path, tables: dict[str, str], head: str = "") -> Iterator[Running]:
    """Run a server with these models in its config file."""
    text = head + "".join(f"\n[models.{name}]\n{table}\n" for name, table in tables.items())
    (folder / "welldone.toml").write_text(text)
    with serving([], folder=folder, is_awaited=False) as running:
        yield running


def model_info(server: Running, name: str) -> Json:
    """The entry of a model in the model list."""
    return fetch(server, f"/v1/models/{name}").ok()


def wait_for_state(server: Running, name: str, state: str) -> None:
    """Poll until the model is in the state."""
    deadline = time.monotonic() + LIMIT_S
    while (actual := model_info(server, name)["status"]["value"]) != state:
        assert time.monotonic() < deadline, f"{name} is {actual}, not {state}"


@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_a_model_is_listed_with_its_context_length_in_all_common_fields(tiny_server: Running, prefix: str) -> None:
    page = fetch(tiny_server, f"{prefix}/models").ok()
    assert page["object"] == "list"
    [model] = page["data"]
    assert fetch(tiny_server, f"{prefix}/models/tiny").ok() == model
    assert (model["id"], model["object"], model["owned_by"]) == ("tiny", "model", "welldone")
    assert isinstance(model["created"], int)
    assert {model[name] for name in CONTEXT_NAMES} == {2048}
    assert model["meta"]["n_ctx"] == model["meta"]["n_ctx_train"] == 2048
    assert model["meta"]["n_vocab"] > 256
    assert model["capabilities"] == ["completion", "tools"]
    assert model["status"] == {"value": "loaded"}
    assert model["state"] == "loaded"


@pytest.mark.parametrize("name", ["other", "../tiny", "tiny/..", "%2e%2e", "tiny.gguf", "TINY"])
def test_an_unknown_model_is_a_404(tiny_server: Running, name: str) -> None:
    assert fetch(tiny_server, f"/v1/models/{name}").error()["code"] == "model_not_found"
    reply = fetch(tiny_server, "/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": "Hi"}]})
    assert reply.status == 404
    assert reply.error()["code"] == "model_not_found"
    assert reply.error()["param"] == "model"


def test_the_model_list_contains_no_file_path(tiny_server: Running, tiny_model: Path) -> None:
    assert str(tiny_model.parent).encode() not in fetch(tiny_server, "/v1/models").trace.body


@STREAM
def test_a_model_can_be_requested_by_each_alias(tiny_model: Path, tmp_path: Path, stream: bool) -> None:
    names = ["first", "second/with-slash", "third model"]
    with serving(["-m", str(tiny_model), "--alias", ",".join(names), "-t", "1"], model="first", folder=tmp_path) as one:
        for name in names:
            assert chat(one, "Hello", model=name, stream=stream, max_tokens=2).model == "first"
        assert model_info(one, "second/with-slash")["aliases"] == names[1:]
        assert model_info(one, "third%20model")["id"] == "first"


def test_a_server_without_options_serves_the_built_in_model_with_tools(default_model: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / DEFAULT_MODEL.file_name).symlink_to(default_model)
    home = {"WELLDONE_HOME": str(tmp_path)}
    with serving([], key=None, environment=home, folder=tmp_path) as server:
        answer = chat(server, "Who wrote Hamlet?", model="default", temperature=0, max_tokens=16)
        assert answer.text
        assert answer.model == DEFAULT_MODEL.name
        model = model_info(server, DEFAULT_MODEL.name)
        assert "tools" in model["capabilities"]
        assert model["context_length"] == 4096
        # The small model may call the tool or answer in text; the reply must be complete in both cases.
        tool = {"type": "function", "function": {"name": "get_time", "description": "Tells the time."}}
        answer = chat(
            server, "What time is it?", model="default", tools=[tool], stream=True, temperature=0, max_tokens=24
        )
        assert answer.text or answer.choice.calls
        assert server.end() == 0


def test_models_are_loaded_on_the_first_request(tiny_model: Path, tiny_thinking_model: Path, tmp_path: Path) -> None:
    defaults = "[defaults]\nthreads = 1\nparallel = 1\n"
    tables = {"plain": f'file = "{tiny_model}"\naliases = ["p"]', "thinking": f'file = "{tiny_thinking_model}"'}
    with configured(tmp_path, tables, defaults) as server:
        assert [model["id"] for model in fetch(server, "/v1/models").ok()["data"]] == ["plain", "thinking"]
        assert model_info(server, "plain")["status"] == {"value": "unloaded"}
        # The metadata of the file is read in the background.
        eventually(lambda: model_info(server, "plain").get("context_length") == 2048)
        assert fetch(server, "/health").ok() == {"status": "ok"}
        assert chat(server, "Hello", model="p", stream=True, max_tokens=4).model == "plain"
        assert model_info(server, "plain")["context_length"] == 2048
        assert model_info(server, "thinking")["status"] == {"value": "unloaded"}
        assert chat(server, "Hello", model="thinking", max_tokens=4).model == "thinking"
        reply = fetch(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})
        assert reply.status == 400
        assert reply.error()["code"] == "missing_model"
        assert server.end() == 0


@STREAM
def test_an_idle_model_is_unloaded_and_loaded_again(tiny_model: Path, tmp_path: Path, stream: bool) -> None:
    table = f'file = "{tiny_model}"\nthreads = 1\nidle_unload_s = 0.05'
    with configured(tmp_path, {"brief": table, "other": table}) as server:
        for _ in range(2):
            assert chat(server, "Hello", model="brief", stream=stream, max_tokens=4).choice.finish == "length"
            wait_for_state(server, "brief", "unloaded")


def test_loading_a_model_unloads_another_at_the_limit(tiny_model: Path, tmp_path: Path) -> None:
    table = f'file = "{tiny_model}"\nthreads = 1'
    with configured(tmp_path, {"one": table, "two": table}, "[server]\nmax_loaded = 1\n") as server:
        for name, other in (("one", "two"), ("two", "one")):
            assert chat(server, "Hello", model=name, max_tokens=4).choice.finish == "length"
            assert model_info(server, name)["status"] == {"value": "loaded"}
            assert model_info(server, other)["status"] == {"value": "unloaded"}


def test_each_model_has_its_own_defaults_and_context_length(tiny_model: Path, tmp_path: Path) -> None:
    table = f'file = "{tiny_model}"\nthreads = 1\n'
    greedy = table + "ctx_size = 512\nparallel = 1\n[models.greedy.defaults]\ntemperature = 0\nmax_tokens = 7"
    with configured(tmp_path, {"greedy": greedy, "other": table + "[models.other.defaults]\nmax_tokens = 9"}) as server:
        greedy_answers = [chat(server, "Hello", model="greedy", cache_prompt=False) for _ in range(2)]
        assert greedy_answers[0].text == greedy_answers[1].text
        assert greedy_answers[0].counts[1] == 7
        assert chat(server, "Hello", model="greedy", max_tokens=3).counts[1] == 3
        assert chat(server, "Hello", model="other").counts[1] == 9
        assert complete(server, "Hello", model="other").counts[1] == 9
        assert model_info(server, "greedy")["context_length"] == 512
        assert model_info(server, "other")["context_length"] == 2048


# Engines that are commands.


def chunk(delta: Json, finish: str | None = None, **fields: object) -> str:
    """One SSE frame of an engine."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    envelope = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return f"data: {json.dumps({**envelope, 'choices': [choice], **fields})}\n\n"


USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
CORRECT = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "Hel"}),
    chunk({"content": "lo"}),
    chunk({}, "stop"),
    f'data: {{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],'
    f'"usage":{json.dumps(USAGE)}}}\n\n',
    "data: [DONE]\n\n",
]
# The role in each chunk, an empty finish_reason, usage in the last chunk, and no [DONE].
ODD = [
    chunk({"role": "assistant", "content": "Hel"}, ""),
    chunk({"role": "assistant", "content": "lo"}, ""),
    chunk({"role": "assistant", "content": ""}, "stop", usage=USAGE),
]
# Usage in the first chunk, one character per write, CRLF, and a wrong object field.
FRAGMENTED = list(
    "".join([chunk({"content": "Hello"}, usage=USAGE), chunk({}, "stop", object="x")]).replace("\n\n", "\r\n\r\n")
)


def command(folder: Path, name: str, pieces: Sequence[str]) -> str:
    """The config table of a command engine that sends these pieces."""
    script = folder / f"{name}.json"
    script.write_text(json.dumps({"posts": [{"pieces": [{"text": piece} for piece in pieces]}]}))
    arguments = [sys.executable, "-m", "welldone.mock.server", "--port", "{port}", "--script", str(script)]
    return f"command = {json.dumps(arguments)}"


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with command engines: one correct, two with deviations."""
    folder = tmp_path_factory.mktemp("commands")
    scripts = {"correct": CORRECT, "odd": ODD, "fragmented": FRAGMENTED}
    with configured(folder, {name: command(folder, name, pieces) for name, pieces in scripts.items()}) as server:
        yield server
        assert server.end() == 0


@STREAM
@pytest.mark.parametrize("name", ["correct", "odd", "fragmented"])
def test_deviations_of_a_command_engine_are_repaired(commands: Running, name: str, stream: bool) -> None:
    answer = chat(commands, "Hi", model=name, stream=stream)
    assert answer.text == "Hello"
    assert answer.choice.finish == "stop"
    assert answer.usage == USAGE
    assert answer.model == name


def test_repairs_are_counted_and_logged(commands: Running) -> None:
    seen = len(commands.log.all)
    chat(commands, "Hi", model="odd", stream=True)
    commands.log.wait(r"repaired\S*delta-role-once", seen=seen)
    page = fetch(commands, "/metrics").trace.body.decode()
    assert 'rule="delta-role-once"' in page


def test_a_correct_engine_needs_no_repair(commands: Running) -> None:
    seen = len(commands.log.all)
    answer = chat(commands, "Hi", model="correct", stream=True)
    line = commands.log.wait(answer.reply.header("x-request-id") or "", seen=seen).string
    assert "repaired" not in line
