"""Logs: machine-readable lines, without API keys and without text of prompts or answers."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.faults import LINUX, engine_of, small_server, start_chat
from tests.support.raw import CHAT, Json, RawConnection, Reply, fetch, parse_valid
from tests.support.server import LIMIT_S, Running
from tests.support.upstream import gateway, upstream
from welldone.core.catalog import RULES, Severity

pytestmark = pytest.mark.tier2

CANARY = "sk-canary-5f1d2c3b4a596877"
WRONG = "wd-canary-of-a-stranger-998877"
PROMPT = "zebra-canary-prompt-4711"
HEADER = "canary-in-a-header-0815"


def provoke(server: Running) -> list[Reply]:
    """Send requests of all kinds, with canary strings in every field that a client controls."""
    message = {"role": "user", "content": PROMPT}
    headers = {"User-Agent": HEADER, "Cookie": f"id={HEADER}", "Referer": f"http://{HEADER}/"}
    bodies: list[Json] = [
        {"messages": [message], "max_tokens": 4},
        {"messages": [message], "max_tokens": 4, "stream": True},
        {"messages": [{"role": PROMPT, "content": PROMPT}]},
        {"messages": [message], "temperature": PROMPT},
        {"messages": [message], "response_format": {"type": "json_schema", "json_schema": {"schema": PROMPT}}},
        {"messages": [{"role": "user", "content": f"{PROMPT} " * 2000}]},
        {"messages": [message], "user": PROMPT, "metadata": {"name": PROMPT}, "max_tokens": 4},
    ]
    replies = []
    for body in bodies:
        with RawConnection(server, CHAT, body, headers=headers) as connection:
            replies.append(connection.reply())
    stranger = {"Authorization": f"Bearer {WRONG}", "x-api-key": WRONG}
    replies += [
        fetch(server, "/v1/models", headers=stranger),
        fetch(server, f"/v1/models?api_key={WRONG}", headers={"Authorization": "none"}),
        fetch(server, "/v1/models", headers={"x-api-key": WRONG}),
        fetch(server, "/tokenize", {"content": PROMPT}),
        fetch(server, "/metrics"),
        fetch(server, "/v1/models"),
    ]
    return replies


@LINUX
@pytest.mark.parametrize("style", ["json", "text", "short"])
def test_logs_contain_no_key_and_no_prompt_text(tiny_model: Path, style: str) -> None:
    options = ["--log-format", style, "--log-level", "debug", "-v"]
    with small_server(tiny_model, *options, key=CANARY) as server:
        replies = provoke(server)
        assert {reply.status for reply in replies} >= {200, 400, 401}
        with engine_of(server) as engine, start_chat(server, PROMPT, max_tokens=2000) as connection:
            connection.wait(b'"content":"[^"]')
            engine.kill()
            replies.append(connection.reply())
        assert server.end() == 0
        output = server.stdout.join() + server.log.join()
    assert {"json": '"status":200', "text": "status=200", "short": " 200 chat "}[style] in output
    bodies = "".join(
        reply.trace.body.decode() for reply in replies if reply.status >= 400 or reply.trace.request is None
    )
    for secret in (CANARY, WRONG):
        assert secret not in output
        assert secret not in bodies
    for word in (PROMPT, HEADER):
        assert word not in output


def test_each_line_of_a_json_log_is_json(tiny_model: Path) -> None:
    with small_server(tiny_model, "--log-format", "json") as server:
        with start_chat(server, name="my-stream") as line:
            assert parse_valid(line.reply()).choice.finish == "length"
        fetch(server, "/v1/nothing", headers={"x-request-id": "my-mistake"})
        fetch(server, "/health")
        server.process.terminate()
        assert server.process.wait(LIMIT_S) == 0
        server.log.join()
        lines = [json.loads(line) for line in server.log.all]
    requests = {line["request_id"]: line for line in lines if line["event"] == "request"}
    assert set(requests) == {"my-stream", "my-mistake"}  # health checks are not logged
    stream = requests["my-stream"]
    assert stream["completion_tokens"] == 16
    assert stream["prompt_tokens"] > 0
    assert stream["status"] == 200
    assert stream["ttft_ms"] <= stream["duration_ms"]
    assert requests["my-mistake"]["error"] == "not_found"
    assert all({"ts", "level", "event"} <= set(line) for line in lines)


def test_minor_deviations_of_the_engine_are_neither_logged_nor_counted(tiny_model: Path) -> None:
    with small_server(tiny_model) as server:
        with start_chat(server, name="mine") as connection:
            assert parse_valid(connection.reply()).choice.finish == "length"
        server.log.wait("request_id=mine")
        counted = re.findall(r'welldone_findings_total{rule="(.+)"}', fetch(server, "/metrics").trace.body.decode())
        assert [rule for rule in counted if RULES[rule].severity is not Severity.BREAKS] == []
        assert "repaired" not in "\n".join(server.log.all)


@pytest.mark.parametrize("workers", [1, 2])
def test_with_json_logs_stdout_has_only_the_json_banner(tmp_path: Path, workers: int) -> None:
    options = ["--log-format", "json", "--host", "0.0.0.0", "--workers", str(workers)]
    with upstream() as one, gateway(tmp_path, one.url, options=options, key=None) as server:
        (line,) = server.stdout.all
        banner = json.loads(line)
        server.key = banner["api_key"]
        assert fetch(server, "/v1/models").status == 200
        server.key = None
        assert fetch(server, "/v1/models").status == 401
        assert server.end() == 0
        assert len(server.stdout.all) == 1
        assert {"ts", "level", "version", "page"} <= set(banner)
        assert (banner["event"], banner["url"], banner["workers"]) == ("listening", server.url, workers)
        assert "warnings" not in banner
        logged = [json.loads(line) for line in server.log.all]
    assert logged
    assert banner["api_key"] not in server.log.join()


def test_start_warnings_are_json_with_json_logs(tiny_model: Path) -> None:
    with small_server(
        tiny_model, "--log-format", "json", "--send-done", "--no-api-key", "--host", "0.0.0.0", key=None
    ) as one:
        assert "--send-done" in json.loads(one.log.all[0])["event"]
        assert json.loads(one.stdout.all[0])["models"] == ["tiny"]
        assert "no API key" in json.loads(one.stdout.all[0])["warnings"][0]


def test_a_model_that_cannot_be_loaded_is_reported_as_json(tiny_model: Path) -> None:
    arguments = ["serve", "-m", str(tiny_model), "--port", "0", "--lora", str(tiny_model), "--log-format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "welldone", *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    last = [json.loads(line) for line in (done.stdout + done.stderr).splitlines()][-1]
    assert done.returncode == 3
    assert "cannot be loaded" in last["event"]
    assert "lora" in last["engine"].lower()


def test_a_quiet_server_logs_errors_only(tiny_model: Path) -> None:
    with small_server(tiny_model, "--quiet", is_awaited=False) as server:
        with start_chat(server) as connection:
            assert parse_valid(connection.reply()).choice.finish == "length"
        assert server.end() == 0
        assert server.log.join() == ""
