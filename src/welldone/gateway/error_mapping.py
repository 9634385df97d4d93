"""What an engine or an upstream refuses, in the words and with the status that OpenAI's clients know.

Of a server's own words only those of a JSON error are repeated, short, and without what tells a stranger about the
machine: no address, no path, no key, no HTML.
"""

import re
import time
from collections.abc import Callable, Collection, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import msgspec

from welldone.engines.errors import EngineError
from welldone.gateway.errors import ERROR_TYPES, ApiError
from welldone.gateway.upstream import Upstream
from welldone.http.client import HttpClientError
from welldone.protocol.events import Failure, Json
from welldone.protocol.json_budget import decode

_MESSAGE_LIMIT = 400  # characters of a server's own words; theirs have fewer
_READ_LIMIT = 4_096  # characters that are looked at; a validation error repeats the whole request
_PARAM_LIMIT = 64
_MIN_SECRET_LENGTH = 6  # shorter ones are words, such as `none`
_CODE = re.compile(r"[a-z][a-z0-9_.-]{0,63}", re.IGNORECASE)
_PRIVATE = re.compile(
    r"[a-z][a-z0-9+.-]{1,15}://[^\s\"'<>]*"  # an address on the web
    r"|\[[0-9a-f]{0,4}(?::[0-9a-f.]{0,15}){2,9}\](?::\d{1,5})?"  # IPv6
    r"|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?(?![\w.])"  # IPv4
    r"|(?<![\w.-])(?:localhost|[a-z0-9-]+(?:\.[a-z0-9-]+)+):\d{2,5}(?!\w)"  # a name with a port
    r"|(?<![\w.])/(?!v1/)(?:[\w.@+-]+/)+[\w.@+-]*"  # a path, which is none of the API
    r"|0x[0-9a-f]{6,}"  # a place in memory
    r"|\b(?:bearer\s+|sk-|hf_|gsk_|xai-)[\w.~+/=*-]{4,}",  # a key
    re.IGNORECASE,
)
_TAG = re.compile(r"</?[a-z!][^<>]{0,200}>", re.IGNORECASE)
_LLAMA_CONTEXT_EXCEEDED = "exceed_context_size_error"
# llama.cpp takes an input for a vector in one piece, however much the context holds, and calls what is longer a 500.
_LLAMA_BATCH_EXCEEDED = re.compile(r"input \((\d+) tokens\) is too large to process.*batch size: (\d+)")
# Each server's words for a prompt that does not fit. Some say them with a 500.
_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size"  # codes of OpenAI and llama.cpp
    r"|maximum context length"  # OpenAI, vLLM, SGLang
    r"|exceeds? (?:the )?(?:available |maximum |model's )*context"  # llama.cpp, LocalAI, Ollama
    r"|longer than the (?:model's context|maximum model) length"  # SGLang, older vLLM
    r"|`inputs` (?:tokens \+|must have less than)"  # TGI
    r"|context the overflows|prompt is too long"  # LM Studio, others
    r"|(?:input|prompt) (?:token )?len[^.]{0,80}(?:too long|>)",  # LightLLM
    re.IGNORECASE,
)
# llama.cpp and ik_llama.cpp answer some bad requests with 500.
_BAD_REQUEST = re.compile(
    r"json\.exception\.(?:type_error\.302|out_of_range\.403)|^Failed to parse (?:messages|tools|grammar)|^Expected '"
    r"|^Invalid tool_choice|^'\w+' is required"
    r"|(?:image|audio|video) input is not supported|must contain 'content'|^Only one completion choice"
    r"|^response_format type must be|^Unsupported param",
    re.IGNORECASE,
)
_MODEL_WORD = re.compile(r"\bmodel\b", re.IGNORECASE)
_FORWARDED_STATUSES = (408, 409, 413, 415)
_ANTHROPIC_OVERLOADED = 529  # Anthropic's own status
_UNAVAILABLE_MESSAGES = {
    502: "The upstream cannot reach its own server.",
    503: "The upstream is not available.",
    504: "The upstream was not answered in time.",
}
_REQUEST_STATUSES = (400, 422)
_OVERFLOW_STATUSES = (*_REQUEST_STATUSES, 413, 500)
_DEFAULT_RETRY_AFTER_S = 1.0  # where an upstream that is busy does not say when to come again: clients want to know
_CREDENTIAL_STATUSES = (401, 402, 403)  # what they refuse is this server's key, or its account
QUEUE_TIMEOUT = "queue_timeout"
"""What a welldone server says to one who waited there for as long as it may: nobody lets it wait once more."""
OVERLOAD_CODES = (QUEUE_TIMEOUT, "server_busy")
"""What a welldone server says with 503 though it is well: it has too much to do."""


