"""Real clients read the output of our writers for arbitrary events."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.laws.strategies import ENVELOPES, legal_events
from tests.oracle import python_client
from tests.oracle.canned_server import CannedServer
from tests.oracle.node_client import NodeClients, why_missing
from tests.oracle.repaired import plain
from tests.oracle.reply import Reply
from tests.oracle.test_readers import without
from welldone.core.envelope import Endpoint
from welldone.core.events import Event
from welldone.core.request_facts import RequestFacts
from welldone.dialects.chat.writer import ChunkFormat

# Server and node process have module scope: they keep no state between examples.
few = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


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


def _write(events: list[Event], endpoint: Endpoint) -> tuple[bytes, Reply]:
    writer = ChunkFormat(RequestFacts(include_usage=True), endpoint).make_writer(ENVELOPES[endpoint])
    body = b"".join([*(writer.send(event) for event in events), writer.end()])
    return body, plain(body)


def _offered(expected: Reply) -> list[str]:
    return sorted({name for choice in expected["choices"].values() for _, name, _ in choice["tools"]})


@few
@given(events=legal_events(Endpoint.CHAT))
def test_openai_python_reads_chat(server: CannedServer, events: list[Event]) -> None:
    body, expected = _write(events, Endpoint.CHAT)
    assert python_client.read_chat(server.add(body)) == expected


@few
@given(events=legal_events(Endpoint.CHAT))
def test_openai_python_helper_reads_chat(server: CannedServer, events: list[Event]) -> None:
    body, expected = _write(events, Endpoint.CHAT)
    assert python_client.read_chat_helper(server.add(body)) == expected


@few
@given(events=legal_events(Endpoint.COMPLETIONS))
def test_openai_python_reads_completions(server: CannedServer, events: list[Event]) -> None:
    body, expected = _write(events, Endpoint.COMPLETIONS)
    assert python_client.read_completions(server.add(body)) == expected


@pytest.mark.tier3
@few
@given(data=st.data(), endpoint=st.sampled_from([Endpoint.CHAT, Endpoint.COMPLETIONS]))
def test_openai_node_reads_all(
    server: CannedServer, node: NodeClients, data: st.DataObject, endpoint: Endpoint
) -> None:
    body, expected = _write(data.draw(legal_events(endpoint)), endpoint)
    assert node.read("openai", server.add(body), endpoint.value, _offered(expected)) == expected


@pytest.mark.tier3
@few
@given(events=legal_events(Endpoint.CHAT))
def test_openai_node_helper_reads_chat(server: CannedServer, node: NodeClients, events: list[Event]) -> None:
    body, expected = _write(events, Endpoint.CHAT)
    actual = node.read("openai.stream", server.add(body), "chat", _offered(expected))
    assert without(actual, "reasoning") == without(expected, "reasoning")


@pytest.mark.tier3
@few
@given(data=st.data(), endpoint=st.sampled_from([Endpoint.CHAT, Endpoint.COMPLETIONS]))
def test_ai_sdk_reads_all(server: CannedServer, node: NodeClients, data: st.DataObject, endpoint: Endpoint) -> None:
    body, expected = _write(data.draw(legal_events(endpoint, choices=1)), endpoint)
    actual = node.read("ai-sdk", server.add(body), endpoint.value, _offered(expected))
    if expected["error"]:  # then it does not report the finish reason
        actual, expected = without(actual, "finish"), without(expected, "finish")
    assert without(actual, "role", "refusal") == without(expected, "role", "refusal")
