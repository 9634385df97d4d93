"""One answer out of several streams."""

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
    choice,
    chunk,
    count,
    counted,
    cuts,
    finish,
    named,
    role,
    say,
    stream,
    text,
    text_choice,
    text_chunk,
    text_end,
    words,
)
from tests.table import table
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import Failure
from welldone.protocol.merger import FanOut
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline
from welldone.protocol.request_facts import RequestFacts
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

ASKED = RequestFacts(include_usage=True, choice_count=2)
REQUEST: Json = {"messages": [], "stream": True, "n": 2, "stream_options": {"include_usage": True}}
FAILURE = Failure("the engine is gone", code="engine_died")


def answer(*texts: str, usage: Json | None = None) -> bytes:
    return stream(role(), *words(*texts), finish(), *([] if usage is None else [counted(usage)]))


def chunks(body: bytes) -> list[Json]:
    return [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]


def said(body: bytes) -> dict[int, str]:
    texts: dict[int, str] = {}
    for one in chunks(body):
        for part in one["choices"]:
            texts[part["index"]] = texts.get(part["index"], "") + (part["delta"].get("content") or "")
    return texts


@pytest.mark.parametrize("size", [1, 50, 100_000])
def test_two_streams_make_two_choices_of_one_right_stream(size: int) -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, facts=ASKED, fan_out=FanOut(2))
    first = cuts(answer("a", "b", usage=count(5, 2)), size)
    second = cuts(answer("x", "y", "z", usage=count(5, 3)), size)
    body = b""
    # The second one is heard first: clients must see the choices in their order all the same.
    for place in range(max(len(first), len(second))):
        body += pipe.feed(second[place], 1) if place < len(second) else b""
        body += pipe.feed(first[place], 0) if place < len(first) else b""
    assert not body.endswith(DONE)
    body += pipe.close(1)
    assert pipe.is_done
    body += pipe.close(0)
    assert judge(Trace(body=body, endpoint="chat", request=REQUEST)).findings == ()
    assert said(body) == {0: "ab", 1: "xyz"}
    assert chunks(body)[-1]["usage"] == {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
    assert len({one["id"] for one in chunks(body)}) == 1


def test_a_prompt_counts_once_and_details_are_summed() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 1}}
    fold = BufferedPipeline(
        COMPLETIONS, fallback=FALLBACKS[COMPLETIONS], facts=RequestFacts(choice_count=4), fan_out=FanOut(4, 2)
    )
    for part, prompt in enumerate((5, 5, 7, 7)):
        usage = count(prompt, 1, **details)
        fold.feed(stream(text("w"), text_end(), text_chunk(usage=usage)), part)
        fold.close(part)
    assert json.loads(fold.body())["usage"] == {
        "prompt_tokens": 12,
        "completion_tokens": 4,
        "total_tokens": 16,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }


def test_other_members_of_usage_are_summed_where_that_makes_sense() -> None:
    fold = BufferedPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(choice_count=2), fan_out=FanOut(2))
    mores: list[dict[str, object]] = [
        {"cost": 0.5, "cost_details": {"a": 1.5, "b": {"c": 1}, "d": None, "e": "x", "f": None}, "is_byok": False},
        {"cost": 0.25, "cost_details": {"a": 1, "b": {"c": 2, "g": None}, "d": 3, "e": "y"}, "is_byok": True},
    ]
    for part, more in enumerate(mores):
        fold.feed(answer("w", usage=count(5, 1, **more) | {"total_tokens": 9}), part)
        fold.close(part)
    assert json.loads(fold.body())["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 13,
        "cost": 0.75,
        "cost_details": {"a": 2.5, "b": {"c": 3, "g": None}, "d": 3, "e": "x", "f": None},
        "is_byok": False,
    }


def test_a_count_that_is_missing_in_one_part_is_not_invented_for_all() -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, facts=ASKED, fan_out=FanOut(2))
    body = pipe.feed(answer("a", usage=count()), 0) + pipe.close(0) + pipe.feed(answer("b"), 1) + pipe.close(1)
    assert pipe.usage is None
    assert body.endswith(DONE)
    assert b'"usage":{' not in body


