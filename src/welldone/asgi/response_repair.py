"""Repair of one response of an application, without I/O. The ASGI and the WSGI middleware move the bytes.

A stream is repaired as it passes. Its head waits for the first event, for a limited time: if that is an error, it
becomes the status. A whole reply, and a response of the wrong kind (JSON where a stream was requested,
or the other way round), is held until its end, together with its head: status and headers depend on the body.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from welldone.asgi.error_body import repair_error_body
from welldone.core import sse
from welldone.core.answer_format import escape_line_breaks
from welldone.core.envelope import Endpoint
from welldone.core.events import Failure
from welldone.core.fields import openai_error_object, read_error
from welldone.core.lenient_json import parse_strict
from welldone.core.repair_log import RepairEntry, RepairLog, RepairResult
from welldone.core.text_filters import TextMode, ThinkMode
from welldone.dialects.messages.objects import anthropic_error_object
from welldone.library.arguments import ENDPOINT_PATHS, EndpointName, parse_endpoint
from welldone.library.iteration import INTERRUPTED
from welldone.library.linting import InvalidStreamError
from welldone.library.repairing import EndMode, StreamRepairer, repair_response, status_for_failure
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

REQUEST_LIMIT_BYTES = 32 * 2**20
"""Most bytes of a request body that are kept to read its fields: the limit of `welldone serve`, images included."""
REPLY_LIMIT_BYTES = 16 * 2**20
"""Most bytes of a held response; a longer one passes unchanged. Real replies have kilobytes, with audio some MB."""

_UNREADABLE = "bad_upstream_stream"
"""Code of the failure for a body that is no answer."""
_STREAM_TYPE, _JSON_TYPE = "text/event-stream", "application/json"
_UNSPECIFIC_TYPES = ("", "text/plain", "application/octet-stream", "application/x-ndjson")
"""Media types of applications that set none, or a wrong one."""
_PROMPT_MEMBERS = {"responses": ("input", "prompt"), "messages": ("messages",)}
"""Members of a request that show that a path such as /rooms/1/messages is one of a model."""
_LONG_MEMBERS = frozenset({"messages", "input"})
"""Members of a request that the repair does not read: decoding them would take most of the time."""
_ANSWER_MEMBERS = ("choices", "error", "output", "content")
"""Members of whole answers: one of chat and completions, of errors, of responses, of messages."""
_ANSWER_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\{|:|data:|event:|id:|retry:)")
"""Start of a JSON object or of a stream of events."""
_ERROR_FIRST = re.compile(
    rb"(?:event: response\.(?:created|in_progress)\ndata: .*\n\n)*"
    rb"(?:event: (?:error|response\.failed)\n|data: \{\"error\":)"
)
"""Start of a repaired stream that has an error before any part of an answer."""
_OTHER_CHARSET = re.compile(r";\s*charset\s*=\s*[\"']?(?!utf-?8\b)", re.IGNORECASE)

_END_RULES = frozenset({"err-not-silent", "msg-no-early-eof"})
"""Violated by an answer that ended without its end."""
_NO_END = (
    "the application ended an answer to %s without a finish reason, which was added (this is logged once). Send a last "
    'chunk with "finish_reason": "stop" or "tool_calls", and data: [DONE]; to /messages message_delta and message_stop'
)

HeaderList: TypeAlias = list[tuple[bytes, bytes]]
AppT = TypeVar("AppT")


class ResponseHead(NamedTuple):
    """Status and headers of a response."""

    status: int
    headers: HeaderList

    def value(self, name: str) -> str:
        """Return the value of a header; empty if it is absent."""
        key = name.lower().encode()
        return ", ".join(value.decode("latin-1") for header, value in self.headers if header.lower() == key)

    @property
    def media_type(self) -> str:
        """The Content-Type without its parameters, in lower case."""
        return self.value("content-type").partition(";")[0].strip().lower()

    def replace_headers(self, changes: Mapping[str, str | None]) -> "ResponseHead":
        """Return a head with other values; None removes a header."""
        names = {name.lower().encode() for name in changes}
        kept = [(name, value) for name, value in self.headers if name.lower() not in names]
        new = [(name.lower().encode(), value.encode()) for name, value in changes.items() if value is not None]
        return ResponseHead(self.status, kept + new)


class AnswerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one response, for the callback `report`."""

    path: str
    endpoint: EndpointName
    status: int
    """The status that was sent."""
    is_stream: bool
    """Whether it was sent as a stream."""
    is_complete: bool
    """Whether it was sent to its end: not if the client disconnected or the application raised an exception."""
    result: RepairResult
    """Usage, failure and repairs, with one entry per rule."""


class RepairSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a middleware; see `welldone.asgi.RepairMiddleware`."""

    paths: Mapping[str, EndpointName] | None = None
    think: ThinkMode = "no"
    text: TextMode = "delta"
    strict: bool = False
    report: Callable[[AnswerReport], object] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.paths, Mapping | None):
            raise TypeError('paths must be a dict from the end of a path to its endpoint: {"/ask": "chat"}')
        for path, endpoint in (self.paths or {}).items():
            if not path.startswith("/"):
                raise ValueError(f"paths: {path!r} must start with a slash")
            parse_endpoint(endpoint)
        if self.report is not None and not callable(self.report):
            raise TypeError(f"report must be a function that takes an AnswerReport; got {self.report!r}")
        StreamRepairer(think=self.think, text=self.text)  # raises ValueError for an unknown mode


class RepairCounters:
    """Counters of a middleware, since the start of the process."""

    def __init__(self) -> None:
        self.answers: int = 0
        """Responses that were examined."""
        self.repaired: int = 0
        """Responses in which something was repaired."""
        self.failed: int = 0
        """Responses that were, or ended with, an error."""
        self.repairs: Counter[str] = Counter()
        """Number of repairs by rule id."""

    def add(self, report: AnswerReport) -> None:
        """Count a response."""
        self.answers += 1
        self.repaired += bool(report.result.repairs)
        self.failed += report.result.failure is not None
        self.repairs.update({entry.rule: entry.count for entry in report.result.repairs})


class _Mode(Enum):
    UNCHANGED = auto()
    STREAM = auto()
    """Repaired as it passes."""
    HELD = auto()
    """Repaired at its end."""


class ResponseRepair:
    """Repairs one response: call `start` with the head, `feed` with each part of the body, then `finish`.

    The head is to be sent as soon as `head` is set: after `start`, with the first event of a stream, or after `finish`
    if the response is held.
    """

    def __init__(self, settings: RepairSettings, endpoint: EndpointName, method: str, path: str) -> None:
        self.head: ResponseHead | None = None
        """The head to send; None while it is unknown."""
        self.feed: Callable[[bytes], bytes] | None = None
        """Returns the bytes to send for a part of the body; None if the body is not changed."""
        self._settings = settings
        self._endpoint: EndpointName = endpoint
        self._path = path
        self._is_post = method == "POST"
        self._mode = _Mode.UNCHANGED
        self._received = ResponseHead(0, [])
        self._request: dict[str, Any] | None = None
        self._repairer: StreamRepairer | None = None
        self._result = RepairResult(usage=None, failure=None, repairs=())
        self._header_repairs: list[RepairEntry] = []
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._trace_parts: list[bytes] = []
        self._is_finished = False

    def start(self, status: int, headers: Iterable[Iterable[bytes]], request: bytes | None) -> None:
        """Read the head of the response. `request` is the body of the request; None if it is unknown."""
        self._received = ResponseHead(status, [(bytes(name), bytes(value)) for name, value in headers])
        self._request = _read_request(request, is_whole=self._settings.strict)
        self._mode = self._choose_mode()
        self._header_repairs = []
        if self._mode is _Mode.UNCHANGED:
            self.head, self.feed = self._received, None
        elif self._mode is _Mode.HELD:
            self._set_feed(self._hold)
        else:
            self._repairer = self._make_repairer()
            self._set_feed(self._feed_first)

    def open(self) -> None:
        """Set the head of a stream whose first event takes too long."""
        if self.is_opening:
            self.head = self._stream_head()
            self._set_feed(self._feed_stream())

    def finish(self, ends: EndMode = "close") -> bytes:
        """Return the last bytes to send, after the last part of the body; `ends` for a held one, see `repair`."""
        if self._is_finished or self._mode is _Mode.UNCHANGED:
            return b""
        self._is_finished = True
        if self._mode is _Mode.STREAM:
            assert self._repairer is not None
            out = self._repairer.close()
            return out if self.head is not None else self._begin(out)
        body, self._held = b"".join(self._held), []
        return self._finish_error(body) if self._received.status >= 400 else self._finish_whole(body, ends)

    def fail(self, code: str | None = None) -> bytes:
        """Return the bytes that end a stream that the application broke off; `code` is that of the error."""
        if self._is_finished or self._repairer is None:
            return b""
        self._is_finished = True
        return self._repairer.fail(INTERRUPTED, code=code)

    @property
    def is_opening(self) -> bool:
        """Whether the head of a stream waits for its first event."""
        return self._mode is _Mode.STREAM and self.head is None

    @property
    def is_examined(self) -> bool:
        """Whether the response is one that is repaired."""
        return self._mode is not _Mode.UNCHANGED

    def report(self, *, is_complete: bool) -> AnswerReport:
        """Return what happened to the response."""
        result = self._result if self._repairer is None else self._repairer.result
        head = self.head or self._received
        return AnswerReport(
            path=self._path,
            endpoint=self._endpoint,
            status=head.status,
            is_stream=head.media_type == _STREAM_TYPE,
            is_complete=is_complete,
            result=msgspec.structs.replace(result, repairs=[*self._header_repairs, *result.repairs]),
        )

    def require_valid(self) -> None:
        """Judge the response as the application sent it (`strict` only).

        Raises:
            InvalidStreamError: it breaks a rule.
        """
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self._received.headers]
        report = judge(
            Trace(
                body=b"".join(self._trace_parts),
                endpoint=self._endpoint,
                request=self._request,
                status=self._received.status,
                headers=tuple(headers),
                complete=True,
                chunk_sizes=tuple(len(chunk) for chunk in self._trace_parts if chunk),
            )
        )
        if report.findings:
            raise InvalidStreamError(report)

    # Head.

    def _choose_mode(self) -> _Mode:
        status, media_type = self._received.status, self._received.media_type
        request = self._request or {}
        is_compressed = self._received.value("content-encoding").lower() not in ("", "identity")
        if is_compressed or self._is_foreign() or status < 200 or 300 <= status < 400 or status in (204, 205):
            return _Mode.UNCHANGED
        is_json = media_type == _JSON_TYPE or media_type.endswith("+json")
        if status >= 400:
            return _Mode.HELD if is_json or media_type == "text/plain" else _Mode.UNCHANGED
        if not self._is_post:
            return _Mode.UNCHANGED
        is_stream = media_type == _STREAM_TYPE or (self._request is not None and media_type in _UNSPECIFIC_TYPES)
        # Some applications accept values such as "yes": what they sent shows how they understood it.
        if is_stream and (self._request is None or request.get("stream") not in (None, False)):
            return _Mode.STREAM
        return _Mode.HELD if is_stream or is_json else _Mode.UNCHANGED

    def _is_foreign(self) -> bool:
        """Whether the request is one of another API, whose path happens to end like that of a model."""
        members = _PROMPT_MEMBERS.get(self._endpoint)
        is_certain = members is None or self._settings.paths is not None
        if is_certain or self._path.rstrip("/").endswith(f"/v1/{self._endpoint}"):
            return False
        return self._request is None or self._request.keys().isdisjoint(members or ())

    def _stream_head(self) -> ResponseHead:
        """The head of a stream: its headers, and no length."""
        received, changes = self._received, dict[str, str | None]({"Content-Length": None})
        caching, buffering = received.value("cache-control").lower(), received.value("x-accel-buffering").lower()
        violations = {
            "http-content-type": ("Content-Type", received.media_type != _STREAM_TYPE),
            "http-charset-utf8": ("Content-Type", _OTHER_CHARSET.search(received.value("content-type")) is not None),
            "http-cache-control": ("Cache-Control", "no-cache" not in caching and "no-store" not in caching),
            "http-no-proxy-buffering": ("X-Accel-Buffering", buffering.strip() != "no"),
        }
        for rule, (name, is_violated) in violations.items():
            if is_violated:
                self._record_header(rule, name)
                changes[name] = dict(sse.HEADERS)[name]
        return received.replace_headers(changes)

    def _record_header(self, rule: str, name: str) -> None:
        value = self._received.value(name)
        observed = f"{name.lower()}: {value}" if value else f"no {name.lower()} header"
        self._header_repairs.append(RepairEntry(rule, 1, 0, 0, observed))

    def _record_status(self, rule: str) -> None:
        self._header_repairs.append(RepairEntry(rule, 1, 0, 0, f"status {self._received.status}"))

    # Body.

    def _make_repairer(self) -> StreamRepairer:
        think, text = self._settings.think, self._settings.text
        return StreamRepairer(self._endpoint, request=self._request, think=think, text=text, ends="close")

    def _set_feed(self, feed: Callable[[bytes], bytes]) -> None:
        self.feed = feed
        if self._settings.strict:
            self.feed = partial(self._record, feed)

    def _record(self, feed: Callable[[bytes], bytes], data: bytes) -> bytes:
        self._trace_parts.append(data)
        return feed(data)

    def _feed_stream(self) -> Callable[[bytes], bytes]:
        assert self._repairer is not None
        return self._feed_until_done if self._endpoint in ("chat", "completions") else self._repairer.feed

    def _feed_first(self, data: bytes) -> bytes:
        """Repair the first parts of a stream, until there is something to send."""
        out = self._feed_stream()(data)
        return self._begin(out) if out else b""

    def _begin(self, out: bytes) -> bytes:
        """Set the head by the first bytes of a stream. If they are an error, it is sent as JSON with a status."""
        assert self._repairer is not None
        if _ERROR_FIRST.match(out) is None:
            self.open()
            return out
        self._is_finished = True  # nothing relevant follows an error
        self._set_feed(lambda _: b"")
        self._repairer.close()
        failure = self._repairer.result.failure or Failure(INTERRUPTED)
        is_anthropic = self._endpoint == "messages"
        error = anthropic_error_object(failure) if is_anthropic else openai_error_object(failure)
        body, status = escape_line_breaks(msgspec.json.encode(error)), status_for_failure(failure)
        self._record_status("err-status-before-stream")
        changes = {"Content-Type": _JSON_TYPE, "Content-Length": str(len(body))}
        self.head = ResponseHead(status, self._received.headers).replace_headers(changes)
        return body

    def _feed_until_done(self, data: bytes) -> bytes:
        """Repair a part of a stream of chunks.

        The end is sent at `[DONE]`, and not when the body ends: the application may have other work to do in between.
        """
        assert self._repairer is not None
        if self._is_finished:
            return b""
        out = self._repairer.feed(data)
        if b"[DONE]" in data and self._repairer.is_done:
            self._is_finished = True
            out += self._repairer.close()
        return out

    def _hold(self, data: bytes) -> bytes:
        if self._mode is _Mode.UNCHANGED:
            return data
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes <= REPLY_LIMIT_BYTES:
            return b""
        self._mode, self.head = _Mode.UNCHANGED, self._received
        return b"".join(self._held)

    def _finish_error(self, body: bytes) -> bytes:
        log = RepairLog(self._endpoint)
        sent, failure = repair_error_body(body, Endpoint(self._endpoint), self._received.status, log)
        self._result = RepairResult(usage=None, failure=failure, repairs=log.entries())
        return self._send_json(body, sent, self._received.status)

    def _finish_whole(self, body: bytes, ends: EndMode) -> bytes:
        think, text = self._settings.think, self._settings.text
        repaired = repair_response(body, self._endpoint, request=self._request, think=think, text=text, ends=ends)
        failure = repaired.result.failure
        if not self._is_answer(body) or (failure is not None and failure.code == _UNREADABLE):
            self._mode, self.head = _Mode.UNCHANGED, self._received
            return body
        self._result = repaired.result
        if failure is not None or (self._request or {}).get("stream") is not True:
            return self._send_json(body, repaired.body, repaired.status)
        self._repairer = self._make_repairer()
        self.head = self._stream_head()
        return self._repairer.feed(body) + self._repairer.close()

    def _is_answer(self, body: bytes) -> bool:
        """Whether a body is an answer, an error or a stream, and not something else that the application sends here."""
        value = parse_strict(body)
        if not isinstance(value, dict):
            return _ANSWER_START.match(body) is not None
        return not value.keys().isdisjoint(_ANSWER_MEMBERS) or read_error(value, b"", RepairLog()) is not None

    def _send_json(self, received: bytes, sent: bytes, status: int) -> bytes:
        """Set the head of a whole reply. If the repair changed no value, the received bytes are sent."""
        if parse_strict(received) == parse_strict(sent):
            sent = received
        if status != self._received.status:
            self._record_status("ns-error-status")
        changes: dict[str, str | None] = {"Content-Length": str(len(sent))}
        if self._received.media_type != _JSON_TYPE:
            self._record_header("ns-content-type-json", "Content-Type")
            changes["Content-Type"] = _JSON_TYPE
        self.head = ResponseHead(status, self._received.headers).replace_headers(changes)
        return sent


def _read_request(body: bytes | None, *, is_whole: bool) -> dict[str, Any] | None:
    """Decode the members of a request that the repair reads; None if it is no JSON object."""
    if body is None:
        return None
    try:
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        return {
            name: msgspec.json.decode(value) if is_whole or name not in _LONG_MEMBERS else None
            for name, value in members.items()
        }
    except (ValueError, RecursionError):  # msgspec's errors are subclasses of ValueError
        return None


class AnswerMiddleware(Generic[AppT]):
    """Common part of the middlewares: parameters, counters and reports.

    Args:
        app: the application.
        paths: endpoints by the end of a path, such as `{"/ask": "chat"}`; default: those of the APIs.
        think: moves reasoning out of the text, see `StreamRepairer`.
        text: `cumulative` if each chunk repeats the whole text.
        report: called with an `AnswerReport` after each answer.
        strict: for tests: raises `InvalidStreamError` after an answer that breaks a rule.
    """

    def __init__(
        self,
        app: AppT,
        *,
        paths: Mapping[str, EndpointName] | None = None,
        think: ThinkMode = "no",
        text: TextMode = "delta",
        report: Callable[[AnswerReport], object] | None = None,
        strict: bool = False,
    ) -> None:
        self.app = app
        self.counters: RepairCounters = RepairCounters()
        """Numbers of answers and repairs. With several threads they may be a little too low."""
        self._settings = RepairSettings(paths=paths, think=think, text=text, report=report, strict=strict)
        # The longest first: /chat/completions ends with /completions.
        by_path = ENDPOINT_PATHS if paths is None else paths
        by_length = sorted(by_path.items(), key=lambda item: len(item[0]), reverse=True)
        self._endpoints = [(path.rstrip("/"), endpoint) for path, endpoint in by_length]
        self._suffixes = tuple(path + end for path, _ in self._endpoints for end in ("", "/"))
        self._has_logged = False

    def _find_endpoint(self, method: str, path: str) -> EndpointName | None:
        """Return the endpoint of a request, by the end of its path; None if its response is not examined."""
        if not path.endswith(self._suffixes) or method in ("HEAD", "OPTIONS"):
            return None
        path = path.rstrip("/")
        return next(endpoint for suffix, endpoint in self._endpoints if path.endswith(suffix))

    def _report(self, repair: ResponseRepair, *, is_complete: bool) -> None:
        """Count and report an answer, if it was examined."""
        if repair.is_examined:
            report = repair.report(is_complete=is_complete)
            self.counters.add(report)
            is_ended = report.result.failure is None and any(fix.rule in _END_RULES for fix in report.result.repairs)
            if is_ended and not self._has_logged:
                self._has_logged = True
                logging.getLogger("welldone").warning(_NO_END, report.path)
            if self._settings.report is not None:
                self._settings.report(report)

    def _require_valid(self, repair: ResponseRepair, *, is_complete: bool) -> None:
        """With `strict`, raise `InvalidStreamError` if an answer that was sent to its end breaks a rule."""
        if self._settings.strict and repair.is_examined and is_complete:
            repair.require_valid()
