"""The gateway in front of real servers: llama.cpp's own, welldone, and another gateway. All answers are valid."""

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

from tests.models.engine import CHILD
from tests.support.faults import PROCESSING, chat_body, metric, stream_error, wait_for_metric
from tests.support.raw import CHAT, STREAM, Choice, Json, RawConnection, chat, complete, fetch, parse_valid
from tests.support.server import KEY, LIMIT_S, Running, serving

pytestmark = pytest.mark.tier3

LONG = 1500
"""Tokens of an answer that still runs when the client disconnects."""
REPRODUCIBLE: dict[str, Any] = {"temperature": 0, "seed": 1, "max_tokens": 24}
"""Fields that make two answers equal."""
DAYS: Json = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["days"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": DAYS}} for name in ("get_weather", "get_time")]
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": DAYS}}


class Llama:
    """A running server of llama.cpp itself."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}/v1"

    @property
    def model(self) -> str:
        """The model name of the server, which is the path of the file."""
        name: str = json.loads(self._get("/v1/models"))["data"][0]["id"]
        return name

    def wait_until(self, *, is_processing: bool) -> None:
        """Poll until the server processes a request, or none."""
        deadline = time.monotonic() + LIMIT_S
        while bool(re.search(rf"^{PROCESSING} [1-9]", self._get("/metrics"), re.MULTILINE)) != is_processing:
            assert time.monotonic() < deadline

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=LIMIT_S) as reply:
            text: str = reply.read().decode()
        return text


@contextmanager
def llama_cpp(model: Path, log: Path, **params: object) -> Iterator[Llama]:
    """Run the server of llama.cpp until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = {"model": str(model), "socket": "127.0.0.1", "port": port}
    settings = {"n_parallel": 2, "n_ctx": 4096, "use_jinja": True, "ui": False, "endpoint_metrics": True, **params}
    command = [sys.executable, str(CHILD), json.dumps({**address, **settings})]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},  # spinning threads are slow on a busy machine
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            assert _read_line(child.stdout) == b"ready\n", log.read_text(errors="replace")[-4000:]
            yield Llama(port)
        finally:
            child.stdin.close()  # the child exits at the end of its input
            try:
                child.wait(LIMIT_S)
            finally:
                child.kill()


def _read_line(stream: IO[bytes]) -> bytes:
    readable, _, _ = select.select([stream], [], [], LIMIT_S)
    return stream.readline() if readable else b""


@contextmanager
def gateway(url: str, model: str, *options: str) -> Iterator[Running]:
    """Run a gateway in front of one server, configured on the command line."""
    arguments = ["--upstream", url, "--upstream-key", KEY, *options]
    with serving(arguments, model=model, is_awaited=False) as running:
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
    """A gateway in front of the first gateway."""
    with gateway(first.url, first.model) as running:
        yield running


@pytest.fixture(scope="module")
def before_welldone(tiny_server: Running) -> Iterator[Running]:
    """A gateway in front of welldone with a local model."""
    with gateway(tiny_server.url, tiny_server.model) as running:
        yield running


@pytest.fixture(scope="module", params=["first", "second", "before_welldone"])
def front(request: pytest.FixtureRequest) -> Running:
    """Each of the three gateways."""
    running: Running = request.getfixturevalue(request.param)
    return running


def test_streamed_and_whole_answers_are_equal(front: Running) -> None:
    streamed, whole = (chat(front, "Hello", stream=stream, **REPRODUCIBLE) for stream in (True, False))
    assert streamed == whole
    assert (whole.choice.finish, whole.counts[1]) == ("length", 24)


@STREAM
def test_several_choices_are_returned(front: Running, stream: bool) -> None:
    answer = chat(front, "Hello", stream=stream, n=2, seed=1, max_tokens=16)
    assert [choice.finish for choice in answer.choices] == ["length", "length"]
    assert answer.counts[1] == 32


@STREAM
def test_log_probabilities_are_forwarded(front: Running, stream: bool) -> None:
    answer = chat(front, "Hello", stream=stream, logprobs=True, top_logprobs=2, **REPRODUCIBLE)
    assert answer.choice.tokens
    assert all(len(token["top_logprobs"]) == 2 for token in answer.choice.tokens)


@STREAM
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_time"}}])
def test_a_required_tool_call_is_returned(before_welldone: Running, stream: bool, choice: object) -> None:
    answer = chat(before_welldone, "Hello", stream=stream, tools=TOOLS, tool_choice=choice, seed=1, max_tokens=200)
    assert len(check_calls(answer.choice)) == 1
    assert answer.choice.finish == ("tool_calls" if choice == "required" else "stop")


def check_calls(choice: Choice) -> list[str]:
    """The names of the tool calls, after a check of their arguments."""
    for name, arguments in choice.calls:
        assert name in ("get_weather", "get_time")
        assert 1 <= json.loads(arguments)["days"] <= 7
    return [name for name, _ in choice.calls]


