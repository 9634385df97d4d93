"""Error mapping: errors of engines and upstreams to API errors with OpenAI's statuses and codes.

Only the message of a JSON error is forwarded, truncated and without addresses, paths, keys and HTML. `AttemptFailure`
adds what the retry logic needs.
"""

import re
import time
from collections.abc import Callable, Collection, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import msgspec

from welldone.core.events import Failure, Json
from welldone.core.fields import incomplete_stream_failure
from welldone.core.lenient_json import as_list, as_object, parse_strict
from welldone.core.repair_log import shorten
from welldone.engines.errors import EngineError
from welldone.gateway.errors import BAD_REQUEST, ERROR_TYPES, OVERFLOW, ApiError
from welldone.gateway.upstream import UNFINISHED_MESSAGE, Upstream, unfinished_message
from welldone.http.connect import HttpClientError
from welldone.http.response_parser import HEAD_TOO_LONG, NOT_HTTP

_MESSAGE_LIMIT = 400  # characters of a forwarded message; servers send fewer
_READ_LIMIT = 4_096  # characters that are examined; a validation error repeats the whole request
_PARAM_LIMIT = 64
_MIN_SECRET_LENGTH = 6  # shorter keys, such as `none`, are common words
_CODE = re.compile(r"[a-z][a-z0-9_.-]{0,63}", re.IGNORECASE)
_PRIVATE = re.compile(
    r"[a-z][a-z0-9+.-]{1,15}://[^\s\"'<>]*"  # a URL
    r"|\[[0-9a-f]{0,4}(?::[0-9a-f.]{0,15}){2,9}\](?::\d{1,5})?"  # IPv6
    r"|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?(?![\w.])"  # IPv4
    r"|(?<![\w.-])(?:localhost|[a-z0-9-]+(?:\.[a-z0-9-]+)+):\d{2,5}(?!\w)"  # host:port
    r"|(?<![\w.])/(?!v1/)(?:[\w.@+-]+/)+[\w.@+-]*"  # a path, except API paths
    r"|0x[0-9a-f]{6,}"  # a memory address
    r"|\b(?:bearer\s+|sk-|hf_|gsk_|xai-)[\w.~+/=*-]{4,}",  # a key
    re.IGNORECASE,
)
_TAG = re.compile(r"</?[a-z!][^<>]{0,200}>", re.IGNORECASE)
_LLAMA_CONTEXT_EXCEEDED = "exceed_context_size_error"
# llama.cpp rejects embedding inputs longer than a batch with 500, whatever the context size.
_LLAMA_BATCH_EXCEEDED = re.compile(r"input \((\d+) tokens\) is too large to process.*batch size: (\d+)")
_MODEL_WORD = re.compile(r"\bmodel\b", re.IGNORECASE)
_FORWARDED_STATUSES = (408, 409, 413, 415)
_ANTHROPIC_OVERLOADED = 529  # Anthropic's own status
_UNAVAILABLE_MESSAGES = {
    502: "The upstream cannot reach its own backend.",
    503: "The upstream is not available.",
    504: "The upstream's own backend timed out.",
}
_REQUEST_STATUSES = (400, 422)
_OVERFLOW_STATUSES = (*_REQUEST_STATUSES, 413, 500)
_DEFAULT_RETRY_AFTER_S = 1.0  # for a busy upstream that sends no Retry-After
_CREDENTIAL_STATUSES = (401, 402, 403)  # they concern the gateway's key or account, not the client's
_GOOGLE_INVALID_KEY = "API_KEY_INVALID"
QUEUE_TIMEOUT = "queue_timeout"
"""Code of a welldone server for a request that waited too long in its queue. Not retried: it would wait again."""
OVERLOAD_CODES = (QUEUE_TIMEOUT, "server_busy")
"""Codes with which a welldone server sends 503 while it is healthy but overloaded."""


# Errors of local engines.


