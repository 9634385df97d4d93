"""Conversion of bodies into Structs: the parameter, the code and the words of each kind of error."""

from typing import Annotated, Any, ClassVar, Literal

import pytest
from msgspec import Meta, Struct

from tests.table import table
from welldone.schemas.anthropic import AnthropicRequest
from welldone.schemas.chat import ChatRequest, CompletionRequest
from welldone.schemas.errors import FieldError, convert
from welldone.schemas.fields import FieldHandling, FieldInfo, describe_fields, ignored, rejected
from welldone.schemas.ollama import OllamaChatRequest, OllamaGenerateRequest
from welldone.schemas.responses import ResponseRequest


class Cat(Struct, tag_field="type", tag="cat"):
    """A member of a union."""

    lives: Annotated[int, Meta(ge=1, le=9)] = 9


class Dog(Struct, tag_field="type", tag="dog"):
    """A member of a union."""

    tricks: list[Literal["sit", "roll"]] = []


class Zoo(Struct, kw_only=True):
    """A schema with each kind of field."""

    name: Annotated[str, Meta(max_length=3, pattern=r"^[a-z]+\Z")] | None = None
    animals: Annotated[list[Cat | Dog], Meta(min_length=1, max_length=2)]
    keeper: str | list[str] | None = None
    price: Annotated[float, Meta(ge=0.5, le=10)] | None = None
    open: bool | None = None

    UNREAD_FIELDS: ClassVar[list[FieldInfo]] = [*rejected(old="is closed."), *ignored("note")]


def error_of(body: dict[str, Any]) -> FieldError:
    """Return the error of a body."""
    found = convert({"animals": [{"type": "cat"}], **body}, Zoo)
    assert isinstance(found, FieldError)
    return found


@table(
    ("body", "param", "code", "words"),
    [
        ({"name": "abcd"}, "name", "string_above_max_length", "at most 3 characters, but got 4"),
        ({"name": "A"}, "name", "invalid_value", "matches the pattern '^[a-z]+$'"),
        ({"name": 5}, "name", "invalid_type", "expected a string, but got an integer"),
        ({"animals": None}, "animals", "missing_required_parameter", "Missing required parameter: 'animals'"),
        ({"animals": []}, "animals", "empty_array", "minimum length 1"),
        ({"animals": [{"type": "cat"}] * 3}, "animals", "array_above_max_length", "at most 2 elements, but got 3"),
        ({"animals": [None]}, "animals[0]", "invalid_type", "expected an object, but got null"),
        ({"animals": [{}]}, "animals[0].type", "missing_required_parameter", "animals[0].type"),
        ({"animals": [{"type": None}]}, "animals[0].type", "missing_required_parameter", "animals[0].type"),
        ({"animals": [{"type": 5}]}, "animals[0].type", "invalid_value", "expected a string"),
        (
            {"animals": [{"type": "cow"}]},
            "animals[0].type",
            "invalid_value",
            "'cow'. Supported values are: 'cat', 'dog'",
        ),
        (
            {"animals": [{"type": "cat", "lives": 10}]},
            "animals[0].lives",
            "integer_above_max_value",
            "<= 9, but got 10",
        ),
        (
            {"animals": [{"type": "dog", "tricks": ["sit", "fly"]}]},
            "animals[0].tricks[1]",
            "invalid_value",
            "'roll', 'sit'",
        ),
        ({"keeper": 5}, "keeper", "invalid_type", "expected a string or an array"),
        ({"keeper": ["a", 5]}, "keeper[1]", "invalid_type", "expected a string"),
        ({"price": 0}, "price", "decimal_below_min_value", ">= 0.5, but got 0"),
        ({"price": True}, "price", "invalid_type", "expected a decimal, but got a boolean"),
        ({"open": 1}, "open", "invalid_type", "expected a boolean, but got an integer"),
    ],
)
def test_an_error_has_openais_param_code_and_words(body: dict[str, Any], param: str, code: str, words: str) -> None:
    found = error_of(body)
    assert (found.param, found.code) == (param, code)
    assert words in found.message


def test_the_value_of_an_error_cannot_forge_its_path() -> None:
    found = error_of({"animals": [{"type": "x - at `$.open`"}]})
    assert found.param == "animals[0].type"


def test_whole_floats_are_integers_and_the_body_is_not_modified() -> None:
    body = {"animals": [{"type": "cat", "lives": 3.0}, {"type": "cat", "lives": 4.0}]}
    found = convert(body, Zoo)
    assert isinstance(found, Zoo)
    assert [animal.lives for animal in found.animals if isinstance(animal, Cat)] == [3, 4]
    assert body["animals"][0]["lives"] == 3.0
    assert error_of({"animals": [{"type": "cat", "lives": 3.5}]}).code == "invalid_type"
    assert error_of({"animals": [{"type": "cat", "lives": 30.0}]}).code == "integer_above_max_value"


def test_a_part_of_a_request_is_named_with_its_path() -> None:
    found = convert({"lives": "a"}, Cat, "zoo[2].")
    assert isinstance(found, FieldError)
    assert found.param == "zoo[2].lives"
    absent = convert({}, Zoo, "zoo[2].")
    assert isinstance(absent, FieldError)
    assert absent.param == "zoo[2].animals"


def test_fields_are_described_by_their_annotations() -> None:
    rows = {row.name: row for row in describe_fields(Zoo)}
    assert (rows["price"].handling, rows["price"].note) == (FieldHandling.TRANSLATED, "0.5 to 10")
    assert (rows["open"].note, rows["keeper"].note) == ("true or false", "")
    assert (rows["old"].handling, rows["old"].note) == (FieldHandling.REJECTED, "is closed.")
    assert rows["note"].handling is FieldHandling.IGNORED


@pytest.mark.parametrize(
    "schema",
    [ChatRequest, CompletionRequest, ResponseRequest, AnthropicRequest, OllamaChatRequest, OllamaGenerateRequest],
)
def test_every_rejected_field_has_a_reason(schema: type[Struct]) -> None:
    rows = [row for row in describe_fields(schema) if row.handling is FieldHandling.REJECTED]
    assert all(row.note.endswith(".") for row in rows)
