"""The first look: what cannot be checked ends with one clear line, and what can is asked as it wants to be asked."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.check.serving import HASTY, IMPATIENT, no_pause, serving
from tests.http.aio import run
from tests.table import table
from welldone.check.discovery import CheckUnreachableError, discover
from welldone.check.probe_client import ProbeClient, ServerFacts
from welldone.check.settings import CheckSettings
from welldone.http import recording_client
from welldone.mock.faults import FAULT_REPLIES, error_reply, redirect
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockChunk, MockReply, MockScript, json_reply
from welldone.mock.server import MockHttpRequest, MockServer

Choose = Callable[[MockHttpRequest], MockReply]
PAGE = MockReply(
    (MockChunk("<html><body>Welcome</body></html>"),), headers={"Content-Type": "text/html"}, framing="length"
)
SILENT = MockReply(end="hang", raw=True)
NOT_FOUND = MockReply((MockChunk("not here"),), 404, {"Content-Type": "text/plain"}, framing="length")


async def _look(choose: Choose, **settings: Any) -> ServerFacts:  # noqa: ANN401 - any setting
    async with serving(choose) as url:
        return await discover(
            ProbeClient(
                CheckSettings(url=url, **{"patience": IMPATIENT, **settings}),
                recording_client.record_response,
                no_pause,
            )
        )


def _fails(choose: Choose, **settings: Any) -> str:  # noqa: ANN401 - any setting
    """What is said of a server that cannot be checked, without its address."""

    async def work() -> str:
        async with serving(choose) as url:
            with pytest.raises(CheckUnreachableError) as caught:
                await discover(
                    ProbeClient(
                        CheckSettings(url=url, **{"patience": HASTY, **settings}),
                        recording_client.record_response,
                        no_pause,
                    )
                )
            return str(caught.value).replace(url, "URL")

    message = run(work())
    assert "\n" not in message
    return message


def _chat(reply: MockReply, key: str | None = None) -> Choose:
    """A right server but for its chat."""
    ideal = ReferenceServer(key=key)
    return lambda seen: reply if seen.method == "POST" else ideal.answer(seen)


def test_the_first_model_that_is_listed_is_asked() -> None:
    facts = run(_look(ReferenceServer(models=("one", "two")).answer))
    assert (facts.model, facts.reasoning_allowance, facts.limit_field) == ("one", 0, "max_tokens")


def test_the_model_that_was_named_is_asked() -> None:
    assert run(_look(ReferenceServer(models=("one", "two")).answer, model="two")).model == "two"


def test_a_model_that_thinks_gets_more_tokens() -> None:
    facts = run(_look(ReferenceServer(models=("deep-thinking",)).answer))
    assert facts.reasoning_allowance > 0


@pytest.mark.parametrize("status", [400, 422])
def test_who_takes_no_temperature_is_not_given_one(status: int) -> None:
    ideal = ReferenceServer()

    def choose(seen: MockHttpRequest) -> MockReply:
        if seen.method == "POST" and {"temperature", "max_tokens"} & json.loads(seen.body).keys():
            return error_reply(status, "unsupported parameter")
        return ideal.answer(seen)

    facts = run(_look(choose))
    assert (facts.members, facts.limit_field) == ({}, "max_completion_tokens")


def test_who_only_streams_is_checked() -> None:
    ideal = ReferenceServer()

    def choose(seen: MockHttpRequest) -> MockReply:
        if seen.method == "POST" and not json.loads(seen.body).get("stream"):
            return error_reply(500, "can only stream")
        return ideal.answer(seen)

    assert run(_look(choose)).model == "ideal"


def test_who_lists_no_models_is_checked_where_one_is_named() -> None:
    ideal = ReferenceServer()
    assert run(_look(lambda seen: NOT_FOUND if seen.method == "GET" else ideal.answer(seen), model="ideal")).model


def test_nobody_there() -> None:
    async def port() -> int:
        async with await MockServer(MockScript()).listen() as server:
            return server.port

    url = f"http://127.0.0.1:{run(port())}/v1"
    with pytest.raises(CheckUnreachableError, match="no connection to the server; is the server running there"):
        run(discover(ProbeClient(CheckSettings(url=url), recording_client.record_response)))


@table(
    ("choose", "said"),
    [
        (lambda _: SILENT, "URL/models timed out after 0.3 s; the server may be slow or busy: raise --timeout"),
        (_chat(SILENT), "URL: a chat request timed out after 0.3 s; the server may be slow or busy: raise --timeout"),
        (
            _chat(FAULT_REPLIES["hang"]),
            "URL: a chat request timed out after 0.3 s; the server may be slow or busy: raise",
        ),
        (_chat(error_reply(429, "later", "60")), "URL is too busy to be checked now (429: later)"),
        (lambda _: PAGE, "URL answers with a web page, not with JSON: give the address up to and with /v1"),
        (_chat(PAGE), "URL answers a chat request with a web page: is it a chat server?"),
        (_chat(FAULT_REPLIES["empty"]), "URL answers a chat request with nothing: is it a chat server?"),
        (_chat(FAULT_REPLIES["garbage"]), "URL answers a chat request with no JSON: is it a chat server?"),
        (lambda _: FAULT_REPLIES["not-http"], "URL: the reply is not HTTP"),
        (lambda _: redirect(301, "http://127.0.0.1:9/"), "URL redirects to http://127.0.0.1:9/: check that address"),
        (_chat(redirect(308, "/else")), "URL redirects to /else: check that address"),
        (
            lambda _: NOT_FOUND,
            "there is no URL/models: give the address up to and with /v1, or name a model with --model",
        ),
        (lambda _: json_reply({"object": "list", "data": []}), "URL lists no models: name one with --model"),
        (
            lambda _: error_reply(500, "it\nbroke\x1b[31m"),
            "URL lists no models (500: it broke?[31m): name one with --model",
        ),
        (_chat(NOT_FOUND), "there is no URL/chat/completions: give the address up to and with /v1"),
        (_chat(error_reply(500, "out of memory")), "URL does not answer for 'ideal' (500: out of memory)"),
        (ReferenceServer(key="correct horse").answer, "URL wants a key: --api-key KEY, or WELLDONE_API_KEY"),
        (_chat(error_reply(401, "no")), "URL wants a key: --api-key KEY, or WELLDONE_API_KEY (401: no)"),
    ],
)
def test_what_cannot_be_checked_is_one_line(choose: Choose, said: str) -> None:
    assert _fails(choose).startswith(said)


def test_a_key_that_is_not_taken_is_not_shown() -> None:
    message = _fails(ReferenceServer(key="correct horse").answer, key="battery staple")
    assert message.startswith("URL does not take this key")
    assert "battery" not in message


def test_a_model_that_does_not_exist_is_told_with_those_that_do() -> None:
    message = _fails(ReferenceServer(models=("one", "two")).answer, model="three")
    assert message.startswith("URL does not answer for 'three' (404: ")
    assert message.endswith("; it lists one, two")


def test_without_a_list_the_model_may_exist_or_not() -> None:
    ideal = ReferenceServer()
    message = _fails(lambda seen: NOT_FOUND if seen.method == "GET" else ideal.answer(seen), model="three")
    assert "does not answer for 'three'" in message


def test_a_model_that_thinks_in_secret_gets_the_most() -> None:
    nothing = {"choices": [{"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "length"}]}
    ideal = ReferenceServer()
    facts = run(_look(lambda seen: json_reply(nothing) if seen.method == "POST" else ideal.answer(seen)))
    assert facts.reasoning_allowance == 1024


def test_a_model_that_never_stops_thinking_gets_the_most() -> None:
    thoughts = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "", "reasoning": "hm"}}]}
    ideal = ReferenceServer()
    facts = run(_look(lambda seen: json_reply(thoughts) if seen.method == "POST" else ideal.answer(seen)))
    assert facts.reasoning_allowance == 1024


@table("name", sorted(FAULT_REPLIES))
def test_no_fault_of_a_server_is_an_error_of_the_look(name: str) -> None:
    reply = msgspec.structs.replace(FAULT_REPLIES[name])

    with contextlib.suppress(CheckUnreachableError):
        run(_look(lambda _: reply, patience=HASTY, model="m"))