def engine_unavailable(error: EngineError) -> ApiError:
    """The engine cannot be started."""
    return ApiError(503, error.message, code="model_unavailable", retry_after_s=error.retry_after_s or 1.0)


def engine_died() -> ApiError:
    """The engine ended before or within its answer."""
    return ApiError(502, "The engine stopped before the answer was complete.", code="engine_died")


def invalid_engine_reply() -> ApiError:
    """The engine's reply is not the JSON object that was expected."""
    return ApiError(502, "The engine sent an invalid reply.", code="engine_error")


def map_engine_error(status: int, body: bytes, param: str = "messages", *, retry_after: str = "") -> ApiError:
    """Map an error response of the engine. `param` is the field to blame for a context overflow."""
    error = _parse_error(body)
    if error.get("type") == _LLAMA_CONTEXT_EXCEEDED:
        return context_length_exceeded(error.get("n_prompt_tokens"), error.get("n_ctx"), param)
    message = _sanitize(error.get("message"))
    if match := _LLAMA_BATCH_EXCEEDED.search(message):
        return context_length_exceeded(match[1], match[2], param)
    if status in (400, 413, 422):
        return ApiError(400, message or "The engine rejected this request.", code="invalid_request")
    if status == 429:
        wait_s = read_retry_after(retry_after) or 1.0
        return ApiError(429, message or "The engine is busy.", code="rate_limit_exceeded", retry_after_s=wait_s)
    if status == 501:
        return ApiError(400, message or "The model does not support this request.", code="unsupported_by_model")
    if status == 503:
        return ApiError(503, "The model is loading.", code="model_loading", retry_after_s=1.0)
    return ApiError(502, f"The engine failed: {message}" if message else "The engine failed.", code="engine_error")


def context_length_exceeded(prompt_tokens: object, limit: object, param: str) -> ApiError:
    """A prompt that does not fit into the context of one request, in OpenAI's words."""
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens. However, your {param} resulted in {prompt_tokens} "
        f"tokens. Please reduce the length of the {param}.",
        param=param,
        code="context_length_exceeded",
    )


# Error responses of upstreams.


def map_upstream_error(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    param: str = "messages",
    *,
    secrets: Collection[str] = (),
    now: Callable[[], float] = time.time,
) -> ApiError:
    """Map an error response of an upstream.

    Args:
        status: of the response.
        headers: of the response, names in lower case.
        body: of the response, possibly truncated.
        param: the field to blame for a context overflow.
        secrets: values to remove from messages, such as the upstream's key.
        now: the wall clock, for a Retry-After that is a date.
    """
    error = {name: _redact(value, secrets) for name, value in _parse_error(body).items()}
    message = _sanitize(error.get("message"))
    wait_s = read_retry_after(headers.get("retry-after", ""), now)
    wait_s = _DEFAULT_RETRY_AFTER_S if wait_s is None else wait_s
    if 300 <= status < 400:
        message = f"The upstream returned a redirect (status {status}); redirects are not followed."
        return _bad_gateway(message, "upstream_redirect")
    if _is_key_error(status, error):
        return _bad_gateway(f"The upstream rejected the gateway's key (status {status}).", "upstream_refused")
    if _is_overflow(status, error):
        return _context_overflow(error, message, param)
    if _is_request_error(status, error):
        code = _error_code(error) or "invalid_request"
        return ApiError(400, message or "The upstream rejected this request.", param=_error_param(error), code=code)
    if status in (404, 405):
        return _not_found(error, message)
    if status in _FORWARDED_STATUSES:
        return ApiError(
            status if status in ERROR_TYPES else 400,
            message or "The upstream rejected this request.",
            code=_error_code(error),
        )
    if _is_overload(status, error):
        code = _error_code(error) or "rate_limit_exceeded"
        return ApiError(status, message or "The upstream is overloaded.", code=code, retry_after_s=wait_s)
    if status == 501:
        return ApiError(400, message or "The upstream does not support this.", code="unsupported_by_upstream")
    status = HTTPStatus.SERVICE_UNAVAILABLE if status == _ANTHROPIC_OVERLOADED else status
    if status in _UNAVAILABLE_MESSAGES:
        summary = _UNAVAILABLE_MESSAGES[status]
        quoted = f"{summary} Its message: {message}" if message else summary
        return ApiError(status, quoted, code="upstream_unavailable", retry_after_s=wait_s)
    return _bad_gateway(f"The upstream failed: {message}" if message else "The upstream failed.", "upstream_error")


