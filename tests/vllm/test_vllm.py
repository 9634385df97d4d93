"""vLLM as the engine of a model: its streams are right, what was mended is told, and it lives and dies with the server.

The tests stand in the order in which they run: each start takes a minute, so one server is for all of them, and the
last ones end it.
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

from tests.live.faults import (
    LINUX,
    RESTARTS,
    Child,
    begin,
    broken_off,
    children,
    command_line,
    descendants,
    leave,
    metric,
)
from tests.live.raw import LIMIT_S, STREAM, ask, chat, complete, judged
from tests.live.server import KEY, Running, serving
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
"""A whole check takes about a minute on two idle cores."""
LONG = 900
"""Tokens of an answer that takes half a minute here."""


@STREAM
def test_an_answer_is_right(server: Running, stream: bool) -> None:
    said = chat(server, "Say hello.", max_tokens=8, temperature=0, stream=stream)
    assert said.text
    assert said.model == "smollm2"
    assert said.counts[1] == 8


@STREAM
def test_completions_are_right(server: Running, stream: bool) -> None:
    assert complete(server, "One, two, three,", max_tokens=8, temperature=0, stream=stream).text


@STREAM
def test_two_choices_are_right(server: Running, stream: bool) -> None:
    assert len(chat(server, "Say hello.", n=2, max_tokens=8, stream=stream).choices) == 2


@STREAM
def test_log_probabilities_are_right(server: Running, stream: bool) -> None:
    said = chat(server, "Say hello.", logprobs=True, top_logprobs=2, max_tokens=4, stream=stream)
    assert [len(token["top_logprobs"]) for token in said.one.tokens] == [2] * 4


@STREAM
def test_a_tool_that_must_be_called_is(server: Running, stream: bool) -> None:
    said = chat(
        server, "Weather in Paris?", tools=TOOLS, tool_choice="required", max_tokens=64, temperature=0, stream=stream
    )
    assert [name for name, _ in said.one.calls] == ["get_weather"]


def test_what_was_mended_is_counted_and_logged(server: Running) -> None:
    seen = len(server.log.all)
    chat(server, "Say hello.", max_tokens=8, stream=True)
    server.log.wait(r"mended=\S*fin-own-chunk", seen=seen)
    page = ask(server, "/metrics").trace.body.decode()
    found = re.findall(r'^welldone_findings_total\{.*rule="([^"]+)".*\} (\d+)', page, re.MULTILINE)
    assert "fin-own-chunk" in dict(found)
    sys.stderr.write(f"mended so far: {', '.join(f'{rule} {count}' for rule, count in found)}\n")


def test_tokens_are_counted_and_come_back_as_text(server: Running) -> None:
    tokens = ask(server, "/tokenize", {"model": "smollm2", "content": "Hello you"}).ok()["tokens"]
    assert ask(server, "/detokenize", {"model": "smollm2", "tokens": tokens}).ok()["content"] == "Hello you"
    said = chat(server, "Hello you", max_tokens=1)
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "Hello you"}]}
    assert ask(server, "/v1/messages/count_tokens", body).ok() == {"input_tokens": said.counts[0]}


@pytest.mark.parametrize("endpoint", ["chat", "responses", "messages"])
def test_the_whole_check_finds_nothing(server: Running, endpoint: str, tmp_path: Path) -> None:
    words = ["check", server.url, "--model", "smollm2", "--endpoint", endpoint, "--strict", "--timeout", "240s"]
    ran = subprocess.run(
        [sys.executable, "-m", "welldone", *words],
        env=os.environ | {"WELLDONE_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=CHECK_S,
        check=False,
    )
    sys.stderr.write(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_client_that_leaves_frees_vllm(server: Running) -> None:
    with begin(server, "Count to 500.", max_tokens=LONG, ignore_eos=True) as line:
        line.wait(rb'"content":"[^"]')
        assert _running(server) == 1
        leave(line)
    deadline = time.monotonic() + LIMIT_S
    while _running(server):
        assert time.monotonic() < deadline, "it still writes"


def test_one_vllm_as_two_upstreams_is_right_too(server: Running, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{_port(server)}/v1"
    config = tmp_path / "welldone.toml"
    config.write_text("".join(f'[upstreams.{name}]\nurl = "{url}"\n' for name in ("one", "two")))
    with serving(["--config", str(config)], is_awaited=False) as front:
        (listed,) = ask(front, "/v1/models").ok()["data"]
        for _ in range(4):
            assert chat(front, "Say hello.", model=listed["id"], max_tokens=8, stream=True).text
        page = ask(front, "/metrics").trace.body.decode()
        assert {'upstream="one"', 'upstream="two"'} <= set(re.findall(r'upstream="\w+"', page))


@pytest.mark.parametrize("who", ["core", "launcher"])
def test_a_vllm_that_dies_ends_its_streams_with_an_error_and_comes_back(server: Running, who: str) -> None:
    seen, restarts = len(server.log.all), metric(server, RESTARTS)
    with ExitStack() as stack:
        left = [stack.enter_context(Child(pid)) for pid in descendants(server.process.pid)]
        line = stack.enter_context(begin(server, "Count to 500.", max_tokens=LONG, ignore_eos=True))
        line.wait(rb'"content":"[^"]')
        (launcher,) = children(server.process.pid)
        os.kill(launcher if who == "launcher" else _pid(server, "VLLM::EngineCore"), signal.SIGKILL)
        assert broken_off(line.reply())["type"] in ("server_error", "InternalServerError")
        for process in left:
            process.wait()
    await_ready(server, seen)
    assert chat(server, "Are you back?", max_tokens=4, stream=True).text
    assert metric(server, RESTARTS) == restarts + 1


def test_a_stream_that_runs_is_finished_before_the_end(server: Running) -> None:
    pids = descendants(server.process.pid)
    with begin(server, "Count to 50.", max_tokens=100, ignore_eos=True) as line:
        line.wait(rb'"content":"[^"]')
        server.process.send_signal(signal.SIGTERM)
        assert judged(line.reply()).one.finish == "length"
    assert server.process.wait(LIMIT_S) == 0
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists() and command_line(pid) != [""]] == []


def test_nothing_is_left_of_a_server_that_is_killed(vllm_environment: dict[str, str], tmp_path: Path) -> None:
    with vllm(tmp_path, vllm_environment, "--uds", "{socket}") as server:
        assert chat(server, "Say hello.", max_tokens=4, stream=True).text
        left = [Child(pid) for pid in descendants(server.process.pid)]
        assert len(left) >= 4  # the one that starts it, its server, its core, its worker
        server.process.kill()
        for process in left:
            with process:
                process.wait()


def _port(server: Running) -> int:
    words = command_line(_pid(server, "--port"))
    return int(words[words.index("--port") + 1])


def _running(server: Running) -> float:
    """How many answers vLLM is writing, as it says itself."""
    with urllib.request.urlopen(f"http://127.0.0.1:{_port(server)}/metrics", timeout=LIMIT_S) as reply:
        page: str = reply.read().decode()
    return sum(float(count) for count in re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", page, re.MULTILINE))


def _pid(server: Running, word: str) -> int:
    """The last of its processes whose command has that word."""
    return next(pid for pid in reversed(descendants(server.process.pid)) if word in command_line(pid))
