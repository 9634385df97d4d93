"""Answers with a form: JSON, and JSON by a schema."""

import json
from typing import Annotated, Any, Literal

import msgspec
import pytest

from tests.live.raw import STREAM, ask, chat, complete
from tests.live.server import Running

# Letters only: a character without its end, which a model of random weights may write, has no certain length.
Short = Annotated[str, msgspec.Meta(pattern="^[A-Za-z ]{1,16}$")]


class Leaf(msgspec.Struct, forbid_unknown_fields=True):
    """An end of a tree."""

    kind: Literal["leaf", "bud"]
    size: Annotated[int, msgspec.Meta(ge=0, le=99)]


class Tree(msgspec.Struct, forbid_unknown_fields=True):
    """What schemas often have: references, lists with limits, what may be null, numbers."""

    name: Short
    leaves: Annotated[list[Leaf], msgspec.Meta(min_length=1, max_length=3)]
    owner: Short | None
    tall: bool


class Person(msgspec.Struct, forbid_unknown_fields=True):
    """Somebody."""

    name: Short
    age: Annotated[int, msgspec.Meta(ge=0, le=150)]


def form(kind: type, *, strict: bool = True) -> dict[str, Any]:
    """The response_format for a type."""
    named = {"name": kind.__name__, "schema": msgspec.json.schema(kind), "strict": strict}
    return {"type": "json_schema", "json_schema": named}


@STREAM
@pytest.mark.parametrize("seed", range(3))
def test_an_answer_fits_the_schema(tiny_server: Running, stream: bool, seed: int) -> None:
    said = chat(tiny_server, "Hello", stream=stream, response_format=form(Tree), seed=seed, max_tokens=1000)
    assert said.one.finish == "stop"
    msgspec.json.decode(said.text, type=Tree)


@STREAM
def test_the_default_model_fills_in_a_form(server: Running, stream: bool) -> None:
    question = "Write JSON with the name and age of this person: Ada is 36 years old."
    said = chat(server, question, stream=stream, response_format=form(Person), temperature=0, max_tokens=60)
    assert said.one.finish == "stop"
    msgspec.json.decode(said.text, type=Person)


@STREAM
def test_a_json_object_is_one(server: Running, stream: bool) -> None:
    question = "Write a JSON object with the key colour."
    fields: dict[str, Any] = {"response_format": {"type": "json_object"}, "temperature": 0, "max_tokens": 100}
    said = chat(server, question, stream=stream, **fields)
    # How long an object a model writes differs between CPUs: one that is cut has at least begun.
    assert said.text.lstrip().startswith("{")
    assert said.one.finish == "length" or isinstance(json.loads(said.text), dict)


@STREAM
def test_text_is_just_text(tiny_server: Running, stream: bool) -> None:
    assert chat(tiny_server, "Hello", stream=stream, response_format={"type": "text"}, max_tokens=4).text


@STREAM
def test_several_answers_each_fit(tiny_server: Running, stream: bool) -> None:
    said = chat(tiny_server, "Hello", stream=stream, n=3, response_format=form(Tree, strict=False), max_tokens=1000)
    assert len(said.choices) == 3
    for choice in said.choices:
        msgspec.json.decode(choice.text, type=Tree)


@STREAM
def test_a_continuation_may_have_a_form_too(tiny_server: Running, stream: bool) -> None:
    said = complete(tiny_server, "Hello", stream=stream, response_format=form(Person), max_tokens=200)
    msgspec.json.decode(said.text, type=Person)


def test_a_form_that_is_cut_says_so(tiny_server: Running) -> None:
    assert chat(tiny_server, "Hello", response_format=form(Tree), max_tokens=3).one.finish == "length"


@pytest.mark.parametrize(
    "wanted", [{"type": "yaml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": []}}, {}]
)
def test_a_form_that_is_none_is_refused(tiny_server: Running, wanted: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    reply = ask(tiny_server, "/v1/chat/completions", {"messages": messages, "response_format": wanted})
    assert reply.status == 400
    assert reply.error()["param"].startswith("response_format")


@pytest.mark.tier3
@STREAM
@pytest.mark.parametrize("number", range(3))
def test_log_probabilities_are_of_the_json_alone(server: Running, number: int, stream: bool) -> None:
    # This model likes to begin with a fence, which is cut from the text.
    form = {"type": "json_object"}
    prompt = f"Give me JSON of a cat {number}"
    said = chat(server, prompt, stream=stream, response_format=form, logprobs=True, temperature=0, max_tokens=16)
    assert "".join(entry["token"] for entry in said.one.tokens) == said.text
