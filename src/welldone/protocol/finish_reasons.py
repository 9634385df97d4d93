"""Finish reasons: the documented values of each provider, and the OpenAI value for each.

An interrupted answer is a failure, and so is a value that no provider documents: only a documented value for a natural
end becomes `stop`. The rule page fin-closed-enum prints the table.
"""

from typing import NamedTuple

from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import Failure
from welldone.protocol.fields import incomplete_stream_failure
from welldone.protocol.lenient_json import clean_unicode
from welldone.protocol.repair_log import format_json

FINISH_REASONS = {
    Endpoint.CHAT: frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"}),
    Endpoint.COMPLETIONS: frozenset({"stop", "length", "content_filter"}),
}
FAILURE_OUTCOME = "failure"
"""The answer was interrupted: it is incomplete, and no finish reason of OpenAI applies."""
_EXCERPT_CHARACTERS = 100  # of a value or message of the upstream in an error


class ProviderFinishReasons(NamedTuple):
    """Documented finish reasons of a provider, by their OpenAI value."""

    name: str
    source: str
    """Documentation of the values."""
    stop: tuple[str, ...] = ()
    length: tuple[str, ...] = ()
    tool_calls: tuple[str, ...] = ()
    content_filter: tuple[str, ...] = ()
    failure: tuple[str, ...] = ()


# One table for all providers, by value and regardless of case: a value has one meaning, whoever sends it (a test checks
# that). The providers are the documentation. Streams of the Messages dialect keep a value that is not listed here.
PROVIDERS = (
    ProviderFinishReasons(
        "OpenAI, Azure OpenAI (chat, completions)",
        "openai-python `types/chat/chat_completion_chunk.py`, `types/completion_choice.py`",
        stop=("stop",),
        length=("length",),
        tool_calls=("tool_calls", "function_call"),
        content_filter=("content_filter",),
    ),
    ProviderFinishReasons(
        "OpenAI (Responses, `incomplete_details.reason`)",
        "openai-python `types/responses/response.py`",
        length=("max_output_tokens", "max_messages"),
        content_filter=("content_filter",),
        failure=("steered",),
    ),
    ProviderFinishReasons(
        "Anthropic",
        "anthropic-sdk-python `types/stop_reason.py`, `types/beta/beta_stop_reason.py`",
        stop=("end_turn", "stop_sequence"),
        # pause_turn: the loop of server tools reached its limit. compaction: generation paused after a summary.
        length=("max_tokens", "model_context_window_exceeded", "pause_turn", "compaction"),
        tool_calls=("tool_use",),
        content_filter=("refusal",),
    ),
    ProviderFinishReasons(
        "Amazon Bedrock",
        "Converse API reference, `stopReason`",
        stop=("end_turn", "stop_sequence"),
        length=("max_tokens", "model_context_window_exceeded"),
        tool_calls=("tool_use",),
        content_filter=("content_filtered", "guardrail_intervened"),
        failure=("malformed_model_output", "malformed_tool_use"),
    ),
    ProviderFinishReasons(
        # The OpenAI-compatible endpoint adds a prefix: `function_call_filter: MALFORMED_FUNCTION_CALL`.
        "Google Gemini, Vertex AI",
        "ai.google.dev `Candidate.FinishReason`; `function_call_filter: …` as observed",
        stop=("STOP",),
        length=("MAX_TOKENS",),
        content_filter=(
            *("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"),
            *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "content_filter"),
        ),
        failure=(
            *("FINISH_REASON_UNSPECIFIED", "OTHER", "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"),
            *("TOO_MANY_TOOL_CALLS", "MISSING_THOUGHT_SIGNATURE", "MALFORMED_RESPONSE", "NO_IMAGE", "IMAGE_OTHER"),
            "function_call_filter",
        ),
    ),
    ProviderFinishReasons(
        "Mistral",
        "docs.mistral.ai, chat completion `finish_reason`",
        stop=("stop",),
        length=("length", "model_length"),
        tool_calls=("tool_calls",),
        failure=("error",),
    ),
    ProviderFinishReasons(
        "Cohere",
        "docs.cohere.com, v1 and v2 chat `finish_reason`",
        stop=("COMPLETE", "STOP_SEQUENCE"),
        length=("MAX_TOKENS", "ERROR_LIMIT"),  # ERROR_LIMIT: the context is full
        tool_calls=("TOOL_CALL",),
        content_filter=("ERROR_TOXIC",),
        failure=("ERROR", "TIMEOUT", "USER_CANCEL"),
    ),
    ProviderFinishReasons(
        "DeepSeek",
        "api-docs.deepseek.com, chat completion `finish_reason`",
        stop=("stop",),
        length=("length",),
        tool_calls=("tool_calls",),
        content_filter=("content_filter",),
        failure=("insufficient_system_resource", "aborted"),
    ),
    ProviderFinishReasons(
        "OpenRouter",
        "openrouter.ai API reference; the provider's own value stays in `native_finish_reason`",
        stop=("stop",),
        length=("length",),
        tool_calls=("tool_calls",),
        content_filter=("content_filter",),
        failure=("error",),
    ),
    ProviderFinishReasons(
        "Z.ai (GLM)",
        "docs.z.ai, chat completion `finish_reason`",
        stop=("stop",),
        length=("length", "model_context_window_exceeded"),
        tool_calls=("tool_calls",),
        content_filter=("sensitive",),
        failure=("network_error",),
    ),
    ProviderFinishReasons(
        "IBM watsonx",
        "watsonx-ai-node-sdk `TextChatResultChoice.Constants.FinishReason`, `TextGenResult.Constants.StopReason`",
        stop=("stop", "eos_token", "stop_sequence"),
        length=("length", "max_tokens", "token_limit"),
        tool_calls=("tool_calls",),
        failure=("time_limit", "cancelled", "error", "not_finished"),
    ),
    ProviderFinishReasons(
        "Together",
        "openai/openai-dotnet#267",
        stop=("stop", "eos"),
        length=("length",),
        tool_calls=("tool_calls", "function_call"),
    ),
    ProviderFinishReasons(
        "vLLM",
        "vllm `v1/engine/__init__.py`, FINISH_REASON_STRINGS",
        stop=("stop",),
        length=("length", "repetition"),  # repetition: truncated by the repetition limit of the request
        tool_calls=("tool_calls",),
        failure=("abort", "error"),
    ),
    ProviderFinishReasons(
        # Objects such as {"type": "abort", "message": …} if a proxy forwards the engine's own value.
        "SGLang",
        "sglang `srt/managers/schedule_batch.py`, BaseFinishReason.to_json",
        stop=("stop",),
        length=("length",),
        tool_calls=("tool_calls",),
        failure=("abort",),
    ),
    ProviderFinishReasons(
        "TGI",
        "text-generation-inference `router/src/lib.rs`, FinishReason",
        stop=("eos_token", "stop_sequence"),
        length=("length",),
    ),
    ProviderFinishReasons(
        "TensorRT-LLM",
        "tensorrt_llm `executor/result.py`, CompletionOutput.finish_reason",
        stop=("stop",),
        length=("length",),
        failure=("timeout", "cancelled"),
    ),
    ProviderFinishReasons(
        "llama.cpp",
        "llama.cpp `tools/server/server-task.cpp`, stop_type_to_str and the OpenAI-compatible replies",
        stop=("stop", "eos", "word"),
        length=("length", "limit"),
        tool_calls=("tool_calls",),
    ),
    ProviderFinishReasons(
        # load, unload: the reply to a request without messages, which generates nothing.
        "Ollama",
        "ollama `llm/server.go`, DoneReason; `server/routes.go`",
        stop=("stop",),
        length=("length",),
        tool_calls=("tool_calls",),
        failure=("load", "unload"),
    ),
    ProviderFinishReasons("others", "as observed", length=("max_length",)),
)
OUTCOMES = ("stop", "length", "tool_calls", "content_filter", FAILURE_OUTCOME)

