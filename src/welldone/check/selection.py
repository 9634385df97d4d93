"""Validation of the probes, rules, profiles and request fields that a user selects; errors suggest a known name.

A profile is a client: it selects the rules whose violations are known to affect that client.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from welldone.check.probes import PROBES_BY_DIALECT
from welldone.check.report import CLIENT_LIBRARIES, affected_clients
from welldone.check.settings import CHAT, DIALECTS
from welldone.config.settings import did_you_mean, unknown_name, unknown_rule
from welldone.protocol.catalog import RULES

CLIENTS = (
    *("openai-python", "openai-node", "ai-sdk", "langchain", "pydantic-ai", "litellm", "org-ai", "zed"),
    *("async-openai", "gptel", "openai-dotnet", "go-openai", "goose", "inference-benchmarker", "codex"),
    *("langchain4j", "open-webui", "openai-go", "anthropic-sdk-python", "anthropic-sdk-typescript"),
    *("google-genai-python", "google-genai-js"),
)
"""Clients that were measured or whose code was read (docs/matrix.md)."""


def rules_for_client(client: str) -> frozenset[str]:
    """Ids of the rules that affect a client."""
    name = CLIENT_LIBRARIES.get(client, client)
    return frozenset(rule.id for rule in RULES.values() if name in affected_clients(rule.affects))


PROFILES = (*CLIENTS, *CLIENT_LIBRARIES)
RESERVED_FIELDS = (
    *("echo", "include", "input", "instructions", "logprobs", "max_completion_tokens", "max_output_tokens"),
    *("max_tokens", "messages", "model", "n", "prompt", "response_format", "stop", "stop_sequences", "stream"),
    *("stream_options", "suffix", "system", "text", "tool_choice", "tools", "top_logprobs"),
    *("contents", "systemInstruction", "toolConfig", "maxOutputTokens", "candidateCount", "stopSequences", "alt"),
)
"""Fields that the probes set themselves: other values would change what is checked."""


def parse_endpoint(given: str) -> str:
    """Validate the name of a dialect.

    Raises:
        ValueError: it is unknown.
    """
    if given not in DIALECTS:
        raise ValueError(unknown_name("endpoint", given, DIALECTS, f"there are {', '.join(DIALECTS)}"))
    return given


def parse_probe_names(given: Iterable[str], endpoint: str = CHAT.name) -> tuple[str, ...]:
    """Validate names of an endpoint's probes or groups.

    Raises:
        ValueError: a name is unknown.
    """
    words = _as_names(given)
    names = [probe.name for probe in PROBES_BY_DIALECT[endpoint]]
    groups = {name.partition("-")[0] for name in names}
    for word in words:
        if word not in names and not any(name.startswith(f"{word}-") for name in names):
            of = "" if endpoint == CHAT.name else f" of {endpoint}"
            hint = did_you_mean(word, {*names, *groups})
            raise ValueError(f"there is no probe {word!r}{of}{hint}; --list shows them")
    return words


def parse_rule_ids(given: Iterable[str]) -> tuple[str, ...]:
    """Validate rule ids.

    Raises:
        ValueError: an id is unknown.
    """
    words = _as_names(given)
    for rule in words:
        if rule not in RULES:
            raise ValueError(unknown_rule(rule, RULES))
    return words


def parse_profile(given: str | None) -> str | None:
    """Validate the name of a client.

    Raises:
        ValueError: it is unknown.
    """
    if given is not None and given not in PROFILES:
        raise ValueError(unknown_name("profile", given, PROFILES, f"there are {', '.join(PROFILES)}"))
    return given


def parse_extra_members(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """Validate additional request fields.

    Raises:
        ValueError: the probes set one of them.
    """
    for name in extra:
        if name in RESERVED_FIELDS:
            raise ValueError(f"{name} is set by the probes themselves; leave it out")
    return extra


def _as_names(given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str):  # it would be iterated letter by letter
        raise ValueError(f"{given!r} should be a list of names")  # noqa: TRY004 - all errors here are ValueErrors
    return tuple(given)