def sanitize_failure(failure: Failure, secrets: Collection[str]) -> Failure:
    """Redact an error that came as an event in a stream, or as the body of a 200."""
    redacted = {name: _redact(value, secrets) for name, value in msgspec.structs.asdict(failure).items()}
    if is_unfinished(failure):  # the error of a gateway behind this one: it is no answer without an end
        redacted["type"] = None
    has_secret = any(secret in repr(failure.extra_fields) for secret in secrets if len(secret) >= _MIN_SECRET_LENGTH)
    return Failure(
        _sanitize(redacted["message"]) or "unknown error",
        _sanitize(redacted["type"]) or "server_error",
        _sanitize(redacted["param"]) or None,
        _sanitize(redacted["code"]) or None,
        {} if has_secret else failure.extra_fields,
    )


def is_retryable_status(status: int, body: bytes = b"") -> bool:
    """Whether another upstream may succeed after this error response."""
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return _error_code(_parse_error(body)) != QUEUE_TIMEOUT
    return status == 429 or _is_key_error(status, _parse_error(body)) or is_upstream_fault(status, body)


def is_upstream_fault(status: int, body: bytes = b"") -> bool:
    """Whether an error response is caused by the upstream, not by the request or by overload."""
    if status != 403 and _is_key_error(status, _parse_error(body)):
        return True  # the gateway's key: all requests are rejected
    if 400 <= status < 500 or status == 501:
        return False
    error = _parse_error(body)
    return not (_is_overload(status, error) or _is_overflow(status, error) or _is_request_error(status, error))


def read_retry_after(text: str, now: Callable[[], float] = time.time) -> float | None:
    """The seconds of a Retry-After header, which may be a date (RFC 9110 §10.2.3); None if invalid."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 9:
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now())
    except (ValueError, OverflowError):
        return None


# Upstreams that send no usable response.


def upstream_unreachable(cause: str = "") -> ApiError:
    """The connection failed."""
    return _bad_gateway(_with_cause("The upstream cannot be reached", cause), "upstream_unreachable")


def upstream_disconnected(cause: str = "") -> ApiError:
    """The connection was lost before or within the response, or the response is not HTTP."""
    return _bad_gateway(_with_cause("The upstream's answer broke off", cause), "upstream_died")


def upstream_timeout(timeout_s: float) -> ApiError:
    """The upstream or engine sent nothing for too long."""
    return ApiError(504, f"The upstream or engine sent nothing for {timeout_s:g} seconds.", code="timeout")


# Parsing and redaction.


def _bad_gateway(message: str, code: str) -> ApiError:
    return ApiError(502, message, code=code)


def _with_cause(message: str, cause: str) -> str:
    cleaned = _sanitize(cause)
    return f"{message}: {cleaned}." if cleaned else f"{message}."


def _parse_error(body: bytes) -> Json:
    """The error object of a body: OpenAI's `error`, the object without it (SGLang), a string (TGI, Ollama), FastAPI's
    `detail`, or the array of Gemini's streams."""
    value = parse_strict(body)
    if isinstance(value, list):
        value = next(iter(value), None)
    if not isinstance(value, dict):
        return {}
    error = value.get("error", value)
    if not isinstance(error, dict):
        return {"message": error}
    detail = error.get("detail")
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        detail = detail[0].get("msg")
    return error if detail is None else {"message": detail, **error}


def _is_key_error(status: int, error: Json) -> bool:
    """Whether the gateway's key was rejected. Google's API rejects an invalid one with 400."""
    return status in _CREDENTIAL_STATUSES or any(
        detail.get("reason") == _GOOGLE_INVALID_KEY for detail in map(as_object, as_list(error.get("details")))
    )


