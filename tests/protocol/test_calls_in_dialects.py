"""Custom tool calls, and calls that were cut, in every dialect: streamed and whole, from streams and replies."""

import json
import math

import pytest

from tests.protocol.build import (
    CHAT,
    FALLBACK,
    Json,
    call,
    choice,
    chunk,
    count,
    counted,
    finish,
    named,
    piece,
    role,
    say,
    stream,
)
from tests.table import table
from welldone.protocol.dialects.anthropic.repair import MessagesRepairer
from welldone.protocol.dialects.anthropic.writer import MessagesDialect
from welldone.protocol.dialects.base import Dialect
from welldone.protocol.dialects.ollama import OllamaDialect
from welldone.protocol.dialects.responses.repair import ResponsesRepairer
from welldone.protocol.dialects.responses.writer import ResponsesDialect
from welldone.protocol.envelope import Envelope
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline
from welldone.protocol.request_facts import RequestFacts
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

SCRIPT = 'for f in *; do\n  echo "$f" {} \\d\ndone \u20ac'
ASKED = RequestFacts(include_usage=False, choice_count=1)


def custom(index: int = 0, id: str = "call_1", name: str = "sh", text: str = "", **more: object) -> Json:
    return say(call(index, id=id, type="custom", custom={"name": name, "input": text}, **more))


def more(text: str, index: int = 0) -> Json:
    return say(call(index, custom={"input": text}))


def pieces(text: str, size: int = 5) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


CUSTOM = stream(role(), custom(), *map(more, pieces(SCRIPT)), finish("tool_calls"))
CALL = {"id": "call_1", "type": "custom", "custom": {"name": "sh", "input": SCRIPT}}


def reply(calls: list[Json], reason: str = "tool_calls") -> bytes:
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": calls}
    whole = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    return json.dumps(chunk(whole, object="chat.completion", usage=count())).encode()


def streamed(
    data: bytes, dialect: Dialect | None = None, *, is_whole: bool = False, asked: RequestFacts = ASKED
) -> bytes:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, facts=asked, dialect=dialect)
    return (pipe.feed_reply(data) if is_whole else pipe.feed(data)) + pipe.close()


def folded(
    data: bytes, dialect: Dialect | None = None, *, is_whole: bool = False, asked: RequestFacts = ASKED
) -> tuple[BufferedPipeline, Json]:
    fold = BufferedPipeline(CHAT, fallback=FALLBACK, facts=asked, dialect=dialect)
    if is_whole:
        fold.feed_reply(data)
    else:
        fold.feed(data)
    fold.close()
    return fold, json.loads(fold.body())


def events(body: bytes) -> list[Json]:
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]


def lines(body: bytes) -> list[Json]:
    return [json.loads(line) for line in body.splitlines()]


def ollama() -> OllamaDialect:
    return OllamaDialect(is_chat=True, created_at="now")


# ---- custom calls


@pytest.mark.parametrize("size", [1, 7, len(CUSTOM)])
def test_a_custom_call_passes_as_it_is(size: int) -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, facts=ASKED)
    cut = [CUSTOM[start : start + size] for start in range(0, len(CUSTOM), size)]
    assert b"".join(map(pipe.feed, cut)) + pipe.close() == CUSTOM
    assert pipe.repair_log.entries() == []
    assert (pipe.failure, pipe.invalid_arguments_count) == (None, 0)
    assert judge(Trace(body=CUSTOM, request={"stream": True})).findings == ()


def test_a_whole_reply_with_a_custom_call_passes_as_it_is() -> None:
    data = reply([CALL, {"id": "call_2", "type": "function", "function": {"name": "get", "arguments": "{}"}}])
    fold, body = folded(data, is_whole=True)
    assert body == json.loads(data)
    assert fold.repair_log.entries() == []
    assert judge(Trace(body=data, request={"stream": False})).findings == ()
    assert events(streamed(data, is_whole=True))[1]["choices"][0]["delta"]["tool_calls"][0]["type"] == "custom"


