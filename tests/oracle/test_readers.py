"""Real clients read correct and repaired streams correctly."""

import functools
from collections.abc import Iterator
from typing import Literal, TypeAlias

import pytest

from tests.matrix.repaired_cases import matrix_cases
from tests.oracle import python_client
from tests.oracle.canned_server import CannedServer
from tests.oracle.cases import Case, cases
from tests.oracle.node_client import NodeClients, why_missing
from tests.oracle.repaired import repaired_cases
from tests.oracle.reply import Reply
from tests.table import table

Untold: TypeAlias = Literal["role", "reasoning", "refusal", "finish"]


@functools.cache
def all_cases() -> list[Case]:
    """Return all streams with their expected results."""
    return cases() + repaired_cases() + matrix_cases()


def chats() -> list[Case]:
    """Return the chat streams."""
    return [case for case in all_cases() if case.endpoint == "chat"]


def single() -> list[Case]:
    """Return the chat streams with one choice: the AI SDK joins several into one."""
    return [case for case in all_cases() if set(case.expected["choices"]) <= {0}]


def _name(case: Case) -> str:
    return f"{case.endpoint}: {case.name}"


@pytest.fixture(scope="module")
def canned() -> Iterator[CannedServer]:
    with CannedServer() as server:
        yield server


@pytest.fixture(scope="module")
def node() -> Iterator[NodeClients]:
    if reason := why_missing():
        pytest.skip(reason)
    with NodeClients() as clients:
        yield clients


@table("case", all_cases, ids=_name)
def test_openai_python_reads_all(canned: CannedServer, case: Case) -> None:
    url = canned.add(case.body)
    if case.endpoint == "completions":
        assert python_client.read_completions(url) == case.expected
    else:
        assert python_client.read_chat(url) == case.expected


@pytest.mark.tier3
@table("case", chats, ids=_name)
def test_openai_python_helper_reads_all(canned: CannedServer, case: Case) -> None:
    assert python_client.read_chat_helper(canned.add(case.body)) == case.expected


@pytest.mark.tier2
@table("case", all_cases, ids=_name)
def test_openai_node_reads_all(canned: CannedServer, node: NodeClients, case: Case) -> None:
    assert _read(node, "openai", canned, case) == case.expected
    if case.endpoint == "chat":
        # The helper keeps only the last value of an unknown field.
        assert _read(node, "openai.stream", canned, case) == without(case.expected, "reasoning")


@pytest.mark.tier2
@table("case", single, ids=_name)
def test_ai_sdk_reads_all(canned: CannedServer, node: NodeClients, case: Case) -> None:
    # The AI SDK does not report role and refusal.
    actual = _read(node, "ai-sdk", canned, case)
    assert without(actual, "role", "refusal") == without(case.expected, "role", "refusal")


def _read(node: NodeClients, client: str, canned: CannedServer, case: Case) -> Reply:
    choices = case.expected["choices"].values()
    offered = sorted({name for choice in choices for _, name, _ in choice["tools"]})
    return node.read(client, canned.add(case.body), case.endpoint, offered)


def without(whole: Reply, *untold: Untold) -> Reply:
    """Remove what a client does not report, and choices that are then empty."""
    choices = {index: choice.copy() for index, choice in whole["choices"].items()}
    for choice in choices.values():
        for field in untold:
            choice[field] = ""
    remaining = {index: choice for index, choice in choices.items() if any(choice.values())}
    return {**whole, "choices": remaining}
