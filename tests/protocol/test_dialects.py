"""Behaviour that all dialects share, as stream and as reply."""

import json

import pytest

from tests.protocol.build import CHAT, FALLBACK, content_chunks, finish, role, rules, stream
from tests.table import table
from welldone.core import sse
from welldone.core.answer_format import KEEP_ALIVE, AnswerFormat
from welldone.core.envelope import Endpoint
from welldone.core.events import Failure, Text
from welldone.core.request_facts import RequestFacts
from welldone.core.state import PartState
from welldone.dialects.chat.writer import ChunkFormat
from welldone.dialects.messages.repair import MessagesRepairer
from welldone.dialects.messages.writer import MessagesFormat
from welldone.dialects.ollama.writer import OllamaFormat
from welldone.dialects.responses.repair import ResponsesRepairer
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.dialects.same_dialect import PassthroughRepairer
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

BODY = stream(role(), *content_chunks("Hi"), finish())
FAILED = Failure("It broke.", code="x")

DIALECTS: dict[str, AnswerFormat] = {
    "chat": ChunkFormat(RequestFacts()),
    "completions": ChunkFormat(RequestFacts(), Endpoint.COMPLETIONS),
    "responses": ResponsesFormat({}),
    "messages": MessagesFormat(),
    "ollama": OllamaFormat(is_chat=True, created_at="now"),
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
def test_pipelines_have_the_headers_of_the_dialect(name: str) -> None:
    dialect = DIALECTS[name]
    streaming, buffered = (
        StreamPipeline(CHAT, fallback=FALLBACK, dialect=dialect),
        BufferedPipeline(CHAT, fallback=FALLBACK, dialect=dialect),
    )
    assert streaming.headers == buffered.headers == dict(dialect.HEADERS)
    assert (streaming.retains_output, buffered.retains_output) == (Text in dialect.BUFFERED_EVENTS, True)
    assert (streaming.keep_alive(), buffered.keep_alive()) == (dialect.INITIAL_KEEP_ALIVE, b"")
    first, last = LAST_WORDS[name]
    assert streaming.encode_failure(FAILED).startswith(first)
    assert streaming.encode_failure(FAILED).endswith(last)
    assert b"It broke." in streaming.encode_failure(FAILED)


@pytest.mark.parametrize(("name", "object_"), [("responses", "response"), ("messages", None), ("chat", None)])
def test_a_retrievable_answer_is_available_as_an_object(name: str, object_: str | None) -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, dialect=DIALECTS[name])
    out = pipeline.feed(BODY[:200])
    assert pipeline.keep_alive()
    assert out + pipeline.feed(BODY[200:]) + pipeline.close()
    assert (pipeline.final_object or {}).get("object") == object_


@natives
def test_a_passthrough_stream_has_one_part_and_one_end(kind: type[ResponsesRepairer | MessagesRepairer]) -> None:
    repairer: PassthroughRepairer = kind(fallback=FALLBACK)
    assert (repairer.headers, repairer.retains_output) == (dict(sse.HEADERS), True)
    assert repairer.keep_alive() == KEEP_ALIVE
    assert repairer.part_state(0) is PartState.WAITING
    assert repairer.fail(FAILED).count(b"It broke.") == 1
    assert repairer.part_state(0) >= PartState.DONE
    assert repairer.encode_failure(FAILED) == repairer.close() == repairer.keep_alive() == b""


@pytest.mark.parametrize(("name", "kind"), [("responses", ResponsesRepairer), ("messages", MessagesRepairer)])
def test_the_state_of_a_passthrough_stream_follows_its_events(
    name: str, kind: type[ResponsesRepairer | MessagesRepairer]
) -> None:
    writer = StreamPipeline(CHAT, fallback=FALLBACK, dialect=DIALECTS[name])
    repairer = kind(fallback=FALLBACK)
    repairer.feed(writer.feed(stream(role(), *content_chunks("Hi"), end=b"")))
    assert repairer.part_state(0) is PartState.ANSWERING
    repairer.feed(writer.feed(stream(finish())) + writer.close())
    assert repairer.part_state(0) is PartState.DONE


