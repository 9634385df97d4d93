"""Pass-through repair of /v1/responses."""

from functools import partial
from typing import ClassVar

from welldone.core import sse
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Failure, Json, Usage
from welldone.core.fields import (
    bad_stream_failure,
    has_error,
    incomplete_stream_failure,
    openai_error_object,
    read_error,
    unread_usage,
)
from welldone.core.lenient_json import as_list, as_object, is_nonempty_string, scrub_object
from welldone.core.repair_log import RepairLog
from welldone.dialects.responses import emitter, objects
from welldone.dialects.responses.objects import Clock
from welldone.dialects.responses.output_items import OutputRepairer
from welldone.dialects.same_dialect import PassthroughRepairer

_REQUIRED_MEMBERS = ("id", "object", "created_at", "model", "status", "output")
"""Members of a Response that clients need."""
_PENDING_EVENTS_LIMIT = 64  # unknown events before response.created; more come only from a broken server
_EVENT_ENVELOPE = frozenset({"type", "sequence_number"})
_UNFINISHED_STATUSES = ("queued", "in_progress", "cancelled")
"""Statuses of a Response that can be retrieved later, but not streamed."""
_NULLABLE_MEMBERS = frozenset({"completed_at", "error", "incomplete_details", "usage"})
"""Required members that may be null."""


