"""The log: one line for each thing that happened, for people or for programs, without secrets.

It stands on `logging`, so that libraries' warnings get in too. What a line says is cleaned where it is made: keys are
blotted out, and no character is left that could break a line or steer a terminal. A thread writes the lines, and where
it cannot keep up (a full pipe, a slow disk) lines are dropped and counted: the server never waits for its log.
"""

import contextlib
import logging
import queue
import re
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal, Protocol, Self, cast

import msgspec

from welldone.config.server import ServeSettings
from welldone.http.redaction import HIDDEN, any_of_pattern

FieldValue = str | int | float | bool | None | Sequence[str]

LOGGER = logging.getLogger("welldone")

_MESSAGE_LIMIT = 4_096
_VALUE_LIMIT = 1_024
_LIST_LIMIT = 32  # rules that one stream broke; more say nothing more
_TRACE_LIMIT = 6_144  # a traceback of forty calls
_REDACTION_MARGIN = (
    8  # so many times the limit is cleaned before it is cut: a secret that is cut in two would not be known
)

_LINES_LIMIT = 4_096
"""Lines that may wait to be written. At the limits above they have 50 MB at worst, and usually one."""

_BATCH = 64  # lines for one write

# A secret has a name before it, or a form that is known: those of OpenAI's keys, of ours and of Hugging Face's.
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