# A server of our own.


def engine_unavailable(error: EngineError) -> ApiError:
    """There is no engine."""
    return ApiError(503, error.message, code="model_unavailable", retry_after_s=error.retry_after_s or 1.0)


def engine_died() -> ApiError:
    """The engine was there, and is gone."""
    return ApiError(502, "The engine stopped before its answer was whole.", code="engine_died")


def map_engine_error(status: int, body: bytes, param: str = "messages", *, retry_after: str = "") -> ApiError:
    """The engine answered with an error. `param` is what a request that is too long has too much of."""
    error = _parse_error(body)
    if error.get("type") == _LLAMA_CONTEXT_EXCEEDED:
        return context_length_exceeded(error.get("n_prompt_tokens"), error.get("n_ctx"), param)
    message = _sanitize(error.get("message"))
    if found := _LLAMA_BATCH_EXCEEDED.search(message):
        return context_length_exceeded(found[1], found[2], param)
    if status in (400, 413, 422):
        return ApiError(400, message or "The engine cannot follow this request.", code="invalid_request")
    if status == 429:
        wait_s = read_retry_after(retry_after) or 1.0
        return ApiError(429, message or "The engine is busy.", code="rate_limit_exceeded", retry_after_s=wait_s)
    if status == 501:
        return ApiError(400, message or "The model cannot do this.", code="unsupported_by_model")
    if status == 503:
        return ApiError(503, "The model is being loaded.", code="model_loading", retry_after_s=1.0)
    return ApiError(502, f"The engine failed: {message}" if message else "The engine failed.", code="engine_error")


def context_length_exceeded(prompt_tokens: object, limit: object, param: str) -> ApiError:
    """What does not fit into the context that one request has."""
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens. However, your {param} resulted in {prompt_tokens} tokens. "
        f"Please reduce the length of the {param}.",
        param=param,
        code="context_length_exceeded",
    )


# An upstream that answered with an error.


def map_upstream_error(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    param: str = "messages",
    *,
    secrets: Collection[str] = (),
    now: Callable[[], float] = time.time,
) -> ApiError:
    """What the client hears of an upstream's error.

    Args:
        status: the upstream's.
        headers: the upstream's, names in lower case.
        body: as much of it as came.
        param: what a request that is too long has too much of.
        secrets: what may never be repeated, such as the upstream's key.
        now: the time of day, for a Retry-After that is a date.
    """
    error = {name: _redact(value, secrets) for name, value in _parse_error(body).items()}
    message = _sanitize(error.get("message"))
    wait_s = read_retry_after(headers.get("retry-after", ""), now)
    wait_s = _DEFAULT_RETRY_AFTER_S if wait_s is None else wait_s
    if 300 <= status < 400:
        return _bad_gateway("The upstream answered with a redirect, which is not followed.", "upstream_redirect")
    if status in _CREDENTIAL_STATUSES:
        return _bad_gateway("The upstream refuses this server's key.", "upstream_refused")
    if _is_overflow(status, error):
        return _context_overflow(error, message, param)
    if _is_request_error(status, error):
        code = _error_code(error) or "invalid_request"
        return ApiError(400, message or "The upstream refuses this request.", param=_error_param(error), code=code)
    if status in (404, 405):
        return _not_found(error, message)
    if status in _FORWARDED_STATUSES:
        return ApiError(
            status if status in ERROR_TYPES else 400,
            message or "The upstream refuses this request.",
            code=_error_code(error),
        )
    if _is_overload(status, error):
        code = _error_code(error) or "rate_limit_exceeded"
        return ApiError(status, message or "The upstream has too much to do.", code=code, retry_after_s=wait_s)
    if status == 501:
        return ApiError(400, message or "The upstream cannot do this.", code="unsupported_by_upstream")
    status = HTTPStatus.SERVICE_UNAVAILABLE if status == _ANTHROPIC_OVERLOADED else status
    if status in _UNAVAILABLE_MESSAGES:
        said = f"{_UNAVAILABLE_MESSAGES[status]} It says: {message}" if message else _UNAVAILABLE_MESSAGES[status]
        return ApiError(status, said, code="upstream_unavailable", retry_after_s=wait_s)
    return _bad_gateway(f"The upstream failed: {message}" if message else "The upstream failed.", "upstream_error")


