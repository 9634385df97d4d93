"""The check of a rule: the function, and the replies that it applies to."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from welldone.protocol.catalog import RULES, Severity
from welldone.rules.view.choices import ChoiceDelta
from welldone.rules.view.stream import StreamMessage
from welldone.rules.view.view import ReplyKind, TraceView


class Violation(msgspec.Struct, frozen=True):
    """One breach of a rule."""

    location: StreamMessage | ChoiceDelta | int | None
    """A message, a choice of a chunk or a frame number; None for the whole reply."""
    observed: object
    """The offending text, or a value to be shown as JSON."""
    expected: str
    severity: Severity | None = None
    """Overrides the severity of the rule if this violation does less harm."""

    @property
    def frame_number(self) -> int | None:
        """Number of the frame, from 1; None for the whole reply."""
        if isinstance(self.location, ChoiceDelta):
            return self.location.message.frame_number
        return self.location.frame_number if isinstance(self.location, StreamMessage) else self.location


CheckFunction: TypeAlias = Callable[[TraceView], Iterator[Violation]]


class RuleCheck(msgspec.Struct, frozen=True):
    """The id of a rule and its check."""

    rule: str
    check: CheckFunction
    reply_kinds: tuple[ReplyKind, ...] = (ReplyKind.STREAM,)
    """Kinds of reply that the check applies to."""
    endpoints: tuple[str, ...] = ()
    """Endpoints, if they differ from those of the rule."""
    required_fields: tuple[str, ...] = ()
    """Trace fields that the check needs."""

    def applies(self, view: TraceView) -> bool:
        """Whether the check applies to this kind of reply."""
        endpoints = self.endpoints or RULES[self.rule].endpoints
        return view.reply_kind in self.reply_kinds and view.trace.endpoint in endpoints

    def missing_fields(self, view: TraceView) -> list[str]:
        """Required fields that the trace lacks."""
        return [field for field in self.required_fields if getattr(view.trace, field) is None]
