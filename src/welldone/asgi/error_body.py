"""Error bodies in the format of the API, from those that web frameworks send.

The status decides what went wrong; the body supplies the message. FastAPI sends `{"detail": …}`, Starlette plain text.
"""

from http import HTTPStatus

import msgspec

from welldone.core.answer_format import escape_line_breaks
from welldone.core.envelope import Endpoint
from welldone.core.error_types import ERROR_TYPES as ANTHROPIC_ERROR_TYPES
from welldone.core.error_types import error_type_for_status
from welldone.core.events import Failure, Json
from welldone.core.fields import check_error_shape, openai_error_object, read_error
from welldone.core.lenient_json import as_list, as_object, clean_unicode, parse_strict
from welldone.core.repair_log import RepairLog, shorten
from welldone.dialects.messages.objects import anthropic_error_object

_MESSAGE_MEMBERS = ("message", "detail", "msg", "error_description", "title")
_MESSAGE_CHARACTERS = 2_000
"""Most characters of a message that is taken from a body without structure."""
PHRASES: dict[int, str] = {status.value: status.phrase for status in HTTPStatus}
_TYPE_BY_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def repair_error_body(body: bytes, endpoint: Endpoint, status: int, repair_log: RepairLog) -> tuple[bytes, Failure]:
    """Return the body of an error response in the format of the endpoint, and the error. A right body is unchanged."""
    value = parse_strict(body)
    reply = as_object(value)
    failure = _read_failure(reply, body if not isinstance(value, dict | list) else b"", status)
    if endpoint is Endpoint.MESSAGES:
        error = as_object(reply.get("error"))
        has_message = reply.get("type") == "error" and isinstance(error.get("message"), str)
        repair_log.record_if(not has_message, "msg-error-body", body.decode("utf-8", "replace"))
        has_type = error.get("type") in ANTHROPIC_ERROR_TYPES
        repair_log.record_if(has_message and not has_type, "msg-error-type", error.get("type"))
        if not has_type:
            failure = msgspec.structs.replace(failure, type=error_type_for_status(status))
        right = anthropic_error_object(failure)
    else:
        check_error_shape(reply.get("error"), repair_log)
        right = openai_error_object(failure)
    if not repair_log.entries():
        return body, failure
    return escape_line_breaks(msgspec.json.encode(right)), failure


def _read_failure(reply: Json, text: bytes, status: int) -> Failure:
    """Read the error of a body that is an object, or only text."""
    failure = _read_validation_errors(reply) or read_error(reply, b"", RepairLog())
    if failure is None:
        message = next((reply[name] for name in _MESSAGE_MEMBERS if isinstance(reply.get(name), str)), "")
        message = (
            message or clean_unicode(text.decode("utf-8", "replace")).strip() or PHRASES.get(status, f"status {status}")
        )
        failure = Failure(shorten(message, _MESSAGE_CHARACTERS))
    is_typed = isinstance(as_object(reply.get("error")).get("type") or reply.get("type"), str)
    if is_typed:
        return failure
    default = "server_error" if status >= 500 else "invalid_request_error"
    return msgspec.structs.replace(failure, type=_TYPE_BY_STATUS.get(status, default))


def _read_validation_errors(reply: Json) -> Failure | None:
    """Read the list of FastAPI and Litestar: `{"detail": [{"loc": ["body", "model"], "msg": "Field required"}]}`."""
    errors = [as_object(error) for error in as_list(reply.get("detail"))]
    if not errors or not all(isinstance(error.get("msg"), str) for error in errors):
        return None
    fields = [".".join(str(step) for step in as_list(error.get("loc")) if step != "body") for error in errors]
    texts = [f"{field}: {error['msg']}" if field else error["msg"] for field, error in zip(fields, errors, strict=True)]
    return Failure(shorten("; ".join(map(clean_unicode, texts)), _MESSAGE_CHARACTERS), param=fields[0] or None)
