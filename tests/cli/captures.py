"""Captured replies as users save them, by file name: the inputs of the command tests."""

import json
from pathlib import Path

from tests.recorded.traces import RECORDED
from tests.rules.streams import ASKS_USAGE, DONE, USAGE, chat, choice, completion, envelope, frame

QUOTED = sorted(path.stem for path in (RECORDED / "quoted").glob("*.json"))
"""Streams quoted in bug reports, each a trace and its body."""

RIGHT = chat({"content": "Hello"}, {"content": " world"})
ROLES = b"".join(
    frame(envelope([choice({"role": "assistant", "content": word}, finish)]))
    for word, finish in (("Hello", None), (" world", None), ("", "stop"))
)
"""The role in every chunk, and no `[DONE]`."""
CALLS = chat(
    {"tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "get", "arguments": '{"x":1}'}}]},
    {"tool_calls": [{"function": {"name": "put", "arguments": "{}"}}]},
)
"""Tool calls without an index, one without an id, and `stop` at the end."""
COMPLETIONS = completion("Hello", " world", end=b"")
CHOICES_FIRST = b"".join(
    frame({"choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": finish}], **rest})
    for rest in [{"id": "cmpl-1", "object": "text_completion", "created": 1700000000, "model": "m"}]
    for text, finish in (("Hello", None), ("", "stop"))
)
"""A completions stream whose chunks start with `choices`, as those of llama.cpp do; no `[DONE]`."""
CUT = chat({"content": "Hel"}, finish=None, end=b"")
USED = chat({"content": "Hello"}, end=frame(envelope([], usage=USAGE)) + DONE)
ERROR = {"message": "the model is loading", "type": "unavailable_error", "param": None, "code": 503}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _raw(body: bytes) -> bytes:
    """Encode the body in HTTP chunks, one per frame."""
    frames = [piece + b"\n\n" for piece in body.split(b"\n\n") if piece]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in frames) + b"0\r\n\r\n"


def _whole(finish: str) -> bytes:
    message = {"role": "assistant", "content": "Hello"}
    answer = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return json.dumps(envelope([answer], object="chat.completion", usage=USAGE)).encode()


def _trace(body: str, **members: object) -> bytes:
    record = {"endpoint": "/v1/chat/completions", "request": ASKS_USAGE, "status": "HTTP/1.1 200 OK", "body": body}
    return json.dumps(record | members).encode()


FILES = {
    "right.txt": RIGHT,
    "roles.txt": ROLES,
    "calls.txt": CALLS,
    "completions.txt": COMPLETIONS,
    "cut.txt": CUT,
    "used.txt": USED,
    "crlf.txt": RIGHT.replace(b"\n", b"\r\n"),
    "failed.txt": chat({"content": "Hel"}, finish=None, end=frame({"error": ERROR})),
    "curl-i.txt": HEAD + ROLES,
    "curl-raw.txt": HEAD + _raw(ROLES),
    "curl-cut.txt": HEAD + _raw(ROLES)[:-5],
    "whole.json": _whole("stop"),
    "whole-wrong.json": _whole("eos"),
    "error.json": json.dumps({"error": ERROR}).encode(),
    "error-i.txt": b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n\r\n"
    + json.dumps({"error": ERROR}).encode(),
    "garbage.txt": b"<html><body>502 Bad Gateway</body></html>\n",
    "empty.txt": b"",
    "white.txt": b" \r\n\t\n",
    "head-only.txt": HEAD,
    "trace.json": _trace("used.txt"),
    "trace-gone.json": _trace("gone.body"),
    "trace-path.json": _trace("../right.txt"),
    "request.json": json.dumps({"model": "m", "messages": [], "stream": True}).encode(),
    "request-usage.json": json.dumps(ASKS_USAGE).encode(),
    "request-broken.json": b'{"model": "m",',
    "request-list.json": b"[1]",
}


def save(folder: Path) -> None:
    """Write all captures into a folder."""
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    for name in QUOTED:
        for suffix in (".json", ".body"):
            (folder / f"{name}{suffix}").write_bytes((RECORDED / "quoted" / f"{name}{suffix}").read_bytes())
