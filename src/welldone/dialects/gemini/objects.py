"""Objects of the Gemini API: parts, candidates, usage, finish reasons and errors."""

import re
from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from welldone.core.collect import REASONING_DETAILS
from welldone.core.envelope import Envelope
from welldone.core.error_types import error_type_for_status, failure_kind
from welldone.core.events import Failure, Json, Usage
from welldone.core.fields import read_chat_logprobs, read_error, usage_detail
from welldone.core.lenient_json import as_list, as_object
from welldone.core.repair_log import RepairLog

METHOD_PATH = re.compile(r"(?:/v1(?:beta)?)?/models/(.+):(generateContent|streamGenerateContent|countTokens)")
"""Paths of the methods: name of the model, which may have colons, and method."""
_COLLECTIONS = ("models/", "tunedModels/")
COUNTED_REQUEST = "generateContentRequest"
"""Member of the body of `countTokens` that has a request for an answer."""
KEY_HEADER = "x-goog-api-key"
"""Header with the API key. It identifies Google's clients, whose URLs begin with `/v1` like OpenAI's."""
REASONING_FORMAT = "google-gemini-v1"
"""OpenRouter's name for the format of reasoning details with a signature."""
STOP, MAX_TOKENS, SAFETY, MALFORMED_CALL = "STOP", "MAX_TOKENS", "SAFETY", "MALFORMED_FUNCTION_CALL"
_FINISH_REASON_FOR = {"length": MAX_TOKENS, "content_filter": SAFETY}
"""By OpenAI's finish reason; STOP for all others, also for tool calls."""

_BASE64 = re.compile(
    "|".join(
        rf"(?:{symbol}{{4}})*+(?:{symbol}[AQgw](?:==)?|{symbol}{{2}}[AEIMQUYcgkosw048]=?)?"
        for symbol in ("[A-Za-z0-9+/]", "[A-Za-z0-9_-]")
    )
)
"""Base64, standard or URL-safe, with or without padding: what google-genai decodes."""


def method_target(method: str, body: Json, model: str) -> tuple[str, Json]:
    """Return path and body of a request. No name of a model may lead to another path."""
    resource = model if model.startswith(_COLLECTIONS) else f"models/{model}"
    collection, _, name = resource.partition("/")
    if method == "generateContent":
        method = "streamGenerateContent?alt=sse" if body.get("stream") else method
        body = {name: value for name, value in body.items() if name not in ("model", "stream")}
    elif isinstance(counted := body.get(COUNTED_REQUEST), dict):
        body = {**body, COUNTED_REQUEST: {**counted, "model": resource}}
    return f"/{collection}/{quote(name, safe='')}:{method}", body


_MAIN_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""google/rpc/code.proto, of each HTTP status the most general one."""
STATUS_BY_CODE = {
    **_MAIN_STATUSES,
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    410: "NOT_FOUND",
    502: "UNAVAILABLE",
}
"""Google's status by HTTP status."""
_CODE_BY_STATUS = {
    **{status: code for code, status in _MAIN_STATUSES.items()},
    **dict.fromkeys(("FAILED_PRECONDITION", "OUT_OF_RANGE"), 400),
    "ALREADY_EXISTS": 409,
    "CANCELLED": 499,
    **dict.fromkeys(("UNKNOWN", "DATA_LOSS"), 500),
}
"""HTTP status by Google's status, of the same file."""
_TOKEN_COUNTS = (
    *("promptTokenCount", "toolUsePromptTokenCount", "candidatesTokenCount", "thoughtsTokenCount"),
    *("cachedContentTokenCount", "totalTokenCount"),
)
_MAX_COUNT = 2**31  # of protobuf's int32
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
    """Return the signature in the fields of a chat message or call. Google's clients fail on any but base64."""
    google = as_object(as_object(extra_fields.get("extra_content")).get("google"))
    signature = google.get("thought_signature")
    return signature if isinstance(signature, str) and _BASE64.fullmatch(signature) else None


def signature_parts(fields: Json) -> list[Json]:
    """Return the parts for signatures in the fields of a chat message or delta; those of calls belong to the calls."""
    details = map(as_object, as_list(fields.get(REASONING_DETAILS)))
    own = [entry for entry in details if entry.get("format") == REASONING_FORMAT and "id" not in entry]
    sealed = [thought_signature(item) for item in (*(signature_fields(entry.get("data")) for entry in own), fields)]
    return [{"text": "", "thoughtSignature": signature} for signature in sealed if signature]


