"""What a reply says, in each dialect: text, thoughts, calls and the reason of its end, as a client would read them."""

from collections.abc import Callable, Mapping

from welldone.check.reading import chat, messages, responses
from welldone.check.reading.said import Piece as Piece
from welldone.check.reading.said import Said as Said
from welldone.check.reading.said import ToolCall as ToolCall
from welldone.rules.heard import Heard

CHOICES: Mapping[str, Callable[[Heard], list[Said]]] = {
    "chat": chat.choices,
    "completions": chat.choices,
    "responses": responses.choices,
    "messages": messages.choices,
}
"""By endpoint: the choices of a reply, by their index."""
PIECES: Mapping[str, Callable[[Heard], list[Piece]]] = {
    "chat": chat.pieces,
    "completions": chat.pieces,
    "responses": responses.pieces,
    "messages": messages.pieces,
}
"""By endpoint: what the frames of a stream say of its choices, in the order in which they came."""
USAGE: Mapping[str, Callable[[Heard], object]] = {
    "chat": chat.usage,
    "completions": chat.usage,
    "responses": responses.usage,
    "messages": messages.usage,
}
"""By endpoint: the last usage that was sent, in the dialect's own names."""
