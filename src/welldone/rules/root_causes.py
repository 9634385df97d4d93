"""Root causes: which findings of a reply follow from another finding of the same reply.

A stream that is cut lacks its finish reason, its usage and its last empty line, and its last JSON is truncated: that is
one fault, not five. A finding follows from a cause only where both were found in one reply.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Protocol


class CauseScope(Enum):
    """Which findings of a rule follow from the cause."""

    ANYWHERE = auto()
    LAST_FRAME = auto()
    """Those in the last frame, or about the reply as a whole."""
    SAME_FRAME = auto()
    """Those in a frame in which the cause was found."""


class LocatedFinding(Protocol):
    """A finding."""

    @property
    def rule(self) -> str: ...

    @property
    def frame(self) -> int | None: ...


_ANYWHERE, _LAST_FRAME, _SAME_FRAME = CauseScope.ANYWHERE, CauseScope.LAST_FRAME, CauseScope.SAME_FRAME
_TRUNCATION_CONSEQUENCES: dict[str, CauseScope] = {
    "http-chunked-terminated": _ANYWHERE,
    "http-body-ends-after-done": _ANYWHERE,
    "enc-valid-utf8": _LAST_FRAME,
    "enc-strict-json": _LAST_FRAME,
    "end-last-event-terminated": _ANYWHERE,
    "end-done-exact": _LAST_FRAME,
    "err-not-silent": _ANYWHERE,
    "sse-no-empty-data": _LAST_FRAME,
    "use-final-chunk": _ANYWHERE,
    "tool-finish-follows": _ANYWHERE,
    "cmpl-done": _ANYWHERE,
    "cmpl-usage-chunk": _ANYWHERE,
    "cmpl-echo": _ANYWHERE,
    "cmpl-batch-index": _ANYWHERE,
    "resp-keepalive": _LAST_FRAME,
    "msg-ping-form": _LAST_FRAME,
}
"""What a reply breaks besides, if its end is missing."""
_INVALID_JSON_CONSEQUENCES = ("ns-choices", "ns-object", "ns-usage", "msg-whole-shape", "resp-created-full")
"""What a whole reply that is no JSON lacks."""
_TRUNCATED_OR_INVALID_CONSEQUENCES = _TRUNCATION_CONSEQUENCES | dict.fromkeys(_INVALID_JSON_CONSEQUENCES, _ANYWHERE)

CONSEQUENCES: Mapping[str, Mapping[str, CauseScope]] = {
    "end-no-early-eof": _TRUNCATED_OR_INVALID_CONSEQUENCES,
    "resp-terminal-once": _TRUNCATED_OR_INVALID_CONSEQUENCES,
    "msg-no-early-eof": _TRUNCATED_OR_INVALID_CONSEQUENCES,
    "err-empty-stream": _TRUNCATION_CONSEQUENCES | {"http-content-type": _ANYWHERE},
    "end-done-sent": _TRUNCATION_CONSEQUENCES,
    "err-then-done": _TRUNCATION_CONSEQUENCES,
    "http-body-ends-after-done": {
        "http-chunked-terminated": _ANYWHERE,
        "end-last-event-terminated": _ANYWHERE,
        "end-done-exact": _LAST_FRAME,
    },
    "http-chunked-terminated": {"end-last-event-terminated": _ANYWHERE, "enc-strict-json": _LAST_FRAME},
    "enc-strict-json": {"ext-logprobs-finite": _SAME_FRAME, **dict.fromkeys(_INVALID_JSON_CONSEQUENCES, _SAME_FRAME)},
    "fin-always-sent": {"err-not-silent": _ANYWHERE, "tool-finish-follows": _ANYWHERE},
    "fin-exactly-once": {"fin-last-of-choice": _SAME_FRAME},
    "use-choices-empty-array": {"env-choices-array": _SAME_FRAME, "fin-last-of-choice": _SAME_FRAME},
    "use-final-chunk": {"cmpl-usage-chunk": _ANYWHERE},
    "tool-legacy-function-call": {"fin-function-call-legacy": _ANYWHERE},
    "err-event-name": {"sse-no-event-name": _SAME_FRAME},
    "err-midstream-event": {"err-body-shape": _SAME_FRAME},
    "sse-event-blank-line": {"sse-one-object-per-event": _SAME_FRAME},
    "env-metadata-on-usage-chunk": dict.fromkeys(
        ("env-id-present", "env-object-const", "env-created-int", "env-model-string"), _SAME_FRAME
    ),
    "cmpl-no-delta": {"cmpl-object": _SAME_FRAME, "cmpl-id-constant": _SAME_FRAME},
}
"""By cause; the first that was found counts. A consequence that is a cause as well comes later: there is no circle."""


class RootCauses:
    """The causes that were found in one reply."""

    def __init__(self, findings: Iterable[LocatedFinding], frames: int) -> None:
        self._last = (None, frames)
        self._found: dict[str, set[int | None]] = {}
        self._roots: dict[str, str] = {}
        for finding in findings:
            self._found.setdefault(finding.rule, set()).add(finding.frame)

    def cause_of(self, rule: str, frame: int | None) -> str | None:
        """The rule from which a finding follows; None where it is a cause itself."""
        for cause, consequences in CONSEQUENCES.items():
            if cause in self._found and rule in consequences and self._is_in_scope(consequences[rule], cause, frame):
                return self._root_cause(cause)
        return None

    def _root_cause(self, cause: str) -> str:
        """The cause of the cause, where every finding of it has one."""
        if cause not in self._roots:
            above = [self.cause_of(cause, frame) for frame in self._found[cause]]
            self._roots[cause] = cause if None in above else above[0] or cause
        return self._roots[cause]

    def _is_in_scope(self, scope: CauseScope, cause: str, frame: int | None) -> bool:
        if scope is CauseScope.LAST_FRAME:
            return frame in self._last
        return scope is CauseScope.ANYWHERE or frame in self._found[cause]