def candidate_object(index: int, parts: list[Json], members: Json | None = None) -> Json:
    """Return a candidate; `members` are those besides its content."""
    return {"content": {"parts": parts, "role": "model"}, **(members or {}), "index": index}


def response_object(envelope: Envelope, candidates: list[Json], usage: Usage | None = None) -> Json:
    """Return a reply, or an element of a stream."""
    counts = {} if usage is None else {"usageMetadata": usage_metadata(usage)}
    return {"candidates": candidates, **counts, "modelVersion": envelope.model, "responseId": envelope.id}


def usage_metadata(usage: Usage) -> Json:
    """Convert usage: Google counts reasoning separately from the answer."""
    thoughts = min(usage_detail(usage, "completion_tokens_details", "reasoning_tokens") or 0, usage.completion_tokens)
    uncounted = usage.max_tokens_counted - usage.prompt_tokens - usage.completion_tokens
    thoughts = 0 if uncounted else thoughts  # they are in the total alone
    counts = {"promptTokenCount": usage.prompt_tokens, "candidatesTokenCount": usage.completion_tokens - thoughts}
    if thoughts or uncounted:
        counts["thoughtsTokenCount"] = thoughts or uncounted
    if cached := usage_detail(usage, "prompt_tokens_details", "cached_tokens"):
        counts["cachedContentTokenCount"] = cached
    return {**counts, "totalTokenCount": usage.max_tokens_counted}


def usage_from_metadata(metadata: Json) -> Usage | None:
    """Convert the usage of a reply; None if the prompt's tokens are neither given nor known from the total."""
    counts = [metadata.get(name) for name in _TOKEN_COUNTS]
    valid = [count if type(count) is int and 0 <= count < _MAX_COUNT else None for count in counts]
    prompt, tools, answer, thoughts, cached, total = valid
    completion, tools = (answer or 0) + (thoughts or 0), tools or 0
    if prompt is None and total is not None:
        prompt = total - completion - tools
    if prompt is None or prompt < 0:
        return None
    prompt += tools
    extra_fields = {name: value for name, value in metadata.items() if name not in _TOKEN_COUNTS}
    extra_fields["prompt_tokens_details"] = {"cached_tokens": cached or 0}
    if thoughts is not None:
        extra_fields["completion_tokens_details"] = {"reasoning_tokens": thoughts}
    return Usage(prompt, completion, max(total or 0, prompt + completion), extra_fields)


def logprobs_members(value: Json) -> Json:
    """Convert log probabilities of chat; no members if there are none."""
    tokens = [token for token in as_list(value.get("content")) if isinstance(token, dict)]
    if not tokens:
        return {}
    chosen = [_token_object(token) for token in tokens]
    top = [
        {"candidates": [_token_object(as_object(candidate)) for candidate in as_list(token.get("top_logprobs"))]}
        for token in tokens
    ]
    return {"logprobsResult": {"topCandidates": top, "chosenCandidates": chosen}}


def logprobs_from_result(result: Json) -> Json | None:
    """Convert log probabilities to those of chat; None if there are none."""
    tops = as_list(result.get("topCandidates"))
    content: list[Json] = []
    for number, token in enumerate(as_list(result.get("chosenCandidates"))):
        top = as_list(as_object(tops[number]).get("candidates")) if number < len(tops) else []
        content.append({**_chat_token(token), "top_logprobs": [_chat_token(candidate) for candidate in top]})
    return read_chat_logprobs({"content": content, "refusal": None}, RepairLog()) if content else None


def _chat_token(token: object) -> Json:
    return {"token": as_object(token).get("token"), "logprob": as_object(token).get("logProbability")}


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
    """Return the error that ends a stream. An error of a server with this API keeps its status and details."""
    status = failure.extra_fields.get("status")
    if isinstance(status, str) and status in _CODE_BY_STATUS:
        error = {"code": _CODE_BY_STATUS[status], "message": failure.message, "status": status}
        details = failure.extra_fields.get("details")
        return {"error": error | ({"details": details} if isinstance(details, list) else {})}
    return error_object(_CODE_BY_KIND[failure_kind(failure)], failure.message, param=failure.param, reason=failure.code)


def read_failure(value: Json) -> Failure | None:
    """Read an error in Google's format, or in another one; None if there is none."""
    failure = read_error(value, b"", RepairLog())
    error = as_object(value.get("error"))
    status, number = error.get("status"), error.get("code")
    code = _CODE_BY_STATUS.get(status) if isinstance(status, str) else None
    code = number if code is None and type(number) is int else code
    if failure is None or code is None:
        return failure
    return msgspec.structs.replace(failure, type=error_type_for_status(code), code=None)
