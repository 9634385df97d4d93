"""A stream of /v1/responses that is mended within its own dialect."""

import msgspec

from welldone.wire import faults, sse
from welldone.wire.counts import read_usage
from welldone.wire.dialects.responses.known import (
    ANNOTATION,
    BEGINS,
    DELTAS,
    DONES,
    ENDS,
    LOOSE,
    PART_ADDED,
    PART_DONE,
    STEPS,
)
from welldone.wire.dialects.responses.objects import DEFAULTS, OURS, error_object, response_object, usage_object
from welldone.wire.dialects.responses.output import Output
from welldone.wire.dialects.responses.scribe import Scribe
from welldone.wire.dialects.stream import escape
from welldone.wire.events import Failure, Json, Usage
from welldone.wire.failures import garbage, read_error
from welldone.wire.head import Endpoint, Head
from welldone.wire.native import Native
from welldone.wire.notes import Notes
from welldone.wire.unicode import scrub_object

_WHOLE = "the server's stream ended before the response was whole"
_NAMES = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "prompt_tokens_details": "input_tokens_details",
    "completion_tokens_details": "output_tokens_details",
}


class ResponsesNative(Native):
    """Mends one stream of responses. `echo` is what a Response repeats of its request, where its server does not."""

    def __init__(
        self,
        *,
        echo: Json | None = None,
        fallback: Head,
        model: str | None = None,
        is_stream: bool = True,
        limit_bytes: int = sse.LIMIT_BYTES,
    ) -> None:
        super().__init__(
            Endpoint.RESPONSES, fallback=fallback, model=model, is_stream=is_stream, limit_bytes=limit_bytes
        )
        self._scribe = Scribe(response_object(fallback, echo or {}))
        self._output = Output(self._scribe, self.notes, fallback.id.removeprefix("resp_"))
        self._heard = 0  # events that should have a number

    @property
    def is_done(self) -> bool:
        """Whether the event that ends an answer has come, or a failure."""
        return self.final is not None

    @property
    def has_started(self) -> bool:
        """Whether something of an answer was heard, and not only that it will come."""
        return bool(self._scribe.items) or self.is_done

    def body(self) -> bytes:
        """The whole reply."""
        return escape(msgspec.json.encode(self.final))

    def _event(self, value: Json, name: str) -> bytes:
        kind = value.get("type")
        if not isinstance(kind, str):
            kind = name
        if kind not in DELTAS:  # those have nothing in them that could be deep
            value = scrub_object(value)
        if self.is_done:
            self.notes.note(faults.resp.TERMINAL_ONCE, value)
            return b""
        if kind == "keepalive":
            self._count(value)
            return self._silence()
        if kind == "error" or (value.get("error") is not None and kind not in BEGINS | ENDS):
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
            self._begin({}, {})
            self._output.hear(value, kind)
        else:
            self.notes.note(faults.resp.NO_UNKNOWN_EVENTS, kind)
        return b""

    def _whole(self, value: Json) -> bytes:
        if value.get("object") != "response" and "output" not in value:
            failure = read_error(value, b"", self.notes)
            return self._fail(failure or garbage("a reply that is no Response"))
        self._begin(value, {})
        self.notes.hush()  # what follows are events that nobody expects of a whole reply
        status = value.get("status")
        if status in ("queued", "in_progress", "cancelled") and not self._is_stream:
            self.final = self._read_response(value) | {"status": status}  # to be asked for again
            return b""
        kind = f"response.{status}"
        return self._conclude({"response": value}, kind if kind in ENDS else "response.completed") + self._scribe.take()

    def _silence(self) -> bytes:
        if not self.is_done:
            self._scribe.keep_alive()
        return self._scribe.take()

    def _sentinel(self) -> bytes:
        self.notes.note(faults.resp.TERMINAL_ONCE, "[DONE]")
        return b""

    def _finish(self) -> bytes:
        if self.is_done:
            return b""
        self.notes.note(faults.resp.TERMINAL_ONCE)
        items = self._scribe.items
        if not items or any(item.is_open for item in items):
            return self._cut("the server's stream ended before the response was whole")
        self._end("completed", {})
        return self._scribe.take()

    def _broken(self, failure: Failure) -> bytes:
        self._begin({}, {})
        self._output.close_all("incomplete")
        self._end("failed", {"error": failure.more | error_object(failure)})
        return self._scribe.take()

    def _error(self, value: Json, kind: str) -> bytes:
        """An error event, or an error in the shape of chat."""
        error = value.get("error")
        if kind != "error":
            self.notes.note(faults.resp.ERROR, value)
        if error is None:
            error = {key: item for key, item in value.items() if key not in ("type", "sequence_number")}
        failure = read_error({"error": error}, b"", Notes())
        return self._fail(failure or garbage("an error that says nothing"))

    def _count(self, value: Json) -> None:
        if value.get("sequence_number") != self._heard:
            self.notes.note(faults.resp.SEQUENCE_NUMBER, value.get("sequence_number"))
        self._heard += 1

    # The Response.

    def _go_on(self, value: Json, kind: str) -> None:
        """An event that carries a Response that goes on."""
        response = _object(value.get("response"))
        others = _without_response(value)
        if kind == "response.created":
            if self._scribe.has_begun:
                self.notes.note(faults.resp.CREATED_FIRST, value)
            self._begin(response, others)
            return
        self._begin(response, {})
        self._note_id(response)
        self._scribe.response |= self._read_response(response) | {"status": kind.removeprefix("response.")}
        self._scribe.respond(kind, others)

    def _begin(self, response: Json, others: Json) -> None:
        """`response.created`, once: from what its server says of the Response, and else from what is known."""
        if self._scribe.has_begun:
            return
        if ...