@STREAM
def test_tool_calls_that_llama_cpp_parses_are_forwarded(tiny_calling_model: Path, tmp_path: Path, stream: bool) -> None:
    with llama_cpp(tiny_calling_model, tmp_path / "log") as server, gateway(server.url, server.model) as front:
        fields: dict[str, Any] = {"stream": stream, "tools": TOOLS, "max_tokens": 1500}
        answers = [chat(front, "Hello", seed=seed, **fields).choice for seed in range(4)]
        called = [choice for choice in answers if choice.finish == "tool_calls"]
        assert called
        assert all(check_calls(choice) for choice in called)
        assert not any(choice.calls for choice in answers if choice.finish == "stop")


@STREAM
def test_an_answer_with_a_schema_is_json(front: Running, stream: bool) -> None:
    answer = chat(front, "Hello", stream=stream, response_format=JSON_SCHEMA, seed=1, max_tokens=200)
    assert 1 <= json.loads(answer.text)["days"] <= 7


def test_completions_are_forwarded(front: Running) -> None:
    streamed, whole = (complete(front, ["One", "Two"], stream=stream, **REPRODUCIBLE) for stream in (True, False))
    assert streamed == whole
    assert len(whole.choices) == 2
    assert whole.choices[0].text != whole.choices[1].text


@STREAM
def test_log_probabilities_of_completions_are_forwarded(front: Running, stream: bool) -> None:
    answer = complete(front, "One", stream=stream, logprobs=2, **REPRODUCIBLE)
    assert len(answer.choice.logprobs["tokens"]) == len(answer.choice.logprobs["token_logprobs"]) > 0


@STREAM
def test_a_prompt_over_the_context_is_context_length_exceeded(front: Running, stream: bool) -> None:
    reply = fetch(front, CHAT, chat_body(front, "one two " * 5000, stream=stream))
    assert (reply.status, reply.error()["code"]) == (400, "context_length_exceeded")


@STREAM
def test_a_disconnect_cancels_the_request_behind_all_gateways(second: Running, llama: Llama, stream: bool) -> None:
    body = chat_body(second, max_tokens=LONG, stream=stream)
    with RawConnection(second, CHAT, body) as connection:
        if stream:
            connection.wait(rb'"content":"[^"]')
        else:
            llama.wait_until(is_processing=True)
    llama.wait_until(is_processing=False)
    wait_for_metric(second, "welldone_upstream_running", 0)
    assert parse_valid(fetch(second, CHAT, {**body, "max_tokens": 4})).choice.finish == "length"


def repairs(server: Running) -> set[str]:
    """The rules of all repairs so far, without the replacement characters that random weights cause."""
    page = fetch(server, "/metrics").trace.body.decode()
    rules = re.findall(r'^welldone_repairs_total\{rule="([^"]*)"', page, re.MULTILINE)
    return {*rules} - {"enc-no-replacement-char"}


def test_only_the_first_gateway_makes_repairs(first: Running, second: Running) -> None:
    for stream in (True, False):
        chat(second, "Hello", stream=stream, tools=TOOLS, tool_choice="required", max_tokens=200)
        chat(second, "Hello", stream=stream, n=2, max_tokens=8)
        complete(second, "One", stream=stream, max_tokens=8)
    assert repairs(first)
    assert metric(second, "welldone_upstream_requests_total") > 0
    assert repairs(second) == set()


def test_answers_of_welldone_need_no_repair(before_welldone: Running) -> None:
    for stream in (True, False):
        chat(before_welldone, "Hello", stream=stream, tools=TOOLS, tool_choice="required", max_tokens=200)
        complete(before_welldone, "One", stream=stream, max_tokens=8)
    assert repairs(before_welldone) == set()


def test_an_upstream_that_dies_during_a_stream_causes_an_error_event(tiny_model: Path) -> None:
    arguments = ["-m", str(tiny_model), "--alias", "tiny", "-t", "1"]
    with serving(arguments, model="tiny") as dying, gateway(dying.url, "tiny") as front:
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": LONG,
            "temperature": 0,
        }
        with RawConnection(front, CHAT, {**body, "stream": True}) as connection:
            connection.wait(rb'"content":"[^"]')
            dying.process.kill()
            assert stream_error(connection.reply())["code"] == "upstream_died"
        assert fetch(front, CHAT, {**body, "stream": True}).error()["code"] == "upstream_unreachable"


def test_answers_of_a_trained_model_have_no_finding(default_model: Path, tmp_path: Path) -> None:
    with llama_cpp(default_model, tmp_path / "log") as server:
        (tmp_path / "welldone.toml").write_text(f'[upstreams.lab]\nurl = "{server.url}"\nmodels = ["smollm2"]\n')
        with serving([], model="smollm2", folder=tmp_path, is_awaited=False) as front:
            streamed, whole = (
                chat(front, "Name three colours.", stream=stream, **REPRODUCIBLE) for stream in (True, False)
            )
            assert streamed == whole
            schema = chat(front, "Hello", stream=True, response_format=JSON_SCHEMA, max_tokens=64)
            assert 1 <= json.loads(schema.text)["days"] <= 7
