"""One field of a body: its type, its range, and what is said when it is wrong.

null is taken as not said, as OpenAI's own clients mean it. The words of an error name the field, the limit and the
type that came; of the value itself at most `SHOWN_LIMIT` characters are repeated.
"""

from collections.abc import Iterable, Mapping

from welldone.serve.errors import ApiError, invalid_request
from welldone.wire.events import Json

SHOWN_VALUE_LENGTH = 64
"""Characters of a value in a message: enough to know it again, too few to fill a log."""


def json_type_name(value: object) -> str:
    """What a value is, in OpenAI's words."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a decimal"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def shorten_value(value: str | float) -> str:
    """A value, short enough for a message."""
    text = (
        str(value) if not isinstance(value, int) or abs(value) < 10**SHOWN_VALUE_LENGTH else "a number of many digits"
    )
    return text if len(text) <= SHOWN_VALUE_LENGTH else text[: SHOWN_VALUE_LENGTH - 1] + "…"


def string_or_type_name(value: object) -> str:
    """What a field has in place of a word that it knows: the word, or what kind of value it is."""
    return value if isinstance(value, str) else json_type_name(value)


def wrong_type(param: str, expected: str, value: object) -> ApiError:
    """A value of a type that the field cannot have."""
    message = f"Invalid type for '{param}': expected {expected}, but got {json_type_name(value)} instead."
    return invalid_request(message, param=param, code="invalid_type")


def wrong_value(param: str, value: str | float, allowed: Iterable[str]) -> ApiError:
    """A value that is not among those that there are."""
    words = ", ".join(f"'{word}'" for word in allowed)
    message = f"Invalid value for '{param}': '{shorten_value(value)}'. Supported values are: {words}."
    return invalid_request(message, param=param, code="invalid_value")


def missing(param: str) -> ApiError:
    """A field that must be there."""
    return invalid_request(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def unsupported(param: str, reason: str) -> ApiError:
    """A field, or a value of it, that cannot be followed here."""
    return invalid_request(f"Unsupported parameter: '{param}' {reason}", param=param, code="unsupported_parameter")


def too_many(param: str, limit: int, count: int) -> ApiError:
    """A list that is too long."""
    message = f"Invalid '{param}': array too long. Expected at most {limit} elements, but got {count} instead."
    return invalid_request(message, param=param, code="array_above_max_length")


def boolean(body: Json, name: str, path: str = "") -> bool | None:
    """A yes or no, or None where nothing was said."""
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise wrong_type(path + name, "a boolean", value)


def integer(body: Json, name: str, low: int, high: int, path: str = "") -> int | None:
    """A whole number within limits. 5.0 is one too: some clients know only decimals."""
    value = body.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(path + name, "an integer", value)
    _check_range(value, low, high, path + name, "integer")
    return value


def number(body: Json, name: str, low: float, high: float, path: str = "") -> float | None:
    """A number within limits."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(path + name, "a decimal", value)
    _check_range(value, low, high, path + name, "decimal")
    return value


def string(body: Json, name: str, limit: int, path: str = "") -> str | None:
    """A text of at most so many characters."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise wrong_type(path + name, "a string", value)
    if len(value) > limit:
        message = f"Invalid '{path}{name}': string too long. Expected at most {limit} characters, but got {len(value)}."
        raise invalid_request(message, param=path + name, code="string_above_max_length")
    return value


def choice(body: Json, name: str, allowed: tuple[str, ...], path: str = "") -> str | None:
    """One of a few words."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise wrong_type(path + name, "a string", value)
    if value not in allowed:
        raise wrong_value(path + name, value, allowed)
    return value


def json_object(body: Mapping[str, object], name: str, path: str = "") -> Json | None:
    """An object."""
    value = body.get(name)
    if value is None or isinstance(value, dict):
        return value
    raise wrong_type(path + name, "an object", value)


def array(body: Mapping[str, object], name: str, limit: int, path: str = "") -> list[object] | None:
    """A list of at most so many elements."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, list):
        raise wrong_type(path + name, "an array", value)
    if len(value) > limit:
        raise too_many(path + name, limit, len(value))
    return value


def strings(body: Json, name: str, count: int, length: int) -> list[str] | None:
    """A list of texts, none of them empty or too long."""
    values = array(body, name, count)
    if values is None:
        return None
    texts = []
    for place, value in enumerate(values):
        param = f"{name}[{place}]"
        if not isinstance(value, str):
            raise wrong_type(param, "a string", value)
        if not value or len(value) > length:
            message = f"Invalid '{param}': expected a string of 1 to {length} characters, but got {len(value)}."
            raise invalid_request(message, param=param, code="invalid_value")
        texts.append(value)
    return texts


def _check_range(value: float, low: float, high: float, param: str, unit: str) -> None:
    if low <= value <= high:
        return
    side, word, limit = ("below_min", "below minimum", low) if value < low else ("above_max", "above maximum", high)
    sign = ">=" if value < low else "<="
    message = f"Invalid '{param}': {unit} {word} value. Expected a value {sign} {limit}, but got {shorten_value(value)} instead."
    raise invalid_request(message, param=param, code=f"{unit}_{side}_value")
