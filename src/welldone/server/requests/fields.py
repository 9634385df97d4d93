"""Request bodies: JSON with size limits, and fields with OpenAI's error messages.

`null` counts as absent, as in OpenAI's own clients.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from functools import cache
from typing import NamedTuple, ParamSpec, TypeVar

import msgspec

from welldone.core import json_budget
from welldone.core.events import Json
from welldone.core.request_facts import RequestFacts
from welldone.core.text_tool_calls import ForcedToolCall
from welldone.gateway.errors import ApiError, invalid_request
from welldone.schemas import errors
from welldone.schemas.errors import FieldError
from welldone.schemas.fields import FieldHandling, FieldInfo, describe_fields

# A decoded body has finite numbers, valid UTF-8 and at most `JSON_DEPTH_LIMIT` levels. Engines receive a new encoding
# of it, never the client's bytes: two parsers may disagree about duplicate keys or odd numbers.

JSON_DEPTH_LIMIT = 64
"""Nesting depth of a body. OpenAI's deepest field, a schema of 10 levels, needs about 30."""
CONTAINERS_LIMIT = 50_000
"""Arrays and objects in a body. Decoding a million of them blocks the event loop for seconds; these take 25 ms.
The longest accepted list, `messages`, has 4,096 elements: 12 containers for each."""
STRINGS_LIMIT = 75_000
"""Keys and string values in a body, for the same reason: one object with this many keys takes 35 ms. That is 18 for
each message."""
ELEMENTS_LIMIT = 1_000_000
"""Elements of all arrays and objects: enough for the token ids of the longest model context. Decoding takes 30 to
50 ms."""
DECIMALS_LIMIT = 50_000
"""Numbers with a decimal point or an exponent: the slowest to parse, halfway between two doubles, take 1 us each."""
NEGATIVE_EXPONENTS_LIMIT = 4_096
"""Numbers with a negative exponent: subnormal ones take 2 us each."""

_DECODE_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)
_URLENCODED_TYPE = "application/x-www-form-urlencoded"


def read_body_in_steps(
    data: bytes, content_type: str | None, *, is_browser: bool = False
) -> Generator[None, None, Json]:
    """Decode a request body into a JSON object. Yields between slow steps, so that the event loop can run.

    `is_browser`: the request has an Origin header.
    """
    _check_content_type(content_type, is_browser)
    if not data.strip():
        raise invalid_request("The body is empty: it must be a JSON object.")
    is_small = json_budget.is_small_and_flat(data, JSON_DEPTH_LIMIT)  # it has too few bytes to exceed another limit
    if not is_small:
        yield from JsonSizeLimits("body").check_in_steps(data)
    try:
        value = json_budget.decode(data) if is_small else (yield from json_budget.decode_unlimited_in_steps(data))
    except _DECODE_ERRORS:
        raise _invalid_json() from None
    if not isinstance(value, dict):
        raise invalid_request("The body must be a JSON object.")
    if len(data) >= json_budget.SMALL_TEXT_BYTES:
        yield
    return value


def read_body(data: bytes, content_type: str | None, *, is_browser: bool = False) -> Json:
    """Decode a request body without yielding, for use outside an event loop."""
    return json_budget.run_to_completion(read_body_in_steps(data, content_type, is_browser=is_browser))


def decode_json(data: bytes) -> object:
    """Decode strict JSON of limited depth. Raises ApiError if it is invalid."""
    try:
        return json_budget.decode(data)
    except _DECODE_ERRORS:
        raise _invalid_json() from None


def _invalid_json() -> ApiError:
    return invalid_request("This is not valid JSON (UTF-8, finite numbers, no lone surrogates).")


