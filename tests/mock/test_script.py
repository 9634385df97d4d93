"""Mock replies: raw HTTP, cuts, and replies from traces."""

import json
from typing import Any

import pytest

from tests.engines.supervisors import run
from tests.mock.raw_client import connect, send_request
from tests.recorded.traces import RECORDED
from tests.table import table
from welldone.mock.script import (
    HELLO_REPLY,
    MockChunk,
    MockReply,
    MockScript,
    cut_at,
    json_reply,
    reply_from_trace,
    with_raw_http,
)
from welldone.mock.server import start_mock_server
from welldone.rules.judge import judge
from welldone.rules.trace import read_capture, read_trace

TRACES = sorted(path.relative_to(RECORDED).with_suffix("").as_posix() for path in RECORDED.glob("*/*.json"))
RECORD: dict[str, Any] = {
    "endpoint": "/v1/chat/completions",
    "status": "HTTP/1.1 200 OK",
    "headers": [["Content-Type", "text/event-stream"], ["Transfer-Encoding", "chunked"]],
    "body_complete": True,
}


def load(name: str) -> tuple[dict[str, Any], bytes]:
    """Load a recorded trace and its body."""
    path = RECORDED / name
    record: dict[str, Any] = json.loads(path.with_suffix(".json").read_text("utf-8"))
    return record, path.with_suffix(".body").read_bytes()


def test_all_traces_are_replayed_as_recorded() -> None:
    async def main() -> None:
        for name in TRACES:
            record, body = load(name)
            async with await start_mock_server(MockScript(posts=(reply_from_trace(record, body),))) as server:
                received = await send_request(server.port)
            recorded = read_trace(record, body)
            assert (received.status, received.body) == (recorded.status, body), name
            assert received.complete is not (recorded.complete is False), name
            assert received.header("content-type") == recorded.header("content-type"), name
            if recorded.chunk_sizes and recorded.header("transfer-encoding") == "chunked":
                assert received.chunk_sizes == recorded.chunk_sizes, name

    assert len(TRACES) > 100
    run(main())


@pytest.mark.parametrize("name", ["llamacpp/chat_emoji_stream", "quoted/lightllm_1262_before"])
def test_a_replayed_trace_has_the_findings_of_the_recorded_one(name: str) -> None:
    record, body = load(name)
    played = read_capture(with_raw_http(reply_from_trace(record, body)).body)
    recorded = read_trace(record, body)
    rules = [
        [finding.rule for finding in judge(trace).findings if finding.frame is not None] for trace in (played, recorded)
    ]
    assert rules[0] == rules[1]


@table(
    ("fields", "expected"),
    [
        ({"head_s": 0.5, "pieces": [[0.75, 2], [1.0, 1], [3.0, 3]]}, [(b"ab", 0.25), (b"c", 0.25), (b"def", 2.0)]),
        ({"pieces": [[0.25, 6]]}, [(b"abcdef", 0.25)]),
        ({"head_s": 1, "pieces": [[0.5, 6]]}, [(b"abcdef", 0.0)]),
        ({"pieces": [[0.25, 5]]}, [(b"abcdef", 0.0)]),
        ({"pieces": [[0.25, 7], [0.5, -1]]}, [(b"abcdef", 0.0)]),
        ({"pieces": "x", "head_s": "y"}, [(b"abcdef", 0.0)]),
        ({"http_chunk_sizes": [2, 3]}, [(b"ab", 0.0), (b"cde", 0.0), (b"f", 0.0)]),
        ({}, [(b"abcdef", 0.0)]),
    ],
)
def test_a_replayed_trace_has_the_recorded_chunks_and_times(
    fields: dict[str, Any], expected: list[tuple[bytes, float]]
) -> None:
    reply = reply_from_trace(RECORD | fields, b"abcdef")
    assert [(piece.data, piece.after_s) for piece in reply.pieces] == expected
    assert reply.after_s == (fields["head_s"] if isinstance(fields.get("head_s"), float | int) else 0.0)


@table(
    ("headers", "framing"),
    [
        ([["transfer-encoding", "chunked"]], "chunked"),
        ([["Content-Length", "6"]], "length"),
        ([["Connection", "close"]], "close"),
        (None, "close"),
    ],
)
def test_a_replayed_trace_has_the_recorded_framing(headers: list[list[str]] | None, framing: str) -> None:
    reply = reply_from_trace(RECORD | {"headers": headers}, b"abcdef")
    assert reply.framing == framing
    assert read_capture(with_raw_http(reply).body).body == b"abcdef"


def test_a_trace_without_a_response_closes_the_connection() -> None:
    assert with_raw_http(reply_from_trace(RECORD | {"status": None}, b"")) == MockReply(end="cut", raw=True)


def test_a_reply_can_be_cut_at_any_byte() -> None:
    raw = with_raw_http(HELLO_REPLY)

    async def main() -> None:
        for byte in range(0, len(raw.body) + 1, 7):
            async with (
                await start_mock_server(MockScript(posts=(cut_at(raw, byte),))) as server,
                connect(server.port) as client,
            ):
                client.send()
                assert await client.read_rest() == raw.body[:byte]
                assert server.requests[-1].end == "cut"

    run(main())


def test_a_cut_reply_keeps_its_delays() -> None:
    reply = MockReply((MockChunk("ab", after_s=1.0), MockChunk("cd", after_s=2.0), MockChunk("ef", after_s=3.0)))
    cut = cut_at(reply, 3, "hang")
    assert [(piece.data, piece.after_s) for piece in cut.pieces] == [(b"ab", 1.0), (b"c", 2.0)]
    assert cut.end == "hang"


def test_headers_of_the_script_replace_generated_ones() -> None:
    reply = MockReply((MockChunk("abc"),), headers={"content-length": "99"}, framing="length")
    assert with_raw_http(reply).body == b"HTTP/1.1 200 Scripted\r\ncontent-length: 99\r\n\r\nabc"
    assert b"Content-Length: 2\r\n" in with_raw_http(json_reply({})).body
