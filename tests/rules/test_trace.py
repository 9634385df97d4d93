"""Saved captures and trace records, read as traces."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.table import table
from welldone.core.answer_format import AnswerFormat
from welldone.core.envelope import Envelope
from welldone.core.events import ChoiceStart, Event, Finish, Text, Usage
from welldone.dialects.messages.writer import MessagesFormat
from welldone.dialects.responses.writer import ResponsesFormat
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


def test_a_body_without_a_head_is_read_unchanged() -> None:
    assert read_capture(BODY) == Trace(body=BODY)


def test_status_and_headers_are_read_from_the_head() -> None:
    assert read_capture(HEAD + BODY) == Trace(body=BODY, status=200, headers=HEADERS)
    assert read_capture(HEAD.replace(b"\r", b"") + BODY) == Trace(body=BODY, status=200, headers=HEADERS)


@table("head", [b"HTTP/2 204", b"HTTP/1.1 204 No Content\n", b"HTTP/2 204 \r\n\r\n", b"HTTP/2 204\n\n"])
def test_a_head_without_a_body_is_read(head: bytes) -> None:
    assert read_capture(head) == Trace(body=b"", status=204, headers=())


@pytest.mark.parametrize(
    "before", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"]
)
def test_the_last_of_several_heads_counts(before: bytes) -> None:
    assert read_capture(before + HEAD + BODY) == read_capture(HEAD + BODY)


def test_header_lines_without_a_colon_are_ignored() -> None:
    trace = read_capture(b"HTTP/2 200\nx-a: 1\nnonsense\nX-A: 2\n\n" + BODY)
    assert trace.headers == (("x-a", "1"), ("X-A", "2"))
    assert trace.header("x-a") == "1, 2"
    assert trace.header("x-b") is None


@table("line_end", [b"\r\n", b"\n"])
@table("end", [b"0%b%b", b"0;x=y%bTrailer: 1%b"])
def test_chunked_framing_is_removed(line_end: bytes, end: bytes) -> None:
    framed = b"6%bdata: %b8;a=b%b[DONE]\n\n%b" % ((line_end,) * 4) + end % (line_end, line_end)
    trace = read_capture(HEAD + framed)
    assert (trace.body, trace.complete, trace.chunk_sizes) == (BODY, True, (6, 8))


@table("cut", range(1, 30))
def test_a_truncated_chunked_body_is_incomplete(cut: int) -> None:
    framed = (b"6\r\ndata: \r\n8\r\n[DONE]\n\n\r\n0\r\n\r\n")[: -cut - 4]
    trace = read_capture(HEAD + framed)
    assert trace.complete is not True
    assert BODY.startswith(trace.body) or trace.chunk_sizes is None


@table(("length", "complete"), [(b"14", True), (b"15", False), (b"x", None), (b"9" * 30, None)])
def test_content_length_determines_whether_the_body_is_complete(length: bytes, complete: bool | None) -> None:
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
        (b'data: {"candidates": [{"content": {}}]}\n\n', "gemini"),
        (b'[{\n  "candidates": [\n', "gemini"),
        (b'{"promptFeedback":{"blockReason":"SAFETY"}}', "gemini"),
        (b'{"error":{"code":404,"message":"x","status":"NOT_FOUND"}}', "gemini"),
        (b'{"error":{"code":404,"message":"x","status":404}}', "chat"),
        (b'data: {"choices":[{"delta":{"candidates":[]}}]}\n\n', "chat"),
    ],
)
def test_the_endpoint_is_guessed_from_the_body(body: bytes, endpoint: str) -> None:
    assert read_capture(body).endpoint == endpoint


@given(st.binary() | st.binary().map(HEAD.__add__))
def test_arbitrary_bytes_do_not_raise(data: bytes) -> None:
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


def test_a_record_is_read_as_a_trace() -> None:
    assert read_trace(RECORD, BODY) == Trace(
        body=BODY,
        endpoint="chat",
        path="/v1/chat/completions",
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


def _written(dialect: AnswerFormat) -> bytes:
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
        ("/v1/responses", 200, True, _written(ResponsesFormat({}))),
        ("/v1/messages", 200, True, _written(MessagesFormat())),
    ],
    ids=["chat", "broken", "late", "completions", "whole", "failure", "responses", "messages"],
)
def test_an_abandoned_record_has_no_findings_about_its_end(
    path: str, status: int, is_stream: bool, body: bytes, step: int
) -> None:
    request = {"stream": is_stream, "stream_options": {"include_usage": True}}
    media = "text/event-stream; charset=utf-8" if is_stream and status == 200 else "application/json"
    headers = [["Content-Type", media], ["Cache-Control", "no-cache, no-transform"], ["X-Accel-Buffering", "no"]]
    record = {"endpoint": path, "request": request, "status": f"HTTP/1.1 {status}", "headers": headers}
    whole = read_trace(record | {"body_complete": True}, body)
    assert (judge(whole).findings, whole.end) == ((), True)
    for size in range(0, len(body), step):
        partial = read_trace(record | {"body_complete": None, "error": "left"}, body[:size])
        assert judge(partial).findings == (), body[:size]
    for fields in (
        {"body_complete": False, "error": "lost"},
        {"body_complete": None},
    ):  # the server closed the connection
        trace = read_trace(record | fields, body[:-20])
        assert (trace.body, trace.end, judge(trace).findings != ()) == (body[:-20], True, True)


@pytest.mark.parametrize(
    "end", [b"data: [DONE]\n\n", b"event: message_stop\ndata: {}\n\n", b"event: response.completed\r\ndata: {}\r\n\r\n"]
)
def test_a_record_abandoned_after_the_end_is_complete(end: bytes) -> None:
    trace = read_trace({"body_complete": None, "error": "left"}, end + b"da")
    assert (trace.body, trace.end) == (end + b"da", True)


@table(
    ("endpoint", "expected"),
    [
        ("/v1/completions", "completions"),
        ("/v1/chat/completions/", "chat"),
        ("/v1/models", "chat"),
        (None, "chat"),
        ("/v1/responses", "responses"),
        ("/v1/messages?beta=true", "messages"),
        ("/v1beta/models/m:generateContent", "gemini"),
        ("/v1/models/a:b:streamGenerateContent?alt=sse", "gemini"),
    ],
)
def test_the_endpoint_is_read_from_the_path(endpoint: object, expected: str) -> None:
    assert read_trace({"endpoint": endpoint}, BODY).endpoint == expected


@table(
    ("endpoint", "path", "stream", "array"),
    [
        ("gemini", "/v1/models/m:generateContent", False, False),
        ("gemini", "/v1/models/m:streamGenerateContent", True, True),
        ("gemini", "/v1/models/m:streamGenerateContent?key=k&alt=sse", True, False),
        ("gemini", "/v1/models/m:streamGenerateContent?alt=sse&key=k", True, False),
        ("gemini", None, None, None),
        ("chat", "/v1/chat/completions", True, None),
    ],
)
def test_geminis_path_selects_a_stream_and_its_form(
    endpoint: str, path: str | None, stream: bool | None, array: bool | None
) -> None:
    trace = Trace(body=b"", endpoint=endpoint, path=path, request={"stream": True})
    assert (trace.wants_stream, trace.wants_array) == (stream, array)


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"request": "x", "status": 200, "headers": None, "http_chunk_sizes": None, "body_complete": None},
        {"request": [], "status": "ok", "headers": {}, "http_chunk_sizes": 5, "body_complete": "yes"},
    ],
)
def test_missing_fields_of_a_record_are_unknown(record: dict[str, Any]) -> None:
    assert read_trace(record, BODY) == Trace(body=BODY)


def test_invalid_headers_and_sizes_of_a_record_are_ignored() -> None:
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
def test_the_body_is_inline_or_in_a_file(record: dict[str, Any], body: bytes | None) -> None:
    assert read_record(b" " + json.dumps(record).encode()) == record
    assert inline_body(record) == body


@pytest.mark.parametrize("record", [{"body_base64": "%"}, {"body_text": "\ud800"}])
def test_an_invalid_inline_body_is_rejected(record: dict[str, Any]) -> None:
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
def test_other_data_is_not_a_record(data: bytes) -> None:
    assert read_record(data) is None


def test_timed_reads_are_parsed() -> None:
    pieces = [[0.5, 3], [1, 2], ["x", 1], [1, "x"], [1, 0], [-1, 1], [1e30, 1], [1], 7]
    assert timed_reads({"pieces": pieces}) == [(0.5, 3), (1.0, 2)]
    assert timed_reads({"pieces": 5}) == []
    assert timed_reads({}) == []


@pytest.mark.parametrize(
    ("body", "word"), [(b"\x1f\x8b..", "compressed"), (b"\xff\xfex", "UTF-16"), (b"\xfe\xffx", "UTF-16")]
)
def test_compressed_and_utf16_captures_are_detected(body: bytes, word: str) -> None:
    assert word in (unreadable_reason(body) or "")
    assert unreadable_reason(BODY) is None
