"""The arguments of a call as the object that Messages and Ollama carry."""

import msgspec

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
