"""What the user of a check may name: probes, rules, clients and members of a request. Who names what is not there is
told so, with a hint, wherever it is said."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from welldone.check.probes import PROBES_BY_DIALECT
from welldone.check.settings import CHAT, DIALECTS
from welldone.config.settings import did_you_mean
from welldone.protocol.catalog import ALL_RULES, RULES_BY_ID
from welldone.protocol.catalog.rule import Rule

# Profiles: a rule counts for a client where a break of it is known to hurt that client.


CLIENTS = (
    "openai-python",
    "openai-node",
    "ai-sdk",
    "langchain",
    "pydantic-ai",
    "litellm",
    "org-ai",
    "zed",
    "async-openai",
    "gptel",
    "openai-dotnet",
    "go-openai",
    "goose",
    "inference-benchmarker",
    "codex",
    "langchain4j",
    "open-webui",
    "openai-go",
    "openai-java",
    "anthropic-sdk-python",
    "anthropic-sdk-typescript",
)
"""Those of whom enough is known to judge for them alone."""
CLIENT_LIBRARIES = {"opencode": "ai-sdk", "claude-code": "anthropic-sdk-typescript"}
"""Programs that read streams with the library of another."""

_CLIENT_SEPARATOR = re.compile(r", | and ")
_CLIENT_VARIANTS = (
    (re.compile(r"AI SDK\b.*"), "ai-sdk"),
    (re.compile(r"(openai-python|openai-node|anthropic-sdk-python|anthropic-sdk-typescript)\b.*"), r"\1"),
)
_EVERY_CLIENT = "every client"


def rules_for_client(client: str) -> frozenset[str]:
    """The rules that count for a client."""
    name = CLIENT_LIBRARIES.get(client, client)
    return frozenset(
        fault.id for fault in ALL_RULES if name in affected_clients(fault) or _EVERY_CLIENT in affected_clients(fault)
    )


def affected_clients(rule: Rule) -> set[str]:
    """Whom a break of the rule hurts, by the names of the profiles."""
    names = (name for hurt in rule.affects for name in _CLIENT_SEPARATOR.split(hurt.partition(":")[0]))
    return {_profile_name(name) for name in names}


def _profile_name(name: str) -> str:
    for pattern, profile in _CLIENT_VARIANTS:
        if found := pattern.fullmatch(name):
            return found.expand(profile)
    return name if name == _EVERY_CLIENT else name.lower()


PROFILES = (*CLIENTS, *CLIENT_LIBRARIES)
RESERVED_FIELDS = frozenset(
    {
        "echo",
        "include",
        "input",
        "instructions",
        "logprobs",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "messages",
        "model",
        "n",
        "prompt",
        "response_format",
        "stop",
        "stop_sequences",
        "stream",
        "stream_options",
        "suffix",
        "system",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
    }
)
"""Members that the verdict depends on: with other values in their place it would be on another question."""


def parse_endpoint(given: str) -> str:
    """The name of a dialect.

    Raises:
        ValueError: it cannot be checked.
    """
    if given not in DIALECTS:
        raise ValueError(
            f"there is no endpoint {given!r}{did_you_mean(given, DIALECTS)}; there are {', '.join(DIALECTS)}"
        )
    return given


def parse_probe_names(given: Iterable[str], endpoint: str = CHAT.name) -> tuple[str, ...]:
    """Names of probes of an endpoint, or of groups of them.

    Raises:
        ValueError: there is no such probe.
    """
    words = _as_names(given)
    names = [probe.name for probe in PROBES_BY_DIALECT[endpoint]]
    groups = {name.partition("-")[0] for name in names}
    for word in words:
        if word not in names and not any(name.startswith(f"{word}-") for name in names):
            of = "" if endpoint == CHAT.name else f" of {endpoint}"
            raise ValueError(
                f"there is no probe {word!r}{of}{did_you_mean(word, {*names, *groups})}; --list shows them"
            )
    return words


def parse_rule_ids(given: Iterable[str]) -> tuple[str, ...]:
    """Ids of rules.

    Raises:
        ValueError: there is no such rule.
    """
    words = _as_names(given)
    for rule in words:
        if rule not in RULES_BY_ID:
            raise ValueError(f"there is no rule {rule!r}{did_you_mean(rule, RULES_BY_ID)}; welldone rules lists them")
    return words


def parse_profile(given: str | None) -> str | None:
    """The name of a client.

    Raises:
        ValueError: nothing is known of it.
    """
    if given is not None and given not in PROFILES:
        raise ValueError(
            f"there is no profile {given!r}{did_you_mean(given, PROFILES)}; there are {', '.join(PROFILES)}"
        )
    return given


def parse_extra_members(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """Members for every request.

    Raises:
        ValueError: one of them would change what is judged.
    """
    for name in extra:
        if name in RESERVED_FIELDS:
            raise ValueError(f"{name} is what the probes set themselves")
    return extra


def _as_names(given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, str):  # its letters would be taken for names
        raise ValueError(f"{given!r} should be a list of names")  # noqa: TRY004 - as all mistakes here
    return tuple(given)