def test_a_stream_with_custom_calls_is_folded() -> None:
    """Interleaved with a function of the same name, with an input that begins as a placeholder does, and with none."""
    data = stream(
        role(),
        custom(text="{}"),
        custom(1, "call_2", signed="s"),
        say(named(2, "call_3", "sh", "", extra=1)),
        say(piece('{"x":', 2)),
        more("{ no JSON"),
        say(piece("1}", 2)),
        say(call(1, custom={"input": "", "mood": "calm"}, late=True)),
        finish("tool_calls"),
    )
    expected = [
        {"id": "call_1", "type": "custom", "custom": {"name": "sh", "input": "{}{ no JSON"}},
        {"id": "call_2", "type": "custom", "custom": {"name": "sh", "input": "", "mood": "calm"}, "signed": "s"}
        | {"late": True},
        {"id": "call_3", "type": "function", "function": {"name": "sh", "arguments": '{"x":1}'}, "extra": 1},
    ]
    body = folded(data)[1]
    assert body["choices"][0]["message"]["tool_calls"] == expected
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    again = streamed(data)
    assert folded(again)[1] == body
    assert streamed(again) == again
    assert judge(Trace(body=again, request={"stream": True})).findings == ()


def test_two_choices_may_have_calls_of_the_same_id() -> None:
    chunks = [role(), role(1)]
    for index in (0, 1):
        chunks.append(say(call(0, id="call_1", type="custom", custom={"name": "sh", "input": ""}), index))
        chunks.append(say(call(0, custom={"input": f"ls {index}"}), index))
    data = stream(*chunks, finish("tool_calls"), finish("tool_calls", 1))
    asked = RequestFacts(include_usage=False, choice_count=2)
    assert streamed(data, asked=asked) == data
    fold, body = folded(data, asked=asked)
    calls = [one["message"]["tool_calls"][0] for one in body["choices"]]
    assert [(one["id"], one["custom"]["input"]) for one in calls] == [("call_1", "ls 0"), ("call_1", "ls 1")]
    assert fold.repair_log.entries() == []
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
def test_what_is_wrong_with_a_custom_call_is_mended(first: Json, rule: str) -> None:
    late = [] if first["custom"] else [say(call(0, custom={"name": "sh"}))]
    data = stream(role(), say(call(0, **first)), *late, *map(more, pieces(SCRIPT)), finish("tool_calls"))
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, facts=ASKED)
    body = pipe.feed(data) + pipe.close()
    assert rule in pipe.repair_log.counts()
    assert rule in judge(Trace(body=data)).counts
    assert judge(Trace(body=body)).findings == ()
    made = folded(body)[1]["choices"][0]["message"]["tool_calls"][0]
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
    assert rule in folded(data, is_whole=True)[0].repair_log.counts()


