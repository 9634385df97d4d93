"""The dialects that can be checked: where each is asked, in which words, and whose rules are judged."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from welldone.wire.dialects.messages.objects import VERSION, VERSION_HEADER

Headers: TypeAlias = tuple[tuple[str, str], ...]


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is asked."""

    name: str
    endpoints: tuple[str, ...]
    """Whose rules are judged."""
    path: str
    talk: str = "messages"
    """The member that holds what is said."""
    ways: tuple[tuple[Mapping[str, Any], str], ...]
    """Members that make answers repeatable, and the name of the token limit: the usual ones, then others to try."""
    least_tokens: int = 1
    """The smallest limit that servers take."""
    cut: str
    """Why an answer ended that reached its limit."""
    headers: Headers = ()
    key_header: str | None = None
    """Where its clients put the key, besides Authorization."""

    def own_headers(self, key: str | None) -> Headers:
        """What every request has."""
        is_keyed = self.key_header is not None and key is not None
        return (*self.headers, *(((self.key_header or "", key or ""),) if is_keyed else ()))

    def said(self, content: str | list[dict[str, Any]]) -> dict[str, Any]:
        """The member for one user message, or for a whole talk."""
        talk = [{"role": "user", "content": content}] if isinstance(content, str) else content
        return {self.talk: content if self.talk == "input" else talk}


CHAT = Dialect(
    name="chat",
    endpoints=("chat", "completions"),
    path="/chat/completions",
    ways=(
        ({"temperature": 0, "seed": 7}, "max_tokens"),
        ({"temperature": 0}, "max_tokens"),
        # OpenAI's models that think want no temperature, no max_tokens.
        ({}, "max_completion_tokens"),
        ({}, "max_tokens"),
    ),
    cut="length",
)
RESPONSES = Dialect(
    name="responses",
    endpoints=("responses",),
    path="/responses",
    talk="input",
    ways=(({"temperature": 0}, "max_output_tokens"), ({}, "max_output_tokens")),
    least_tokens=16,  # OpenAI refuses fewer
    cut="max_output_tokens",
)
MESSAGES = Dialect(
    name="messages",
    endpoints=("messages",),
    path="/messages",
    ways=(({"temperature": 0}, "max_tokens"), ({}, "max_tokens")),
    cut="max_tokens",
    headers=((VERSION_HEADER, VERSION),),
    key_header="x-api-key",
)
DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (CHAT, RESPONSES, MESSAGES)}
