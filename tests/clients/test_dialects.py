"""Clients of the Responses, Messages and Gemini APIs with the default model: text, usage, tools, errors, cancels."""

import json
from collections.abc import Callable
from typing import Any, get_args

import pytest

from tests.clients import metrics
from tests.clients.api_clients import API_CLIENTS, EACH_CLIENT, EACH_STREAM, ApiClient
from tests.clients.client import Client, Program
from tests.clients.programs.job import City, Days, Job, Result
from tests.support.server import Running

# Small models answer it and stop within ROOM_TOKENS.
QUESTION = "What is the capital of France? Answer in one short sentence."
ROOM_TOKENS = 48

BY_NAME = {client.name: client for client in API_CLIENTS}
OPENAI = pytest.mark.parametrize("name", ["openai-python", "openai-node"])
COUNTING = pytest.mark.parametrize("name", ["anthropic-python", "anthropic-node", "google-python", "google-node"])

RunScenario = Callable[..., Result]


@pytest.fixture
def run_scenario(server: Running, client_of: Callable[[Program], Client]) -> RunScenario:
    """Run a scenario with a client; returns its result."""

    def run(client: ApiClient, scenario: str, mode: str = "whole") -> Result:
        return client_of(client.program).run_job(
            Job(
                scenario=scenario,
                base_url=server.url,
                model=server.model,
                key=server.key or "none",
                prompt=QUESTION,
                max_tokens=ROOM_TOKENS,
                endpoint=client.endpoint,
                mode=mode,
            )
        )

    return run


def _is_valid_call(call: list[Any]) -> bool:
    """Whether the call names an offered tool and its arguments match the schema."""
    name, arguments = call
    schema_fields = {"get_weather": {"city", "days"}, "get_time": {"city"}}
    return name in schema_fields and arguments.keys() == schema_fields[name] and _is_valid_trip(arguments)


def _is_valid_trip(values: dict[str, Any]) -> bool:
    return values["city"] in get_args(City) and values.get("days", 1) in get_args(Days)


@EACH_CLIENT
def test_an_answer_has_its_finish_reason_and_usage(run_scenario: RunScenario, client: ApiClient) -> None:
    results = [run_scenario(client, "answer", mode) for mode in client.modes]
    assert {result["error"] for result in results} == {None}
    assert {result["finish"] for result in results} == {client.finish_reasons[0]}
    assert (
        len({("".join(result["pieces"]), *result["usage"]) for result in results}) == 1
    )  # streamed and whole answers are equal
    assert "Paris" in "".join(results[0]["pieces"])
    assert all(len(result["pieces"]) > 1 for result in results[1:])
    prompt, completion, total = results[0]["usage"]
    assert prompt > 0
    assert 0 < completion <= ROOM_TOKENS
    assert total == prompt + completion


@EACH_CLIENT
def test_a_tool_is_called_and_its_result_is_used(run_scenario: RunScenario, client: ApiClient) -> None:
    result = run_scenario(client, "call", "stream")
    (call,) = result["called"]["calls"]
    assert _is_valid_call(call)
    assert "".join(result["answered"]["pieces"])


def test_a_named_tool_is_called_and_its_result_is_added_to_the_stored_response(run_scenario: RunScenario) -> None:
    result = run_scenario(BY_NAME["openai-python"], "call_stored")
    (call,) = result["called"]["calls"]
    assert call[0] == "get_weather"
    assert _is_valid_call(call)
    assert "".join(result["answered"]["pieces"])


def test_an_answer_matches_a_schema_in_googles_format(run_scenario: RunScenario) -> None:
    places = json.loads(run_scenario(BY_NAME["google-python"], "structured")["text"])
    assert len(places) == 2
    assert all(place.keys() == {"city", "days"} and _is_valid_trip(place) for place in places)


def test_an_answer_matches_the_requested_schema(run_scenario: RunScenario) -> None:
    trips = run_scenario(BY_NAME["openai-python"], "structured")["places"]
    assert len(trips) == 2
    assert all(trip.keys() == {"city", "days"} and _is_valid_trip(trip) for trip in trips)


@OPENAI
def test_a_response_is_stored_until_it_is_deleted(run_scenario: RunScenario, name: str) -> None:
    result = run_scenario(BY_NAME[name], "stored")
    assert result["again"]
    assert result["input"] == ["message"]
    assert (result["error"], result["status"]) == ("NotFoundError", 404)


@OPENAI
def test_the_stream_of_a_background_response_is_resumed(run_scenario: RunScenario, name: str) -> None:
    result = run_scenario(BY_NAME[name], "resumed")
    assert (result["is_contiguous"], result["is_whole"], result["background"]) == (True, True, True)
    assert result["pieces"] > 2


def test_openai_python_reads_and_resumes_a_chat_with_numbered_events(run_scenario: RunScenario) -> None:
    assert run_scenario(BY_NAME["openai-python"], "numbered_chat") == {"is_whole": True}


@COUNTING
def test_counted_tokens_equal_the_prompt_tokens_of_the_usage(run_scenario: RunScenario, name: str) -> None:
    tokens = run_scenario(BY_NAME[name], "count")["tokens"]
    assert tokens == run_scenario(BY_NAME[name], "answer")["usage"][0]


@COUNTING
def test_models_are_listed(run_scenario: RunScenario, server: Running, name: str) -> None:
    assert server.model in run_scenario(BY_NAME[name], "models")["models"]


@EACH_CLIENT
def test_an_unknown_model_raises_the_error_of_the_client(run_scenario: RunScenario, client: ApiClient) -> None:
    for mode in client.modes:
        result = run_scenario(client, "unknown_model", mode)
        assert (result["error"], result["status"]) == (client.errors[0], 404)
        assert Job.missing_model in result["message"]


@pytest.mark.parametrize(
    "client", [client for client in API_CLIENTS if client.errors[1]], ids=lambda client: client.name
)
def test_an_invalid_request_raises_the_error_of_the_client(run_scenario: RunScenario, client: ApiClient) -> None:
    result = run_scenario(client, "bad_request")
    assert (result["error"], result["status"]) == (client.errors[1], 400)
    assert "temperature" in result["message"]


@EACH_STREAM
def test_a_disconnect_frees_the_server(
    run_scenario: RunScenario, server: Running, client: ApiClient, mode: str
) -> None:
    metrics.wait_for(server, "welldone_active_streams", 0)
    disconnects = metrics.read(server, "welldone_client_disconnects_total")
    assert run_scenario(client, "cancel", mode) == {"pieces": 2}
    metrics.wait_for(server, "welldone_active_streams", 0)
    metrics.wait_for(server, "welldone_client_disconnects_total", disconnects + 1)
