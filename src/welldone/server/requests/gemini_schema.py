"""Conversion of schemas in Google's format, a subset of OpenAPI 3.0, to JSON Schema.

Types are in upper case, `nullable` is a member, and counts may be strings: JSON of a 64-bit integer in protobuf.
"""

from typing import Any

from welldone.protocol.events import Json
from welldone.schemas.gemini import camel_case_name
from welldone.server.requests import fields

_DEPTH_LIMIT = 32  # the depth of a body is limited too
_TYPES = ("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL")
_DROPPED = frozenset({"example", "nullable", "propertyOrdering", "type"})
"""Members that are converted separately, or have no equivalent."""
_NUMBER_FORMATS = frozenset({"float", "double", "int32", "int64", "enum"})
_COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_RENAMED = {"defs": "$defs", "ref": "$ref"}
_SCHEMA_LISTS = frozenset({"anyOf", "prefixItems"})
_SCHEMA_MAPS = frozenset({"properties", "$defs"})
_NULL_ALTERNATIVES: Json = {"enum": None, "anyOf": {"type": "null"}}
_SCHEMAS = frozenset({"items", "additionalProperties"})


def openapi_to_json_schema(value: object, param: str, depth: int = 0) -> Json:
    """Return the JSON schema. Raises ApiError if a part of the schema is not as it must be."""
    if not isinstance(value, dict):
        raise fields.wrong_type(param, "an object", value)
    if depth > _DEPTH_LIMIT:
        raise fields.invalid(param, f"the schema is nested more than {_DEPTH_LIMIT} levels deep.")
    out: Json = {}
    for name, member in value.items():
        camel = camel_case_name(name)
        target = _RENAMED.get(camel, camel)
        if member is None or target in _DROPPED or (target == "format" and member in _NUMBER_FORMATS):
            continue
        out[target] = _convert(target, member, f"{param}.{name}", depth)
    if value.get("nullable") is True:
        out |= {name: [*out[name], null] for name, null in _NULL_ALTERNATIVES.items() if name in out}
    return _type_members(value, param) | out


def _convert(name: str, member: Any, param: str, depth: int) -> Any:  # noqa: ANN401 - a part of a schema
    if name in _SCHEMA_MAPS:
        if not isinstance(member, dict):
            raise fields.wrong_type(param, "an object", member)
        return {key: openapi_to_json_schema(one, f"{param}.{key}", depth + 1) for key, one in member.items()}
    if name in _SCHEMA_LISTS:
        if not isinstance(member, list):
            raise fields.wrong_type(param, "an array", member)
        return [openapi_to_json_schema(one, f"{param}[{index}]", depth + 1) for index, one in enumerate(member)]
    if name in _SCHEMAS and not isinstance(member, bool):
        return openapi_to_json_schema(member, param, depth + 1)
    if name in _COUNTS and isinstance(member, str) and member.isascii() and member.isdigit() and len(member) < 20:
        return int(member)
    return member


def _type_members(value: Json, param: str) -> Json:
    kind = value.get("type")
    if kind is None or kind == "TYPE_UNSPECIFIED":
        return {}
    if not isinstance(kind, str):
        raise fields.wrong_type(f"{param}.type", "a string", kind)
    if kind.upper() not in _TYPES:
        raise fields.wrong_value(f"{param}.type", kind, _TYPES)
    return {"type": [kind.lower(), "null"] if value.get("nullable") is True else kind.lower()}
