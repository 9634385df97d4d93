"""A stream of /v1/responses that is mended within its own dialect."""

from typing import ClassVar

from welldone.protocol import catalog, sse
from welldone.protocol.dialects.chat import openai_error_object as error_body
from welldone.protocol.dialects.responses.emitter import (
    ITEMS_WITH_STATUS,
    OUTPUT_EVENTS,
    PROGRESS_EVENTS,
    TERMINAL_EVENTS,
    TEXT_DELTA_EVENTS,
    ResponsesEmitter,
)
from welldone.protocol.dialects.responses.objects import (
    RESPONSE_MEMBER_TYPES,
    RESPONSE_STATE_MEMBERS,
    Clock,
    complete_tools,
    complete_usage,
    completed_at,
    has_member_type,
    is_complete_usage,
    parse_responses_usage,
    response_error_object,
    response_object,
)
from welldone.protocol.dialects.responses.output_items import OutputRepairer
from welldone.protocol.dialects.same_dialect import PassthroughRepairer
from welldone.protocol.envelope import ID_PREFIX, Endpoint, Envelope
from welldone.protocol.events import Failure, Json
from welldone.protocol.fields import bad_stream_failure, has_error, incomplete_stream_failure, read_error
from welldone.protocol.lenient_json import as_list, as_object, scrub_object
from welldone.protocol.repair_log import RepairLog

_REQUIRED_MEMBERS = ("id", "object", "created_at", "model", "status", "output")
"""Members of a Response without which clients fail."""
_PENDING_EVENTS_LIMIT = 64  # unknown events before a Response has begun; a server that sends more is broken
_EVENT_ENVELOPE = frozenset({"type", "sequence_number"})
_UNFINISHED_STATUSES = frozenset({"queued", "in_progress", "cancelled"})
"""What has become of a Response that can be asked for later, but has no stream."""
_NULLABLE_MEMBERS = frozenset({"completed_at", "error", "incomplete_details", "usage"})
"""Members that may be null, but are always there."""


