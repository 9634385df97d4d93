"""What an engine refuses, in the words and with the status that OpenAI's clients know."""

import re

import msgspec

from welldone.engines.errors import EngineError
from welldone.serve.errors import ApiError
from welldone.wire.events import Json

_MESSAGE_LIMIT = 400  # characters of an engine's own words; theirs have fewer
# A path or an address in memory tells a stranger what the machine looks like.
_PRIVATE = re.compile(r"(?<![\w.])/(?:[\w.@+-]+/)+[\w.@+-]*|0x[0-9a-fA-F]{6,}")
_TOO_LONG = "exceed_context_size_error"


def from_engine(error: EngineError) -> ApiError:
    """There is no engine."""
    return ApiError(503, error.message, code="model_unavailable", retry_after_s=error.retry_after_s or 1.0)


def died() -> ApiError:
    """The engine was there, and is gone."""
    return ApiError(502, "The engine stopped before its answer was whole.", code="engine_died")


def from_reply(status: int, body: bytes, param: str = "messages", *, retry_after: str = "") -> ApiError:
    """The engine answered with an error. `param` is what a request that is too long has too much of."""
    error = _read(body)
    if error.get("type") == _TOO_LONG:
        return too_long(error.get("n_prompt_tokens"), error.get("n_ctx"), param)
    message = _clean(error.get("message"))
    if status in (400, 413, 422):
        return ApiError(400, message or "The engine cannot follow this request.", code="invalid_request")
    if status == 429:
        wait_s = float(retry_after) if retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 9 else 1.0
        return ApiError(429, message or "The engine is busy.", code="rate_limit_exceeded", retry_after_s=wait_s)
    if status == 501:
        return ApiError(400, message or "The model cannot do this.", code="unsupported_by_model")
    if status == 503:
        return ApiError(503, "The model is being loaded.", code="model_loading", retry_after_s=1.0)
    return ApiError(502, f"The engine failed: {message}" if message else "The engine failed.", code="engine_error")


def too_long(asked: object, limit: object, param: str) -> ApiError:
    """What does not fit into the context that one request has."""
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens. However, your {param} resulted in {asked} tokens. "
        f"Please reduce the length of the {param}.",
        param=param,
        code="context_length_exceeded",
    )


def _read(body: bytes) -> Json:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    error = value.get("error", value) if isinstance(value, dict) else {}
    return error if isinstance(error, dict) else {"message": error}


def _clean(message: object) -> str:
    if not isinstance(message, str):
        return ""
    text = " ".join(_PRIVATE.sub("…", message).split())
    return text if len(text) <= _MESSAGE_LIMIT else text[: _MESSAGE_LIMIT - 1] + "…"
