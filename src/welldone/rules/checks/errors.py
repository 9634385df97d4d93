"""Checks of errors: in a stream, in place of one, and as the body of a failed request (`err-`)."""

import re
from collections.abc import Iterator

from welldone.protocol import sse
from welldone.rules.rule_check import RuleCheck, Violation
from welldone.rules.view.stream import MessageKind, StreamMessage
from welldone.rules.view.view import ReplyKind, TraceView

ERROR_MEMBERS = ("message", "type", "param", "code")
MAX_ERROR_TEXT_CHARACTERS = 300
"""A longer text is an answer, not an error message."""

_ERROR_TEXT = re.compile(r"\s*+(?:internal (?:server )?error|error:|\[error)", re.IGNORECASE)
_ERROR_EVENT = 'data: {"error":{"message":"...","type":"...","param":null,"code":null}}'
_ALL_REPLY_KINDS = (ReplyKind.STREAM, ReplyKind.WHOLE, ReplyKind.JSON_INSTEAD_OF_STREAM, ReplyKind.HTTP_ERROR)


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


def _body_shape(view: TraceView) -> Iterator[Violation]:
    for message, error in _error_values(view):
        is_shaped = isinstance(error, dict) and all(key in error for key in ERROR_MEMBERS)
        if not is_shaped or not isinstance(error["message"], str):  # type: ignore[index]  # an object: see is_shaped
            observed = message.value.source if message else view.body_text[:1000]
            yield Violation(message, observed, '{"error":{"message":"...","type":"...","param":null,"code":null}}')


def _code_string(view: TraceView) -> Iterator[Violation]:
    for message, error in _error_values(view):
        code = error.get("code") if isinstance(error, dict) else None
        if code is not None and not isinstance(code, str):
            yield Violation(message, {"code": code}, '"code" as a string, or null')


def _midstream_event(view: TraceView) -> Iterator[Violation]:
    for message in view.error_events:
        error = message.json["error"]
        has_message = isinstance(error, dict) and isinstance(error.get("message"), str)
        if not has_message or not message.value.source.startswith('{"error":'):
            yield Violation(message, message.value.source, _ERROR_EVENT)


def _then_done(view: TraceView) -> Iterator[Violation]:
    if not view.all_errors:
        return
    first = view.all_errors[0]
    rest = view.messages_after(first)
    if all(message.kind is not MessageKind.DONE for message in rest):
        yield Violation(first, "no [DONE] after the error", "data: [DONE] after the error event")
    for message in rest:
        if message.kind is MessageKind.CHUNK:
            yield Violation(message, message.value.source, "no chunk after the error event")


def _not_object_error(view: TraceView) -> Iterator[Violation]:
    for message in view.messages:
        if message.kind is MessageKind.FLAT_ERROR:
            yield Violation(message, message.value.source, _ERROR_EVENT)


def _not_error_field(view: TraceView) -> Iterator[Violation]:
    for message in view.messages:
        if message.kind is MessageKind.ERROR_FIELD:
            yield Violation(message, message.value.source, _ERROR_EVENT if view.is_chunked else "the error as an event")


def _not_content(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        is_stop = choice.finish_delta is not None and choice.finish_delta.finish_reason == "stop"
        if is_stop and len(choice.text) < MAX_ERROR_TEXT_CHARACTERS and _ERROR_TEXT.match(choice.text):
            yield Violation(choice.deltas[-1], {"content": choice.text}, _ERROR_EVENT)


def _not_silent(view: TraceView) -> Iterator[Violation]:
    for choice in view.unfinished_choices:
        if any(choice_delta.delta or choice_delta.text for choice_delta in choice.deltas):
            observed = f"choice {choice.index} ends without a finish_reason and without an error"
            yield Violation(choice.deltas[-1], observed, f"a finish_reason, or {_ERROR_EVENT}")


def _not_with_choices(view: TraceView) -> Iterator[Violation]:
    for message in view.error_events:
        if "choices" in message.json:
            yield Violation(message, message.value.source, "the error in an event of its own")


def _event_name(view: TraceView) -> Iterator[Violation]:
    for message in view.all_errors:
        if message.frame.event:
            yield Violation(message, f"event: {message.frame.event[:80]}", "no event: line")


def _retry_after(view: TraceView) -> Iterator[Violation]:
    trace = view.trace
    if trace.status in (429, 503) and trace.header("retry-after") is None:
        yield Violation(None, f"{trace.status} without Retry-After", "Retry-After: <seconds>")


def _empty_stream(view: TraceView) -> Iterator[Violation]:
    if view.reply_kind is ReplyKind.JSON_INSTEAD_OF_STREAM:
        if not view.is_error_reply:
            yield Violation(None, view.first_value.source, "a stream, as the request asked")
    elif not view.chunks and not view.events and not view.all_errors:
        body = view.trace.body.removeprefix(sse.BOM)[:1000].decode("utf-8", "replace")
        unit = "chunks" if view.is_chunked else "events"
        yield Violation(None, body or "nothing", f"a stream of {unit}, or an error")


ERROR_CHECKS = (
    RuleCheck(
        "err-status-before-stream",
        _status_before,
        (ReplyKind.STREAM, ReplyKind.JSON_INSTEAD_OF_STREAM),
        required_fields=("status",),
    ),
    RuleCheck("err-body-shape", _body_shape, _ALL_REPLY_KINDS),
    RuleCheck("err-code-string", _code_string, _ALL_REPLY_KINDS),
    RuleCheck("err-midstream-event", _midstream_event),
    RuleCheck("err-then-done", _then_done, required_fields=("end",)),
    RuleCheck("err-not-object-error", _not_object_error),
    RuleCheck("err-not-error-field", _not_error_field),
    RuleCheck("err-not-content", _not_content),
    RuleCheck("err-not-silent", _not_silent, required_fields=("end",)),
    RuleCheck("err-not-with-choices", _not_with_choices),
    RuleCheck("err-event-name", _event_name),
    RuleCheck("err-retry-after", _retry_after, (ReplyKind.HTTP_ERROR,), required_fields=("headers",)),
    RuleCheck(
        "err-empty-stream",
        _empty_stream,
        (ReplyKind.STREAM, ReplyKind.JSON_INSTEAD_OF_STREAM),
        required_fields=("end",),
    ),
)
