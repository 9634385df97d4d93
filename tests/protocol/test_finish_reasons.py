"""Finish reasons: the words of each provider, streamed and whole, in each dialect."""

import json

import pytest

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    FALLBACK,
    FALLBACKS,
    finish,
    named,
    piece,
    role,
    say,
    stream,
    text,
    text_end,
    words,
)
from tests.table import table
from welldone.protocol.dialects.anthropic.repair import MessagesRepairer
from welldone.protocol.dialects.anthropic.writer import MessagesDialect
from welldone.protocol.dialects.base import Dialect
from welldone.protocol.dialects.ollama import OllamaDialect
from welldone.protocol.dialects.responses.repair import ResponsesRepairer
from welldone.protocol.dialects.responses.writer import ResponsesDialect
from welldone.protocol.envelope import Envelope
from welldone.protocol.events import Json
from welldone.protocol.finish_reasons import (
    FAILURE_OUTCOME,
    OUTCOMES,
    PROVIDERS,
    finish_reason_for,
    finish_word,
    interrupted_failure,
    outcome_of,
)
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline

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


def test_each_word_has_one_meaning_whoever_sends_it() -> None:
    words = [word.lower() for word, _ in DOCUMENTED]
    meanings = {word.lower(): outcome for word, outcome in DOCUMENTED}
    assert {word: outcome_of(word) for word in words} == meanings


@table(("word", "outcome"), DOCUMENTED)
def test_a_documented_word_becomes_openai_s_or_a_failure(word: str, outcome: str) -> None:
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
def test_a_reason_of_any_json_type_has_a_word_or_is_none(reason: object, word: str | None) -> None:
    assert finish_word(reason) == word


def test_the_prefix_of_a_word_counts_where_the_whole_is_not_known() -> None:
    assert outcome_of("content_filter: SAFETY") == "content_filter"
    assert outcome_of("function_call_filter: X") == FAILURE_OUTCOME
    assert outcome_of("because: stop") is None


def test_an_error_shows_the_word_and_no_more_than_a_line_of_it() -> None:
    assert interrupted_failure("abort").message == "the server ended the answer with finish_reason 'abort'"
    assert interrupted_failure("why").message == "the server ended the answer with the unknown finish_reason 'why'"
    told = interrupted_failure("abort", {"message": "x" * 500}, field="stop_reason").message
    assert told.startswith("the server ended the answer with stop_reason 'abort': xxx")
    assert len(told) < 200


@table("reason", INTERRUPTED)
def test_an_interrupted_answer_is_an_error_streamed_and_whole(reason: object) -> None:
    for endpoint, parts in (
        (CHAT, [role(), *words("a"), finish(reason)]),
        (COMPLETIONS, [text("a"), text_end(reason)]),
    ):
        pipe = StreamPipeline(endpoint, fallback=FALLBACKS[endpoint])
        sent = pipe.feed(stream(*parts)) + pipe.close()
        assert pipe.failure is not None
        assert sent.count(b'data: {"error"') == 1
        assert b'"finish_reason":"' not in sent
    fold = BufferedPipeline(CHAT, fallback=FALLBACK)
    fold.feed_reply(reply({"content": "a"}, reason))
    fold.close()
    assert fold.failure is not None