class JsonSizeLimits:
    """Size limits for one or several JSON texts together, enforced before any of them is decoded."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._containers = CONTAINERS_LIMIT
        self._strings = STRINGS_LIMIT
        self._elements = ELEMENTS_LIMIT
        self._decimals = DECIMALS_LIMIT
        self._negative_exponents = NEGATIVE_EXPONENTS_LIMIT

    def check(self, data: bytes) -> None:
        """Count one more text. Raises ApiError if a limit is exceeded."""
        json_budget.run_to_completion(self.check_in_steps(data))

    def check_in_steps(self, data: bytes) -> Generator[None, None, None]:
        """Count one more text, yielding between slow steps."""
        if len(data) >= json_budget.SMALL_TEXT_BYTES:
            yield
        split = yield from json_budget.outside_strings_in_steps(data, self._strings)
        if len(data) >= json_budget.SMALL_TEXT_BYTES:
            yield
        if split is None:
            raise invalid_request(f"The {self._name} has more than {STRINGS_LIMIT} keys and strings.")
        outside, strings = split
        self._strings -= strings
        steps = b""
        for piece in json_budget.cut_to_count(outside):
            counts = json_budget.count_json_syntax(piece)
            self._count(counts)
            steps += counts.bracket_steps
            if len(outside) > len(piece):
                yield
        if json_budget.nesting_depth(steps) > JSON_DEPTH_LIMIT:
            raise invalid_request(f"The {self._name} is nested more than {JSON_DEPTH_LIMIT} levels deep.")
        if len(data) >= json_budget.SMALL_TEXT_BYTES:
            yield

    def _count(self, counts: json_budget.JsonSyntaxCounts) -> None:
        self._elements -= counts.elements
        if self._elements < 0:
            raise invalid_request(f"The {self._name} has more than {ELEMENTS_LIMIT} elements.")
        self._decimals -= counts.floats
        self._negative_exponents -= counts.negative_exponents
        if self._decimals < 0 or self._negative_exponents < 0 or counts.has_long_number:
            raise invalid_request(
                f"The {self._name} has a number of more than {json_budget.DIGITS_LIMIT} digits, more than "
                f"{DECIMALS_LIMIT} decimals, or more than {NEGATIVE_EXPONENTS_LIMIT} with a negative exponent."
            )
        self._containers -= counts.containers
        if self._containers < 0:
            raise invalid_request(f"The {self._name} has more than {CONTAINERS_LIMIT} arrays and objects.")


def _check_content_type(content_type: str | None, is_browser: bool) -> None:
    """Require a JSON content type from browsers: a page may post a form to any site without a CORS preflight."""
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json")):
        return
    if media_type in ("", _URLENCODED_TYPE) and not is_browser:  # the default of `curl -d`
        return
    raise ApiError(415, "The body must be JSON: send the header 'Content-Type: application/json'.")


StructType = TypeVar("StructType", bound=msgspec.Struct)
Params = ParamSpec("Params")


def read_fields(body: Json, schema: type[StructType], path: str = "") -> StructType:
    """Return the body as a Struct. Raises ApiError for the first field that is not as the schema says."""
    request = errors.convert(body, schema, path)
    if isinstance(request, FieldError):
        raise _api_error(request)
    return request


def _api_error(error: FieldError) -> ApiError:
    return invalid_request(error.message, param=error.param, code=error.code)


def _raisable(make: Callable[Params, FieldError]) -> Callable[Params, ApiError]:
    return lambda *args, **kwargs: _api_error(make(*args, **kwargs))


wrong_type: Callable[[str, str, object], ApiError] = _raisable(errors.wrong_type)
wrong_value: Callable[[str, object, Iterable[str]], ApiError] = _raisable(errors.wrong_value)
missing: Callable[[str], ApiError] = _raisable(errors.missing)
too_many: Callable[[str, int, int], ApiError] = _raisable(errors.too_many)
too_long: Callable[[str, int, int], ApiError] = _raisable(errors.too_long)
empty_array: Callable[[str], ApiError] = _raisable(errors.empty_array)


def given(**values: object) -> Json:
    """Return the fields that are not null."""
    return {name: value for name, value in values.items() if value is not None}


def invalid(param: str, reason: str, code: str = "invalid_value") -> ApiError:
    """Return the error for a value that is not allowed."""
    return invalid_request(f"Invalid '{param}': {reason}", param=param, code=code)


def unsupported(param: str, reason: str) -> ApiError:
    """Return the error for a field, or a value of it, that this server does not support."""
    return invalid_request(f"Unsupported parameter: '{param}' {reason}", param=param, code="unsupported_parameter")


def check_supported(body: Json, schema: type[msgspec.Struct], path: str = "") -> None:
    """Raise ApiError for a field that must be empty. Its note says why. `path`: as in `read_fields`."""
    for name, field in fields_with(FieldHandling.REJECTED, schema).items():
        if body.get(name):
            raise unsupported(path + name, field.note)


@cache
def fields_with(handling: FieldHandling, schema: type[msgspec.Struct]) -> dict[str, FieldInfo]:
    """Return the fields that are handled in a way, by name."""
    return {field.name: field for field in describe_fields(schema) if field.handling is handling}


def check_range(value: float, low: float, high: float, param: str, unit: str) -> None:
    """Raise ApiError for a number outside of its range. `unit`: integer or decimal."""
    if not low <= value <= high:
        limit = str(high if value > high else low)
        raise _api_error(errors.out_of_range(param, value, limit, is_above=value > high, unit=unit))


# Requests in other dialects become chat requests; errors must name the fields that the client sent.

TEMPLATE_KWARGS_KINDS = ("llamacpp", "vllm", "sglang")
"""Servers with `chat_template_kwargs`."""


class ChatTranslation(NamedTuple):
    """A request in another dialect as a chat request, and the client's names for its fields, messages and tools."""

    chat: Json
    param_names: dict[str, str]
    shows_reasoning: bool
    ignored_tools: int
    """Number of tools that only a server can run."""
    ignored_fields: tuple[str, ...] = ()
    """Fields without an effect, which are reported."""


