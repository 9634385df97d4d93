"""Real clients read right streams, and those that were repaired, as they are meant."""

from collections.abc import Iterator
from typing import Literal, TypeAlias

import pytest

from tests.matrix.oracle import matrix_cases
from tests.oracle import python_client
from tests.oracle.cases import Case, cases
from tests.oracle.node_client import NodeClients, why_missing
from tests.oracle.repaired import repaired_cases
from tests.oracle.reply import Reply
from tests.oracle.serve import CannedServer

Untold: TypeAlias = Literal["role", "reasoning", "refusal"]

CASES = cases() + repaired_cases() + matrix_cases()
CHAT = [case for case in CASES if case.endpoint == "chat"]
COMPLETIONS = [case for case in CASES if case.endpoint == "completions"]
# The AI SDK shows its users one answer and joins all choices into it.
SINGLE = [case for case in CASES if set(case.expected["choices"]) <= {0}]


def _name(case: Case) -> str:
    return f"{case.endpoint}: {case.name}"


@pytest.fixture(scope="module")
def server() -> Iterator[CannedServer]:
    with CannedServer() as server:
        yield server


@pytest.fixture(scope="module")
def node() -> Iterator[NodeClients]:
    if reason := why_missing():
        pytest.skip(reason)
    with NodeClients() as clients:
        yield clients


@pytest.mark.parametrize("case", CHAT, ids=_name)
def test_openai_python_reads_chat(server: CannedServer, case: Case) -> None:
    assert python_client.read_chat(server.add(case.body)) == case.expected


@pytest.mark.parametrize("case", CHAT, ids=_name)
def test_openai_python_helper_reads_chat(server: CannedServer, case: Case) -> None:
    assert python_client.read_chat_helper(server.add(case.body)) == case.expected


@pytest.mark.parametrize("case", COMPLETIONS, ids=_name)
def test_openai_python_reads_completions(server: CannedServer, case: Case) -> None:
    assert python_client.read_completions(server.add(case.body)) == case.expected


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_openai_node_reads_all(server: CannedServer, node: NodeClients, case: Case) -> None:
    assert _read(node, "openai", server, case) == case.expected


@pytest.mark.parametrize("case", CHAT, ids=_name)
def test_openai_node_helper_reads_chat(server: CannedServer, node: NodeClients, case: Case) -> None:
    # Of a field that it does not know it keeps the last piece only.
    assert _read(node, "openai.stream", server, case) == without(case.expected, "reasoning")


@pytest.mark.parametrize("case", SINGLE, ids=_name)
def test_ai_sdk_reads_all(server: CannedServer, node: NodeClients, case: Case) -> None:
    # It tells its users neither the role nor a refusal.
    heard = _read(node, "ai-sdk", server, case)
    assert without(heard, "role", "refusal") == without(case.expected, "role", "refusal")


def _read(node: NodeClients, client: str, server: CannedServer, case: Case) -> Reply:
    choices = case.expected["choices"].values()
    offered = sorted({name for choice in choices for _, name, _ in choice["tools"]})
    return node.read(client, server.add(case.body), case.endpoint, offered)


def without(whole: Reply, *untold: Untold) -> Reply:
    """The reply less what a client does not tell, and less choices of which it then tells nothing."""
    choices = {index: choice.copy() for index, choice in whole["choices"].items()}
    for choice in choices.values():
        for field in untold:
            choice[field] = ""
    told = {index: choice for index, choice in choices.items() if any(choice.values())}
    return {**whole, "choices": told}
