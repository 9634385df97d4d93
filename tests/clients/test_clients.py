"""Real clients, each a program of its own, against the running server: text, usage, tools, errors, a cancel."""

from collections.abc import Callable
from typing import Any, get_args

import pytest

from tests.clients import metrics
from tests.clients.client import Client, Program
from tests.clients.programs.job import City, Days, Job, Saw
from tests.live.server import Running

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
# A command that speaks with people forces no tool.
NO_TOOLS = {"llm"}
FORCED = sorted(PROGRAMS.keys() - HELPERS - NO_TOOLS)

# The name that each client has for a model that is not there, and for a request that is wrong.
ERRORS = {
    "openai-python": ("NotFoundError", "BadRequestError"),
    "langchain": ("OpenAIModelNotFoundError", "OpenAIInvalidRequestError"),
    "pydantic-ai": ("ModelNotFoundError", "ModelRequestRejectedError"),
    "litellm": ("NotFoundError", "BadRequestError"),
    "openai-node": ("NotFoundError", "BadRequestError"),
    "ai-sdk": ("AI_APICallError", "AI_APICallError"),
}

Ask = Callable[[str, str], Saw]


@pytest.fixture
def ask(server: Running, client_of: Callable[[Program], Client]) -> Ask:
    """What a client, by its name, saw in a scenario."""

    def one(name: str, scenario: str) -> Saw:
        job = Job(scenario=scenario, base_url=server.url, model=server.model, key=server.key or "none")
        return client_of(PROGRAMS[name]).ask(job)

    return one


def _fits(call: list[Any]) -> bool:
    """The call is one of a tool that was offered, with the arguments that its schema wants."""
    name, arguments = call
    wanted = {"get_weather": {"city", "days"}, "get_time": {"city"}}
    return name in wanted and arguments.keys() == wanted[name] and _is_place(arguments)


def _is_place(values: dict[str, Any]) -> bool:
    return values["city"] in get_args(City) and values.get("days", 1) in get_args(Days)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_stream_says_what_the_whole_answer_says(ask: Ask, name: str) -> None:
    saw = ask(name, "text")
    assert saw["streamed"] == saw["whole"] != ""
    assert saw["pieces"] > 1
    streamed, whole = saw["finish"]
    assert streamed == whole


@pytest.mark.tier3
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_stream_counts_what_the_whole_answer_counts(ask: Ask, name: str) -> None:
    saw = ask(name, "usage")
    (streamed,) = saw["streamed"]
    assert streamed == saw["whole"]
    prompt, completion, total = streamed
    assert prompt > 0
    assert 0 < completion <= Job.max_tokens
    assert total == prompt + completion


@pytest.mark.parametrize("name", FORCED)
def test_a_named_tool_is_called_and_its_result_is_answered(ask: Ask, name: str) -> None:
    saw = ask(name, "tool_named")
    (call,) = saw["calls"]
    assert call[0] == "get_weather"
    assert _fits(call)
    assert saw["answer"]


@pytest.mark.parametrize("name", FORCED)
def test_one_of_two_tools_is_called_and_its_result_is_answered(ask: Ask, name: str) -> None:
    saw = ask(name, "tool_required")
    (call,) = saw["calls"]
    assert _fits(call)
    assert saw["answer"]


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - NO_TOOLS))
def test_the_arguments_of_a_call_come_whole_through_a_stream(ask: Ask, name: str) -> None:
    (call,) = ask(name, "tool_stream")["calls"]
    assert _fits(call)


@pytest.mark.parametrize(
    "name", ["openai-python-helpers", "openai-node-helpers", "langchain", "pydantic-ai", "ai-sdk", "llm"]
)
def test_an_answer_fits_the_schema_that_was_asked_for(ask: Ask, name: str) -> None:
    places = ask(name, "structured")["places"]
    assert places
    assert all(place.keys() == {"city", "days"} and _is_place(place) for place in places)


@pytest.mark.parametrize("name", ERRORS)
def test_a_model_that_is_not_there_is_the_clients_own_error(ask: Ask, name: str) -> None:
    saw = ask(name, "unknown_model")
    assert (saw["error"], saw["status"]) == (ERRORS[name][0], 404)
    assert Job.missing_model in saw["message"]


@pytest.mark.parametrize("name", ["openai-python", "openai-node"])
def test_a_stream_from_a_model_that_is_not_there_never_begins(ask: Ask, name: str) -> None:
    saw = ask(name, "unknown_model_stream")
    assert (saw["error"], saw["status"]) == ("NotFoundError", 404)


@pytest.mark.parametrize("name", ERRORS)
def test_a_wrong_request_is_the_clients_own_error(ask: Ask, name: str) -> None:
    saw = ask(name, "bad_request")
    assert (saw["error"], saw["status"]) == (ERRORS[name][1], 400)
    assert "temperature" in saw["message"]


def test_a_command_that_failed_says_so_by_its_exit_code(ask: Ask) -> None:
    saw = ask("llm", "unknown_model")
    assert (saw["error"], saw["status"]) == ("exit 1", 404)
    assert Job.missing_model in saw["message"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_who_leaves_in_the_middle_leaves_the_server_free(ask: Ask, server: Running, name: str) -> None:
    metrics.wait_for(server, "welldone_active_streams", 0)
    left = metrics.read(server, "welldone_client_disconnects_total")
    assert ask(name, "cancel") == {"pieces": 2}
    metrics.wait_for(server, "welldone_active_streams", 0)
    metrics.wait_for(server, "welldone_client_disconnects_total", left + 1)
