"""Discovery: a server that cannot be checked is reported in one line, and accepted request fields are found."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.check.serving import SHORT_TIMEOUTS, TEST_TIMEOUTS, no_pause, serving
from tests.http.aio import run
from tests.table import table
from welldone.check.discovery import CheckUnreachableError, discover
from welldone.check.probe_client import ProbeClient, ServerFacts
from welldone.check.settings import CheckSettings
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockChunk, MockReply, MockScript, json_reply
from welldone.mock.server import MockHttpRequest, MockServer
from welldone.mock.variants import FAULT_REPLIES, error_reply, redirect

Handler = Callable[[MockHttpRequest], MockReply]
PAGE = MockReply(
    (MockChunk("<html><body>Welcome</body></html>"),), headers={"Content-Type": "text/html"}, framing="length"
)
SILENT = MockReply(end="hang", raw=True)
NOT_FOUND = MockReply((MockChunk("not here"),), 404, {"Content-Type": "text/plain"}, framing="length")


async def _discover(handler: Handler, **settings: Any) -> ServerFacts:  # noqa: ANN401 - any setting
    async with serving(handler) as url:
        return await discover(
            ProbeClient(
                CheckSettings(url=url, **{"timeouts": TEST_TIMEOUTS, **settings}),
                no_pause,
            )
        )


def _error_message(handler: Handler, **settings: Any) -> str:  # noqa: ANN401 - any setting
    """The message of `CheckUnreachableError`, with `URL` for the server's URL."""

    async def work() -> str:
        async with serving(handler) as url:
            with pytest.raises(CheckUnreachableError) as caught:
                await discover(
                    ProbeClient(
                        CheckSettings(url=url, **{"timeouts": SHORT_TIMEOUTS, **settings}),
                        no_pause,
                    )
                )
            return str(caught.value).replace(url, "URL")

    message = run(work())
    assert "\n" not in message
    return message


def _chat(reply: MockReply, key: str | None = None) -> Handler:
    """A reference server except for its chat endpoint."""
    ideal = ReferenceServer(key=key)
    return lambda http_request: reply if http_request.method == "POST" else ideal.answer(http_request)


def test_the_first_listed_model_is_used() -> None:
    facts = run(_discover(ReferenceServer(models=("one", "two")).answer))
    assert (facts.model, facts.reasoning_allowance, facts.limit_field) == ("one", 0, "max_tokens")


def test_the_given_model_is_used() -> None:
    assert run(_discover(ReferenceServer(models=("one", "two")).answer, model="two")).model == "two"


def test_a_reasoning_model_gets_more_tokens() -> None:
    facts = run(_discover(ReferenceServer(models=("deep-thinking",)).answer))
    assert facts.reasoning_allowance > 0


@pytest.mark.parametrize("status", [400, 422])
def test_a_server_that_refuses_temperature_gets_requests_without_it(status: int) -> None:
    ideal = ReferenceServer()

    def handler(http_request: MockHttpRequest) -> MockReply:
        if http_request.method == "POST" and {"temperature", "max_tokens"} & json.loads(http_request.body).keys():
            return error_reply(status, "unsupported parameter")
        return ideal.answer(http_request)

    facts = run(_discover(handler))
    assert (facts.members, facts.limit_field) == ({}, "max_completion_tokens")


def test_a_server_that_only_streams_is_checked() -> None:
    ideal = ReferenceServer()

    def handler(http_request: MockHttpRequest) -> MockReply:
        if http_request.method == "POST" and not json.loads(http_request.body).get("stream"):
            return error_reply(500, "can only stream")
        return ideal.answer(http_request)

    assert run(_discover(handler)).model == "ideal"


def test_a_server_without_a_model_list_is_checked_if_a_model_is_given() -> None:
    ideal = ReferenceServer()
    assert run(
        _discover(
            lambda http_request: NOT_FOUND if http_request.method == "GET" else ideal.answer(http_request),
            model="ideal",
        )
    ).model


def test_a_refused_connection_is_reported() -> None:
    async def port() -> int:
        async with await MockServer(MockScript()).listen() as server:
            return server.port

    url = f"http://127.0.0.1:{run(port())}/v1"
    with pytest.raises(CheckUnreachableError, match="no connection to the server; is the server running there"):
        run(discover(ProbeClient(CheckSettings(url=url))))


