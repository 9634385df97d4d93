"""What people and programs have saved, read back as traces."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.table import table
from welldone.protocol.dialects.anthropic.writer import MessagesDialect
from welldone.protocol.dialects.base import Dialect
from welldone.protocol.dialects.responses.writer import ResponsesDialect
from welldone.protocol.envelope import Envelope
from welldone.protocol.events import ChoiceStart, Event, Finish, Text, Usage
from welldone.rules.judge import judge
from welldone.rules.trace import (
    Trace,
    inline_body,
    read_capture,
    read_record,
    read_trace,
    timed_reads,
    unreadable_reason,
)

BODY = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
HEADERS = (("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"))


def test_a_body_alone_is_taken_as_it_is() -> None:
    assert read_capture(BODY) == Trace(body=BODY)


def test_a_head_gives_status_and_headers() -> None:
    assert read_capture(HEAD + BODY) == Trace(body=BODY, status=200, headers=HEADERS)
    assert read_capture(HEAD.replace(b"\r", b"") + BODY) == Trace(body=BODY, status=200, headers=HEADERS)


@table("head", [b"HTTP/2 204", b"HTTP/1.1 204 No Content\n", b"HTTP/2 204 \r\n\r\n", b"HTTP/2 204\n\n"])
def test_a_head_may_stand_alone(head: bytes) -> None:
    assert read_capture(head) == Trace(body=b"", status=204, headers=())


@pytest.mark.parametrize(
    "before", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"]
)
def test_of_several_heads_the_last_one_counts(before: bytes) -> None:
    assert read_capture(before + HEAD + BODY) == read_capture(HEAD + BODY)


def test_lines_of_a_head_without_a_colon_are_passed_over() -> None:
    trace = read_capture(b"HTTP/2 200\nx-a: 1\nnonsense\nX-A: 2\n\n" + BODY)
    assert trace.headers == (("x-a", "1"), ("X-A", "2"))
    assert trace.header("x-a") == "1, 2"
    assert trace.header("x-b") is None


@table("line_end", [b"\r\n", b"\n"])
@table("end", [b"0%b%b", b"0;x=y%bTrailer: 1%b"])
def test_chunked_framing_is_undone(line_end: bytes, end: bytes) -> None:
    framed = b"6%bdata: %b8;a=b%b[DONE]\n\n%b" % ((line_end,) * 4) + end % (line_end, line_end)
    trace = read_capture(HEAD + framed)
    assert (trace.body, trace.complete, trace.chunk_sizes) == (BODY, True, (6, 8))


@table("cut", range(1, 30))
def test_chunked_framing_that_breaks_off_is_not_complete(cut: int) -> None:
    framed = (b"6\r\ndata: \r\n8\r\n[DONE]\n\n\r\n0\r\n\r\n")[: -cut - 4]
    trace = read_capture(HEAD + framed)
    assert trace.complete is not True
    assert BODY.startswith(trace.body) or trace.chunk_sizes is None


@table(("length", "complete"), [(b"14", True), (b"15", False), (b"x", None), (b"9" * 30, None)])
def test_a_content_length_says_whether_the_body_is_complete(length: bytes, complete: bool | None) -> None:
    trace = read_capture(b"HTTP/1.1 200 OK\r\nContent-Length: " + length + b"\r\n\r\n" + BODY)
    assert (trace.body, trace.complete) == (BODY, complete)


@table(
    ("body", "endpoint"),
    [
        (b'data: {"object": "text_completion","choices":[]}\n\n', "completions"),
        (b'data: {"choices":[{"delta":{"content":"{\\"object\\":\\"text_completion\\"}"}}]}\n\n', "chat"),
        (b'event: response.created\ndata: {"type":"response.created"}\n\n', "responses"),
        (b'{"id":"resp_1","object": "response"}', "responses"),
        (b'event: message_start\ndata: {"type": "message_start"}\n\n', "messages"),
        (b'data: {"index":0,"type":"content_block_delta"}\n\n', "messages"),
        (b'{"id":"msg_1","type":"message","role":"assistant"}', "messages"),
        (b'{"type":"error","error":{"type":"api_error","message":"x"}}', "messages"),
        (b'{"error":{"type":"api_error","message":"x"}}', "chat"),
        (b'data: {"choices":[{"delta":{"type":"message_start"}}]}\n\n', "chat"),
        (b'{"object":"response","tools":[{"parameters":{"properties":{"choices":{}}}}]}', "responses"),
        (b'{"type":"message","content":[{"type":"tool_use","input":{"choices":[]}}]}', "messages"),
    ],
)
def test_endpoints_name_themselves_in_their_replies(body: bytes, endpoint: str) -> None:
    assert read_capture(body).endpoint == endpoint


@given(st.binary() | st.binary().map(HEAD.__add__))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    read_capture(data)


RECORD = {
    "server": "x",
    "endpoint": "/v1/chat/completions",
    "method": "POST",
    "request": {"stream": True},
    "status": "HTTP/1.1 200 OK",
    "headers": [["Content-Type", "text/event-stream"]],
    "http_chunk_sizes": [6, 8],
    "body_complete": True,
}


def test_a_record_gives_all_that_was_heard() -> None:
    assert read_trace(RECORD, BODY) == Trace(
        body=BODY,
        endpoint="chat",
        request={"stream": True},
        status=200,
        headers=(("Content-Type", "text/event-stream"),),
        complete=True,
        chunk_sizes=(6, 8),
    )


CHUNK = b'data: {"id":"%s-a","object":"%s","created":1,"model":"m","choices":[{"index":0,'
ENVELOPE = (CHUNK % (b"chatcmpl", b"chat.completion.chunk"), CHUNK % (b"cmpl", b"text_completion"))
TOOL = b'{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}'
CHAT = b"".join(
    ENVELOPE[0] + b'"delta":' + delta + b',"logprobs":null,"finish_reason":' + finish + b'}],"usage":null}\n\n'
    for delta, finish in [
        (b'{"role":"assistant","content":""}', b"null"),
        (TOOL, b"null"),
        (b"{}", b'"tool_calls"'),
    ]
)
TEXT = ENVELOPE[1] + b'"text":"a","logprobs":null,"finish_reason":null}],"usage":null}\n\n'
TEXT += ENVELOPE[1] + b'"text":"","logprobs":null,"finish_reason":"stop"}],"usage":null}\n\n'
USAGE = b'"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}\n\ndata: [DONE]\n\n'
FAILURE = b'{"error":{"message":"no","type":"invalid_request_error","param":null,"code":null}}'
BROKEN = b"data: " + FAILURE + b"\n\ndata: [DONE]\n\n"
WHOLE = (
    b'{"id":"a","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"a","refusal":null},"logprobs":null,"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)


def _written(dialect: Dialect) -> bytes:
    writer = dialect.make_writer(Envelope("a_1", 1, "m"), lambda: None)
    events: list[Event] = [ChoiceStart(0), Text(0, "a"), Text(0, "b"), Finish(0, "stop"), Usage(1, 2, 3, {})]
    return b"".join([*(writer.send(event) for event in events), writer.end()])


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.tier3)])
@table(
    ("path", "status", "is_stream", "body"),
    [
        ("/v1/chat/completions", 200, True, CHAT + ENVELOPE[0].replace(b'"choices":[{"index":0,', USAGE)),
        ("/v1/chat/completions", 200, True, CHAT[: CHAT.index(b"\n\n") + 2] + BROKEN),
        ("/v1/chat/completions", 200, True, b": wait\n\n" + CHAT[: CHAT.index(b"\n\n") + 2] + BROKEN),
        ("/v1/completions", 200, True, TEXT + ENVELOPE[1].replace(b'"choices":[{"index":0,', USAGE)),
        ("/v1/chat/completions", 200, False, WHOLE),
        ("/v1/chat/completions", 400, True, FAILURE),
        ("/v1/responses", 200, True, _written(ResponsesDialect({}))),
        ("/v1/messages", 200, True, _written(MessagesDialect())),
    ],
    ids=["chat", "broken", "late", "completions", "whole", "failure", "responses", "messages"],
)
def test_a_record_that_was_left_blames_nobody_for_its_end(
    path: str, status: int, is_stream: bool, body: bytes, step: int
) -> None:
    request = {"stream": is_stream, "stream_options": {"include_usage": True}}
    media = "text/event-stream; charset=utf-8" if is_stream and status == 200 else "application/json"
    headers = [["Content-Type", media], ["Cache-Control", "no-cache, no-transform"], ["X-Accel-Buffering", "no"]]
    record = {"endpoint": path, "request": request, "status": f"HTTP/1.1 {status}", "headers": headers}
    whole = read_trace(record | {"body_complete": True}, body)
    assert (judge(whole).findings, whole.end) == ((), True)
    for size in range(0, len(body), step):
        heard = read_trace(record | {"body_complete": None, "error": "left"}, body[:size])
        assert judge(heard).findings == (), body[:size]
    for more in ({"body_complete": False, "error": "lost"}, {"body_complete": None}):  # it was not we who left
        trace = read_trace(record | more, body[:-20])
        assert (trace.body, trace.end, judge(trace).findings != ()) == (body[:-20], True, True)


@pytest.mark.parametrize(
    "end", [b"data: [DONE]\n\n", b"event: message_stop\ndata: {}\n\n", b"event: response.completed\r\ndata: {}\r\n\r\n"]
)
def test_who_leaves_after_the_end_has_heard_it(end: bytes) -> None:
    trace = read_trace({"body_complete": None, "error": "left"}, end + b"da")
    assert (trace.body, trace.end) == (end + b"da", True)


@table(
    ("endpoint", "wanted"),
    [
        ("/v1/completions", "completions"),
        ("/v1/chat/completions/", "chat"),
        ("/v1/models", "chat"),
        (None, "chat"),
        ("/v1/responses", "responses"),
        ("/v1/messages?beta=true", "messages"),
    ],
)
def test_the_path_names_the_endpoint(endpoint: object, wanted: str) -> None:
    assert read_trace({"endpoint": endpoint}, BODY).endpoint == wanted


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"request": "x", "status": 200, "headers": None, "http_chunk_sizes": None, "body_complete": None},
        {"request": [], "status": "ok", "headers": {}, "http_chunk_sizes": 5, "body_complete": "yes"},
    ],
)
def test_what_a_record_does_not_know_stays_unknown(record: dict[str, Any]) -> None:
    assert read_trace(record, BODY) == Trace(body=BODY)


def test_odd_headers_and_sizes_of_a_record_are_passed_over() -> None:
    trace = read_trace({"headers": [["a", 1], "b", ["c"]], "http_chunk_sizes": [1, "2", -3]}, BODY)
    assert (trace.headers, trace.chunk_sizes) == ((("a", "1"),), (1,))


@table(
    ("record", "body"),
    [
        ({"body_text": "data: é\n\n"}, "data: é\n\n".encode()),
        ({"body_base64": "/w=="}, b"\xff"),
        ({"body_text": "a", "body": "x.body"}, b"a"),
        ({"body": "x.body"}, None),
    ],
)
def test_a_record_holds_its_body_or_names_it(record: dict[str, Any], body: bytes | None) -> None:
    assert read_record(b" " + json.dumps(record).encode()) == record
    assert inline_body(record) == body


@pytest.mark.parametrize("record", [{"body_base64": "%"}, {"body_text": "\ud800"}])
def test_a_body_that_is_broken_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        inline_body(record)


@table(
    "data",
    [
        b"data: {}\n\n",
        b'{"body_text":',
        b'{"body_text": 5}',
        b'{"choices": [], "body": "x"}',
        b'{"content": "a body"}',
        b'{"body":' * 100_000,
    ],
)
def test_what_is_no_record_is_none(data: bytes) -> None:
    assert read_record(data) is None


def test_pieces_of_a_record_have_times() -> None:
    pieces = [[0.5, 3], [1, 2], ["x", 1], [1, "x"], [1, 0], [-1, 1], [1e30, 1], [1], 7]
    assert timed_reads({"pieces": pieces}) == [(0.5, 3), (1.0, 2)]
    assert timed_reads({"pieces": 5}) == []
    assert timed_reads({}) == []


@pytest.mark.parametrize(
    ("body", "word"), [(b"\x1f\x8b..", "compressed"), (b"\xff\xfex", "UTF-16"), (b"\xfe\xffx", "UTF-16")]
)
def test_what_a_tool_made_of_a_reply_is_told_from_a_reply(body: bytes, word: str) -> None:
    assert word in (unreadable_reason(body) or "")
    assert unreadable_reason(BODY) is None
