"""`content` as a list of parts (text, reasoning, others) in streams, replies and other dialects."""

import json

import pytest

from tests.protocol.build import CHAT, FALLBACK, delta_chunk, finish, role, stream
from welldone.core.answer_format import AnswerFormat
from welldone.core.events import Json
from welldone.dialects.messages.writer import MessagesFormat
from welldone.dialects.ollama.writer import OllamaFormat
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

REFERENCE = {"type": "reference", "reference_ids": [1]}
CONTENT: list[Json] = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "why"}]},
    {"type": "text", "text": "so"},
    REFERENCE,
]
STREAM = stream(role(), *(delta_chunk({"content": [part]}) for part in CONTENT), finish())
MESSAGE = {"role": "assistant", "content": CONTENT}
REPLY = json.dumps({"choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]}).encode()


def buffered_reply(data: bytes, dialect: AnswerFormat | None = None) -> Json:
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK, dialect=dialect)
    if data is REPLY:
        buffered.feed_reply(data)
    else:
        buffered.feed(data)
    buffered.close()
    reply: Json = json.loads(buffered.body())
    return reply


def test_content_parts_are_streamed_in_order() -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK)
    assert pipeline.feed(STREAM) + pipeline.close() == stream(
        role(),
        delta_chunk({"reasoning_content": "why"}),
        delta_chunk({"content": "so"}),
        delta_chunk({"content_parts": [REFERENCE]}),
        finish(),
    )


@pytest.mark.parametrize("data", [STREAM, REPLY], ids=["streamed", "whole"])
def test_content_parts_are_complete_in_a_reply(data: bytes) -> None:
    message = buffered_reply(data)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("why", "so")
    assert message["content_parts"] == [REFERENCE]


@pytest.mark.parametrize("data", [STREAM, REPLY], ids=["streamed", "whole"])
def test_reasoning_and_text_parts_are_translated_to_each_dialect(data: bytes) -> None:
    message = buffered_reply(data, MessagesFormat())
    assert [block.get("thinking", block.get("text")) for block in message["content"]] == ["why", "so"]
    reasoning, answer = buffered_reply(data, ResponsesFormat(echo={}))["output"]
    assert (reasoning["content"][0]["text"], answer["content"][0]["text"]) == ("why", "so")
    line = buffered_reply(data, OllamaFormat(is_chat=True, created_at="2025-01-01T00:00:00Z"))
    assert (line["message"]["thinking"], line["message"]["content"]) == ("why", "so")
