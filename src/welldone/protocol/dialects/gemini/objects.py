"""Objects of the Gemini API: parts, candidates, usage, finish reasons and errors."""

from collections.abc import Mapping

import msgspec

from welldone.protocol.dialects.anthropic.objects import failure_kind
from welldone.protocol.envelope import Envelope
from welldone.protocol.events import Failure, Json, Usage
from welldone.protocol.lenient_json import as_list, as_object

KEY_HEADER = "x-goog-api-key"
"""Header with the API key. It identifies Google's clients, whose URLs begin with `/v1` like OpenAI's."""
STOP, MAX_TOKENS, SAFETY, MALFORMED_CALL = "STOP", "MAX_TOKENS", "SAFETY", "MALFORMED_FUNCTION_CALL"
_FINISH_REASON_FOR = {"length": MAX_TOKENS, "content_filter": SAFETY}
"""By OpenAI's finish reason; STOP for all others, also for tool calls."""

STATUS_BY_CODE = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    410: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""Google's status by HTTP status: google/rpc/code.proto."""
_CODE_BY_KIND = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 429,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 400,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "api_error": 500,
    "overloaded_error": 503,
}
"""HTTP status by the kind of a failure, as Anthropic names it."""


def finish_reason(reason: str) -> str:
    """Return the finish reason for one of OpenAI."""
    return _FINISH_REASON_FOR.get(reason, STOP)


def text_part(text: str, *, is_thought: bool = False) -> Json:
    """Return a part with text of the answer, or of the reasoning."""
    return {"text": text, "thought": True} if is_thought else {"text": text}


def call_part(id: str, name: str, args: msgspec.Raw, extra_fields: Json) -> Json:
    """Return a part with a function call. A signature comes back from clients with the call."""
    signature = thought_signature(extra_fields)
    signed = {} if signature is None else {"thoughtSignature": signature}
    return {"functionCall": {"id": id, "name": name, "args": args}, **signed}


def signature_fields(signature: object) -> Json:
    """Return the fields of a chat message or call for a signature, as in Google's OpenAI-compatible API."""
    is_text = isinstance(signature, str) and signature
    return {"extra_content": {"google": {"thought_signature": signature}}} if is_text else {}


def thought_signature(extra_fields: Json) -> str | None:
    """Return the signature in the fields of a chat message or call."""
    google = as_object(as_object(extra_fields.get("extra_content")).get("google"))
    signature = google.get("thought_signature")
    return signature if isinstance(signature, str) else None


def candidate_object(index: int, parts: list[Json], members: Json | None = None) -> Json:
    """Return a candidate; `members` are those besides its content."""
    return {"content": {"parts": parts, "role": "model"}, **(members or {}), "index": index}


def response_object(envelope: Envelope, candidates: list[Json], usage: Usage | None = None) -> Json:
    """Return a reply, or an element of a stream."""
    counts = {} if usage is None else {"usageMetadata": usage_metadata(usage)}
    return {"candidates": candidates, **counts, "modelVersion": envelope.model, "responseId": envelope.id}


def usage_metadata(usage: Usage) -> Json:
    """Convert usage: Google counts reasoning separately from the answer."""
    thoughts = min(_detail(usage, "completion_tokens_details", "reasoning_tokens"), usage.completion_tokens)
    counts = {"promptTokenCount": usage.prompt_tokens, "candidatesTokenCount": usage.completion_tokens - thoughts}
    if thoughts:
        counts["thoughtsTokenCount"] = thoughts
    if cached := _detail(usage, "prompt_tokens_details", "cached_tokens"):
        counts["cachedContentTokenCount"] = cached
    return {**counts, "totalTokenCount": usage.max_tokens_counted}


def _detail(usage: Usage, group: str, name: str) -> int:
    count = as_object(usage.extra_fields.get(group)).get(name)
    return count if type(count) is int and count > 0 else 0


def logprobs_members(value: Json) -> Json:
    """Convert log probabilities of chat; no members if there are none."""
    tokens = [token for token in as_list(value.get("content")) if isinstance(token, dict)]
    if not tokens:
        return {}
    chosen = [_token_object(token) for token in tokens]
    top = [
        {"candidates": [_token_object(as_object(one)) for one in as_list(token.get("top_logprobs"))]}
        for token in tokens
    ]
    return {"logprobsResult": {"topCandidates": top, "chosenCandidates": chosen}}


def _token_object(token: Mapping[str, object]) -> Json:
    return {"token": token.get("token"), "logProbability": token.get("logprob")}


def error_object(code: int, message: str, *, param: str | None = None, reason: str | None = None) -> Json:
    """Return an error. `error` comes first: google-genai tests the start of the data for it."""
    details: list[Json] = []
    if param is not None:
        violation = {"field": param, "description": message}
        details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]})
    if reason is not None:
        info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "welldone"}
        details.append(info)
    status = STATUS_BY_CODE.get(code, "INVALID_ARGUMENT" if code < 500 else "INTERNAL")
    error = {"code": code, "message": message, "status": status}
    return {"error": error | ({"details": details} if details else {})}


def failure_object(failure: Failure) -> Json:
    """Return the error that ends a stream."""
    return error_object(_CODE_BY_KIND[failure_kind(failure)], failure.message, param=failure.param, reason=failure.code)
