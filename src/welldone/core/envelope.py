"""Envelope of a stream: the fields that are the same on every chunk (id, created, model, system_fingerprint)."""

from enum import StrEnum

import msgspec

from welldone.core.events import Json
from welldone.core.lenient_json import clean_string, clean_unicode, is_nonempty_string
from welldone.core.repair_log import RepairLog

_TEXT_FINISH_REASONS = frozenset({"stop", "length", "content_filter"})
_FINISH_REASONS = _TEXT_FINISH_REASONS | {"tool_calls", "function_call"}
_MAX_SECONDS = 10**11  # seconds reach this in the year 5138; a larger number counts milliseconds


class Endpoint(StrEnum):
    """API endpoint, which determines the dialect of a stream."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    GEMINI = "gemini"

    def __init__(self, name: str) -> None:
        self.is_chat: bool = name == "chat"
        """Whether this is chat, and not legacy completions."""
        self.finish_reasons: frozenset[str] = _TEXT_FINISH_REASONS if name == "completions" else _FINISH_REASONS
        """OpenAI's finish reasons that its answers can have."""


CHUNK_OBJECT = {Endpoint.CHAT: "chat.completion.chunk", Endpoint.COMPLETIONS: "text_completion"}
REPLY_OBJECT = {Endpoint.CHAT: "chat.completion", Endpoint.COMPLETIONS: "text_completion"}


UNKNOWN_BUILD = "b0-unknown"
"""The fingerprint that llama.cpp sends if it was not compiled in its repository (`common/build-info.cpp`)."""


class Envelope(msgspec.Struct, frozen=True):
    """Fields that are repeated on every chunk of a stream."""

    id: str
    created: int
    model: str
    fingerprint: str | None = None


def read_envelope(chunk: Json, endpoint: Endpoint, fallback: Envelope) -> Envelope:
    """Read the envelope from the first chunk; invalid or missing fields come from `fallback`."""
    fingerprint = chunk.get("system_fingerprint")
    return Envelope(
        _normalise_id(chunk.get("id"), endpoint) or fallback.id,
        _normalise_created(chunk.get("created"), fallback.created),
        clean_unicode(chunk["model"]) if is_nonempty_string(chunk.get("model")) else fallback.model,
        clean_unicode(fingerprint) if isinstance(fingerprint, str) else None,
    )


def check_envelope(chunk: Json, envelope: Envelope, endpoint: Endpoint, repair_log: RepairLog) -> None:
    """Record where the envelope of a chunk differs from the one that is sent."""
    is_chat = endpoint.is_chat
    if chunk.get("object") != CHUNK_OBJECT[endpoint]:
        repair_log.record("env-object-const" if is_chat else "cmpl-object", chunk.get("object"))
    if is_chat and not is_nonempty_string(chunk.get("id")):
        repair_log.record("env-id-present", chunk.get("id"))
    elif chunk.get("id") != envelope.id:
        repair_log.record("env-id-constant" if is_chat else "cmpl-id-constant", chunk.get("id"))
    created = chunk.get("created")
    if type(created) is not int or not 0 <= created < _MAX_SECONDS:
        repair_log.record("env-created-int", created)
    elif is_chat and created != envelope.created:
        repair_log.record("env-created-constant", created)
    if not is_nonempty_string(chunk.get("model")):
        repair_log.record("env-model-string", chunk.get("model"))
    if is_chat and chunk.get("system_fingerprint") != envelope.fingerprint:
        repair_log.record("env-fingerprint", chunk.get("system_fingerprint"))


def _normalise_id(value: object, endpoint: Endpoint) -> str:
    text = clean_string(value)
    if endpoint.is_chat or not text or text.startswith("cmpl-"):
        return text
    return "cmpl-" + text.removeprefix("chat").removeprefix("cmpl-")


def _normalise_created(value: object, fallback: int) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 22:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 10**21:
        return fallback
    while value >= _MAX_SECONDS:  # milliseconds, microseconds, nanoseconds
        value /= 1000
    return int(value)
