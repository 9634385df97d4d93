"""Speculative decoding with the real engine: the same answers as without it, as valid streams."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.faults import LINUX, chat_body, small_server
from tests.support.raw import CHAT, COMPLETIONS, Json, ParsedReply, chat, fetch
from tests.support.server import Running
from welldone.engines.builds import choose_engine

pytestmark = LINUX

COUNTED = "one two three four five six seven eight nine ten."
QUESTION = f"Repeat: {COUNTED} {COUNTED}"
"""The answer is in the prompt, so that n-grams find it, and no token of it is a close decision: the numbers of tokens
that are computed together differ in their last bits."""
ITEMS = {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 3}
SCHEMA = {"name": "numbers", "schema": {"type": "object", "properties": {"n": ITEMS}, "required": ["n"]}}
CASES: dict[str, Json] = {
    "stream": {"stream": True},
    "whole": {},
    "length": {"stream": True, "max_tokens": 7},
    "stop": {"stream": True, "stop": ["six"]},
    "schema": {"stream": True, "response_format": {"type": "json_schema", "json_schema": SCHEMA}},
}
"""A stop string and the end by length lie within the tokens that one step accepts."""

ENGINES = ["wheel"] if choose_engine(None, os.environ).program is None else ["wheel", "auto"]
"""A build of llama.cpp is tested where there is one: `make test-engine`."""


@contextmanager
def running_server(model: Path, *options: str) -> Iterator[Running]:
    with small_server(model, "-c", "512", "--verbose", *options) as server:
        yield server
        assert server.end() == 0


def answers(server: Running) -> dict[str, ParsedReply]:
    return {
        name: chat(server, QUESTION, temperature=0, **{"max_tokens": 32, **fields}) for name, fields in CASES.items()
    }


@pytest.fixture(scope="module")
def expected(default_model: Path) -> dict[str, ParsedReply]:
    with running_server(default_model) as server:
        return answers(server)


@pytest.mark.parametrize(
    "options", [["--draft-max", "8"], ["--spec-type", "ngram-cache"]], ids=["draft model", "n-gram"]
)
@pytest.mark.parametrize("engine", ENGINES)
def test_answers_are_those_without_speculation(
    default_model: Path, expected: dict[str, ParsedReply], options: list[str], engine: str
) -> None:
    draft = [] if "--spec-type" in options else ["-md", str(default_model)]
    with running_server(default_model, "--engine", engine, *draft, *options) as server:
        found = answers(server)
        bodies = {CHAT: chat_body(server, logprobs=True), COMPLETIONS: {"prompt": "a", "logprobs": 1}}
        for path, body in bodies.items():
            error = fetch(server, path, body).error()
            assert (error["code"], error["param"]) == ("unsupported_parameter", "logprobs")
        server.log.wait(r"draft acceptance = \S+ \( *[1-9]\d* accepted")
    for name, answer in found.items():
        assert answer.choices == expected[name].choices, name
        assert answer.counts == expected[name].counts, name
