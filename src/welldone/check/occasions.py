"""When a rule had a say: a rule about tool calls is neither kept nor broken by a stream without one.

The judge finds nothing in a reply that gives no occasion, and that is right for it. Who says of a server that it keeps
a rule must have heard the thing that the rule is about.
"""

from collections.abc import Mapping

from welldone.check import event_occasions
from welldone.check.desk import BUSY
from welldone.check.event_occasions import OF_EVENTS, Occasion, has_comment
from welldone.check.reading import PIECES
from welldone.rules.checks import RULES
from welldone.rules.choices import REASONING_FIELDS, as_list, as_object
from welldone.rules.heard import Form, Heard, has_usage


def _has_call(heard: Heard) -> bool:
    return any(choice.calls for choice in heard.choices)


def _has_later_piece(heard: Heard) -> bool:
    return any(len(call.pieces) > 1 for choice in heard.choices for call in choice.calls)


def _has_calls(heard: Heard) -> bool:
    return any(len(choice.calls) > 1 for choice in heard.choices)


def _has_second_id(heard: Heard) -> bool:
    return _has_later_piece(heard) or _has_calls(heard)


def _has_legacy_call(heard: Heard) -> bool:
    return any("function_call" in part.delta or part.finish == "function_call" for part in heard.parts)


def _was_offered_tools(heard: Heard) -> bool:
    return bool((heard.trace.request or {}).get("tools")) and heard.is_whole


def _has_usage(heard: Heard) -> bool:
    return any(has_usage(chunk) for chunk in heard.chunks)


def _asked_usage(heard: Heard) -> bool:
    return heard.trace.wants_usage is True and heard.is_whole


def _has_failure(heard: Heard) -> bool:
    return bool(heard.failures)


def _has_several(heard: Heard) -> bool:
    return len(heard.choices) > 1


def _has_logprobs(heard: Heard) -> bool:
    return any(part.choice.get("logprobs") is not None for part in heard.parts)


def _has_reasoning(heard: Heard) -> bool:
    return any(part.delta.get(name) for part in heard.parts for name in REASONING_FIELDS)


def _has_wide_text(heard: Heard) -> bool:
    pieces = PIECES[heard.trace.endpoint](heard)
    return any(not text.isascii() for piece in pieces for text in (piece.text, piece.reasoning))


def _has_member(name: str) -> Occasion:
    return lambda heard: any(name in part.delta for part in heard.parts)


def _has_whole_call(heard: Heard) -> bool:
    choices = as_list(heard.reply.get("choices"))
    return any(as_object(as_object(choice).get("message")).get("tool_calls") for choice in choices)


def _has_chunk_field(name: str) -> Occasion:
    return lambda heard: any(name in chunk.json for chunk in heard.chunks)


def _is_failure(heard: Heard) -> bool:
    return heard.form is Form.FAILURE or _has_failure(heard) or heard.reply_fails


def _is_busy(heard: Heard) -> bool:
    return heard.trace.status in BUSY


