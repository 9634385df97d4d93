"""Classification of endings in every dialect."""

import json

import pytest

from faults.client import CHAT, ClientReply
from faults.dialects import COMPLETIONS, MESSAGES, OLLAMA_CHAT, OLLAMA_GENERATE, PATHS, RESPONSES, ending, reply, text

EVENTS, LINES = b"content-type: text/event-stream", b"content-type: application/x-ndjson"
WORDS = ("one ", "two ")
ERRORS = {
    CHAT: b'data: {"error":{"message":"no"}}\n\ndata: [DONE]\n\n',
    COMPLETIONS: b'data: {"error":{"message":"no"}}\n\ndata: [DONE]\n\n',
    RESPONSES: b'event: response.failed\ndata: {"type":"response.failed","response":{}}\n\n',
    MESSAGES: b'event: error\ndata: {"type":"error","error":{"message":"no"}}\n\n',
    OLLAMA_CHAT: b'{"error":"no"}\n',
    OLLAMA_GENERATE: b'{"error":"no"}\n',
}
EACH = pytest.mark.parametrize("path", PATHS)


def pieces(path: str) -> list[bytes]:
    """A correct stream; the last chunk is the end."""
    if path not in (OLLAMA_CHAT, OLLAMA_GENERATE):
        return [piece.data for piece in reply(path, WORDS).pieces]
    objects = [({"message": {"content": word}} if path == OLLAMA_CHAT else {"response": word}) for word in (*WORDS, "")]
    return [json.dumps({**one, "done": index == len(WORDS)}).encode() + b"\n" for index, one in enumerate(objects)]


def streamed(path: str, body: bytes) -> ClientReply:
    return ClientReply(200, LINES if path in (OLLAMA_CHAT, OLLAMA_GENERATE) else EVENTS, body, is_whole=True)


@EACH
def test_a_correct_stream_is_whole(path: str) -> None:
    received = streamed(path, b"".join(pieces(path)))
    assert (ending(path, received), text(path, received)) == ("whole", "one two ")


@EACH
def test_a_stream_without_its_end_is_truncated(path: str) -> None:
    received = streamed(path, b"".join(pieces(path)[:-1]))
    assert ending(path, received) == "truncated"
    assert ending(path, streamed(path, b"")) == "truncated"


@EACH
def test_an_error_in_a_stream_is_an_error_event(path: str) -> None:
    received = streamed(path, b"".join(pieces(path)[:-1]) + ERRORS[path])
    assert ending(path, received) == "error event"


@EACH
def test_incomplete_http_is_aborted_and_an_error_status_is_refused(path: str) -> None:
    assert ending(path, ClientReply(200, EVENTS, b"".join(pieces(path)), is_whole=False)) == "aborted"
    assert ending(path, ClientReply(502, b"", b"{}", is_whole=True)) == "refused"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
def test_a_buffered_reply_is_whole(path: str) -> None:
    received = ClientReply(200, b"content-type: application/json", reply(path, WORDS, stream=False).body, is_whole=True)
    assert (ending(path, received), text(path, received)) == ("whole", "one two ")
