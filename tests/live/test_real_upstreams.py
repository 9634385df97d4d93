"""Real servers behind the gateway: llama.cpp's own, welldone's, and a gateway behind a gateway. No answer is wrong."""

import json
import os
import re
import select
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from tests.live.faults import PROCESSING, broken_off, metric, request, until
from tests.live.raw import CHAT, STREAM, Choice, Json, Line, ask, chat, complete, judged
from tests.live.server import KEY, LIMIT_S, Running, serving
from tests.models.engine import CHILD
from welldone.protocol.catalog.enc import NO_REPLACEMENT_CHAR

pytestmark = pytest.mark.tier3

LONG = 1500
"""Tokens of an answer that is not over soon."""
SAME: dict[str, Any] = {"temperature": 0, "seed": 1, "max_tokens": 24}
"""What makes two answers the same."""
DAYS: Json = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["days"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": DAYS}} for name in ("get_weather", "get_time")]
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": DAYS}}


class Llama:
    """llama.cpp's own server, with nothing of ours around it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}/v1"

    @property
    def model(self) -> str:
        """What it calls its model: the path of its file."""
        name: str = json.loads(self._get("/v1/models"))["data"][0]["id"]
        return name

    def until(self, *, is_working: bool) -> None:
        """Ask until it works on something, or on nothing: each question takes its time, so nothing else need wait."""
        deadline = time.monotonic() + LIMIT_S
        while bool(re.search(rf"^{PROCESSING} [1-9]", self._get("/metrics"), re.MULTILINE)) != is_working:
            assert time.monotonic() < deadline

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=LIMIT_S) as reply:
            text: str = reply.read().decode()
        return text


@contextmanager
def llama_cpp(model: Path, log: Path, **params: object) -> Iterator[Llama]:
    """It runs for as long as the `with` block lasts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"model": str(model), "socket": "127.0.0.1", "port": port}
    asked = {"n_parallel": 2, "n_ctx": 4096, "use_jinja": True, "ui": False, "endpoint_metrics": True, **params}
    words = [sys.executable, str(CHILD), json.dumps({**place, **asked})]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},  # threads that spin are slow on a busy machine
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            assert _line(child.stdout) == b"ready\n", log.read_text(errors="replace")[-4000:]
            yield Llama(port)
        finally:
            child.stdin.close()  # it ends with its input
            try:
                child.wait(LIMIT_S)
            finally:
                child.kill()


def _line(stream: IO[bytes]) -> bytes:
    readable, _, _ = select.select([stream], [], [], LIMIT_S)
    return stream.readline() if readable else b""


@contextmanager
def gateway(url: str, model: str, *options: str) -> Iterator[Running]:
    """A gateway in front of one server, started as users start it."""
    words = ["--upstream", url, "--upstream-key", KEY, *options]
    with serving(words, model=model, is_awaited=False) as running:
        yield running
        assert running.end() == 0


