"""Streams of OpenAI's and Anthropic's own servers are right, and pass the menders as they are."""

import json
from typing import Any

import pytest

from tests.laws import real_messages, real_responses
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.wire.dialects.messages import MessagesNative
from welldone.wire.dialects.responses import ResponsesNative
from welldone.wire.head import Head
from welldone.wire.native import Native

Json = dict[str, Any]


def _frames(events: list[Json]) -> bytes:
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def _read(body: bytes) -> list[Json]:
    return [json.loads(frame.partition("data: ")[2]) for frame in body.decode().split("\n\n") if "data: " in frame]


def _mended(native: Native, events: list[Json]) -> list[Json]:
    return _read(native.feed(_frames(events)) + native.close())


@pytest.mark.parametrize("name", real_responses.STREAMS)
def test_a_stream_of_openai_is_right(name: str) -> None:
    body = _frames(real_responses.STREAMS[name])
    assert judge(Trace(body=body, endpoint="responses")).findings == ()


@pytest.mark.parametrize("name", real_responses.STREAMS)
def test_a_stream_of_openai_passes_as_it_is(name: str) -> None:
    events = real_responses.STREAMS[name]
    native = ResponsesNative(fallback=Head("resp_ours", 1, "ours"))
    assert _mended(native, events) == events
    assert native.notes.all() == []


@pytest.mark.parametrize("name", real_messages.STREAMS)
def test_a_stream_of_anthropic_is_right(name: str) -> None:
    events, request = real_messages.STREAMS[name], real_messages.REQUESTS.get(name)
    assert judge(Trace(body=_frames(events), endpoint="messages", request=request)).findings == ()


@pytest.mark.parametrize("name", real_messages.STREAMS)
def test_a_stream_of_anthropic_passes_as_it_is(name: str) -> None:
    events = real_messages.STREAMS[name]
    native = MessagesNative(fallback=Head("msg_ours", 1, "ours"))
    assert _mended(native, events) == events
    assert [note.rule for note in native.notes.all()] == real_messages.NOTED.get(name, [])


def test_a_function_may_end_without_its_name() -> None:
    events = [
        {key: value for key, value in event.items() if key != "name"}
        for event in real_responses.STREAMS["a function after reasoning that is not told"]
    ]
    assert judge(Trace(body=_frames(events), endpoint="responses")).findings == ()


@pytest.mark.parametrize("first", [0, 1])
def test_calls_that_were_made_before_may_be_counted_or_not(first: int) -> None:
    events = [
        real_messages.start([real_messages.CALLED]),
        *real_messages.text(first, "a"),
        *real_messages.end("tool_use"),
    ]
    assert judge(Trace(body=_frames(events), endpoint="messages")).findings == ()
    native = MessagesNative(fallback=Head("msg_ours", 1, "ours"))
    mended = _mended(native, events)
    assert [event["content_block"] for event in mended if event["type"] == "content_block_start"] == [
        real_messages.CALLED | {"input": {}},
        {"type": "text", "text": ""},
    ]
    assert native.notes.all() == []
