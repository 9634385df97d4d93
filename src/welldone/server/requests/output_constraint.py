"""Constraints on the text of an answer: any JSON object, a JSON schema, or a list of choices."""

import re

import msgspec

from welldone.gateway.errors import invalid_request
from welldone.protocol.events import Json
from welldone.server.requests import fields
from welldone.server.requests.fields import JsonSizeLimits, decode_json
from welldone.server.requests.json_schema import SchemaBudget, check_schema
from welldone.server.requests.json_schema_cost import ALTERNATIVES_LIMIT

SCHEMA_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
RESPONSE_FORMAT_TYPES = ("text", "json_object", "json_schema")
ANY_OBJECT: Json = {"type": "object"}


GUIDED_CHOICE_LENGTH = 256
"""Characters of one choice; a label has about ten."""

GUIDED_KINDS = ("json", "json_object", "choice", "regex", "grammar", "structural_tag")
"""Kinds of vLLM's `structured_outputs`. The older fields are `guided_` plus the kind; `GENERATION_FIELDS` rejects the
unsupported ones."""
VLLM_CONSTRAINT_FIELDS = ("structured_outputs", *(f"guided_{kind}" for kind in GUIDED_KINDS))
_GBNF_SPECIAL = re.compile(r'[\x00-\x1f\x7f"\\]')


class OutputConstraint(msgspec.Struct, frozen=True):
    """The constraint on the text of an answer; none if schema and grammar are None."""

    schema: Json | None = None
    grammar: str | None = None
    """A generated grammar in llama.cpp's GBNF; `GENERATION_FIELDS` rejects grammars of clients."""
    param: str = "response_format"
    """The field that sets the constraint."""


def read_output_constraint(body: Json, budget: SchemaBudget) -> OutputConstraint:
    """Read `response_format`, llama.cpp's `json_schema`, or vLLM's `structured_outputs` and `guided_*`.

    Raises:
        ApiError: the constraint is invalid or not supported, or there is more than one.
    """
    constraints: list[OutputConstraint] = []
    schema = _read_response_format(body, budget)
    if schema is not None:
        constraints.append(OutputConstraint(schema))
    if body.get("json_schema") is not None:
        schema = check_schema(body["json_schema"], "json_schema", budget)
        constraints.append(OutputConstraint(schema, param="json_schema"))
    structured = fields.json_object(body, "structured_outputs") or {}
    guided = [(kind, structured.get(kind), f"structured_outputs.{kind}") for kind in GUIDED_KINDS]
    guided += [(kind, body.get(f"guided_{kind}"), f"guided_{kind}") for kind in ("json", "json_object", "choice")]
    for kind, value, param in guided:
        if value is not None and (constraint := _guided_constraint(kind, value, param, budget)) is not None:
            constraints.append(constraint)
    if len(constraints) > 1:
        first, second = constraints[0].param, constraints[1].param
        message = f"'{second}' and '{first}' cannot be used together."
        raise invalid_request(message, param=second, code="invalid_value")
    return constraints[0] if constraints else OutputConstraint()


def _guided_constraint(kind: str, value: object, param: str, budget: SchemaBudget) -> OutputConstraint | None:
    if kind == "json":
        if isinstance(value, str):
            text = value.encode()
            JsonSizeLimits(f"schema of '{param}'").check(text)
            value = decode_json(text)
        return OutputConstraint(check_schema(value, param, budget), param=param)
    if kind == "json_object":
        return OutputConstraint(ANY_OBJECT, param=param) if fields.boolean({param: value}, param) else None
    if kind == "choice":
        return OutputConstraint(grammar=_choice_grammar(value, param), param=param)
    raise fields.unsupported(
        param, "is not supported by local models; use a JSON schema ('json') or a list ('choice')."
    )


def _choice_grammar(value: object, param: str) -> str:
    """The grammar of one of several texts. llama.cpp follows all that begin alike at once."""
    texts = fields.strings({param: value}, param, ALTERNATIVES_LIMIT, GUIDED_CHOICE_LENGTH)
    if not texts:
        raise invalid_request(f"Invalid '{param}': empty array.", param=param, code="empty_array")
    return "root ::= " + " | ".join(f'"{_GBNF_SPECIAL.sub(_escape_gbnf, text)}"' for text in texts)


def _escape_gbnf(found: re.Match[str]) -> str:
    char = found[0]
    return f"\\{char}" if char in '"\\' else f"\\x{ord(char):02x}"


def _read_response_format(body: Json, budget: SchemaBudget) -> Json | None:
    response_format = fields.json_object(body, "response_format")
    if response_format is None:
        return None
    kind = fields.choice(response_format, "type", RESPONSE_FORMAT_TYPES, "response_format.")
    if kind is None:
        raise fields.missing("response_format.type")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = response_format.get("schema")  # llama.cpp accepts a schema here too
        return ANY_OBJECT if schema is None else check_schema(schema, "response_format.schema", budget)
    param = "response_format.json_schema"
    json_schema = fields.json_object(response_format, "json_schema", "response_format.")
    if json_schema is None:
        raise fields.missing(param)
    name = fields.string(json_schema, "name", 64, f"{param}.")
    if name is not None and not SCHEMA_NAME.fullmatch(name):
        message = (
            f"Invalid '{param}.name': expected letters, digits, '_' and '-', but got '{fields.shorten_value(name)}'."
        )
        raise invalid_request(message, param=f"{param}.name", code="invalid_value")
    fields.boolean(json_schema, "strict", f"{param}.")
    schema = json_schema.get("schema")
    return ANY_OBJECT if schema is None else check_schema(schema, f"{param}.schema", budget)
