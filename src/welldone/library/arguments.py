"""Arguments that the functions of the library share: endpoint, request body and received bytes.

Wrong use raises an exception that states what to pass instead. The content of bytes never does.
"""

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from welldone.core.catalog import RULES
from welldone.core.envelope import Endpoint
from welldone.core.events import Json
from welldone.core.lenient_json import parse_strict
from welldone.dialects.registry import DIALECTS

EndpointName: TypeAlias = Literal["chat", "completions", "responses", "messages", "gemini"]
"""Endpoint of a stream: `/v1/chat/completions`, `/v1/completions`, `/v1/responses`, `/v1/messages`, or Gemini's."""
RequestBody: TypeAlias = Mapping[str, Any] | bytes | None
"""Body of the request: a decoded object, or the received bytes. Bytes that are no JSON object count as unknown."""

ENDPOINTS = tuple(endpoint.value for endpoint in Endpoint)


def parse_endpoint(name: str) -> Endpoint:
    """Return the endpoint with this name.

    Raises:
        ValueError: there is none.
    """
    if name not in ENDPOINTS:
        raise ValueError(f"unknown endpoint {name!r}; use one of {', '.join(map(repr, ENDPOINTS))}")
    return Endpoint(name)


ENDPOINT_PATHS: Mapping[str, EndpointName] = {
    dialect.path: endpoint.value for endpoint, dialect in DIALECTS.items() if dialect.path.startswith("/")
}
"""Endpoints by the ends of their paths."""


def parse_request(request: RequestBody) -> Json | None:
    """Return the body of a request as an object; None if it is unknown.

    Raises:
        TypeError: the argument is neither a mapping nor bytes.
    """
    if request is None:
        return None
    if isinstance(request, bytes | bytearray | memoryview):
        value = parse_strict(bytes(request))
        return value if isinstance(value, dict) else None
    if isinstance(request, Mapping):
        return dict(request)
    raise TypeError(f"request must be a dict, or the body as bytes; got {type(request).__name__}")


def parse_rules(rules: Iterable[str], parameter: str, *, others: tuple[str, ...] = ()) -> frozenset[str]:
    """Return the ids of rules as a set.

    Raises:
        TypeError: a single string was passed.
        ValueError: an id is neither that of a rule nor one of `others`.
    """
    if isinstance(rules, str):
        raise TypeError(f"{parameter} must be a collection of rule ids; write [{rules!r}]")
    ids = frozenset(rules)
    if ids <= RULES.keys():
        return ids
    from difflib import get_close_matches  # only for the message

    for rule in sorted(ids - RULES.keys() - set(others)):
        close = get_close_matches(rule, [*RULES, *others], 1)
        hint = f"did you mean {close[0]!r}?" if close else "welldone.RULES lists them"
        raise ValueError(f"unknown rule {rule!r} in {parameter}; {hint}")
    return ids


def require_bytes(data: object, function: str) -> bytes:
    """Return `data` as bytes.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    hint = "; encode the text as UTF-8, or pass the bytes as received" if isinstance(data, str) else ""
    raise TypeError(f"{function} takes bytes, not {type(data).__name__}{hint}")


def new_id_stem() -> str:
    """Return a random end of an id."""
    return os.urandom(12).hex()


def current_time() -> int:
    """Return the time in seconds, for `created`."""
    return int(time.time())
