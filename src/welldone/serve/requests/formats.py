"""Constraints on the text of an answer: JSON, JSON by a schema, or one of several texts."""

import re

import msgspec

from welldone.serve.errors import invalid
from welldone.serve.requests import fields
from welldone.serve.requests.body import Shape, decode
from welldone.serve.requests.branches import WAYS_LIMIT
from welldone.serve.requests.schema import Budget, check_schema
from welldone.wire.events import Json

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
KINDS = ("text", "json_object", "json_schema")
ANY_OBJECT: Json = {"type": "object"}


CHOICE_LENGTH = 256
"""Characters of one text to choose; a label has some ten."""

GUIDED = ("json", "json_object", "choice", "regex", "grammar", "structural_tag")
"""What vLLM's `structured_outputs` may be by. Its older fields are `guided_` and the same word; those that cannot be
kept here are refused by `table.py`."""
VLLM = ("structured_outputs", *(f"guided_{kind}" for kind in GUIDED))
_SPECIAL = re.compile(r'[\x00-\x1f\x7f"\\]')


class Form(msgspec.Struct, frozen=True):
    """What the text of an answer must be; anything where both are None."""

    schema: Json | None = None
    grammar: str | None = None
    """In llama.cpp's GBNF, made here: clients' own are refused (`grammar` in `table.py`)."""
    param: str = "response_format"
    """The field that asks for it."""


def read_form(body: Json, budget: Budget) -> Form:
    """The constraint of `response_format`, llama.cpp's `json_schema`, or vLLM's `structured_outputs` and `guided_*`.

    Raises:
        ApiError: it is wrong, cannot be kept here, or there is more than one.
    """
    forms = [Form(found)] if (found := _from_format(body, budget)) is not None else []
    if body.get("json_schema") is not None:
        forms.append(Form(check_schema(body["json_schema"], "json_schema", budget), param="json_schema"))
    guided = [_guided(kind, value, param, budget) for kind, value, param in _from_vllm(body)]
    forms += [form for form in guided if form is not None]
    if len(forms) > 1:
        message = f"'{forms[1].param}' and '{forms[0].param}' cannot be used together."
        raise invalid(message, param=forms[1].param, code="invalid_value")
    return forms[0] if forms else Form()


def _from_vllm(body: Json) -> list[tuple[str, object, str]]:
    """Each constraint in vLLM's words: its kind, its value and what the client calls it."""
    table = fields.table(body, "structured_outputs") or {}
    named = [(kind, table.get(kind), f"structured_outputs.{kind}") for kind in GUIDED]
    named += [(kind, body.get(f"guided_{kind}"), f"guided_{kind}") for kind in ("json", "json_object", "choice")]
    return [(kind, value, param) for kind, value, param in named if value is not None]


def _guided(kind: str, value: object, param: str, budget: Budget) -> Form | None:
    if kind == "json":
        if isinstance(value, str):
            text = value.encode()
            Shape(f"schema of '{param}'").check(text)
            value = decode(text)
        return Form(check_schema(value, param, budget), param=param)
    if kind == "json_object":
        return Form(ANY_OBJECT, param=param) if fields.boolean({param: value}, param) else None
    if kind == "choice":
        return Form(grammar=_one_of(value, param), param=param)
    raise fields.unsupported(param, "is not offered for local models; use a JSON schema ('json') or a list ('choice').")


def _one_of(value: object, param: str) -> str:
    """The grammar of one of several texts. llama.cpp follows all that begin alike at once."""
    texts = fields.strings({param: value}, param, WAYS_LIMIT, CHOICE_LENGTH)
    if not texts:
        raise invalid(f"Invalid '{param}': empty array.", param=param, code="empty_array")
    return "root ::= " + " | ".join(f'"{_SPECIAL.sub(_escape, text)}"' for text in texts)


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    return f"\\{char}" if char in '"\\' else f"\\x{ord(char):02x}"


def _from_format(body: Json, budget: Budget) -> Json | None:
    wanted = fields.table(body, "response_format")
    if wanted is None:
        return None
    kind = fields.choice(wanted, "type", KINDS, "response_format.")
    if kind is None:
        raise fields.missing("response_format.type")
    if kind == "text":
        return None
    if kind == "json_object":
        own = wanted.get("schema")  # llama.cpp takes a schema here too
        return ANY_OBJECT if own is None else check_schema(own, "response_format.schema", budget)
    return _named(wanted, budget)


def _named(wanted: Json, budget: Budget) -> Json:
    param = "response_format.json_schema"
    named = fields.table(wanted, "json_schema", "response_format.")
    if named is None:
        raise fields.missing(param)
    name = fields.string(named, "name", 64, f"{param}.")
    if name is not None and not NAME.fullmatch(name):
        message = f"Invalid '{param}.name': expected letters, digits, '_' and '-', but got '{fields.shown(name)}'."
        raise invalid(message, param=f"{param}.name", code="invalid_value")
    fields.boolean(named, "strict", f"{param}.")
    schema = named.get("schema")
    return ANY_OBJECT if schema is None else check_schema(schema, f"{param}.schema", budget)
