"""The arguments of a call as the object that Messages and Ollama carry."""

from collections.abc import Iterator

import msgspec

from welldone.wire.asked import TRUNCATED_REASONS
from welldone.wire.collect import CollectedChoice, CollectedToolCall
from welldone.wire.lenient import normalise_object_text

CUSTOM_INPUT_MEMBER = "input"
"""The member that has the free text of a custom call, in dialects that know calls with an object only."""


def arguments_object(text: str, *, is_custom: bool, is_cut: bool) -> msgspec.Raw | None:
    """The object; None where the call is incomplete and must not be delivered: a client would run it.

    `is_cut`: the answer was cut, and this may be the place. The text of a custom call has no end that can be seen.
    """
    if is_custom:
        return None if is_cut else msgspec.Raw(msgspec.json.encode({CUSTOM_INPUT_MEMBER: text}))
    if not text.strip():
        return None if is_cut else msgspec.Raw(b"{}")
    return normalise_object_text(text)


def complete_tool_calls(answer: CollectedChoice) -> Iterator[tuple[CollectedToolCall, msgspec.Raw]]:
    """The calls of a whole answer that may be delivered, each with its object. Only the last custom call may be cut."""
    for call in answer.tool_calls:
        may_be_cut = answer.finish_reason in TRUNCATED_REASONS and (call is answer.tool_calls[-1] or not call.is_custom)
        given = arguments_object(call.arguments, is_custom=call.is_custom, is_cut=may_be_cut)
        if given is not None:
            yield call, given
