"""What a rule is: a fault, and the check that hears it."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from welldone.rules.choices import Part
from welldone.rules.heard import Form, Heard
from welldone.rules.messages import Message
from welldone.wire.faults import Fault, Severity


class Place(msgspec.Struct, frozen=True):
    """Where a fault was heard."""

    at: Message | Part | int | None
    """The message, the part of a chunk or the number of the frame; None where it is the reply as a whole."""
    heard: object
    """The piece at fault: text as it is, anything else to be shown as JSON."""
    wanted: str
    severity: Severity | None = None
    """Where this one costs less than the rule's severity says."""

    @property
    def number(self) -> int | None:
        """The number of the frame."""
        if isinstance(self.at, Part):
            return self.at.message.number
        return self.at.number if isinstance(self.at, Message) else self.at


Check: TypeAlias = Callable[[Heard], Iterator[Place]]


class Rule(msgspec.Struct, frozen=True):
    """A fault and its check."""

    fault: Fault
    check: Check
    forms: tuple[Form, ...] = (Form.STREAM,)
    """The kinds of reply that it speaks about."""
    endpoints: tuple[str, ...] = ()
    """Where it is judged, if elsewhere than its fault says."""
    needs: tuple[str, ...] = ()
    """What has to be known of the trace."""

    def applies(self, heard: Heard) -> bool:
        """Whether it speaks about this kind of reply."""
        return heard.form in self.forms and heard.trace.endpoint in (self.endpoints or self.fault.endpoints)

    def can_be_judged(self, heard: Heard) -> bool:
        """Whether what it needs is known."""
        return not self.missing(heard)

    def missing(self, heard: Heard) -> list[str]:
        """What it needs and is not known."""
        return [need for need in self.needs if getattr(heard.trace, need) is None]
