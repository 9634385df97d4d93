"""Errors in the shapes that servers give them, as one `Failure`."""

from welldone.wire import faults
from welldone.wire.events import Failure, Json
from welldone.wire.notes import RepairLog, format_json
from welldone.wire.unicode import clean_unicode, scrub_object

_ERROR_FIELDS = ("message", "type", "param", "code")
RULE_BROKEN_CODE = "upstream_rule_broken"
"""The code of a failure that is one only because we are strict."""


def read_error(chunk: Json, data: bytes, repair_log: RepairLog) -> Failure | None:
    """The failure that a JSON object tells of, nested or flat; None where it tells of none."""
    error = chunk.get("error")
    if has_error(chunk):
        _check_nested_error(chunk, error, data, repair_log)
        return _to_failure(error if isinstance(error, dict) else {"message": error})
    if "choices" in chunk or not _is_flat_error(chunk):
        return None
    repair_log.record(faults.err.NOT_OBJECT_ERROR, chunk)
    if "detail" in chunk and "message" not in chunk:
        return _to_failure({"message": chunk["detail"]})
    return _to_failure({key: value for key, value in chunk.items() if key != "object"})


def has_error(chunk: Json) -> bool:
    """Whether an object has an `error` that tells of one: an empty one beside other members does not."""
    error = chunk.get("error")
    if error is None:
        return False
    is_empty = not any(error.values()) if isinstance(error, dict) else not error
    return not is_empty or chunk.get("type") == "error" or chunk.keys() == {"error"}


def bad_stream_failure(content: str) -> Failure:
    """The failure of a server that sent what nobody can read."""
    return Failure(f"the server sent {content}", type="upstream_error", code="bad_upstream_stream")


def incomplete_stream_failure(message: str) -> Failure:
    """The failure of a server that stopped before its answer was whole."""
    return Failure(message, type="upstream_error", code="incomplete_stream")


def strict_rule_failure(rule: str) -> Failure:
    """The failure of a server that broke a rule which it was held to."""
    return Failure(f"The upstream broke the rule {rule}, and this server is strict about it.", code=RULE_BROKEN_CODE)


def _check_nested_error(chunk: Json, error: object, data: bytes, repair_log: RepairLog) -> None:
    if "choices" in chunk:
        repair_log.record(faults.err.NOT_WITH_CHOICES, chunk)
    is_told = isinstance(error, dict) and isinstance(error.get("message"), str)
    if not is_told or not data.startswith(b'{"error":'):
        repair_log.record(faults.err.MIDSTREAM_EVENT, chunk)
    check_error_shape(error, repair_log)


def check_error_shape(error: object, repair_log: RepairLog) -> None:
    """Note in what an error object is not of OpenAI's shape."""
    if not isinstance(error, dict) or any(key not in error for key in _ERROR_FIELDS):
        repair_log.record(faults.err.BODY_SHAPE, error)
    if isinstance(error, dict) and not isinstance(error.get("code"), str | None):
        repair_log.record(faults.err.CODE_STRING, error.get("code"))


def _is_flat_error(chunk: Json) -> bool:
    if chunk.get("object") == "error" or chunk.keys() == {"detail"}:
        return True
    return isinstance(chunk.get("message"), str) and any(key in chunk for key in ("code", "type", "status"))


def _optional_text(value: object) -> str | None:
    if value is None:
        return None
    return clean_unicode(value) if isinstance(value, str) else format_json(value)


def _to_failure(error: Json) -> Failure:
    message, kind, param, code = (error.get(key) for key in _ERROR_FIELDS)
    return Failure(
        _optional_text(message) or "unknown error",
        _optional_text(kind) or "server_error",
        _optional_text(param),
        _optional_text(code),
        scrub_object({key: value for key, value in error.items() if key not in _ERROR_FIELDS}),
    )
