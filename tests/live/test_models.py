"""Which models there are: names, what is known of them, how they come and go, and engines that are commands."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.raw import LIMIT_S, STREAM, Json, ask, chat, complete
from tests.live.server import Running, serving
from tests.live.upstream import eventually
from welldone.config.builtin_model import DEFAULT_MODEL

pytestmark = pytest.mark.tier3

CONTEXT_NAMES = ("context_length", "context_window", "max_model_len", "max_context_length", "loaded_context_length")


@contextmanager
def configured(folder: Path, tables: dict[str, str], head: str = "") -> Iterator[Running]:
    """A server with these models, out of the config file in its folder."""
    text = head + "".join(f"\n[models.{name}]\n{table}\n" for name, table in tables.items())
    (folder / "welldone.toml").write_text(text)
    with serving([], folder=folder, is_awaited=False) as running:
        yield running


def listed(server: Running, name: str) -> Json:
    """One model, as the server lists it."""
    return ask(server, f"/v1/models/{name}").ok()


def until(server: Running, name: str, state: str) -> None:
    """Ask until the model is in that state. Each question takes its time, so nothing else need wait."""
    deadline = time.monotonic() + LIMIT_S
    while (found := listed(server, name)["status"]["value"]) != state:
        assert time.monotonic() < deadline, f"{name} is {found}, not {state}"


@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_a_model_is_listed_with_its_context_under_each_name(tiny_server: Running, prefix: str) -> None:
    page = ask(tiny_server, f"{prefix}/models").ok()
    assert page["object"] == "list"
    [model] = page["data"]
    assert ask(tiny_server, f"{prefix}/models/tiny").ok() == model
    assert (model["id"], model["object"], model["owned_by"]) == ("tiny", "model", "welldone")
    assert isinstance(model["created"], int)
    assert {model[name] for name in CONTEXT_NAMES} == {2048}
    assert model["meta"]["n_ctx"] == model["meta"]["n_ctx_train"] == 2048
    assert model["meta"]["n_vocab"] > 256
    assert model["capabilities"] == ["completion", "tools"]
    assert model["status"] == {"value": "loaded"}
    assert model["state"] == "loaded"


@pytest.mark.parametrize("name", ["other", "../tiny", "tiny/..", "%2e%2e", "tiny.gguf", "TINY"])
def test_a_model_that_is_not_there_is_not_found(tiny_server: Running, name: str) -> None:
    assert ask(tiny_server, f"/v1/models/{name}").error()["code"] == "model_not_found"
    reply = ask(tiny_server, "/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": "Hi"}]})
    assert reply.status == 404
    assert reply.error()["code"] == "model_not_found"
    assert reply.error()["param"] == "model"


def test_no_path_of_the_machine_is_told(tiny_server: Running, tiny_model: Path) -> None:
    assert str(tiny_model.parent).encode() not in ask(tiny_server, "/v1/models").trace.body


@STREAM
def test_a_model_answers_to_each_of_its_names(tiny_model: Path, tmp_path: Path, stream: bool) -> None:
    names = ["first", "second/with-slash", "third model"]
    with serving(["-m", str(tiny_model), "--alias", ",".join(names), "-t", "1"], model="first", folder=tmp_path) as one:
        for name in names:
            assert chat(one, "Hello", model=name, stream=stream, max_tokens=2).model == "first"
        assert listed(one, "second/with-slash")["aliases"] == names[1:]
        assert listed(one, "third%20model")["id"] == "first"


def test_the_server_alone_serves_the_built_in_model_with_tools(default_model: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / DEFAULT_MODEL.file_name).symlink_to(default_model)
    home = {"WELLDONE_HOME": str(tmp_path)}
    with serving([], key=None, environment=home, folder=tmp_path) as alone:
        said = chat(alone, "Who wrote Hamlet?", model="default", temperature=0, max_tokens=16)
        assert said.text
        assert said.model == DEFAULT_MODEL.name
        model = listed(alone, DEFAULT_MODEL.name)
        assert "tools" in model["capabilities"]
        assert model["context_length"] == 4096
        # The model writes the call by itself, as its template asks it to, or answers in words; it is never torn.
        tool = {"type": "function", "function": {"name": "get_time", "description": "Tells the time."}}
        free = chat(alone, "What time is it?", model="default", tools=[tool], stream=True, temperature=0, max_tokens=24)
        assert free.text or free.one.calls
        assert alone.end() == 0


def test_models_come_when_they_are_asked_for(tiny_model: Path, tiny_thinking_model: Path, tmp_path: Path) -> None:
    small = "[defaults]\nthreads = 1\nparallel = 1\n"
    tables = {"plain": f'file = "{tiny_model}"\naliases = ["p"]', "thinking": f'file = "{tiny_thinking_model}"'}
    with configured(tmp_path, tables, small) as server:
        assert [model["id"] for model in ask(server, "/v1/models").ok()["data"]] == ["plain", "thinking"]
        assert listed(server, "plain")["status"] == {"value": "unloaded"}
        eventually(lambda: listed(server, "plain").get("context_length") == 2048)  # its file is read meanwhile
        assert ask(server, "/health").ok() == {"status": "ok"}
        assert chat(server, "Hello", model="p", stream=True, max_tokens=4).model == "plain"
        assert listed(server, "plain")["context_length"] == 2048
        assert listed(server, "thinking")["status"] == {"value": "unloaded"}
        assert chat(server, "Hello", model="thinking", max_tokens=4).model == "thinking"
        reply = ask(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})
        assert reply.status == 400
        assert reply.error()["code"] == "missing_model"
        assert server.end() == 0


@STREAM
def test_a_model_that_is_idle_goes_and_comes_again(tiny_model: Path, tmp_path: Path, stream: bool) -> None:
    table = f'file = "{tiny_model}"\nthreads = 1\nidle_unload_s = 0.05'
    with configured(tmp_path, {"brief": table, "other": table}) as server:
        for _ in range(2):
            assert chat(server, "Hello", model="brief", stream=stream, max_tokens=4).one.finish == "length"
            until(server, "brief", "unloaded")


def test_a_model_makes_room_for_another(tiny_model: Path, tmp_path: Path) -> None:
    table = f'file = "{tiny_model}"\nthreads = 1'
    with configured(tmp_path, {"one": table, "two": table}, "[server]\nmax_loaded = 1\n") as server:
        for name, other in (("one", "two"), ("two", "one")):
            assert chat(server, "Hello", model=name, max_tokens=4).one.finish == "length"
            assert listed(server, name)["status"] == {"value": "loaded"}
            assert listed(server, other)["status"] == {"value": "unloaded"}


def test_each_model_has_its_own_defaults_and_context(tiny_model: Path, tmp_path: Path) -> None:
    table = f'file = "{tiny_model}"\nthreads = 1\n'
    calm = table + "ctx_size = 512\nparallel = 1\n[models.calm.defaults]\ntemperature = 0\nmax_tokens = 7"
    with configured(tmp_path, {"calm": calm, "wild": table + "[models.wild.defaults]\nmax_tokens = 9"}) as server:
        calm_answers = [chat(server, "Hello", model="calm", cache_prompt=False) for _ in range(2)]
        assert calm_answers[0].text == calm_answers[1].text
        assert calm_answers[0].counts[1] == 7
        assert chat(server, "Hello", model="calm", max_tokens=3).counts[1] == 3
        assert chat(server, "Hello", model="wild").counts[1] == 9
        assert complete(server, "Hello", model="wild").counts[1] == 9
        assert listed(server, "calm")["context_length"] == 512
        assert listed(server, "wild")["context_length"] == 2048


# Commands.


def chunk(delta: Json, finish: str | None = None, **fields: object) -> str:
    """One event of an engine."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return f"data: {json.dumps({**head, 'choices': [choice], **fields})}\n\n"


USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
RIGHT = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "Hel"}),
    chunk({"content": "lo"}),
    chunk({}, "stop"),
    f'data: {{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],'
    f'"usage":{json.dumps(USAGE)}}}\n\n',
    "data: [DONE]\n\n",
]
# The role on each chunk, an empty finish, usage on the last chunk, and no end.
ODD = [
    chunk({"role": "assistant", "content": "Hel"}, ""),
    chunk({"role": "assistant", "content": "lo"}, ""),
    chunk({"role": "assistant", "content": ""}, "stop", usage=USAGE),
]
# Usage first, pieces that are cut anywhere, and a wrong object.
TORN = list(
    "".join([chunk({"content": "Hello"}, usage=USAGE), chunk({}, "stop", object="x")]).replace("\n\n", "\r\n\r\n")
)


def command(folder: Path, name: str, pieces: Sequence[str]) -> str:
    """The table of a model that is a command, which says these pieces."""
    script = folder / f"{name}.json"
    script.write_text(json.dumps({"posts": [{"pieces": [{"text": piece} for piece in pieces]}]}))
    words = [sys.executable, "-m", "welldone.mock.server", "--port", "{port}", "--script", str(script)]
    return f"command = {json.dumps(words)}"


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose engines are commands: one right, two odd."""
    folder = tmp_path_factory.mktemp("commands")
    said = {"right": RIGHT, "odd": ODD, "torn": TORN}
    with configured(folder, {name: command(folder, name, pieces) for name, pieces in said.items()}) as server:
        yield server
        assert server.end() == 0


@STREAM
@pytest.mark.parametrize("name", ["right", "odd", "torn"])
def test_what_a_command_says_is_mended(commands: Running, name: str, stream: bool) -> None:
    said = chat(commands, "Hi", model=name, stream=stream)
    assert said.text == "Hello"
    assert said.one.finish == "stop"
    assert said.usage == USAGE
    assert said.model == name


def test_what_was_mended_is_counted_and_logged(commands: Running) -> None:
    seen = len(commands.log.all)
    chat(commands, "Hi", model="odd", stream=True)
    commands.log.wait(r"mended\S*delta-role-once", seen=seen)
    page = ask(commands, "/metrics").trace.body.decode()
    assert 'rule="delta-role-once"' in page


def test_a_right_command_needs_no_mending(commands: Running) -> None:
    seen = len(commands.log.all)
    said = chat(commands, "Hi", model="right", stream=True)
    line = commands.log.wait(said.reply.header("x-request-id") or "", seen=seen).string
    assert "mended" not in line