@natives
def test_a_frame_that_is_too_long_ends_the_stream(kind: type[ResponsesRepairer | MessagesRepairer]) -> None:
    repairer = kind(fallback=FALLBACK)
    assert b"the server sent a frame of more than" in repairer.feed(b"data: " + b"x" * 2 * sse.FRAME_LIMIT_BYTES)
    assert repairer.feed(b"x" * 200) + repairer.close() == b""
    assert rules(repairer.repair_log) == ["enc-strict-json"]


@natives
@table(
    ("data", "why"), [(b"x" * 200_000, b"is not JSON"), (b"[" + b"[]," * 50_000 + b"1]", b"is too complex to parse")]
)
def test_a_long_frame_must_be_cheap_strict_json(
    kind: type[ResponsesRepairer | MessagesRepairer], data: bytes, why: bytes
) -> None:
    repairer = kind(fallback=FALLBACK)
    assert b"a frame that " + why in repairer.feed(b"data: " + data + b"\n\n")
    assert rules(repairer.repair_log) == ["enc-strict-json"]


@natives
def test_a_reply_that_exceeds_the_parse_budget_fails(kind: type[ResponsesRepairer | MessagesRepairer]) -> None:
    repairer = kind(fallback=FALLBACK, is_stream=False)
    repairer.feed_reply(b'{"object":"response","x":[' + b"[]," * 50_000 + b"1]}")
    assert repairer.failure is not None
    assert "too complex" in repairer.failure.message


@natives
def test_data_after_a_reply_is_dropped(kind: type[ResponsesRepairer | MessagesRepairer]) -> None:
    repairer = kind(fallback=FALLBACK, is_stream=False)
    reply = b'{"object":"response","output":[],"content":[],"status":"completed","stop_reason":"end_turn"}'
    repairer.feed_reply(reply + b"\n\ndata: [DONE]\n\n")
    repairer.close()
    assert repairer.failure is None
    assert repairer.body().startswith(b"{")
    assert "ns-no-sse-tail" in rules(repairer.repair_log)


@natives
@table("data", [b"null", b"[]", b"null {}"])
def test_json_that_is_not_an_event_is_dropped_and_logged(
    kind: type[ResponsesRepairer | MessagesRepairer], data: bytes
) -> None:
    repairer = kind(fallback=FALLBACK)
    assert repairer.feed(b"data: " + data + b"\n\n") == b""
    assert repairer.failure is None
    assert any(rule.endswith("-no-unknown-events") for rule in rules(repairer.repair_log))


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
def test_lone_surrogates_are_accepted_anywhere(kind: type[ResponsesRepairer | MessagesRepairer], data: bytes) -> None:
    repairer = kind(fallback=FALLBACK)
    body = repairer.feed(b"data: " + data.replace(b"?", HALF) + b"\n\n") + repairer.close()
    assert b"event: " in body
    assert json.loads(body.decode().rpartition("data: ")[2])


def passed_on(name: str, extra: bytes) -> tuple[PassthroughRepairer, bytes]:
    """Repair a stream of two text events with something between them."""
    kind = {"responses": ResponsesRepairer, "messages": MessagesRepairer}[name]
    writer, repairer = StreamPipeline(CHAT, fallback=FALLBACK, dialect=DIALECTS[name]), kind(fallback=FALLBACK)
    sent = repairer.feed(writer.feed(stream(role(), *content_chunks("Hi"), end=b"")) + extra)
    sent += repairer.feed(writer.feed(stream(*content_chunks("you"), finish())) + writer.close())
    return repairer, sent + repairer.close()


IGNORED = {
    "a comment in a data field": b"data: : ping\n\n",
    "[DONE] in another spelling": b'data: "[done]"\n\n',
    "an empty comment in a data field": b"data: :\n\n",
}


@table("name", ["responses", "messages"])
@table("extra", IGNORED.values())
def test_frames_without_content_do_not_end_a_passthrough_stream(name: str, extra: bytes) -> None:
    repairer, sent = passed_on(name, extra)
    assert repairer.failure is None
    assert b'"Hi"' in sent
    assert b'"you"' in sent


@table("name", ["responses", "messages"])
def test_an_error_field_ends_a_passthrough_stream(name: str) -> None:
    repairer, sent = passed_on(name, b'error: {"message": "out of memory"}\n\n')
    assert repairer.failure is not None
    assert repairer.failure.message == "out of memory"
    assert b"out of memory" in sent
    assert "err-not-error-field" in rules(repairer.repair_log)
