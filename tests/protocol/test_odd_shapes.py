"""Whole answers in odd shapes: content that is repeated, late or beside junk comes out once, without an error."""

from typing import Any

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    FALLBACKS,
    call,
    call_start,
    choice,
    chunk,
    content_chunks,
    count,
    delta_chunk,
    finish,
    frame,
    piece,
    role,
    rules,
    stream,
    text,
    text_choice,
    text_chunk,
    text_end,
    usage_chunk,
)
from tests.table import table
from welldone.core.envelope import Endpoint
from welldone.core.fields import BROKEN_OFF
from welldone.core.request_facts import RepairOptions, RequestFacts
from welldone.stream.pipeline import StreamPipeline

H, F = delta_chunk({"role": "assistant", "content": "Hello"}), finish()
HELLO = stream(role(), *content_chunks("Hello"), F)
DONE = b"data: [DONE]\n\n"
CALL = {"index": 0, "id": "call_a", "type": "function", "function": {"name": "get", "arguments": '{"x":1}'}}
CALLED = stream(role(), *map(delta_chunk, [call_start(), piece('{"x":1}')]), finish("tool_calls"))
ENDS = RepairOptions(unfinished=None)


def fix(
    data: bytes,
    endpoint: Endpoint = CHAT,
    facts: RequestFacts | None = None,
    options: RepairOptions | None = None,
) -> tuple[bytes, StreamPipeline]:
    more: dict[str, Any] = {} if options is None else {"options": options}
    pipeline = StreamPipeline(endpoint, fallback=FALLBACKS[endpoint], facts=facts or RequestFacts(), **more)
    return pipeline.feed(data) + pipeline.close(), pipeline


def end_of_text(word: str, index: int = 0) -> object:
    return text_chunk(text_choice("", word, index))


@table(
    ("choice_members", "expected"),
    [
        ({"text": "\n", "delta": {}}, "\n"),
        ({"text": "\n", "delta": {"content": ""}}, "\n"),
        ({"text": "null", "delta": {}}, "null"),
        ({"text": "a", "delta": {"role": "assistant", "content": "a", "tool_calls": None}}, "a"),
        ({"text": "b", "message": {"content": "ab"}}, "b"),
        ({"text": "", "message": {"content": "ab"}}, "ab"),
    ],
)
def test_a_completion_with_members_of_a_chat(choice_members: dict[str, Any], expected: str) -> None:
    body, _ = fix(stream(text(**choice_members), text_end()), COMPLETIONS)
    assert body == stream(text(expected), text_end())


def test_a_completion_whose_message_repeats_the_text() -> None:
    parts = [text("a", message={"content": "a"}), text("b", message={"content": "ab"})]
    last = text_chunk(text_choice("", "stop", message={"role": "assistant", "content": "ab"}))
    assert fix(stream(*parts, last), COMPLETIONS)[0] == stream(text("a"), text("b"), text_end())


def test_an_unknown_field_in_the_delta_of_a_completion_is_kept() -> None:
    body, pipeline = fix(stream(text("a", delta={"token_id": 42, "content": "a"}), text_end()), COMPLETIONS)
    assert body == stream(text("a", token_id=42), text_end())
    assert rules(pipeline.repair_log) == ["cmpl-no-delta"]


@table(
    "members",
    [
        {"text": "a", "delta": {"content": "b"}},
        {"text": "a", "delta": {"refusal": "b"}},
        {"text": "a", "message": {"tool_calls": [CALL]}},
        {"text": "a", "message": "b"},
    ],
)
def test_content_that_a_completion_cannot_have_is_an_error(members: dict[str, Any]) -> None:
    assert fix(stream(text(**members), text_end()), COMPLETIONS)[1].failure is not None


def test_a_finish_reason_after_done() -> None:
    late = [text("a"), end_of_text("stop"), text("b", index=1)]
    body, pipeline = fix(stream(*late) + frame(end_of_text("length", 1)), COMPLETIONS)
    assert pipeline.finish_reasons == ("stop", "length")
    assert body.endswith(DONE)
    parts = [role(), role(1), *content_chunks("a"), F, delta_chunk(call_start(arguments='{"x":1}'), 1)]
    assert fix(stream(*parts) + frame(finish("length", 1)))[1].finish_reasons == ("stop", "length")
    assert fix(HELLO + frame(finish("length")))[0] == HELLO


@table(
    "late",
    [b'"bye"', b"42", b'{"choices":"bye"}', b'{"choices":[{"index":0,"delta":{"tool_calls":"x"}}]}'],
)
def test_junk_after_the_end(late: bytes) -> None:
    assert fix(HELLO + b"data: " + late + b"\n\n")[0] == HELLO