def _is_overload(status: int, error: Json) -> bool:
    return status == 429 or (status == HTTPStatus.SERVICE_UNAVAILABLE and _error_code(error) in OVERLOAD_CODES)


def _is_overflow(status: int, error: Json) -> bool:
    return status in _OVERFLOW_STATUSES and any(
        isinstance(text, str) and OVERFLOW.search(text[:_READ_LIMIT])
        for text in (error.get("message"), error.get("type"), error.get("code"))
    )


def _is_request_error(status: int, error: Json) -> bool:
    message = error.get("message")
    return status in _REQUEST_STATUSES or (
        status == 500 and isinstance(message, str) and BAD_REQUEST.search(message[:_READ_LIMIT]) is not None
    )


def _context_overflow(error: Json, message: str, param: str) -> ApiError:
    prompt_tokens, limit = error.get("n_prompt_tokens"), error.get("n_ctx")
    if type(prompt_tokens) is int and type(limit) is int:
        return context_length_exceeded(prompt_tokens, limit, param)
    message = message or f"The {param} are longer than the model's context."
    return ApiError(400, message, param=param, code="context_length_exceeded")


def _not_found(error: Json, message: str) -> ApiError:
    if _error_code(error) == "model_not_found" or error.get("param") == "model" or _MODEL_WORD.search(message):
        message = message or "The upstream does not have this model."
        return ApiError(404, message, param="model", code="model_not_found")
    if message in ("", "Not Found", "File Not Found", "Method Not Allowed"):
        message = "The upstream does not have this endpoint."
    return ApiError(404, message, code="not_found")


def _error_code(error: Json) -> str | None:
    """The error's code, if it is a word: many servers repeat the status as a number."""
    code = error.get("code")
    return code if isinstance(code, str) and _CODE.fullmatch(code) else None


def _error_param(error: Json) -> str | None:
    param = error.get("param")
    if not isinstance(param, str):
        return None
    return _sanitize(param.removeprefix("body."))[:_PARAM_LIMIT] or None  # vLLM's prefix


def _redact(value: object, secrets: Collection[str]) -> object:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, "…") if len(secret) >= _MIN_SECRET_LENGTH else value
    return value


def _sanitize(message: object) -> str:
    if not isinstance(message, str):
        return ""
    return shorten(" ".join(_PRIVATE.sub("…", _TAG.sub(" ", message[:_READ_LIMIT])).split()), _MESSAGE_LIMIT)


# Failures of attempts.


ERROR_LIMIT_BYTES = 65536
"""Bytes read of an error body; typical ones have some hundred."""
ERROR_BODY_TIMEOUT_S = 5.0
"""Time for an error body; a partial one is used as it is."""


OUTCOME_TIMEOUT = "timeout"
"""Outcome (a metric label) of an attempt without bytes for too long."""

OUTCOME_CUT, OUTCOME_UNREADABLE = "cut", "unreadable"
"""Outcomes (metric labels) of a reply that broke off, or lacks a part, and of one that is no answer."""

OUTCOME_NO_ROOM = "no_room"
"""Outcome (a metric label) where this machine has no free ports, file descriptors or memory for a connection."""


class AttemptFailure(msgspec.Struct, frozen=True):
    """Why an attempt failed, and whether to retry."""

    error: ApiError
    """The client's error if no other attempt succeeds."""
    outcome: str
    """Metric label: a status, or a word."""
    is_server_fault: bool = True
    """Whether the server is at fault, not the request."""
    is_retryable: bool = True
    """Whether another server may succeed: not if the request is at fault, or if the answer has begun."""
    is_stale: bool = False
    """Whether a pooled connection was closed before the server read the request."""
    is_disconnect: bool = False
    """Whether the connection was lost, so that a local engine may have died."""
    goes_unstreamed: bool = False
    """Whether the same upstream may succeed, since the next attempt asks it for no stream."""
    has_differed: bool = False
    """Whether it repeated an answer and differed from what the client has: the answer may go on in another way."""

    @property
    def is_upstream_failure(self) -> bool:
        """Whether the upstream failed a request that it should have answered, however often it is retried."""
        is_ours = self.is_stale or self.outcome == OUTCOME_NO_ROOM
        return self.error.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not is_ours


