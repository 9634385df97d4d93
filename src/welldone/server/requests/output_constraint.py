"""Constraints on the text of an answer: any JSON object, a JSON schema, or a list of choices."""

import re

import msgspec

from welldone.gateway.errors import invalid_request
from welldone.protocol.events import Json
from welldone.schemas.chat import GenerationBody, JsonObjectFormat, JsonSchemaFormat
from welldone.server.requests import fields
from welldone.server.requests.fields import JsonSizeLimits, decode_json
from welldone.server.requests.json_schema import SchemaBudget, check_schema

ANY_OBJECT: Json = {"type": "object"}

_UNSUPPORTED_KINDS = ("regex", "grammar", "structural_tag")
VLLM_FIELDS = (
    "structured_outputs",
    *(f"guided_{kind}" for kind in ("json", "json_object", "choice", *_UNSUPPORTED_KINDS)),
)
_GBNF_SPECIAL = re.compile(r'[\x00-\x1f\x7f"\\]')


class OutputConstraint(msgspec.Struct, frozen=True):
    """The constraint on the text of an answer; none if schema and grammar are None."""

    schema: Json | None = None
    grammar: str | None = None
    """A generated grammar in llama.cpp's GBNF; grammars of clients are rejected."""
    param: str = "response_format"
    """The field that sets the constraint."""


def read_output_constraint(request: GenerationBody, budget: SchemaBudget) -> OutputConstraint:
    """Read `response_format`, llama.cpp's `json_schema`, or vLLM's `structured_outputs` and `guided_*`.

    Raises:
        ApiError: the constraint is invalid or not supported, or there is more than one.
    """
    constraints: list[OutputConstraint] = []
    match request.response_format:
        case JsonObjectFormat(schema=schema):  # llama.cpp accepts a schema here too
            constraints.append(_format_constraint(schema, "response_format.schema", budget))
        case JsonSchemaFormat(json_schema=definition):
            constraints.append(_format_constraint(definition.schema, "response_format.json_schema.schema", budget))
        case _:
            pass
    if request.json_schema is not None:
        schema = check_schema(request.json_schema, "json_schema", budget)
        constraints.append(OutputConstraint(schema, param="json_schema"))
    structured = request.structured_outputs
    if structured is not None:
        given = (structured.json, structured.json_object, structured.choice)
        constraints += _guided_constraints(*given, "structured_outputs.", budget)
        for kind in _UNSUPPORTED_KINDS:
            if getattr(structured, kind) is not None:
                reason = "is not supported by local models; use a JSON schema ('json') or a list ('choice')."
                raise fields.unsupported(f"structured_outputs.{kind}", reason)
    guided = (request.guided_json, request.guided_json_object, request.guided_choice)
    constraints += _guided_constraints(*guided, "guided_", budget)
    if len(constraints) > 1:
        first, second = constraints[0].param, constraints[1].param
        message = f"'{second}' and '{first}' cannot be used together."
        raise invalid_request(message, param=second, code="invalid_value")
    return constraints[0] if constraints else OutputConstraint()


def _format_constraint(schema: object, param: str, budget: SchemaBudget) -> OutputConstraint:
    return OutputConstraint(ANY_OBJECT if schema is None else check_schema(schema, param, budget))


def _guided_constraints(
    schema: object, is_json_object: bool | None, choices: list[str] | None, prefix: str, budget: SchemaBudget
) -> list[OutputConstraint]:
    out = []
    if schema is not None:
        param = f"{prefix}json"
        if isinstance(schema, str):
            text = schema.encode()
            JsonSizeLimits(f"schema of '{param}'").check(text)
            schema = decode_json(text)
        out.append(OutputConstraint(check_schema(schema, param, budget), param=param))
    if is_json_object:
        out.append(OutputConstraint(ANY_OBJECT, param=f"{prefix}json_object"))
    if choices is not None:  # llama.cpp follows all that begin alike at once
        grammar = "root ::= " + " | ".join(f'"{_GBNF_SPECIAL.sub(_escape_gbnf, text)}"' for text in choices)
        out.append(OutputConstraint(grammar=grammar, param=f"{prefix}choice"))
    return out


def _escape_gbnf(found: re.Match[str]) -> str:
    char = found[0]
    return f"\\{char}" if char in '"\\' else f"\\x{ord(char):02x}"
