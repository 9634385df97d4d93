"""Checks of the HTTP reply around a stream. Headers are judged only where they are known."""

from collections.abc import Iterator

from welldone.rules.heard import Form, Heard
from welldone.rules.rule import Place, Rule
from welldone.wire.faults import http as faults


def _content_type(heard: Heard) -> Iterator[Place]:
    if heard.form is Form.INSTEAD and heard.reply_fails:
        return  # err-status-before-stream speaks
    if heard.trace.media_type != "text/event-stream":
        yield Place(None, _show(heard, "content-type"), "Content-Type: text/event-stream")


def _charset(heard: Heard) -> Iterator[Place]:
    for parameter in (heard.trace.header("content-type") or "").lower().split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip(" \"'") not in ("utf-8", "utf8"):
            yield Place(None, _show(heard, "content-type"), "Content-Type: text/event-stream; charset=utf-8")


def _proxy_buffering(heard: Heard) -> Iterator[Place]:
    value = heard.trace.header("x-accel-buffering") or ""
    if value.strip().lower() != "no":
        yield Place(None, _show(heard, "x-accel-buffering"), "X-Accel-Buffering: no")


def _cache_control(heard: Heard) -> Iterator[Place]:
    value = (heard.trace.header("cache-control") or "").lower()
    # no-store forbids more than no-cache does.
    if "no-cache" not in value and "no-store" not in value:
        yield Place(None, _show(heard, "cache-control"), "Cache-Control: no-cache, no-transform")


def _compression(heard: Heard) -> Iterator[Place]:
    value = heard.trace.header("content-encoding")
    if value is not None and value.strip().lower() != "identity":
        yield Place(None, _show(heard, "content-encoding"), "no Content-Encoding on a stream")


def _chunked_terminated(heard: Heard) -> Iterator[Place]:
    is_chunked = "chunked" in (heard.trace.header("transfer-encoding") or "").lower()
    if is_chunked and not heard.trace.complete:
        yield Place(len(heard.frames) or None, "the body ended without its zero chunk", "0 CR LF CR LF at the end")


def _body_ends(heard: Heard) -> Iterator[Place]:
    if heard.dones and not heard.trace.complete:
        yield Place(heard.dones[0], "the body did not end after [DONE]", "the end of the body right after [DONE]")


def _show(heard: Heard, name: str) -> str:
    value = heard.trace.header(name)
    return f"no {name} header" if value is None else f"{name}: {value}"


RULES = (
    Rule(faults.CONTENT_TYPE, _content_type, (Form.STREAM, Form.INSTEAD), needs=("headers",)),
    Rule(faults.CHARSET_UTF8, _charset, needs=("headers",)),
    Rule(faults.NO_PROXY_BUFFERING, _proxy_buffering, needs=("headers",)),
    Rule(faults.CACHE_CONTROL, _cache_control, needs=("headers",)),
    Rule(faults.NO_BUFFERING_COMPRESSION, _compression, needs=("headers",)),
    Rule(faults.CHUNKED_TERMINATED, _chunked_terminated, needs=("headers", "complete")),
    Rule(faults.BODY_ENDS_AFTER_DONE, _body_ends, needs=("complete",)),
)
