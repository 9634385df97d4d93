"""Requests and replies of each dialect, parsed without code of the server under test."""

from typing import NamedTuple

import msgspec

from faults.nemesis.client_actions import ClientAction, Dialect
from faults.nemesis.history import ObservedReply
from faults.nemesis.upstream_actions import Json

MODEL, CONTINUED_MODEL = "nemesis", "nemesis-continued"
PATHS: dict[Dialect, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "ollama": "/api/chat",
}


class Frame(NamedTuple):
    """A frame as a letter, and its text."""

    letter: str
    text: str = ""


def body_of(action: ClientAction, text: str) -> Json:
    """Build the body of a request with this text."""
    body: Json = {"model": CONTINUED_MODEL if action.is_continued else MODEL, "stream": action.is_stream}
    if action.is_cold:
        body |= {"options": {"temperature": 0}} if action.dialect == "ollama" else {"temperature": 0}
    if action.dialect == "completions":
        return body | {"prompt": text}
    if action.dialect == "responses":
        return body | {"input": text, "store": False}
    if action.dialect == "messages":
        body["max_tokens"] = 1000
    return body | {"messages": [{"role": "user", "content": text}]}


def read(dialect: Dialect, observed: ObservedReply, body: bytes) -> None:
    """Parse the body into `observed`."""
    try:
        _read(dialect, observed, body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        observed.unreadable = f"{error!r} in …{body[-200:]!r}"


def _read(dialect: Dialect, observed: ObservedReply, body: bytes) -> None:
    if observed.status != 200:
        observed.has_error = is_error(dialect, body)
    elif observed.is_stream:
        frames = [_frame(dialect, line) for line in _lines(dialect, body)]
        observed.events = "".join(frame.letter for frame in frames)
        observed.text = "".join(frame.text for frame in frames)
    elif observed.is_closed:
        observed.text = _whole(dialect, msgspec.json.decode(body))


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
    """Parse the JSON of each complete frame."""
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
