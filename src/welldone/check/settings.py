"""What a run of the check is told: whom to ask, how, and what to look at."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from welldone.http.redaction import SecretRedactor
from welldone.protocol.dialects.anthropic.objects import ANTHROPIC_VERSION, ANTHROPIC_VERSION_HEADER

# The dialects that can be checked: where each is asked, in which words, and whose rules are judged.


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


# What probes say to models: short, plain, and such that a small model answers as well as a large one.


HELLO_PROMPT = "Say hello."
COUNT_PROMPT = "Count from 1 to 200. Write only the numbers, separated by commas."
"""The answer is long, known in its form, and made of many tokens: it reaches any small limit."""
EMOJI_PROMPT = "Repeat exactly: 👋🌍 naïve café, 你好, привет 🎉"
"""An answer in which most characters take several bytes, and some emoji several tokens."""


class Timeouts(msgspec.Struct, frozen=True):
    """How long things may take. Tests are less patient."""

    reply_s: float = 60.0
    """A reply that is not whole by then is given up."""
    silence_s: float = 15.0
    """How long a stream may be silent: nginx and most load balancers give up after 60 s, and wait for several signs."""
    prefill_s: float = 0.5
    """A first word that comes sooner says nothing of what was sent before it."""
    stream_s: float = 0.25
    """A stream that is over sooner says nothing of how it was flushed."""
    disconnect_s: float = 3.0
    """By when a server must have noticed that nobody listens any more."""
    after_done_s: float = 3.0
    """How long a body may stay open after [DONE]."""


class CheckSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All that a user can say."""

    url: str
    """Up to and with /v1."""
    model: str | None = None
    """None: the first that the server lists."""
    endpoint: str = "chat"
    """The name of the dialect that is checked."""
    key: str | None = None
    ca_file: str | None = None
    is_verified: bool = True
    headers: tuple[tuple[str, str], ...] = ()
    """For every request. Their values may be secrets."""
    env_variables: Mapping[str, str] = {}
    """The environment variables that the key (`Authorization`) and headers come from: commands that are shown name
    them."""
    extra: Mapping[str, Any] = {}
    """Members for the body of every request that should be answered."""
    only: tuple[str, ...] = ()
    """Names of probes, or their beginnings; empty: all."""
    skip: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    """Ids; empty: all."""
    profile: str | None = None
    is_strict: bool = False
    known: frozenset[str] | None = None
    """The rules that were broken before; None: there is no baseline."""
    jobs: int = 4
    """How many requests there may be at once. Four is what llama.cpp has slots for by default."""
    record: Path | None = None
    """A folder for the traces."""
    timeouts: Timeouts = Timeouts()

    def __repr__(self) -> str:
        """Whom it is about, and no key."""
        return f"CheckSettings({self.url})"

    @property
    def dialect(self) -> CheckDialect:
        """How the server is asked."""
        return DIALECTS[self.endpoint]

    @property
    def secrets(self) -> SecretRedactor:
        """What must not be shown: the key, the values of headers, and their parts, such as the token of a Bearer."""
        values = [value for _, value in self.headers]
        parts = [part for value in values for part in re.split(r"[\s;,=]+", value)]
        return SecretRedactor([*([self.key] if self.key else []), *values, *parts])
