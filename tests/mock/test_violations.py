"""Servers that violate one rule answer every request, and correctly where the rule does not apply."""

import itertools
import json
from functools import cache
from typing import Any

import pytest

from tests.table import table
from welldone.core.catalog import RULES
from welldone.mock.reference.server import MockHandler, ReferenceServer
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest
from welldone.mock.violations import violating_handler
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

VIOLABLE = [rule.id for rule in RULES.values() if rule.id not in ("sse-keepalive-resets-idle", "ns-leading-space-ok")]
CHAT: dict[str, Any] = {"stream": True, "messages": [{"role": "user", "content": "Count to 5"}]}
EMPTY_ANSWER = {"stream": True, "stop": "1", "messages": CHAT["messages"]}
ODD: list[object] = [
    CHAT | {"stop": ["1", "2"], "n": 2},
    CHAT | {"stop": [7]},
    CHAT | {"stop": "", "n": "two"},
    CHAT | {"n": 0, "stream_options": 7},
    CHAT | {"stream": "yes", "tools": "none"},
    {"stream": True, "messages": 7, "prompt": [7, "x"], "suffix": 7},
    {"stream": True, "messages": [7, None], "tools": [7]},
    EMPTY_ANSWER,
    [],
    7,
]


CHAT_PATH = "/v1/chat/completions"


def _answer(rule: str, body: str, *, method: str = "POST", path: str = CHAT_PATH) -> MockReply:
    return _handler(rule)(MockHttpRequest(method, path, {"accept": "text/event-stream"}, body))


@cache  # a new one judges all examples of the rule's page
def _handler(rule: str) -> MockHandler:
    return violating_handler(rule, ReferenceServer())


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.tier3)])
@table(("number", "rule"), enumerate(VIOLABLE))
def test_every_request_is_answered(number: int, rule: str, step: int) -> None:
    paths = (CHAT_PATH, "/v1/completions", "/v1/responses", "/v1/messages", "/nowhere")
    requests = list(itertools.product(paths, ["", "{", *map(json.dumps, ODD)]))
    for path, body in requests[number % step :: step]:
        assert _answer(rule, body, path=path).status in (200, 400, 404, 429, 500)
    for path in ("/v1/models", "/metrics", "/health", "/nowhere"):
        assert _answer(rule, "", method="GET", path=path).status in (200, 404)
    assert _answer(rule, "", method="OPTIONS").status == 204


def test_a_violating_server_requires_the_key() -> None:
    for rule in VIOLABLE:
        answer = violating_handler(rule, ReferenceServer(key="sk-right"))
        assert answer(MockHttpRequest("GET", "/v1/models", {}, "")).status == 401


def test_an_example_is_sent_only_for_matching_requests() -> None:
    tool = {"type": "function", "function": {"name": "count"}}
    for fields in ({"stream": False}, {"logprobs": True}, {"n": 2}, {"tools": [tool]}, {"temperature": "hot"}):
        request = CHAT | fields
        reply = _answer("delta-role-once", json.dumps(request))
        assert judge(_trace(reply, request)).findings == ()
    assert "delta-role-once" in judge(_trace(_answer("delta-role-once", json.dumps(CHAT)), CHAT)).counts


@table("rule", ["sse-lf-only", "sse-event-blank-line", "http-chunked-terminated", "cmpl-finish"])
def test_an_example_has_usage_if_it_was_requested(rule: str) -> None:
    request = CHAT | {"prompt": "Count", "stream_options": {"include_usage": True}}
    is_chat = rule != "cmpl-finish"
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    reply = _answer(rule, json.dumps(request), path=path)
    counts = judge(_trace(reply, request, "chat" if is_chat else "completions")).counts
    assert "use-final-chunk" not in counts
    assert rule in counts or reply.end == "cut"


def _trace(reply: MockReply, request: dict[str, Any], endpoint: str = "chat") -> Trace:
    headers = tuple(reply.headers.items())
    return Trace(body=reply.body, request=request, status=reply.status, headers=headers, endpoint=endpoint)