@table("heartbeat", [b'"ping"', b"1712345", b'["keepalive"]', b"true", b"null"])
def test_a_heartbeat_without_an_object(heartbeat: bytes) -> None:
    beat = b"data: " + heartbeat + b"\n\n"
    body, pipeline = fix(stream(role(), beat, *content_chunks("Hello"), beat, F, beat))
    assert body == HELLO
    assert pipeline.repair_log.counts()["sse-no-foreign-json"] == 3


def test_an_object_in_a_list_with_a_heartbeat() -> None:
    assert fix(stream(role(), frame(["ping", *content_chunks("Hello")]), F))[0] == HELLO


def test_a_foreign_object_is_no_answer() -> None:
    body, pipeline = fix(stream({"cost": 1}))
    assert pipeline.failure is not None
    assert pipeline.failure.message == "the server sent no answer"
    assert b'"finish_reason":"' not in body


@table("late", [frame([[chunk(choice({"content": "x"}))]]), frame('{"choices": []}')])
def test_a_chunk_within_a_string_or_a_list_is_content(late: bytes) -> None:
    assert fix(stream(H, late, F))[1].failure is not None


def test_metadata_after_done() -> None:
    facts = RequestFacts(include_usage=True)
    late = frame(chunk(cost=0.5)) + frame(usage_chunk(count(), timings={"predicted_n": 3}))
    body, _ = fix(HELLO + late, facts=facts)
    assert body.endswith(DONE)
    assert b'"cost":0.5' in body
    assert b'"predicted_n":3' in body
    assert b'"completion_tokens":3' in body


@table(
    ("parts", "facts", "options"),
    [
        ([delta_chunk({"reasoning_content": "Let me thi"})], None, ENDS),
        ([delta_chunk({"content": "<think>abc"})], None, RepairOptions(unfinished=None, think="tags")),
        ([delta_chunk({"content": "<think>abc</think>"})], None, RepairOptions(unfinished=None, think="tags")),
        (
            [delta_chunk(call(id="call_a", type="custom", custom={"name": "patch", "input": "*** Begin Pa"}))],
            None,
            ENDS,
        ),
        (content_chunks('{"a": [1, 2'), RequestFacts(is_json_output=True, is_json_object=True), ENDS),
    ],
)
def test_an_answer_that_may_be_cut_does_not_end(
    parts: list[object], facts: RequestFacts | None, options: RepairOptions
) -> None:
    body, pipeline = fix(stream(role(), *parts, end=b""), facts=facts, options=options)
    assert pipeline.failure == BROKEN_OFF
    assert b'"finish_reason":"' not in body


@table(
    ("parts", "facts", "options"),
    [
        ([delta_chunk({"content": "<think>abc</think>Hi"})], None, RepairOptions(unfinished=None, think="tags")),
        (content_chunks('{"a": [1, 2]}'), RequestFacts(is_json_output=True, is_json_object=True), ENDS),
        (content_chunks('{"a": ', "1}"), RequestFacts(is_json_output=True), ENDS),
    ],
)
def test_an_answer_that_is_whole_ends(parts: list[object], facts: RequestFacts | None, options: RepairOptions) -> None:
    assert fix(stream(role(), *parts, end=b""), facts=facts, options=options)[1].finish_reasons == ("stop",)


@table(
    ("function_call", "function"),
    [
        ({"name": None, "arguments": '{"x":1}'}, CALL["function"]),
        ({"name": "get", "arguments": ""}, CALL["function"]),
        ({"name": "get", "arguments": {"x": 1}}, CALL["function"]),
        (CALL["function"], CALL["function"]),
    ],
)
def test_a_call_in_both_forms(function_call: object, function: object) -> None:
    delta = {"function_call": function_call, "tool_calls": [{**CALL, "function": function}]}
    body, pipeline = fix(stream(role(), delta_chunk(delta), finish("tool_calls")))
    assert pipeline.failure is None
    assert body.count(b'"name":"get"') == body.count(b'x\\":1') == 1


def test_a_call_beside_an_empty_list() -> None:
    delta = {"function_call": {"name": "get", "arguments": '{"x":1}'}, "tool_calls": [{"index": 0}]}
    assert b'x\\":1' in fix(stream(role(), delta_chunk(delta), finish("tool_calls")))[0]


def beside(delta: object, message: object, finish_reason: str | None = None) -> object:
    return chunk(choice(delta, finish_reason, message=message))


CALL_PIECES = [call_start()["tool_calls"], piece('{"x":', 0)["tool_calls"], piece("1}", 0)["tool_calls"]]