def test_a_custom_call_in_responses() -> None:
    data = stream(role(), custom(), *map(more, pieces(SCRIPT)), finish("tool_calls"), counted(count()))
    body = streamed(data, ResponsesDialect({}), asked=RequestFacts(include_usage=True, choice_count=1))
    said = events(body)
    item = said[-1]["response"]["output"][0]
    shown = {"type": "custom_tool_call", "call_id": "call_1", "name": "sh", "input": SCRIPT, "status": "completed"}
    assert item.items() >= shown.items()
    assert item["id"].startswith("ctc_")
    deltas = [one["delta"] for one in said if one["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == SCRIPT
    assert [one["input"] for one in said if one["type"] == "response.custom_tool_call_input.done"] == [SCRIPT]
    assert judge(Trace(body=body, endpoint="responses")).findings == ()
    native = ResponsesRepairer(fallback=Envelope("resp_1", 1, "m"))
    assert native.feed(body) + native.close() == body
    assert (native.repair_log.entries(), native.invalid_arguments_count) == ([], 0)
    kept = ResponsesRepairer(fallback=Envelope("resp_1", 1, "m"), is_stream=False)
    kept.feed(body)
    assert json.loads(kept.body())["output"] == [item]
    whole = folded(CUSTOM, ResponsesDialect({}))[1]
    assert whole["output"][0]["input"] == SCRIPT


@pytest.mark.parametrize("text", [SCRIPT, ""])
def test_a_custom_call_in_messages_has_its_text_in_an_object(text: str) -> None:
    data = stream(role(), custom(), *map(more, pieces(text)), finish("tool_calls"))
    said = events(streamed(data, MessagesDialect()))
    parts = [one["delta"]["partial_json"] for one in said if one["type"] == "content_block_delta"]
    assert json.loads("".join(parts)) == {"input": text}
    assert said[-2]["delta"]["stop_reason"] == "tool_use"
    fold, whole = folded(data, MessagesDialect())
    assert whole["content"] == [{"type": "tool_use", "id": "call_1", "name": "sh", "input": {"input": text}}]
    assert fold.invalid_arguments_count == 0


def test_a_custom_call_in_ollama_has_its_text_in_an_object() -> None:
    expected = [{"function": {"name": "sh", "arguments": {"input": SCRIPT}}}]
    said = lines(streamed(CUSTOM, ollama()))
    assert [one["message"]["tool_calls"] for one in said if "tool_calls" in one["message"]] == [expected]
    assert folded(CUSTOM, ollama())[1]["message"]["tool_calls"] == expected


# ---- calls that were cut

DELETE = ('{"only_older_than_days": 30, ', '"path": "/va')
WHOLE_CALL = [say(named(0, "call_0", "list")), say(piece('{"a":1}', 0))]


def cut(kind: str, texts: tuple[str, ...]) -> list[Json]:
    if kind == "custom":
        return [*WHOLE_CALL, custom(1, "call_1", "delete"), *(more(text, 1) for text in texts)]
    return [*WHOLE_CALL, say(named(1, "call_1", "delete")), *(say(piece(text, 1)) for text in texts)]


@table("reason", ["length", "content_filter"])
@table("kind", ["function", "custom"])
@table("texts", [DELETE, ()], ids=["some arguments", "none"])
def test_a_call_that_was_cut_is_not_delivered_as_an_object(kind: str, texts: tuple[str, ...], reason: str) -> None:
    data = stream(role(), *cut(kind, texts), finish(reason))
    said = lines(streamed(data, ollama()))
    assert [one["message"]["tool_calls"][0]["function"]["name"] for one in said if "tool_calls" in one["message"]] == [
        "list"
    ]
    fold, whole = folded(data, ollama())
    assert [one["function"]["name"] for one in whole["message"]["tool_calls"]] == ["list"]
    assert whole["done_reason"] == reason
    fold, whole = folded(data, MessagesDialect())
    assert [one["name"] for one in whole["content"]] == ["list"]
    assert whole["stop_reason"] == ("max_tokens" if reason == "length" else "refusal")
    assert (fold.failure, fold.invalid_arguments_count) == (None, 0)


@table("kind", ["function", "custom"])
@table("texts", [DELETE, ()], ids=["some arguments", "none"])
def test_a_call_that_was_cut_stays_open_in_a_stream_of_messages(kind: str, texts: tuple[str, ...]) -> None:
    said = events(streamed(stream(role(), *cut(kind, texts), finish("length")), MessagesDialect()))
    blocks = [one["content_block"]["name"] for one in said if one["type"] == "content_block_start"]
    parts = [one["delta"]["partial_json"] for one in said if one["type"] == "content_block_delta" and one["index"] == 1]
    assert blocks == (["list", "delete"] if texts else ["list"])
    if texts:
        with pytest.raises(json.JSONDecodeError):
            json.loads("".join(parts))
    assert said[-2]["delta"]["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("texts", [DELETE, ()], ids=["some arguments", "none"])
def test_a_call_that_was_cut_is_not_completed_in_chat(texts: tuple[str, ...]) -> None:
    data = stream(role(), *cut("function", texts), finish("length"))
    assert streamed(data) == data
    assert folded(data)[1]["choices"][0]["message"]["tool_calls"][1]["function"]["arguments"] == "".join(texts)


@pytest.mark.parametrize("end", [b"", stream({"error": {"message": "out of memory"}})])
def test_an_answer_that_breaks_off_delivers_no_incomplete_call(end: bytes) -> None:
    mixed = [say(named(0, "a", "one")), say(named(1, "b", "two")), say(piece('{"x":', 1))]
    data = stream(role(), *mixed, end=end)
    said = lines(streamed(data, ollama()))
    assert [list(one) for one in said] == [["error"]]
    for dialect in (ollama(), MessagesDialect()):
        assert folded(data, dialect)[0].failure is not None


def test_a_call_without_an_object_is_a_failure_where_calls_have_objects() -> None:
    data = stream(role(), say(named()), say(piece("[1]")), finish("tool_calls"))
    for dialect in (ollama(), MessagesDialect()):
        fold = folded(data, dialect)[0]
        assert fold.failure is not None
        assert fold.failure.message == "the server sent a tool call whose arguments are not a JSON object"
    assert "error" in lines(streamed(data, ollama()))[-1]
    assert folded(data)[0].failure is None


@table(
    ("arguments", "expected"),
    [
        ('{"a": 1e400,\n "b": 2.50}', {"a": math.inf, "b": 2.5}),
        ('{"a":"\\ud800","b":"\\\\ud800"}', {"a": "\ufffd", "b": "\\ud800"}),
        ("{'a': True}", {"a": True}),
        ('{"a": NaN, "b": 1}', {"a": None, "b": 1}),
    ],
)
def test_arguments_keep_their_odd_values(arguments: str, expected: Json) -> None:
    data = stream(role(), say(named()), *(say(piece(text)) for text in pieces(arguments, 3)), finish("tool_calls"))
    for dialect in (ollama(), MessagesDialect()):
        fold, whole = folded(data, dialect)
        assert fold.failure is None
        call = whole["message"]["tool_calls"][0]["function"] if "message" in whole else whole["content"][0]
        assert call.get("arguments", call.get("input")) == expected
    said = lines(streamed(data, ollama()))
    assert said[0]["message"]["tool_calls"][0]["function"]["arguments"] == expected
    assert streamed(data) == data


# ---- choices


@table("dialect", [None, ollama(), MessagesDialect(), ResponsesDialect({})], ids=lambda one: type(one).__name__)
def test_another_choice_is_never_mixed_into_the_one_that_was_requested(dialect: Dialect | None) -> None:
    mixed = [
        role(),
        say(named(0, "a", "one")),
        say(piece('{"x":')),
        role(1),
        say(named(0, "b", "two"), 1),
        say(piece('{"y":2}'), 1),
        say(piece("1}")),
        say({"content": "no"}, 1),
    ]
    data = stream(*mixed, chunk(choice({}, "tool_calls"), choice({}, "stop", 1)))
    alone = stream(*(one for one in mixed if one["choices"][0]["index"] == 0), finish("tool_calls"))
    assert streamed(data, dialect) == streamed(alone, dialect)
    fold, whole = folded(data, dialect)
    assert whole == folded(alone, dialect)[1]
    assert "n-index-int" in fold.repair_log.counts()
    assert "n-index-int" in judge(Trace(body=data, request={"stream": True})).counts


@pytest.mark.parametrize(("kind", "member"), [("function", "arguments"), ("custom", "input")])
def test_a_broken_character_in_a_call_is_found(kind: str, member: str) -> None:
    first = say(call(0, id="call_1", type=kind, **{kind: {"name": "sh", member: ""}}))
    last = say(call(0, **{kind: {member: '{"x":"\ufffd"}'}}))
    assert "enc-no-replacement-char" in judge(Trace(body=stream(role(), first, last, finish("tool_calls")))).counts


# ---- whether an answer is complete


def test_an_answer_is_complete_when_each_requested_choice_has_finished() -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(include_usage=True, choice_count=2))
    seen = []
    for one in (role(), role(1), finish(), finish(index=1), counted(count())):
        pipe.feed(stream(one, end=b""))
        seen.append((pipe.is_part_complete(0), pipe.has_part_usage(0)))
    assert seen == [(False, False), (False, False), (False, False), (True, False), (True, True)]
    pipe.close()
    assert (pipe.failure, list(pipe.repair_log.counts())) == (None, ["end-done-sent"])


def test_a_message_is_complete_when_it_was_told_why_it_stopped() -> None:
    native = MessagesRepairer(fallback=Envelope("msg_1", 1, "m"))
    whole = events(streamed(stream(role(), say({"content": "Hi"}), finish(), counted(count())), MessagesDialect()))
    seen = []
    for one in whole:
        native.feed(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode())
        seen.append(native.is_part_complete(0))
    assert seen == [False, False, False, False, True, False]
    assert native.has_part_usage(0)
    assert ResponsesRepairer(fallback=Envelope("resp_1", 1, "m")).is_part_complete(0) is False