def max_tokens_field(upstream_kind: str) -> str:
    """Return the field for a limit: OpenAI's reasoning models accept only the newer name, other servers the older."""
    return "max_completion_tokens" if upstream_kind == "openai" else "max_tokens"


def thinking_off_fields(upstream_kind: str) -> Json:
    """Return the fields that turn thinking off: an argument of the chat template for servers that have them."""
    if upstream_kind in TEMPLATE_KWARGS_KINDS:
        return {"chat_template_kwargs": {"enable_thinking": False}}
    return {"reasoning_effort": "none"}


def rename_error_param(error: ApiError, param_names: Mapping[str, str]) -> None:
    """Replace the parameter of an error by the client's name for it, in the message too."""
    param = error.param
    if param is None:
        return
    error.param = client_param_name(param, param_names)
    error.message = error.message.replace(f"'{param}'", f"'{error.param}'")


def client_param_name(param: str, param_names: Mapping[str, str]) -> str:
    """Return the client's name of a chat parameter; the longest prefix in `param_names` is replaced.

    `messages[2].content` may be `input[5].content`.
    """
    end = len(param)
    while end > 0:
        if (name := param_names.get(param[:end])) is not None:
            return name + param[end:]
        end = max(param.rfind(".", 0, end), param.rfind("[", 0, end))
    return param


class ValidatedRequest(msgspec.Struct, kw_only=True):
    """A validated chat or completions request: the bodies for the engine, and what the reply depends on."""

    is_stream: bool = False
    facts: RequestFacts = msgspec.field(default_factory=RequestFacts)
    bodies: list[Json]
    """The engine's bodies, ordered by prompt, then by choice, without `model`."""
    prompt_count: int = 1
    """Distinct prompts in `bodies`: the usage counts each once."""
    forced_call: ForcedToolCall | None = None
    echo: list[str] | None = None
    """The text of each prompt, if `echo` asks to repeat it before the answer."""
    ignored_fields: tuple[str, ...] = ()
    """Fields that are not sent, since the upstream's API has no equivalent."""
