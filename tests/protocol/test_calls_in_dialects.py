"""Custom and truncated tool calls in every dialect: as stream and reply, from streams and replies."""

import json
import math

import pytest

from tests.protocol.build import (
    CHAT,
    FALLBACK,
    Json,
    call,
    call_start,
    choice,
    chunk,
    count,
    delta_chunk,
    finish,
    piece,
    role,
    stream,
    usage_chunk,
)
from tests.table import table
from welldone.core.answer_format import AnswerFormat
from welldone.core.envelope import Envelope
from welldone.core.request_facts import RequestFacts
from welldone.core.state import PartState
from welldone.dialects.messages.repair import MessagesRepairer
from welldone.dialects.messages.writer import MessagesFormat
from welldone.dialects.ollama.writer import OllamaFormat
from welldone.dialects.responses.repair import ResponsesRepairer
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

SCRIPT = 'for f in *; do\n  echo "$f" {} \\d\ndone \u20ac'
FACTS = RequestFacts(include_usage=False, choice_count=1)


def custom(index: int = 0, id: str = "call_1", name: str = "sh", text: str = "", **more: object) -> Json:
    return delta_chunk(call(index, id=id, type="custom", custom={"name": name, "input": text}, **more))


def custom_delta(text: str, index: int = 0) -> Json:
    return delta_chunk(call(index, custom={"input": text}))


def split(text: str, size: int = 5) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


CUSTOM = stream(role(), custom(), *map(custom_delta, split(SCRIPT)), finish("tool_calls"))
CALL = {"id": "call_1", "type": "custom", "custom": {"name": "sh", "input": SCRIPT}}


def reply(calls: list[Json], reason: str = "tool_calls") -> bytes:
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": calls}
    whole = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    return json.dumps(chunk(whole, object="chat.completion", usage=count())).encode()


def repaired_stream(
    data: bytes, dialect: AnswerFormat | None = None, *, is_whole: bool = False, facts: RequestFacts = FACTS
) -> bytes:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=facts, dialect=dialect)
    return (pipeline.feed_reply(data) if is_whole else pipeline.feed(data)) + pipeline.close()


def repaired_reply(
    data: bytes, dialect: AnswerFormat | None = None, *, is_whole: bool = False, facts: RequestFacts = FACTS
) -> tuple[BufferedPipeline, Json]:
    pipeline = BufferedPipeline(CHAT, fallback=FALLBACK, facts=facts, dialect=dialect)
    if is_whole:
        pipeline.feed_reply(data)
    else:
        pipeline.feed(data)
    pipeline.close()
    return pipeline, json.loads(pipeline.body())


def events(body: bytes) -> list[Json]:
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]


def lines(body: bytes) -> list[Json]:
    return [json.loads(line) for line in body.splitlines()]


def ollama() -> OllamaFormat:
    return OllamaFormat(is_chat=True, created_at="now")


# Custom calls


@pytest.mark.parametrize("size", [1, 7, len(CUSTOM)])
def test_a_custom_call_is_unchanged(size: int) -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=FACTS)
    cut = [CUSTOM[start : start + size] for start in range(0, len(CUSTOM), size)]
    assert b"".join(map(pipeline.feed, cut)) + pipeline.close() == CUSTOM
    assert pipeline.repair_log.entries() == []
    assert (pipeline.failure, pipeline.result.invalid_arguments_count) == (None, 0)
    assert judge(Trace(body=CUSTOM, request={"stream": True})).findings == ()


def test_a_reply_with_a_custom_call_is_unchanged() -> None:
    data = reply([CALL, {"id": "call_2", "type": "function", "function": {"name": "get", "arguments": "{}"}}])
    pipeline, body = repaired_reply(data, is_whole=True)
    assert body == json.loads(data)
    assert pipeline.repair_log.entries() == []
    assert judge(Trace(body=data, request={"stream": False})).findings == ()
    assert events(repaired_stream(data, is_whole=True))[1]["choices"][0]["delta"]["tool_calls"][0]["type"] == "custom"


def test_a_stream_with_custom_calls_is_collected_into_a_reply() -> None:
    # Interleaved with a function of the same name; inputs like a placeholder and empty.
    data = stream(
        role(),
        custom(text="{}"),
        custom(1, "call_2", signed="s"),
        delta_chunk(call_start(2, "call_3", "sh", "", extra=1)),
        delta_chunk(piece('{"x":', 2)),
        custom_delta("{ no JSON"),
        delta_chunk(piece("1}", 2)),
        delta_chunk(call(1, custom={"input": "", "mood": "calm"}, late=True)),
        finish("tool_calls"),
    )
    expected = [
        {"id": "call_1", "type": "custom", "custom": {"name": "sh", "input": "{}{ no JSON"}},
        {"id": "call_2", "type": "custom", "custom": {"name": "sh", "input": "", "mood": "calm"}, "signed": "s"}
        | {"late": True},
        {"id": "call_3", "type": "function", "function": {"name": "sh", "arguments": '{"x":1}'}, "extra": 1},
    ]
    body = repaired_reply(data)[1]
    assert body["choices"][0]["message"]["tool_calls"] == expected
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    again = repaired_stream(data)
    assert repaired_reply(again)[1] == body
    assert repaired_stream(again) == again
    assert judge(Trace(body=again, request={"stream": True})).findings == ()


