"""`content` as a list of parts: text, thoughts and parts that a string cannot hold, streamed, whole and translated."""

import json

import pytest

from tests.protocol.build import CHAT, FALLBACK, finish, role, say, stream
from welldone.protocol.dialects.anthropic.writer import MessagesDialect
from welldone.protocol.dialects.base import Dialect
from welldone.protocol.dialects.ollama import OllamaDialect
from welldone.protocol.dialects.responses.writer import ResponsesDialect
from welldone.protocol.events import Json
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline

REFERENCE = {"type": "reference", "reference_ids": [1]}
CONTENT: list[Json] = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "why"}]},
    {"type": "text", "text": "so"},
    REFERENCE,
]
STREAM = stream(role(), *(say({"content": [part]}) for part in CONTENT), finish())
MESSAGE = {"role": "assistant", "content": CONTENT}
REPLY = json.dumps({"choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]}).encode()


def folded(data: bytes, dialect: Dialect | None = None) -> Json:
    fold = BufferedPipeline(CHAT, fallback=FALLBACK, dialect=dialect)
    if data is REPLY:
        fold.feed_reply(data)
    else:
        fold.feed(data)
    fold.close()
    reply: Json = json.loads(fold.body())
    return reply


def test_parts_are_streamed_in_their_order() -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK)
    assert pipe.feed(STREAM) + pipe.close() == stream(
        role(),
        say({"reasoning_content": "why"}),
        say({"content": "so"}),
        say({"content_parts": [REFERENCE]}),
        finish(),
    )


@pytest.mark.parametrize("data", [STREAM, REPLY], ids=["streamed", "whole"])
def test_parts_are_whole_in_a_whole_reply(data: bytes) -> None:
    message = folded(data)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("why", "so")
    assert message["content_parts"] == [REFERENCE]


@pytest.mark.parametrize("data", [STREAM, REPLY], ids=["streamed", "whole"])
def test_thoughts_and_text_are_translated_to_each_dialect(data: bytes) -> None:
    message = folded(data, MessagesDialect())
    assert [block.get("thinking", block.get("text")) for block in message["content"]] == ["why", "so"]
    reasoning, answer = folded(data, ResponsesDialect(echo={}))["output"]
    assert (reasoning["content"][0]["text"], answer["content"][0]["text"]) == ("why", "so")
    line = folded(data, OllamaDialect(is_chat=True, created_at="2025-01-01T00:00:00Z"))
    assert (line["message"]["thinking"], line["message"]["content"]) == ("why", "so")
