"""Clients of the Responses and the Messages API in front of an upstream that speaks chat and nothing else."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clients import metrics, script
from tests.clients.client import Client, Program
from tests.clients.programs.job import Job, Saw
from tests.clients.speakers import AGENTS, EACH, EACH_STREAM, EACH_WAY, Speaker
from tests.live.server import Running
from tests.live.upstream import ACTIVE, Upstream, gateway, upstream

Ask = Callable[..., Saw]
STUMBLES = {"AssertionError", "AttributeError", "IndexError", "KeyError", "NameError", "TypeError", "UnboundLocalError"}
"""A client that ends so tells nobody what happened."""


@pytest.fixture(scope="module")
def behind() -> Iterator[Upstream]:
    with upstream(script.choose) as one:
        yield one


@pytest.fixture(scope="module")
def front(behind: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with gateway(tmp_path_factory.mktemp("gateway"), behind.url, each={"models": script.MODELS}) as running:
        yield running


@pytest.fixture
def ask(front: Running, client_of: Callable[[Program], Client]) -> Ask:
    """What a client saw in a scenario, of the model that is named."""

    def one(speaker: Speaker, scenario: str, model: str = "says", way: str = "whole", **asks: Any) -> Saw:  # noqa: ANN401 - each its own
        return client_of(speaker.program).ask(
            Job(
                scenario=scenario,
                base_url=front.url,
                model=model,
                key=front.key or "none",
                endpoint=speaker.endpoint,
                way=way,
                asks=asks,
            )
        )

    return one


@EACH_WAY
def test_an_answer_is_what_the_upstream_said(ask: Ask, speaker: Speaker, way: str) -> None:
    saw = ask(speaker, "answer", way=way, thinking={"type": "adaptive"})
    assert saw["error"] is None
    assert "".join(saw["pieces"]) == "".join(script.TEXT)
    assert way == "whole" or saw["pieces"] == list(script.TEXT)
    assert saw["finish"] == speaker.ends[0]
    assert saw["usage"] == script.USAGE
    assert "".join(saw["thoughts"]) == ("".join(script.THOUGHTS) if speaker.shows_thoughts else "")


@EACH_WAY
def test_calls_are_made_and_their_results_come_back(ask: Ask, behind: Upstream, speaker: Speaker, way: str) -> None:
    saw = ask(speaker, "call", "calls", way)
    assert saw["called"]["calls"] == [[name, arguments] for _, name, arguments in script.CALLS]
    assert saw["answered"]["error"] is None
    assert "".join(saw["answered"]["pieces"]).endswith(script.ANSWER)
    asked, again = (json.loads(post.body) for post in behind.posts()[-2:])
    assert [tool["function"]["name"] for tool in asked["tools"]] == [name for _, name, _ in script.CALLS]
    assert asked["tool_choice"] == "required"
    _check_history(again["messages"])


def _check_history(messages: list[dict[str, Any]]) -> None:
    """The upstream hears all that it said, and what the tools said to it."""
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    said = messages[1]
    calls = [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])) for call in said["tool_calls"]
    ]
    assert calls == list(script.CALLS)
    assert script.PREFACE in json.dumps(said["content"])
    assert [call_id for call_id, _ in script.results(messages)] == [call_id for call_id, _, _ in script.CALLS]
    assert all(Job.tool_result in result for _, result in script.results(messages))


@EACH_WAY
def test_an_answer_that_reached_its_limit_says_so(ask: Ask, speaker: Speaker, way: str) -> None:
    saw = ask(speaker, "answer", "limited", way)
    if speaker.program is AGENTS:
        assert "max_output_tokens" in saw["error"]  # an agent cannot go on with half an answer
    else:
        assert "".join(saw["pieces"]) == "".join(script.TEXT)
        assert (saw["finish"], saw["error"]) == (speaker.ends[1], None)


@EACH
def test_a_model_that_is_not_there_is_the_clients_own_error(ask: Ask, speaker: Speaker) -> None:
    saw = ask(speaker, "unknown_model")
    assert (saw["error"], saw["status"]) == (speaker.errors[0], 404)
    assert Job.missing_model in saw["message"]


@EACH_WAY
@pytest.mark.parametrize("model", ["breaks", "falls-silent"])
def test_an_upstream_that_fails_is_the_clients_own_error(ask: Ask, speaker: Speaker, way: str, model: str) -> None:
    saw = ask(speaker, "answer", model, way)
    assert saw["error"]
    assert saw["error"].partition(":")[0] not in STUMBLES
    assert model == "falls-silent" or script.COMPLAINT in saw["error"]
    assert way == "whole" or saw["pieces"] == list(script.TEXT)


@EACH_STREAM
def test_who_leaves_in_the_middle_leaves_the_upstream_free(
    ask: Ask, front: Running, behind: Upstream, speaker: Speaker, way: str
) -> None:
    assert ask(speaker, "cancel", "stalls", way) == {"pieces": 2}
    behind.until(lambda one: one.requests[-1].end == "left")
    metrics.wait_for(front, ACTIVE, 0)