class ResponsesRepairer(PassthroughRepairer):
    """Mends one stream of responses. `echo` is what a Response repeats of its request, where its server does not.

    `clock`: the time of day, for `completed_at` where its server does not send it; without one it is null.
    """

    _UNKNOWN_EVENT_RULE: ClassVar[catalog.Rule] = catalog.resp.NO_UNKNOWN_EVENTS
    _EMPTY_DATA_RULES: ClassVar[tuple[catalog.Rule, ...]] = (
        *PassthroughRepairer._EMPTY_DATA_RULES,
        catalog.resp.KEEPALIVE,
    )

    def __init__(
        self,
        *,
        echo: Json | None = None,
        fallback: Envelope,
        model: str | None = None,
        is_stream: bool = True,
        limit_bytes: int = sse.FRAME_LIMIT_BYTES,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            Endpoint.RESPONSES, fallback=fallback, model=model, is_stream=is_stream, limit_bytes=limit_bytes
        )
        self._emitter = ResponsesEmitter(response_object(fallback, _echoed_members(echo or {})))
        self._output_repairer = OutputRepairer(
            self._emitter, self.repair_log, fallback.id.removeprefix(ID_PREFIX[Endpoint.RESPONSES])
        )
        self._clock = clock
        self._upstream_completed_at: float | None = None  # completed_at as its server told it
        self._next_sequence_number = 0  # that the next event should have
        self._has_sentinel = False  # [DONE], or the name of the last event: the server had sent all of its output
        self._pending_events: list[Json] = []  # unknown events: the Response must have begun before them
        self._upstream_failure: Failure | None = None  # by an error event
        self._final_event_members: Json = {}  # members of the last event beside the Response
        self._upstream_usage: Json = {}  # usage as its server told it

    @property
    def is_done(self) -> bool:
        """Whether the event that ends an answer has come, or a failure."""
        return self.final_object is not None

    @property
    def has_started(self) -> bool:
        """Whether something of an answer was heard, and not only that it will come."""
        return bool(self._emitter.items) or self._upstream_failure is not None or self.is_done

    def record_fast_path(self, events: int) -> None:
        """So many events were counted elsewhere."""
        self._next_sequence_number += events

    def _reply_object(self, failure: Failure | None) -> Json:
        return (self.final_object or {}) if failure is None else error_body(failure)

    def _scrub_event(self, value: Json) -> Json:
        text = value.get("delta") if str(value.get("type")) in TEXT_DELTA_EVENTS else None
        return scrub_object(value) | ({"delta": text} if isinstance(text, str) else {})

    def _repair_event(self, value: Json, name: str) -> bytes:
        kind = value.get("type")
        if not isinstance(kind, str):
            kind = name
        value = self._scrub_event(value)
        if self.is_done:
            self.repair_log.record(catalog.resp.TERMINAL_ONCE, value)
            return b""
        if kind == "keepalive":
            return self._on_keepalive(value)
        if kind == "error" or has_error(value):  # clients take the second for a failure, whatever its type is
            return self._on_error_event(value, kind)
        if kind != name:
            self.repair_log.record(catalog.resp.EVENT_NAME, name)
        self._check_sequence_number(value)
        return self._dispatch_response_event(value | {"type": kind}, kind) + self._emitter.drain()

    def _dispatch_response_event(self, value: Json, kind: str) -> bytes:
        """Say an event anew; the bytes of a failure, if it is one."""
        if kind in TERMINAL_EVENTS:
            return self._on_response_end(value, kind)
        if kind in PROGRESS_EVENTS:
            self._on_response_progress(value, kind)
        elif kind in OUTPUT_EVENTS:
            if not self._emitter.has_started:
                self.repair_log.record(catalog.resp.CREATED_FIRST, kind)
                self._ensure_created({}, {})
            self._output_repairer.process_event(value, kind)
        else:
            self._forward_unknown_event(value, kind)
        if self._pending_events and self._emitter.has_started:
            for other in self._pending_events:
                self._emitter.emit(other["type"], {}, other)
            self._pending_events.clear()
        return b""

    def _forward_unknown_event(self, value: Json, kind: str) -> None:
        """Forward an event of a newer version of the API; what is of no version is dropped."""
        self.repair_log.record(catalog.resp.NO_UNKNOWN_EVENTS, kind)
        if kind.startswith("response.") and len(self._pending_events) < _PENDING_EVENTS_LIMIT:
            self._pending_events.append(value)

    def _repair_reply(self, value: Json) -> bytes:
        if value.get("object") != "response" and "output" not in value:
            failure = read_error(value, b"", self.repair_log)
            return self._fail(failure or bad_stream_failure("a reply that is no Response"))
        self._ensure_created(value, {})
        self._check_response(value)
        self._read_usage(value.get("usage"), is_due=value.get("status") != "failed")
        self._output_repairer.check_whole_output(value.get("output"))
        self.repair_log.mute()  # what follows are events that nobody expects of a whole reply
        status = value.get("status")
        if status in _UNFINISHED_STATUSES and not self._is_stream:
            self.final_object = self._emitter.response | {"status": status, "output": value.get("output") or []}
            return b""
        if status in _UNFINISHED_STATUSES:
            return self._fail_incomplete(f"the server's response is {status}")
        if status is None and _is_output_complete(value.get("output")):
            status = "completed"
        kind = f"response.{status}"
        if kind not in TERMINAL_EVENTS:
            return self._fail(incomplete_stream_failure("the server's response has no status that is known"))
        return self._on_response_end({"response": value}, kind) + self._emitter.drain()

    def _keep_alive_bytes(self) -> bytes:
        if not self.is_done:
            self._emitter.keep_alive()
        return self._emitter.drain()

    def _repair_irregular_data(self, data: bytes, value: object, frame: sse.Frame) -> bytes:
        if not frame.ended and frame.event == "response.completed":
            self._has_sentinel = True  # cut inside its last event, whose name had come
        return super()._repair_irregular_data(data, value, frame)

    def _handle_done(self) -> bytes:
        self.repair_log.record(catalog.resp.TERMINAL_ONCE, "[DONE]")
        self._has_sentinel = True
        return b""

    def _finish_stream(self) -> bytes:
        if self.is_done:
            return b""
        if self._upstream_failure is not None:
            self.repair_log.record(catalog.resp.ERROR, self._upstream_failure.message)
            return self._fail(self._upstream_failure, is_ours=True)
        self.repair_log.record(catalog.resp.TERMINAL_ONCE)
        items = self._emitter.items
        if not self._has_sentinel or not items or any(item.is_open for item in items):
            return self._fail_incomplete("the server's stream ended before the response was whole")
        self._end_response("completed", {})
        return self._emitter.drain()

    def _error_bytes(self, failure: Failure) -> bytes:
        self._ensure_created({}, {})
        self._output_repairer.close_all("incomplete")
        self._end_response("failed", {"error": failure.extra_fields | response_error_object(failure)})
        return self._emitter.drain()

    def _on_keepalive(self, value: Json) -> bytes:
        if not self._emitter.has_started:
            self.repair_log.record(catalog.resp.KEEPALIVE, value)
        if "sequence_number" in value:
            self._check_sequence_number(value)
        return self._keep_alive_bytes()

    def _on_error_event(self, value: Json, kind: str) -> bytes:
        """An error event, which should be followed by `response.failed`; or an error in the shape of chat."""
        inner = as_object(value.get("error"))  # OpenAI sends both shapes
        error = value.get("error") or {key: item for key, item in value.items() if key not in _EVENT_ENVELOPE}
        failure = read_error({"error": error}, b"", RepairLog()) or bad_stream_failure("an error that says nothing")
        if value.get("type") != "error" or not _is_complete_error(inner or value, is_inner=bool(inner)):
            self.repair_log.record(catalog.resp.ERROR, value)
            return self._fail(failure)
        self._ensure_created({}, {})
        self._check_sequence_number(value)
        self._upstream_failure = told = failure if self._map_failure is None else self._map_failure(failure)
        said = told.extra_fields | {"code": told.code, "message": told.message, "param": told.param}
        self._emitter.emit("error", {"error": {"type": told.type, **said}} if inner else said)
        return self._emitter.drain()

    def _check_sequence_number(self, value: Json) -> None:
        number = value.get("sequence_number")
        if type(number) is not int or number != self._next_sequence_number:
            self.repair_log.record(catalog.resp.SEQUENCE_NUMBER, number)
        self._next_sequence_number = (number if type(number) is int else self._next_sequence_number) + 1

    # The Response.

    def _on_response_progress(self, value: Json, kind: str) -> None:
        """An event that carries a Response that goes on."""
        response = as_object(value.get("response"))
        is_first = not self._emitter.has_started
        if is_first != (kind == "response.created"):
            self.repair_log.record(catalog.resp.CREATED_FIRST, kind)
        self._ensure_created(response, _event_members(value) if kind == "response.created" else {})
        self._check_response(response)
        if self._emitter.items:
            self._emitter.keep_alive()  # a Response that goes on would have to say again all that was said
        elif kind != "response.created":
            self._emitter.response |= _echoed_members(response) | {"status": kind.removeprefix("response.")}
            self._emitter.emit_response(kind, _event_members(value))

    def _ensure_created(self, response: Json, others: Json) -> None:
        """`response.created`, once: from what its server says of the Response, and else from what is known."""
        if self._emitter.has_started:
            return
        named = {name: response[name] for name in ("id", "created_at", "model") if _is_member_valid(name, response)}
        if self._model is not None:
            named["model"] = self._model
        queued = {"status": "queued"} if response.get("status") == "queued" else {}
        self._emitter.response |= _echoed_members(response) | named | queued
        self._emitter.emit_response("response.created", others)

    def _check_response(self, response: Json) -> None:
        """Note in what a Response is not whole, or not the one that was begun."""
        if not all(_is_member_valid(name, response) for name in _REQUIRED_MEMBERS):
            self.repair_log.record(catalog.resp.CREATED_FULL, response)
        elif not _matches_schema(response):
            self.repair_log.record(catalog.resp.OBJECT_SCHEMA, response)
        if _is_member_valid("id", response) and response["id"] != self._emitter.response["id"]:
            self.repair_log.record(catalog.resp.RESPONSE_ID, response["id"])

    def _on_response_end(self, value: Json, kind: str) -> bytes:
        """The event that carries a Response that has ended."""
        response = as_object(value.get("response"))
        if not self._emitter.has_started:
            self.repair_log.record(catalog.resp.CREATED_FIRST, kind)
            self._ensure_created(response, {})
        self._check_response(response)
        status = kind.removeprefix("response.")
        told = response.get("status")
        if told != status:
            self.repair_log.record(catalog.resp.TERMINAL_ONCE, told)
        if status == "completed" and told in ("incomplete", "failed", "cancelled"):
            status = "failed" if told == "cancelled" else str(told)
        self._emitter.response |= _echoed_members(response)
        self._upstream_completed_at = _timestamp(response.get("completed_at"))
        self._final_event_members = _event_members(value)
        self._read_usage(response.get("usage"), is_due=status != "failed")
        self._output_repairer.finish_output(
            response.get("output"), "completed" if status == "completed" else "incomplete"
        )
        if status == "failed":
            return self._fail(self._response_failure(response.get("error")))
        cut = {"incomplete_details": _incomplete_details(response)} if status == "incomplete" else {}
        self._end_response(status, cut)
        return b""

    def _response_failure(self, error: object) -> Failure:
        told = as_object(error)
        if not isinstance(told.get("message"), str) or not isinstance(told.get("code"), str):
            self.repair_log.record(catalog.resp.ERROR, error)
        return read_error({"error": told}, b"", RepairLog()) or bad_stream_failure("a failure without an error")

    def _read_usage(self, upstream_usage: object, *, is_due: bool) -> None:
        usage = parse_responses_usage(as_object(upstream_usage))
        if usage is None:
            if is_due:
                self.repair_log.record(catalog.resp.USAGE, upstream_usage)
            return
        self.usage = usage
        self._upstream_usage = as_object(upstream_usage)
        if not is_complete_usage(self._upstream_usage):
            self.repair_log.record(catalog.resp.USAGE, upstream_usage)

    def _end_response(self, status: str, changed: Json) -> None:
        usage = None if self.usage is None else complete_usage(self._upstream_usage, self.usage)
        self.invalid_arguments_count = self._output_repairer.invalid_arguments_count
        completed = (
            completed_at(status, self._clock) if self._upstream_completed_at is None else self._upstream_completed_at
        )
        self.final_object = self._emitter.end_response(
            status, changed | {"completed_at": completed, "usage": usage}, self._final_event_members
        )


