"""Every recorded chat reply, read through the gateway by clients of the Responses and Messages APIs."""

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import pytest

from tests.clients.api_clients import AGENTS, AI_SDK, API_CLIENTS, ApiClient
from tests.clients.cases import Case, is_object, recorded_cases
from tests.clients.client import Client, Program
from tests.clients.matrix_clients import NO_ERROR, parsed
from tests.clients.programs.job import Job, Result
from tests.clients.replay_server import replaying
from tests.support.server import Running, serving

pytestmark = pytest.mark.tier3

# The others send further requests, or reject tool calls that they did not offer.
CLIENTS = [client for client in API_CLIENTS if client.program not in (AGENTS, AI_SDK)]
CASES = [case for case in recorded_cases() if case.endpoint == "chat" and not case.has_several_choices]
FINISH_REASONS = {
    "responses": {"length": "incomplete", "content_filter": "incomplete"},
    "messages": {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"},
}
"""Finish reasons of chat in each API; any other reason makes a Response `completed`."""

# Raised by the helper of anthropic-python for arguments that are not an object.
OBJECTION = "ValueError: Unable to parse tool parameter JSON"

GATEWAY = """
[upstreams.recorded]
url = "{url}"
models = ["*"]
probe_s = 0    # the replay server answers chat requests only
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    config = tmp_path_factory.mktemp("gateway") / "welldone.toml"
    with replaying({case.name: case.reply for case in CASES}) as url:
        config.write_text(GATEWAY.format(url=url))
        with serving(["--config", str(config)], is_awaited=False) as running:
            yield running


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_client_shows_what_the_server_sent(
    gateway: Running, client_of: Callable[[Program], Client], client: ApiClient
) -> None:
    program = client_of(client.program)
    differences = {}
    for case in CASES:
        for mode in ("stream", "helper") if case.is_stream else ("whole",):
            result = program.run_job(
                Job(
                    scenario="answer",
                    base_url=gateway.url,
                    model=case.name,
                    key=gateway.key or "none",
                    endpoint=client.endpoint,
                    mode=mode,
                )
            )
            if difference := _difference(case, client, mode, result):
                differences[f"{case.name}, {mode}"] = difference
    assert differences == {}


def _difference(case: Case, client: ApiClient, mode: str, result: Result) -> str | None:
    """None if the client shows the reply, or raises an error for a failed server; else a description."""
    if case.is_failure:
        return None if result["error"] else NO_ERROR
    (sent,) = case.choices
    calls = sent.calls
    if client.endpoint == "messages" and mode == "whole":
        calls = [call for call in sent.calls if is_object(call[1])]  # others cannot be represented in a message
    if len(calls) < len(sent.calls) and sent.finish not in ("length", "content_filter"):
        return None if result["error"] else NO_ERROR
    if result["error"]:
        is_objection = case.may_raise and result["error"].startswith(OBJECTION)
        return None if is_objection else str(result["error"])
    text = "".join(result["pieces"])
    if text != sent.text:
        return f"shows {text!r} for {sent.text!r}"
    differences = [
        (shown, sent_call)
        for shown, sent_call in zip_longest(result["calls"], calls)
        if not _is_same(client, shown, sent_call)
    ]
    if differences:
        return f"shows other calls: {differences}"
    end = _end(client, sent.finish, has_calls=bool(sent.calls))
    if result["finish"] != end:
        return f"ends with {result['finish']!r}, not {end!r}"
    return None if case.usage in (None, result["usage"]) else f"counts {result['usage']}, not {case.usage}"


def _is_same(client: ApiClient, shown: list[Any] | None, sent_call: list[Any] | None) -> bool:
    if shown is None or sent_call is None:
        return False
    # The input of a tool is an object in Messages: other arguments cannot be represented.
    is_representable = client.endpoint != "messages" or is_object(sent_call[1])
    return shown[0] == sent_call[0] and (shown[1] == parsed(sent_call[1]) or not is_representable)


def _end(client: ApiClient, finish: str | None, *, has_calls: bool) -> str:
    if has_calls and finish == "stop":  # the finish reason of chat for a named tool
        finish = "tool_calls"
    return FINISH_REASONS[client.endpoint].get(finish or "", "completed")
