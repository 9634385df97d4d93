"""Profiles: a rule counts for a client where a break of it is known to hurt that client."""

import re

from welldone.wire.faults import Fault
from welldone.wire.faults.catalogue import ALL

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
BUILT_ON = {"opencode": "ai-sdk", "claude-code": "anthropic-sdk-typescript"}
"""Programs that read streams with the library of another."""

_SEPARATOR = re.compile(r", | and ")
_VARIANTS = (
    (re.compile(r"AI SDK\b.*"), "ai-sdk"),
    (re.compile(r"(openai-python|openai-node|anthropic-sdk-python|anthropic-sdk-typescript)\b.*"), r"\1"),
)
_EVERYBODY = "every client"


def rules_of(client: str) -> frozenset[str]:
    """The rules that count for a client."""
    name = BUILT_ON.get(client, client)
    return frozenset(fault.id for fault in ALL if name in clients_of(fault) or _EVERYBODY in clients_of(fault))


def clients_of(fault: Fault) -> set[str]:
    """Whom a break of the rule hurts, by the names of the profiles."""
    names = (name for hurt in fault.hurts for name in _SEPARATOR.split(hurt.partition(":")[0]))
    return {_profile(name) for name in names}


def _profile(name: str) -> str:
    for pattern, profile in _VARIANTS:
        if found := pattern.fullmatch(name):
            return found.expand(profile)
    return name if name == _EVERYBODY else name.lower()