def _is_output_complete(output: object) -> bool:
    """Whether each item of a Response that has no status tells that it is whole."""
    items = [as_object(item) for item in as_list(output)]
    return bool(items) and all(
        item.get("status") == "completed" for item in items if item.get("type") in ITEMS_WITH_STATUS
    )


def _is_complete_error(error: Json, *, is_inner: bool) -> bool:
    """Whether an error has what clients read of it: in a member of its own, or in the event itself."""
    is_whole = isinstance(error.get("type"), str) if is_inner else error.keys() >= {"code", "param"}
    return is_whole and isinstance(error.get("message"), str) and isinstance(error.get("code"), str | None)


def _event_members(value: Json) -> Json:
    """The members of an event beside its Response."""
    return {key: item for key, item in value.items() if key != "response"}


def _echoed_members(response: Json) -> Json:
    """What a Response repeats of its request, and whatever else its server tells in it."""
    told = {
        key: value
        for key, value in response.items()
        if key not in RESPONSE_STATE_MEMBERS and has_member_type(key, value)
    }
    return told | {"tools": complete_tools(told["tools"])} if "tools" in told else told


def _matches_schema(response: Json) -> bool:
    """Whether a Response has what its schema requires besides what clients fail without, and usage at its end."""
    status = response["status"]
    optional = _NULLABLE_MEMBERS - {"usage"} if status in ("completed", "incomplete") else _NULLABLE_MEMBERS
    if not response.keys() >= RESPONSE_MEMBER_TYPES.keys() | optional or not all(
        has_member_type(name, response[name]) for name in RESPONSE_MEMBER_TYPES
    ):
        return False
    is_explained = status != "incomplete" or _incomplete_details(response) == response["incomplete_details"]
    return is_explained and bool(complete_tools(response["tools"]) == response["tools"])


def _timestamp(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_member_valid(name: str, response: Json) -> bool:
    value = response.get(name)
    if name == "created_at":
        return _timestamp(value) is not None
    if name == "output":
        return isinstance(value, list)
    return value == "response" if name == "object" else isinstance(value, str) and value != ""


def _incomplete_details(response: Json) -> Json:
    """Why an answer was cut; mostly there was no more room."""
    details = as_object(response.get("incomplete_details"))
    return details if isinstance(details.get("reason"), str) else {"reason": "max_output_tokens"}
