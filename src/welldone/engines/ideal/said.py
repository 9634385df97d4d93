"""What one choice says, in tokens; and where a limit or a stop string ends it."""

import msgspec


class Call(msgspec.Struct, frozen=True):
    """A call of a tool."""

    name: str
    arguments: tuple[str, ...]
    is_custom: bool = False


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """One choice."""

    reasoning: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    reason: str = "stop"
    stop: str | None = None
    """The stop string that ended it."""
    spent: int = 0
    """How many tokens it took, also those that are not sent."""
    echo: tuple[str, ...] = ()
    """The prompt, where it is sent again before the text."""


def limited(said: Said, most: int) -> Said:
    """The same, up to so many tokens. Who uses up all of them was stopped by the limit."""
    reasoning = said.reasoning[:most]
    left = most - len(reasoning)
    text = said.text[:left]
    left -= len(text)
    calls = []
    for call in said.calls:
        if left < 2:  # a name and some of the arguments
            break
        calls.append(Call(call.name, call.arguments[: left - 1], call.is_custom))
        left -= 1 + len(calls[-1].arguments)
    spent = most - left
    is_over = spent >= most or len(calls) < len(said.calls)
    return msgspec.structs.replace(
        said,
        reasoning=reasoning,
        text=text,
        calls=tuple(calls),
        reason="length" if is_over else said.reason,
        spent=spent,
    )


def stopped(said: Said, stops: list[str]) -> Said:
    """The same, up to the stop string that is complete first. Nothing of it is said, and all that stands before is."""
    text = "".join(said.text)
    found = [(place + len(stop), place, stop) for stop in stops if (place := text.find(stop)) >= 0]
    if not found:
        return said
    end, begin, stop = min(found)
    kept: list[str] = []
    spoken = generated = 0
    for token in said.text:
        if spoken >= end:
            break
        generated += 1
        if spoken < begin:
            kept.append(token[: begin - spoken])
        spoken += len(token)
    spent = len(said.reasoning) + generated
    return msgspec.structs.replace(said, text=tuple(kept), calls=(), reason="stop", stop=stop, spent=spent)