class ResponsesRepairer(PassthroughRepairer):
    """Repairs one stream or non-streamed reply. A Response repeats `echo`, the members of its request.

    `clock` supplies `completed_at` if the server does not send it; without a clock it is null. `members` replace those
    of the server's Response, such as its id. `output` replaces the emitter that writes the events.
    """

    _UNKNOWN_EVENT_RULE: ClassVar[str] = "resp-no-unknown-events"
    _HAS_NUMBERS: ClassVar[bool] = True

    def __init__(
        self,
        *,
        echo: Json | None = None,
        fallback: Envelope,
        model: str | None = None,
        is_stream: bool = True,
        clock: Clock | None = None,
        members: Json | None = None,
        output: emitter.ResponsesEmitter | None = None,
        repair_log: RepairLog | None = None,
    ) -> None:
        super().__init__(Endpoint.RESPONSES, fallback, model, is_stream=is_stream, repair_log=repair_log)
        response = objects.response_object(fallback, _echoed_members(echo or {}))
        self._emitter = output or emitter.ResponsesEmitter(response)
        id_stem = fallback.id.removeprefix(objects.ID_PREFIX)
        self._output_repairer = OutputRepairer(self._emitter, self.repair_log, id_stem)
        self._clock = clock
        self._own_members = members or {}
        self._upstream_id = fallback.id
        self._upstream_completed_at: float | None = None  # completed_at of the server
        self._has_sentinel = False  # [DONE] or the name of the terminal event was received
        self._pending_events: list[Json] = []  # unknown events before response.created
        self._upstream_failure: Failure | None = None  # from an error event
        self._final_event_members: Json = {}  # unknown members of the terminal event
        self._upstream_usage: Json = {}  # usage of the server

    @property
    def is_done(self) -> bool:
        """Whether the Response has ended or failed."""
        return self.final_object is not None

    @property
    def has_started(self) -> bool:
        """Whether output or an error was received."""
        return bool(self._emitter.items) or self._upstream_failure is not None or self.is_done

    def _reply_object(self, failure: Failure | None) -> Json:
        return (self.final_object or {}) if failure is None else openai_error_object(failure)

    def text_of(self, event: object) -> object:
        """Return the text of a delta, whatever it extends."""
        return event.get("delta") if isinstance(event, dict) else None

    def _scrub_event(self, value: Json) -> Json:
        text = value.get("delta") if str(value.get("type")) in emitter.TEXT_DELTA_EVENTS else None
        return scrub_object(value) | ({"delta": text} if isinstance(text, str) else {})

    def _repair_event(self, value: Json, name: str) -> bytes:
        event_type = value.get("type")
        if not isinstance(event_type, str):
            event_type = name
        value = self._scrub_event(value)
        if self.is_done:
            self.repair_log.record("resp-terminal-once", value)
            return b""
        if event_type == "keepalive":
            self.repair_log.record_if(not self._emitter.has_started, "resp-keepalive", value)
            if "sequence_number" in value:
                self._check_sequence_number(value)
            self._emitter.keep_alive(is_event=True)
            return self._emitter.drain()
        if event_type == "error" or has_error(value):  # clients read any event with `error` as a failure
            return self._on_error_event(value, event_type)
        self.repair_log.record_if(event_type != name, "resp-event-name", name)
        self._check_sequence_number(value)
        out = self._dispatch_response_event(value | {"type": event_type}, event_type) + self._emitter.drain()
        text_part = self._output_repairer.take_plain_text_part()
        self._send_text = None if text_part is None else partial(self._emitter.encode_delta, text_part)
        return out

    def _dispatch_response_event(self, value: Json, event_type: str) -> bytes:
        """Repair and buffer an event; return the bytes of a failure."""
        if event_type in emitter.TERMINAL_EVENTS:
            return self._on_response_end(value, event_type)
        if event_type in emitter.PROGRESS_EVENTS:
            self._on_response_progress(value, event_type)
        elif event_type in OutputRepairer.HANDLERS:
            if not self._emitter.has_started:
                self.repair_log.record("resp-created-first", event_type)
                self._ensure_created({}, {})
            OutputRepairer.HANDLERS[event_type](self._output_repairer, value)
        else:
            # An event of another type is not part of the answer, and strict clients raise on it.
            self._leave_out({} if event_type else value)
            if event_type.startswith("response.") and len(self._pending_events) < _PENDING_EVENTS_LIMIT:
                self._pending_events.append(value)  # of a newer API version
        if self._pending_events and self._emitter.has_started:
            for event in self._pending_events:
                self._emitter.emit(event["type"], {}, event)
            self._pending_events.clear()
        return b""

    def _repair_reply(self, value: Json) -> bytes:
        if value.get("object") != "response" and "output" not in value:
            failure = read_error(value, b"", self.repair_log)
            return self._fail(failure or bad_stream_failure("a reply that is not a Response"))
        self._ensure_created(value, {})
        self._check_response(value)
        self._read_usage(value.get("usage"), is_due=value.get("status") != "failed")
        self._output_repairer.check_whole_output(value.get("output"))
        self.repair_log.mute()  # stream rules do not apply to the generated events
        status = value.get("status")
        if status in _UNFINISHED_STATUSES and not self._is_stream:
            self.final_object: Json | None = self._emitter.response | {
                "status": status,
                "output": value.get("output") or [],
            }
            return b""
        if status in _UNFINISHED_STATUSES:
            return self._fail_incomplete(f"the server's response is {status}")
        if status is None and _is_output_complete(value.get("output")):
            status = "completed"
        event_type = f"response.{status}"
        if event_type not in emitter.TERMINAL_EVENTS:
            return self._fail(incomplete_stream_failure("the server's response has an unknown status"))
        return self._on_response_end({"response": value}, event_type) + self._emitter.drain()

    def _keep_alive_bytes(self) -> bytes:
        if not self.is_done:
            self._emitter.keep_alive()
        return self._emitter.drain()

    def _read_done(self, text: bytes, frame: sse.Frame, out: list[bytes]) -> None:
        self.repair_log.record("resp-terminal-once", "[DONE]")
        self._has_sentinel = True

    def _finish_stream(self) -> bytes:
        if self.is_done:
            return b""
        if self._upstream_failure is not None:
            self.repair_log.record("resp-error", self._upstream_failure.message)
            return self._fail(self._upstream_failure, is_ours=True)
        self.repair_log.record("resp-terminal-once")
        items = self._emitter.items
        cut = self.decoder.cut_frame
        has_end = self._has_sentinel or (cut is not None and cut.event == "response.completed")
        if not has_end or not items or any(item.is_open for item in items):
            return self._fail_incomplete("the server's stream ended before the response was complete")
        self._end_response("completed", {})
        return self._emitter.drain()

    def _error_bytes(self, failure: Failure) -> bytes:
        self._ensure_created({}, {})
        self._output_repairer.close_all("incomplete")
        self._end_response("failed", {"error": failure.extra_fields | objects.response_error_object(failure)})
        return self._emitter.drain()

    def _on_error_event(self, value: Json, event_type: str) -> bytes:
        """Handle an error event, which `response.failed` should follow, or an error in chat's format."""
        inner = as_object(value.get("error"))  # OpenAI uses both formats
        error = value.get("error") or {key: item for key, item in value.items() if key not in _EVENT_ENVELOPE}
        failure = read_error({"error": error}, b"", RepairLog()) or bad_stream_failure("an error without a message")
        if value.get("type") != "error" or not _is_complete_error(inner or value, is_inner=bool(inner)):
            self.repair_log.record("resp-error", value)
            return self._fail(failure)
        self._ensure_created({}, {})
        self._check_sequence_number(value)
        if self._map_failure is not None:
            failure = self._map_failure(failure)
        self._upstream_failure = failure
        members = failure.extra_fields | {"code": failure.code, "message": failure.message, "param": failure.param}
        self._emitter.emit("error", {"error": {"type": failure.type, **members}} if inner else members)
        return self._emitter.drain()

    def _check_sequence_number(self, value: Json) -> None:
        number = value.get("sequence_number")
        if type(number) is not int or number != self._next_sequence_number:
            self.repair_log.record("resp-sequence-number", number)
        self._next_sequence_number = (number if type(number) is int else self._next_sequence_number) + 1

    def _on_response_progress(self, value: Json, event_type: str) -> None:
        response = self.repair_log.read_object(value.get("response"), "resp-object-schema")
        is_first = not self._emitter.has_started
        self.repair_log.record_if(is_first != (event_type == "response.created"), "resp-created-first", event_type)
        self._ensure_created(response, _event_members(value) if event_type == "response.created" else {})
        self._check_response(response)
        if self._emitter.items:
            self._emitter.keep_alive(is_event=True)  # a progress event would have to repeat all output so far
        elif event_type != "response.created":
            status = {"status": event_type.removeprefix("response.")}
            self._emitter.response |= _echoed_members(response) | status | self._own_members
            self._emitter.emit(event_type, {"response": self._emitter.response}, _event_members(value))

    def _ensure_created(self, response: Json, others: Json) -> None:
        """Write response.created if necessary, with the members of `response`."""
        if self._emitter.has_started:
            return
        named = {name: response[name] for name in ("id", "created_at", "model") if _is_member_valid(name, response)}
        if self._model is not None:
            named["model"] = self._model
        queued = {"status": "queued"} if response.get("status") == "queued" else {}
        self._upstream_id = named.get("id", self._upstream_id)
        self._emitter.response |= _echoed_members(response) | named | queued | self._own_members
        self._emitter.emit("response.created", {"response": self._emitter.response}, others)

    def _check_response(self, response: Json) -> None:
        """Log missing members of a Response, and a changed id."""
        if not all(_is_member_valid(name, response) for name in _REQUIRED_MEMBERS):
            self.repair_log.record("resp-created-full", response)
        elif not _matches_schema(response):
            self.repair_log.record("resp-object-schema", response)
        if _is_member_valid("id", response) and response["id"] != self._upstream_id:
            self.repair_log.record("resp-response-id", response["id"])

    def _on_response_end(self, value: Json, event_type: str) -> bytes:
        response = self.repair_log.read_object(value.get("response"), "resp-object-schema")
        if not self._emitter.has_started:
            self.repair_log.record("resp-created-first", event_type)
            self._ensure_created(response, {})
        self._check_response(response)
        status = event_type.removeprefix("response.")
        own_status = response.get("status")
        self.repair_log.record_if(own_status != status, "resp-terminal-once", own_status)
        if status == "completed" and own_status in ("incomplete", "failed", "cancelled"):
            status = "failed" if own_status == "cancelled" else str(own_status)
        self._emitter.response |= _echoed_members(response) | self._own_members
        self._upstream_completed_at = _timestamp(response.get("completed_at"))
        self._final_event_members = _event_members(value)
        self._read_usage(response.get("usage"), is_due=status != "failed")
        item_status = "completed" if status == "completed" else "incomplete"
        self._output_repairer.finish_output(response.get("output"), item_status)
        if self.repair_log.lost is not None:
            return self._fail_if_strict()
        if status == "failed":
            error = as_object(response.get("error"))
            is_whole = all(isinstance(error.get(name), str) for name in ("message", "code"))
            self.repair_log.record_if(not is_whole, "resp-error", response.get("error"))
            failure = read_error({"error": error}, b"", RepairLog())
            return self._fail(failure or bad_stream_failure("a failure without an error"))
        changes = {"incomplete_details": _incomplete_details(response)} if status == "incomplete" else {}
        self._end_response(status, changes)
        return b""

    def _read_usage(self, upstream_usage: object, *, is_due: bool) -> None:
        usage = objects.parse_responses_usage(as_object(upstream_usage))
        if usage is None:
            self._emitter.response = self._emitter.response | unread_usage(upstream_usage)
            self.repair_log.record_if(is_due, "resp-usage", upstream_usage)
            return
        self.usage: Usage | None = usage
        self._upstream_usage = as_object(upstream_usage)
        self.repair_log.record_if(not objects.is_complete_usage(self._upstream_usage), "resp-usage", upstream_usage)

    def _end_response(self, status: str, changes: Json) -> None:
        usage = None if self.usage is None else objects.complete_usage(self._upstream_usage, self.usage)
        self.invalid_arguments_count: int = self._output_repairer.invalid_arguments_count
        completed = self._upstream_completed_at
        if completed is None:
            completed = objects.completed_at(status, self._clock)
        changes |= {"completed_at": completed, "usage": usage}
        self.final_object = self._emitter.end_response(status, changes, self._final_event_members)


