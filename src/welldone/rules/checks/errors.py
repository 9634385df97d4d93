"""Checks of errors: in a stream, in place of one, and as the body of a failed request (`err-`)."""

import re
from collections.abc import Iterator

from welldone.core import sse
from welldone.rules.rule_check import CheckList, Violation
from welldone.rules.view.choices import ChoiceView, as_object
from welldone.rules.view.stream import MessageKind, StreamMessage, has_error_content
from welldone.rules.view.view import STREAM_KINDS, ReplyKind, TraceView

ERROR_MEMBERS = ("message", "type", "param", "code")
MAX_ERROR_TEXT_CHARACTERS = 300
"""A longer text is an answer, not an error message."""

_ERROR_TEXT = re.compile(r"\s*+(?:internal (?:server )?error|error:|\[error)", re.IGNORECASE)
_ERROR_BODY = '{"error":{"message":"...","type":"...","param":null,"code":null}}'
_ERROR_EVENT = f"data: {_ERROR_BODY}"
_STREAM_REQUESTED = (*STREAM_KINDS, ReplyKind.JSON_INSTEAD_OF_STREAM)

CHECKS = CheckList()


@CHECKS.rule("err-status-before-stream", *_STREAM_REQUESTED, needs=("status",))
def _status_before(view: TraceView) -> Iterator[Violation]:
    if view.trace.status != 200:
        return
    expected = "a status of 400 or more and the error as its JSON body"
    if view.reply_kind is ReplyKind.JSON_INSTEAD_OF_STREAM and view.is_error_reply:
        yield Violation(None, view.first_value.source, expected)
    if view.all_errors and view.messages[0] is view.all_errors[0]:
        yield Violation(view.all_errors[0], view.all_errors[0].value.source, expected)


def _error_values(view: TraceView) -> Iterator[tuple[StreamMessage | None, object]]:
    """Yield each error event or error body, with the value of its `error` member."""
    for message in view.error_events if view.is_chunked else ():
        yield message, message.json["error"]
    if view.reply_kind is ReplyKind.HTTP_ERROR or (view.reply_kind is not ReplyKind.STREAM and view.is_error_reply):
        yield None, view.reply_object.get("error")


@CHECKS.rule("err-body-shape", *ReplyKind)
def _body_shape(view: TraceView) -> Iterator[Violation]:
    for message, error in _error_values(view):
        members = as_object(error)
        if not all(key in members for key in ERROR_MEMBERS) or not isinstance(members["message"], str):
            yield Violation(message, message.value.source if message else view.body_text[:1000], _ERROR_BODY)


@CHECKS.rule("err-code-string", *ReplyKind)
def _code_string(view: TraceView) -> Iterator[Violation]:
    for message, error in _error_values(view):
        code = as_object(error).get("code")
        if not isinstance(code, str | None):
            yield Violation(message, {"code": code}, '"code" as a string, or null')


@CHECKS.each("err-midstream-event", lambda view: view.error_events)
def _midstream_event(message: StreamMessage) -> Iterator[Violation]:
    has_message = isinstance(as_object(message.json["error"]).get("message"), str)
    if not has_message or not message.value.source.startswith('{"error":'):
        yield Violation(message, message.value.source, _ERROR_EVENT)


@CHECKS.rule("err-then-done", needs=("end",))
def _then_done(view: TraceView) -> Iterator[Violation]:
    for first in view.all_errors[:1]:
        rest = view.messages_after(first)
        if all(message.kind is not MessageKind.DONE for message in rest):
            yield Violation(first, "no [DONE] after the error", "data: [DONE] after the error event")
        for message in rest:
            if message.kind is MessageKind.CHUNK:
                yield Violation(message, message.value.source, "no chunk after the error event")


@CHECKS.each("err-not-object-error", lambda view: view.messages)
def _not_object_error(message: StreamMessage) -> Iterator[Violation]:
    if message.kind is MessageKind.FLAT_ERROR:
        yield Violation(message, message.value.source, _ERROR_EVENT)


@CHECKS.rule("err-not-error-field")
def _not_error_field(view: TraceView) -> Iterator[Violation]:
    for message in view.messages:
        if message.kind is MessageKind.ERROR_FIELD:
            yield Violation(message, message.value.source, _ERROR_EVENT if view.is_chunked else "the error as an event")


@CHECKS.each("err-not-content", lambda view: view.choices)
def _not_content(choice: ChoiceView) -> Iterator[Violation]:
    is_stop = choice.finish_delta is not None and choice.finish_delta.finish_reason == "stop"
    if is_stop and len(choice.text) < MAX_ERROR_TEXT_CHARACTERS and _ERROR_TEXT.match(choice.text):
        yield Violation(choice.deltas[-1], {"content": choice.text}, _ERROR_EVENT)


@CHECKS.each("err-not-silent", lambda view: view.unfinished_choices, needs=("end",))
def _not_silent(choice: ChoiceView) -> Iterator[Violation]:
    if any(delta.delta or delta.text for delta in choice.deltas):
        observed = f"choice {choice.index} ends without a finish_reason and without an error"
        yield Violation(choice.deltas[-1], observed, f"a finish_reason, or {_ERROR_EVENT}")


@CHECKS.rule("err-not-with-choices")
def _not_with_choices(view: TraceView) -> Iterator[Violation]:
    expected = "the error in an event of its own"
    for message in view.error_events:
        if "choices" in message.json:
            yield Violation(message, message.value.source, expected)
    for delta in view.choice_deltas:
        if has_error_content(delta.choice):
            yield Violation(delta, {"choices": [{"error": delta.choice["error"]}]}, expected)


@CHECKS.each("err-event-name", lambda view: view.all_errors)
def _event_name(message: StreamMessage) -> Iterator[Violation]:
    if message.frame.event:
        yield Violation(message, f"event: {message.frame.event[:80]}", "no event: line")


@CHECKS.rule("err-retry-after", ReplyKind.HTTP_ERROR, needs=("headers",))
def _retry_after(view: TraceView) -> Iterator[Violation]:
    if view.trace.status in (429, 503) and view.trace.header("retry-after") is None:
        yield Violation(None, f"{view.trace.status} without Retry-After", "Retry-After: <seconds>")


@CHECKS.rule("err-empty-stream", *_STREAM_REQUESTED, needs=("end",))
def _empty_stream(view: TraceView) -> Iterator[Violation]:
    if view.reply_kind is ReplyKind.JSON_INSTEAD_OF_STREAM:
        if not view.is_error_reply:
            yield Violation(None, view.first_value.source, "a stream, as the request asked")
    elif not view.chunks and not view.events and not view.all_errors:
        body = view.trace.body.removeprefix(sse.BOM)[:1000].decode("utf-8", "replace")
        unit = "chunks" if view.is_chunked else "elements" if view.is_gemini else "events"
        yield Violation(None, body or "nothing", f"a stream of {unit}, or an error")