_FAMILIES: Mapping[str, Occasion] = {
    "tool": _has_call,
    "use": _has_usage,
    "n": _has_several,
}
_ALWAYS: Occasion = lambda _: True  # noqa: E731 - the plainest of a table of functions
_RULES: Mapping[str, Occasion] = {
    "enc-no-replacement-char": _has_wide_text,
    "enc-no-lone-surrogate": _has_wide_text,
    "env-no-error-key": _ALWAYS,
    "env-obfuscation": _has_chunk_field("obfuscation"),
    "env-service-tier": _has_chunk_field("service_tier"),
    "env-fingerprint": _has_chunk_field("system_fingerprint"),
    "env-metadata-on-usage-chunk": _has_usage,
    "err-body-shape": _is_failure,
    "err-code-string": _is_failure,
    "err-midstream-event": _has_failure,
    "err-then-done": _has_failure,
    "err-not-object-error": _has_failure,
    "err-not-error-field": _has_failure,
    "err-not-with-choices": _has_failure,
    "err-event-name": _has_failure,
    "err-retry-after": _is_busy,
    "err-status-before-stream": _is_failure,
    "ext-annotations": _has_member("annotations"),
    "ext-audio": _has_member("audio"),
    "ext-refusal": _has_member("refusal"),
    "ext-logprobs-align": _has_logprobs,
    "ext-logprobs-entry": _has_logprobs,
    "ext-logprobs-finite": _has_logprobs,
    "ext-logprobs-shape": _has_logprobs,
    "ext-no-think-tags": _has_reasoning,
    "ext-reasoning-before-content": _has_reasoning,
    "ext-reasoning-field": _has_reasoning,
    "fin-function-call-legacy": _has_legacy_call,
    "fin-tool-calls": _has_call,
    "cmpl-logprobs": _has_logprobs,
    "cmpl-usage-chunk": _asked_usage,
    "n-index-int": _ALWAYS,
    "ns-error-status": _is_failure,
    "ns-tool-calls": _has_whole_call,
    "sse-keepalive-form": has_comment,
    "sse-keepalive-run-limit": has_comment,
    "tool-calls-null": _ALWAYS,
    "tool-id-once": _has_later_piece,
    "tool-id-stable": _has_second_id,
    "tool-name-once": _has_later_piece,
    "tool-later-fields-absent": _has_later_piece,
    "tool-index-distinct": _has_calls,
    "tool-legacy-function-call": _was_offered_tools,
    "use-final-chunk": _asked_usage,
    "use-only-if-asked": _ALWAYS,
    "use-null-elsewhere": _asked_usage,
    **OF_EVENTS,
}
"""By rule; else by family; else the rule has a say in every reply that it speaks about."""

UNHEARD: Mapping[str, str] = {
    "tool": "no tool call was heard",
    "use": "no usage was heard",
    "n-": "no reply had several choices",
    "cmpl": "the completions endpoint was not heard",
    "ext-logprobs": "no logprobs were heard",
    "ext-reasoning": "the model sent no reasoning",
    "ext-no-think-tags": "the model sent no reasoning",
    "ext-annotations": "no annotations were heard",
    "ext-audio": "no audio was heard",
    "ext-refusal": "no refusal was heard",
    "err": "no stream failed in the middle",
    "err-retry-after": "the server was never too busy",
    "enc": "no text beyond ASCII was heard",
    "env-obfuscation": "no obfuscation was heard",
    "env-service-tier": "no service_tier was heard",
    "env-fingerprint": "no system_fingerprint was heard",
    "fin-function-call-legacy": "no function_call was heard",
    "sse-keepalive": "no keep-alive was heard",
    "live-keepalive": "no stream took so long that a sign of life was due",
    "ns-error-status": "nothing was refused",
    "err-status-before-stream": "nothing was refused",
    **event_occasions.UNHEARD,
}
"""Why a rule had no say, by the beginning of its id; the longest counts."""


def had_a_say(heard: Heard) -> set[str]:
    """The rules that speak about such a reply, can be judged on it, and found in it what they are about."""
    return {
        rule.fault.id
        for rule in RULES
        if rule.applies(heard) and rule.can_be_judged(heard) and _occasion(rule.fault.id)(heard)
    } | _kept_by_refusing(heard)


def _kept_by_refusing(heard: Heard) -> set[str]:
    """The rules that forbid an error with status 200: who sends another status keeps them."""
    if heard.form is not Form.FAILURE:
        return set()
    wants_stream = heard.trace.wants_stream
    return {
        *(() if wants_stream is False else ("err-status-before-stream",)),
        *(() if wants_stream is True else ("ns-error-status",)),
    }


def _occasion(rule: str) -> Occasion:
    return _RULES.get(rule) or _FAMILIES.get(rule.partition("-")[0], _ALWAYS)


def why_unheard(rule: str) -> str:
    """Why a rule had no say in a whole run."""
    known = [beginning for beginning in UNHEARD if rule.startswith(beginning)]
    return UNHEARD[max(known, key=len)] if known else "no reply gave an occasion"
