"""What all dialects have: how a client is answered, in a stream and whole, and when there is nothing to say."""

import json

import pytest

from tests.protocol.build import CHAT, FALLBACK, finish, role, rules, stream, words
from tests.table import table
from welldone.protocol import sse
from welldone.protocol.dialects.anthropic.repair import MessagesRepairer
from welldone.protocol.dialects.anthropic.writer import MessagesDialect
from welldone.protocol.dialects.base import KEEP_ALIVE, Dialect
from welldone.protocol.dialects.chat import ChatDialect, CompletionsDialect
from welldone.protocol.dialects.ollama import OllamaDialect
from welldone.protocol.dialects.responses.repair import ResponsesRepairer
from welldone.protocol.dialects.responses.writer import ResponsesDialect
from welldone.protocol.dialects.same_dialect import PassthroughRepairer
from welldone.protocol.events import Failure
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline
from welldone.protocol.request_facts import RequestFacts

BODY = stream(role(), *words("Hi"), finish())
FAILED = Failure("It broke.", code="x")

DIALECTS: dict[str, Dialect] = {
    "chat": ChatDialect(RequestFacts()),
    "completions": CompletionsDialect(RequestFacts()),
    "responses": ResponsesDialect({}),
    "messages": MessagesDialect(),
    "ollama": OllamaDialect(is_chat=True, created_at="now"),
}
LAST_WORDS = {
    "chat": (b'data: {"error":', sse.DONE),
    "completions": (b'data: {"error":', sse.DONE),
    "responses": (b"event: error\n", sse.FRAME_END),
    "messages": (b"event: error\n", sse.FRAME_END),
    "ollama": (b'{"error":', b"\n"),
}
NATIVES = [ResponsesRepairer, MessagesRepairer]
natives = table("kind", NATIVES)


@table("name", DIALECTS)
def test_a_stream_and_a_whole_reply_know_how_their_client_is_answered(name: str) -> None:
    dialect = DIALECTS[name]
    pipe, fold = (
        StreamPipeline(CHAT, fallback=FALLBACK, dialect=dialect),
        BufferedPipeline(CHAT, fallback=FALLBACK, dialect=dialect),
    )
    assert pipe.headers == fold.headers == dict(dialect.HEADERS)
    assert (pipe.retains_output, fold.retains_output) == (dialect.BUFFERS_OUTPUT, True)
    assert pipe.supports_fast_path == (name == "chat")
    assert (pipe.keep_alive(), fold.keep_alive()) == (dialect.INITIAL_KEEP_ALIVE, b"")
    first, last = LAST_WORDS[name]
    assert pipe.encode_failure(FAILED).startswith(first)
    assert pipe.encode_failure(FAILED).endswith(last)
    assert b"It broke." in pipe.encode_failure(FAILED)


@pytest.mark.parametrize(("name", "object_"), [("responses", "response"), ("messages", None), ("chat", None)])
def test_an_answer_that_can_be_asked_for_again_is_there_as_an_object(name: str, object_: str | None) -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, dialect=DIALECTS[name])
    out = pipe.feed(BODY[:200])
    assert pipe.keep_alive()
    assert out + pipe.feed(BODY[200:]) + pipe.close()
    assert (pipe.final_object or {}).get("object") == object_


@natives
def test_a_native_stream_has_one_part_and_one_end(kind: type[ResponsesRepairer | MessagesRepairer]) -> None:
    native: PassthroughRepairer = kind(fallback=FALLBACK)
    assert (native.headers, native.retains_output) == (dict(sse.HEADERS), True)
    assert native.keep_alive() == KEEP_ALIVE
    assert not native.is_part_stopped(0)
    assert not native.is_part_done(0)
    assert not native.has_part_started(0)
    assert native.fail(FAILED).count(b"It broke.") == 1
    assert native.is_part_done(0)
    assert native.has_part_started(0)
    assert native.encode_failure(FAILED) == native.close() == native.keep_alive() == b""


