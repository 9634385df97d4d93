"""The first look: what cannot be checked ends with one clear line, and what can is asked as it wants to be asked."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.check.serving import HASTY, IMPATIENT, no_pause, serving
from tests.net.aio import run
from tests.table import table
from welldone.check.desk import Desk, Facts
from welldone.check.scout import UnreachableError, look
from welldone.check.settings import CheckSettings
from welldone.engines.ideal import Ideal
from welldone.engines.mischief import FAULTS, redirect, refusal
from welldone.engines.scripted import Scripted, Seen
from welldone.engines.scripts import Piece, Reply, Script, json_reply
from welldone.net import ear

Choose = Callable[[Seen], Reply]
PAGE = Reply((Piece("<html><body>Welcome</body></html>"),), headers={"Content-Type": "text/html"}, framing="length")
SILENT = Reply(end="hang", raw=True)
NOT_FOUND = Reply((Piece("not here"),), 404, {"Content-Type": "text/plain"}, framing="length")


async def _look(choose: Choose, **settings: Any) -> Facts:  # noqa: ANN401 - any setting
    async with serving(choose) as url:
        return await look(Desk(CheckSettings(url=url, **{"patience": IMPATIENT, **settings}), ear.listen, no_pause))


def _fails(choose: Choose, **settings: Any) -> str:  # noqa: ANN401 - any setting
    """What is said of a server that cannot be checked, without its address."""

    async def work() -> str:
        async with serving(choose) as url:
            with pytest.raises(UnreachableError) as caught:
                await look(Desk(CheckSettings(url=url, **{"patience": HASTY, **settings}), ear.listen, no_pause))
            return str(caught.value).replace(url, "URL")

    message = run(work())
    assert "\n" not in message
    return message


def _chat(reply: Reply, key: str | None = None) -> Choose:
    """A right server but for its chat."""
    ideal = Ideal(key=key)
    return lambda seen: reply if seen.method == "POST" else ideal.answer(seen)


def test_the_first_model_that_is_listed_is_asked() -> None:
    facts = run(_look(Ideal(models=("one", "two")).answer))
    assert (facts.model, facts.allowance, facts.limit_name) == ("one", 0, "max_tokens")


def test_the_model_that_was_named_is_asked() -> None:
    assert run(_look(Ideal(models=("one", "two")).answer, model="two")).model == "two"


def test_a_model_that_thinks_gets_more_tokens() -> None:
    facts = run(_look(Ideal(models=("deep-thinking",)).answer))
    assert facts.allowance > 0


@pytest.mark.parametrize("status", [400, 422])
def test_who_takes_no_temperature_is_not_given_one(status: int) -> None:
    ideal = Ideal()

    def choose(seen: Seen) -> Reply:
        if seen.method == "POST" and {"temperature", "max_tokens"} & json.loads(seen.body).keys():
            return refusal(status, "unsupported parameter")
        return ideal.answer(seen)

    facts = run(_look(choose))
    assert (facts.members, facts.limit_name) == ({}, "max_completion_tokens")


def test_who_only_streams_is_checked() -> None:
    ideal = Ideal()

    def choose(seen: Seen) -> Reply:
        if seen.method == "POST" and not json.loads(seen.body).get("stream"):
            return refusal(500, "can only stream")
        return ideal.answer(seen)

    assert run(_look(choose)).model == "ideal"


def test_who_lists_no_models_is_checked_where_one_is_named() -> None:
    ideal = Ideal()
    assert run(_look(lambda seen: NOT_FOUND if seen.method == "GET" else ideal.answer(seen), model="ideal")).model


def test_nobody_there() -> None:
    async def port() -> int:
        async with await Scripted(Script()).listen() as server:
            return server.port

    url = f"http://127.0.0.1:{run(port())}/v1"
    with pytest.raises(UnreachableError, match="no connection to the server; is the server running there"):
        run(look(Desk(CheckSettings(url=url), ear.listen)))


@table(
    ("choose", "said"),
    [
        (lambda _: SILENT, "URL/models timed out after 0.3 s; the server may be slow or busy: raise --timeout"),
        (_chat(SILENT), "URL: a chat request timed out after 0.3 s; the server may be slow or busy: raise --timeout"),
        (_chat(FAULTS["hang"]), "URL: a chat request timed out after 0.3 s; the server may be slow or busy: raise"),
        (_chat(refusal(429, "later", "60")), "URL is too busy to be checked now (429: later)"),
        (lambda _: PAGE, "URL answers with a web page, not with JSON: give the address up to and with /v1"),
        (_chat(PAGE), "URL answers a chat request with a web page: is it a chat server?"),
        (_chat(FAULTS["empty"]), "URL answers a chat request with nothing: is it a chat server?"),
        (_chat(FAULTS["garbage"]), "URL answers a chat request with no JSON: is it a chat server?"),
        (lambda _: FAULTS["not-http"], "URL: the reply is not HTTP"),
        (lambda _: redirect(301, "http://127.0.0.1:9/"), "URL redirects to http://127.0.0.1:9/: check that address"),
        (_chat(redirect(308, "/else")), "URL redirects to /else: check that address"),
        (
            lambda _: NOT_FOUND,
            "there is no URL/models: give the address up to and with /v1, or name a model with --model",
        ),
        (lambda _: json_reply({"object": "list", "data": []}), "URL lists no models: name one with --model"),
        (
            lambda _: refusal(500, "it\nbroke\x1b[31m"),
            "URL lists no models (500: it broke?[31m): name one with --model",
        ),
        (_chat(NOT_FOUND), "there is no URL/chat/completions: give the address up to and with /v1"),
        (_chat(refusal(500, "out of memory")), "URL does not answer for 'ideal' (500: out of memory)"),
        (Ideal(key="correct horse").answer, "URL wants a key: --api-key KEY, or WELLDONE_API_KEY"),
        (_chat(refusal(401, "no")), "URL wants a key: --api-key KEY, or WELLDONE_API_KEY (401: no)"),
    ],
)
def test_what_cannot_be_checked_is_one_line(choose: Choose, said: str) -> None:
    assert _fails(choose).startswith(said)


def test_a_key_that_is_not_taken_is_not_shown() -> None:
    message = _fails(Ideal(key="correct horse").answer, key="battery staple")
    assert message.startswith("URL does not take this key")
    assert "battery" not in message


def test_a_model_that_does_not_exist_is_told_with_those_that_do() -> None:
    message = _fails(Ideal(models=("one", "two")).answer, model="three")
    assert message.startswith("URL does not answer for 'three' (404: ")
    assert message.endswith("; it lists one, two")


def test_without_a_list_the_model_may_exist_or_not() -> None:
    ideal = Ideal()
    message = _fails(lambda seen: NOT_FOUND if seen.method == "GET" else ideal.answer(seen), model="three")
    assert "does not answer for 'three'" in message


def test_a_model_that_thinks_in_secret_gets_the_most() -> None:
    nothing = {"choices": [{"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "length"}]}
    ideal = Ideal()
    facts = run(_look(lambda seen: json_reply(nothing) if seen.method == "POST" else ideal.answer(seen)))
    assert facts.allowance == 1024


def test_a_model_that_never_stops_thinking_gets_the_most() -> None:
    thoughts = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "", "reasoning": "hm"}}]}
    ideal = Ideal()
    facts = run(_look(lambda seen: json_reply(thoughts) if seen.method == "POST" else ideal.answer(seen)))
    assert facts.allowance == 1024


@table("name", sorted(FAULTS))
def test_no_fault_of_a_server_is_an_error_of_the_look(name: str) -> None:
    reply = msgspec.structs.replace(FAULTS[name])

    with contextlib.suppress(UnreachableError):
        run(_look(lambda _: reply, patience=HASTY, model="m"))
