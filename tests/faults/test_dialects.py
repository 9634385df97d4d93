"""How the plan of faults tells an end from an end: else it could not see what it looks for."""

import json

import pytest

from faults.asking import CHAT, Heard
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
    """A right stream; the last piece is the end."""
    if path not in (OLLAMA_CHAT, OLLAMA_GENERATE):
        return [piece.data for piece in reply(path, WORDS).pieces]
    said = [({"message": {"content": word}} if path == OLLAMA_CHAT else {"response": word}) for word in (*WORDS, "")]
    return [json.dumps({**one, "done": place == len(WORDS)}).encode() + b"\n" for place, one in enumerate(said)]


def streamed(path: str, body: bytes) -> Heard:
    return Heard(200, LINES if path in (OLLAMA_CHAT, OLLAMA_GENERATE) else EVENTS, body, is_whole=True)


@EACH
def test_a_right_stream_is_whole_and_says_its_words(path: str) -> None:
    heard = streamed(path, b"".join(pieces(path)))
    assert (ending(path, heard), text(path, heard)) == ("whole", "one two ")


@EACH
def test_a_stream_without_its_end_is_truncated(path: str) -> None:
    heard = streamed(path, b"".join(pieces(path)[:-1]))
    assert ending(path, heard) == "truncated"
    assert ending(path, streamed(path, b"")) == "truncated"


@EACH
def test_an_error_in_a_stream_is_one(path: str) -> None:
    heard = streamed(path, b"".join(pieces(path)[:-1]) + ERRORS[path])
    assert ending(path, heard) == "error event"


@EACH
def test_what_http_does_not_end_is_aborted_and_a_status_is_a_refusal(path: str) -> None:
    assert ending(path, Heard(200, EVENTS, b"".join(pieces(path)), is_whole=False)) == "aborted"
    assert ending(path, Heard(502, b"", b"{}", is_whole=True)) == "refused"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
def test_a_whole_reply_says_its_words(path: str) -> None:
    heard = Heard(200, b"content-type: application/json", reply(path, WORDS, stream=False).body, is_whole=True)
    assert (ending(path, heard), text(path, heard)) == ("whole", "one two ")
