"""Checks of the HTTP reply around a stream. Headers are judged only where they are known."""

from collections.abc import Iterator

from welldone.rules.heard import ReplyKind, TraceView
from welldone.rules.rule import Violation, RuleCheck
from welldone.wire import faults


def _content_type(view: TraceView) -> Iterator[Violation]:
    if view.reply_kind is ReplyKind.JSON_INSTEAD_OF_STREAM and view.is_error_reply:
        return  # err-status-before-stream speaks
    if view.trace.media_type != "text/event-stream":
        yield Violation(None, _header_line(view, "content-type"), "Content-Type: text/event-stream")


def _charset(view: TraceView) -> Iterator[Violation]:
    for parameter in (view.trace.header("content-type") or "").lower().split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip(" \"'") not in ("utf-8", "utf8"):
            yield Violation(None, _header_line(view, "content-type"), "Content-Type: text/event-stream; charset=utf-8")


def _proxy_buffering(view: TraceView) -> Iterator[Violation]:
    value = view.trace.header("x-accel-buffering") or ""
    if value.strip().lower() != "no":
        yield Violation(None, _header_line(view, "x-accel-buffering"), "X-Accel-Buffering: no")


def _cache_control(view: TraceView) -> Iterator[Violation]:
    value = (view.trace.header("cache-control") or "").lower()
    # no-store forbids more than no-cache does.
    if "no-cache" not in value and "no-store" not in value:
        yield Violation(None, _header_line(view, "cache-control"), "Cache-Control: no-cache, no-transform")


def _compression(view: TraceView) -> Iterator[Violation]:
    value = view.trace.header("content-encoding")
    if value is not None and value.strip().lower() != "identity":
        yield Violation(None, _header_line(view, "content-encoding"), "no Content-Encoding on a stream")


def _chunked_terminated(view: TraceView) -> Iterator[Violation]:
    is_chunked = "chunked" in (view.trace.header("transfer-encoding") or "").lower()
    if is_chunked and not view.trace.complete:
        yield Violation(len(view.frames) or None, "the body ended without its zero chunk", "0 CR LF CR LF at the end")


def _body_ends(view: TraceView) -> Iterator[Violation]:
    if view.done_messages and not view.trace.complete:
        yield Violation(
            view.done_messages[0], "the body did not end after [DONE]", "the end of the body right after [DONE]"
        )


def _header_line(view: TraceView, name: str) -> str:
    value = view.trace.header(name)
    return f"no {name} header" if value is None else f"{name}: {value}"


HTTP_CHECKS = (
    RuleCheck(
        faults.http.CONTENT_TYPE,
        _content_type,
        (ReplyKind.STREAM, ReplyKind.JSON_INSTEAD_OF_STREAM),
        required_fields=("headers",),
    ),
    RuleCheck(faults.http.CHARSET_UTF8, _charset, required_fields=("headers",)),
    RuleCheck(faults.http.NO_PROXY_BUFFERING, _proxy_buffering, required_fields=("headers",)),
    RuleCheck(faults.http.CACHE_CONTROL, _cache_control, required_fields=("headers",)),
    RuleCheck(faults.http.NO_BUFFERING_COMPRESSION, _compression, required_fields=("headers",)),
    RuleCheck(faults.http.CHUNKED_TERMINATED, _chunked_terminated, required_fields=("headers", "complete")),
    RuleCheck(faults.http.BODY_ENDS_AFTER_DONE, _body_ends, required_fields=("complete",)),
)
