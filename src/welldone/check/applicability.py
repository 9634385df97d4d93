"""Applicability of rules: a rule about tool calls neither passes nor fails on a stream without tool calls.

The judge reports no violation for a reply to which a rule does not apply. To report that a server passes a rule, the
check needs a reply that contains what the rule is about.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from welldone.check.probe_client import OVERLOAD_STATUSES
from welldone.check.reading import READ_DELTAS
from welldone.rules.checks import ALL_CHECKS
from welldone.rules.view import anthropic, responses
from welldone.rules.view.anthropic import content_blocks
from welldone.rules.view.choices import REASONING_FIELDS, as_list, as_object
from welldone.rules.view.stream import MessageKind
from welldone.rules.view.view import ReplyKind, TraceView, has_usage

ApplicabilityTest: TypeAlias = Callable[[TraceView], bool]


# ---- /v1/responses


def _has_output_item(view: TraceView) -> bool:
    return bool(view.responses_stream.items) or bool(as_list(view.reply_object.get("output")))


def _has_content_part(view: TraceView) -> bool:
    return bool(view.responses_stream.part_events)


def _has_output_text(view: TraceView) -> bool:
    return any(piece.part_type == "output_text" for _, piece in view.responses_stream.part_events)


def _has_reasoning_part(view: TraceView) -> bool:
    return any(piece.is_reasoning for _, piece in view.responses_stream.part_events)


def _has_function_call(view: TraceView) -> bool:
    buffered = (as_object(item).get("type") for item in as_list(view.reply_object.get("output")))
    return "function_call" in (*(item.type for item in view.responses_stream.items), *buffered)


def _has_keepalive_event(view: TraceView) -> bool:
    return (
        any(frame.data is None for frame in view.frames)  # a comment, or an event without data
        or has_comment(view)
        or any(event.type == responses.KEEPALIVE_EVENT for event in view.responses_stream.events)
    )


def _has_failed_response(view: TraceView) -> bool:
    is_failed = (
        view.responses_stream.end_event is not None and view.responses_stream.end_event.type == "response.failed"
    )
    return is_failed or bool(view.all_errors)


# ---- /v1/messages


def _has_content_block(view: TraceView) -> bool:
    return bool(view.anthropic_stream.blocks) or bool(content_blocks(view.reply_object))


def _has_block_event(view: TraceView) -> bool:
    return _has_content_block(view) or any(
        event.type.startswith("content_block_") for event in view.anthropic_stream.all_events
    )


def _has_content(view: TraceView) -> bool:
    return "content" in view.reply_object


def _has_tool_use_or_reason(view: TraceView) -> bool:
    return _has_tool_use(view) or "tool_use" in (
        view.anthropic_stream.stop_reason,
        view.reply_object.get("stop_reason"),
    )


def _has_tool_use(view: TraceView) -> bool:
    return any(
        block.get("type") == "tool_use"
        for block in (*view.anthropic_stream.content, *content_blocks(view.reply_object))
    )


def _has_stop_sequence(view: TraceView) -> bool:
    return "stop_sequence" in (view.anthropic_stream.stop_reason, view.reply_object.get("stop_reason"))


def _has_ping(view: TraceView) -> bool:
    return has_comment(view) or any(event.type == anthropic.PING_EVENT for event in view.anthropic_stream.all_events)


# ---- all endpoints


def _has_error_event(view: TraceView) -> bool:
    return bool(view.all_errors)


def _is_error_reply(view: TraceView) -> bool:
    return view.reply_kind is ReplyKind.HTTP_ERROR or bool(view.all_errors) or view.is_error_reply


def has_comment(view: TraceView) -> bool:
    """Whether the stream has a keep-alive comment."""
    if any(message.kind is MessageKind.COMMENT for message in view.messages):
        return True
    return view.reply_kind is ReplyKind.STREAM and any(line.startswith(b":") for line in view.trace.body.splitlines())


EVENT_APPLICABILITY: Mapping[str, ApplicabilityTest] = {
    **dict.fromkeys(
        ("resp-output-index", "resp-item-id-stable", "resp-item-added-first", "resp-done-events"), _has_output_item
    ),
    **dict.fromkeys(("resp-final-output", "resp-item-status", "resp-deltas"), _has_output_item),
    **dict.fromkeys(("resp-content-index", "resp-part-added-first", "resp-delta-equals-done"), _has_content_part),
    "resp-logprobs-array": _has_output_text,
    "resp-reasoning-parts": _has_reasoning_part,
    "resp-function-ids": _has_function_call,
    "resp-args-done": _has_function_call,
    "resp-keepalive": _has_keepalive_event,
    "resp-error": _has_failed_response,
    "msg-block-start-first": _has_block_event,
    **dict.fromkeys(("msg-block-index", "msg-block-start-full", "msg-block-stop"), _has_content_block),
    **dict.fromkeys(
        ("msg-block-start-empty", "msg-block-sequential", "msg-block-known", "msg-delta-type"), _has_content_block
    ),
    **dict.fromkeys(("msg-tool-ids", "msg-tool-input-json"), _has_tool_use),
    "msg-stop-reason-tool-use": _has_tool_use_or_reason,
    "msg-whole-content": _has_content,
    "msg-stop-sequence": _has_stop_sequence,
    "msg-ping-form": _has_ping,
    "msg-error-event": _has_error_event,
    "msg-error-last": _has_error_event,
    "msg-error-type": _is_error_reply,
    "msg-error-body": _is_error_reply,
}
"""Tests of the rules of /v1/responses and /v1/messages, whose streams consist of typed events."""

EVENT_NOT_APPLICABLE_REASONS: Mapping[str, str] = {
    "resp-function-ids": "no reply had a function call",
    "resp-args-done": "no reply had a function call",
    "resp-reasoning": "the model sent no reasoning",
    "resp-keepalive": "no stream had a keep-alive",
    "resp-error": "no stream failed after its start",
    "msg-tool": "no reply had a tool call",
    "msg-stop-reason-tool-use": "no reply had a tool call",
    "msg-stop-sequence": "no answer ended at a stop sequence",
    "msg-ping": "no stream had a ping",
    "msg-error": "no stream failed after its start",
    "msg-error-body": "no request was refused",
    "msg-error-type": "no request was refused",
}


# ---- chat and completions


def _has_tool_call(view: TraceView) -> bool:
    return any(choice.tool_calls for choice in view.choices)


def _has_tool_call_continuation(view: TraceView) -> bool:
    return any(len(call.deltas) > 1 for choice in view.choices for call in choice.tool_calls)


def _has_parallel_tool_calls(view: TraceView) -> bool:
    return any(len(choice.tool_calls) > 1 for choice in view.choices)


def _has_repeatable_id(view: TraceView) -> bool:
    return _has_tool_call_continuation(view) or _has_parallel_tool_calls(view)


def _has_legacy_call(view: TraceView) -> bool:
    return any("function_call" in part.delta or part.finish_reason == "function_call" for part in view.choice_deltas)


def _requested_tools(view: TraceView) -> bool:
    return bool((view.trace.request or {}).get("tools")) and view.is_complete_stream


def _has_usage(view: TraceView) -> bool:
    return any(has_usage(chunk) for chunk in view.chunks)


def _requested_usage(view: TraceView) -> bool:
    return view.trace.wants_usage is True and view.is_complete_stream


def _has_several_choices(view: TraceView) -> bool:
    return len(view.choices) > 1


def _has_logprobs(view: TraceView) -> bool:
    return any(part.choice.get("logprobs") is not None for part in view.choice_deltas)


def _has_reasoning(view: TraceView) -> bool:
    return any(part.delta.get(name) for part in view.choice_deltas for name in REASONING_FIELDS)


def _has_non_ascii_text(view: TraceView) -> bool:
    pieces = READ_DELTAS[view.trace.endpoint](view)
    return any(not text.isascii() for piece in pieces for text in (piece.text, piece.reasoning))


def _has_delta_field(name: str) -> ApplicabilityTest:
    return lambda view: any(name in part.delta for part in view.choice_deltas)


def _has_buffered_tool_call(view: TraceView) -> bool:
    choices = as_list(view.reply_object.get("choices"))
    return any(as_object(as_object(choice).get("message")).get("tool_calls") for choice in choices)


def _has_chunk_field(name: str) -> ApplicabilityTest:
    return lambda view: any(name in chunk.json for chunk in view.chunks)


def _is_overloaded(view: TraceView) -> bool:
    return view.trace.status in OVERLOAD_STATUSES


_APPLICABILITY_BY_FAMILY: Mapping[str, ApplicabilityTest] = {
    "tool": _has_tool_call,
    "use": _has_usage,
    "n": _has_several_choices,
}
_ALWAYS_APPLICABLE: ApplicabilityTest = lambda _: True  # noqa: E731 - an entry of the tables below
_APPLICABILITY_BY_RULE: Mapping[str, ApplicabilityTest] = {
    "enc-no-replacement-char": _has_non_ascii_text,
    "enc-no-lone-surrogate": _has_non_ascii_text,
    "env-no-error-key": _ALWAYS_APPLICABLE,
    "env-obfuscation": _has_chunk_field("obfuscation"),
    "env-service-tier": _has_chunk_field("service_tier"),
    "env-fingerprint": _has_chunk_field("system_fingerprint"),
    "env-metadata-on-usage-chunk": _has_usage,
    "err-body-shape": _is_error_reply,
    "err-code-string": _is_error_reply,
    "err-midstream-event": _has_error_event,
    "err-then-done": _has_error_event,
    "err-not-object-error": _has_error_event,
    "err-not-error-field": _has_error_event,
    "err-not-with-choices": _has_error_event,
    "err-event-name": _has_error_event,
    "err-retry-after": _is_overloaded,
    "err-status-before-stream": _is_error_reply,
    "ext-annotations": _has_delta_field("annotations"),
    "ext-audio": _has_delta_field("audio"),
    "ext-refusal": _has_delta_field("refusal"),
    "ext-logprobs-align": _has_logprobs,
    "ext-logprobs-entry": _has_logprobs,
    "ext-logprobs-finite": _has_logprobs,
    "ext-logprobs-shape": _has_logprobs,
    "ext-no-think-tags": _has_reasoning,
    "ext-reasoning-before-content": _has_reasoning,
    "ext-reasoning-field": _has_reasoning,
    "fin-function-call-legacy": _has_legacy_call,
    "fin-tool-calls": _has_tool_call,
    "cmpl-logprobs": _has_logprobs,
    "cmpl-usage-chunk": _requested_usage,
    "n-index-int": _ALWAYS_APPLICABLE,
    "ns-error-status": _is_error_reply,
    "ns-tool-calls": _has_buffered_tool_call,
    "sse-keepalive-form": has_comment,
    "sse-keepalive-run-limit": has_comment,
    "tool-calls-null": _ALWAYS_APPLICABLE,
    "tool-id-once": _has_tool_call_continuation,
    "tool-id-stable": _has_repeatable_id,
    "tool-name-once": _has_tool_call_continuation,
    "tool-later-fields-absent": _has_tool_call_continuation,
    "tool-index-distinct": _has_parallel_tool_calls,
    "tool-legacy-function-call": _requested_tools,
    "use-final-chunk": _requested_usage,
    "use-only-if-asked": _ALWAYS_APPLICABLE,
    "use-null-elsewhere": _requested_usage,
    **EVENT_APPLICABILITY,
}
"""Tests by rule. A rule that is not listed uses the test of its family; without one it applies to every reply."""

NOT_APPLICABLE_REASONS: Mapping[str, str] = {
    "tool": "no reply had a tool call",
    "use": "no reply had usage",
    "n-": "no reply had several choices",
    "cmpl": "the completions endpoint sent no reply",
    "ext-logprobs": "no reply had logprobs",
    "ext-reasoning": "the model sent no reasoning",
    "ext-no-think-tags": "the model sent no reasoning",
    "ext-annotations": "no reply had annotations",
    "ext-audio": "no reply had audio",
    "ext-refusal": "no reply had a refusal",
    "err": "no stream failed after its start",
    "err-retry-after": "the server was never overloaded",
    "enc": "no reply had text beyond ASCII",
    "env-obfuscation": "no reply had obfuscation",
    "env-service-tier": "no reply had service_tier",
    "env-fingerprint": "no reply had system_fingerprint",
    "fin-function-call-legacy": "no reply had function_call",
    "sse-keepalive": "no stream had a keep-alive",
    "live-keepalive": "no stream was slow enough to need a keep-alive",
    "ns-error-status": "no request was refused",
    "err-status-before-stream": "no request was refused",
    **EVENT_NOT_APPLICABLE_REASONS,
}
"""Why a rule was not judged, by the prefix of its id; the longest prefix wins."""
NO_APPLICABLE_REPLY = "no reply to which the rule applies"


def applicable_rules(view: TraceView) -> set[str]:
    """Ids of the rules that apply to the reply and can be judged on it."""
    return {
        check.rule
        for check in ALL_CHECKS
        if check.applies(view) and not check.missing_fields(view) and _applicability_test(check.rule)(view)
    } | _rules_met_by_error_status(view)


def _rules_met_by_error_status(view: TraceView) -> set[str]:
    """The rules that forbid an error with status 200: a reply with an error status passes them."""
    if view.reply_kind is not ReplyKind.HTTP_ERROR:
        return set()
    match view.trace.wants_stream:
        case True:
            return {"err-status-before-stream"}
        case False:
            return {"ns-error-status"}
        case _:
            return {"err-status-before-stream", "ns-error-status"}


def _applicability_test(rule: str) -> ApplicabilityTest:
    return _APPLICABILITY_BY_RULE.get(rule) or _APPLICABILITY_BY_FAMILY.get(rule.partition("-")[0], _ALWAYS_APPLICABLE)


def not_applicable_reason(rule: str) -> str:
    """Why a rule was not judged in a whole run."""
    prefixes = [prefix for prefix in NOT_APPLICABLE_REASONS if rule.startswith(prefix)]
    return NOT_APPLICABLE_REASONS[max(prefixes, key=len)] if prefixes else NO_APPLICABLE_REPLY


UNCOVERED: Mapping[str, str] = {
    "sse-keepalive-resets-idle": "whether a comment resets the idle timeout depends on the client, not on the server",
    "ns-leading-space-ok": "it permits something, so it cannot be broken",
}
"""Rules that no probe judges, with the reason."""
