"""Answers that end without a finish reason, from a source whose end is the end of its answers."""

import msgspec
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
    frame,
    pack,
    piece,
    role,
    rules,
    stream,
    text,
    text_end,
)
from tests.protocol.messages_streams import START, TEXT, block_start, block_stop, input_delta, thinking_delta
from tests.protocol.messages_streams import stream as messages_stream
from tests.table import table
from welldone.core.envelope import Endpoint
from welldone.core.events import Failure
from welldone.core.fields import BROKEN_OFF, UNFINISHED
from welldone.core.request_facts import RepairOptions, RequestFacts
from welldone.dialects.registry import passthrough_repairer_for
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

OURS = msgspec.structs.replace(FALLBACK, id="msg_ours")
ENDS = RepairOptions(unfinished=None)
HELLO = [role(), *content_chunks("Hel", "lo")]
CALL = [delta_chunk(call_start()), delta_chunk(piece('{"x":1}'))]


def pipeline_of(data: bytes, endpoint: Endpoint = CHAT, options: RepairOptions = ENDS) -> tuple[bytes, StreamPipeline]:
    pipeline = StreamPipeline(endpoint, fallback=FALLBACKS[endpoint], options=options)
    return pipeline.feed(data) + pipeline.close(), pipeline


@table(
    ("endpoint", "parts", "reason"),
    [
        (CHAT, HELLO, "stop"),
        (CHAT, [role(), *CALL], "tool_calls"),
        (COMPLETIONS, [text("Hi")], "stop"),
    ],
)
def test_the_end_of_the_stream_is_the_end_of_the_answer(endpoint: Endpoint, parts: list[object], reason: str) -> None:
    body, pipeline = pipeline_of(stream(*parts, end=b""), endpoint)
    last = finish(reason) if endpoint is CHAT else text_end(reason)
    assert body == stream(*parts, last)
    assert pipeline.finish_reasons == (reason,)
    found = set(rules(pipeline.repair_log))
    assert found - {"tool-finish-follows", "cmpl-done"} == {"err-not-silent", "end-done-sent"} | (
        {"fin-always-sent"} if endpoint is CHAT else set()
    )


@pytest.mark.parametrize("end", [b"", b"\n", b": bye", b"data: " + pack(content_chunks("!")[0])])
def test_the_last_blank_line_may_be_missing(end: bytes) -> None:
    assert pipeline_of(stream(*HELLO, end=end))[1].failure is None


@pytest.mark.parametrize("end", [b"dat", b"data:", b"data: {", b"event: x", frame(content_chunks("!")[0])[:-9]])
def test_a_stream_that_ends_within_a_frame_has_broken_off(end: bytes) -> None:
    for options in (ENDS, RepairOptions()):
        assert pipeline_of(stream(*HELLO, end=end), options=options)[1].failure == BROKEN_OFF


@table(
    "parts",
    [
        [],
        [{}],
        [{"reasoning_content": "So"}],
        [call_start()],
        [call_start(), piece('{"x":')],
        [call_start(), piece("tru")],
        [call_start(), piece('{"x":1}'), call_start(1, "call_b", "put")],
    ],
)
def test_an_answer_that_lacks_a_part_has_broken_off(parts: list[object]) -> None:
    for options in (ENDS, RepairOptions()):
        body, pipeline = pipeline_of(stream(role(), *map(delta_chunk, parts), end=b""), options=options)
        assert pipeline.failure == BROKEN_OFF
        assert b'"finish_reason":"' not in body


def test_each_choice_ends() -> None:
    parts = [role(), role(1), *content_chunks("a"), *content_chunks("b", index=1)]
    assert pipeline_of(stream(*parts, end=b""))[0] == stream(*parts, finish(), finish(index=1))
    assert pipeline_of(stream(*parts, finish("length"), end=b""))[1].finish_reasons == ("length", "stop")


def test_the_failure_can_be_set() -> None:
    ours = Failure("ours")
    assert pipeline_of(stream(*HELLO, end=b""), options=RepairOptions(unfinished=ours))[1].failure is ours
    assert pipeline_of(stream(*HELLO, end=b""), options=RepairOptions())[1].failure is UNFINISHED


def test_a_strict_rule_still_forbids_it() -> None:
    options = RepairOptions(unfinished=None, strict=frozenset({"fin-always-sent"}))
    _, pipeline = pipeline_of(stream(*HELLO, end=b""), options=options)
    assert pipeline.failure is not None
    assert pipeline.failure.code == "upstream_rule_broken"


def test_a_whole_reply_needs_no_finish_reason() -> None:
    reply = pack({"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}}]})
    for options, failure in ((ENDS, None), (RepairOptions(), UNFINISHED)):
        pipeline = BufferedPipeline(CHAT, fallback=FALLBACKS[CHAT], options=options)
        pipeline.feed_reply(reply)
        pipeline.close()
        assert pipeline.failure == failure
        assert (b'"finish_reason":"stop"' in pipeline.body()) == (failure is None)


BROKEN_INPUT = [block_start(1, "tool_use"), input_delta(1, '{"x":')]
MESSAGES = [
    ([START, *TEXT], "end_turn"),
    ([START, *TEXT[:-1]], None),
    ([START, TEXT[0]], None),
    ([START, block_start(0, "thinking"), thinking_delta(0, "Let me thi"), block_stop(0)], None),
    ([*TEXT], "end_turn"),
    ([START, *TEXT, block_start(1, "thinking")], None),
    ([START, *TEXT, block_start(1, "tool_use"), input_delta(1, '{"x":1}')], "tool_use"),
    ([START, *TEXT, block_start(1, "tool_use"), block_stop(1)], "tool_use"),
    ([START, *TEXT, block_start(1, "tool_use")], None),
    ([START, *TEXT, *BROKEN_INPUT], None),
    ([START, *TEXT, *BROKEN_INPUT, block_stop(1)], None),
    ([START, *TEXT, b"event: content_block_delta\ndata: {"], None),
    ([START], None),
    ([], None),
]


@table(("parts", "reason"), MESSAGES)
def test_messages_end_in_the_same_way(parts: list[object], reason: str | None) -> None:
    data = messages_stream(*parts)  # type: ignore[arg-type]  # Json and bytes
    repairer = passthrough_repairer_for(Endpoint.MESSAGES, fallback=OURS)
    repairer.configure(0, ENDS)
    body = repairer.feed(data) + repairer.close()
    assert (repairer.failure is None) == (reason is not None)
    assert (f'"stop_reason":"{reason}"'.encode() in body) == (reason is not None)
    as_chat = msgspec.structs.replace(ENDS, upstream_dialect=Endpoint.MESSAGES)
    _, pipeline = pipeline_of(data, options=as_chat)
    assert pipeline.finish_reasons == ({"end_turn": ("stop",), "tool_use": ("tool_calls",)}.get(reason or "", ()))


def test_a_message_without_an_end_is_unfinished() -> None:
    repairer = passthrough_repairer_for(Endpoint.MESSAGES, fallback=OURS)
    repairer.configure(0, RepairOptions(unfinished=Failure("ours")))
    repairer.feed(messages_stream(START, *TEXT))
    repairer.close()
    assert repairer.failure == Failure("ours")


def test_other_choices_than_requested_are_still_missing() -> None:
    facts = RequestFacts(choice_count=2)
    pipeline = StreamPipeline(CHAT, fallback=FALLBACKS[CHAT], options=ENDS, facts=facts)
    pipeline.feed(stream(*HELLO, end=b""))
    pipeline.close()
    assert pipeline.failure is not None
    assert pipeline.failure.message == "the server sent 1 of 2 requested choices"
