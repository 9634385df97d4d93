"""The check of a rule: the function, and the replies that it applies to."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from welldone.core.catalog import ANY, RULES
from welldone.rules.view.choices import ChoiceDelta
from welldone.rules.view.stream import StreamMessage
from welldone.rules.view.view import ReplyKind, TraceView

ACCEPTED = "accepted"
"""Form of a violation that the known clients accept, unlike others of its rule."""


def accepted_if(is_accepted: bool) -> str:
    """Return the form of a violation that the known clients accept under a condition."""
    return ACCEPTED if is_accepted else ANY


_TYPES = {str: "string", bool: "boolean", int: "integer", float: "fraction", list: "array", dict: "object"}


def form_of(value: object) -> str:
    """Name the form of a wrong member; `...` stands for an absent one."""
    if value is ... or value is None:
        return "null" if value is None else "missing"
    return "wrong value: empty" if value == "" else f"wrong type: {_TYPES[type(value)]}"


class Located(Protocol):
    """A part of a stream: a message, an event, a choice of a chunk, a delta of a tool call."""

    @property
    def frame_number(self) -> int: ...


class Violation(msgspec.Struct, frozen=True):
    """One breach of a rule."""

    location: Located | int | None
    """A part of the stream or a frame number; None for the whole reply."""
    observed: object
    """The offending text, or a value to be shown as JSON."""
    expected: str
    form: str = ANY
    """What is wrong, where the catalogue tells several forms of the violation apart."""

    @property
    def frame_number(self) -> int | None:
        """Number of the frame, from 1; None for the whole reply."""
        return self.location if isinstance(self.location, int | None) else self.location.frame_number


Item = TypeVar("Item")
LocatedObjects: TypeAlias = Callable[[TraceView], Iterable[tuple[Located, dict[str, Any]]]]
CheckFunction: TypeAlias = Callable[[TraceView], Iterator[Violation]]
ItemCheckFunction: TypeAlias = Callable[[Item], Iterator[Violation]]


class RuleCheck(msgspec.Struct, frozen=True):
    """The id of a rule and its check."""

    rule: str
    check: CheckFunction
    reply_kinds: tuple[ReplyKind, ...] = (ReplyKind.STREAM,)
    """Kinds of reply that the check applies to."""
    needs: tuple[str, ...] = ()
    """Trace fields that the check needs."""

    def applies(self, view: TraceView) -> bool:
        """Whether the check applies to this kind of reply."""
        return view.reply_kind in self.reply_kinds and view.trace.endpoint in RULES[self.rule].endpoints

    def missing_fields(self, view: TraceView) -> list[str]:
        """Required fields that the trace lacks."""
        return [field for field in self.needs if getattr(view.trace, field) is None]


class CheckList(list[RuleCheck]):
    """The checks of one module; its methods add to it."""

    def rule(
        self, rule: str, *reply_kinds: ReplyKind, needs: tuple[str, ...] = ()
    ) -> Callable[[CheckFunction], CheckFunction]:
        """Decorate the check of a rule. Without `reply_kinds` it applies to streams."""

        def add(check: CheckFunction) -> CheckFunction:
            self.append(RuleCheck(rule, check, reply_kinds or (ReplyKind.STREAM,), needs))
            return check

        return add

    def each(
        self,
        rule: str,
        items: Callable[[TraceView], Iterable[Item]],
        *reply_kinds: ReplyKind,
        needs: tuple[str, ...] = (),
    ) -> Callable[[ItemCheckFunction[Item]], ItemCheckFunction[Item]]:
        """Decorate the check of each item of a reply."""

        def add(check: ItemCheckFunction[Item]) -> ItemCheckFunction[Item]:
            self.rule(rule, *reply_kinds, needs=needs)(lambda view: chain.from_iterable(map(check, items(view))))
            return check

        return add

    def member(
        self, rule: str, objects: LocatedObjects, key: str, is_valid: Callable[[object], bool], expected: str
    ) -> None:
        """Add the check of one member of some objects of a stream. `is_valid` gets `...` if it is absent."""

        @self.rule(rule)
        def _check(view: TraceView) -> Iterator[Violation]:
            for location, value in objects(view):
                if not is_valid(actual := value.get(key, ...)):
                    yield Violation(location, member(value, key), expected, form_of(actual))


def member(value: dict[str, Any], key: str) -> object:
    """Return a member of an object as a JSON fragment for a finding."""
    return {key: value[key]} if key in value else f"no {key}"


def chunk_objects(view: TraceView) -> Iterator[tuple[StreamMessage, dict[str, Any]]]:
    """Objects of a check: the chunks."""
    return ((chunk, chunk.json) for chunk in view.chunks)


def choice_objects(view: TraceView) -> Iterator[tuple[ChoiceDelta, dict[str, Any]]]:
    """Objects of a check: the entries of all chunks' `choices`."""
    return ((delta, delta.choice) for delta in view.choice_deltas)


def delta_objects(view: TraceView) -> Iterator[tuple[ChoiceDelta, dict[str, Any]]]:
    """Objects of a check: the deltas."""
    return ((delta, delta.delta) for delta in view.choice_deltas)


def is_optional_text(value: object) -> bool:
    """Whether a member is a string, null or absent."""
    return isinstance(value, str | None) or value is ...