def test_each_call_of_a_tool_has_an_id_of_its_own() -> None:
    fold = BufferedPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(choice_count=2), fan_out=FanOut(2))
    for part in (0, 1):
        fold.feed(
            stream(role(), say(named(id="")), say(call(function={"arguments": "{}"})), finish("tool_calls")), part
        )
        fold.close(part)
    ids = [one["message"]["tool_calls"][0]["id"] for one in json.loads(fold.body())["choices"]]
    assert ids == ["call_ours1", "call_ours2"]
    assert [(note.rule, note.count) for note in fold.repair_log.entries()] == [("tool-id-first", 2)]


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_a_part_gives_one_choice_however_many_its_server_sends(endpoint: Endpoint) -> None:
    two = {
        CHAT: stream(role(), role(1), *words("b", index=1), *words("a"), finish(index=1), finish()),
        COMPLETIONS: stream(text("b", 1), text("a"), text_end(index=1), text_end()),
    }[endpoint]
    fold = BufferedPipeline(
        endpoint, fallback=FALLBACKS[endpoint], facts=RequestFacts(choice_count=2), fan_out=FanOut(2)
    )
    pipe = StreamPipeline(endpoint, fallback=FALLBACKS[endpoint], facts=RequestFacts(choice_count=2), fan_out=FanOut(2))
    body = b""
    for part in (0, 1):
        fold.feed(two, part)
        fold.close(part)
        body += pipe.feed(two, part) + pipe.close(part)
    assert judge(Trace(body=body, endpoint=endpoint.value, request=REQUEST)).counts.keys() <= {
        "use-final-chunk",
        "use-null-elsewhere",
        "cmpl-usage-chunk",
    }
    assert [one["index"] for one in json.loads(fold.body())["choices"]] == [0, 1]
    assert body.count(b'"stop"') == 2


def test_one_part_that_fails_ends_the_whole_answer() -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, facts=ASKED, fan_out=FanOut(2))
    body = pipe.feed(stream(role(), *words("a"), end=b""), 0)
    body += pipe.feed(stream({"error": {"message": "broken"}}, end=b"") + answer("more"), 1)
    assert pipe.failure is not None
    body += pipe.feed(stream(*words("b"), end=b""), 0) + pipe.close(0) + pipe.close(1) + pipe.fail(FAILURE)
    assert judge(Trace(body=body, endpoint="chat", request=REQUEST)).findings == ()
    assert said(body.partition(b'data: {"error"')[0]) == {0: "a", 1: ""}
    assert body.endswith(DONE)
    assert body.count(b'"error"') == 1


@table("parts", [1, 2])
@table("before", [b"", stream(role(), *words("a"), end=b""), b": hello\n\n"])
def test_an_answer_that_is_broken_off_ends_with_the_error(parts: int, before: bytes) -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(choice_count=parts), fan_out=FanOut(parts))
    body = pipe.feed(before) + pipe.fail(FAILURE) + pipe.close()
    assert judge(Trace(body=body, endpoint="chat")).findings == ()
    assert body.endswith(DONE)
    assert b'{"error":{"message":"the engine is gone"' in body
    assert pipe.failure == FAILURE


def test_the_part_that_is_still_open_tells_of_the_failure() -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, facts=ASKED, fan_out=FanOut(2))
    body = pipe.feed(answer("a"), 0) + pipe.close(0) + pipe.fail(FAILURE)
    assert judge(Trace(body=body, endpoint="chat", request=REQUEST)).findings == ()
    assert pipe.failure == FAILURE


def test_signs_of_life_pass() -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, facts=ASKED, fan_out=FanOut(2))
    assert pipe.feed(b": one\n\n", 1) == b": keep-alive\n\n"
    fold = BufferedPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts())
    fold.feed(b": one\n\n" + answer("a"))
    fold.close()
    assert json.loads(fold.body())["choices"][0]["message"]["content"] == "a"


def test_prompts_are_repeated_where_that_was_asked_for() -> None:
    request = {"prompt": ["p", "", "r"], "echo": True, "stream": True}
    pipe = StreamPipeline(
        COMPLETIONS,
        fallback=FALLBACKS[COMPLETIONS],
        facts=RequestFacts(include_usage=False, choice_count=3),
        fan_out=FanOut(3, 3, ("p", "", "r")),
    )
    body = b""
    for part in (2, 0, 1):
        body += pipe.feed(stream(text(f" {part}"), text_end()), part) + pipe.close(part)
    texts: dict[int, str] = {}
    for one in chunks(body):
        texts[one["choices"][0]["index"]] = texts.get(one["choices"][0]["index"], "") + one["choices"][0]["text"]
    assert texts == {0: "p 0", 1: " 1", 2: "r 2"}
    assert judge(Trace(body=body, endpoint="completions", request=request)).findings == ()


def test_unknown_fields_stay_with_their_choice() -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, facts=ASKED, fan_out=FanOut(2))
    body = pipe.feed(answer("a"), 0) + pipe.close(0)
    body += pipe.feed(
        stream(role(), say({"content": "b"}, mood="calm"), chunk(timings={"n": 1}), finish()), 1
    ) + pipe.close(1)
    fields = [part for one in chunks(body) for part in one["choices"] if "mood" in part]
    assert [part["index"] for part in fields] == [1]
    assert b'"timings":{"n":1}' in body


