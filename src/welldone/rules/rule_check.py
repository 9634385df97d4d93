"""What a rule is: a fault, and the check that hears it."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from welldone.protocol.catalog.rule import Rule, Severity
from welldone.rules.view.choices import ChoiceDelta
from welldone.rules.view.stream import StreamMessage
from welldone.rules.view.view import ReplyKind, TraceView


class Violation(msgspec.Struct, frozen=True):
    """Where a fault was heard."""

    location: StreamMessage | ChoiceDelta | int | None
    """The message, the part of a chunk or the number of the frame; None where it is the reply as a whole."""
    observed: object
    """The piece at fault: text as it is, anything else to be shown as JSON."""
    expected: str
    severity: Severity | None = None
    """Where this one costs less than the rule's severity says."""

    @property
    def frame_number(self) -> int | None:
        """The number of the frame."""
        if isinstance(self.location, ChoiceDelta):
            return self.location.message.frame_number
        return self.location.frame_number if isinstance(self.location, StreamMessage) else self.location


CheckFunction: TypeAlias = Callable[[TraceView], Iterator[Violation]]


class RuleCheck(msgspec.Struct, frozen=True):
    """A fault and its check."""

    rule: Rule
    check: CheckFunction
    reply_kinds: tuple[ReplyKind, ...] = (ReplyKind.STREAM,)
    """The kinds of reply that it speaks about."""
    endpoints: tuple[str, ...] = ()
    """Where it is judged, if elsewhere than its fault says."""
    required_fields: tuple[str, ...] = ()
    """What has to be known of the trace."""

    def applies(self, view: TraceView) -> bool:
        """Whether it speaks about this kind of reply."""
        return view.reply_kind in self.reply_kinds and view.trace.endpoint in (self.endpoints or self.rule.endpoints)

    def can_be_checked(self, view: TraceView) -> bool:
        """Whether what it needs is known."""
        return not self.missing_fields(view)

    def missing_fields(self, view: TraceView) -> list[str]:
        """What it needs and is not known."""
        return [need for need in self.required_fields if getattr(view.trace, need) is None]
