"""The server log: one line per event, short for a person, as text or as JSON, without secrets.

It is based on `logging`, so that warnings of libraries appear too. The formatter redacts keys and escapes characters
that could break a line or control a terminal. A thread writes the lines; if it cannot keep up (a full pipe, a slow
disk), lines are dropped and counted: the server never waits for its log.
"""

import contextlib
import logging
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal, Protocol, Self, TypeAlias, cast

import msgspec

from welldone.config.server import ServeSettings
from welldone.http.redaction import HIDDEN, any_of_pattern
from welldone.server.observe.short_line import ShortLines, has_failed

LogStyle: TypeAlias = Literal["short", "text", "json"]
FieldValue = str | int | float | bool | None | Sequence[str]

LOGGER = logging.getLogger("welldone")

_MESSAGE_LIMIT = 4_096
_VALUE_LIMIT = 1_024
_LIST_LIMIT = 32  # items, such as the rules that a stream violates
_TRACE_LIMIT = 6_144  # a traceback of 40 frames
_REDACTION_MARGIN = 8
"""Redact this multiple of the limit before truncating: a secret cut in two would not be recognised."""

_LINES_LIMIT = 4_096
"""Lines that may wait for the writer: at most 50 MB, typically one."""

_BATCH = 64  # lines per write
_GATHER_S = 0.05  # between two writes: a wake-up of the writer costs more than a line
_CACHED_TEXTS, _CACHED_LENGTH = 1_024, 128  # field values that are redacted once

# Secrets follow a known name, or have a known form: keys of OpenAI, welldone and Hugging Face.
_NAMED_SECRET = r"""
    (?P<name>
        \bbearer\s+
      | (?:authorization|api[-_]key)["']?\s*[:=,]\s*(?:b?["'])?(?:(?:bearer|basic)\s+)?
      | [?&](?:key|token)=
    ) [^\s"',;&]+
"""
_SECRET_FORMS = r"""
    (?<=://) [^\s/@"']{1,256} (?=@)
  | \b(?:sk|wd)-[a-z0-9_-]{8,}
  | \bhf_[a-z0-9]{8,}
"""
_SECRET_PARTS = ("bearer", "authorization", "api-key", "api_key", "key=", "token=", "://", "sk-", "wd-", "hf_")
"""Each of these secrets contains one of them, in lower case. A test for them is faster than the pattern."""

