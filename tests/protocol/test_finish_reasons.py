"""Finish reasons of all providers, in streams and replies, in each dialect."""

import json

import pytest

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    FALLBACK,
    FALLBACKS,
    call_start,
    content_chunks,
    delta_chunk,
    finish,
    piece,
    role,
    stream,
    text,
    text_end,
)
from tests.table import table
from welldone.core.answer_format import AnswerFormat
from welldone.core.envelope import Envelope
from welldone.core.events import Json
from welldone.core.finish_reasons import (
    FAILURE_OUTCOME,
    OUTCOMES,
    PROVIDERS,
    finish_reason_for,
    finish_word,
    interrupted_failure,
    outcome_of,
)
from welldone.core.request_facts import RepairOptions
from welldone.dialects.messages.repair import MessagesRepairer
from welldone.dialects.messages.writer import MessagesFormat
from welldone.dialects.ollama.writer import OllamaFormat
from welldone.dialects.responses.repair import ResponsesRepairer
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

GOES_ON: list[object] = [None, "", "null", {}, [], 0, False, {"type": ""}, float("nan")]
DOCUMENTED = sorted(
    {(word, outcome) for provider in PROVIDERS for outcome in OUTCOMES for word in getattr(provider, outcome)}
)
INTERRUPTED = [
    "insufficient_system_resource",
    "TIMEOUT",
    "function_call_filter: MALFORMED_FUNCTION_CALL",
    {"type": "abort", "message": "out of memory"},
    {"type": 7},
    "a_word_that_nobody_documents",
    7,
    ["stop"],
    2.5,
    True,
    "tool_calls: broken" * 1000,
]


def test_each_finish_reason_has_one_outcome_for_all_providers() -> None:
    words = [word.lower() for word, _ in DOCUMENTED]
    meanings = {word.lower(): outcome for word, outcome in DOCUMENTED}
    assert {word: outcome_of(word) for word in words} == meanings


@table(("word", "outcome"), DOCUMENTED)
def test_a_documented_finish_reason_becomes_openai_s_or_a_failure(word: str, outcome: str) -> None:
    assert outcome_of(word) == outcome_of(f" {word.upper()} ") == outcome
    assert finish_reason_for(word, CHAT) == (None if outcome == FAILURE_OUTCOME else outcome)
    assert finish_reason_for(word, COMPLETIONS) == (None if outcome in (FAILURE_OUTCOME, "tool_calls") else outcome)


@table(
    ("reason", "word"),
    [
        ("stop", "stop"),
        ({"type": "length", "length": 5}, "length"),
        ({"type": 7}, '{"type":7}'),
        (["stop"], '["stop"]'),
        (True, "true"),
        *[(goes_on, None) for goes_on in GOES_ON],
    ],
)
def test_a_finish_reason_of_any_json_type_becomes_a_string_or_none(reason: object, word: str | None) -> None:
    assert finish_word(reason) == word


def test_the_prefix_of_an_unknown_finish_reason_decides() -> None:
    assert outcome_of("content_filter: SAFETY") == "content_filter"
    assert outcome_of("function_call_filter: X") == FAILURE_OUTCOME
    assert outcome_of("because: stop") is None


def test_an_error_shows_an_excerpt_of_the_finish_reason() -> None:
    assert interrupted_failure("abort").message == "the server ended the answer with finish_reason 'abort'"
    advice = '; if it ends a whole answer, set finish_reasons = {%s = "stop"} in [upstreams.NAME]'
    unknown = "the server ended the answer with the unknown "
    assert interrupted_failure("why").message == f"{unknown}finish_reason 'why'" + advice % "why"
    assert interrupted_failure("why so").message == f"{unknown}finish_reason 'why so'" + advice % '"why so"'
    assert interrupted_failure("why", field="stop_reason").message == f"{unknown}stop_reason 'why'"
    error_message = interrupted_failure("abort", {"message": "x" * 500}, field="stop_reason").message
    assert error_message.startswith("the server ended the answer with stop_reason 'abort': xxx")
    assert len(error_message) < 200


