"""A stream of /v1/responses that is mended within its own dialect."""

from typing import ClassVar

from welldone.wire import faults, sse
from welldone.wire.dialects.responses.counts import has_counts, read_counts, whole_usage
from welldone.wire.dialects.responses.known import BEGINS, DELTAS, ENDS, SAID
from welldone.wire.dialects.responses.objects import (
    OURS,
    TYPES,
    Clock,
    completed_at,
    error_object,
    fits,
    response_object,
    whole_tools,
)
from welldone.wire.dialects.responses.output import Output
from welldone.wire.dialects.responses.scribe import WITH_STATUS, Scribe
from welldone.wire.dialects.stream import error_object as error_body
from welldone.wire.events import Failure, Json
from welldone.wire.failures import cut_off, garbage, read_error, tells_error
from welldone.wire.head import ID_PREFIX, Endpoint, Head
from welldone.wire.lenient import as_list, as_object
from welldone.wire.native import Native
from welldone.wire.notes import Notes
from welldone.wire.unicode import scrub_object

_NEEDED = ("id", "object", "created_at", "model", "status", "output")
"""Members of a Response without which clients fail."""
_WAITING_LIMIT = 64  # unknown events before a Response has begun; a server that sends more is broken
_ENVELOPE = frozenset({"type", "sequence_number"})
_UNFINISHED = frozenset({"queued", "in_progress", "cancelled"})
"""What has become of a Response that can be asked for later, but has no stream."""
_OPTIONAL = frozenset({"completed_at", "error", "incomplete_details", "usage"})
"""Members that may be null, but are always there."""


