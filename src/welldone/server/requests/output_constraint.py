"""Constraints on the text of an answer: JSON, JSON by a schema, or one of several texts."""

import re

import msgspec

from welldone.gateway.errors import invalid_request
from welldone.protocol.events import Json
from welldone.server.requests import fields
from welldone.server.requests.fields import JsonSizeLimits, decode_json
from welldone.server.requests.json_schema import ALTERNATIVES_LIMIT, SchemaBudget, check_schema

SCHEMA_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
RESPONSE_FORMAT_TYPES = ("text", "json_object", "json_schema")
ANY_OBJECT: Json = {"type": "object"}


GUIDED_CHOICE_LENGTH = 256
"""Characters of one text to choose; a label has some ten."""

GUIDED_KINDS = ("json", "json_object", "choice", "regex", "grammar", "structural_tag")
"""What vLLM's `structured_outputs` may be by. Its older fields are `guided_` and the same word; those that cannot be
kept here are refused by `table.py`."""
VLLM_CONSTRAINT_FIELDS = ("structured_outputs", *(f"guided_{kind}" for kind in GUIDED_KINDS))
_GBNF_SPECIAL = re.compile(r'[\x00-\x1f\x7f"\\]')


class OutputConstraint(msgspec.Struct, frozen=True):
    """What the text of an answer must be; anything where both are None."""

    schema: Json | None = None
    grammar: str | None = None
    """In llama.cpp's GBNF, made here: clients' own are refused (`grammar` in `table.py`)."""
    param: str = "response_format"
    """The field that asks for it."""


def read_output_constraint(body: Json, budget: SchemaBudget) -> OutputConstraint:
    """The constraint of `response_format`, llama.cpp's `json_schema`, or vLLM's `structured_outputs` and `guided_*`.

    Raises:
        ApiError: it is wrong, cannot be kept here, or there is more than one.
    """
    forms = [OutputConstraint(found)] if (found := _read_response_format(body, budget)) is not None else []
    if body.get("json_schema") is not None:
        forms.append(OutputConstraint(check_schema(body["json_schema"], "json_schema", budget), param="json_schema"))
    guided = [_guided_constraint(kind, value, param, budget) for kind, value, param in _read_vllm_constraints(body)]
    forms += [form for form in guided if form is not None]
    if len(forms) > 1:
        message = f"'{forms[1].param}' and '{forms[0].param}' cannot be used together."
        raise invalid_request(message, param=forms[1].param, code="invalid_value")
    return forms[0] if forms else OutputConstraint()


def _read_vllm_constraints(body: Json) -> list[tuple[str, object, str]]:
    """Each constraint in vLLM's words: its kind, its value and what the client calls it."""
    table = fields.json_object(body, "structured_outputs") or {}
    named = [(kind, table.get(kind), f"structured_outputs.{kind}") for kind in GUIDED_KINDS]
    named += [(kind, body.get(f"guided_{kind}"), f"guided_{kind}") for kind in ("json", "json_object", "choice")]
    return [(kind, value, param) for kind, value, param in named if value is not None]


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
    raise fields.unsupported(param, "is not offered for local models; use a JSON schema ('json') or a list ('choice').")


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
    wanted = fields.json_object(body, "response_format")
    if wanted is None:
        return None
    kind = fields.choice(wanted, "type", RESPONSE_FORMAT_TYPES, "response_format.")
    if kind is None:
        raise fields.missing("response_format.type")
    if kind == "text":
        return None
    if kind == "json_object":
        own = wanted.get("schema")  # llama.cpp takes a schema here too
        return ANY_OBJECT if own is None else check_schema(own, "response_format.schema", budget)
    return _read_named_schema(wanted, budget)


def _read_named_schema(response_format: Json, budget: SchemaBudget) -> Json:
    param = "response_format.json_schema"
    named = fields.json_object(response_format, "json_schema", "response_format.")
    if named is None:
        raise fields.missing(param)
    name = fields.string(named, "name", 64, f"{param}.")
    if name is not None and not SCHEMA_NAME.fullmatch(name):
        message = (
            f"Invalid '{param}.name': expected letters, digits, '_' and '-', but got '{fields.shorten_value(name)}'."
        )
        raise invalid_request(message, param=f"{param}.name", code="invalid_value")
    fields.boolean(named, "strict", f"{param}.")
    schema = named.get("schema")
    return ANY_OBJECT if schema is None else check_schema(schema, f"{param}.schema", budget)