@table("reason", INTERRUPTED)
def test_an_interrupted_answer_is_an_error_in_a_stream_and_in_a_reply(reason: object) -> None:
    for endpoint, parts in (
        (CHAT, [role(), *content_chunks("a"), finish(reason)]),
        (COMPLETIONS, [text("a"), text_end(reason)]),
    ):
        pipeline = StreamPipeline(endpoint, fallback=FALLBACKS[endpoint])
        sent = pipeline.feed(stream(*parts)) + pipeline.close()
        assert pipeline.failure is not None
        assert sent.count(b'data: {"error"') == 1
        assert b'"finish_reason":"' not in sent
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK)
    buffered.feed_reply(reply({"content": "a"}, reason))
    buffered.close()
    assert buffered.failure is not None


@table(
    ("own", "word", "reason"),
    [
        ({"Finished": "stop"}, "Finished", "stop"),
        ({"Full": "length"}, "Full", "length"),
        ({"Generated": "length"}, "Generated", "length"),
        ({"Finished": "stop"}, "finished", None),
        ({}, "Generated", "stop"),
    ],
)
def test_an_upstream_may_have_its_own_words(own: dict[str, str], word: str, reason: str | None) -> None:
    for endpoint, parts in ((CHAT, [role(), *content_chunks("a"), finish(word)]), (COMPLETIONS, [text_end(word)])):
        pipeline = StreamPipeline(endpoint, fallback=FALLBACKS[endpoint], options=RepairOptions(finish_reasons=own))
        pipeline.feed(stream(*parts))
        pipeline.close()
        assert pipeline.finish_reasons == (() if reason is None else (reason,))
        assert (pipeline.failure is None) is (reason is not None)


def reply(message: Json, reason: object, **members: object) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason, **members}
    return json.dumps(
        {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    ).encode()


WHOLE_CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
CUT_CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":'}}


@table("reason", [None, "", "null", [], False])
def test_a_reply_without_a_finish_reason_is_an_error_unless_its_calls_are_complete(reason: object) -> None:
    for message, finished in (
        ({"content": "a"}, None),
        ({"content": None, "tool_calls": [WHOLE_CALL, CUT_CALL]}, None),
        ({"content": None, "tool_calls": []}, None),
        ({"content": None, "tool_calls": [WHOLE_CALL | {"function": None}]}, None),
        ({"content": None, "tool_calls": [WHOLE_CALL]}, "tool_calls"),
        ({"content": None, "tool_calls": [WHOLE_CALL | {"function": {"name": "f", "arguments": {}}}]}, "tool_calls"),
    ):
        buffered = BufferedPipeline(CHAT, fallback=FALLBACK)
        buffered.feed_reply(reply(message, reason))
        buffered.close()
        answer = json.loads(buffered.body())
        if finished is None:
            assert answer["error"]["code"] == "incomplete_stream"
        else:
            assert answer["choices"][0]["finish_reason"] == finished


CREATED_AT = "2025-01-01T00:00:00Z"
ENVELOPE = Envelope("x-1", 1, "m")
DIALECTS: dict[str, tuple[type[AnswerFormat], Json]] = {
    "messages": (MessagesFormat, {}),
    "responses": (ResponsesFormat, {"echo": {}}),
    "ollama": (OllamaFormat, {"is_chat": True, "created_at": CREATED_AT}),
}
TRANSLATED = [
    # The provider's finish reason; Anthropic's stop_reason; status and reason of a Response; Ollama's done_reason.
    ("COMPLETE", "end_turn", ("completed", None), "stop"),
    ("model_length", "max_tokens", ("incomplete", "max_output_tokens"), "length"),
    ("RECITATION", "refusal", ("incomplete", "content_filter"), "content_filter"),
]


@table(("word", "messages", "responses", "ollama"), TRANSLATED)
@table("is_reply", [False, True])
def test_a_finish_reason_is_translated_to_each_dialect(
    word: str, messages: str, responses: tuple[str, str | None], ollama: str, is_reply: bool
) -> None:
    bodies: dict[str, bytes] = {}
    for name, (kind, options) in DIALECTS.items():
        data = stream(role(), *content_chunks("a"), finish(word))
        if is_reply:
            buffered = BufferedPipeline(CHAT, fallback=ENVELOPE, dialect=kind(**options))
            buffered.feed(data)
            buffered.close()
            bodies[name] = buffered.body()
        else:
            pipeline = StreamPipeline(CHAT, fallback=ENVELOPE, dialect=kind(**options))
            bodies[name] = pipeline.feed(data) + pipeline.close()
    assert f'"stop_reason":"{messages}"'.encode() in bodies["messages"]
    status, reason = responses
    assert f'"status":"{status}"'.encode() in bodies["responses"]
    assert reason is None or f'"incomplete_details":{{"reason":"{reason}"}}'.encode() in bodies["responses"]
    assert f'"done_reason":"{ollama}"'.encode() in bodies["ollama"]


def message_stream(reason: object) -> bytes:
    """Messages stream with the stop reason `reason`."""
    start: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    start |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 0}}
    events: list[Json] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 1},
        },
        {"type": "message_stop"},
    ]
    return b"".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in events)


