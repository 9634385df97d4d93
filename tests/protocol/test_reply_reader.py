"""Replies that were not streamed, as parts of an answer: streamed for who asked for a stream, or folded."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    DONE,
    FALLBACK,
    FALLBACKS,
    HEAD,
    Json,
    choice,
    chunk,
    count,
    counted,
    entry,
    finish,
    frame,
    named,
    pack,
    piece,
    role,
    rules,
    say,
    stream,
    text,
    text_choice,
    text_chunk,
    text_end,
    words,
)
from tests.table import table
from welldone.protocol import merger
from welldone.protocol.catalog import RULES_BY_ID
from welldone.protocol.catalog.rule import Repairability
from welldone.protocol.dialects.responses.writer import ResponsesDialect
from welldone.protocol.envelope import Endpoint
from welldone.protocol.merger import FanOut
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline
from welldone.protocol.request_facts import RequestFacts
from welldone.protocol.text_tool_calls import ForcedCallShape, ForcedToolCall
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

ASKED = RequestFacts(include_usage=True, choice_count=1)
CALL = {"id": "call_a", "type": "function", "function": {"name": "get", "arguments": '{"x":1}'}}


def reply(*messages: Json, reason: str = "stop", **members: object) -> bytes:
    choices = [
        {"index": place, "message": {"role": "assistant", **message}, "logprobs": None, "finish_reason": reason}
        for place, message in enumerate(messages)
    ]
    envelope = {"id": HEAD.id, "object": "chat.completion", "created": HEAD.created, "model": HEAD.model}
    return pack({**envelope, "choices": choices, "usage": count(), **members})


def counting(part: Json) -> Json:
    """A chunk of a stream whose client asked for usage: it stands behind the choices, before what else there is."""
    names = ("id", "object", "created", "model", "choices")
    return {name: part[name] for name in names} | {"usage": None} | part


def streamed(body: bytes, endpoint: Endpoint = CHAT, asked: RequestFacts = ASKED) -> tuple[bytes, StreamPipeline]:
    pipe = StreamPipeline(endpoint, fallback=FALLBACKS[endpoint], facts=asked)
    return pipe.feed_reply(body) + pipe.close(), pipe


@table(
    ("body", "chunks"),
    [
        (reply({"content": "Hello"}), [role(), *words("Hello"), finish()]),
        (reply({"content": ""}, reason="length"), [role(), finish("length")]),
        (
            reply({"content": "so", "reasoning_content": "why"}),
            [role(), say({"reasoning_content": "why"}), *words("so"), finish()],
        ),
        (reply({"content": None, "refusal": "no"}), [role(), say({"refusal": "no"}), finish()]),
        (
            reply({"content": None, "tool_calls": [CALL]}, reason="tool_calls"),
            [role(), say(named()), say(piece('{"x":1}')), finish("tool_calls")],
        ),
        (
            reply({"content": "a"}, {"content": "b"}),
            [role(), *words("a"), role(1), *words("b", index=1), finish(), finish(index=1)],
        ),
        (
            reply({"content": "a", "mood": "calm", "score": 7}, timings={"n": 1}),
            [
                chunk(choice({"role": "assistant", "content": "", "mood": "calm", "score": 7}), timings={"n": 1}),
                *words("a"),
                finish(),
            ],
        ),
    ],
    ids=["text", "nothing", "thoughts", "refusal", "call", "two", "fields"],
)
def test_a_whole_reply_goes_out_as_a_stream(body: bytes, chunks: list[Json]) -> None:
    sent, pipe = streamed(body, asked=msgspec.structs.replace(ASKED, choice_count=None))
    assert sent == stream(*(counting(part) for part in (*chunks, counted(count()))))
    assert pipe.repair_log.entries() == []
    assert pipe.is_done
    assert pipe.failure is None
    request = {"stream": True, "stream_options": {"include_usage": True}, "tools": [{}], "n": 2}
    assert judge(Trace(body=sent, endpoint="chat", request=request)).counts.keys() <= {"ext-number-fields"}


def test_log_probabilities_ride_on_the_text() -> None:
    logprobs = {"content": [entry("Hello")], "refusal": None}
    value = json.loads(reply({"content": "Hello"}))
    value["choices"][0]["logprobs"] = logprobs
    sent, _ = streamed(pack(value), asked=RequestFacts(include_usage=False))
    assert sent == stream(role(), chunk(choice({"content": "Hello"}, logprobs=logprobs)), finish())


def test_a_completion_goes_out_as_a_stream() -> None:
    body = pack(text_chunk(text_choice("Hello", "stop"), usage=count()))
    assert streamed(body, COMPLETIONS, RequestFacts(include_usage=False))[0] == stream(text("Hello"), text_end())


def test_usage_that_was_not_asked_for_does_not_go_out_in_a_stream_but_is_known() -> None:
    sent, pipe = streamed(reply({"content": "Hello"}), asked=RequestFacts(include_usage=False, is_usage_forced=True))
    assert sent == stream(role(), *words("Hello"), finish())
    assert pipe.usage is not None
    assert pipe.usage.total_tokens == 8


def test_usage_that_never_came_is_not_invented() -> None:
    sent, pipe = streamed(reply({"content": "Hello"}, usage=None))
    assert b'"usage":{' not in sent
    assert pipe.usage is None
    assert rules(pipe.repair_log) == ["ns-usage"]


def test_what_is_odd_in_a_whole_reply_is_noted_by_its_rules_alone() -> None:
    sent, pipe = streamed(reply({"content": "Hello", "role": "model", "reasoning": "why"}, reason="eos"))
    assert rules(pipe.repair_log) == ["ns-finish", "ns-role"]
    assert b'"reasoning_content":"why"' in sent


@table(
    ("body", "message"),
    [
        (b"<html>", "the server sent a reply that is no JSON object"),
        (b"", "the server sent a reply that is no JSON object"),
        (pack({"error": {"message": "boom"}}), "boom"),
        (pack({"detail": "boom"}), "boom"),
        (pack({"choices": []}), "the server sent no answer"),
        (reply({"content": "a"}, reason="abort"), "the server ended the answer with finish_reason 'abort'"),
    ],
)
def test_an_error_or_garbage_is_a_failure(body: bytes, message: str) -> None:
    sent, pipe = streamed(body)
    assert pipe.failure is not None
    assert pipe.failure.message == message
    assert sent.count(b'{"error":') == 1
    assert sent.endswith(DONE)
    fold = BufferedPipeline(CHAT, fallback=FALLBACK)
    fold.feed_reply(body)
    fold.close()
    assert fold.failure == pipe.failure


def test_parts_may_be_streamed_or_whole() -> None:
    asked = RequestFacts(include_usage=True, choice_count=3)
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, facts=asked, fan_out=FanOut(3))
    fold = BufferedPipeline(CHAT, fallback=FALLBACK, facts=asked, fan_out=FanOut(3))
    sent = pipe.feed_reply(reply({"content": "a"}), 0) + pipe.close(0)
    fold.feed_reply(reply({"content": "a"}), 0)
    middle = stream(role(), *words("b"), finish(), counted(count()))
    sent += pipe.feed(middle, 1) + pipe.close(1)
    fold.feed(middle, 1)
    sent += pipe.feed_reply(reply({"content": "c"}), 2) + pipe.close(2)
    fold.feed_reply(reply({"content": "c"}), 2)
    for part in range(3):
        fold.close(part)
    request = {"stream": True, "n": 3, "stream_options": {"include_usage": True}}
    assert judge(Trace(body=sent, endpoint="chat", request=request)).findings == ()
    body = json.loads(fold.body())
    assert [one["message"]["content"] for one in body["choices"]] == ["a", "b", "c"]
    assert body["usage"] == count(5, 9)


def test_a_forced_call_may_come_whole() -> None:
    pipe = StreamPipeline(
        CHAT, fallback=FALLBACK, facts=RequestFacts(include_usage=False), forced=ForcedToolCall(ForcedCallShape.CALL)
    )
    sent = pipe.feed_reply(reply({"content": '[{"name": "get", "arguments": {"x":1}}]'})) + pipe.close()
    assert sent == stream(role(), say(named(id="call_ours1")), say(piece('{"x":1}')), finish("tool_calls"))


def test_thoughts_are_taken_out_of_a_whole_reply() -> None:
    fold = BufferedPipeline(CHAT, fallback=FALLBACK, think="tags", reasoning=("reasoning",))
    fold.feed_reply(reply({"content": "<think>why</think>so"}))
    fold.close()
    message = json.loads(fold.body())["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "so", "refusal": None, "reasoning": "why"}


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 10**20), st.floats(), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "index", "text"]), inner),
    max_leaves=5,
)


@given(st.data(), st.sampled_from([CHAT, COMPLETIONS]))
def test_whatever_a_whole_reply_holds_the_stream_is_right(data: st.DataObject, endpoint: Endpoint) -> None:
    call = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(("id", "type", "function", "index"), values)))
    message = data.draw(
        st.fixed_dictionaries(
            {},
            optional=dict.fromkeys(("role", "content", "reasoning", "refusal", "x"), values)
            | {"tool_calls": st.one_of(values, st.just([CALL, call]))},
        )
    )
    said = data.draw(
        st.fixed_dictionaries(
            {"message": st.just(message), "text": st.one_of(st.just("a"), values)},
            optional=dict.fromkeys(("index", "finish_reason", "logprobs", "y"), values),
        )
    )
    body = data.draw(
        st.fixed_dictionaries(
            {"choices": st.one_of(st.just([said]), st.just([said, said]), values)},
            optional=dict.fromkeys(("id", "object", "created", "model", "usage", "error", "z"), values),
        )
    )
    raw = json.dumps(body).encode()
    sent, pipe = streamed(raw, endpoint, RequestFacts(include_usage=None))
    broken = judge(Trace(body=sent, endpoint=endpoint.value)).counts.keys()
    assert {
        rule for rule in broken if RULES_BY_ID[rule].repairability is not Repairability.REPORT_ONLY
    } == set()  # what is only reported stays
    assert sent.endswith(DONE)
    assert (b'data: {"error":' in sent) is (pipe.failure is not None)


@pytest.mark.parametrize("is_stream", [True, False])
def test_many_log_probabilities_are_read_in_several_turns_and_none_is_lost(is_stream: bool) -> None:
    one = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    choices: list[Json] = [
        {
            "index": index,
            "message": {"role": "assistant", "content": "a" * tokens},
            "logprobs": {"content": [one] * tokens, "refusal": [one] if tokens == 1 else None},
            "finish_reason": "length",
            "x_choice": [index],
        }
        for index, tokens in enumerate((250, 1))
    ]
    envelope = {"id": HEAD.id, "created": HEAD.created, "model": HEAD.model}
    body = pack({**envelope, "choices": choices, "usage": count(), "x_reply": [1]})
    asked = RequestFacts(choice_count=2)
    made: StreamPipeline | BufferedPipeline = (StreamPipeline if is_stream else BufferedPipeline)(
        CHAT, fallback=FALLBACK, facts=asked
    )
    said = list(made.feed_reply_in_steps(body))
    assert len(said) > 3
    last = made.close()
    if isinstance(made, StreamPipeline):
        again = BufferedPipeline(CHAT, fallback=FALLBACK, facts=asked)
        again.feed(b"".join(said) + (last or b""))
        again.close()
        made = again
    whole = json.loads(made.body())
    assert whole["x_reply"] == [1]
    for sent, found in zip(choices, whole["choices"], strict=True):
        assert found["x_choice"] == sent["x_choice"]
        assert found["logprobs"] == sent["logprobs"]
        assert found["message"]["content"] == sent["message"]["content"]
        assert found["finish_reason"] == "length"


@table("beside", [[], [5]], ids=["right choices", "an odd choice"])
@table("is_list", [False, True])
def test_a_reply_whose_other_members_cost_more_than_a_turn_fails(beside: list[int], is_list: bool) -> None:
    answer = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
    body: Json = {"choices": [answer, *beside], "extra": [{"a": 1}] * 40_000}
    fold = BufferedPipeline(CHAT, fallback=FALLBACK)
    fold.feed_reply(pack([body] if is_list else body))
    assert fold.failure is not None
    assert "too complex" in fold.failure.message


@pytest.mark.parametrize("answer", ["ab", "abc"])
@pytest.mark.parametrize("dialect", [None, ResponsesDialect({})], ids=["chat", "responses"])
def test_of_an_answer_that_is_kept_the_text_is_bounded(
    answer: str, dialect: ResponsesDialect | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merger, "KEPT_LIMIT_CHARS", 2)
    fold = BufferedPipeline(CHAT, fallback=FALLBACK, dialect=dialect)
    fold.feed_reply(pack({"choices": [{"index": 0, "message": {"content": answer}, "finish_reason": "stop"}]}))
    fold.close()
    assert (fold.failure is not None) is (len(answer) > 2)
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, dialect=dialect)
    sent = b"".join(pipe.feed(frame(say({"content": letter}))) for letter in answer) + pipe.close()
    assert (b"more than 2 characters" in sent) is (len(answer) > 2 and dialect is not None)


@pytest.mark.parametrize("count", [10, 3_000])
def test_an_answer_of_many_chunks_is_long(count: int) -> None:
    fold = BufferedPipeline(CHAT, fallback=FALLBACK)
    fold.feed(frame(say({"content": "a"})) * count + frame(finish()) + DONE)
    fold.close()
    assert fold.is_body_slow is (count > 2_000)
    assert json.loads(fold.body())["choices"][0]["message"]["content"] == "a" * count