def sanitize_failure(failure: Failure, secrets: Collection[str]) -> Failure:
    """What the client hears of an error that came as an event, or in place of a whole reply."""
    told = {name: _redact(value, secrets) for name, value in msgspec.structs.asdict(failure).items()}
    has_secret = any(secret in repr(failure.extra_fields) for secret in secrets if len(secret) >= _MIN_SECRET_LENGTH)
    return Failure(
        _sanitize(told["message"]) or "unknown error",
        _sanitize(told["type"]) or "server_error",
        _sanitize(told["param"]) or None,
        _sanitize(told["code"]) or None,
        {} if has_secret else failure.extra_fields,
    )


def is_retryable_status(status: int, body: bytes = b"") -> bool:
    """Whether another upstream may answer what this one refused so."""
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return _error_code(_parse_error(body)) != QUEUE_TIMEOUT
    return status == 429 or status in _CREDENTIAL_STATUSES or is_upstream_fault(status, body)


def is_upstream_fault(status: int, body: bytes = b"") -> bool:
    """Whether such a reply is a fault of the upstream, and not of the request or of how many there are."""
    if status in (401, 402):
        return True  # whoever asks next is refused as well
    if 400 <= status < 500 or status == 501:
        return False
    error = _parse_error(body)
    return not (_is_overload(status, error) or _is_overflow(status, error) or _is_request_error(status, error))


def read_retry_after(text: str, now: Callable[[], float] = time.time) -> float | None:
    """The seconds of a Retry-After, which may be a date; None where it says nothing."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 9:
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now())
    except (ValueError, OverflowError):
        return None


# An upstream that gave no answer.


def upstream_unreachable(cause: str = "") -> ApiError:
    """There is no connection."""
    return _bad_gateway(_with_cause("The upstream cannot be reached", cause), "upstream_unreachable")


def upstream_disconnected(cause: str = "") -> ApiError:
    """The connection was lost, before the reply or in it; or what came is no HTTP."""
    return _bad_gateway(_with_cause("The upstream's answer broke off", cause), "upstream_died")


def upstream_timeout(timeout_s: float) -> ApiError:
    """Nothing was heard for too long, before the reply or in it."""
    return ApiError(504, f"The server behind this one has said nothing for {timeout_s:g} seconds.", code="timeout")


def empty_reply() -> ApiError:
    """A reply without a body."""
    return _bad_gateway("The upstream's answer is empty.", "upstream_garbage")


def compressed_reply() -> ApiError:
    """A body that is compressed though that was not allowed: it could unpack to any size."""
    return _bad_gateway("The upstream's answer is compressed, which was not asked for.", "upstream_garbage")


def unrecognized_reply() -> ApiError:
    """A page, or something else that is neither a stream nor JSON."""
    return _bad_gateway("The upstream sent something that is no answer.", "upstream_garbage")


def reply_too_large() -> ApiError:
    """More than is kept of a reply."""
    return _bad_gateway("The upstream's answer is longer than can be kept.", "upstream_garbage")


# How errors are read.


def _bad_gateway(message: str, code: str) -> ApiError:
    return ApiError(502, message, code=code)


def _with_cause(message: str, cause: str) -> str:
    cleaned = _sanitize(cause)
    return f"{message}: {cleaned}." if cleaned else f"{message}."


def _parse_error(body: bytes) -> Json:
    """The error in a body, in whatever shape: OpenAI's, its inside alone (SGLang), a text (TGI, Ollama), or FastAPI's
    `detail`."""
    try:
        value = decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    error = value.get("error", value)
    if not isinstance(error, dict):
        return {"message": error}
    detail = error.get("detail")
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        detail = detail[0].get("msg")
    return error if detail is None else {"message": detail, **error}


def _is_overload(status: int, error: Json) -> bool:
    return status == 429 or (status == HTTPStatus.SERVICE_UNAVAILABLE and _error_code(error) in OVERLOAD_CODES)


def _is_overflow(status: int, error: Json) -> bool:
    return status in _OVERFLOW_STATUSES and any(
        isinstance(said, str) and _OVERFLOW.search(said[:_READ_LIMIT])
        for said in (error.get("message"), error.get("type"), error.get("code"))
    )


def _is_request_error(status: int, error: Json) -> bool:
    message = error.get("message")
    return status in _REQUEST_STATUSES or (
        status == 500 and isinstance(message, str) and _BAD_REQUEST.search(message[:_READ_LIMIT]) is not None
    )


def _context_overflow(error: Json, message: str, param: str) -> ApiError:
    asked, limit = error.get("n_prompt_tokens"), error.get("n_ctx")
    if type(asked) is int and type(limit) is int:
        return context_length_exceeded(asked, limit, param)
    said = message or f"The {param} are longer than the model's context."
    return ApiError(400, said, param=param, code="context_length_exceeded")


def _not_found(error: Json, message: str) -> ApiError:
    """No such model, or file; or a server that has no such path."""
    if _error_code(error) == "model_not_found" or error.get("param") == "model" or _MODEL_WORD.search(message):
        said = message or "The upstream does not have this model."
        return ApiError(404, said, param="model", code="model_not_found")
    if message in ("", "Not Found", "File Not Found", "Method Not Allowed"):
        message = "The upstream does not offer this."
    return ApiError(404, message, code="not_found")


def _error_code(error: Json) -> str | None:
    """The error's code, if it is a word: many servers repeat the status there."""
    code = error.get("code")
    return code if isinstance(code, str) and _CODE.fullmatch(code) else None


