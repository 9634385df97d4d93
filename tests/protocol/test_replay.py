"""Replay of a stream, frame by frame."""

import json

import pytest

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    DONE,
    FALLBACK,
    FALLBACKS,
    content_chunks,
    finish,
    frame,
    role,
    stream,
    text_choice,
    text_chunk,
    usage_chunk,
)
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import ChoiceStart, Failure, Finish, KeepAlive, Text, Usage
from welldone.core.request_facts import RequestFacts
from welldone.dialects.registry import passthrough_repairer_for
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.stream.fan_out import FanOut
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline
from welldone.stream.replay import StreamReplay, StreamReplayStep

HELLO = stream(role(), *content_chunks("Hel", "lo"), finish())
ABSENT = Failure("the engine is gone", code="engine_died")
MESSAGE_START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant",'
    b'"content":[],"model":"m","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}}'
    b"\n\n"
)
HEADS = {Endpoint.RESPONSES: Envelope("resp_1", 1, "m"), Endpoint.MESSAGES: Envelope("msg_1", 1, "m")}


def chat() -> StreamPipeline:
    return StreamPipeline(CHAT, fallback=FALLBACK)


def sent_bytes(steps: list[StreamReplayStep]) -> bytes:
    return b"".join(step.sent for step in steps)


def received_bytes(steps: list[StreamReplayStep]) -> bytes:
    return b"".join(step.received for step in steps)


def test_each_frame_is_a_step_with_its_events_and_output() -> None:
    replay = StreamReplay(chat())
    steps = [*replay.feed(HELLO), *replay.close()]
    assert [list(step.events) for step in steps] == [
        [ChoiceStart(0)],
        [Text(0, "Hel")],
        [Text(0, "lo")],
        [],
        [],
        [Finish(0, "stop")],
    ]
    assert [step.received for step in steps[:-1]] == [part + b"\n\n" for part in HELLO.split(b"\n\n")[:-1]]
    assert [step.byte for step in steps[:2]] == [0, len(steps[0].received)]
    assert b'"content":"Hel"' in steps[1].sent
    assert steps[-1].received == b""
    assert steps[-1].sent.endswith(DONE)
    assert not any(step.repairs for step in steps)


def test_repairs_belong_to_the_step_of_their_frame() -> None:
    malformed = b"data: null\n\n"
    replay = StreamReplay(chat())
    steps = [*replay.feed(stream(role(), malformed, *content_chunks("y"), malformed, finish())), *replay.close()]
    recorded = [[(repair.rule, repair.count, bool(repair.observed)) for repair in step.repairs] for step in steps]
    assert recorded[1] == [("sse-no-foreign-json", 1, True)]
    assert recorded[2] == []
    assert recorded[3] == [("sse-no-foreign-json", 1, False)]


def test_bytes_between_frames_belong_to_the_next_step() -> None:
    data = b"\xef\xbb\xbf" + frame(role()) + b"\n\n" + frame(*content_chunks("x")) + b"\n"
    replay = StreamReplay(chat())
    steps = [*replay.feed(data), *replay.close()]
    assert steps[0].received == b"\xef\xbb\xbf" + frame(role())
    assert [repair.rule for repair in steps[0].repairs] == ["sse-no-bom"]
    assert steps[1].received == b"\n\n" + frame(*content_chunks("x"))
    assert steps[-1].received == b"\n"


def test_an_overlong_frame_is_one_step_with_the_failure() -> None:
    replay = StreamReplay(StreamPipeline(CHAT, fallback=FALLBACK, limit_bytes=200))
    steps = [*replay.feed(frame(role()) + b"data: " + b"x" * 300)]
    assert isinstance(steps[-1].events[-1], Failure)
    assert steps[-1].received.endswith(b"x" * 300)
    assert list(replay.feed(b"more")) == []
    assert [(step.received, step.sent) for step in replay.close()] == [(b"more", DONE)]


def test_a_failed_answer_ends_with_a_step_of_the_error() -> None:
    replay = StreamReplay(chat())
    steps = [*replay.feed(frame(role()) + frame(*content_chunks("x")) + b"data: {")]
    steps += replay.fail(ABSENT)
    assert steps[-2].received == b"data: {"
    assert steps[-1].events[-1] == ABSENT
    assert b"engine_died" in steps[-1].sent
    assert steps[-1].sent.endswith(DONE)
    assert replay.fail(ABSENT) == []


def test_a_keep_alive_is_a_step() -> None:
    replay = StreamReplay(chat())
    (step,) = replay.keep_alive()
    assert (list(step.events), step.sent) == ([KeepAlive()], b": keep-alive\n\n")
    assert StreamReplay(BufferedPipeline(CHAT, fallback=FALLBACK)).keep_alive() == []