def test_two_choices_may_have_calls_with_the_same_id() -> None:
    chunks = [role(), role(1)]
    for index in (0, 1):
        chunks.append(delta_chunk(call(0, id="call_1", type="custom", custom={"name": "sh", "input": ""}), index))
        chunks.append(delta_chunk(call(0, custom={"input": f"ls {index}"}), index))
    data = stream(*chunks, finish("tool_calls"), finish("tool_calls", 1))
    facts = RequestFacts(include_usage=False, choice_count=2)
    assert repaired_stream(data, facts=facts) == data
    pipeline, body = repaired_reply(data, facts=facts)
    calls = [one["message"]["tool_calls"][0] for one in body["choices"]]
    assert [(one["id"], one["custom"]["input"]) for one in calls] == [("call_1", "ls 0"), ("call_1", "ls 1")]
    assert pipeline.repair_log.entries() == []
    assert judge(Trace(body=data, request={"stream": True, "n": 2})).findings == ()


@table(
    ("first", "rule"),
    [
        ({"id": "call_1", "custom": {"name": "sh", "input": ""}}, "tool-type-first"),
        ({"id": "call_1", "type": "custom", "custom": None}, "tool-function-present"),
        ({"type": "custom", "custom": {"name": "sh"}}, "tool-id-first"),
        ({"id": "call_1", "type": "custom", "custom": {"name": "sh", "input": None}}, "tool-args-string"),
    ],
)
def test_a_malformed_custom_call_is_repaired(first: Json, rule: str) -> None:
    late = [] if first["custom"] else [delta_chunk(call(0, custom={"name": "sh"}))]
    data = stream(role(), delta_chunk(call(0, **first)), *late, *map(custom_delta, split(SCRIPT)), finish("tool_calls"))
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=FACTS)
    body = pipeline.feed(data) + pipeline.close()
    assert rule in pipeline.repair_log.counts()
    assert rule in judge(Trace(body=data)).counts
    assert judge(Trace(body=body)).findings == ()
    made = repaired_reply(body)[1]["choices"][0]["message"]["tool_calls"][0]
    assert (made["type"], made["custom"]) == ("custom", {"name": "sh", "input": SCRIPT})


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"custom": {"name": 1, "input": ""}}, "ns-tool-calls"),
        ({"custom": {"name": "sh", "input": 1}}, "ns-tool-calls"),
        ({"type": "function"}, "ns-tool-calls"),
    ],
)
def test_a_custom_call_of_a_whole_reply_is_judged(wrong: Json, rule: str) -> None:
    data = reply([CALL | wrong])
    assert rule in judge(Trace(body=data, request={"stream": False})).counts
    assert rule in repaired_reply(data, is_whole=True)[0].repair_log.counts()