def _error_param(error: Json) -> str | None:
    param = error.get("param")
    if not isinstance(param, str):
        return None
    return _sanitize(param.removeprefix("body."))[:_PARAM_LIMIT] or None  # vLLM's word for the request


def _redact(value: object, secrets: Collection[str]) -> object:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, "…") if len(secret) >= _MIN_SECRET_LENGTH else value
    return value


def _sanitize(message: object) -> str:
    if not isinstance(message, str):
        return ""
    text = " ".join(_PRIVATE.sub("…", _TAG.sub(" ", message[:_READ_LIMIT])).split())
    return text if len(text) <= _MESSAGE_LIMIT else text[: _MESSAGE_LIMIT - 1] + "…"


# Why a server did not answer: what the client hears of it, and what is to be done about it.


ERROR_LIMIT_BYTES = 65536
"""Of a server's error; theirs have some hundred bytes."""
ERROR_BODY_TIMEOUT_S = 5.0
"""For the body of an error; what has come by then must do."""


OUTCOME_TIMEOUT = "timeout"
"""The outcome where a server said nothing for too long."""


class AttemptFailure(msgspec.Struct, frozen=True):
    """Why a part was not answered."""

    error: ApiError
    """What the client hears if nobody else answers it."""
    outcome: str
    """For the counts: a status, or a word."""
    is_server_fault: bool = True
    """Whether the server is to blame, and not the request."""
    is_retryable: bool = True
    """Whether another server may do better: not where the request is at fault, or where the answer has begun."""
    is_stale: bool = False
    """Whether only a connection was lost that had been idle: the request was never read."""
    is_disconnect: bool = False
    """Whether the connection was lost, so that an engine of our own may have died."""


CLIENT_DISCONNECTED = AttemptFailure(
    ApiError(408, "The client left."), "left", is_server_fault=False, is_retryable=False
)


def status_failure(
    status: int, headers: Mapping[str, str], body: bytes, param: str, upstream: Upstream | None
) -> AttemptFailure:
    """A server answered with an error; without an upstream it is an engine of our own."""
    if upstream is None:
        error = map_engine_error(status, body, param, retry_after=headers.get("retry-after", ""))
    else:
        error = map_upstream_error(status, headers, body, param, secrets=upstream.secrets)
    return AttemptFailure(
        error,
        str(status),
        is_server_fault=is_upstream_fault(status, body),
        is_retryable=is_retryable_status(status, body),
    )


def connection_failure(error: HttpClientError) -> AttemptFailure:
    """There is no connection to a server. Where this machine is at fault, no other server is reached either."""
    if not error.is_local_failure:
        return AttemptFailure(upstream_unreachable(str(error)), "unreachable", is_disconnect=True)
    said = ApiError(503, "The server has no room for another connection.", code="server_busy", retry_after_s=1.0)
    return AttemptFailure(said, "no_room", is_server_fault=False, is_retryable=False)


def timeout_failure(timeout_s: float) -> AttemptFailure:
    """A server said nothing for so long."""
    return AttemptFailure(upstream_timeout(timeout_s), OUTCOME_TIMEOUT)
