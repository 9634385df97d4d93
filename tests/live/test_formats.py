"""Structured output: JSON objects and JSON schemas."""

import json
from typing import Annotated, Any, Literal

import msgspec
import pytest

from tests.support.raw import STREAM, chat, complete, fetch
from tests.support.server import Running

# Letters only: an incomplete UTF-8 character, which random weights may produce, has no definite length.
Short = Annotated[str, msgspec.Meta(pattern="^[A-Za-z ]{1,16}$")]


class Leaf(msgspec.Struct, forbid_unknown_fields=True):
    """A nested object with an enum and bounds."""

    kind: Literal["leaf", "bud"]
    size: Annotated[int, msgspec.Meta(ge=0, le=99)]


class Tree(msgspec.Struct, forbid_unknown_fields=True):
    """Common schema features: references, bounded lists, nullable members, booleans."""

    name: Short
    leaves: Annotated[list[Leaf], msgspec.Meta(min_length=1, max_length=3)]
    owner: Short | None
    tall: bool


class Person(msgspec.Struct, forbid_unknown_fields=True):
    """A flat object."""

    name: Short
    age: Annotated[int, msgspec.Meta(ge=0, le=150)]


def schema_format(kind: type, *, strict: bool = True) -> dict[str, Any]:
    """The response_format for a type."""
    named = {"name": kind.__name__, "schema": msgspec.json.schema(kind), "strict": strict}
    return {"type": "json_schema", "json_schema": named}


@STREAM
@pytest.mark.parametrize("seed", range(3))
def test_an_answer_matches_the_schema(tiny_server: Running, stream: bool, seed: int) -> None:
    answer = chat(tiny_server, "Hello", stream=stream, response_format=schema_format(Tree), seed=seed, max_tokens=1000)
    assert answer.choice.finish == "stop"
    msgspec.json.decode(answer.text, type=Tree)


@STREAM
def test_an_answer_of_the_default_model_matches_the_schema(server: Running, stream: bool) -> None:
    question = "Write JSON with the name and age of this person: Ada is 36 years old."
    answer = chat(server, question, stream=stream, response_format=schema_format(Person), temperature=0, max_tokens=60)
    assert answer.choice.finish == "stop"
    msgspec.json.decode(answer.text, type=Person)


@STREAM
def test_json_object_gives_a_json_object(tiny_server: Running, stream: bool) -> None:
    fields: dict[str, Any] = {"response_format": {"type": "json_object"}, "temperature": 0, "max_tokens": 100}
    answer = chat(tiny_server, "Hello", stream=stream, **fields)
    # The length of the object differs between CPUs; a truncated one has at least its opening brace.
    assert answer.text.lstrip().startswith("{")
    assert answer.choice.finish == "length" or isinstance(json.loads(answer.text), dict)


@STREAM
def test_the_text_format_does_not_constrain_the_answer(tiny_server: Running, stream: bool) -> None:
    assert chat(tiny_server, "Hello", stream=stream, response_format={"type": "text"}, max_tokens=4).text


@STREAM
def test_each_of_several_choices_matches_the_schema(tiny_server: Running, stream: bool) -> None:
    answer = chat(
        tiny_server, "Hello", stream=stream, n=3, response_format=schema_format(Tree, strict=False), max_tokens=1000
    )
    assert len(answer.choices) == 3
    for choice in answer.choices:
        msgspec.json.decode(choice.text, type=Tree)


@STREAM
def test_a_completion_matches_the_schema(tiny_server: Running, stream: bool) -> None:
    answer = complete(tiny_server, "Hello", stream=stream, response_format=schema_format(Person), max_tokens=200)
    msgspec.json.decode(answer.text, type=Person)


def test_truncated_json_has_finish_reason_length(tiny_server: Running) -> None:
    assert chat(tiny_server, "Hello", response_format=schema_format(Tree), max_tokens=3).choice.finish == "length"


@pytest.mark.parametrize(
    "response_format",
    [{"type": "yaml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": []}}, {}],
)
def test_an_invalid_response_format_is_rejected(tiny_server: Running, response_format: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    reply = fetch(tiny_server, "/v1/chat/completions", {"messages": messages, "response_format": response_format})
    assert reply.status == 400
    assert reply.error()["param"].startswith("response_format")


@pytest.mark.tier3
@STREAM
@pytest.mark.parametrize("number", range(3))
def test_log_probabilities_cover_only_the_json(server: Running, number: int, stream: bool) -> None:
    # The model often starts with a Markdown fence, which is removed from the text.
    response_format = {"type": "json_object"}
    prompt = f"Give me JSON of a cat {number}"
    answer = chat(
        server, prompt, stream=stream, response_format=response_format, logprobs=True, temperature=0, max_tokens=16
    )
    assert "".join(entry["token"] for entry in answer.choice.tokens) == answer.text