def test_the_model_has_the_name_that_the_client_knows() -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(), model="theirs")
    body = pipe.feed(answer("a")) + pipe.close()
    assert {one["model"] for one in chunks(body)} == {"theirs"}


def test_a_fold_that_failed_says_why() -> None:
    fold = BufferedPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts())
    fold.feed(stream(role(), end=b""))
    fold.fail(FAILURE)
    assert fold.failure == FAILURE


def test_usage_that_we_asked_for_ourselves_is_no_fault_and_not_shown() -> None:
    pipe = StreamPipeline(
        CHAT, fallback=FALLBACK, facts=RequestFacts(include_usage=False, choice_count=1, is_usage_forced=True)
    )
    body = pipe.feed(answer("a", usage=count())) + pipe.close()
    assert b"usage" not in body
    assert pipe.usage is not None
    assert pipe.repair_log.entries() == []


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_a_part_that_begins_with_a_field_after_the_others_have_ended_is_heard(endpoint: Endpoint) -> None:
    if endpoint is CHAT:
        empty = stream(chunk(choice({}, "stop"), timings={"n": 1}))
        full = answer("a")
    else:
        empty = stream(text_chunk(text_choice("", "stop"), timings={"n": 1}))
        full = stream(text("a"), text_end())
    pipe = StreamPipeline(
        endpoint,
        fallback=FALLBACKS[endpoint],
        facts=RequestFacts(include_usage=False, choice_count=3),
        fan_out=FanOut(3),
    )
    body = b""
    for part, heard in ((1, full), (0, empty), (2, empty)):
        body += pipe.feed(heard, part) + pipe.close(part)
    assert judge(Trace(body=body, endpoint=endpoint.value)).findings == ()
    assert body.count(b'"timings"') == 2
    assert body.count(b'"finish_reason":"stop"') == 3


CHATS = [
    answer("a", "b", usage=count(5, 2)),
    stream(chunk(choice({}, "stop"), timings={"n": 1})),
    stream(role(), finish("length"), counted(count()), end=b""),
    stream(chunk(timings={"n": 1}), role(), *words("x"), chunk(choice({}, "stop"), timings={"n": 2})),
    stream(role(), say(named()), say(call(function={"arguments": "{}"})), finish("tool_calls")),
    b": hello\n\n" + answer("later"),
    stream(say({"content": "y"}, mood="calm"), finish()),
    stream(role(), *words("cut"), end=b""),
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
def test_whatever_parts_say_and_whenever_they_end_the_stream_is_right(
    data: st.DataObject, endpoint: Endpoint, is_asked: bool
) -> None:
    parts = data.draw(st.lists(st.sampled_from(CHATS if endpoint is CHAT else TEXTS), min_size=1, max_size=4))
    asked = RequestFacts(include_usage=is_asked, choice_count=len(parts), is_usage_forced=True)
    pipe = StreamPipeline(endpoint, fallback=FALLBACKS[endpoint], facts=asked, fan_out=FanOut(len(parts)))
    left = {part: cuts(heard, data.draw(st.sampled_from([7, 60, 10_000]))) for part, heard in enumerate(parts)}
    body = b""
    while left:
        part = data.draw(st.sampled_from(sorted(left)))
        body += pipe.feed(left[part].pop(0), part) if left[part] else b""
        if not left[part]:
            body += pipe.close(part)
            del left[part]
    request = {"stream": True, "n": len(parts), "stream_options": {"include_usage": is_asked}}
    findings = judge(Trace(body=body, endpoint=endpoint.value, request=request)).findings
    # A count that no server sent is not invented, and who is told of an error as the first word is told by it.
    excused = {"use-final-chunk", "cmpl-usage-chunk", "use-null-elsewhere"}
    assert [finding.rule for finding in findings if finding.rule not in excused] == []
    assert body.count(DONE) == 1
    assert body.endswith(DONE)


def test_each_part_is_done_for_itself() -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, facts=ASKED, fan_out=FanOut(2))
    pipe.feed(answer("a"), 1)
    assert (pipe.is_part_done(0), pipe.is_part_done(1), pipe.is_done) == (False, True, False)


def test_the_words_of_a_failure_can_be_chosen() -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts())
    pipe.configure(0, reword=lambda failure: Failure(failure.message.replace("secret", "…")))
    sent = pipe.feed(b'data: {"error":{"message":"no secret"}}\n\n') + pipe.close()
    assert b"no \xe2\x80\xa6" in sent
    assert b"secret" not in sent