def reply(message: Json, reason: object, **members: object) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason, **members}
    return json.dumps(
        {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    ).encode()


WHOLE_CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
CUT_CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":'}}


@table("reason", [None, "", "null", [], False])
def test_a_whole_reply_without_a_reason_is_an_error_unless_its_calls_are_whole(reason: object) -> None:
    for message, finished in (
        ({"content": "a"}, None),
        ({"content": None, "tool_calls": [WHOLE_CALL, CUT_CALL]}, None),
        ({"content": None, "tool_calls": []}, None),
        ({"content": None, "tool_calls": [WHOLE_CALL | {"function": 7}]}, None),
        ({"content": None, "tool_calls": [WHOLE_CALL]}, "tool_calls"),
        ({"content": None, "tool_calls": [WHOLE_CALL | {"function": {"name": "f", "arguments": {}}}]}, "tool_calls"),
    ):
        fold = BufferedPipeline(CHAT, fallback=FALLBACK)
        fold.feed_reply(reply(message, reason))
        fold.close()
        answer = json.loads(fold.body())
        if finished is None:
            assert answer["error"]["code"] == "incomplete_stream"
        else:
            assert answer["choices"][0]["finish_reason"] == finished


AT = "2025-01-01T00:00:00Z"
HEAD = Envelope("x-1", 1, "m")
DIALECTS: dict[str, tuple[type[Dialect], Json]] = {
    "messages": (MessagesDialect, {}),
    "responses": (ResponsesDialect, {"echo": {}}),
    "ollama": (OllamaDialect, {"is_chat": True, "at": AT}),
}
TRANSLATED = [
    # a provider's word; Anthropic's stop_reason; a Response's status and reason; Ollama's done_reason
    ("COMPLETE", "end_turn", ("completed", None), "stop"),
    ("model_length", "max_tokens", ("incomplete", "max_output_tokens"), "length"),
    ("RECITATION", "refusal", ("incomplete", "content_filter"), "content_filter"),
]


@table(("word", "messages", "responses", "ollama"), TRANSLATED)
@table("is_whole", [False, True])
def test_a_reason_is_translated_to_each_dialect(
    word: str, messages: str, responses: tuple[str, str | None], ollama: str, is_whole: bool
) -> None:
    bodies: dict[str, bytes] = {}
    for name, (kind, options) in DIALECTS.items():
        data = stream(role(), *words("a"), finish(word))
        if is_whole:
            fold = BufferedPipeline(CHAT, fallback=HEAD, dialect=kind(**options))
            fold.feed(data)
            fold.close()
            bodies[name] = fold.body()
        else:
            pipe = StreamPipeline(CHAT, fallback=HEAD, dialect=kind(**options))
            bodies[name] = pipe.feed(data) + pipe.close()
    assert f'"stop_reason":"{messages}"'.encode() in bodies["messages"]
    status, reason = responses
    assert f'"status":"{status}"'.encode() in bodies["responses"]
    assert reason is None or f'"incomplete_details":{{"reason":"{reason}"}}'.encode() in bodies["responses"]
    assert f'"done_reason":"{ollama}"'.encode() in bodies["ollama"]


def message_stream(reason: object) -> bytes:
    """A Messages stream that stops with `reason`."""
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
    ("word", "said"),
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
def test_a_messages_upstream_keeps_its_reason_or_has_it_translated(word: object, said: str | None) -> None:
    native = MessagesRepairer(fallback=HEAD)
    sent = native.feed(message_stream(word)) + native.close()
    whole = MessagesRepairer(fallback=HEAD, is_stream=False)
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": word}
    message |= {"content": [{"type": "text", "text": "a"}], "usage": {"input_tokens": 1, "output_tokens": 1}}
    whole.feed_reply(json.dumps(message).encode())
    whole.close()
    if said is None:
        assert b"event: error" in sent
        assert b"message_stop" not in sent
        assert whole.failure is not None
    else:
        assert f'"stop_reason":"{said}"'.encode() in sent
        assert json.loads(whole.body())["stop_reason"] == said


@pytest.mark.parametrize("reason", [None, ""])
def test_a_whole_message_without_a_reason_is_an_error_unless_it_calls_a_tool(reason: object) -> None:
    for block, said in (
        ({"type": "text", "text": "a"}, None),
        ({"type": "tool_use", "id": "t", "name": "f", "input": {}}, "tool_use"),
    ):
        native = MessagesRepairer(fallback=HEAD, is_stream=False)
        message = {"type": "message", "role": "assistant", "content": [block], "stop_reason": reason}
        native.feed_reply(json.dumps(message).encode())
        native.close()
        assert (native.failure is None) == (said is not None)
        assert said is None or json.loads(native.body())["stop_reason"] == said


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
def test_a_whole_response_without_a_known_status_is_an_error(response: Json, status: str | None) -> None:
    native = ResponsesRepairer(fallback=HEAD, is_stream=False)
    native.feed_reply(json.dumps({"object": "response", "id": "resp_1", "model": "m", **response}).encode())
    native.close()
    assert (native.failure is None) == (status is not None)
    if status is not None:
        final = json.loads(native.body())
        assert final["status"] == status
        assert final["incomplete_details"] == response.get("incomplete_details")


def test_a_response_that_was_cancelled_is_not_completed() -> None:
    native = ResponsesRepairer(fallback=HEAD)
    response = {"id": "resp_1", "object": "response", "status": "cancelled", "output": []}
    event = {"type": "response.completed", "response": response}
    sent = native.feed(f"event: response.completed\ndata: {json.dumps(event)}\n\n".encode()) + native.close()
    assert b"event: response.failed" in sent
    assert b"event: response.completed" not in sent


def test_calls_with_a_reason_that_nobody_knows_are_not_a_success() -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK)
    sent = pipe.feed(stream(role(), say(named()), say(piece("{}")), finish("because"))) + pipe.close()
    assert pipe.failure is not None
    assert b"unknown finish_reason 'because'" in sent