CLIENT_DISCONNECTED = AttemptFailure(
    ApiError(408, "The client disconnected."), "left", is_server_fault=False, is_retryable=False
)


def client_too_slow(timeout_s: float) -> AttemptFailure:
    """The failure for a client that reads nothing for `timeout_s`."""
    error = ApiError(408, f"The client has read nothing for {timeout_s:g} s.", code="client_too_slow")
    return AttemptFailure(error, CLIENT_DISCONNECTED.outcome, is_server_fault=False, is_retryable=False)


def status_failure(
    status: int, headers: Mapping[str, str], body: bytes, param: str, upstream: Upstream | None
) -> AttemptFailure:
    """The failure for an error response of an upstream, or of the local engine if `upstream` is None."""
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


def connection_failure(error: HttpClientError, upstream: Upstream | None) -> AttemptFailure:
    """The failure for a connection that cannot be made. If this machine is at fault, other servers are not tried."""
    if not error.is_local_failure:
        api_error = engine_died() if upstream is None else upstream_unreachable(str(error))
        return AttemptFailure(api_error, "unreachable", is_disconnect=True)
    busy = ApiError(503, "The server has no room for another connection.", code="server_busy", retry_after_s=1.0)
    return AttemptFailure(busy, OUTCOME_NO_ROOM, is_server_fault=False, is_retryable=False)


def disconnect_failure(error: HttpClientError, upstream: Upstream | None, *, has_head: bool = False) -> AttemptFailure:
    """The failure for a reply that breaks off, or is not HTTP. `has_head`: its status was received."""
    api_error = engine_died() if upstream is None else upstream_disconnected(str(error))
    outcome = OUTCOME_UNREADABLE if str(error) in (NOT_HTTP, HEAD_TOO_LONG) else OUTCOME_CUT if has_head else "lost"
    return AttemptFailure(api_error, outcome, is_stale=error.is_stale, is_disconnect=True)


def timeout_failure(timeout_s: float) -> AttemptFailure:
    """The failure for a server that sent nothing for `timeout_s`."""
    return AttemptFailure(upstream_timeout(timeout_s), OUTCOME_TIMEOUT)


def empty_reply() -> AttemptFailure:
    """The failure for a response without a body."""
    return AttemptFailure(_bad_gateway("The upstream's response is empty.", "incomplete_stream"), OUTCOME_CUT)


def unfinished_upstream(count: int) -> Failure:
    """The failure of an upstream's answer that may be complete, the `count`th of its kind."""
    return incomplete_stream_failure(unfinished_message(count))


def is_unfinished(failure: Failure) -> bool:
    """Whether it is an `unfinished_upstream` of this gateway; `sanitize_failure` changes those of others."""
    return failure.type == "upstream_error" and UNFINISHED_MESSAGE.fullmatch(failure.message) is not None


def compressed_reply() -> AttemptFailure:
    """The failure for a body compressed although `Accept-Encoding` excludes it; it could decompress to any size."""
    return _unreadable("The upstream's response is compressed, which the request excludes.")


def unrecognized_reply() -> AttemptFailure:
    """The failure for a body that is neither a stream nor JSON, such as an HTML page."""
    return _unreadable("The upstream's response is neither a stream nor JSON.")


def reply_too_large() -> AttemptFailure:
    """The failure for a response that exceeds the buffer."""
    return _unreadable("The upstream's response is too large to buffer.")


def _unreadable(message: str) -> AttemptFailure:
    return AttemptFailure(_bad_gateway(message, "upstream_unreadable"), OUTCOME_UNREADABLE)
