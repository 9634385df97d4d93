"""Non-streaming replies as parts of an answer, sent as a stream or as a reply."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    DONE,
    ENVELOPE,
    FALLBACK,
    FALLBACKS,
    Json,
    call_start,
    choice,
    chunk,
    content_chunks,
    count,
    delta_chunk,
    entry,
    finish,
    frame,
    pack,
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
from welldone.core.answer_format import AnswerFormat
from welldone.core.catalog import RULES, Repairability
from welldone.core.envelope import Endpoint
from welldone.core.request_facts import RepairOptions, RequestFacts
from welldone.core.text_tool_calls import ForcedToolCall
from welldone.dialects.gemini.writer import GeminiFormat
from welldone.dialects.ollama.writer import OllamaFormat
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.stream import pipeline as pipeline_module
from welldone.stream.fan_out import FanOut
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

FACTS = RequestFacts(include_usage=True, choice_count=1)
CALL = {"id": "call_a", "type": "function", "function": {"name": "get", "arguments": '{"x":1}'}}


def reply(*messages: Json, reason: str = "stop", **members: object) -> bytes:
    choices = [
        {"index": number, "message": {"role": "assistant", **message}, "logprobs": None, "finish_reason": reason}
        for number, message in enumerate(messages)
    ]
    envelope = {"id": ENVELOPE.id, "object": "chat.completion", "created": ENVELOPE.created, "model": ENVELOPE.model}
    return pack({**envelope, "choices": choices, "usage": count(), **members})


def with_null_usage(part: Json) -> Json:
    """Chunk with `usage: null` after the choices, as in a stream with include_usage."""
    names = ("id", "object", "created", "model", "choices")
    return {name: part[name] for name in names} | {"usage": None} | part


def streamed(body: bytes, endpoint: Endpoint = CHAT, facts: RequestFacts = FACTS) -> tuple[bytes, StreamPipeline]:
    pipeline = StreamPipeline(endpoint, fallback=FALLBACKS[endpoint], facts=facts)
    return pipeline.feed_reply(body) + pipeline.close(), pipeline


@table(
    ("body", "chunks"),
    [
        (reply({"content": "Hello"}), [role(), *content_chunks("Hello"), finish()]),
        (reply({"content": ""}, reason="length"), [role(), finish("length")]),
        (
            reply({"content": "so", "reasoning_content": "why"}),
            [role(), delta_chunk({"reasoning_content": "why"}), *content_chunks("so"), finish()],
        ),
        (reply({"content": None, "refusal": "no"}), [role(), delta_chunk({"refusal": "no"}), finish()]),
        (
            reply({"content": None, "tool_calls": [CALL]}, reason="tool_calls"),
            [role(), delta_chunk(call_start()), delta_chunk(piece('{"x":1}')), finish("tool_calls")],
        ),
        (
            reply({"content": "a"}, {"content": "b"}),
            [role(), *content_chunks("a"), role(1), *content_chunks("b", index=1), finish(), finish(index=1)],
        ),
        (
            reply({"content": "a", "mood": "calm", "score": 7}, timings={"n": 1}),
            [
                chunk(choice({"role": "assistant", "content": "", "mood": "calm", "score": 7}), timings={"n": 1}),
                *content_chunks("a"),
                finish(),
            ],
        ),
    ],
    ids=["text", "nothing", "thoughts", "refusal", "call", "two", "fields"],
)
def test_a_reply_is_sent_as_a_stream(body: bytes, chunks: list[Json]) -> None:
    sent, pipeline = streamed(body, facts=msgspec.structs.replace(FACTS, choice_count=None))
    assert sent == stream(*(with_null_usage(part) for part in (*chunks, usage_chunk(count()))))
    assert pipeline.repair_log.entries() == []
    assert pipeline.is_done
    assert pipeline.failure is None
    request = {"stream": True, "stream_options": {"include_usage": True}, "tools": [{}], "n": 2}
    assert judge(Trace(body=sent, endpoint="chat", request=request)).counts.keys() <= {"ext-number-fields"}


def test_logprobs_are_sent_with_the_text() -> None:
    logprobs = {"content": [entry("Hello")], "refusal": None}
    value = json.loads(reply({"content": "Hello"}))
    value["choices"][0]["logprobs"] = logprobs
    sent, _ = streamed(pack(value), facts=RequestFacts(include_usage=False))
    assert sent == stream(role(), chunk(choice({"content": "Hello"}, logprobs=logprobs)), finish())


def test_a_completions_reply_is_sent_as_a_stream() -> None:
    body = pack(text_chunk(text_choice("Hello", "stop"), usage=count()))
    assert streamed(body, COMPLETIONS, RequestFacts(include_usage=False))[0] == stream(text("Hello"), text_end())


def test_unrequested_usage_is_stored_and_not_sent() -> None:
    sent, pipeline = streamed(
        reply({"content": "Hello"}), facts=RequestFacts(include_usage=False, is_usage_forced=True)
    )
    assert sent == stream(role(), *content_chunks("Hello"), finish())
    assert pipeline.usage is not None
    assert pipeline.usage.total_tokens == 8


def test_missing_usage_of_a_reply_is_not_invented() -> None:
    sent, pipeline = streamed(reply({"content": "Hello"}, usage=None))
    assert b'"usage":{' not in sent
    assert pipeline.usage is None
    assert rules(pipeline.repair_log) == ["ns-usage"]


def test_only_the_rules_of_replies_are_recorded() -> None:
    sent, pipeline = streamed(reply({"content": "Hello", "role": "model", "reasoning": "why"}, reason="eos"))
    assert rules(pipeline.repair_log) == ["ns-finish", "ns-role"]
    assert b'"reasoning_content":"why"' in sent


@table(
    ("body", "message"),
    [
        (b"<html>", "the server sent a reply that is not a JSON object"),
        (b"", "the server sent a reply that is not a JSON object"),
        (pack({"error": {"message": "boom"}}), "boom"),
        (pack({"detail": "boom"}), "boom"),
        (pack({"choices": []}), "the server sent no answer"),
        (reply({"content": "a"}, reason="abort"), "the server ended the answer with finish_reason 'abort'"),
    ],
)
def test_an_error_or_unreadable_reply_is_a_failure(body: bytes, message: str) -> None:
    sent, pipeline = streamed(body)
    assert pipeline.failure is not None
    assert pipeline.failure.message == message
    assert sent.count(b'{"error":') == 1
    assert sent.endswith(DONE)
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK)
    buffered.feed_reply(body)
    buffered.close()
    assert buffered.failure == pipeline.failure


def test_parts_may_be_streams_or_replies() -> None:
    facts = RequestFacts(include_usage=True, choice_count=3)
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=facts, fan_out=FanOut(3))
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK, facts=facts, fan_out=FanOut(3))
    sent = pipeline.feed_reply(reply({"content": "a"}), 0) + pipeline.close(0)
    buffered.feed_reply(reply({"content": "a"}), 0)
    middle = stream(role(), *content_chunks("b"), finish(), usage_chunk(count()))
    sent += pipeline.feed(middle, 1) + pipeline.close(1)
    buffered.feed(middle, 1)
    sent += pipeline.feed_reply(reply({"content": "c"}), 2) + pipeline.close(2)
    buffered.feed_reply(reply({"content": "c"}), 2)
    for part in range(3):
        buffered.close(part)
    request = {"stream": True, "n": 3, "stream_options": {"include_usage": True}}
    assert judge(Trace(body=sent, endpoint="chat", request=request)).findings == ()
    body = json.loads(buffered.body())
    assert [one["message"]["content"] for one in body["choices"]] == ["a", "b", "c"]
    assert body["usage"] == count(5, 9)


def test_a_forced_call_may_be_a_reply() -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(include_usage=False), forced=ForcedToolCall())
    sent = pipeline.feed_reply(reply({"content": '[{"name": "get", "arguments": {"x":1}}]'})) + pipeline.close()
    assert sent == stream(
        role(), delta_chunk(call_start(id="call_ours1")), delta_chunk(piece('{"x":1}')), finish("tool_calls")
    )


def test_think_tags_of_a_reply_become_reasoning() -> None:
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK, options=RepairOptions(think="tags"), reasoning=("reasoning",))
    buffered.feed_reply(reply({"content": "<think>why</think>so"}))
    buffered.close()
    message = json.loads(buffered.body())["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "so", "refusal": None, "reasoning": "why"}


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 10**20), st.floats(), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "index", "text"]), inner),
    max_leaves=5,
)


@given(st.data(), st.sampled_from([CHAT, COMPLETIONS]))
def test_any_reply_gives_a_correct_stream(data: st.DataObject, endpoint: Endpoint) -> None:
    call = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(("id", "type", "function", "index"), values)))
    message = data.draw(
        st.fixed_dictionaries(
            {},
            optional=dict.fromkeys(("role", "content", "reasoning", "refusal", "x"), values)
            | {"tool_calls": st.one_of(values, st.just([CALL, call]))},
        )
    )
    choice_value = data.draw(
        st.fixed_dictionaries(
            {"message": st.just(message), "text": st.one_of(st.just("a"), values)},
            optional=dict.fromkeys(("index", "finish_reason", "logprobs", "y"), values),
        )
    )
    body = data.draw(
        st.fixed_dictionaries(
            {"choices": st.one_of(st.just([choice_value]), st.just([choice_value, choice_value]), values)},
            optional=dict.fromkeys(("id", "object", "created", "model", "usage", "error", "z"), values),
        )
    )
    raw = json.dumps(body).encode()
    sent, pipeline = streamed(raw, endpoint, RequestFacts(include_usage=None))
    broken = judge(Trace(body=sent, endpoint=endpoint.value)).counts.keys()
    assert {
        rule for rule in broken if RULES[rule].repairability is not Repairability.REPORT_ONLY
    } == set()  # violations without a repair remain
    assert sent.endswith(DONE)
    assert (b'data: {"error":' in sent) is (pipeline.failure is not None)


@pytest.mark.parametrize("is_stream", [True, False])
def test_many_logprobs_are_read_in_several_steps_and_none_is_lost(is_stream: bool) -> None:
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
    envelope = {"id": ENVELOPE.id, "created": ENVELOPE.created, "model": ENVELOPE.model}
    body = pack({**envelope, "choices": choices, "usage": count(), "x_reply": [1]})
    facts = RequestFacts(choice_count=2)
    made: StreamPipeline | BufferedPipeline = (StreamPipeline if is_stream else BufferedPipeline)(
        CHAT, fallback=FALLBACK, facts=facts
    )
    sent_pieces = list(made.feed_reply_in_steps(body))
    assert len(sent_pieces) > 3
    last = made.close()
    if isinstance(made, StreamPipeline):
        again = BufferedPipeline(CHAT, fallback=FALLBACK, facts=facts)
        again.feed(b"".join(sent_pieces) + (last or b""))
        again.close()
        made = again
    whole = json.loads(made.body())
    assert whole["x_reply"] == [1]
    for sent, found in zip(choices, whole["choices"], strict=True):
        assert found["x_choice"] == sent["x_choice"]
        assert found["logprobs"] == sent["logprobs"]
        assert found["message"]["content"] == sent["message"]["content"]
        assert found["finish_reason"] == "length"


@table("beside", [[], [5]], ids=["valid choices", "an invalid choice"])
@table("is_list", [False, True])
def test_a_reply_whose_other_members_exceed_the_blocking_budget_fails(beside: list[int], is_list: bool) -> None:
    answer = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
    body: Json = {"choices": [answer, *beside], "extra": [{"a": 1}] * 40_000}
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK)
    buffered.feed_reply(pack([body] if is_list else body))
    assert buffered.failure is not None
    assert "too complex" in buffered.failure.message


@pytest.mark.parametrize("answer", ["ab", "abc"])
@pytest.mark.parametrize("dialect", [None, ResponsesFormat({})], ids=["chat", "responses"])
def test_the_text_of_a_buffered_answer_is_limited(
    answer: str, dialect: ResponsesFormat | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_module, "BUFFERED_LIMIT_CHARS", 2)
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK, dialect=dialect)
    buffered.feed_reply(pack({"choices": [{"index": 0, "message": {"content": answer}, "finish_reason": "stop"}]}))
    buffered.close()
    assert (buffered.failure is not None) is (len(answer) > 2)
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, dialect=dialect)
    sent = b"".join(pipeline.feed(frame(delta_chunk({"content": letter}))) for letter in answer) + pipeline.close()
    assert (b"more than 2 characters" in sent) is (len(answer) > 2 and dialect is not None)


@table("dialect", [OllamaFormat(is_chat=True, created_at="now"), GeminiFormat()], ids=["ollama", "gemini"])
def test_only_the_arguments_are_limited_of_a_stream_that_sends_calls_whole(
    dialect: AnswerFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_module, "BUFFERED_LIMIT_CHARS", 7)
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, dialect=dialect)
    deltas = [{"content": "Hello, world"}, call_start(name="f"), piece('{"a":'), piece("12345")]
    sent = b"".join(pipeline.feed(frame(delta_chunk(delta))) for delta in deltas) + pipeline.close()
    assert b"Hello, world" in sent
    assert b"more than 7 characters" in sent


@pytest.mark.parametrize("count", [10, 3_000])
def test_the_body_of_an_answer_with_many_chunks_is_slow(count: int) -> None:
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK)
    buffered.feed(frame(delta_chunk({"content": "a"})) * count + frame(finish()) + DONE)
    buffered.close()
    assert buffered.is_body_slow is (count > 2_000)
    assert json.loads(buffered.body())["choices"][0]["message"]["content"] == "a" * count
