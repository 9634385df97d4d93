"""The bytes of a body as a JSON object, or an error that says why not.

What comes out is finite numbers, whole characters and at most `DEPTH_LIMIT` levels; what goes on to an engine is
encoded from it anew. So bytes that two parsers may read differently (a key twice, odd numbers) never reach the second.
"""

from collections.abc import Generator

import msgspec

from welldone.serve.errors import ApiError, invalid_request
from welldone.wire import budget
from welldone.wire.budget import (
    DIGITS_LIMIT,
    SMALL_TEXT_BYTES,
    run_to_completion,
    count_json_syntax,
    decode_unlimited_in_steps,
    outside_strings_in_steps,
)
from welldone.wire.events import Json

JSON_DEPTH_LIMIT = 64
"""Levels of a body. OpenAI's deepest field, a schema of 10 levels, has about 30."""
CONTAINERS_LIMIT = 50_000
"""Arrays and objects of a body. A million of them take seconds to make, in which no other client is heard; these take
25 ms. The longest list that is accepted, of messages, has 4,096: there are 12 for each."""
STRINGS_LIMIT = 75_000
"""Names and texts of a body, for the same reason: so many names of one object take 35 ms. There are 18 for each
message."""
ELEMENTS_LIMIT = 1_000_000
"""Elements of all arrays and objects: as many token ids as the longest context of a model has. They take 30 to
50 ms."""
DECIMALS_LIMIT = 50_000
"""Numbers with a point or an exponent: those that lie between two that can be told apart take 1 us each."""
NEGATIVE_EXPONENTS_LIMIT = 4_096
"""Numbers with a negative exponent: those near the smallest that there are take 2 us each."""

_DECODE_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)
_URLENCODED_TYPE = "application/x-www-form-urlencoded"


def read_body_in_steps(
    data: bytes, content_type: str | None, *, is_browser: bool = False
) -> Generator[None, None, Json]:
    """The JSON object that a request's body is, in steps of which each takes a turn.

    `is_browser`: whether it came with an Origin.
    """
    _check_content_type(content_type, is_browser)
    if not data.strip():
        raise invalid_request("The body is empty: it must be a JSON object.")
    yield from JsonSizeLimits("body").check_in_steps(data)
    try:
        value = yield from decode_unlimited_in_steps(data)
    except _DECODE_ERRORS:
        raise _invalid_json() from None
    if not isinstance(value, dict):
        raise invalid_request("The body must be a JSON object.")
    if len(data) >= SMALL_TEXT_BYTES:
        yield
    return value


def read_body(data: bytes, content_type: str | None, *, is_browser: bool = False) -> Json:
    """The same at once, where nobody waits."""
    return run_to_completion(read_body_in_steps(data, content_type, is_browser=is_browser))


def decode_json(data: bytes) -> object:
    """The value of strict JSON that is not deep. ApiError where it is none."""
    try:
        return budget.decode(data)
    except _DECODE_ERRORS:
        raise _invalid_json() from None


def _invalid_json() -> ApiError:
    return invalid_request("This is not valid JSON (UTF-8, finite numbers, no lone surrogates).")


class JsonSizeLimits:
    """How much one JSON text, or several together, may hold: told before anything is made of them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._containers = CONTAINERS_LIMIT
        self._strings = STRINGS_LIMIT
        self._elements = ELEMENTS_LIMIT
        self._decimals = DECIMALS_LIMIT
        self._negative_exponents = NEGATIVE_EXPONENTS_LIMIT

    def check(self, data: bytes) -> None:
        """Take what this text holds. ApiError where that is too much."""
        run_to_completion(self.check_in_steps(data))

    def check_in_steps(self, data: bytes) -> Generator[None, None, None]:
        """The same in steps, of which each takes a turn."""
        if len(data) >= SMALL_TEXT_BYTES:
            yield
        split = yield from outside_strings_in_steps(data, self._strings)
        if len(data) >= SMALL_TEXT_BYTES:
            yield
        if split is None:
            raise invalid_request(f"The {self._name} has more than {STRINGS_LIMIT} names and texts.")
        outside, strings = split
        self._strings -= strings
        found = count_json_syntax(outside)
        self._elements -= found.elements
        if self._elements < 0:
            raise invalid_request(f"The {self._name} has more than {ELEMENTS_LIMIT} elements.")
        self._decimals -= found.floats
        self._negative_exponents -= found.negative_exponents
        if self._decimals < 0 or self._negative_exponents < 0 or found.has_long_number:
            raise invalid_request(
                f"The {self._name} has a number of more than {DIGITS_LIMIT} digits, more than {DECIMALS_LIMIT} "
                f"decimals, or more than {NEGATIVE_EXPONENTS_LIMIT} with a negative exponent."
            )
        self._containers -= found.containers
        if self._containers < 0:
            raise invalid_request(f"The {self._name} has more than {CONTAINERS_LIMIT} arrays and objects.")
        if found.depth > JSON_DEPTH_LIMIT:
            raise invalid_request(f"The {self._name} is nested more than {JSON_DEPTH_LIMIT} levels deep.")
        if len(data) >= SMALL_TEXT_BYTES:
            yield


def _check_content_type(content_type: str | None, is_browser: bool) -> None:
    """A page can send any site a form, but JSON only with that site's leave: so a browser must say that it is JSON."""
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    if kind in ("", _URLENCODED_TYPE) and not is_browser:  # `curl -d` says form unless told otherwise
        return
    raise ApiError(415, "The body must be JSON: send the header 'Content-Type: application/json'.")