@natives
def test_a_frame_that_is_too_long_ends_the_stream(kind: type[ResponsesRepairer | MessagesRepairer]) -> None:
    native = kind(fallback=FALLBACK, limit_bytes=100)
    assert b"a frame that is too long" in native.feed(b"data: " + b"x" * 200)
    assert native.feed(b"x" * 200) + native.close() == b""
    assert rules(native.repair_log) == ["enc-strict-json"]


@natives
@table(
    ("data", "why"), [(b"x" * 200_000, b"is no JSON"), (b"[" + b"[]," * 50_000 + b"1]", b"is too complex to be read")]
)
def test_a_long_frame_is_strict_json_that_costs_little_or_a_failure(
    kind: type[ResponsesRepairer | MessagesRepairer], data: bytes, why: bytes
) -> None:
    native = kind(fallback=FALLBACK)
    assert b"a frame that " + why in native.feed(b"data: " + data + b"\n\n")
    assert rules(native.repair_log) == ["enc-strict-json"]


@natives
def test_a_whole_reply_that_costs_more_than_a_turn_fails(kind: type[ResponsesRepairer | MessagesRepairer]) -> None:
    native = kind(fallback=FALLBACK, is_stream=False)
    native.feed_reply(b'{"object":"response","x":[' + b"[]," * 50_000 + b"1]}")
    assert native.failure is not None
    assert "too complex" in native.failure.message


@natives
def test_what_follows_a_whole_reply_is_dropped(kind: type[ResponsesRepairer | MessagesRepairer]) -> None:
    native = kind(fallback=FALLBACK, is_stream=False)
    reply = b'{"object":"response","output":[],"content":[],"status":"completed","stop_reason":"end_turn"}'
    native.feed_reply(reply + b"\n\ndata: [DONE]\n\n")
    native.close()
    assert native.failure is None
    assert native.body().startswith(b"{")
    assert "ns-no-sse-tail" in rules(native.repair_log)


@natives
@table("data", [b"5", b"[]", b'"x" {}'])
def test_json_that_is_no_event_is_dropped_and_noted(
    kind: type[ResponsesRepairer | MessagesRepairer], data: bytes
) -> None:
    native = kind(fallback=FALLBACK)
    assert native.feed(b"data: " + data + b"\n\n") == b""
    assert native.failure is None
    assert any(rule.endswith("-no-unknown-events") for rule in rules(native.repair_log))


HALF = rb"\ud83d"


@natives
@table(
    "data",
    [
        b'{"type":"response.in_progress","delta":"?"}',
        b'{"type":"response.output_text.delta","item_id":"?","delta":"?","x":"?","?":1}',
        b'{"type":"response.function_call_arguments.delta","delta":"?"}',
        b'{"type":"error","code":"?","message":"?","param":"?","delta":"?"}',
        b'{"type":"?","delta":"?"}',
        b'{"type":["?"],"delta":"?"}',
        b'{"message":"?","code":"?","delta":{"type":"text_delta","text":"?"}}',
        b'{"type":"message_start","delta":{"type":"text_delta","text":"?"},"message":{"id":"?","model":"?"}}',
        b'{"type":"content_block_delta","index":0,"x":"?","delta":{"type":"text_delta","text":"?","x":"?"}}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"?"}}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","text":"?","thinking":"?"}}',
        b'{"type":"message_delta","delta":{"type":"text_delta","text":"?","stop_reason":"?"}}',
        b'{"type":"error","error":{"type":"?","message":"?"},"delta":{"type":"text_delta","text":"?"}}',
    ],
)
def test_half_a_character_may_stand_anywhere(kind: type[ResponsesRepairer | MessagesRepairer], data: bytes) -> None:
    native = kind(fallback=FALLBACK)
    body = native.feed(b"data: " + data.replace(b"?", HALF) + b"\n\n") + native.close()
    assert b"event: " in body
    assert json.loads(body.decode().rpartition("data: ")[2])
