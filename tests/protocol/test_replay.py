"""A stream mended once more, frame by frame."""

import json

import pytest

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    DONE,
    FALLBACK,
    FALLBACKS,
    counted,
    finish,
    frame,
    role,
    stream,
    text_choice,
    text_chunk,
    words,
)
from welldone.protocol.dialects.registry import passthrough_repairer_for
from welldone.protocol.dialects.responses.writer import ResponsesDialect
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import ChoiceStart, Failure, Finish, KeepAlive, Text, Usage
from welldone.protocol.merger import FanOut
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline
from welldone.protocol.replay import StreamReplay, StreamReplayStep
from welldone.protocol.request_facts import RequestFacts

HELLO = stream(role(), *words("Hel", "lo"), finish())
GONE = Failure("the engine is gone", code="engine_died")
MESSAGE_START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant",'
    b'"content":[],"model":"m","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}}'
    b"\n\n"
)
HEADS = {Endpoint.RESPONSES: Envelope("resp_1", 1, "m"), Endpoint.MESSAGES: Envelope("msg_1", 1, "m")}


def chat() -> StreamPipeline:
    return StreamPipeline(CHAT, fallback=FALLBACK)


def said(steps: list[StreamReplayStep]) -> bytes:
    return b"".join(step.sent for step in steps)


def heard(steps: list[StreamReplayStep]) -> bytes:
    return b"".join(step.received for step in steps)


def test_each_frame_is_a_step_with_its_events_and_what_went_out_for_it() -> None:
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


def test_a_note_stands_where_its_frame_is_and_is_counted_by_frame() -> None:
    odd = b"data: 5\n\n"
    replay = StreamReplay(chat())
    steps = [*replay.feed(stream(role(), odd, *words("y"), odd, finish())), *replay.close()]
    noted = [[(note.rule, note.count, bool(note.observed)) for note in step.repairs] for step in steps]
    assert noted[1] == [("sse-no-foreign-json", 1, True)]
    assert noted[2] == []
    assert noted[3] == [("sse-no-foreign-json", 1, False)]


def test_what_stands_between_frames_belongs_to_the_next_one() -> None:
    data = b"\xef\xbb\xbf" + frame(role()) + b"\n\n" + frame(*words("x")) + b"\n"
    replay = StreamReplay(chat())
    steps = [*replay.feed(data), *replay.close()]
    assert steps[0].received == b"\xef\xbb\xbf" + frame(role())
    assert [note.rule for note in steps[0].repairs] == ["sse-no-bom"]
    assert steps[1].received == b"\n\n" + frame(*words("x"))
    assert steps[-1].received == b"\n"


def test_a_frame_that_is_too_long_is_one_step_with_the_failure() -> None:
    replay = StreamReplay(StreamPipeline(CHAT, fallback=FALLBACK, limit_bytes=200))
    steps = [*replay.feed(frame(role()) + b"data: " + b"x" * 300)]
    assert isinstance(steps[-1].events[-1], Failure)
    assert steps[-1].received.endswith(b"x" * 300)
    assert [(step.received, step.sent) for step in replay.feed(b"more")] == [(b"more", b"")]
    assert replay.close()[-1].sent == DONE


def test_an_answer_that_breaks_off_ends_with_its_error() -> None:
    replay = StreamReplay(chat())
    steps = [*replay.feed(frame(role()) + frame(*words("x")) + b"data: {")]
    steps += replay.fail(GONE)
    assert steps[-2].received == b"data: {"
    assert steps[-1].events[-1] == GONE
    assert b"engine_died" in steps[-1].sent
    assert steps[-1].sent.endswith(DONE)
    assert replay.fail(GONE) == []


def test_a_sign_of_life_is_a_step() -> None:
    replay = StreamReplay(chat())
    (step,) = replay.keep_alive()
    assert (list(step.events), step.sent) == ([KeepAlive()], b": keep-alive\n\n")
    assert StreamReplay(BufferedPipeline(CHAT, fallback=FALLBACK)).keep_alive() == []


def test_a_sign_of_life_that_is_numbered_shifts_what_follows() -> None:
    def make() -> StreamPipeline:
        return StreamPipeline(CHAT, fallback=HEADS[Endpoint.RESPONSES], dialect=ResponsesDialect({}))

    pipe, replay = make(), StreamReplay(make())
    plain = pipe.feed(frame(role())) + pipe.keep_alive() + pipe.feed(frame(*words("x"))) + pipe.close()
    steps = [
        *replay.feed(frame(role())),
        *replay.keep_alive(),
        *replay.feed(frame(*words("x"))),
        *replay.close(),
    ]
    assert said(steps) == plain


