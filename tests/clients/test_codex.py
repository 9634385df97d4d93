"""The coding agent Codex calls tools in namespaces, over HTTP and, by its default configuration, over a WebSocket."""

import json
import re
from pathlib import Path

import pytest

from tests.oracle import codex
from tests.support.upstream import gateway, upstream
from welldone.mock.script import CHUNK_TEMPLATE, HELLO_REPLY, MockChunk, MockReply
from welldone.mock.server import MockHttpRequest

ROOT = Path(__file__).parents[2]
CHAT_NAME = "multi_agent_v1__close_agent"


def _reply(seen: MockHttpRequest) -> MockReply:
    """A call of a tool of Codex, then text."""
    role, _, _, done = HELLO_REPLY.pieces
    if json.loads(seen.body)["messages"][-1]["role"] == "tool":
        return HELLO_REPLY
    function = {"name": CHAT_NAME, "arguments": '{"target":"nobody"}'}
    delta = {"tool_calls": [{"index": 0, "id": "call_a", "type": "function", "function": function}]}
    chunks = [(json.dumps(delta), "null"), ("{}", '"tool_calls"')]
    return MockReply((role, *(MockChunk(CHUNK_TEMPLATE % chunk) for chunk in chunks), done))


@pytest.mark.parametrize("is_default", [False, True], ids=["http", "default"])
@pytest.mark.skipif(codex.why_missing() is not None, reason=str(codex.why_missing()))
def test_codex_runs_a_tool_of_a_namespace(is_default: bool, tmp_path: Path) -> None:
    with upstream(_reply) as server, gateway(tmp_path, server.url) as running:
        turn = codex.run_turn(
            running.url, running.key or "none", "hello", "Close it.", folder=tmp_path, is_default=is_default
        )
        if is_default:  # a WebSocket: the log has it when it is closed
            running.log.wait(r"method=GET path=/v1/responses status=(101|499)")
        bodies = [json.loads(post.body) for post in server.posts()]
    assert turn.messages == ("Hello",)
    first, second = bodies
    assert CHAT_NAME in {tool["function"]["name"] for tool in first["tools"]}
    *_, call, output = second["messages"]
    assert [one["function"]["name"] for one in call["tool_calls"]] == [CHAT_NAME]
    assert "invalid agent id nobody" in output["content"]  # Codex found the tool


def test_the_documented_line_is_the_configuration_of_the_default_run() -> None:
    page = (ROOT / "docs" / "dialects.md").read_text("utf-8")
    section = page.partition("## Codex and Claude Code")[2]
    block = re.search(r"```toml\n(.*?)```", section, re.DOTALL)
    assert block is not None
    assert block[1] == 'openai_base_url = "http://127.0.0.1:8000/v1"\n'