@pytest.fixture(scope="module")
def llama(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    with llama_cpp(tiny_model, tmp_path_factory.mktemp("llama") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def first(llama: Llama) -> Iterator[Running]:
    """A gateway in front of llama.cpp."""
    with gateway(llama.url, llama.model) as running:
        yield running


@pytest.fixture(scope="module")
def second(first: Running) -> Iterator[Running]:
    """A gateway in front of that one."""
    with gateway(first.url, first.model) as running:
        yield running


@pytest.fixture(scope="module")
def before_welldone(tiny_server: Running) -> Iterator[Running]:
    """A gateway in front of welldone with a model of its own."""
    with gateway(tiny_server.url, tiny_server.model) as running:
        yield running


@pytest.fixture(scope="module", params=["first", "second", "before_welldone"])
def front(request: pytest.FixtureRequest) -> Running:
    """Each of them."""
    found: Running = request.getfixturevalue(request.param)
    return found


def test_a_stream_says_what_a_whole_answer_says(front: Running) -> None:
    streamed, whole = (chat(front, "Hello", stream=stream, **SAME) for stream in (True, False))
    assert streamed == whole
    assert (whole.one.finish, whole.counts[1]) == ("length", 24)


@STREAM
def test_several_choices_are_made(front: Running, stream: bool) -> None:
    said = chat(front, "Hello", stream=stream, n=2, seed=1, max_tokens=16)
    assert [choice.finish for choice in said.choices] == ["length", "length"]
    assert said.counts[1] == 32


@STREAM
def test_log_probabilities_pass(front: Running, stream: bool) -> None:
    said = chat(front, "Hello", stream=stream, logprobs=True, top_logprobs=2, **SAME)
    assert said.one.tokens
    assert all(len(token["top_logprobs"]) == 2 for token in said.one.tokens)


@STREAM
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_time"}}])
def test_a_call_that_is_required_is_made(before_welldone: Running, stream: bool, choice: object) -> None:
    said = chat(before_welldone, "Hello", stream=stream, tools=TOOLS, tool_choice=choice, seed=1, max_tokens=200)
    assert len(check_calls(said.one)) == 1
    assert said.one.finish == ("tool_calls" if choice == "required" else "stop")


def check_calls(choice: Choice) -> list[str]:
    """The names of the calls, each of which has arguments that fit."""
    for name, arguments in choice.calls:
        assert name in ("get_weather", "get_time")
        assert 1 <= json.loads(arguments)["days"] <= 7
    return [name for name, _ in choice.calls]


@STREAM
def test_calls_that_llama_cpp_hears_pass(tiny_calling_model: Path, tmp_path: Path, stream: bool) -> None:
    with llama_cpp(tiny_calling_model, tmp_path / "log") as server, gateway(server.url, server.model) as front:
        asked: dict[str, Any] = {"stream": stream, "tools": TOOLS, "max_tokens": 1500}
        answers = [chat(front, "Hello", seed=seed, **asked).one for seed in range(4)]
        called = [choice for choice in answers if choice.finish == "tool_calls"]
        assert called
        assert all(check_calls(choice) for choice in called)
        assert not any(choice.calls for choice in answers if choice.finish == "stop")


@STREAM
def test_an_answer_by_a_schema_is_json(front: Running, stream: bool) -> None:
    said = chat(front, "Hello", stream=stream, response_format=JSON_SCHEMA, seed=1, max_tokens=200)
    assert 1 <= json.loads(said.text)["days"] <= 7


def test_completions_pass(front: Running) -> None:
    streamed, whole = (complete(front, ["One", "Two"], stream=stream, **SAME) for stream in (True, False))
    assert streamed == whole
    assert len(whole.choices) == 2
    assert whole.choices[0].text != whole.choices[1].text


@STREAM
def test_log_probabilities_of_completions_pass(front: Running, stream: bool) -> None:
    said = complete(front, "One", stream=stream, logprobs=2, **SAME)
    assert len(said.one.logprobs["tokens"]) == len(said.one.logprobs["token_logprobs"]) > 0


@STREAM
def test_a_prompt_that_is_too_long_is_told_in_the_words_of_openai(front: Running, stream: bool) -> None:
    reply = ask(front, CHAT, request(front, "one two " * 5000, stream=stream))
    assert (reply.status, reply.error()["code"]) == (400, "context_length_exceeded")


@STREAM
def test_who_leaves_ends_the_work_behind_all_gateways(second: Running, llama: Llama, stream: bool) -> None:
    body = request(second, max_tokens=LONG, stream=stream)
    with Line(second, CHAT, body) as line:
        if stream:
            line.wait(rb'"content":"[^"]')
        else:
            llama.until(is_working=True)
    llama.until(is_working=False)
    until(second, "welldone_upstream_running", 0)
    assert judged(ask(second, CHAT, {**body, "max_tokens": 4})).one.finish == "length"


def repairs(server: Running) -> set[str]:
    """The rules that were broken, but for characters that random weights leave without their end."""
    page = ask(server, "/metrics").trace.body.decode()
    rules = re.findall(r'^welldone_repairs_total\{rule="([^"]*)"', page, re.MULTILINE)
    return {*rules} - {NO_REPLACEMENT_CHAR.id}


def test_only_the_first_gateway_has_something_to_mend(first: Running, second: Running) -> None:
    for stream in (True, False):
        chat(second, "Hello", stream=stream, tools=TOOLS, tool_choice="required", max_tokens=200)
        chat(second, "Hello", stream=stream, n=2, max_tokens=8)
        complete(second, "One", stream=stream, max_tokens=8)
    assert repairs(first)
    assert metric(second, "welldone_upstream_requests_total") > 0
    assert repairs(second) == set()


def test_of_welldones_own_answers_nothing_is_mended(before_welldone: Running) -> None:
    for stream in (True, False):
        chat(before_welldone, "Hello", stream=stream, tools=TOOLS, tool_choice="required", max_tokens=200)
        complete(before_welldone, "One", stream=stream, max_tokens=8)
    assert repairs(before_welldone) == set()


def test_a_server_that_dies_in_its_answer_is_an_error_event(tiny_model: Path) -> None:
    words = ["-m", str(tiny_model), "--alias", "tiny", "-t", "1"]
    with serving(words, model="tiny") as dying, gateway(dying.url, "tiny") as front:
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": LONG,
            "temperature": 0,
        }
        with Line(front, CHAT, {**body, "stream": True}) as line:
            line.wait(rb'"content":"[^"]')
            dying.process.kill()
            assert broken_off(line.reply())["code"] == "upstream_died"
        assert ask(front, CHAT, {**body, "stream": True}).error()["code"] == "upstream_unreachable"


def test_a_model_of_sense_is_right_in_every_character(default_model: Path, tmp_path: Path) -> None:
    with llama_cpp(default_model, tmp_path / "log") as server:
        (tmp_path / "welldone.toml").write_text(f'[upstreams.lab]\nurl = "{server.url}"\nmodels = ["smollm2"]\n')
        with serving([], model="smollm2", folder=tmp_path, is_awaited=False) as front:
            said = [chat(front, "Name three colours.", stream=stream, **SAME) for stream in (True, False)]
            assert said[0] == said[1]
            schema = chat(front, "Hello", stream=True, response_format=JSON_SCHEMA, max_tokens=64)
            assert 1 <= json.loads(schema.text)["days"] <= 7
