"""Why a choice ended: other servers' words, in OpenAI's."""

from welldone.wire.head import Endpoint

REASONS = {
    Endpoint.CHAT: frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"}),
    Endpoint.COMPLETIONS: frozenset({"stop", "length", "content_filter"}),
}

FAILED = frozenset({"abort", "aborted", "cancelled", "error", "network_error"})
"""Words that mean: this is not a whole answer."""

_WORDS = {
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "complete": "stop",
    "max_tokens": "length",
    "model_length": "length",
    "max_length": "length",
    "function_call": "tool_calls",  # one thing, two forms: the writer knows which of them the client reads
    "tool_use": "tool_calls",
    "tool_call": "tool_calls",
    "safety": "content_filter",
    "sensitive": "content_filter",
}


def in_our_words(reason: str, endpoint: Endpoint) -> str:
    """The event's word for `reason`, or one of FAILED; a word that nobody knows means that the model stopped."""
    word = reason.lower()
    word = _WORDS.get(word, word)
    if word in FAILED:
        return word
    return word if word in REASONS[endpoint] and word != "function_call" else "stop"
