"""A right answer to any request: given words, in the dialect and the shape that were asked for."""

import re
import time
from itertools import cycle, islice
from typing import Any

import msgspec

from welldone.engines.scripts import JSON, Piece, Reply, json_reply
from welldone.wire import sse
from welldone.wire.asked import CHAT_CHOICES_LIMIT, Asked, read_request
from welldone.wire.collect import collect
from welldone.wire.dialects import chat, completions
from welldone.wire.dialects.chat import ChatWriter
from welldone.wire.dialects.completions import CompletionsWriter
from welldone.wire.events import Event, Finish, Opening, Text, Usage
from welldone.wire.head import Endpoint, Head

NAME = "mock"
"""The model, where a request names none."""
_WORD = re.compile(r"\s*\S+\s*\Z|\s*\S+|\s+")


def words_of(text: str, count: int | None = None) -> list[str]:
    """The text in pieces of a word each: all of them, or so many, again from the start where they do not suffice."""
    words = _WORD.findall(text)
    if count is None or not words:
        return words
    first = words[0] if words[0][0].isspace() else f" {words[0]}"
    return [words[0], *islice(cycle([*words[1:], first]), count - 1)]


def answer(body: str, path: str, words: list[str], gap_s: float = 0.0) -> Reply:
    """The reply to a request."""
    request = _read(body)
    is_chat = path.endswith("/chat/completions")
    if not path.endswith("/completions"):
        return _refusal(404, f"there is no {path}")
    if request is None:
        return _refusal(400, "the body is no JSON object")
    asked = read_request(request)
    endpoint = Endpoint.CHAT if is_chat else Endpoint.COMPLETIONS
    head = Head("chatcmpl-mock" if is_chat else "cmpl-mock", int(time.time()), asked.model or NAME)
    events = _events(words, min(asked.choices or 1, CHAT_CHOICES_LIMIT))
    if request.get("stream") is True:
        return _stream(endpoint, head, events, asked, gap_s)
    reply = collect([*events, _count(events)])
    data = chat.whole(head, reply) if is_chat else completions.whole(head, reply)
    return Reply((Piece(base64=data, after_s=gap_s * len(words)),), headers=JSON, framing="length")


def _read(body: str) -> dict[str, Any] | None:
    try:
        request: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None
    return request


def _refusal(status: int, message: str) -> Reply:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return json_reply({"error": error}, status)


def _events(words: list[str], choices: int) -> list[Event]:
    """The choices, side by side as a server sends them that computes them together."""
    indexes = range(choices)
    texts: list[Event] = [Text(index, word) for word in words for index in indexes]
    return [*map(Opening, indexes), *texts, *(Finish(index, "stop") for index in indexes)]


def _count(events: list[Event]) -> Usage:
    spoken = sum(type(event) is Text for event in events)
    return Usage(1, spoken, 1 + spoken, {})


def _stream(endpoint: Endpoint, head: Head, events: list[Event], asked: Asked, gap_s: float) -> Reply:
    has_usage = asked.usage is True
    kind = ChatWriter if endpoint is Endpoint.CHAT else CompletionsWriter
    writer = kind(head, usage_is_null=has_usage)
    pieces = [
        Piece(base64=data, after_s=gap_s if type(event) is Text and event.index == 0 else 0.0)
        for event in [*events, *([_count(events)] if has_usage else [])]
        if (data := writer.send(event))
    ]
    return Reply((*pieces, Piece(base64=writer.end())), headers=dict(sse.HEADERS))
