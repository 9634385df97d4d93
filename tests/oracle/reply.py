"""The result of reading a stream, in one format for all clients."""

from typing import TypedDict


class Choice(TypedDict):
    """A choice as the client returns it; missing values are empty."""

    role: str
    text: str
    reasoning: str
    refusal: str
    tools: list[list[str]]  # each [id, name, arguments], in the order of their index
    finish: str | None


class Reply(TypedDict):
    """An answer, possibly incomplete because of an error."""

    choices: dict[int, Choice]
    usage: list[int] | None  # [prompt, completion, total]
    error: str | None  # message of a mid-stream error


def choice(
    *,
    role: str = "",
    text: str = "",
    reasoning: str = "",
    refusal: str = "",
    tools: list[list[str]] | None = None,
    finish: str | None = None,
) -> Choice:
    """Return a choice with these values."""
    return Choice(role=role, text=text, reasoning=reasoning, refusal=refusal, tools=tools or [], finish=finish)


def reply(*choices: Choice, usage: list[int] | None = None, error: str | None = None) -> Reply:
    """Return a reply with these choices."""
    return Reply(choices=dict(enumerate(choices)), usage=usage, error=error)