class ResponsesNative(Native):
    """Mends one stream of responses. `echo` is what a Response repeats of its request, where its server does not.

    `clock`: the time of day, for `completed_at` where its server does not send it; without one it is null.
    """

    _UNKNOWN: ClassVar[faults.Fault] = faults.resp.NO_UNKNOWN_EVENTS
    _EMPTY: ClassVar[tuple[faults.Fault, ...]] = (*Native._EMPTY, faults.resp.KEEPALIVE)

    def __init__(
        self,
        *,
        echo: Json | None = None,
        fallback: Head,
        model: str | None = None,
        is_stream: bool = True,
        limit_bytes: int = sse.LIMIT_BYTES,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            Endpoint.RESPONSES, fallback=fallback, model=model, is_stream=is_stream, limit_bytes=limit_bytes
        )
        self._scribe = Scribe(response_object(fallback, _repeated(echo or {})))
        self._output = Output(self._scribe, self.notes, fallback.id.removeprefix(ID_PREFIX[Endpoint.RESPONSES]))
        self._clock = clock
        self._completed: float | None = None  # completed_at as its server told it
        self._number = 0  # that the next event should have
        self._has_sentinel = False  # [DONE], or the name of the last event: the server had sent all of its output
        self._waiting: list[Json] = []  # unknown events: the Response must have begun before them
        self._told: Failure | None = None  # by an error event
        self._others: Json = {}  # members of the last event beside the Response
        self._counted: Json = {}  # usage as its server told it

    @property
    def is_done(self) -> bool:
        """Whether the event that ends an answer has come, or a failure."""
        return self.final is not None

    @property
    def has_started(self) -> bool:
        """Whether something of an answer was heard, and not only that it will come."""
        return bool(self._scribe.items) or self._told is not None or self.is_done

    def passed(self, events: int) -> None:
        """So many events were counted elsewhere."""
        self._number += events

    def _reply(self, failure: Failure | None) -> Json:
        return (self.final or {}) if failure is None else error_body(failure)

    def _scrubbed(self, value: Json) -> Json:
        text = value.get("delta") if str(value.get("type")) in DELTAS else None
        return scrub_object(value) | ({"delta": text} if isinstance(text, str) else {})

    def _event(self, value: Json, name: str) -> bytes:
        kind = value.get("type")
        if not isinstance(kind, str):
            kind = name
        value = self._scrubbed(value)
        if self.is_done:
            self.notes.note(faults.resp.TERMINAL_ONCE, value)
            return b""
        if kind == "keepalive":
            return self._keep_alive(value)
        if kind == "error" or tells_error(value):  # clients take the second for a failure, whatever its type is
            return self._error(value, kind)
        if kind != name:
            self.notes.note(faults.resp.EVENT_NAME, name)
        self._count(value)
        return self._hear(value | {"type": kind}, kind) + self._scribe.take()

    def _hear(self, value: Json, kind: str) -> bytes:
        """Say an event anew; the bytes of a failure, if it is one."""
        if kind in ENDS:
            return self._conclude(value, kind)
        if kind in BEGINS:
            self._go_on(value, kind)
        elif kind in SAID:
            if not self._scribe.has_begun:
                self.notes.note(faults.resp.CREATED_FIRST, kind)
                self._begin({}, {})
            self._output.hear(value, kind)
        else:
            self._meet_unknown(value, kind)
        if self._waiting and self._scribe.has_begun:
            for other in self._waiting:
                self._scribe.event(other["type"], {}, other)
            self._waiting.clear()
        return b""

    def _meet_unknown(self, value: Json, kind: str) -> None:
        """Forward an event of a newer version of the API; what is of no version is dropped."""
        self.notes.note(faults.resp.NO_UNKNOWN_EVENTS, kind)
        if kind.startswith("response.") and len(self._waiting) < _WAITING_LIMIT:
            self._waiting.append(value)

    def _whole(self, value: Json) -> bytes:
        if value.get("object") != "response" and "output" not in value:
            failure = read_error(value, b"", self.notes)
            return self._fail(failure or garbage("a reply that is no Response"))
        self._begin(value, {})
        self._compare(value)
        self._count_tokens(value.get("usage"), is_due=value.get("status") != "failed")
        self._output.review(value.get("output"))
        self.notes.hush()  # what follows are events that nobody expects of a whole reply
        status = value.get("status")
        if status in _UNFINISHED and not self._is_stream:
            self.final = self._scribe.response | {"status": status, "output": value.get("output") or []}
            return b""
        if status in _UNFINISHED:
            return self._cut(f"the server's response is {status}")
        if status is None and _is_whole(value.get("output")):
            status = "completed"
        kind = f"response.{status}"
        if kind not in ENDS:
            return self._fail(cut_off("the server's response has no status that is known"))
        return self._conclude({"response": value}, kind) + self._scribe.take()

    def _silence(self) -> bytes:
        if not self.is_done:
            self._scribe.keep_alive()
        return self._scribe.take()

    def _odd(self, data: bytes, value: object, frame: sse.Frame) -> bytes:
        if not frame.ended and frame.event == "response.completed":
            self._has_sentinel = True  # cut inside its last event, whose name had come
        return super()._odd(data, value, frame)

    def _sentinel(self) -> bytes:
        self.notes.note(faults.resp.TERMINAL_ONCE, "[DONE]")
        self._has_sentinel = True
        return b""

    def _finish(self) -> bytes:
        if self.is_done:
            return b""
        if self._told is not None:
            self.notes.note(faults.resp.ERROR, self._told.message)
            return self._fail(self._told, is_ours=True)
        self.notes.note(faults.resp.TERMINAL_ONCE)
        items = self._scribe.items
        if not self._has_sentinel or not items or any(item.is_open for item in items):
            return self._cut("the server's stream ended before the response was whole")
        self._end("completed", {})
        return self._scribe.take()

    def _broken(self, failure: Failure) -> bytes:
        self._begin({}, {})
        self._output.close_all("incomplete")
        self._end("failed", {"error": failure.more | error_object(failure)})
        return self._scribe.take()

    def _keep_alive(self, value: Json) -> bytes:
        if not self._scribe.has_begun:
            self.notes.note(faults.resp.KEEPALIVE, value)
        if "sequence_number" in value:
            self._count(value)
        return self._silence()

    def _error(self, value: Json, kind: str) -> bytes:
        """An error event, which should be followed by `response.failed`; or an error in the shape of chat."""
        inner = as_object(value.get("error"))  # OpenAI sends both shapes
        error = value.get("error") or {key: item for key, item in value.items() if key not in _ENVELOPE}
        failure = read_error({"error": error}, b"", Notes()) or garbage("an error that says nothing")
        if value.get("type") != "error" or not _is_error(inner or value, is_inner=bool(inner)):
            self.notes.note(faults.resp.ERROR, value)
            return self._fail(failure)
        self._begin({}, {})
        self._count(value)
        self._told = told = failure if self._reword is None else self._reword(failure)
        said = told.more | {"code": told.code, "message": told.message, "param": told.param}
        self._scribe.event("error", {"error": {"type": told.type, **said}} if inner else said)
        return self._scribe.take()

    def _count(self, value: Json) -> None:
        number = value.get("sequence_number")
        if type(number) is not int or number != self._number:
            self.notes.note(faults.resp.SEQUENCE_NUMBER, number)
        self._number = (number if type(number) is int else self._number) + 1

    # The Response.

    def _go_on(self, value: Json, kind: str) -> None:
        """An event that carries a Response that goes on."""
        response = as_object(value.get("response"))
        is_first = not self._scribe.has_begun
        if is_first != (kind == "response.created"):
            self.notes.note(faults.resp.CREATED_FIRST, kind)
        self._begin(response, _others(value) if kind == "response.created" else {})
        self._compare(response)
        if self._scribe.items:
            self._scribe.keep_alive()  # a Response that goes on would have to say again all that was said
        elif kind != "response.created":
            self._scribe.response |= _repeated(response) | {"status": kind.removeprefix("response.")}
            self._scribe.respond(kind, _others(value))

    def _begin(self, response: Json, others: Json) -> None:
        """`response.created`, once: from what its server says of the Response, and else from what is known."""
        if self._scribe.has_begun:
            return
        named = {name: response[name] for name in ("id", "created_at", "model") if _is_told(name, response)}
        if self._model is not None:
            named["model"] = self._model
        queued = {"status": "queued"} if response.get("status") == "queued" else {}
        self._scribe.response |= _repeated(response) | named | queued
        self._scribe.respond("response.created", others)

    def _compare(self, response: Json) -> None:
        """Note in what a Response is not whole, or not the one that was begun."""
        if not all(_is_told(name, response) for name in _NEEDED):
            self.notes.note(faults.resp.CREATED_FULL, response)
        elif not _is_schema(response):
            self.notes.note(faults.resp.OBJECT_SCHEMA, response)
        if _is_told("id", response) and response["id"] != self._scribe.response["id"]:
            self.notes.note(faults.resp.RESPONSE_ID, response["id"])

    def _conclude(self, value: Json, kind: str) -> bytes:
        """The event that carries a Response that has ended."""
        response = as_object(value.get("response"))
        if not self._scribe.has_begun:
            self.notes.note(faults.resp.CREATED_FIRST, kind)
            self._begin(response, {})
        self._compare(response)
        status = kind.removeprefix("response.")
        told = response.get("status")
        if told != status:
            self.notes.note(faults.resp.TERMINAL_ONCE, told)
        if status == "completed" and told in ("incomplete", "failed", "cancelled"):
            status = "failed" if told == "cancelled" else str(told)
        self._scribe.response |= _repeated(response)
        self._completed = _time(response.get("completed_at"))
        self._others = _others(value)
        self._count_tokens(response.get("usage"), is_due=status != "failed")
        self._output.conclude(response.get("output"), "completed" if status == "completed" else "incomplete")
        if status == "failed":
            return self._fail(self._read_failure(response.get("error")))
        cut = {"incomplete_details": _details(response)} if status == "incomplete" else {}
        self._end(status, cut)
        return b""

    def _read_failure(self, error: object) -> Failure:
        told = as_object(error)
        if not isinstance(told.get("message"), str) or not isinstance(told.get("code"), str):
            self.notes.note(faults.resp.ERROR, error)
        return read_error({"error": told}, b"", Notes()) or garbage("a failure without an error")

    def _count_tokens(self, told: object, *, is_due: bool) -> None:
        usage = read_counts(as_object(told))
        if usage is None:
            if is_due:
                self.notes.note(faults.resp.USAGE, told)
            return
        self.usage = usage
        self._counted = as_object(told)
        if not has_counts(self._counted):
            self.notes.note(faults.resp.USAGE, told)

    def _end(self, status: str, changed: Json) -> None:
        usage = None if self.usage is None else whole_usage(self._counted, self.usage)
        self.broken_arguments = self._output.broken_arguments
        completed = completed_at(status, self._clock) if self._completed is None else self._completed
        self.final = self._scribe.end(status, changed | {"completed_at": completed, "usage": usage}, self._others)


