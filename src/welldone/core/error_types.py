"""Kinds of failures, as Anthropic names them: each HTTP status, error type and code of other servers has one."""

from welldone.core.events import Failure

ERROR_TYPES: dict[str, tuple[str, ...]] = {
    "invalid_request_error": ("400", "BadRequestError", "context_length_exceeded", "exceed_context_size_error"),
    "authentication_error": ("401", "invalid_api_key"),
    "billing_error": (),
    "permission_error": ("403",),
    "not_found_error": ("404", "model_not_found"),
    "conflict_error": (),
    "request_too_large": ("413",),
    "rate_limit_error": ("429", "insufficient_quota", "rate_limit_exceeded"),
    "timeout_error": ("504", "timeout"),
    "api_error": (),
    "overloaded_error": (
        *("503", "529", "overloaded", "server_overloaded", "service_unavailable", "unavailable_error"),
        *("model_loading", "model_unavailable", "shutting_down", "upstream_unavailable"),
    ),
}
"""Anthropic's error types, with the statuses, error types and codes of other servers and of welldone that become them.

All others become api_error.
"""
_ERROR_TYPE_BY_CODE = {code: error_type for error_type, codes in ERROR_TYPES.items() for code in codes}


def error_type_for_status(status: int) -> str:
    """Return the error type for an HTTP status."""
    return _ERROR_TYPE_BY_CODE.get(str(status), "api_error" if status >= 500 else "invalid_request_error")


def failure_kind(failure: Failure) -> str:
    """Return the error type of a failure."""
    error_type = failure.type
    if error_type in ERROR_TYPES and error_type != "api_error":
        return error_type
    return _ERROR_TYPE_BY_CODE.get(failure.code or "") or _ERROR_TYPE_BY_CODE.get(error_type) or "api_error"