@table(
    "parts",
    [
        [beside({"role": "assistant"}, {"content": "Hello"}), beside({"content": "Hello"}, {"content": "Hello"}), F],
        [beside({"role": "assistant"}, {"content": "Hel"}), beside({}, {"content": "lo"}), F],
        [beside({"role": "assistant"}, {"content": "Hel"}), beside({"role": "assistant"}, {"content": "lo"}), F],
        [beside({"role": "assistant"}, {"role": "assistant", "content": "Hello"}), F],
        [beside({"role": "assistant"}, {"content": "Hello"})],
        [
            beside({"role": "assistant"}, {"content": one})
            for one in (None, "Hel", None, [{"type": "text", "text": "lo"}])
        ],
        [
            beside(None, {"content": "Hel"}),
            beside(None, {"content": "Hello"}),
            beside({}, {"content": "Hello"}, "stop"),
        ],
        [beside({"content": "Hello"}, "success"), F],
        [H, beside({}, "success", "stop")],
        [H, beside({}, {"role": "assistant", "content": "Hello"}, "stop")],
        [H, beside({"role": "assistant"}, {"role": "assistant", "content": "Hello"}, "stop")],
    ],
)
def test_text_in_a_message_beside_deltas(parts: list[object]) -> None:
    body, pipeline = fix(stream(*parts))
    assert pipeline.failure is None
    sent = b"".join(one.split(b'"')[0] for one in body.split(b'"content":"')[1:])
    assert sent == b"Hello"


@table(
    "parts",
    [
        [beside({"tool_calls": one}, {"tool_calls": one}) for one in CALL_PIECES],
        [beside({"tool_calls": one}, {"tool_calls": [CALL]}) for one in CALL_PIECES],
        [*(delta_chunk({"tool_calls": one}) for one in CALL_PIECES), beside({}, {"tool_calls": [CALL]}, "tool_calls")],
        [
            *(delta_chunk({"function_call": one[0]["function"]}) for one in CALL_PIECES),
            beside({}, {"tool_calls": [CALL]}, "tool_calls"),
        ],
        [beside({"role": "assistant"}, {"tool_calls": [CALL]}), beside({"role": "assistant"}, {"tool_calls": [CALL]})],
        [beside({"role": "assistant"}, {"tool_calls": [CALL]}), *(delta_chunk({"tool_calls": o}) for o in CALL_PIECES)],
    ],
)
def test_calls_in_a_message_beside_deltas(parts: list[object]) -> None:
    body, pipeline = fix(stream(*parts, finish("tool_calls")))
    assert pipeline.failure is None
    assert pipeline.finish_reasons == ("tool_calls",)
    sent = b"".join(one.split(b'"}')[0] for one in body.split(b'"arguments":"')[1:])
    assert sent == rb"{\"x\":1}"


def test_calls_that_a_later_message_changes_are_an_error() -> None:
    other = {**CALL, "id": "call_b"}
    assert fix(stream(beside(None, {"tool_calls": [CALL]}), beside(None, {"tool_calls": [other]}), F))[1].failure


@table("repeated", ['{"x":1}', "{}", "null"])
def test_arguments_that_are_repeated_after_the_next_call(repeated: str) -> None:
    calls = [call_start(), piece('{"x":1}'), call_start(1, "call_b", "put"), piece('{"y":2}', 1)]
    body, pipeline = fix(stream(role(), *map(delta_chunk, [*calls, piece(repeated)]), finish("tool_calls")))
    assert body == stream(role(), *map(delta_chunk, calls), finish("tool_calls"))
    assert "tool-one-at-a-time" in rules(pipeline.repair_log)


def test_white_space_after_the_next_call_is_sent_in_one_piece() -> None:
    calls = [call_start(), piece('{"x":1}'), call_start(1, "call_b", "put"), piece('{"y":2}', 1)]
    body, _ = fix(stream(role(), *map(delta_chunk, [*calls, *[piece(" ")] * 9]), finish("tool_calls")))
    assert body == stream(role(), *map(delta_chunk, [*calls, piece(" " * 9)]), finish("tool_calls"))


def test_usage_of_one_of_several_choices_is_not_the_usage() -> None:
    facts = RequestFacts(include_usage=True)
    parts = [*content_chunks("a"), *content_chunks("b", index=1)]
    ends = [chunk(choice({}, "stop", index, usage=count())) for index in (0, 1)]
    assert b'"usage":{' not in fix(stream(*parts, *ends), facts=facts)[0].replace(b'"stop","usage":{', b"")
    assert b'"usage":{' in fix(stream(*parts[:1], ends[0]), facts=facts)[0].replace(b'"stop","usage":{', b"")