@table(
    ("handler", "message"),
    [
        (lambda _: SILENT, "URL/models timed out after 0.3 s; the server may be slow or busy: raise --timeout"),
        (_chat(SILENT), "URL: a chat request timed out after 0.3 s; the server may be slow or busy: raise --timeout"),
        (
            _chat(FAULT_REPLIES["hang"]),
            "URL: a chat request timed out after 0.3 s; the server may be slow or busy: raise",
        ),
        (_chat(error_reply(429, "later", "60")), "URL is overloaded (429: later): try again later"),
        (lambda _: PAGE, "URL answers with a web page, not with JSON: pass the base URL, including /v1"),
        (_chat(PAGE), "URL answers a chat request with a web page: is it a chat server?"),
        (_chat(FAULT_REPLIES["empty"]), "URL answers a chat request with an empty body: is it a chat server?"),
        (
            _chat(FAULT_REPLIES["garbage"]),
            "URL answers a chat request with text that is not JSON: is it a chat server?",
        ),
        (lambda _: FAULT_REPLIES["not-http"], "URL: the reply is not HTTP"),
        (
            lambda _: redirect(301, "http://127.0.0.1:9/"),
            "URL redirects to http://127.0.0.1:9/: check that URL instead",
        ),
        (_chat(redirect(308, "/else")), "URL redirects to /else: check that URL instead"),
        (
            lambda _: NOT_FOUND,
            "there is no URL/models: pass the base URL, including /v1, or name a model with --model",
        ),
        (lambda _: json_reply({"object": "list", "data": []}), "URL lists no models: name one with --model"),
        (
            lambda _: error_reply(500, "it\nbroke\x1b[31m"),
            "URL lists no models (500: it broke?[31m): name one with --model",
        ),
        (_chat(NOT_FOUND), "there is no URL/chat/completions: pass the base URL, including /v1"),
        (
            ReferenceServer(key="correct horse").answer,
            "URL requires a key: pass --api-key KEY, or set WELLDONE_API_KEY",
        ),
        (_chat(error_reply(401, "no")), "URL requires a key: pass --api-key KEY, or set WELLDONE_API_KEY (401: no)"),
    ],
)
def test_an_unreachable_server_is_reported_in_one_line(handler: Handler, message: str) -> None:
    assert _error_message(handler).startswith(message)


def test_a_refused_key_is_not_printed() -> None:
    message = _error_message(ReferenceServer(key="correct horse").answer, key="battery staple")
    assert message.startswith("URL does not accept this key")
    assert "battery" not in message


def test_a_listed_model_whose_answers_are_errors_is_checked() -> None:
    assert run(_discover(_chat(error_reply(500, "out of memory")))).model == "ideal"
    message = _error_message(_chat(error_reply(500, "out of memory")), model="three")
    assert message.startswith("URL does not answer for 'three' (500: out of memory); it lists ideal")


def test_an_unknown_model_is_reported_with_the_listed_ones() -> None:
    message = _error_message(ReferenceServer(models=("one", "two")).answer, model="three")
    assert message.startswith("URL does not answer for 'three' (404: ")
    assert message.endswith("; it lists one, two")


def test_an_unknown_model_without_a_list_is_reported() -> None:
    ideal = ReferenceServer()
    message = _error_message(
        lambda http_request: NOT_FOUND if http_request.method == "GET" else ideal.answer(http_request), model="three"
    )
    assert "does not answer for 'three'" in message


def test_a_model_with_hidden_reasoning_gets_the_highest_allowance() -> None:
    nothing = {"choices": [{"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "length"}]}
    ideal = ReferenceServer()
    facts = run(
        _discover(
            lambda http_request: json_reply(nothing) if http_request.method == "POST" else ideal.answer(http_request)
        )
    )
    assert facts.reasoning_allowance == 1024


def test_a_model_that_only_reasons_gets_the_highest_allowance() -> None:
    thoughts = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "", "reasoning": "hm"}}]}
    ideal = ReferenceServer()
    facts = run(
        _discover(
            lambda http_request: json_reply(thoughts) if http_request.method == "POST" else ideal.answer(http_request)
        )
    )
    assert facts.reasoning_allowance == 1024


@table("name", sorted(FAULT_REPLIES))
def test_no_injected_fault_makes_discovery_fail(name: str) -> None:
    reply = msgspec.structs.replace(FAULT_REPLIES[name])

    with contextlib.suppress(CheckUnreachableError):
        run(_discover(lambda _: reply, timeouts=SHORT_TIMEOUTS, model="m"))
