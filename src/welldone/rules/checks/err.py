"""Checks of errors: in a stream, in place of one, and as the body of a failed request."""

import re
from collections.abc import Iterator

from welldone.rules.heard import Form, Heard
from welldone.rules.messages import Kind, Message
from welldone.rules.rule import Place, Rule
from welldone.wire import sse
from welldone.wire.faults import err as faults

KEYS = ("message", "type", "param", "code")
SHORT = 300
"""A text longer than this is an answer, not an error message."""

_ERROR_TEXT = re.compile(r"\s*+(?:internal (?:server )?error|error:|\[error)", re.IGNORECASE)
_EVENT = 'data: {"error":{"message":"...","type":"...","param":null,"code":null}}'
_ANYWHERE = (Form.STREAM, Form.WHOLE, Form.INSTEAD, Form.FAILURE)


def _status_before(heard: Heard) -> Iterator[Place]:
    if heard.trace.status != 200:
        return
    wanted = "a status of 400 or more and the error as its JSON body"
    if heard.form is Form.INSTEAD and heard.reply_fails:
        yield Place(None, heard.value.source, wanted)
    if heard.failures and heard.messages[0] is heard.failures[0]:
        yield Place(heard.failures[0], heard.failures[0].value.source, wanted)


def _errors(heard: Heard) -> Iterator[tuple[Message | None, object]]:
    """Each error that was heard where an error has its place, with what stands under its `error` key."""
    for message in heard.errors if heard.is_chunked else ():
        yield message, message.json["error"]
    if heard.form is Form.FAILURE or (heard.form is not Form.STREAM and heard.reply_fails):
        yield None, heard.reply.get("error")


def _body_shape(heard: Heard) -> Iterator[Place]:
    for message, error in _errors(heard):
        is_shaped = isinstance(error, dict) and all(key in error for key in KEYS)
        if not is_shaped or not isinstance(error["message"], str):  # type: ignore[index]  # is_shaped told
            shown = message.value.source if message else heard.text[:1000]
            yield Place(message, shown, '{"error":{"message":"...","type":"...","param":null,"code":null}}')


def _code_string(heard: Heard) -> Iterator[Place]:
    for message, error in _errors(heard):
        code = error.get("code") if isinstance(error, dict) else None
        if code is not None and not isinstance(code, str):
            yield Place(message, {"code": code}, '"code" as a string, or null')


def _midstream_event(heard: Heard) -> Iterator[Place]:
    for message in heard.errors:
        error = message.json["error"]
        has_message = isinstance(error, dict) and isinstance(error.get("message"), str)
        if not has_message or not message.value.source.startswith('{"error":'):
            yield Place(message, message.value.source, _EVENT)


def _then_done(heard: Heard) -> Iterator[Place]:
    if not heard.failures:
        return
    first = heard.failures[0]
    rest = heard.messages[next(place for place, one in enumerate(heard.messages) if one is first) + 1 :]
    if all(message.kind is not Kind.DONE for message in rest):
        yield Place(first, "no [DONE] after the error", "data: [DONE] after the error event")
    for message in rest:
        if message.kind is Kind.CHUNK:
            yield Place(message, message.value.source, "no chunk after the error event")


def _not_object_error(heard: Heard) -> Iterator[Place]:
    for message in heard.messages:
        if message.kind is Kind.FLAT_ERROR:
            yield Place(message, message.value.source, _EVENT)


def _not_error_field(heard: Heard) -> Iterator[Place]:
    for message in heard.messages:
        if message.kind is Kind.ERROR_FIELD:
            yield Place(message, message.value.source, _EVENT if heard.is_chunked else "the error as an event")


def _not_content(heard: Heard) -> Iterator[Place]:
    for choice in heard.choices:
        is_stop = choice.finish is not None and choice.finish.finish == "stop"
        if is_stop and len(choice.text) < SHORT and _ERROR_TEXT.match(choice.text):
            yield Place(choice.parts[-1], {"content": choice.text}, _EVENT)


def _not_silent(heard: Heard) -> Iterator[Place]:
    for choice in heard.unfinished:
        if any(part.delta or part.text for part in choice.parts):
            said = f"choice {choice.key} ends without a finish_reason and without an error"
            yield Place(choice.parts[-1], said, f"a finish_reason, or {_EVENT}")


def _not_with_choices(heard: Heard) -> Iterator[Place]:
    for message in heard.errors:
        if "choices" in message.json:
            yield Place(message, message.value.source, "the error in an event of its own")


def _event_name(heard: Heard) -> Iterator[Place]:
    for message in heard.failures:
        if message.frame.event:
            yield Place(message, f"event: {message.frame.event[:80]}", "no event: line")


def _retry_after(heard: Heard) -> Iterator[Place]:
    trace = heard.trace
    if trace.status in (429, 503) and trace.header("retry-after") is None:
        yield Place(None, f"{trace.status} without Retry-After", "Retry-After: <seconds>")


def _empty_stream(heard: Heard) -> Iterator[Place]:
    if heard.form is Form.INSTEAD:
        if not heard.reply_fails:
            yield Place(None, heard.value.source, "a stream, as the request asked")
    elif not heard.chunks and not heard.events and not heard.failures:
        body = heard.trace.body.removeprefix(sse.BOM)[:1000].decode("utf-8", "replace")
        what = "chunks" if heard.is_chunked else "events"
        yield Place(None, body or "nothing", f"a stream of {what}, or an error")


RULES = (
    Rule(faults.STATUS_BEFORE_STREAM, _status_before, (Form.STREAM, Form.INSTEAD), needs=("status",)),
    Rule(faults.BODY_SHAPE, _body_shape, _ANYWHERE),
    Rule(faults.CODE_STRING, _code_string, _ANYWHERE),
    Rule(faults.MIDSTREAM_EVENT, _midstream_event),
    Rule(faults.THEN_DONE, _then_done, needs=("end",)),
    Rule(faults.NOT_OBJECT_ERROR, _not_object_error),
    Rule(faults.NOT_ERROR_FIELD, _not_error_field),
    Rule(faults.NOT_CONTENT, _not_content),
    Rule(faults.NOT_SILENT, _not_silent, needs=("end",)),
    Rule(faults.NOT_WITH_CHOICES, _not_with_choices),
    Rule(faults.EVENT_NAME, _event_name),
    Rule(faults.RETRY_AFTER, _retry_after, (Form.FAILURE,), needs=("headers",)),
    Rule(faults.EMPTY_STREAM, _empty_stream, (Form.STREAM, Form.INSTEAD), needs=("end",)),
)
