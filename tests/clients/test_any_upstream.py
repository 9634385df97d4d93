"""Clients of chat, Responses, Messages and Gemini with an upstream that has only one of the last three APIs.

The upstream is a second welldone server, whose own upstream replies from a script.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.clients import scripted_upstream
from tests.clients.api_clients import ANTHROPIC_PYTHON, API_CLIENTS, GOOGLE_PYTHON, OPENAI_PYTHON
from tests.clients.client import Client, Program
from tests.clients.programs.job import Job, Result
from tests.support.server import Running
from tests.support.upstream import gateway, upstream

CHAT_PYTHON = Program(name="openai-python", home="clients", file="openai_raw")
CLIENTS = [client for client in API_CLIENTS if client.program in (OPENAI_PYTHON, ANTHROPIC_PYTHON, GOOGLE_PYTHON)]


@pytest.fixture(scope="module", params=["messages", "responses", "gemini"])
def one_dialect_gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway whose upstream has only one dialect."""
    folders = [tmp_path_factory.mktemp(name) for name in ("upstream", "gateway")]
    names = {"models": scripted_upstream.MODELS}
    with (
        upstream(scripted_upstream.choose) as scripted,
        gateway(folders[0], scripted.url, each=names) as server,
        gateway(
            folders[1], server.url, each={**names, "chat": False, "speaks": [request.param], "key": server.key}
        ) as running,
    ):
        yield running


def run(server: Running, client: Client, scenario: str, model: str, endpoint: str, mode: str) -> Result:
    job = Job(
        scenario=scenario, base_url=server.url, model=model, key=server.key or "none", endpoint=endpoint, mode=mode
    )
    return client.run_job(job)


def test_clients_of_other_apis_than_chat_get_answers_and_calls(
    one_dialect_gateway: Running, client_of: Callable[[Program], Client]
) -> None:
    for client in CLIENTS:
        program = client_of(client.program)
        for mode in client.modes:
            said = run(one_dialect_gateway, program, "answer", "says", client.endpoint, mode)
            assert (said["error"], "".join(said["pieces"])) == (None, "".join(scripted_upstream.TEXT))
            assert (said["finish"], said["usage"]) == (client.finish_reasons[0], scripted_upstream.USAGE)
            limited = run(one_dialect_gateway, program, "answer", "limited", client.endpoint, mode)
            assert (limited["finish"], limited["error"]) == (client.finish_reasons[1], None)
            called = run(one_dialect_gateway, program, "call", "calls", client.endpoint, mode)
            assert called["called"]["calls"] == [[name, given] for _, name, given in scripted_upstream.CALLS]
            assert called["answered"]["error"] is None
            assert "".join(called["answered"]["pieces"]).endswith(scripted_upstream.ANSWER)


def test_clients_of_chat_get_answers(one_dialect_gateway: Running, client_of: Callable[[Program], Client]) -> None:
    result = run(one_dialect_gateway, client_of(CHAT_PYTHON), "text", "says", "chat", "whole")
    assert result["streamed"] == result["whole"] == "".join(scripted_upstream.TEXT)
    assert result["finish"] == ["stop", "stop"]
    usage = run(one_dialect_gateway, client_of(CHAT_PYTHON), "usage", "says", "chat", "whole")
    assert usage["streamed"] == [usage["whole"]]