def test_a_custom_call_in_responses() -> None:
    data = stream(role(), custom(), *map(custom_delta, split(SCRIPT)), finish("tool_calls"), usage_chunk(count()))
    body = repaired_stream(data, ResponsesFormat({}), facts=RequestFacts(include_usage=True, choice_count=1))
    values = events(body)
    item = values[-1]["response"]["output"][0]
    shown = {"type": "custom_tool_call", "call_id": "call_1", "name": "sh", "input": SCRIPT, "status": "completed"}
    assert item.items() >= shown.items()
    assert item["id"].startswith("ctc_")
    deltas = [one["delta"] for one in values if one["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == SCRIPT
    assert [one["input"] for one in values if one["type"] == "response.custom_tool_call_input.done"] == [SCRIPT]
    assert judge(Trace(body=body, endpoint="responses")).findings == ()
    repairer = ResponsesRepairer(fallback=Envelope("resp_1", 1, "m"))
    assert repairer.feed(body) + repairer.close() == body
    assert (repairer.repair_log.entries(), repairer.result.invalid_arguments_count) == ([], 0)
    collector = ResponsesRepairer(fallback=Envelope("resp_1", 1, "m"), is_stream=False)
    collector.feed(body)
    assert json.loads(collector.body())["output"] == [item]
    whole = repaired_reply(CUSTOM, ResponsesFormat({}))[1]
    assert whole["output"][0]["input"] == SCRIPT


@pytest.mark.parametrize("text", [SCRIPT, ""])
def test_a_custom_call_in_messages_has_its_text_in_an_object(text: str) -> None:
    data = stream(role(), custom(), *map(custom_delta, split(text)), finish("tool_calls"))
    values = events(repaired_stream(data, MessagesFormat()))
    parts = [one["delta"]["partial_json"] for one in values if one["type"] == "content_block_delta"]
    assert json.loads("".join(parts)) == {"input": text}
    assert values[-2]["delta"]["stop_reason"] == "tool_use"
    pipeline, whole = repaired_reply(data, MessagesFormat())
    call = {"type": "tool_use", "id": "call_1", "name": "sh", "input": {"input": text}}
    assert whole["content"] == [call | {"caller": {"type": "direct"}}]
    assert pipeline.result.invalid_arguments_count == 0


def test_a_custom_call_in_ollama_has_its_text_in_an_object() -> None:
    expected = [{"function": {"name": "sh", "arguments": {"input": SCRIPT}}}]
    values = lines(repaired_stream(CUSTOM, ollama()))
    assert [one["message"]["tool_calls"] for one in values if "tool_calls" in one["message"]] == [expected]
    assert repaired_reply(CUSTOM, ollama())[1]["message"]["tool_calls"] == expected


# Truncated calls

DELETE = ('{"only_older_than_days": 30, ', '"path": "/va')
WHOLE_CALL = [delta_chunk(call_start(0, "call_0", "list")), delta_chunk(piece('{"a":1}', 0))]


def cut(kind: str, texts: tuple[str, ...]) -> list[Json]:
    if kind == "custom":
        return [*WHOLE_CALL, custom(1, "call_1", "delete"), *(custom_delta(text, 1) for text in texts)]
    return [
        *WHOLE_CALL,
        delta_chunk(call_start(1, "call_1", "delete")),
        *(delta_chunk(piece(text, 1)) for text in texts),
    ]


@table("reason", ["length", "content_filter"])
@table("kind", ["function", "custom"])
@table("texts", [DELETE, ()], ids=["some arguments", "none"])
def test_a_truncated_call_is_not_delivered_as_an_object(kind: str, texts: tuple[str, ...], reason: str) -> None:
    data = stream(role(), *cut(kind, texts), finish(reason))
    values = lines(repaired_stream(data, ollama()))
    assert [
        one["message"]["tool_calls"][0]["function"]["name"] for one in values if "tool_calls" in one["message"]
    ] == ["list"]
    pipeline, whole = repaired_reply(data, ollama())
    assert [one["function"]["name"] for one in whole["message"]["tool_calls"]] == ["list"]
    assert whole["done_reason"] == reason
    pipeline, whole = repaired_reply(data, MessagesFormat())
    assert [one["name"] for one in whole["content"]] == ["list"]
    assert whole["stop_reason"] == ("max_tokens" if reason == "length" else "refusal")
    assert (pipeline.failure, pipeline.result.invalid_arguments_count) == (None, 0)


@table("kind", ["function", "custom"])
@table("texts", [DELETE, ()], ids=["some arguments", "none"])
def test_a_truncated_call_stays_open_in_a_messages_stream(kind: str, texts: tuple[str, ...]) -> None:
    values = events(repaired_stream(stream(role(), *cut(kind, texts), finish("length")), MessagesFormat()))
    blocks = [one["content_block"]["name"] for one in values if one["type"] == "content_block_start"]
    parts = [
        one["delta"]["partial_json"] for one in values if one["type"] == "content_block_delta" and one["index"] == 1
    ]
    assert blocks == (["list", "delete"] if texts else ["list"])
    if texts:
        with pytest.raises(json.JSONDecodeError):
            json.loads("".join(parts))
    assert values[-2]["delta"]["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("texts", [DELETE, ()], ids=["some arguments", "none"])
def test_a_truncated_call_is_not_completed_in_chat(texts: tuple[str, ...]) -> None:
    data = stream(role(), *cut("function", texts), finish("length"))
    assert repaired_stream(data) == data
    assert repaired_reply(data)[1]["choices"][0]["message"]["tool_calls"][1]["function"]["arguments"] == "".join(texts)


@pytest.mark.parametrize("end", [b"", stream({"error": {"message": "out of memory"}})])
def test_a_truncated_answer_delivers_no_incomplete_call(end: bytes) -> None:
    mixed = [
        delta_chunk(call_start(0, "a", "one")),
        delta_chunk(call_start(1, "b", "two")),
        delta_chunk(piece('{"x":', 1)),
    ]
    data = stream(role(), *mixed, end=end)
    values = lines(repaired_stream(data, ollama()))
    assert [list(one) for one in values] == [["error"]]
    for dialect in (ollama(), MessagesFormat()):
        assert repaired_reply(data, dialect)[0].failure is not None


def test_invalid_arguments_fail_in_dialects_with_object_arguments() -> None:
    data = stream(role(), delta_chunk(call_start()), delta_chunk(piece("[1]")), finish("tool_calls"))
    for dialect in (ollama(), MessagesFormat()):
        pipeline = repaired_reply(data, dialect)[0]
        assert pipeline.failure is not None
        assert pipeline.failure.message == "the server sent a tool call whose arguments are not a JSON object"
    assert "error" in lines(repaired_stream(data, ollama()))[-1]
    assert repaired_reply(data)[0].failure is None


@table(
    ("arguments", "expected"),
    [
        ('{"a": 1e400,\n "b": 2.50}', {"a": math.inf, "b": 2.5}),
        ('{"a":"\\ud800","b":"\\\\ud800"}', {"a": "\ufffd", "b": "\\ud800"}),
        ("{'a': True}", {"a": True}),
        ('{"a": NaN, "b": 1}', {"a": None, "b": 1}),
    ],
)
def test_unusual_values_in_arguments_are_kept(arguments: str, expected: Json) -> None:
    data = stream(
        role(),
        delta_chunk(call_start()),
        *(delta_chunk(piece(text)) for text in split(arguments, 3)),
        finish("tool_calls"),
    )
    for dialect in (ollama(), MessagesFormat()):
        pipeline, whole = repaired_reply(data, dialect)
        assert pipeline.failure is None
        call = whole["message"]["tool_calls"][0]["function"] if "message" in whole else whole["content"][0]
        assert call.get("arguments", call.get("input")) == expected
    values = lines(repaired_stream(data, ollama()))
    assert values[0]["message"]["tool_calls"][0]["function"]["arguments"] == expected
    assert repaired_stream(data) == data


# Choices


@table("dialect", [None, ollama(), MessagesFormat(), ResponsesFormat({})], ids=lambda one: type(one).__name__)
def test_unrequested_choices_are_not_mixed_into_the_requested_one(dialect: AnswerFormat | None) -> None:
    mixed = [
        role(),
        delta_chunk(call_start(0, "a", "one")),
        delta_chunk(piece('{"x":')),
        role(1),
        delta_chunk(call_start(0, "b", "two"), 1),
        delta_chunk(piece('{"y":2}'), 1),
        delta_chunk(piece("1}")),
        delta_chunk({"content": "no"}, 1),
    ]
    data = stream(*mixed, chunk(choice({}, "tool_calls"), choice({}, "stop", 1)))
    alone = stream(*(one for one in mixed if one["choices"][0]["index"] == 0), finish("tool_calls"))
    assert repaired_stream(data, dialect) == repaired_stream(alone, dialect)
    pipeline, whole = repaired_reply(data, dialect)
    assert whole == repaired_reply(alone, dialect)[1]
    assert "n-index-int" in pipeline.repair_log.counts()
    assert "n-index-int" in judge(Trace(body=data, request={"stream": True})).counts


@pytest.mark.parametrize(("kind", "member"), [("function", "arguments"), ("custom", "input")])
def test_a_broken_character_in_a_call_is_found(kind: str, member: str) -> None:
    first = delta_chunk(call(0, id="call_1", type=kind, **{kind: {"name": "sh", member: ""}}))
    last = delta_chunk(call(0, **{kind: {member: '{"x":"\ufffd"}'}}))
    assert "enc-no-replacement-char" in judge(Trace(body=stream(role(), first, last, finish("tool_calls")))).counts


# Completeness of an answer


def test_an_answer_is_complete_when_each_requested_choice_has_finished() -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(include_usage=True, choice_count=2))
    seen = []
    for one in (role(), role(1), finish(), finish(index=1), usage_chunk(count())):
        pipeline.feed(stream(one, end=b""))
        seen.append(pipeline.part_state(0))
    assert seen == [*[PartState.ANSWERING] * 3, PartState.FINISHED, PartState.FINISHED_WITH_USAGE]
    pipeline.close()
    assert (pipeline.failure, list(pipeline.repair_log.counts())) == (None, ["end-done-sent"])


def test_a_message_is_complete_when_it_has_a_stop_reason() -> None:
    repairer = MessagesRepairer(fallback=Envelope("msg_1", 1, "m"))
    whole = events(
        repaired_stream(
            stream(role(), delta_chunk({"content": "Hi"}), finish(), usage_chunk(count())), MessagesFormat()
        )
    )
    seen = []
    for one in whole:
        repairer.feed(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode())
        seen.append(repairer.part_state(0))
    assert seen == [*[PartState.ANSWERING] * 4, PartState.FINISHED_WITH_USAGE, PartState.DONE]
