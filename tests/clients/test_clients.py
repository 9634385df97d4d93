"""Real clients in their own processes against a running server: text, usage, tools, errors, cancellation."""

from collections.abc import Callable
from typing import Any, get_args

import pytest

from tests.clients import metrics
from tests.clients.client import Client, Program
from tests.clients.programs.job import City, Days, Job, Result
from tests.support.server import Running

PROGRAMS = {
    program.name: program
    for program in (
        Program(name="openai-python", home="clients", file="openai_raw"),
        Program(name="openai-python-helpers", home="clients", file="openai_helpers"),
        Program(name="langchain", home="clients", file="langchain"),
        Program(name="pydantic-ai", home="clients", file="pydantic_agent"),
        Program(name="llm", home="clients", file="llm_command"),
        Program(name="litellm", home="peers", file="litellm_sdk"),
        Program(name="openai-node", home="node", file="talk_openai.mjs"),
        Program(name="openai-node-helpers", home="node", file="talk_openai_helpers.mjs"),
        Program(name="ai-sdk", home="node", file="talk_ai.mjs"),
    )
}
HELPERS = {"openai-python-helpers", "openai-node-helpers"}
# The command line has no option that forces a tool.
NO_TOOLS = {"llm"}
WITH_FORCED_TOOLS = sorted(PROGRAMS.keys() - HELPERS - NO_TOOLS)

# Exceptions of each client for an unknown model and for an invalid request.
ERRORS = {
    "openai-python": ("NotFoundError", "BadRequestError"),
    "langchain": ("OpenAIModelNotFoundError", "OpenAIInvalidRequestError"),
    "pydantic-ai": ("ModelNotFoundError", "ModelRequestRejectedError"),
    "litellm": ("NotFoundError", "BadRequestError"),
    "openai-node": ("NotFoundError", "BadRequestError"),
    "ai-sdk": ("AI_APICallError", "AI_APICallError"),
}

RunScenario = Callable[[str, str], Result]


@pytest.fixture
def run_scenario(server: Running, client_of: Callable[[Program], Client]) -> RunScenario:
    """Run a scenario with a client; returns its result."""

    def run(name: str, scenario: str) -> Result:
        job = Job(scenario=scenario, base_url=server.url, model=server.model, key=server.key or "none")
        return client_of(PROGRAMS[name]).run_job(job)

    return run


def _is_valid_call(call: list[Any]) -> bool:
    """Whether the call names an offered tool and its arguments match the schema."""
    name, arguments = call
    schema_fields = {"get_weather": {"city", "days"}, "get_time": {"city"}}
    return name in schema_fields and arguments.keys() == schema_fields[name] and _is_valid_trip(arguments)


def _is_valid_trip(values: dict[str, Any]) -> bool:
    return values["city"] in get_args(City) and values.get("days", 1) in get_args(Days)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_stream_has_the_same_text_as_a_buffered_answer(run_scenario: RunScenario, name: str) -> None:
    result = run_scenario(name, "text")
    assert result["streamed"] == result["whole"] != ""
    assert result["pieces"] > 1
    streamed, whole = result["finish"]
    assert streamed == whole


@pytest.mark.tier3
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_stream_has_the_same_usage_as_a_buffered_answer(run_scenario: RunScenario, name: str) -> None:
    result = run_scenario(name, "usage")
    (streamed,) = result["streamed"]
    assert streamed == result["whole"]
    prompt, completion, total = streamed
    assert prompt > 0
    assert 0 < completion <= Job.max_tokens
    assert total == prompt + completion


@pytest.mark.parametrize("name", WITH_FORCED_TOOLS)
def test_a_named_tool_is_called_and_its_result_is_used(run_scenario: RunScenario, name: str) -> None:
    result = run_scenario(name, "tool_named")
    (call,) = result["calls"]
    assert call[0] == "get_weather"
    assert _is_valid_call(call)
    assert result["answer"]


@pytest.mark.parametrize("name", WITH_FORCED_TOOLS)
def test_one_of_two_tools_is_called_and_its_result_is_used(run_scenario: RunScenario, name: str) -> None:
    result = run_scenario(name, "tool_required")
    (call,) = result["calls"]
    assert _is_valid_call(call)
    assert result["answer"]


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - NO_TOOLS))
def test_streamed_tool_arguments_are_complete(run_scenario: RunScenario, name: str) -> None:
    (call,) = run_scenario(name, "tool_stream")["calls"]
    assert _is_valid_call(call)


@pytest.mark.parametrize(
    "name", ["openai-python-helpers", "openai-node-helpers", "langchain", "pydantic-ai", "ai-sdk", "llm"]
)
def test_an_answer_matches_the_requested_schema(run_scenario: RunScenario, name: str) -> None:
    trips = run_scenario(name, "structured")["places"]
    assert trips
    assert all(trip.keys() == {"city", "days"} and _is_valid_trip(trip) for trip in trips)


@pytest.mark.parametrize("name", ERRORS)
def test_an_unknown_model_raises_the_error_of_the_client(run_scenario: RunScenario, name: str) -> None:
    result = run_scenario(name, "unknown_model")
    assert (result["error"], result["status"]) == (ERRORS[name][0], 404)
    assert Job.missing_model in result["message"]


@pytest.mark.parametrize("name", ["openai-python", "openai-node"])
def test_a_stream_from_an_unknown_model_never_starts(run_scenario: RunScenario, name: str) -> None:
    result = run_scenario(name, "unknown_model_stream")
    assert (result["error"], result["status"]) == ("NotFoundError", 404)


@pytest.mark.parametrize("name", ERRORS)
def test_an_invalid_request_raises_the_error_of_the_client(run_scenario: RunScenario, name: str) -> None:
    result = run_scenario(name, "bad_request")
    assert (result["error"], result["status"]) == (ERRORS[name][1], 400)
    assert "temperature" in result["message"]


def test_a_failed_command_has_an_exit_code(run_scenario: RunScenario) -> None:
    result = run_scenario("llm", "unknown_model")
    assert (result["error"], result["status"]) == ("exit 1", 404)
    assert Job.missing_model in result["message"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_disconnect_frees_the_server(run_scenario: RunScenario, server: Running, name: str) -> None:
    metrics.wait_for(server, "welldone_active_streams", 0)
    disconnects = metrics.read(server, "welldone_client_disconnects_total")
    assert run_scenario(name, "cancel") == {"pieces": 2}
    metrics.wait_for(server, "welldone_active_streams", 0)
    metrics.wait_for(server, "welldone_client_disconnects_total", disconnects + 1)