# Besides C0 controls: C1 controls, line and paragraph separators, and bidirectional controls, which a terminal may obey
# or a reader may take for the end of a line.
_UNSAFE_CHARACTERS = {
    **{code: f"\\x{code:02x}" for code in range(0x7F, 0xA0)},
    **{code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))},
}
_CONTROLS = (
    {code: f"\\x{code:02x}" for code in range(0x20)} | {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"} | _UNSAFE_CHARACTERS
)
_UNQUOTED = re.compile(r"[\w./:@+,-]+")


class RequestLogEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The log fields of a request. None of them can contain a body or a header."""

    request_id: str
    principal: str
    method: str
    path: str
    status: int
    duration_ms: float
    model: str | None = None
    endpoint: str | None = None
    """As in the metrics: `chat`, `responses`, `embeddings`."""
    ttft_ms: float | None = None
    queued_ms: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish: str | None = None
    error: str | None = None
    """The code of the error that ended it."""
    reason: str | None = None
    """The message of the error, if the server is at fault."""
    requested_model: str | None = None
    """The model of the request, if it does not exist or is not allowed for the key."""
    has_left: bool = False
    """Whether the client disconnected before the end."""
    repaired: tuple[str, ...] = ()
    """The rules that the upstream's stream violated."""
    upstream: str | None = None
    failed: tuple[str, ...] = ()
    """Failed attempts as `NAME:OUTCOME`, such as `lab:timeout`."""
    continued: tuple[str, ...] = ()
    """How the answer was continued after a failure: `prefill`, `replay`, or `none` if there was no way."""
    broken_json: int | None = None
    """Texts and tool call arguments with invalid JSON."""
    ignored_tools: int | None = None
    """Tools of the request that were dropped (`--unknown-tools`)."""
    ignored_fields: tuple[str, ...] | None = None
    resumed_after: int | None = None
    """Number of the last event that the client of a resumed stream has."""
    printed_calls: int | None = None
    """Choices that look like a tool call written as text."""
    converted_calls: int | None = None
    """Choices whose text became a tool call (`json_tool_calls`)."""
    trace_id: str | None = None
    """Of the distributed trace, in 32 hexadecimal digits."""

    @property
    def has_failed(self) -> bool:
        """Whether the server or the upstream is at fault for an error."""
        return has_failed(self.status, self.error)


_REQUEST = "request"


def log_request(entry: RequestLogEntry) -> None:
    """Log a finished request."""
    _log(logging.WARNING if entry.has_failed else logging.INFO, _REQUEST, entry)


def record_fields(record: logging.LogRecord) -> dict[str, FieldValue]:
    """The fields of a record."""
    fields = record.__dict__.get("fields") or {}
    if isinstance(fields, RequestLogEntry):  # converted here, in the thread of the writer
        path = fields.path.partition("?")[0]  # the query may contain a key
        fields = msgspec.to_builtins(fields) | {"path": path}
    return cast("dict[str, FieldValue]", fields)


def json_line(level: int, message: str, fields: Mapping[str, FieldValue]) -> str:
    """A JSON log line without redaction: for a generated key that the user must see."""
    line = {"ts": _time(time.time()), "level": logging.getLevelName(level).lower(), "event": message, **fields}
    return msgspec.json.encode(line).decode()


def event(
    level: int, message: str, fields: Mapping[str, FieldValue] | None = None, *, error: BaseException | None = None
) -> None:
    """Log an event: a short message and fields."""
    _log(level, message, dict(fields or {}), error)


def _log(level: int, message: str, fields: object, error: BaseException | None = None) -> None:
    if LOGGER.isEnabledFor(level):
        # `LOGGER.log` would also look for the calling function in the stack.
        exc_info = None if error is None else (type(error), error, error.__traceback__)
        record = LOGGER.makeRecord(LOGGER.name, level, "", 0, message, (), exc_info, extra={"fields": fields})
        LOGGER.handle(record)


class Redactor:
    """Replaces secrets in texts: the configured ones, and strings that look like keys."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.reload(secrets)

    def reload(self, secrets: Iterable[str]) -> None:
        """Replace another set of secrets from now on."""
        # Each secret as it is, and as it appears in Python's and JSON's quotes.
        spellings = {
            spelling
            for secret in secrets
            if secret
            for spelling in (secret, repr(secret)[1:-1], msgspec.json.encode(secret).decode()[1:-1])
        }
        self._spellings = tuple(spellings)
        known = [f"(?-i:{any_of_pattern(spellings)})"] if spellings else []
        self._secret = re.compile("|".join([*known, _NAMED_SECRET, _SECRET_FORMS]), re.IGNORECASE | re.VERBOSE)

    def redact(self, text: str) -> str:
        """The text without secrets."""
        if text.isascii():  # some other letters match ASCII letters if case is ignored
            lowered = text.lower()
            if not (any(map(lowered.__contains__, _SECRET_PARTS)) or any(map(text.__contains__, self._spellings))):
                return text
        return self._secret.sub(lambda match: (match["name"] or "") + HIDDEN, text)

    def line_of(self, text: str, limit: int) -> str:
        """The first `limit` characters, redacted, on one line without control characters."""
        return _escape_unsafe(self.start_of(text, limit)).translate(_CONTROLS)

    def start_of(self, text: str, limit: int) -> str:
        """The first `limit` characters, redacted."""
        redacted = self.redact(text[: limit * _REDACTION_MARGIN])
        return redacted if len(redacted) <= limit else f"{redacted[:limit]}…"

    def end_of(self, text: str, limit: int) -> str:
        """The last `limit` characters, redacted: for tracebacks, whose end matters most."""
        redacted = self.redact(text[-limit * _REDACTION_MARGIN :])
        return redacted if len(redacted) <= limit else f"…{redacted[-limit:]}"


class LineFormatter(logging.Formatter):
    """Formats records. Only the formatter handles unredacted texts."""

    def __init__(self, style: LogStyle, redactor: Redactor, *, has_colors: bool = False) -> None:
        super().__init__()
        self._is_json = style == "json"
        self._redactor = redactor
        self._short = None
        if style == "short":
            self._short = ShortLines(redactor.line_of, self._shown_field, has_colors=has_colors)
        self._clean_text = lru_cache(_CACHED_TEXTS)(self._redacted_text)  # paths, models and rules repeat
        self._shown_text = lru_cache(_CACHED_TEXTS)(lambda text: _quote(self._redacted_text(text)))

    def reload_secrets(self, secrets: Iterable[str]) -> None:
        """Hide another set of secrets from now on."""
        self._redactor.reload(secrets)
        self._clean_text.cache_clear()
        self._shown_text.cache_clear()

    def format(self, record: logging.LogRecord) -> str:
        """The line or lines, without the final newline."""
        created, level, fields = record.created, record.levelname.lower(), record_fields(record)
        try:
            message = record.getMessage()
        except (TypeError, ValueError, KeyError):
            message = str(record.msg)  # a library passed the wrong arguments
        if record.name != LOGGER.name:
            fields = {"logger": record.name, **fields}
        trace = self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
        trace = _escape_unsafe(self._redactor.end_of(trace, _TRACE_LIMIT)) if trace else ""
        is_short = len(message) <= _CACHED_LENGTH
        text = self._clean_text(message) if is_short else self._redacted_text(message, _MESSAGE_LIMIT)
        if self._is_json:
            line: dict[str, FieldValue] = {"ts": _time(created), "level": level, "event": text}
            clean_fields = {name: self._value(value) for name, value in fields.items()}
            return msgspec.json.encode(line | clean_fields | ({"exception": trace} if trace else {})).decode()
        if self._short is not None and message == _REQUEST and "duration_ms" in fields:
            return self._short.request(created, fields)
        text = text.translate(_CONTROLS)
        shown = " ".join([f"{name}={self._shown_value(value)}" for name, value in fields.items()])
        if self._short is not None:
            head = self._short.event(created, level, text, shown)
        else:
            head = f"{_time(created)} {level:<7} {text} {shown}".rstrip()
        # Log lines begin with a time; tracebacks are indented, so that their text cannot imitate one.
        return "\n".join([head, *(f"    {row.translate(_CONTROLS)}" for row in trace.split("\n") if row)])

    def _value(self, value: FieldValue) -> FieldValue:
        if isinstance(value, str):
            return self._clean_text(value) if len(value) <= _CACHED_LENGTH else self._redacted_text(value)
        if isinstance(value, float):
            return round(value, 3)
        if value is None or isinstance(value, int):
            return value
        return [self._redacted_text(element) for element in value[:_LIST_LIMIT]]

    def _shown_field(self, name: str, value: FieldValue) -> str:
        return f"{name}={self._shown_value(value)}"

    def _shown_value(self, value: FieldValue) -> str:
        value_type = type(value)
        if value_type is int:
            return str(value)
        if isinstance(value, str):
            return self._shown_text(value) if len(value) <= _CACHED_LENGTH else _quote(self._redacted_text(value))
        if isinstance(value, float):
            return f"{round(value, 3):g}"
        if value is None:
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        return _quote(",".join(cast("list[str]", self._value(value))))

    def _redacted_text(self, text: str, limit: int = _VALUE_LIMIT) -> str:
        return _escape_unsafe(self._redactor.start_of(text, limit))


def _time(seconds: float) -> str:
    milliseconds = round(seconds * 1000)
    return f"{_format_second(milliseconds // 1000)}.{milliseconds % 1000:03}Z"


@lru_cache(maxsize=4)
def _format_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat().removesuffix("+00:00")


def _escape_unsafe(text: str) -> str:
    """Escape unsafe characters and lone surrogates."""
    if text.isascii() and "\x7f" not in text:
        return text
    return text.encode(errors="backslashreplace").decode().translate(_UNSAFE_CHARACTERS)


def _quote(text: str) -> str:
    return text if _UNQUOTED.fullmatch(text) else msgspec.json.encode(text).decode()


class LogStream(Protocol):
    """A text stream."""

    def write(self, text: str, /) -> object:
        """Write text."""

    def flush(self) -> None:
        """Flush the buffer."""


class LogHandler(logging.Handler):
    """Writes all log records of the process to a stream, from `start` to `close`."""

    def __init__(
        self, formatter: LineFormatter | None = None, *, level: int = logging.INFO, stream: LogStream | None = None
    ) -> None:
        super().__init__()
        self._overflowed = 0  # counted under the handler's lock
        self._unwritten = 0  # counted by the writer thread
        self._level = level
        self._stream: LogStream = sys.stderr if stream is None else stream
        self._lines: queue.SimpleQueue[str | logging.LogRecord | None] = queue.SimpleQueue()  # None: the end
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._is_closing = threading.Event()
        self._levels: tuple[int, int] | None = None
        self._formatter = LineFormatter("text", Redactor()) if formatter is None else formatter
        self.setFormatter(self._formatter)

    @property
    def dropped(self) -> int:
        """Lines lost because the writer did not keep up or could not write."""
        return self._overflowed + self._unwritten

    def reload_secrets(self, secrets: Iterable[str]) -> None:
        """Hide another set of secrets from now on."""
        self._formatter.reload_secrets(secrets)

    def start(self) -> None:
        """Start to handle records: welldone's from the configured level on, those of libraries from warnings on."""
        root = logging.getLogger()
        self._levels = root.level, LOGGER.level
        root.setLevel(max(logging.WARNING, self._level))
        LOGGER.setLevel(self._level)
        root.addHandler(self)
        self._thread.start()

    def close(self, within_s: float = 2.0) -> None:
        """Stop and flush, up to the timeout: the stream may be blocked."""
        if self._levels is not None:
            root = logging.getLogger()
            root.removeHandler(self)
            root.setLevel(self._levels[0])
            LOGGER.setLevel(self._levels[1])
            self._levels = None
            self._lines.put(None)
            self._is_closing.set()
            self._thread.join(within_s)
            if self._thread.is_alive() and self._lines.qsize() > _LINES_LIMIT:
                with contextlib.suppress(queue.Empty):
                    while self._lines.get_nowait() is not None:
                        self._overflowed += 1
                self._lines.put(None)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the record to the writer, or drop it."""
        try:
            # The writer formats our own records. Arguments of a library may change, and tracebacks keep frames alive.
            is_ours = record.name == LOGGER.name and record.exc_info is None
            if self._lines.qsize() >= _LINES_LIMIT:
                self._overflowed += 1
            else:
                self._lines.put(record if is_ours else self.format(record))
        except Exception:  # noqa: BLE001 - an unprintable argument must not fail a request
            self._overflowed += 1

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_all(self) -> None:
        """The writer thread: format and write lines in batches. The first line after a pause is written at once."""
        is_open = True
        reported = 0
        written_at = 0.0
        while is_open:
            batch = [self._lines.get()]
            if (left_s := written_at + _GATHER_S - time.monotonic()) > 0 and self._lines.qsize() < _BATCH:
                self._is_closing.wait(left_s)
            while batch[-1] is not None and len(batch) < _BATCH and not self._lines.empty():
                batch.append(self._lines.get())
            is_open = batch[-1] is not None
            lines = [line if isinstance(line, str) else self.format(line) for line in batch if line is not None]
            if self.dropped > reported:
                reported = self.dropped
                values = {"name": LOGGER.name, "levelno": logging.WARNING, "levelname": "WARNING"}
                loss = {**values, "msg": "log lines were dropped", "fields": {"lines": reported}}
                lines.append(self.format(logging.makeLogRecord(loss)))
            try:
                self._stream.write("".join(f"{line}\n" for line in lines))
                self._stream.flush()
            except (OSError, ValueError):  # a broken pipe, or a closed stream
                self._unwritten += len(lines)
            written_at = time.monotonic()


_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def log_style(settings: ServeSettings) -> LogStyle:
    """The format of log lines: `auto` is for the reader of stderr, a person or a program."""
    if settings.log_format == "auto":
        return "short" if sys.stderr.isatty() else "text"
    return cast("LogStyle", settings.log_format)


def log_level(settings: ServeSettings) -> int:
    """The minimum level of log lines."""
    return logging.ERROR if settings.quiet else _LEVELS[settings.log_level]


def make_formatter(settings: ServeSettings, secrets: Iterable[str]) -> LineFormatter:
    """A formatter for these settings."""
    # Colours where stderr is a terminal with them; see https://no-color.org.
    has_colors = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return LineFormatter(log_style(settings), Redactor(secrets), has_colors=has_colors)


def make_log_handler(settings: ServeSettings, secrets: Iterable[str], stream: LogStream | None = None) -> LogHandler:
    """A log handler for these settings, not started."""
    return LogHandler(make_formatter(settings, secrets), level=log_level(settings), stream=stream)
