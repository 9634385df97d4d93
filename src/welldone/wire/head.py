"""The envelope of a stream: the fields that are the same on each of its chunks."""

from enum import StrEnum

import msgspec

from welldone.wire import faults
from welldone.wire.events import Json
from welldone.wire.notes import Notes

_MILLISECONDS = 10**11  # seconds reach this in the year 5138; a larger number counts milliseconds


class Endpoint(StrEnum):
    """Which dialect a stream is in."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"


ID_PREFIX = {
    Endpoint.CHAT: "chatcmpl-",
    Endpoint.COMPLETIONS: "cmpl-",
    Endpoint.RESPONSES: "resp_",
    Endpoint.MESSAGES: "msg_",
}
"""How the ids of answers begin."""
OBJECT = {Endpoint.CHAT: "chat.completion.chunk", Endpoint.COMPLETIONS: "text_completion"}
WHOLE_OBJECT = {Endpoint.CHAT: "chat.completion", Endpoint.COMPLETIONS: "text_completion"}


class Head(msgspec.Struct, frozen=True):
    """Who answers: said once, repeated on each chunk."""

    id: str
    created: int
    model: str
    fingerprint: str | None = None


def read_head(chunk: Json, endpoint: Endpoint, fallback: Head) -> Head:
    """The envelope that a stream gets, from its first chunk and, where that is wrong, from `fallback`."""
    fingerprint = chunk.get("system_fingerprint")
    return Head(
        _id(chunk.get("id"), endpoint) or fallback.id,
        _seconds(chunk.get("created"), fallback.created),
        chunk["model"] if _is_name(chunk.get("model")) else fallback.model,
        fingerprint if isinstance(fingerprint, str) else None,
    )


def note_envelope(chunk: Json, head: Head, endpoint: Endpoint, notes: Notes) -> None:
    """Note in what a chunk's envelope differs from the one that goes out."""
    if endpoint is Endpoint.COMPLETIONS:
        _note_completions(chunk, head, notes)
        return
    if chunk.get("object") != OBJECT[endpoint]:
        notes.note(faults.env.OBJECT_CONST, chunk.get("object"))
    if not _is_name(chunk.get("id")):
        notes.note(faults.env.ID_PRESENT, chunk.get("id"))
    elif chunk["id"] != head.id:
        notes.note(faults.env.ID_CONSTANT, chunk["id"])
    created = chunk.get("created")
    if type(created) is not int or not 0 <= created < _MILLISECONDS:
        notes.note(faults.env.CREATED_INT, created)
    elif created != head.created:
        notes.note(faults.env.CREATED_CONSTANT, created)
    if not _is_name(chunk.get("model")):
        notes.note(faults.env.MODEL_STRING, chunk.get("model"))
    if chunk.get("system_fingerprint") != head.fingerprint:
        notes.note(faults.env.FINGERPRINT, chunk.get("system_fingerprint"))


def _note_completions(chunk: Json, head: Head, notes: Notes) -> None:
    if chunk.get("object") != OBJECT[Endpoint.COMPLETIONS]:
        notes.note(faults.cmpl.OBJECT, chunk.get("object"))
    if chunk.get("id") != head.id:
        notes.note(faults.cmpl.ID_CONSTANT, chunk.get("id"))


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _id(value: object, endpoint: Endpoint) -> str:
    text = value if isinstance(value, str) else str(value) if type(value) is int else ""
    prefix = ID_PREFIX[Endpoint.COMPLETIONS]
    if endpoint is Endpoint.CHAT or not text or text.startswith(prefix):
        return text
    return prefix + text.removeprefix("chat").removeprefix(prefix)


def _seconds(value: object, fallback: int) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 22:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 10**21:
        return fallback
    while value >= _MILLISECONDS:  # milliseconds, or even less
        value /= 1000
    return int(value)