def _is_output_complete(output: object) -> bool:
    """Whether all items that have a status are completed."""
    items = [as_object(item) for item in as_list(output)]
    with_status = [item for item in items if item.get("type") in emitter.ITEMS_WITH_STATUS]
    return bool(items) and all(item.get("status") == "completed" for item in with_status)


def _is_complete_error(error: Json, *, is_inner: bool) -> bool:
    """Whether an error has the members that clients read, in `error` (`is_inner`) or in the event itself."""
    is_full = isinstance(error.get("type"), str) if is_inner else error.keys() >= {"code", "param"}
    return is_full and isinstance(error.get("message"), str) and isinstance(error.get("code"), str | None)


def _event_members(value: Json) -> Json:
    return {key: item for key, item in value.items() if key != "response"}


def _echoed_members(response: Json) -> Json:
    """Return the valid members of a Response that do not describe its state."""
    members = {
        key: value
        for key, value in response.items()
        if key not in objects.RESPONSE_STATE_MEMBERS and objects.has_member_type(key, value)
    }
    return members | {"tools": objects.complete_tools(members["tools"])} if "tools" in members else members


def _matches_schema(response: Json) -> bool:
    """Whether a Response has the members that its schema requires beyond `_REQUIRED_MEMBERS`."""
    status = response["status"]
    optional = _NULLABLE_MEMBERS - {"usage"} if status in ("completed", "incomplete") else _NULLABLE_MEMBERS
    echoed = objects.RESPONSE_MEMBER_TYPES.keys()
    if not response.keys() >= echoed | optional or not all(objects.has_member_type(k, response[k]) for k in echoed):
        return False
    has_details = status != "incomplete" or _incomplete_details(response) == response["incomplete_details"]
    return has_details and bool(objects.complete_tools(response["tools"]) == response["tools"])


def _timestamp(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_member_valid(name: str, response: Json) -> bool:
    value = response.get(name)
    if name == "created_at":
        return _timestamp(value) is not None
    if name == "output":
        return isinstance(value, list)
    return value == "response" if name == "object" else is_nonempty_string(value)


def _incomplete_details(response: Json) -> Json:
    """Return the reason of an incomplete answer; the default is the most common one."""
    details = as_object(response.get("incomplete_details"))
    return details if isinstance(details.get("reason"), str) else {"reason": "max_output_tokens"}