def _is_whole(output: object) -> bool:
    """Whether each item of a Response that has no status tells that it is whole."""
    items = [as_object(item) for item in as_list(output)]
    return bool(items) and all(item.get("status") == "completed" for item in items if item.get("type") in WITH_STATUS)


def _is_error(error: Json, *, is_inner: bool) -> bool:
    """Whether an error has what clients read of it: in a member of its own, or in the event itself."""
    is_whole = isinstance(error.get("type"), str) if is_inner else error.keys() >= {"code", "param"}
    return is_whole and isinstance(error.get("message"), str) and isinstance(error.get("code"), str | None)


def _others(value: Json) -> Json:
    """The members of an event beside its Response."""
    return {key: item for key, item in value.items() if key != "response"}


def _repeated(response: Json) -> Json:
    """What a Response repeats of its request, and whatever else its server tells in it."""
    told = {key: value for key, value in response.items() if key not in OURS and fits(key, value)}
    return told | {"tools": whole_tools(told["tools"])} if "tools" in told else told


def _is_schema(response: Json) -> bool:
    """Whether a Response has what its schema requires besides what clients fail without, and usage at its end."""
    status = response["status"]
    optional = _OPTIONAL - {"usage"} if status in ("completed", "incomplete") else _OPTIONAL
    if not response.keys() >= TYPES.keys() | optional or not all(fits(name, response[name]) for name in TYPES):
        return False
    is_explained = status != "incomplete" or _details(response) == response["incomplete_details"]
    return is_explained and bool(whole_tools(response["tools"]) == response["tools"])


def _time(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_told(name: str, response: Json) -> bool:
    value = response.get(name)
    if name == "created_at":
        return _time(value) is not None
    if name == "output":
        return isinstance(value, list)
    return value == "response" if name == "object" else isinstance(value, str) and value != ""


def _details(response: Json) -> Json:
    """Why an answer was cut; mostly there was no more room."""
    details = as_object(response.get("incomplete_details"))
    return details if isinstance(details.get("reason"), str) else {"reason": "max_output_tokens"}