@table(
    ("word", "stop_reason"),
    [
        ("end_turn", "end_turn"),
        ("compaction", "compaction"),
        ("length", "max_tokens"),
        ("SAFETY", "refusal"),
        ({"type": "length"}, "max_tokens"),
        ("insufficient_system_resource", None),
        ({"type": "abort", "message": "out of memory"}, None),
        ("a_reason_of_next_year", "a_reason_of_next_year"),
    ],
)
def test_the_stop_reason_of_a_messages_upstream_is_kept_or_translated(word: object, stop_reason: str | None) -> None:
    repairer = MessagesRepairer(fallback=ENVELOPE)
    sent = repairer.feed(message_stream(word)) + repairer.close()
    reply_repairer = MessagesRepairer(fallback=ENVELOPE, is_stream=False)
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": word}
    message |= {"content": [{"type": "text", "text": "a"}], "usage": {"input_tokens": 1, "output_tokens": 1}}
    reply_repairer.feed_reply(json.dumps(message).encode())
    reply_repairer.close()
    if stop_reason is None:
        assert b"event: error" in sent
        assert b"message_stop" not in sent
        assert reply_repairer.failure is not None
    else:
        assert f'"stop_reason":"{stop_reason}"'.encode() in sent
        assert json.loads(reply_repairer.body())["stop_reason"] == stop_reason


@pytest.mark.parametrize("reason", [None, ""])
def test_a_message_without_a_stop_reason_is_an_error_unless_it_calls_a_tool(reason: object) -> None:
    for block, stop_reason in (
        ({"type": "text", "text": "a"}, None),
        ({"type": "tool_use", "id": "t", "name": "f", "input": {}}, "tool_use"),
    ):
        repairer = MessagesRepairer(fallback=ENVELOPE, is_stream=False)
        message = {"type": "message", "role": "assistant", "content": [block], "stop_reason": reason}
        repairer.feed_reply(json.dumps(message).encode())
        repairer.close()
        assert (repairer.failure is None) == (stop_reason is not None)
        assert stop_reason is None or json.loads(repairer.body())["stop_reason"] == stop_reason


ITEM = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}


@table(
    ("response", "status"),
    [
        ({"status": "completed", "output": [ITEM]}, "completed"),
        ({"output": [ITEM | {"status": "completed"}]}, "completed"),
        ({"output": [ITEM]}, None),
        ({"output": []}, None),
        ({"status": None, "output": [ITEM | {"status": "incomplete"}]}, None),
        ({"status": "stopped", "output": [ITEM | {"status": "completed"}]}, None),
        ({"status": "incomplete", "incomplete_details": {"reason": "steered"}, "output": [ITEM]}, "incomplete"),
    ],
)
def test_a_response_without_a_known_status_is_an_error(response: Json, status: str | None) -> None:
    repairer = ResponsesRepairer(fallback=ENVELOPE, is_stream=False)
    repairer.feed_reply(json.dumps({"object": "response", "id": "resp_1", "model": "m", **response}).encode())
    repairer.close()
    assert (repairer.failure is None) == (status is not None)
    if status is not None:
        final = json.loads(repairer.body())
        assert final["status"] == status
        assert final["incomplete_details"] == response.get("incomplete_details")


def test_a_cancelled_response_is_not_completed() -> None:
    repairer = ResponsesRepairer(fallback=ENVELOPE)
    response = {"id": "resp_1", "object": "response", "status": "cancelled", "output": []}
    event = {"type": "response.completed", "response": response}
    sent = repairer.feed(f"event: response.completed\ndata: {json.dumps(event)}\n\n".encode()) + repairer.close()
    assert b"event: response.failed" in sent
    assert b"event: response.completed" not in sent


def test_tool_calls_with_an_unknown_finish_reason_are_a_failure() -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK)
    sent = (
        pipeline.feed(stream(role(), delta_chunk(call_start()), delta_chunk(piece("{}")), finish("because")))
        + pipeline.close()
    )
    assert pipeline.failure is not None
    assert b"unknown finish_reason 'because'" in sent
