"""Log lines for a person at a terminal: `12:06:19 200 chat role → gpu1 54 ms 3 tok repaired: delta-role-once`."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

_COLORS = {"good": "32", "warning": "33", "error": "31", "dim": "2"}
_LISTED = 3  # items of a list; the others are counted
_NAME_LIMIT, _ERROR_LIMIT, _REASON_LIMIT = 128, 64, 200  # characters
_HIDDEN = frozenset(
    {"request_id", "principal", "method", "path", "endpoint", "status", "duration_ms", "model", "requested_model"}
    | {"ttft_ms", "queued_ms", "prompt_tokens", "completion_tokens", "finish", "upstream", "repaired", "failed"}
    | {"continued", "error", "reason", "has_left", "trace_id"}
)
"""Fields with a place of their own in the line of a request, and those that a person rarely needs."""
_SECOND_MS, _MINUTE_MS = 1_000, 60_000

LineCleaner = Callable[[str, int], str]
"""Returns the first characters of a text, redacted, on one line and without control characters."""


def has_failed(status: int, error: str | None) -> bool:
    """Whether the server or the upstream is at fault for an error, perhaps after the status was sent."""
    return status >= 500 or (status == 200 and error is not None)


class ShortLines:
    """Formats log lines. `clean` must be applied to every text that does not come from here."""

    def __init__(self, clean: LineCleaner, show: Callable[[str, Any], str], *, has_colors: bool) -> None:
        self._clean = clean
        self._show = show
        self._has_colors = has_colors

    def request(self, created: float, fields: Mapping[str, Any]) -> str:
        """The line of a request."""
        status, error = fields["status"], fields.get("error")
        is_failure = has_failed(status, error)
        style = "error" if is_failure else "warning" if status >= 400 else "good"
        words = [self._paint(_clock(int(created)), "dim"), self._paint(str(status), style), self._subject(fields)]
        if upstream := fields.get("upstream"):
            words.append(f"→ {self._clean(str(upstream), _NAME_LIMIT)}")
        words.append(_duration(fields["duration_ms"]))
        if (tokens := fields.get("completion_tokens")) is not None:
            words.append(f"{tokens} tok")
        lists = [(name, fields[name]) for name in ("repaired", "failed", "continued") if fields.get(name)]
        words += [self._paint(f"{name}: {self._listed(names)}", "warning") for name, names in lists]
        if fields.get("has_left"):
            words.append(self._paint("client left", "warning"))
        if error is not None:
            words.append(self._paint(f"error: {self._clean(str(error), _ERROR_LIMIT)}", style))
        if (reason := fields.get("reason")) is not None:
            words.append(f"({self._clean(str(reason), _REASON_LIMIT)})")
        words += [self._show(name, value) for name, value in fields.items() if name not in _HIDDEN]
        ids = (("request_id", is_failure), ("trace_id", "trace_id" in fields))
        words += [self._paint(self._show(name, fields[name]), "dim") for name, is_shown in ids if is_shown]
        return " ".join(words)

    def event(self, created: float, level: str, text: str, shown: str) -> str:
        """The line of another event; `text` and `shown` are clean."""
        words = [self._paint(_clock(int(created)), "dim")]
        if level in ("warning", "error", "critical"):
            words.append(self._paint(level, "warning" if level == "warning" else "error"))
        return " ".join([*words, text, *([shown] if shown else [])])

    def _subject(self, fields: Mapping[str, Any]) -> str:
        """What was requested: the endpoint and the model, or the method and the path."""
        endpoint, model = fields.get("endpoint"), fields.get("model") or fields.get("requested_model")
        is_known = fields["method"] == "POST" and endpoint not in (None, "other")
        name = str(endpoint) if is_known else f"{fields['method']} {fields['path']}"
        words = [name] if model is None else [name, str(model)]
        return " ".join([self._clean(word, _NAME_LIMIT) for word in words])

    def _listed(self, names: Sequence[str]) -> str:
        shown = ", ".join([self._clean(name, _NAME_LIMIT) for name in names[:_LISTED]])
        return f"{shown} +{len(names) - _LISTED}" if len(names) > _LISTED else shown

    def _paint(self, text: str, style: str) -> str:
        return f"\x1b[{_COLORS[style]}m{text}\x1b[0m" if self._has_colors else text


@lru_cache(maxsize=4)
def _clock(second: int) -> str:
    """The local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(second))


def _duration(milliseconds: float) -> str:
    if milliseconds < _SECOND_MS:
        return f"{milliseconds:.0f} ms"
    if milliseconds < _MINUTE_MS:
        return f"{milliseconds / _SECOND_MS:.1f} s"
    minutes, rest = divmod(round(milliseconds / _SECOND_MS), 60)
    return f"{minutes} min {rest} s"
