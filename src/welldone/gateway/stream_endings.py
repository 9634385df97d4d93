"""The end of a stream whose server has died, written by another process that has sent its events to the client."""

import re
from contextlib import suppress

import msgspec

from welldone.core.json_budget import decode
from welldone.core.lenient_json import as_object
from welldone.dialects.chat.writer import error_and_done
from welldone.dialects.gemini.writer import GeminiFormat
from welldone.dialects.messages.emitter import encode_error_event
from welldone.dialects.responses.emitter import encode_event
from welldone.dialects.responses.objects import response_error_object
from welldone.gateway.errors import ApiError

_DATA_LINE = re.compile(rb"^data: (\{.*\})$", re.MULTILINE)


def server_gone() -> ApiError:
    """Return the error for an answer whose server has died."""
    message = "The server stopped before the answer was complete. Try again."
    return ApiError(503, message, code="server_gone", retry_after_s=1.0)


def error_ending(endpoint: str, first_event: bytes, sequence_number: int) -> bytes:
    """Return the error event of an endpoint, and its end of the stream; that of a chat for other endpoints.

    `first_event` and `sequence_number`, that of the error, are for `responses`.
    """
    failure = server_gone().to_failure()
    match endpoint:
        case "messages":
            return encode_error_event(failure)
        case "responses":
            return _response_failed_frame(first_event, sequence_number)
        case "gemini":
            return GeminiFormat().final_error_bytes(failure)
        case _:
            return error_and_done(failure)


def _response_failed_frame(first_event: bytes, sequence_number: int) -> bytes:
    """Return `response.failed` with the response object of the first event, or `error` if that is not known."""
    error = response_error_object(server_gone().to_failure())
    response: object = None
    with suppress(msgspec.DecodeError, UnicodeError, RecursionError):  # Ray's proxy passes on what a front end has sent
        if (match := _DATA_LINE.search(first_event)) is not None:
            response = as_object(decode(match[1])).get("response")
    if not isinstance(response, dict):
        return encode_event({"type": "error", "sequence_number": sequence_number, "param": None, **error})
    failed = {**response, "status": "failed", "error": error}
    return encode_event({"type": "response.failed", "sequence_number": sequence_number, "response": failed})
