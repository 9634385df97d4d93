"""Servers with one flaw: whatever is asked, they answer, and who gives no occasion gets what is right."""

import itertools
import json
from typing import Any

import pytest

from tests.table import table
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest
from welldone.mock.violations import violating_handler
from welldone.protocol.catalog import ALL_RULES
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

BREAKABLE = [fault.id for fault in ALL_RULES if fault.id not in ("sse-keepalive-resets-idle", "ns-leading-space-ok")]
CHAT: dict[str, Any] = {"stream": True, "messages": [{"role": "user", "content": "Count to 5"}]}
NOTHING = {"stream": True, "stop": "1", "messages": CHAT["messages"]}
ODD: list[object] = [
    CHAT | {"stop": ["1", "2"], "n": 2},
    CHAT | {"stop": [7]},
    CHAT | {"stop": "", "n": "two"},
    CHAT | {"n": 0, "stream_options": 7},
    CHAT | {"stream": "yes", "tools": "none"},
    {"stream": True, "messages": 7, "prompt": [7, "x"], "suffix": 7},
    {"stream": True, "messages": [7, None], "tools": [7]},
    NOTHING,
    [],
    7,
]


CHAT_PATH = "/v1/chat/completions"


def _answer(rule: str, body: str, *, method: str = "POST", path: str = CHAT_PATH) -> MockReply:
    return violating_handler(rule, ReferenceServer())(
        MockHttpRequest(method, path, {"accept": "text/event-stream"}, body)
    )


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.tier3)])
@table(("number", "rule"), enumerate(BREAKABLE))
def test_whatever_is_asked_there_is_an_answer(number: int, rule: str, step: int) -> None:
    paths = (CHAT_PATH, "/v1/completions", "/v1/responses", "/v1/messages", "/nowhere")
    asked = list(itertools.product(paths, ["", "{", *map(json.dumps, ODD)]))
    for path, body in asked[number % step :: step]:
        assert _answer(rule, body, path=path).status in (200, 400, 404, 429, 500)
    for path in ("/v1/models", "/metrics", "/health", "/nowhere"):
        assert _answer(rule, "", method="GET", path=path).status in (200, 404)
    assert _answer(rule, "", method="OPTIONS").status == 204


def test_who_has_no_key_is_refused_by_a_server_with_a_flaw() -> None:
    for rule in BREAKABLE:
        answer = violating_handler(rule, ReferenceServer(key="sk-right"))
        assert answer(MockHttpRequest("GET", "/v1/models", {}, "")).status == 401


def test_an_example_answers_only_what_it_can_answer() -> None:
    tool = {"type": "function", "function": {"name": "count"}}
    for members in ({"stream": False}, {"logprobs": True}, {"n": 2}, {"tools": [tool]}, {"temperature": "hot"}):
        request = CHAT | members
        reply = _answer("delta-role-once", json.dumps(request))
        assert judge(_heard(reply, request)).findings == ()
    assert "delta-role-once" in judge(_heard(_answer("delta-role-once", json.dumps(CHAT)), CHAT)).counts


@table("rule", ["sse-lf-only", "sse-event-blank-line", "http-chunked-terminated", "cmpl-finish"])
def test_who_asks_for_usage_gets_it_in_an_example_too(rule: str) -> None:
    request = CHAT | {"prompt": "Count", "stream_options": {"include_usage": True}}
    is_chat = rule != "cmpl-finish"
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    reply = _answer(rule, json.dumps(request), path=path)
    counts = judge(_heard(reply, request, "chat" if is_chat else "completions")).counts
    assert "use-final-chunk" not in counts
    assert rule in counts or reply.end == "cut"


def _heard(reply: MockReply, request: dict[str, Any], endpoint: str = "chat") -> Trace:
    headers = tuple(reply.headers.items())
    return Trace(body=reply.body, request=request, status=reply.status, headers=headers, endpoint=endpoint)
