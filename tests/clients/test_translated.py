"""Clients of the Responses, Messages and Gemini APIs with an upstream that has chat completions only."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clients import metrics, scripted_upstream
from tests.clients.api_clients import AGENTS, ALL_MODES, API_CLIENTS, EACH_CLIENT, EACH_MODE, EACH_STREAM, ApiClient
from tests.clients.client import Client, Program
from tests.clients.programs.job import Job, Result
from tests.support.server import Running
from tests.support.upstream import ACTIVE, Upstream, gateway, upstream

RunScenario = Callable[..., Result]
INTERNAL_ERRORS = {
    "AssertionError",
    "AttributeError",
    "IndexError",
    "KeyError",
    "NameError",
    "TypeError",
    "UnboundLocalError",
}
"""Exceptions that point to a bug in the client, not to a reported failure."""


@pytest.fixture(scope="module")
def chat_upstream() -> Iterator[Upstream]:
    with upstream(scripted_upstream.choose) as server:
        yield server


@pytest.fixture(scope="module")
def translating_gateway(chat_upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with gateway(
        tmp_path_factory.mktemp("gateway"), chat_upstream.url, each={"models": scripted_upstream.MODELS}
    ) as running:
        yield running


@pytest.fixture
def run_scenario(translating_gateway: Running, client_of: Callable[[Program], Client]) -> RunScenario:
    """Run a scenario with a client and a model; returns its result."""

    def run(
        client: ApiClient,
        scenario: str,
        model: str = "says",
        mode: str = "whole",
        key: str = "",
        **parameters: Any,  # noqa: ANN401 - request fields
    ) -> Result:
        return client_of(client.program).run_job(
            Job(
                scenario=scenario,
                base_url=translating_gateway.url,
                model=model,
                key=key or translating_gateway.key or "none",
                endpoint=client.endpoint,
                mode=mode,
                parameters=parameters,
            )
        )

    return run


@EACH_MODE
def test_an_answer_equals_the_upstream_reply(run_scenario: RunScenario, client: ApiClient, mode: str) -> None:
    result = run_scenario(client, "answer", mode=mode, thinking={"type": "adaptive"})
    assert result["error"] is None
    assert "".join(result["pieces"]) == "".join(scripted_upstream.TEXT)
    assert mode == "whole" or result["pieces"] == list(scripted_upstream.TEXT)
    assert result["finish"] == client.finish_reasons[0]
    assert result["usage"] == scripted_upstream.USAGE
    assert "".join(result["thoughts"]) == ("".join(scripted_upstream.THOUGHTS) if client.shows_thoughts else "")


@EACH_MODE
def test_tool_results_are_sent_back(
    run_scenario: RunScenario, chat_upstream: Upstream, client: ApiClient, mode: str
) -> None:
    result = run_scenario(client, "call", "calls", mode)
    assert result["called"]["calls"] == [[name, arguments] for _, name, arguments in scripted_upstream.CALLS]
    assert result["answered"]["error"] is None
    assert "".join(result["answered"]["pieces"]).endswith(scripted_upstream.ANSWER)
    first, second = (json.loads(post.body) for post in chat_upstream.posts()[-2:])
    assert [tool["function"]["name"] for tool in first["tools"]] == [name for _, name, _ in scripted_upstream.CALLS]
    assert first["tool_choice"] == "required"
    _check_history(second["messages"])


def _check_history(messages: list[dict[str, Any]]) -> None:
    """The upstream receives its own message and the tool results."""
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assistant = messages[1]
    calls = [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in assistant["tool_calls"]
    ]
    assert calls == list(scripted_upstream.CALLS)
    assert scripted_upstream.PREFACE in json.dumps(assistant["content"])
    assert [call_id for call_id, _ in scripted_upstream.results(messages)] == [
        call_id for call_id, _, _ in scripted_upstream.CALLS
    ]
    assert all(Job.tool_result in result for _, result in scripted_upstream.results(messages))


@EACH_MODE
def test_an_answer_at_its_limit_has_that_finish_reason(run_scenario: RunScenario, client: ApiClient, mode: str) -> None:
    result = run_scenario(client, "answer", "limited", mode)
    if client.program is AGENTS:
        assert "max_output_tokens" in result["error"]  # an agent cannot continue with a partial answer
    else:
        assert "".join(result["pieces"]) == "".join(scripted_upstream.TEXT)
        assert (result["finish"], result["error"]) == (client.finish_reasons[1], None)


@EACH_CLIENT
def test_an_unknown_model_raises_the_error_of_the_client(run_scenario: RunScenario, client: ApiClient) -> None:
    result = run_scenario(client, "unknown_model")
    assert (result["error"], result["status"]) == (client.errors[0], 404)
    assert Job.missing_model in result["message"]


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("client", [one for one in API_CLIENTS if one.endpoint == "gemini"], ids=lambda one: one.name)
def test_a_wrong_key_raises_the_error_of_googles_clients(
    run_scenario: RunScenario, client: ApiClient, mode: str
) -> None:
    result = run_scenario(client, "bad_request", mode=mode, key="wd-wrong-key-0123456789")
    assert (result["error"], result["status"]) == (client.errors[0], 401)
    assert "UNAUTHENTICATED" in result["message"]


@EACH_MODE
@pytest.mark.parametrize("model", ["breaks", "falls-silent"])
def test_a_failing_upstream_raises_the_error_of_the_client(
    run_scenario: RunScenario, client: ApiClient, mode: str, model: str
) -> None:
    result = run_scenario(client, "answer", model, mode)
    assert result["error"]
    assert result["error"].partition(":")[0] not in INTERNAL_ERRORS
    assert model == "falls-silent" or scripted_upstream.ERROR_MESSAGE in result["error"]
    assert mode == "whole" or result["pieces"] == list(scripted_upstream.TEXT)


@EACH_STREAM
def test_a_disconnect_frees_the_upstream(
    run_scenario: RunScenario, translating_gateway: Running, chat_upstream: Upstream, client: ApiClient, mode: str
) -> None:
    assert run_scenario(client, "cancel", "stalls", mode) == {"pieces": 2}
    chat_upstream.wait_until(lambda server: server.requests[-1].end == "left")
    metrics.wait_for(translating_gateway, ACTIVE, 0)
