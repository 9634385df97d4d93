"""Settings of a check run, the dialects that can be checked, and the prompts of the probes."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import msgspec

from welldone.dialects.gemini.objects import KEY_HEADER
from welldone.dialects.messages.objects import ANTHROPIC_VERSION, ANTHROPIC_VERSION_HEADER
from welldone.http.redaction import SecretRedactor

Headers: TypeAlias = tuple[tuple[str, str], ...]


class CheckDialect(msgspec.Struct, frozen=True, kw_only=True):
    """Path, field names and rules of one API dialect."""

    name: str
    endpoints: tuple[str, ...]
    """Endpoints whose rules are judged."""
    path: str
    input_field: str = "messages"
    """Name of the field with the conversation."""
    request_variants: tuple[tuple[Mapping[str, Any], str], ...]
    """Fields that make answers repeatable, and the name of the token limit: the defaults, then fallbacks."""
    min_tokens: int = 1
    """The smallest token limit that servers accept."""
    length_reason: str
    """Finish reason of an answer that reached its token limit."""
    headers: Headers = ()
    key_header: str | None = None
    """Header with the key, in addition to Authorization."""

    def request_headers(self, key: str | None) -> Headers:
        """Headers of every request."""
        return self.headers if self.key_header is None or key is None else (*self.headers, (self.key_header, key))

    def prompt_members(self, content: str | list[dict[str, Any]]) -> dict[str, Any]:
        """The input field with one user message or a whole conversation."""
        conversation = [{"role": "user", "content": content}] if isinstance(content, str) else content
        return {self.input_field: content if self.input_field == "input" else conversation}

    def write_request(self, fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Path and body of a request with these fields. The value `...` omits a field."""
        return self.path, {name: value for name, value in fields.items() if value is not ...}


class GeminiCheckDialect(CheckDialect, frozen=True, kw_only=True):
    """Gemini: the path has the model and whether to stream, and most fields are those of `generationConfig`."""

    def prompt_members(self, content: str | list[dict[str, Any]]) -> dict[str, Any]:
        """The contents with one user message or a whole conversation."""
        return {
            self.input_field: [{"role": "user", "parts": [{"text": content}]}] if isinstance(content, str) else content
        }

    def write_request(self, fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Path and body. `alt` json requests a stream as an array."""
        members = {name: value for name, value in fields.items() if value is not ...}
        model = quote(str(members.pop("model")).removeprefix("models/"), safe="/:@._-")
        alt = members.pop("alt", "sse")
        method = "generateContent"
        if members.pop("stream", False):
            method = "streamGenerateContent" + (f"?alt={alt}" if alt != "json" else "")
        body = {name: value for name, value in members.items() if name in _GEMINI_FIELDS}
        body["generationConfig"] = {name: value for name, value in members.items() if name not in _GEMINI_FIELDS}
        return f"/models/{model}:{method}", body


_GEMINI_FIELDS = ("contents", "systemInstruction", "tools", "toolConfig", "safetySettings", "cachedContent")
"""Fields of a Gemini request; all others belong to `generationConfig`."""


CHAT = CheckDialect(
    name="chat",
    endpoints=("chat", "completions"),
    path="/chat/completions",
    request_variants=(
        ({"temperature": 0, "seed": 7}, "max_tokens"),
        ({"temperature": 0}, "max_tokens"),
        # OpenAI's reasoning models refuse temperature and max_tokens.
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
    min_tokens=16,  # OpenAI refuses less
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
GEMINI = GeminiCheckDialect(
    name="gemini",
    endpoints=("gemini",),
    path="/models/MODEL:generateContent",
    input_field="contents",
    request_variants=(
        ({"temperature": 0, "seed": 7}, "maxOutputTokens"),
        ({"temperature": 0}, "maxOutputTokens"),
        ({}, "maxOutputTokens"),
    ),
    length_reason="MAX_TOKENS",
    key_header=KEY_HEADER,
)
DIALECTS: Mapping[str, CheckDialect] = {dialect.name: dialect for dialect in (CHAT, RESPONSES, MESSAGES, GEMINI)}


# Prompts that a small model answers as well as a large one.


HELLO_PROMPT = "Say hello."
COUNT_PROMPT = "Count from 1 to 200. Write only the numbers, separated by commas."
"""The answer has a known form and many tokens: it reaches any small limit."""
EMOJI_PROMPT = "Repeat exactly: 👋🌍 naïve café, 你好, привет 🎉"
"""Most characters of the answer take several bytes, and some emoji several tokens."""


class Timeouts(msgspec.Struct, frozen=True):
    """Time limits of a check. Tests use shorter ones."""

    reply_s: float = 60.0
    """Timeout of a reply."""
    silence_s: float = 15.0
    """Longest silence in a stream: nginx and most load balancers time out after 60 s without data."""
    prefill_s: float = 0.5
    """A shorter time to the first text does not show whether the response head was sent before it."""
    stream_s: float = 0.25
    """A shorter stream does not show whether chunks were buffered."""
    disconnect_s: float = 3.0
    """Time in which a server must stop after its client disconnects."""
    after_done_s: float = 3.0
    """How long a body may stay open after [DONE]."""


class CheckSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one run."""

    url: str
    """Base URL, including /v1."""
    model: str | None = None
    """None: the first model that the server lists."""
    endpoint: str = "chat"
    """Name of the dialect."""
    key: str | None = None
    ca_file: str | None = None
    is_verified: bool = True
    headers: tuple[tuple[str, str], ...] = ()
    """Headers of every request. Their values may be secrets."""
    env_variables: Mapping[str, str] = {}
    """Environment variables that hold the key (`Authorization`) and headers; printed commands refer to them."""
    extra: Mapping[str, Any] = {}
    """Additional fields of every valid request body."""
    only: tuple[str, ...] = ()
    """Names of probes or groups; empty: all."""
    skip: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    """Rule ids; empty: all."""
    profile: str | None = None
    is_strict: bool = False
    known: frozenset[str] | None = None
    """Rules that are broken in the baseline; None: there is no baseline."""
    jobs: int = 4
    """Concurrent requests. llama.cpp has four slots by default."""
    record: Path | None = None
    """Folder for trace files."""
    timeouts: Timeouts = Timeouts()
    docs_url: str = ""
    """Address of the documentation site, for links to rules."""

    def __repr__(self) -> str:
        """The URL only: other fields may be secrets."""
        return f"CheckSettings({self.url})"

    @property
    def dialect(self) -> CheckDialect:
        """The dialect of `endpoint`."""
        return DIALECTS[self.endpoint]

    @property
    def secrets(self) -> SecretRedactor:
        """Redactor for the key, the values of headers, and their parts, such as the token after `Bearer`."""
        values = [value for _, value in self.headers]
        words = [word for value in values for word in re.split(r"[\s;,=]+", value)]
        return SecretRedactor([*([self.key] if self.key else []), *values, *words])
