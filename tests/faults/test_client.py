"""Classification of how a response ended: a truncated one never counts as whole."""

import pytest

from faults.client import Ending, parse

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FINISH = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
ERROR = b'data: {"error":{"message":"no"}}\n\n'
DONE = b"data: [DONE]\n\n"


def chunked(*parts: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    """Encode parts as HTTP chunks."""
    return HEAD + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end


@pytest.mark.parametrize(
    ("data", "ending"),
    [
        (chunked(FINISH, DONE), "whole"),
        (chunked(FINISH, ERROR, DONE), "error event"),
        (chunked(ERROR), "error event"),
        (chunked(FINISH), "truncated"),
        (chunked(DONE), "truncated"),
        (chunked(), "truncated"),
        (chunked(FINISH, DONE, end=b""), "aborted"),
        (chunked(FINISH, DONE, end=b"0\r\n"), "aborted"),
        (chunked(FINISH, DONE) + b"more", "aborted"),
        (chunked(FINISH, DONE)[:-20], "aborted"),
        (b"", "aborted"),
        (b"garbage", "aborted"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}", "refused"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 3\r\n\r\n{}", "aborted"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", "whole"),
    ],
)
def test_every_ending_is_classified(data: bytes, ending: Ending) -> None:
    assert parse(data).ending == ending


def test_texts_are_the_contents_of_the_chunks() -> None:
    assert parse(chunked(FINISH, FINISH[:20], FINISH[20:], DONE)).texts == ["a", "a"]
