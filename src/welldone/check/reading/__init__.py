"""What a reply says, in each dialect: text, thoughts, calls and the reason of its end, as a client would read them."""

from collections.abc import Callable, Mapping

from welldone.check.reading import chat, messages, responses
from welldone.check.reading.said import ParsedDelta as ParsedDelta
from welldone.check.reading.said import ParsedChoice as ParsedChoice
from welldone.check.reading.said import ParsedToolCall as ParsedToolCall
from welldone.rules.heard import TraceView

READ_CHOICES: Mapping[str, Callable[[TraceView], list[ParsedChoice]]] = {
    "chat": chat.read_chat_choices,
    "completions": chat.read_chat_choices,
    "responses": responses.read_responses_choices,
    "messages": messages.read_messages_choices,
}
"""By endpoint: the choices of a reply, by their index."""
READ_DELTAS: Mapping[str, Callable[[TraceView], list[ParsedDelta]]] = {
    "chat": chat.read_chat_deltas,
    "completions": chat.read_chat_deltas,
    "responses": responses.read_responses_deltas,
    "messages": messages.read_messages_deltas,
}
"""By endpoint: what the frames of a stream say of its choices, in the order in which they came."""
READ_USAGE: Mapping[str, Callable[[TraceView], object]] = {
    "chat": chat.read_chat_usage,
    "completions": chat.read_chat_usage,
    "responses": responses.read_responses_usage,
    "messages": messages.read_messages_usage,
}
"""By endpoint: the last usage that was sent, in the dialect's own names."""
