"""Messages of a WebSocket as the reply that the judge reads: each message is an event of a stream."""

import json
from typing import Any

import msgspec

from welldone.http.recording_client import RecordedResponse
from welldone.http.recording_socket import SocketRecording
from welldone.protocol import sse
from welldone.rules.view.choices import as_object, as_text, is_int
from welldone.rules.view.responses import RESPONSE_END_EVENTS, RESPONSES_ERROR_EVENT


def event_of(data: bytes) -> dict[str, Any]:
    """The event in a message; empty if it is not a JSON object."""
    try:
        return as_object(json.loads(data))
    except (ValueError, RecursionError):
        return {}


def is_event(data: bytes) -> bool:
    """Return whether a message has the type of an event."""
    return bool(as_text(event_of(data).get("type")))


def is_last_message(data: bytes) -> bool:
    """Return whether a message ends its response: a last event, an error, or a message that is no event."""
    return not is_event(data) or event_of(data)["type"] in (*RESPONSE_END_EVENTS, RESPONSES_ERROR_EVENT)


def as_response(recording: SocketRecording) -> RecordedResponse:
    """The events as a stream; an error event that comes first as the HTTP response that it stands for."""
    first = event_of(recording.messages[0][2]) if recording.messages else {}
    error_status = first.get("status") if first.get("type") == RESPONSES_ERROR_EVENT else None
    status: int | None = 200 if recording.messages else None
    headers: tuple[tuple[str, str], ...] = sse.HEADERS
    body, arrivals = bytearray(), []
    for seconds, _, data in recording.messages:
        line = b" ".join(data.splitlines())  # JSON has line breaks only between its tokens
        kind = as_text(event_of(data).get("type"))
        body += sse.named_frame(kind, line) if kind.isprintable() and kind else sse.data_frame(line)
        arrivals.append((seconds, len(body)))
    if is_int(error_status):
        status, headers = error_status, (("Content-Type", "application/json"),)
        body = bytearray(msgspec.json.encode({"error": first.get("error")}))
    return RecordedResponse(
        status=status,
        headers=headers,
        body=bytes(body),
        pieces=None,
        is_complete=recording.error is None,
        head_s=None,
        arrivals=tuple(arrivals),
        ended_s=recording.ended_s,
        error=recording.error,
        is_abandoned=recording.is_timed_out,
        is_timed_out=recording.is_timed_out,
    )
