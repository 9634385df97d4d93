"""Root causes: which findings of a reply follow from another finding of the same reply.

A truncated stream lacks its finish reason, its usage and its last empty line, and its last JSON value is incomplete:
one defect, not five. A finding follows from a cause only if both occur in the same reply.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Protocol


class CauseScope(Enum):
    """Which findings of a rule follow from a cause."""

    ANYWHERE = auto()
    LAST_FRAME = auto()
    """Findings in the last frame, or about the whole reply."""
    SAME_FRAME = auto()
    """Findings in a frame that also has a finding of the cause."""


class LocatedFinding(Protocol):
    """A finding of `lint` or `check`."""

    @property
    def rule(self) -> str: ...

    @property
    def frame(self) -> int | None: ...


_ANYWHERE, _LAST_FRAME, _SAME_FRAME = CauseScope.ANYWHERE, CauseScope.LAST_FRAME, CauseScope.SAME_FRAME
_TRUNCATION_CONSEQUENCES: dict[str, CauseScope] = {
    **dict.fromkeys(("http-chunked-terminated", "http-body-ends-after-done", "end-last-event-terminated"), _ANYWHERE),
    **dict.fromkeys(("err-not-silent", "use-final-chunk", "tool-finish-follows", "resp-socket"), _ANYWHERE),
    **dict.fromkeys(("cmpl-done", "cmpl-usage-chunk", "cmpl-echo", "cmpl-batch-index"), _ANYWHERE),
    **dict.fromkeys(("enc-valid-utf8", "enc-strict-json", "end-done-exact", "sse-no-empty-data"), _LAST_FRAME),
    **dict.fromkeys(("resp-keepalive", "msg-ping-form"), _LAST_FRAME),
}
"""Rules that a reply without its end violates as well."""
_INVALID_JSON_CONSEQUENCES = (
    *("ns-choices", "ns-object", "ns-usage", "msg-whole-shape", "resp-created-full", "gem-whole-reply"),
)
"""Rules that a reply violates if its body is not JSON."""
_TRUNCATED_OR_INVALID_CONSEQUENCES = _TRUNCATION_CONSEQUENCES | dict.fromkeys(_INVALID_JSON_CONSEQUENCES, _ANYWHERE)

CONSEQUENCES: Mapping[str, Mapping[str, CauseScope]] = {
    "end-no-early-eof": _TRUNCATED_OR_INVALID_CONSEQUENCES,
    "resp-terminal-once": _TRUNCATED_OR_INVALID_CONSEQUENCES,
    "msg-no-early-eof": _TRUNCATED_OR_INVALID_CONSEQUENCES,
    "gem-no-early-eof": _TRUNCATED_OR_INVALID_CONSEQUENCES | {"err-empty-stream": _ANYWHERE},
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
"""Consequences by cause. The first cause found counts; a consequence that is itself a cause comes later: no cycles."""


class RootCauses:
    """Causes among the findings of one reply."""

    def __init__(self, findings: Iterable[LocatedFinding], frames: int) -> None:
        self._last_frame = (None, frames)
        self._found: dict[str, set[int | None]] = {}
        self._roots: dict[str, str] = {}
        for finding in findings:
            self._found.setdefault(finding.rule, set()).add(finding.frame)

    def cause_of(self, rule: str, frame: int | None) -> str | None:
        """Return the rule that explains a finding, or None."""
        for cause, consequences in CONSEQUENCES.items():
            if cause in self._found and rule in consequences and self._is_in_scope(consequences[rule], cause, frame):
                return self._root_cause(cause)
        return None

    def _root_cause(self, cause: str) -> str:
        # A cause is itself explained if all its findings are.
        if cause not in self._roots:
            above = [self.cause_of(cause, frame) for frame in self._found[cause]]
            self._roots[cause] = cause if None in above else above[0] or cause
        return self._roots[cause]

    def _is_in_scope(self, scope: CauseScope, cause: str, frame: int | None) -> bool:
        if scope is CauseScope.LAST_FRAME:
            return frame in self._last_frame
        return scope is CauseScope.ANYWHERE or frame in self._found[cause]
