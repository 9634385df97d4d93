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

ITEMS = {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 3}
QUESTION = "Say" + " hello" * 20
"""The same words as in the biased answers, so that n-grams find them."""
SCHEMA = {"name": "numbers", "schema": {"type": "object", "properties": {"n": ITEMS}, "required": ["n"]}}

ENGINES = ["wheel"] if choose_engine(None, os.environ).program is None else ["wheel", "auto"]
"""A build of llama.cpp is tested where there is one: `make test-engine`."""


@contextmanager
def running_server(model: Path, *options: str) -> Iterator[Running]:
    with small_server(model, "-c", "512", "--verbose", *options) as server:
        yield server
        assert server.end() == 0


def answers(server: Running) -> dict[str, ParsedReply]:
    """Ask in several ways. A stop string and the end by length lie within the tokens that one step accepts."""
    [token] = fetch(server, "/tokenize", {"content": " hello"}).ok()["tokens"]
    repeated: Json = {"logit_bias": {str(token): 100}}
    whole = chat(server, QUESTION, temperature=0, max_tokens=48)
    cases: dict[str, Json] = {
        "stream": {},
        "repeated": repeated,
        "length": {**repeated, "max_tokens": 7},
        "stop": {"stop": [whole.text[10:13]]},
        "repeated stop": {**repeated, "stop": ["lo hello"]},
        "schema": {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
    }
    streams = {
        name: chat(server, QUESTION, stream=True, temperature=0, **{"max_tokens": 48, **fields})
        for name, fields in cases.items()
    }
    return {"whole": whole, **streams}


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> dict[str, ParsedReply]:
    with running_server(tiny_model) as server:
        return answers(server)


@pytest.mark.parametrize(
    "options", [["--draft-max", "8"], ["--spec-type", "ngram-cache"]], ids=["draft model", "n-gram"]
)
@pytest.mark.parametrize("engine", ENGINES)
def test_answers_are_those_without_speculation(
    tiny_model: Path, tiny_calling_model: Path, expected: dict[str, ParsedReply], options: list[str], engine: str
) -> None:
    draft = [] if "--spec-type" in options else ["-md", str(tiny_calling_model)]
    with running_server(tiny_model, "--engine", engine, *draft, *options) as server:
        found = answers(server)
        bodies = {CHAT: chat_body(server, logprobs=True), COMPLETIONS: {"prompt": "a", "logprobs": 1}}
        for path, body in bodies.items():
            error = fetch(server, path, body).error()
            assert (error["code"], error["param"]) == ("unsupported_parameter", "logprobs")
        server.log.wait(r"draft acceptance = \S+ \( *[1-9]\d* accepted")
    assert (expected["stop"].choice.finish, expected["repeated stop"].text) == ("stop", " hel")
    for name, answer in found.items():
        assert answer.choices == expected[name].choices, name
        assert answer.counts == expected[name].counts, name
