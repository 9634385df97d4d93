"""Merger of several streams into one answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    DONE,
    FALLBACK,
    FALLBACKS,
    Json,
    call,
    call_start,
    choice,
    chunk,
    content_chunks,
    count,
    cuts,
    delta_chunk,
    finish,
    role,
    stream,
    text,
    text_choice,
    text_chunk,
    text_end,
    usage_chunk,
)
from tests.table import table
from welldone.core.envelope import Endpoint
from welldone.core.events import Failure
from welldone.core.request_facts import RepairOptions, RequestFacts
from welldone.core.state import PartState
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.stream.fan_out import FanOut
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

FACTS = RequestFacts(include_usage=True, choice_count=2)
REQUEST: Json = {"messages": [], "stream": True, "n": 2, "stream_options": {"include_usage": True}}
FAILURE = Failure("the engine is gone", code="engine_died")


def answer(*texts: str, usage: Json | None = None) -> bytes:
    return stream(role(), *content_chunks(*texts), finish(), *([] if usage is None else [usage_chunk(usage)]))


def chunks(body: bytes) -> list[Json]:
    return [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]


def texts_by_choice(body: bytes) -> dict[int, str]:
    texts: dict[int, str] = {}
    for one in chunks(body):
        for part in one["choices"]:
            texts[part["index"]] = texts.get(part["index"], "") + (part["delta"].get("content") or "")
    return texts


@pytest.mark.parametrize("size", [1, 50, 100_000])
def test_two_streams_become_two_choices_of_one_correct_stream(size: int) -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=FACTS, fan_out=FanOut(2))
    first = cuts(answer("a", "b", usage=count(5, 2)), size)
    second = cuts(answer("x", "y", "z", usage=count(5, 3)), size)
    body = b""
    # The second stream arrives first; clients must still see the choices in order.
    for position in range(max(len(first), len(second))):
        body += pipeline.feed(second[position], 1) if position < len(second) else b""
        body += pipeline.feed(first[position], 0) if position < len(first) else b""
    assert not body.endswith(DONE)
    body += pipeline.close(1)
    assert pipeline.is_done
    body += pipeline.close(0)
    assert judge(Trace(body=body, endpoint="chat", request=REQUEST)).findings == ()
    assert texts_by_choice(body) == {0: "ab", 1: "xyz"}
    assert chunks(body)[-1]["usage"] == {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
    assert len({one["id"] for one in chunks(body)}) == 1


def test_a_prompt_counts_once_and_usage_details_are_added() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 1}}
    buffered = BufferedPipeline(
        COMPLETIONS, fallback=FALLBACKS[COMPLETIONS], facts=RequestFacts(choice_count=4), fan_out=FanOut(4, 2)
    )
    for part, prompt in enumerate((5, 5, 7, 7)):
        usage = count(prompt, 1, **details)
        buffered.feed(stream(text("w"), text_end(), text_chunk(usage=usage)), part)
        buffered.close(part)
    assert json.loads(buffered.body())["usage"] == {
        "prompt_tokens": 12,
        "completion_tokens": 4,
        "total_tokens": 16,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }


def test_numeric_members_of_usage_are_added() -> None:
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(choice_count=2), fan_out=FanOut(2))
    mores: list[dict[str, object]] = [
        {"cost": 0.5, "cost_details": {"a": 1.5, "b": {"c": 1}, "d": None, "e": "x", "f": None}, "is_byok": False},
        {"cost": 0.25, "cost_details": {"a": 1, "b": {"c": 2, "g": None}, "d": 3, "e": "y"}, "is_byok": True},
    ]
    for part, more in enumerate(mores):
        buffered.feed(answer("w", usage=count(5, 1, **more) | {"total_tokens": 9}), part)
        buffered.close(part)
    assert json.loads(buffered.body())["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 13,
        "cost": 0.75,
        "cost_details": {"a": 2.5, "b": {"c": 3, "g": None}, "d": 3, "e": "x", "f": None},
        "is_byok": False,
    }


def test_usage_that_is_missing_in_one_part_is_not_sent() -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=FACTS, fan_out=FanOut(2))
    body = (
        pipeline.feed(answer("a", usage=count()), 0)
        + pipeline.close(0)
        + pipeline.feed(answer("b"), 1)
        + pipeline.close(1)
    )
    assert pipeline.usage is None
    assert body.endswith(DONE)
    assert b'"usage":{' not in body


def test_each_tool_call_has_a_unique_id() -> None:
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(choice_count=2), fan_out=FanOut(2))
    for part in (0, 1):
        buffered.feed(
            stream(
                role(),
                delta_chunk(call_start(id="")),
                delta_chunk(call(function={"arguments": "{}"})),
                finish("tool_calls"),
            ),
            part,
        )
        buffered.close(part)
    ids = [one["message"]["tool_calls"][0]["id"] for one in json.loads(buffered.body())["choices"]]
    assert ids == ["call_ours1", "call_ours2"]
    assert [(repair.rule, repair.count) for repair in buffered.repair_log.entries()] == [("tool-id-first", 2)]


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_a_part_has_one_choice_however_many_its_server_sends(endpoint: Endpoint) -> None:
    two = {
        CHAT: stream(role(), role(1), *content_chunks("b", index=1), *content_chunks("a"), finish(index=1), finish()),
        COMPLETIONS: stream(text("b", 1), text("a"), text_end(index=1), text_end()),
    }[endpoint]
    buffered = BufferedPipeline(
        endpoint, fallback=FALLBACKS[endpoint], facts=RequestFacts(choice_count=2), fan_out=FanOut(2)
    )
    pipeline = StreamPipeline(
        endpoint, fallback=FALLBACKS[endpoint], facts=RequestFacts(choice_count=2), fan_out=FanOut(2)
    )
    body = b""
    for part in (0, 1):
        buffered.feed(two, part)
        buffered.close(part)
        body += pipeline.feed(two, part) + pipeline.close(part)
    assert judge(Trace(body=body, endpoint=endpoint.value, request=REQUEST)).counts.keys() <= {
        "use-final-chunk",
        "use-null-elsewhere",
        "cmpl-usage-chunk",
    }
    assert [one["index"] for one in json.loads(buffered.body())["choices"]] == [0, 1]
    assert body.count(b'"stop"') == 2


def test_a_failed_part_ends_the_answer() -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=FACTS, fan_out=FanOut(2))
    body = pipeline.feed(stream(role(), *content_chunks("a"), end=b""), 0)
    body += pipeline.feed(stream({"error": {"message": "broken"}}, end=b"") + answer("more"), 1)
    assert pipeline.failure is not None
    body += (
        pipeline.feed(stream(*content_chunks("b"), end=b""), 0)
        + pipeline.close(0)
        + pipeline.close(1)
        + pipeline.fail(FAILURE)
    )
    assert judge(Trace(body=body, endpoint="chat", request=REQUEST)).findings == ()
    assert texts_by_choice(body.partition(b'data: {"error"')[0]) == {0: "a", 1: ""}
    assert body.endswith(DONE)
    assert body.count(b'"error"') == 1


@table("parts", [1, 2])
@table("before", [b"", stream(role(), *content_chunks("a"), end=b""), b": hello\n\n"])
def test_a_failed_answer_ends_with_the_error(parts: int, before: bytes) -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(choice_count=parts), fan_out=FanOut(parts))
    body = pipeline.feed(before) + pipeline.fail(FAILURE) + pipeline.close()
    assert judge(Trace(body=body, endpoint="chat")).findings == ()
    assert body.endswith(DONE)
    assert b'{"error":{"message":"the engine is gone"' in body
    assert pipeline.failure == FAILURE


def test_the_failure_is_sent_through_a_part_that_is_still_open() -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=FACTS, fan_out=FanOut(2))
    body = pipeline.feed(answer("a"), 0) + pipeline.close(0) + pipeline.fail(FAILURE)
    assert judge(Trace(body=body, endpoint="chat", request=REQUEST)).findings == ()
    assert pipeline.failure == FAILURE


def test_keep_alives_of_all_parts_pass() -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=FACTS, fan_out=FanOut(2))
    assert pipeline.feed(b": one\n\n", 1) == b": keep-alive\n\n"
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts())
    buffered.feed(b": one\n\n" + answer("a"))
    buffered.close()
    assert json.loads(buffered.body())["choices"][0]["message"]["content"] == "a"


def test_prompts_are_echoed_if_requested() -> None:
    request = {"prompt": ["p", "", "r"], "echo": True, "stream": True}
    pipeline = StreamPipeline(
        COMPLETIONS,
        fallback=FALLBACKS[COMPLETIONS],
        facts=RequestFacts(include_usage=False, choice_count=3),
        fan_out=FanOut(3, 3, ("p", "", "r")),
    )
    body = b""
    for part in (2, 0, 1):
        body += pipeline.feed(stream(text(f" {part}"), text_end()), part) + pipeline.close(part)
    texts: dict[int, str] = {}
    for one in chunks(body):
        texts[one["choices"][0]["index"]] = texts.get(one["choices"][0]["index"], "") + one["choices"][0]["text"]
    assert texts == {0: "p 0", 1: " 1", 2: "r 2"}
    assert judge(Trace(body=body, endpoint="completions", request=request)).findings == ()


def test_unknown_fields_stay_with_their_choice() -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=FACTS, fan_out=FanOut(2))
    body = pipeline.feed(answer("a"), 0) + pipeline.close(0)
    body += pipeline.feed(
        stream(role(), delta_chunk({"content": "b"}, mood="calm"), chunk(timings={"n": 1}), finish()), 1
    ) + pipeline.close(1)
    fields = [part for one in chunks(body) for part in one["choices"] if "mood" in part]
    assert [part["index"] for part in fields] == [1]
    assert b'"timings":{"n":1}' in body


def test_the_model_name_can_be_replaced() -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(), model="theirs")
    body = pipeline.feed(answer("a")) + pipeline.close()
    assert {one["model"] for one in chunks(body)} == {"theirs"}


def test_a_failed_reply_has_the_error() -> None:
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts())
    buffered.feed(stream(role(), end=b""))
    buffered.fail(FAILURE)
    assert buffered.failure == FAILURE


def test_forced_usage_is_no_violation_and_not_sent() -> None:
    pipeline = StreamPipeline(
        CHAT, fallback=FALLBACK, facts=RequestFacts(include_usage=False, choice_count=1, is_usage_forced=True)
    )
    body = pipeline.feed(answer("a", usage=count())) + pipeline.close()
    assert b"usage" not in body
    assert pipeline.usage is not None
    assert pipeline.repair_log.entries() == []


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_a_part_that_starts_with_a_field_after_the_others_have_ended_is_read(endpoint: Endpoint) -> None:
    if endpoint is CHAT:
        empty = stream(chunk(choice({}, "stop"), timings={"n": 1}))
        full = answer("a")
    else:
        empty = stream(text_chunk(text_choice("", "stop"), timings={"n": 1}))
        full = stream(text("a"), text_end())
    pipeline = StreamPipeline(
        endpoint,
        fallback=FALLBACKS[endpoint],
        facts=RequestFacts(include_usage=False, choice_count=3),
        fan_out=FanOut(3),
    )
    body = b""
    for part, received in ((1, full), (0, empty), (2, empty)):
        body += pipeline.feed(received, part) + pipeline.close(part)
    assert judge(Trace(body=body, endpoint=endpoint.value)).findings == ()
    assert body.count(b'"timings"') == 2
    assert body.count(b'"finish_reason":"stop"') == 3


CHATS = [
    answer("a", "b", usage=count(5, 2)),
    stream(chunk(choice({}, "stop"), timings={"n": 1})),
    stream(role(), finish("length"), usage_chunk(count()), end=b""),
    stream(chunk(timings={"n": 1}), role(), *content_chunks("x"), chunk(choice({}, "stop"), timings={"n": 2})),
    stream(role(), delta_chunk(call_start()), delta_chunk(call(function={"arguments": "{}"})), finish("tool_calls")),
    b": hello\n\n" + answer("later"),
    stream(delta_chunk({"content": "y"}, mood="calm"), finish()),
    stream(role(), *content_chunks("cut"), end=b""),
    stream({"error": {"message": "broken"}}),
    b"",
]
TEXTS = [
    stream(text("a"), text("b"), text_end(), text_chunk(usage=count())),
    stream(text_chunk(text_choice("", "stop"), timings={"n": 1})),
    stream(text_chunk(timings={"n": 1}), text("x"), text_end("length")),
    stream(text_end()),
    stream(text("cut"), end=b""),
    b": hello\n\n",
]


@given(st.data(), st.sampled_from([CHAT, COMPLETIONS]), st.booleans())
def test_any_interleaving_of_parts_gives_a_correct_stream(
    data: st.DataObject, endpoint: Endpoint, is_asked: bool
) -> None:
    parts = data.draw(st.lists(st.sampled_from(CHATS if endpoint is CHAT else TEXTS), min_size=1, max_size=4))
    facts = RequestFacts(include_usage=is_asked, choice_count=len(parts), is_usage_forced=True)
    pipeline = StreamPipeline(endpoint, fallback=FALLBACKS[endpoint], facts=facts, fan_out=FanOut(len(parts)))
    left = {part: cuts(received, data.draw(st.sampled_from([7, 60, 10_000]))) for part, received in enumerate(parts)}
    body = b""
    while left:
        part = data.draw(st.sampled_from(sorted(left)))
        body += pipeline.feed(left[part].pop(0), part) if left[part] else b""
        if not left[part]:
            body += pipeline.close(part)
            del left[part]
    request = {"stream": True, "n": len(parts), "stream_options": {"include_usage": is_asked}}
    findings = judge(Trace(body=body, endpoint=endpoint.value, request=request)).findings
    # Usage that no server sent is not invented. If the stream starts with an error, only the error is sent.
    excused = {"use-final-chunk", "cmpl-usage-chunk", "use-null-elsewhere"}
    assert [finding.rule for finding in findings if finding.rule not in excused] == []
    assert body.count(DONE) == 1
    assert body.endswith(DONE)


def test_done_is_tracked_per_part() -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=FACTS, fan_out=FanOut(2))
    pipeline.feed(answer("a"), 1)
    assert [pipeline.part_state(part) for part in (0, 1)] == [PartState.WAITING, PartState.DONE]
    assert not pipeline.is_done


def test_failures_of_the_upstream_can_be_mapped() -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts())
    pipeline.configure(0, RepairOptions(map_failure=lambda failure: Failure(failure.message.replace("secret", "…"))))
    sent = pipeline.feed(b'data: {"error":{"message":"no secret"}}\n\n') + pipeline.close()
    assert b"no \xe2\x80\xa6" in sent
    assert b"secret" not in sent