_OUTCOME_BY_WORD: dict[str, str] = {
    word.lower(): outcome for provider in PROVIDERS for outcome in OUTCOMES for word in getattr(provider, outcome)
}


def outcome_of(word: str) -> str | None:
    """Return the outcome of a finish reason, one of OUTCOMES; None if no provider documents it."""
    word = word.strip().lower()
    known = _OUTCOME_BY_WORD.get(word)
    if known is not None:
        return known
    prefix = _OUTCOME_BY_WORD.get(word.partition(":")[0].rstrip())
    return prefix if prefix in ("content_filter", FAILURE_OUTCOME) else None


def finish_word(reason: object) -> str | None:
    """Return a finish reason of any JSON type as a string; None if it shows that the choice continues."""
    if isinstance(reason, dict) and isinstance(reason.get("type"), str):
        reason = reason["type"]  # SGLang
    if not reason or reason == "null" or reason != reason:
        return None
    return clean_unicode(reason) if isinstance(reason, str) else format_json(reason)


def finish_reason_for(word: str, endpoint: Endpoint) -> str | None:
    """Return the OpenAI finish reason; None if the answer counts as interrupted."""
    outcome = outcome_of(word)
    return outcome if outcome in FINISH_REASONS[endpoint] else None


def interrupted_failure(word: str, reason: object = None, *, field: str = "finish_reason") -> Failure:
    """Failure of an upstream that ended its answer with `word`, which was read from the JSON value `reason`."""
    unknown = "" if outcome_of(word) is not None else "the unknown "
    message = reason.get("message") if isinstance(reason, dict) else None
    detail = f": {_excerpt(clean_unicode(message))}" if isinstance(message, str) and message else ""
    return incomplete_stream_failure(f"the server ended the answer with {unknown}{field} {_excerpt(word)!r}{detail}")


def _excerpt(text: str) -> str:
    return text if len(text) <= _EXCERPT_CHARACTERS else text[: _EXCERPT_CHARACTERS - 1] + "…"