def test_a_reply_that_is_not_streamed_is_said_at_its_end() -> None:
    replay = StreamReplay(BufferedPipeline(CHAT, fallback=FALLBACK))
    steps = [*replay.feed(HELLO), *replay.close(), replay.body()]
    assert said(steps[:-1]) == b""
    assert heard(steps) == HELLO
    assert json.loads(steps[-1].sent)["choices"][0]["message"]["content"] == "Hello"


def test_a_whole_reply_is_one_step() -> None:
    answer = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    data = json.dumps({"id": "x", "object": "chat.completion", "model": "m", "choices": [answer]}).encode()
    replay = StreamReplay(BufferedPipeline(CHAT, fallback=FALLBACK))
    first = replay.feed_reply(data)
    assert [step.received for step in first] == [data]
    assert Text(0, "Hi") in first[0].events
    replay.close()
    assert json.loads(replay.body().sent)["choices"][0]["message"]["content"] == "Hi"


def test_parts_have_steps_of_their_own() -> None:
    asked = RequestFacts(include_usage=True, choice_count=2)
    replay = StreamReplay(StreamPipeline(CHAT, fallback=FALLBACK, facts=asked, fan_out=FanOut(2)))
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    body = stream(role(), *words("x"), finish(), counted(usage))
    steps = [*replay.feed(body, 1), *replay.feed(body, 0), *replay.close(1), *replay.close(0)]
    assert heard([step for step in steps if step.part == 0]) == body
    assert heard([step for step in steps if step.part == 1]) == body
    assert isinstance(steps[-1].events[0], Usage)
    assert steps[-1].sent.endswith(DONE)


def test_completions_are_read_as_what_they_are() -> None:
    replay = StreamReplay(StreamPipeline(COMPLETIONS, fallback=FALLBACKS[COMPLETIONS]))
    steps = [*replay.feed(stream(text_chunk(text_choice("x")))), *replay.close()]
    assert Text(0, "x") in steps[0].events


@pytest.mark.parametrize("endpoint", [Endpoint.RESPONSES, Endpoint.MESSAGES])
def test_a_native_stream_tells_its_own_events(endpoint: Endpoint) -> None:
    data = {
        Endpoint.RESPONSES: b'data: {"type":"response.created","response":{"id":"resp_1","output":[]}}\n\n',
        Endpoint.MESSAGES: MESSAGE_START,
    }[endpoint]
    replay = StreamReplay(passthrough_repairer_for(endpoint, fallback=HEADS[endpoint]))
    steps = [*replay.feed(data), *replay.feed(b": ping\n\n")]
    assert [event["type"] for event in steps[0].events if isinstance(event, dict)] != []
    assert b"event: " in steps[0].sent
    assert list(steps[1].events) == []
    last = replay.fail(GONE)
    assert b"the engine is gone" in last[-1].sent
    assert replay.close() == []


def test_a_native_reply_that_was_not_streamed_is_one_step() -> None:
    data = b'{"id":"msg_1","role":"assistant","content":[{"type":"text","text":"Hi"}],"stop_reason":"end_turn"}'
    replay = StreamReplay(
        passthrough_repairer_for(Endpoint.MESSAGES, fallback=HEADS[Endpoint.MESSAGES], is_stream=False)
    )
    steps = [*replay.feed_reply(data), *replay.close(), replay.body()]
    assert steps[0].received == data
    assert steps[0].repairs
    assert json.loads(steps[-1].sent)["content"] == [{"type": "text", "text": "Hi"}]


def test_what_follows_the_error_of_a_native_stream_is_noted_without_being_read() -> None:
    error = b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"no"}}\n\n'
    replay = StreamReplay(passthrough_repairer_for(Endpoint.MESSAGES, fallback=HEADS[Endpoint.MESSAGES]))
    steps = [*replay.feed(MESSAGE_START + error + MESSAGE_START), *replay.close()]
    assert heard(steps) == MESSAGE_START + error + MESSAGE_START
    assert "msg-error-last" in [note.rule for note in steps[2].repairs]