# What a terminal may obey or a reader may take for the end of a line, besides the controls below space: the rest of the
# controls, the separators of lines and paragraphs, and the marks that turn the direction of writing.
_UNSAFE_CHARACTERS = {
    **{code: f"\\x{code:02x}" for code in range(0x7F, 0xA0)},
    **{code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))},
}
_CONTROLS = (
    {code: f"\\x{code:02x}" for code in range(0x20)} | {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"} | _UNSAFE_CHARACTERS
)
_UNQUOTED = re.compile(r"[\w./:@+,-]+")


class RequestLogEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is logged of a request, and no more: there is no field that a body or a header could get into."""

    request_id: str
    principal: str
    method: str
    path: str
    status: int
    duration_ms: float
    model: str | None = None
    ttft_ms: float | None = None
    queued_ms: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish: str | None = None
    error: str | None = None
    """The code of the error that ended it."""
    reason: str | None = None
    """Its words, where the fault is not the client's."""
    requested_model: str | None = None
    """The name of a model that there is not, or not for this client."""
    has_left: bool = False
    """Whether the client left before the end."""
    repaired: tuple[str, ...] = ()
    """The rules that the engine's stream broke."""
    upstream: str | None = None
    failed: tuple[str, ...] = ()
    """The attempts that failed, and how: `lab:timeout`."""
    broken_json: int | None = None
    """How many texts or arguments that should be JSON are not."""
    ignored_tools: int | None = None
    """How many tools of the request were left out (`--unknown-tools ignore`)."""
    printed_calls: int | None = None
    """How many answers look like a tool call that the model wrote as text."""


def log_request(entry: RequestLogEntry) -> None:
    """Log a request that is over."""
    path = entry.path.partition("?")[0]  # some put a key behind it
    fields: dict[str, FieldValue] = msgspec.to_builtins(msgspec.structs.replace(entry, path=path))
    is_bad = entry.status >= 500 or (entry.status == 200 and entry.error is not None)
    event(logging.WARNING if is_bad else logging.INFO, "request", fields)


def json_line(level: int, message: str, fields: Mapping[str, FieldValue]) -> str:
    """A line as the log writes it for programs, without redaction: for a key that the user must receive."""
    whole = {"ts": _time(time.time()), "level": logging.getLevelName(level).lower(), "event": message, **fields}
    return msgspec.json.encode(whole).decode()


def event(
    level: int, message: str, fields: Mapping[str, FieldValue] | None = None, *, error: BaseException | None = None
) -> None:
    """Log a thing that happened: a few words, and what belongs to them."""
    LOGGER.log(level, message, extra={"fields": dict(fields or {})}, exc_info=error)


class Redactor:
    """Blots secrets out of texts: those that it was told, and what looks like one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        spelled = {spelling for secret in secrets if secret for spelling in _spellings(secret)}
        # What was told counts as it is written; the rest in any case of letters.
        known = [f"(?-i:{any_of_pattern(spelled)})"] if spelled else []
        self._secret = re.compile("|".join([*known, _NAMED_SECRET, _SECRET_FORMS]), re.IGNORECASE | re.VERBOSE)

    def redact(self, text: str) -> str:
        """The text without secrets."""
        return self._secret.sub(lambda found: (found["name"] or "") + HIDDEN, text)

    def line_of(self, text: str, limit: int) -> str:
        """The first so many characters, clean, as one line that no terminal obeys."""
        return _escape_unsafe(self.start_of(text, limit)).translate(_CONTROLS)

    def start_of(self, text: str, limit: int) -> str:
        """The first so many characters, clean."""
        clean = self.redact(text[: limit * _REDACTION_MARGIN])
        return clean if len(clean) <= limit else f"{clean[:limit]}…"

    def end_of(self, text: str, limit: int) -> str:
        """The last so many characters, clean: of a traceback the end says most."""
        clean = self.redact(text[-limit * _REDACTION_MARGIN :])
        return clean if len(clean) <= limit else f"…{clean[-limit:]}"


def _spellings(secret: str) -> tuple[str, ...]:
    """The secret as it is, and as it stands in Python's and in JSON's quotes."""
    return secret, repr(secret)[1:-1], msgspec.json.encode(secret).decode()[1:-1]


class _LogLine(msgspec.Struct, frozen=True):
    """A record, clean and bounded."""

    time: str
    level: str
    message: str
    fields: dict[str, FieldValue]
    trace: str


class LineFormatter(logging.Formatter):
    """Makes the line of a record. Only this sees what a record held before it was cleaned."""

    def __init__(self, style: Literal["text", "json"], redactor: Redactor) -> None:
        super().__init__()
        self._write = _as_json if style == "json" else _as_text
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        fields = record.__dict__.get("fields", {})
        if record.name != LOGGER.name:
            fields = {"logger": record.name, **fields}
        trace = self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
        line = _LogLine(
            time=_time(record.created),
            level=record.levelname.lower(),
            message=_escape_unsafe(self._redactor.start_of(_record_message(record), _MESSAGE_LIMIT)),
            fields={name: self._value(value) for name, value in fields.items()},
            trace=_escape_unsafe(self._redactor.end_of(trace, _TRACE_LIMIT)),
        )
        return self._write(line)

    def _value(self, value: FieldValue) -> FieldValue:
        if isinstance(value, str):
            return _escape_unsafe(self._redactor.start_of(value, _VALUE_LIMIT))
        if isinstance(value, float):
            return round(value, 3)
        if value is None or isinstance(value, int):
            return value
        return [_escape_unsafe(self._redactor.start_of(one, _VALUE_LIMIT)) for one in value[:_LIST_LIMIT]]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _record_message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):
        return str(record.msg)  # the arguments do not fit: a library's mistake, and still a line


def _escape_unsafe(text: str) -> str:
    """The text with odd characters spelled out, and such as UTF-8 can write."""
    return text.encode(errors="backslashreplace").decode().translate(_UNSAFE_CHARACTERS)


def _as_json(line: _LogLine) -> str:
    whole: dict[str, FieldValue] = {"ts": line.time, "level": line.level, "event": line.message, **line.fields}
    if line.trace:
        whole["exception"] = line.trace
    return msgspec.json.encode(whole).decode()


def _as_text(line: _LogLine) -> str:
    said = " ".join(f"{name}={_format_value(value)}" for name, value in line.fields.items())
    head = f"{line.time} {line.level:<7} {line.message.translate(_CONTROLS)} {said}".rstrip()
    # Every line of ours begins with a time; what follows from an exception is set in, so that it cannot pose as one.
    trace = [f"    {part.translate(_CONTROLS)}" for part in line.trace.split("\n") if part]
    return "\n".join([head, *trace])


def _format_value(value: FieldValue) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:g}" if isinstance(value, float) else ",".join(value) if isinstance(value, list) else str(value)
    return text if _UNQUOTED.fullmatch(text) else msgspec.json.encode(text).decode()


class LogStream(Protocol):
    """Where lines are written."""

    def write(self, text: str, /) -> object:
        """Write a piece."""

    def flush(self) -> None:
        """Let it out."""


class LogHandler(logging.Handler):
    """Takes all records of the process from `start` to `close`, and writes them to a stream."""

    def __init__(
        self,
        *,
        style: Literal["text", "json"] = "text",
        level: int = logging.INFO,
        secrets: Iterable[str] = (),
        stream: LogStream | None = None,
    ) -> None:
        super().__init__()
        self._overflowed = 0  # counted by those who log, one at a time
        self._unwritten = 0  # counted by the thread
        self._level = level
        self._stream: LogStream = sys.stderr if stream is None else stream
        self._lines: queue.Queue[str | None] = queue.Queue(_LINES_LIMIT)
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._levels: tuple[int, int] | None = None
        self.setFormatter(LineFormatter(style, Redactor(secrets)))

    @property
    def dropped(self) -> int:
        """Lines that were lost because the writer did not keep up, or could not write."""
        return self._overflowed + self._unwritten

    def start(self) -> None:
        """Begin to take records: ours from the level on, those of libraries from warnings on."""
        root = logging.getLogger()
        self._levels = root.level, LOGGER.level
        root.setLevel(max(logging.WARNING, self._level))
        LOGGER.setLevel(self._level)
        root.addHandler(self)
        self._thread.start()

    def close(self, within_s: float = 2.0) -> None:
        """Stop, and write what waits; a stream that takes nothing is given up after a time."""
        if self._levels is not None:
            root = logging.getLogger()
            root.removeHandler(self)
            root.setLevel(self._levels[0])
            LOGGER.setLevel(self._levels[1])
            self._levels = None
            try:
                self._lines.put(None, timeout=within_s)
                self._thread.join(within_s)
            except queue.Full:
                self._discard_queued()
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Hand the line to the writer, or drop it."""
        try:
            self._lines.put_nowait(self.format(record))
        except Exception:  # noqa: BLE001  # a full queue, or an argument that cannot be shown: neither costs a request
            self._overflowed += 1

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _discard_queued(self) -> None:
        """Lose what waits, and tell the thread to end when it can."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._lines.get_nowait()
                self._overflowed += 1
        self._lines.put_nowait(None)

    def _write_all(self) -> None:
        """What the thread does: write what there is, up to a batch at a time, and wait for more."""
        is_open = True
        told = 0
        while is_open:
            batch = self._next_batch()
            is_open = batch[-1] is not None
            lines = [line for line in batch if line is not None]
            if self.dropped > told:
                told = self.dropped
                lines.append(self.format(_loss_record(told)))
            self._write_lines(lines)

    def _next_batch(self) -> list[str | None]:
        batch = [self._lines.get()]
        while batch[-1] is not None and len(batch) < _BATCH and not self._lines.empty():
            batch.append(self._lines.get())
        return batch

    def _write_lines(self, lines: list[str]) -> None:
        try:
            self._stream.write("".join(f"{line}\n" for line in lines))
            self._stream.flush()
        except (OSError, ValueError):  # the reader has gone, or the stream was closed
            self._unwritten += len(lines)


def _loss_record(lines: int) -> logging.LogRecord:
    says = {"name": LOGGER.name, "levelno": logging.WARNING, "levelname": "WARNING", "msg": "log lines were dropped"}
    return logging.makeLogRecord({**says, "fields": {"lines": lines}})


# How the log is written, by the settings of a server.


_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def log_style(settings: ServeSettings) -> Literal["text", "json"]:
    """For people, or for programs."""
    return cast('Literal["text", "json"]', settings.log_format)


def log_level(settings: ServeSettings) -> int:
    """The least that is logged."""
    return logging.ERROR if settings.quiet else _LEVELS[settings.log_level]


def make_log_handler(settings: ServeSettings, secrets: Iterable[str], stream: LogStream | None = None) -> LogHandler:
    """The log, which has not begun."""
    return LogHandler(style=log_style(settings), level=log_level(settings), secrets=secrets, stream=stream)