def test_a_numbered_keep_alive_shifts_the_later_numbers() -> None:
    def make() -> StreamPipeline:
        return StreamPipeline(CHAT, fallback=HEADS[Endpoint.RESPONSES], dialect=ResponsesFormat({}))

    pipeline, replay = make(), StreamReplay(make())
    plain = (
        pipeline.feed(frame(role()))
        + pipeline.keep_alive()
        + pipeline.feed(frame(*content_chunks("x")))
        + pipeline.close()
    )
    steps = [
        *replay.feed(frame(role())),
        *replay.keep_alive(),
        *replay.feed(frame(*content_chunks("x"))),
        *replay.close(),
    ]
    assert sent_bytes(steps) == plain


def test_a_non_streaming_reply_is_sent_at_its_end() -> None:
    replay = StreamReplay(BufferedPipeline(CHAT, fallback=FALLBACK))
    steps = [*replay.feed(HELLO), *replay.close(), replay.body()]
    assert sent_bytes(steps[:-1]) == b""
    assert received_bytes(steps) == HELLO
    assert json.loads(steps[-1].sent)["choices"][0]["message"]["content"] == "Hello"


def test_a_reply_is_one_step() -> None:
    answer = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    data = json.dumps({"id": "x", "object": "chat.completion", "model": "m", "choices": [answer]}).encode()
    replay = StreamReplay(BufferedPipeline(CHAT, fallback=FALLBACK))
    first = replay.feed_reply(data)
    assert [step.received for step in first] == [data]
    assert Text(0, "Hi") in first[0].events
    replay.close()
    assert json.loads(replay.body().sent)["choices"][0]["message"]["content"] == "Hi"


def test_each_part_has_its_own_steps() -> None:
    facts = RequestFacts(include_usage=True, choice_count=2)
    replay = StreamReplay(StreamPipeline(CHAT, fallback=FALLBACK, facts=facts, fan_out=FanOut(2)))
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    body = stream(role(), *content_chunks("x"), finish(), usage_chunk(usage))
    steps = [*replay.feed(body, 1), *replay.feed(body, 0), *replay.close(1), *replay.close(0)]
    assert received_bytes([step for step in steps if step.part == 0]) == body
    assert received_bytes([step for step in steps if step.part == 1]) == body
    assert isinstance(steps[-1].events[0], Usage)
    assert steps[-1].sent.endswith(DONE)


def test_a_completions_stream_is_replayed() -> None:
    replay = StreamReplay(StreamPipeline(COMPLETIONS, fallback=FALLBACKS[COMPLETIONS]))
    steps = [*replay.feed(stream(text_chunk(text_choice("x")))), *replay.close()]
    assert Text(0, "x") in steps[0].events


@pytest.mark.parametrize("endpoint", [Endpoint.RESPONSES, Endpoint.MESSAGES])
def test_a_passthrough_stream_has_the_events_of_its_dialect(endpoint: Endpoint) -> None:
    data = {
        Endpoint.RESPONSES: b'data: {"type":"response.created","response":{"id":"resp_1","output":[]}}\n\n',
        Endpoint.MESSAGES: MESSAGE_START,
    }[endpoint]
    replay = StreamReplay(passthrough_repairer_for(endpoint, fallback=HEADS[endpoint]))
    steps = [*replay.feed(data), *replay.feed(b": ping\n\n")]
    assert [event["type"] for event in steps[0].events if isinstance(event, dict)] != []
    assert b"event: " in steps[0].sent
    assert list(steps[1].events) == []
    last = replay.fail(ABSENT)
    assert b"the engine is gone" in last[-1].sent
    assert replay.close() == []


def test_a_passthrough_reply_is_one_step() -> None:
    data = b'{"id":"msg_1","role":"assistant","content":[{"type":"text","text":"Hi"}],"stop_reason":"end_turn"}'
    replay = StreamReplay(
        passthrough_repairer_for(Endpoint.MESSAGES, fallback=HEADS[Endpoint.MESSAGES], is_stream=False)
    )
    steps = [*replay.feed_reply(data), *replay.close(), replay.body()]
    assert steps[0].received == data
    assert steps[0].repairs
    assert json.loads(steps[-1].sent)["content"] == [{"type": "text", "text": "Hi"}]


def test_frames_after_the_error_of_a_passthrough_stream_are_recorded() -> None:
    error = b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"no"}}\n\n'
    replay = StreamReplay(passthrough_repairer_for(Endpoint.MESSAGES, fallback=HEADS[Endpoint.MESSAGES]))
    steps = [*replay.feed(MESSAGE_START + error + MESSAGE_START), *replay.close()]
    assert received_bytes(steps) == MESSAGE_START + error + MESSAGE_START
    assert "msg-error-last" in [repair.rule for repair in steps[2].repairs]
