"""The dialects that can be checked: where each is asked, in which words, and whose rules are judged."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from welldone.wire.dialects.messages.objects import ANTHROPIC_VERSION, ANTHROPIC_VERSION_HEADER

Headers: TypeAlias = tuple[tuple[str, str], ...]


class CheckDialect(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is asked."""

    name: str
    endpoints: tuple[str, ...]
    """Whose rules are judged."""
    path: str
    input_field: str = "messages"
    """The member that holds what is said."""
    request_variants: tuple[tuple[Mapping[str, Any], str], ...]
    """Members that make answers repeatable, and the name of the token limit: the usual ones, then others to try."""
    min_tokens: int = 1
    """The smallest limit that servers take."""
    length_reason: str
    """Why an answer ended that reached its limit."""
    headers: Headers = ()
    key_header: str | None = None
    """Where its clients put the key, besides Authorization."""

    def request_headers(self, key: str | None) -> Headers:
        """What every request has."""
        is_keyed = self.key_header is not None and key is not None
        return (*self.headers, *(((self.key_header or "", key or ""),) if is_keyed else ()))

    def prompt_members(self, content: str | list[dict[str, Any]]) -> dict[str, Any]:
        """The member for one user message, or for a whole talk."""
        talk = [{"role": "user", "content": content}] if isinstance(content, str) else content
        return {self.input_field: content if self.input_field == "input" else talk}


CHAT = CheckDialect(
    name="chat",
    endpoints=("chat", "completions"),
    path="/chat/completions",
    request_variants=(
        ({"temperature": 0, "seed": 7}, "max_tokens"),
        ({"temperature": 0}, "max_tokens"),
        # OpenAI's models that think want no temperature, no max_tokens.
        ({}, "max_completion_tokens"),
        ({}, "max_tokens"),
    ),
    length_reason="length",
)
RESPONSES = CheckDialect(
    name="responses",
    endpoints=("responses",),
    path="/responses",
    input_field="input",
    request_variants=(({"temperature": 0}, "max_output_tokens"), ({}, "max_output_tokens")),
    min_tokens=16,  # OpenAI refuses fewer
    length_reason="max_output_tokens",
)
MESSAGES = CheckDialect(
    name="messages",
    endpoints=("messages",),
    path="/messages",
    request_variants=(({"temperature": 0}, "max_tokens"), ({}, "max_tokens")),
    length_reason="max_tokens",
    headers=((ANTHROPIC_VERSION_HEADER, ANTHROPIC_VERSION),),
    key_header="x-api-key",
)
DIALECTS: Mapping[str, CheckDialect] = {dialect.name: dialect for dialect in (CHAT, RESPONSES, MESSAGES)}
