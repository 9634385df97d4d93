"""What a client made of a stream, in one plain form that all clients share."""

from typing import TypedDict


class Choice(TypedDict):
    """One choice as the client hands it to its user; what it has nothing of is empty."""

    role: str
    text: str
    reasoning: str
    refusal: str
    tools: list[list[str]]  # each [id, name, arguments], in the order of their index
    finish: str | None


class Reply(TypedDict):
    """A whole answer, or as much of it as came before an error."""

    choices: dict[int, Choice]
    usage: list[int] | None  # [prompt, completion, total]
    error: str | None  # the message of an error that the server told in mid-stream


def choice(
    *,
    role: str = "",
    text: str = "",
    reasoning: str = "",
    refusal: str = "",
    tools: list[list[str]] | None = None,
    finish: str | None = None,
) -> Choice:
    """A choice with nothing in it but what is given."""
    return Choice(role=role, text=text, reasoning=reasoning, refusal=refusal, tools=tools or [], finish=finish)


def reply(*choices: Choice, usage: list[int] | None = None, error: str | None = None) -> Reply:
    """A reply whose choices are numbered as given."""
    return Reply(choices=dict(enumerate(choices)), usage=usage, error=error)
