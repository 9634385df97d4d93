"""Errors in the shapes that servers give them, as one `Failure`."""

from welldone.wire import faults
from welldone.wire.events import Failure, Json
from welldone.wire.notes import Notes, show
from welldone.wire.unicode import clean, scrub_object

_OURS = ("message", "type", "param", "code")
RULE_BROKEN = "upstream_rule_broken"
"""The code of a failure that is one only because we are strict."""


def read_error(chunk: Json, data: bytes, notes: Notes) -> Failure | None:
    """The failure that a JSON object tells of, nested or flat; None where it tells of none."""
    error = chunk.get("error")
    if tells_error(chunk):
        _note_nested(chunk, error, data, notes)
        return _failure(error if isinstance(error, dict) else {"message": error})
    if "choices" in chunk or not _is_flat_error(chunk):
        return None
    notes.note(faults.err.NOT_OBJECT_ERROR, chunk)
    if "detail" in chunk and "message" not in chunk:
        return _failure({"message": chunk["detail"]})
    return _failure({key: value for key, value in chunk.items() if key != "object"})


def tells_error(chunk: Json) -> bool:
    """Whether an object has an `error` that tells of one: an empty one beside other members does not."""
    error = chunk.get("error")
    if error is None:
        return False
    is_empty = not any(error.values()) if isinstance(error, dict) else not error
    return not is_empty or chunk.get("type") == "error" or chunk.keys() == {"error"}


def garbage(what: str) -> Failure:
    """The failure of a server that sent what nobody can read."""
    return Failure(f"the server sent {what}", type="upstream_error", code="bad_upstream_stream")


def cut_off(message: str) -> Failure:
    """The failure of a server that stopped before its answer was whole."""
    return Failure(message, type="upstream_error", code="incomplete_stream")


def too_strict(rule: str) -> Failure:
    """The failure of a server that broke a rule which it was held to."""
    return Failure(f"The upstream broke the rule {rule}, and this server is strict about it.", code=RULE_BROKEN)


def _note_nested(chunk: Json, error: object, data: bytes, notes: Notes) -> None:
    if "choices" in chunk:
        notes.note(faults.err.NOT_WITH_CHOICES, chunk)
    is_told = isinstance(error, dict) and isinstance(error.get("message"), str)
    if not is_told or not data.startswith(b'{"error":'):
        notes.note(faults.err.MIDSTREAM_EVENT, chunk)
    note_shape(error, notes)


def note_shape(error: object, notes: Notes) -> None:
    """Note in what an error object is not of OpenAI's shape."""
    if not isinstance(error, dict) or any(key not in error for key in _OURS):
        notes.note(faults.err.BODY_SHAPE, error)
    if isinstance(error, dict) and not isinstance(error.get("code"), str | None):
        notes.note(faults.err.CODE_STRING, error.get("code"))


def _is_flat_error(chunk: Json) -> bool:
    if chunk.get("object") == "error" or chunk.keys() == {"detail"}:
        return True
    return isinstance(chunk.get("message"), str) and any(key in chunk for key in ("code", "type", "status"))


def _text(value: object) -> str | None:
    if value is None:
        return None
    return clean(value) if isinstance(value, str) else show(value)


def _failure(error: Json) -> Failure:
    message, kind, param, code = (error.get(key) for key in _OURS)
    return Failure(
        _text(message) or "unknown error",
        _text(kind) or "server_error",
        _text(param),
        _text(code),
        scrub_object({key: value for key, value in error.items() if key not in _OURS}),
    )
