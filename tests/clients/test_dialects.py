"""Clients of the Responses and the Messages API against the default model: text, usage, tools, errors, a cancel."""

from collections.abc import Callable
from typing import Any, get_args

import pytest

from tests.clients import metrics
from tests.clients.client import Client, Program
from tests.clients.programs.job import City, Days, Job, Saw
from tests.clients.speakers import EACH, EACH_STREAM, SPEAKERS, Speaker
from tests.live.server import Running

# Small models answer it, and come to an end. Its tokens have room.
QUESTION = "What is the capital of France? Answer in one short sentence."
ROOM_TOKENS = 48

BY_NAME = {speaker.name: speaker for speaker in SPEAKERS}
OPENAI = pytest.mark.parametrize("name", ["openai-python", "openai-node"])
ANTHROPIC = pytest.mark.parametrize("name", ["anthropic-python", "anthropic-node"])

Ask = Callable[..., Saw]


@pytest.fixture
def ask(server: Running, client_of: Callable[[Program], Client]) -> Ask:
    """What a client saw in a scenario."""

    def one(speaker: Speaker, scenario: str, way: str = "whole") -> Saw:
        return client_of(speaker.program).ask(
            Job(
                scenario=scenario,
                base_url=server.url,
                model=server.model,
                key=server.key or "none",
                prompt=QUESTION,
                max_tokens=ROOM_TOKENS,
                endpoint=speaker.endpoint,
                way=way,
            )
        )

    return one


def _fits(call: list[Any]) -> bool:
    """The call is one of a tool that was offered, with the arguments that its schema wants."""
    name, arguments = call
    wanted = {"get_weather": {"city", "days"}, "get_time": {"city"}}
    return name in wanted and arguments.keys() == wanted[name] and _is_place(arguments)


def _is_place(values: dict[str, Any]) -> bool:
    return values["city"] in get_args(City) and values.get("days", 1) in get_args(Days)


@EACH
def test_an_answer_comes_with_its_end_and_its_usage(ask: Ask, speaker: Speaker) -> None:
    saws = [ask(speaker, "answer", way) for way in speaker.ways]
    assert {saw["error"] for saw in saws} == {None}
    assert {saw["finish"] for saw in saws} == {speaker.ends[0]}
    assert len({("".join(saw["pieces"]), *saw["usage"]) for saw in saws}) == 1  # a stream says what the whole one does
    assert "Paris" in "".join(saws[0]["pieces"])
    assert all(len(saw["pieces"]) > 1 for saw in saws[1:])
    prompt, completion, total = saws[0]["usage"]
    assert prompt > 0
    assert 0 < completion <= ROOM_TOKENS
    assert total == prompt + completion


@EACH
def test_a_tool_is_called_and_its_result_is_answered(ask: Ask, speaker: Speaker) -> None:
    saw = ask(speaker, "call", "stream")
    (call,) = saw["called"]["calls"]
    assert _fits(call)
    assert "".join(saw["answered"]["pieces"])


def test_a_named_tool_is_called_and_its_result_added_to_what_the_server_keeps(ask: Ask) -> None:
    saw = ask(BY_NAME["openai-python"], "call_stored")
    (call,) = saw["called"]["calls"]
    assert call[0] == "get_weather"
    assert _fits(call)
    assert "".join(saw["answered"]["pieces"])


def test_an_answer_fits_the_schema_that_was_asked_for(ask: Ask) -> None:
    places = ask(BY_NAME["openai-python"], "structured")["places"]
    assert len(places) == 2
    assert all(place.keys() == {"city", "days"} and _is_place(place) for place in places)


@OPENAI
def test_a_response_is_kept_until_it_is_deleted(ask: Ask, name: str) -> None:
    saw = ask(BY_NAME[name], "stored")
    assert saw["again"]
    assert saw["input"] == ["message"]
    assert (saw["error"], saw["status"]) == ("NotFoundError", 404)


@ANTHROPIC
def test_the_tokens_of_a_request_are_those_that_its_answer_counts(ask: Ask, name: str) -> None:
    tokens = ask(BY_NAME[name], "count")["tokens"]
    assert tokens == ask(BY_NAME[name], "answer")["usage"][0]


@ANTHROPIC
def test_models_are_listed(ask: Ask, server: Running, name: str) -> None:
    assert server.model in ask(BY_NAME[name], "models")["models"]


@EACH
def test_a_model_that_is_not_there_is_the_clients_own_error(ask: Ask, speaker: Speaker) -> None:
    for way in speaker.ways:
        saw = ask(speaker, "unknown_model", way)
        assert (saw["error"], saw["status"]) == (speaker.errors[0], 404)
        assert Job.missing_model in saw["message"]


@pytest.mark.parametrize("speaker", [one for one in SPEAKERS if one.errors[1]], ids=lambda speaker: speaker.name)
def test_a_wrong_request_is_the_clients_own_error(ask: Ask, speaker: Speaker) -> None:
    saw = ask(speaker, "bad_request")
    assert (saw["error"], saw["status"]) == (speaker.errors[1], 400)
    assert "temperature" in saw["message"]


@EACH_STREAM
def test_who_leaves_in_the_middle_leaves_the_server_free(ask: Ask, server: Running, speaker: Speaker, way: str) -> None:
    metrics.wait_for(server, "welldone_active_streams", 0)
    left = metrics.read(server, "welldone_client_disconnects_total")
    assert ask(speaker, "cancel", way) == {"pieces": 2}
    metrics.wait_for(server, "welldone_active_streams", 0)
    metrics.wait_for(server, "welldone_client_disconnects_total", left + 1)
