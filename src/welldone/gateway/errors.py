"""API errors: a status, and a body in the format of the client's API. Messages by which servers refuse a request."""

import re
from enum import Enum, auto

import msgspec

from welldone.core.error_types import error_type_for_status
from welldone.core.events import Failure, Json
from welldone.core.fields import openai_error_object
from welldone.dialects.gemini.objects import error_object

ERROR_TYPES = {
    **dict.fromkeys((400, 404, 405, 408, 409, 410, 413, 415, 426, 501), "invalid_request_error"),
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    **dict.fromkeys((500, 502, 503, 504), "server_error"),
}
"""OpenAI's `type` for each status that we send."""

_ANTHROPIC_TOO_LONG = "prompt is too long"
"""Anthropic's message for a context overflow: Claude Code compacts its conversation when it receives it."""


class ErrorFormat(Enum):
    """The API whose error format a client expects."""

    OPENAI = auto()
    ANTHROPIC = auto()
    OLLAMA = auto()
    GEMINI = auto()


class ApiError(Exception):
    """An error response. The message goes to the client: it must not contain secrets, paths or tracebacks."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
        self.headers: dict[str, str] = headers or {}
        self.details: Json | None = None
        """The `details` of an Anthropic error, which its clients evaluate."""

    def to_failure(self) -> Failure:
        """The error as the event that ends a stream."""
        return Failure(self.message, ERROR_TYPES[self.status], self.param, self.code)

    def body(self, error_format: ErrorFormat = ErrorFormat.OPENAI, request_id: str = "") -> bytes:
        """The response body."""
        match error_format:
            case ErrorFormat.OPENAI:
                return msgspec.json.encode(openai_error_object(self.to_failure()))
            case ErrorFormat.OLLAMA:
                return msgspec.json.encode({"error": self.message})
            case ErrorFormat.GEMINI:
                return msgspec.json.encode(error_object(self.status, self.message, param=self.param, reason=self.code))
            case ErrorFormat.ANTHROPIC:
                is_overflow = self.code == "context_length_exceeded"
                message = f"{_ANTHROPIC_TOO_LONG}: {self.message}" if is_overflow else self.message
                error: Json = {"type": error_type_for_status(self.status), "message": message}
                error |= {} if self.details is None else {"details": self.details}
                return msgspec.json.encode({"type": "error", "error": error, "request_id": request_id})


SHUTTING_DOWN = "shutting_down"
"""Code of a server that stops. Another server may answer the request, or continue its answer."""


def shutting_down(*, retry_after_s: float | None = None) -> ApiError:
    """A 503 error for requests that a stopping server does not accept, or that exceed its drain time."""
    return ApiError(503, "The server is shutting down.", code=SHUTTING_DOWN, retry_after_s=retry_after_s)


def internal_error(request_id: str) -> ApiError:
    """A 500 error, whose cause only the log names."""
    message = f"Internal server error (request id {request_id}); see the server log."
    return ApiError(500, message, code="internal_error")


def invalid_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400 error."""
    return ApiError(400, message, param=param, code=code)


# Messages of servers that refuse a request with the status of a failure.

# Messages and codes for a prompt that does not fit. Some servers send them with 500.
OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size"  # codes of OpenAI and llama.cpp
    r"|maximum context length"  # OpenAI, vLLM, SGLang
    r"|exceeds? (?:the )?(?:available |maximum |model's )*context"  # llama.cpp, LocalAI, Ollama
    r"|longer than the (?:model's context|maximum model) length"  # SGLang, older vLLM
    r"|`inputs` (?:tokens \+|must have less than)"  # TGI
    r"|context the overflows|prompt is too long"  # LM Studio, others
    r"|input token count [^.]{0,40}exceeds the maximum"  # Google
    r"|(?:input|prompt) (?:token )?len[^.]{0,80}(?:too long|>)",  # LightLLM
    re.IGNORECASE,
)
# llama.cpp and ik_llama.cpp answer some bad requests with 500.
BAD_REQUEST = re.compile(
    r"json\.exception\.(?:type_error\.302|out_of_range\.403)|^Failed to parse (?:messages|tools|grammar)|^Expected '"
    r"|^Invalid tool_choice|^'\w+' is required"
    r"|(?:image|audio|video) input is not supported|must contain 'content'|^Only one completion choice"
    r"|^response_format type must be|^Unsupported param",
    re.IGNORECASE,
)
