"""What one choice says, in tokens; and where a limit or a stop string ends it."""

import msgspec


class MockToolCall(msgspec.Struct, frozen=True):
    """A call of a tool."""

    name: str
    arguments: tuple[str, ...]
    is_custom: bool = False


class MockChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice."""

    reasoning: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    tool_calls: tuple[MockToolCall, ...] = ()
    finish_reason: str = "stop"
    stop_string: str | None = None
    """The stop string that ended it."""
    generated_tokens: int = 0
    """How many tokens it took, also those that are not sent."""
    echo: tuple[str, ...] = ()
    """The prompt, where it is sent again before the text."""


def truncate_to_limit(choice: MockChoice, max_tokens: int) -> MockChoice:
    """The same, up to so many tokens. Who uses up all of them was stopped by the limit."""
    reasoning = choice.reasoning[:max_tokens]
    left = max_tokens - len(reasoning)
    text = choice.text[:left]
    left -= len(text)
    calls = []
    for call in choice.tool_calls:
        if left < 2:  # a name and some of the arguments
            break
        calls.append(MockToolCall(call.name, call.arguments[: left - 1], call.is_custom))
        left -= 1 + len(calls[-1].arguments)
    spent = max_tokens - left
    is_over = spent >= max_tokens or len(calls) < len(choice.tool_calls)
    return msgspec.structs.replace(
        choice,
        reasoning=reasoning,
        text=text,
        tool_calls=tuple(calls),
        finish_reason="length" if is_over else choice.finish_reason,
        generated_tokens=spent,
    )


def truncate_at_stop(choice: MockChoice, stops: list[str]) -> MockChoice:
    """The same, up to the stop string that is complete first. Nothing of it is said, and all that stands before is."""
    text = "".join(choice.text)
    found = [(place + len(stop), place, stop) for stop in stops if (place := text.find(stop)) >= 0]
    if not found:
        return choice
    end, begin, stop = min(found)
    kept: list[str] = []
    spoken = generated = 0
    for token in choice.text:
        if spoken >= end:
            break
        generated += 1
        if spoken < begin:
            kept.append(token[: begin - spoken])
        spoken += len(token)
    spent = len(choice.reasoning) + generated
    return msgspec.structs.replace(
        choice, text=tuple(kept), tool_calls=(), finish_reason="stop", stop_string=stop, generated_tokens=spent
    )
