"""The judge is independent of what it judges: it finds a bug that is planted in a writer of the product."""

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from welldone.dialects.chat.writer import ChunkWriter
from welldone.dialects.gemini.writer import GeminiWriter
from welldone.dialects.messages.writer import MessagesWriter
from welldone.dialects.responses.writer import ResponsesWriter
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import with_raw_http
from welldone.mock.server import MockHttpRequest
from welldone.rules.judge import judge
from welldone.rules.trace import Trace, read_capture

Edit: TypeAlias = Callable[[bytes], bytes]
"""What a bug does to the bytes that a writer returns."""

GEMINI = "/v1beta/models/ideal:streamGenerateContent?alt=sse"
CHAT = [{"role": "user", "content": "Say: one two three"}]
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": CHAT, "stream_options": {"include_usage": True}}),
    "completions": ("/v1/completions", {"prompt": "Say: one two three"}),
    "responses": ("/v1/responses", {"input": "Say: one two three"}),
    "messages": ("/v1/messages", {"messages": CHAT, "max_tokens": 100}),
    "gemini": (GEMINI, {"contents": [{"parts": [{"text": "Say: one two three"}]}]}),
}


def removes(text: bytes) -> Edit:
    return lambda data: data.replace(text, b"")


def replaces(text: bytes, other: bytes) -> Edit:
    return lambda data: data.replace(text, other)


def drops(text: bytes) -> Edit:
    return lambda data: b"" if text in data else data


def _broken_rules(endpoint: str) -> set[str]:
    path, body = REQUESTS[endpoint]
    request = {"model": "ideal", "stream": True} | body
    reply = ReferenceServer().answer(MockHttpRequest("POST", path, {}, json.dumps(request)))
    received = read_capture(with_raw_http(reply).body)
    trace = Trace(
        body=received.body,
        endpoint=endpoint,
        path=path,
        request=request,
        status=received.status,
        headers=received.headers,
        complete=received.complete,
        chunk_sizes=received.chunk_sizes,
    )
    return set(judge(trace).counts)


@pytest.mark.parametrize(
    ("endpoint", "writer", "method", "bug", "rule"),
    [
        ("chat", ChunkWriter, "send", removes(b'"role":"assistant",'), "delta-role-first"),
        ("chat", ChunkWriter, "send", replaces(b'"index":0', b'"index":1'), "n-first-order"),
        ("chat", ChunkWriter, "send", drops(b'"finish_reason":"stop"'), "fin-always-sent"),
        ("chat", ChunkWriter, "send", drops(b'"usage":{'), "use-final-chunk"),
        ("chat", ChunkWriter, "end", removes(b"[DONE]"), "end-done-sent"),
        ("completions", ChunkWriter, "send", drops(b'"finish_reason":"stop"'), "cmpl-finish"),
        ("responses", ResponsesWriter, "send", drops(b"response.created"), "resp-created-first"),
        (
            "responses",
            ResponsesWriter,
            "send",
            replaces(b'"sequence_number":3', b'"sequence_number":9'),
            "resp-sequence-number",
        ),
        ("responses", ResponsesWriter, "end", lambda _: b"", "resp-terminal-once"),
        ("messages", MessagesWriter, "send", drops(b"message_start"), "msg-start-first"),
        ("messages", MessagesWriter, "end", drops(b"message_stop"), "msg-no-early-eof"),
        ("gemini", GeminiWriter, "send", replaces(b'"parts":', b'"part":'), "gem-content"),
        ("gemini", GeminiWriter, "end", lambda _: b"", "gem-no-early-eof"),
    ],
)
def test_a_bug_in_a_writer_is_found(
    endpoint: str, writer: type, method: str, bug: Edit, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _broken_rules(endpoint) == set()
    right = getattr(writer, method)
    monkeypatch.setattr(writer, method, lambda *args: bug(right(*args)))
    assert rule in _broken_rules(endpoint)
