"""Continuation of answers whose engine is killed: the client receives the same answer as without the crash."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.faults import LINUX, RESTARTS, chat_body, engine_of, metric, small_server
from tests.support.raw import CHAT, COMPLETIONS, Json, ParsedReply, RawConnection, parse_valid
from tests.support.server import Running

pytestmark = [LINUX, pytest.mark.tier2]

QUESTION = "Count from 1 to 40."
"""The next token is never a close decision: a prompt that is processed at once differs in the last bits of its numbers
from one that was generated token by token."""
TOKENS = 96
"""Long enough that the engine is killed before the end, short enough for a slow machine."""
CONTINUED = "welldone_continuations_total"


@contextmanager
def running_server(model: Path, *options: str) -> Iterator[Running]:
    """A server per test: the restart delay grows with each crash."""
    with small_server(model, "-c", "2048", *options) as server:
        yield server
        assert server.end() == 0


def ask(server: Running, path: str, body: Json, *, kills_after: int | None = None) -> ParsedReply:
    """Send a request; kill the engine after so many chunks with text."""
    with (
        engine_of(server) as engine,
        RawConnection(server, path, body, headers={"x-welldone-report": "1"}) as connection,
    ):
        if kills_after is not None:
            while len(re.findall(rb'"(?:content|text)":"[^"]', connection.received)) < kills_after:
                assert connection.read(), connection.received[-500:]
            engine.kill()
            engine.wait()
        reply = connection.reply()
        assert b'"error"' not in reply.trace.body, reply.trace.body[-500:]
        return parse_valid(reply)


def bodies(server: Running) -> dict[str, tuple[str, Json]]:
    """Requests by name: the path and the body."""
    limits: Json = {"max_tokens": TOKENS, "stream_options": {"include_usage": True}, "stream": True}
    chat = chat_body(server, QUESTION, **limits)
    prompt = {"model": server.model, "prompt": "1. 1\n2. 2\n3. 3\n4. 4\n", "temperature": 0, **limits}
    return {
        "chat": (CHAT, chat),
        "two choices": (CHAT, {**chat, "n": 2, "max_tokens": TOKENS // 2}),
        "completions": (COMPLETIONS, prompt),
        "stop": (CHAT, {**chat, "stop": ["\n16. 1", "THE END"]}),
        "logprobs": (CHAT, {**chat, "logprobs": True, "top_logprobs": 2}),
    }


@pytest.mark.parametrize("name", ["chat", "two choices", "completions", "stop", "logprobs"])
def test_a_killed_engine_does_not_change_an_answer_at_temperature_0(default_model: Path, name: str) -> None:
    with running_server(default_model) as server:
        path, body = bodies(server)[name]
        expected = ask(server, path, body)
        answer = ask(server, path, body, kills_after=20)
        assert answer.choices == expected.choices
        assert answer.counts == expected.counts
        assert (metric(server, RESTARTS), metric(server, CONTINUED)) == (1, 1)


def test_an_answer_goes_on_at_any_temperature(default_model: Path) -> None:
    with running_server(default_model) as server:
        path, body = bodies(server)["chat"]
        answer = ask(server, path, {**body, "temperature": 1.0, "ignore_eos": True}, kills_after=20)
        assert answer.choice.finish == "length"
        assert answer.counts[1] == TOKENS
