"""How each dialect asks, and how its replies are read: without any code of the server, which may be wrong."""

from typing import NamedTuple

import msgspec

from faults.nemesis.history import Heard
from faults.nemesis.order import Json
from faults.nemesis.wish import Dialect, Wish

MODEL = "nemesis"
PATHS: dict[Dialect, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "ollama": "/api/chat",
}


class Frame(NamedTuple):
    """A frame as a letter, and what it says."""

    letter: str
    text: str = ""


def body_of(wish: Wish, text: str) -> Json:
    """The body of a request that says this."""
    body: Json = {"model": MODEL, "stream": wish.is_stream}
    if wish.dialect == "completions":
        return body | {"prompt": text}
    if wish.dialect == "responses":
        return body | {"input": text, "store": False}
    if wish.dialect == "messages":
        body["max_tokens"] = 1000
    return body | {"messages": [{"role": "user", "content": text}]}


def read(dialect: Dialect, heard: Heard, body: bytes) -> None:
    """Put into `heard` what the body says."""
    try:
        _read(dialect, heard, body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        heard.unreadable = f"{error!r} in …{body[-200:]!r}"


def _read(dialect: Dialect, heard: Heard, body: bytes) -> None:
    if heard.status != 200:
        heard.has_error = is_error(dialect, body)
    elif heard.is_stream:
        frames = [_frame(dialect, line) for line in _lines(dialect, body)]
        heard.events = "".join(frame.letter for frame in frames)
        heard.text = "".join(frame.text for frame in frames)
    elif heard.is_closed:
        heard.text = _whole(dialect, msgspec.json.decode(body))


def is_error(dialect: Dialect, body: bytes) -> bool:
    """Whether a body is an error of this dialect."""
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return False
    error = value.get("error") if isinstance(value, dict) else None
    if dialect == "ollama":
        return isinstance(error, str)
    is_named = isinstance(error, dict) and isinstance(error.get("message"), str) and "type" in error
    return is_named and (dialect != "messages" or value.get("type") == "error")


def _lines(dialect: Dialect, body: bytes) -> list[bytes]:
    """The JSON of each frame. What comes after the last line end is no frame yet."""
    lines = body.split(b"\n")[:-1]
    if dialect == "ollama":
        return lines
    return [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]


def _frame(dialect: Dialect, line: bytes) -> Frame:
    if line == b"[DONE]":
        return Frame("D")
    value = msgspec.json.decode(line)
    if dialect in ("chat", "completions"):
        return _chunk(value)
    return {"responses": _response, "messages": _message, "ollama": _ollama}[dialect](value)


def _chunk(value: Json) -> Frame:
    if "error" in value:
        return Frame("E")
    for choice in value["choices"]:
        if choice["finish_reason"] is not None:
            return Frame("F", choice.get("text") or "")
        if text := choice.get("text") or choice.get("delta", {}).get("content"):
            return Frame("T", text)
    return Frame("O")


def _response(value: Json) -> Frame:
    kind = value["type"]
    if kind == "response.output_text.delta":
        return Frame("T", value["delta"])
    if kind in ("response.failed", "error"):
        return Frame("E")
    return Frame("W" if kind in ("response.completed", "response.incomplete") else "O")


def _message(value: Json) -> Frame:
    kind = value["type"]
    if kind == "content_block_delta":
        return Frame("T", value["delta"]["text"])
    return Frame({"message_delta": "F", "message_stop": "D", "error": "E"}.get(kind, "O"))


def _ollama(value: Json) -> Frame:
    if "error" in value:
        return Frame("E")
    return Frame("W" if value["done"] else "T", value["message"]["content"])


def _whole(dialect: Dialect, value: Json) -> str:
    if dialect in ("chat", "completions"):
        (choice,) = value["choices"]
        text = choice["text"] if dialect == "completions" else choice["message"]["content"]
    elif dialect == "responses":
        text = "".join(part["text"] for item in value["output"] for part in item.get("content", ()))
    elif dialect == "messages":
        text = "".join(part["text"] for part in value["content"])
    else:
        text = value["message"]["content"]
    return text or ""
