"""Profiles: a rule counts for a client where a break of it is known to hurt that client."""

import re

from welldone.wire.faults import Rule
from welldone.wire.faults.catalogue import ALL_RULES

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
