"""The arguments of a call as the object that Messages and Ollama carry."""

from collections.abc import Iterator

import msgspec

from welldone.wire.asked import CUT_SHORT
from welldone.wire.collect import Answer, Call
from welldone.wire.lenient import object_text

CUSTOM_MEMBER = "input"
"""The member that has the free text of a custom call, in dialects that know calls with an object only."""


def as_object(text: str, *, is_custom: bool, is_cut: bool) -> msgspec.Raw | None:
    """The object; None where the call is incomplete and must not be delivered: a client would run it.

    `is_cut`: the answer was cut, and this may be the place. The text of a custom call has no end that can be seen.
    """
    if is_custom:
        return None if is_cut else msgspec.Raw(msgspec.json.encode({CUSTOM_MEMBER: text}))
    if not text.strip():
        return None if is_cut else msgspec.Raw(b"{}")
    return object_text(text)


def complete_calls(answer: Answer) -> Iterator[tuple[Call, msgspec.Raw]]:
    """The calls of a whole answer that may be delivered, each with its object. Only the last custom call may be cut."""
    for call in answer.calls:
        may_be_cut = answer.reason in CUT_SHORT and (call is answer.calls[-1] or not call.is_custom)
        given = as_object(call.arguments, is_custom=call.is_custom, is_cut=may_be_cut)
        if given is not None:
            yield call, given
