"""Root causes: which findings of a reply follow from another finding of the same reply.

A stream that is cut lacks its finish reason, its usage and its last empty line, and its last JSON is truncated: that is
one fault, not five. A finding follows from a cause only where both were found in one reply.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Protocol


class Where(Enum):
    """Which findings of a rule follow from the cause."""

    ANYWHERE = auto()
    LAST = auto()
    """Those in the last frame, or about the reply as a whole."""
    SAME = auto()
    """Those in a frame in which the cause was found."""


class Located(Protocol):
    """A finding."""

    @property
    def rule(self) -> str: ...

    @property
    def frame(self) -> int | None: ...


_ANYWHERE, _LAST, _SAME = Where.ANYWHERE, Where.LAST, Where.SAME
_CUT: dict[str, Where] = {
    "http-chunked-terminated": _ANYWHERE,
    "http-body-ends-after-done": _ANYWHERE,
    "enc-valid-utf8": _LAST,
    "enc-strict-json": _LAST,
    "end-last-event-terminated": _ANYWHERE,
    "end-done-exact": _LAST,
    "err-not-silent": _ANYWHERE,
    "sse-no-empty-data": _LAST,
    "use-final-chunk": _ANYWHERE,
    "tool-finish-follows": _ANYWHERE,
    "cmpl-done": _ANYWHERE,
    "cmpl-usage-chunk": _ANYWHERE,
    "cmpl-echo": _ANYWHERE,
    "cmpl-batch-index": _ANYWHERE,
    "resp-keepalive": _LAST,
    "msg-ping-form": _LAST,
}
"""What a reply breaks besides, if its end is missing."""
_UNREADABLE = ("ns-choices", "ns-object", "ns-usage", "msg-whole-shape", "resp-created-full")
"""What a whole reply that is no JSON lacks."""
_CUT_OR_UNREADABLE = _CUT | dict.fromkeys(_UNREADABLE, _ANYWHERE)

CONSEQUENCES: Mapping[str, Mapping[str, Where]] = {
    "end-no-early-eof": _CUT_OR_UNREADABLE,
    "resp-terminal-once": _CUT_OR_UNREADABLE,
    "msg-no-early-eof": _CUT_OR_UNREADABLE,
    "err-empty-stream": _CUT | {"http-content-type": _ANYWHERE},
    "end-done-sent": _CUT,
    "err-then-done": _CUT,
    "http-body-ends-after-done": {
        "http-chunked-terminated": _ANYWHERE,
        "end-last-event-terminated": _ANYWHERE,
        "end-done-exact": _LAST,
    },
    "http-chunked-terminated": {"end-last-event-terminated": _ANYWHERE, "enc-strict-json": _LAST},
    "enc-strict-json": {"ext-logprobs-finite": _SAME, **dict.fromkeys(_UNREADABLE, _SAME)},
    "fin-always-sent": {"err-not-silent": _ANYWHERE, "tool-finish-follows": _ANYWHERE},
    "fin-exactly-once": {"fin-last-of-choice": _SAME},
    "use-choices-empty-array": {"env-choices-array": _SAME, "fin-last-of-choice": _SAME},
    "use-final-chunk": {"cmpl-usage-chunk": _ANYWHERE},
    "tool-legacy-function-call": {"fin-function-call-legacy": _ANYWHERE},
    "err-event-name": {"sse-no-event-name": _SAME},
    "err-midstream-event": {"err-body-shape": _SAME},
    "sse-event-blank-line": {"sse-one-object-per-event": _SAME},
    "env-metadata-on-usage-chunk": dict.fromkeys(
        ("env-id-present", "env-object-const", "env-created-int", "env-model-string"), _SAME
    ),
    "cmpl-no-delta": {"cmpl-object": _SAME, "cmpl-id-constant": _SAME},
}
"""By cause; the first that was found counts. A consequence that is a cause as well comes later: there is no circle."""


class Causes:
    """The causes that were found in one reply."""

    def __init__(self, findings: Iterable[Located], frames: int) -> None:
        self._last = (None, frames)
        self._found: dict[str, set[int | None]] = {}
        self._roots: dict[str, str] = {}
        for finding in findings:
            self._found.setdefault(finding.rule, set()).add(finding.frame)

    def of(self, rule: str, frame: int | None) -> str | None:
        """The rule from which a finding follows; None where it is a cause itself."""
        for cause, consequences in CONSEQUENCES.items():
            if cause in self._found and rule in consequences and self._is_there(consequences[rule], cause, frame):
                return self._root(cause)
        return None

    def _root(self, cause: str) -> str:
        """The cause of the cause, where every finding of it has one."""
        if cause not in self._roots:
            above = [self.of(cause, frame) for frame in self._found[cause]]
            self._roots[cause] = cause if None in above else above[0] or cause
        return self._roots[cause]

    def _is_there(self, where: Where, cause: str, frame: int | None) -> bool:
        if where is Where.LAST:
            return frame in self._last
        return where is Where.ANYWHERE or frame in self._found[cause]
