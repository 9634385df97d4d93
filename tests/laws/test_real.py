"""Streams of OpenAI's and Anthropic's own servers are right, and pass the menders as they are."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.laws import real_messages, real_responses
from tests.laws.real_responses import frames
from tests.table import table
from welldone.protocol.dialects.anthropic.repair import MessagesRepairer
from welldone.protocol.dialects.responses.repair import ResponsesRepairer
from welldone.protocol.dialects.same_dialect import PassthroughRepairer
from welldone.protocol.envelope import Envelope
from welldone.protocol.events import Failure
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

Json = dict[str, Any]


def _read(body: bytes) -> list[Json]:
    return [json.loads(frame.partition("data: ")[2]) for frame in body.decode().split("\n\n") if "data: " in frame]


def _mended(native: PassthroughRepairer, events: list[Json]) -> list[Json]:
    return _read(native.feed(frames(events)) + native.close())


@table("name", real_responses.STREAMS)
def test_a_stream_of_openai_is_right(name: str) -> None:
    body = frames(real_responses.STREAMS[name])
    assert judge(Trace(body=body, endpoint="responses")).findings == ()


@table("name", real_responses.STREAMS)
def test_a_stream_of_openai_passes_as_it_is(name: str) -> None:
    events = real_responses.STREAMS[name]
    native = ResponsesRepairer(fallback=Envelope("resp_ours", 1, "ours"))
    assert _mended(native, events) == events
    assert native.repair_log.entries() == []


@table("name", real_messages.STREAMS)
def test_a_stream_of_anthropic_is_right(name: str) -> None:
    events, request = real_messages.STREAMS[name], real_messages.REQUESTS.get(name)
    assert judge(Trace(body=frames(events), endpoint="messages", request=request)).findings == ()


@table("name", real_messages.STREAMS)
def test_a_stream_of_anthropic_passes_as_it_is(name: str) -> None:
    events = real_messages.STREAMS[name]
    native = MessagesRepairer(fallback=Envelope("msg_ours", 1, "ours"))
    assert _mended(native, events) == events
    assert [note.rule for note in native.repair_log.entries()] == real_messages.NOTED.get(name, [])


def test_a_function_may_end_without_its_name() -> None:
    events = [
        {key: value for key, value in event.items() if key != "name"}
        for event in real_responses.STREAMS["a function after reasoning that is not told"]
    ]
    assert judge(Trace(body=frames(events), endpoint="responses")).findings == ()


@pytest.mark.parametrize("first", [0, 1])
def test_calls_that_were_made_before_may_be_counted_or_not(first: int) -> None:
    events = [
        real_messages.start([real_messages.CALLED]),
        *real_messages.text(first, "a"),
        *real_messages.end("tool_use"),
    ]
    assert judge(Trace(body=frames(events), endpoint="messages")).findings == ()
    native = MessagesRepairer(fallback=Envelope("msg_ours", 1, "ours"))
    mended = _mended(native, events)
    assert [event["content_block"] for event in mended if event["type"] == "content_block_start"] == [
        real_messages.CALLED | {"input": {}},
        {"type": "text", "text": ""},
    ]
    assert native.repair_log.entries() == []


ODD: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "carriage returns": ("sse-lf-only", lambda body: body.replace(b"\n", b"\r\n")),
    "a byte order mark": ("sse-no-bom", lambda body: b"\xef\xbb\xbf" + body),
    "no space": ("sse-data-space", lambda body: body.replace(b"data: ", b"data:")),
    "no field name": ("sse-data-space", lambda body: body.replace(b"data: ", b"")),
    "ids": ("sse-no-id-field", lambda body: body.replace(b"data: ", b"id: 7\ndata: ")),
    "times to wait": ("sse-no-retry-frame", lambda body: b"retry: 7\n\n" + body),
    "several lines": ("sse-json-on-one-line", lambda body: body.replace(b"data: {", b"data: {\ndata: ")),
    "line separators": ("enc-escape-line-breaks", lambda body: body.replace(b"He", "\u2028".encode())),
    "no last line": ("end-last-event-terminated", lambda body: body.removesuffix(b"\n")),
}
PLAIN: dict[str, tuple[list[Json], Callable[[], PassthroughRepairer]]] = {
    "responses": (
        real_responses.STREAMS["reasoning with summaries"],
        lambda: ResponsesRepairer(fallback=Envelope("resp_ours", 1, "ours")),
    ),
    "messages": (
        real_messages.STREAMS["text with a ping"],
        lambda: MessagesRepairer(fallback=Envelope("msg_ours", 1, "ours")),
    ),
}


@table("kind", ODD)
@table("endpoint", PLAIN)
def test_a_stream_in_an_odd_form_says_the_same_and_what_is_odd_is_noted(endpoint: str, kind: str) -> None:
    (rule, spoil), (events, make) = ODD[kind], PLAIN[endpoint]
    body, native = spoil(frames(events)), make()
    mended = native.feed(body) + native.close()
    assert _read(mended) == _read(frames(events).replace(b"He", b"\\u2028") if "separators" in kind else frames(events))
    assert [note.rule for note in native.repair_log.entries()] == [rule]
    assert rule in judge(Trace(body=body, endpoint=endpoint)).counts


@pytest.mark.parametrize("endpoint", PLAIN)
def test_a_stream_that_is_cut_in_its_last_event_is_whole(endpoint: str) -> None:
    events, make = PLAIN[endpoint]
    native = make()
    body = frames(events)
    mended = _read(native.feed(body[: body.rindex(b"data: ") + 12]) + native.close())
    assert native.failure is None
    assert [event["type"] for event in mended] == [event["type"] for event in events]


@pytest.mark.parametrize("endpoint", PLAIN)
def test_what_a_server_says_of_its_failure_is_reworded_and_what_we_say_is_not(endpoint: str) -> None:
    events, make = PLAIN[endpoint]
    begun = frames(events[:1])
    told, cut = make(), make()
    for native in (told, cut):
        native.configure(0, map_failure=lambda failure: Failure(failure.message.upper()))
    assert b"BOOM" in told.feed(begun + b'data: {"error":{"message":"boom","type":"x"}}\n\n') + told.close()
    assert b"the server's stream ended" in cut.feed(begun) + cut.close()
