"""vLLM as the engine of a model: valid streams, reported repairs, restart and shutdown with the server.

The order of the tests matters: a start takes a minute, so all share one server, and the last ones stop it.
"""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.faults import (
    LINUX,
    RESTARTS,
    Child,
    children,
    command_line,
    descendants,
    disconnect,
    metric,
    start_chat,
    stream_error,
)
from tests.support.raw import LIMIT_S, STREAM, chat, complete, fetch, parse_valid
from tests.support.server import KEY, Running, serving
from tests.vllm.conftest import await_ready, vllm

pytestmark = LINUX

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CHECK_S = 1800.0
"""A complete check takes about a minute on two idle cores."""
LONG = 900
"""Tokens of an answer that takes half a minute on a CPU."""


@STREAM
def test_an_answer_is_valid(server: Running, stream: bool) -> None:
    answer = chat(server, "Say hello.", max_tokens=8, temperature=0, stream=stream)
    assert answer.text
    assert answer.model == "smollm2"
    assert answer.counts[1] == 8


@STREAM
def test_completions_are_valid(server: Running, stream: bool) -> None:
    assert complete(server, "One, two, three,", max_tokens=8, temperature=0, stream=stream).text


@STREAM
def test_two_choices_are_returned(server: Running, stream: bool) -> None:
    assert len(chat(server, "Say hello.", n=2, max_tokens=8, stream=stream).choices) == 2


@STREAM
def test_log_probabilities_are_returned(server: Running, stream: bool) -> None:
    answer = chat(server, "Say hello.", logprobs=True, top_logprobs=2, max_tokens=4, stream=stream)
    assert [len(token["top_logprobs"]) for token in answer.choice.tokens] == [2] * 4


@STREAM
def test_a_required_tool_is_called(server: Running, stream: bool) -> None:
    answer = chat(
        server, "Weather in Paris?", tools=TOOLS, tool_choice="required", max_tokens=64, temperature=0, stream=stream
    )
    assert [name for name, _ in answer.choice.calls] == ["get_weather"]


def test_repairs_are_counted_and_logged(server: Running) -> None:
    seen = len(server.log.all)
    chat(server, "Say hello.", max_tokens=8, stream=True)
    server.log.wait(r"repaired=\S*fin-own-chunk", seen=seen)
    page = fetch(server, "/metrics").trace.body.decode()
    found = re.findall(r'^welldone_findings_total\{.*rule="([^"]+)".*\} (\d+)', page, re.MULTILINE)
    assert "fin-own-chunk" in dict(found)
    sys.stderr.write(f"repairs so far: {', '.join(f'{rule} {count}' for rule, count in found)}\n")


def test_tokens_are_counted_and_detokenized(server: Running) -> None:
    tokens = fetch(server, "/tokenize", {"model": "smollm2", "content": "Hello you"}).ok()["tokens"]
    assert fetch(server, "/detokenize", {"model": "smollm2", "tokens": tokens}).ok()["content"] == "Hello you"
    answer = chat(server, "Hello you", max_tokens=1)
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "Hello you"}]}
    assert fetch(server, "/v1/messages/count_tokens", body).ok() == {"input_tokens": answer.counts[0]}


@pytest.mark.parametrize("endpoint", ["chat", "responses", "messages"])
def test_the_whole_check_finds_nothing(server: Running, endpoint: str, tmp_path: Path) -> None:
    words = ["check", server.url, "--model", "smollm2", "--endpoint", endpoint, "--strict", "--timeout", "240s"]
    result = subprocess.run(
        [sys.executable, "-m", "welldone", *words],
        env=os.environ | {"WELLDONE_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=CHECK_S,
        check=False,
    )
    sys.stderr.write(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_disconnect_frees_vllm(server: Running) -> None:
    with start_chat(server, "Count to 500.", max_tokens=LONG, ignore_eos=True) as connection:
        connection.wait(rb'"content":"[^"]')
        assert _running(server) == 1
        disconnect(connection)
    deadline = time.monotonic() + LIMIT_S
    while _running(server):
        assert time.monotonic() < deadline, "vLLM still generates"


def test_one_vllm_as_two_upstreams_is_valid(server: Running, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{_port(server)}/v1"
    config = tmp_path / "welldone.toml"
    config.write_text("".join(f'[upstreams.{name}]\nurl = "{url}"\n' for name in ("one", "two")))
    with serving(["--config", str(config)], is_awaited=False) as gateway:
        (listed,) = fetch(gateway, "/v1/models").ok()["data"]
        for _ in range(4):
            assert chat(gateway, "Say hello.", model=listed["id"], max_tokens=8, stream=True).text
        page = fetch(gateway, "/metrics").trace.body.decode()
        assert {'upstream="one"', 'upstream="two"'} <= set(re.findall(r'upstream="\w+"', page))


@pytest.mark.parametrize("process_kind", ["core", "launcher"])
def test_a_crashed_vllm_ends_its_streams_with_an_error_and_restarts(server: Running, process_kind: str) -> None:
    seen, restarts = len(server.log.all), metric(server, RESTARTS)
    with ExitStack() as stack:
        processes = [stack.enter_context(Child(pid)) for pid in descendants(server.process.pid)]
        connection = stack.enter_context(start_chat(server, "Count to 500.", max_tokens=LONG, ignore_eos=True))
        connection.wait(rb'"content":"[^"]')
        (launcher,) = children(server.process.pid)
        os.kill(launcher if process_kind == "launcher" else _pid(server, "VLLM::EngineCore"), signal.SIGKILL)
        assert stream_error(connection.reply())["type"] in ("server_error", "InternalServerError")
        for process in processes:
            process.wait()
    await_ready(server, seen)
    assert chat(server, "Are you back?", max_tokens=4, stream=True).text
    assert metric(server, RESTARTS) == restarts + 1


def test_a_running_stream_finishes_before_shutdown(server: Running) -> None:
    pids = descendants(server.process.pid)
    with start_chat(server, "Count to 50.", max_tokens=100, ignore_eos=True) as connection:
        connection.wait(rb'"content":"[^"]')
        server.process.send_signal(signal.SIGTERM)
        assert parse_valid(connection.reply()).choice.finish == "length"
    assert server.process.wait(LIMIT_S) == 0
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists() and command_line(pid) != [""]] == []


def test_a_killed_server_leaves_no_process(vllm_environment: dict[str, str], tmp_path: Path) -> None:
    with vllm(tmp_path, vllm_environment, "--uds", "{socket}") as server:
        assert chat(server, "Say hello.", max_tokens=4, stream=True).text
        processes = [Child(pid) for pid in descendants(server.process.pid)]
        assert len(processes) >= 4  # launcher, API server, engine core, worker
        server.process.kill()
        for process in processes:
            with process:
                process.wait()


def _port(server: Running) -> int:
    words = command_line(_pid(server, "--port"))
    return int(words[words.index("--port") + 1])


def _running(server: Running) -> float:
    """Number of running requests in the metrics of vLLM."""
    with urllib.request.urlopen(f"http://127.0.0.1:{_port(server)}/metrics", timeout=LIMIT_S) as reply:
        page: str = reply.read().decode()
    return sum(float(count) for count in re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", page, re.MULTILINE))


def _pid(server: Running, word: str) -> int:
    """Process id of the last descendant with this word in its command line."""
    return next(pid for pid in reversed(descendants(server.process.pid)) if word in command_line(pid))
