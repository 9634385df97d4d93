"""Applicability of rules: a rule about tool calls neither passes nor fails on a stream without tool calls.

The judge reports no violation for a reply to which a rule does not apply. To report that a server passes a rule, the
check needs a reply that contains what the rule is about.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from welldone.check.reading import READERS
from welldone.check.reply import OVERLOAD_STATUSES
from welldone.rules.checks import ALL_CHECKS
from welldone.rules.judge import judge
from welldone.rules.view import anthropic, responses
from welldone.rules.view.anthropic import content_blocks
from welldone.rules.view.choices import REASONING_FIELDS, as_list, as_object
from welldone.rules.view.responses import StreamedText
from welldone.rules.view.stream import MessageKind, has_error_content
from welldone.rules.view.view import ReplyKind, TraceView, has_usage

NO_APPLICABLE_REPLY = "no reply to which the rule applies"
_NO_TOOL_CALL = "no reply had a tool call"
_NO_REASONING = "the model sent no reasoning"
_NO_KEEPALIVE = "no stream had a keep-alive"
_NO_FAILURE = "no stream failed after its start"
_NO_USAGE = "no reply had usage"


class Condition(msgspec.Struct, frozen=True):
    """What a reply must contain so that some rules apply to it."""

    rules: str
    """Ids of rules, with spaces. A family stands for its rules that no condition names."""
    is_met: Callable[[TraceView], object] = lambda _: True
    reason: str = NO_APPLICABLE_REPLY
    """Why the rules were not judged in a run without such a reply."""


def _has_comment(view: TraceView) -> bool:
    """Whether the stream has a keep-alive comment."""
    if any(message.kind is MessageKind.COMMENT for message in view.messages):
        return True
    return view.reply_kind is ReplyKind.STREAM and any(line.startswith(b":") for line in view.trace.body.splitlines())


def _is_error_reply(view: TraceView) -> object:
    return view.reply_kind is ReplyKind.HTTP_ERROR or view.all_errors or view.is_error_reply


def _has_chunk_field(name: str) -> Callable[[TraceView], bool]:
    return lambda view: any(name in chunk.json for chunk in view.chunks)


def _has_error_with_choices(view: TraceView) -> object:
    return view.all_errors or any(has_error_content(delta.choice) for delta in view.choice_deltas)


def _has_delta_field(name: str) -> Callable[[TraceView], bool]:
    return lambda view: any(name in delta.delta for delta in view.choice_deltas)


def _has_tool_call_continuation(view: TraceView) -> bool:
    return any(len(tool_call.deltas) > 1 for choice in view.choices for tool_call in choice.tool_calls)


def _has_parallel_tool_calls(view: TraceView) -> bool:
    return any(len(choice.tool_calls) > 1 for choice in view.choices)


def _has_buffered_tool_call(view: TraceView) -> bool:
    choices = as_list(view.reply_object.get("choices"))
    return any(as_object(as_object(choice).get("message")).get("tool_calls") for choice in choices)


def _has_tool_call_or_markup(view: TraceView) -> object:
    has_call = any(choice.tool_calls for choice in view.choices) or _has_buffered_tool_call(view)
    return has_call or judge(view.trace, ["tool-no-markup-leak"]).counts


def _has_legacy_function_call(view: TraceView) -> bool:
    deltas = view.choice_deltas
    return any("function_call" in delta.delta or delta.finish_reason == "function_call" for delta in deltas)


def _has_reasoning(view: TraceView) -> bool:
    return any(delta.delta.get(name) for delta in view.choice_deltas for name in REASONING_FIELDS)


def _has_non_ascii_text(view: TraceView) -> bool:
    pieces = READERS[view.trace.endpoint].deltas(view)
    return any(not text.isascii() for piece in pieces for text in (piece.text, piece.reasoning))


def _output_items(view: TraceView) -> list[Any]:
    return as_list(view.reply_object.get("output"))


def _has_function_call(view: TraceView) -> bool:
    buffered = (as_object(item).get("type") for item in _output_items(view))
    return "function_call" in (*(item.type for item in view.responses_stream.items), *buffered)


def _has_part(is_met: Callable[[StreamedText], bool]) -> Callable[[TraceView], bool]:
    return lambda view: any(is_met(text) for _, text in view.responses_stream.part_events)


def _has_keepalive_event(view: TraceView) -> bool:
    return (
        any(frame.data is None for frame in view.frames)  # a comment, or an event without data
        or _has_comment(view)
        or any(event.type == responses.KEEPALIVE_EVENT for event in view.responses_stream.events)
    )


def _has_failed_response(view: TraceView) -> object:
    end = view.responses_stream.end_event
    return (end is not None and end.type == "response.failed") or view.all_errors


def _has_content_block(view: TraceView) -> object:
    return view.anthropic_stream.blocks or content_blocks(view.reply_object)


def _has_block_event(view: TraceView) -> object:
    events = view.anthropic_stream.all_events
    return _has_content_block(view) or any(event.type.startswith("content_block_") for event in events)


def _has_tool_use(view: TraceView) -> bool:
    blocks = (*view.anthropic_stream.content, *content_blocks(view.reply_object))
    return any(block.get("type") == "tool_use" for block in blocks)


def _has_stop_reason(view: TraceView, reason: str) -> bool:
    return reason in (view.anthropic_stream.stop_reason, view.reply_object.get("stop_reason"))


def _has_ping(view: TraceView) -> bool:
    return _has_comment(view) or any(event.type == anthropic.PING_EVENT for event in view.anthropic_stream.all_events)


def _gemini_parts(view: TraceView) -> list[dict[str, Any]]:
    return [content_part for candidate in view.gemini_reply.candidates for content_part in candidate.parts]


def _has_gemini_part(member: str) -> Callable[[TraceView], bool]:
    return lambda view: any(content_part.get(member) is not None for content_part in _gemini_parts(view))


def _has_gemini_usage(view: TraceView) -> bool:
    return any(element.json.get("usageMetadata") is not None for element in view.gemini_reply.elements)


_ERROR_RULES = (
    "err-body-shape err-code-string err-refused-4xx err-status-before-stream "
    "msg-error-body msg-error-type ns-error-status gem-error-body gem-error-status"
)
_STREAM_ERROR_RULES = (
    "err-midstream-event err-then-done err-not-object-error err-not-error-field err-event-name "
    "msg-error-event msg-error-last gem-error-element gem-error-last"
)
REFUSAL_RULES = frozenset(f"{_ERROR_RULES} {_STREAM_ERROR_RULES} ns-error-status err-not-with-choices".split())
"""The rules about errors: all that is judged of an answer in place of a refusal."""
_LOGPROBS_RULES = "ext-logprobs-align ext-logprobs-entry ext-logprobs-finite ext-logprobs-shape cmpl-logprobs"
_REASONING_RULES = "ext-no-think-tags ext-reasoning-before-content ext-reasoning-field"
_ITEM_RULES = (
    "resp-output-index resp-item-id-stable resp-item-added-first resp-done-events resp-final-output resp-item-status "
    "resp-deltas"
)
_BLOCK_RULES = (
    "msg-block-index msg-block-start-full msg-block-stop msg-block-start-empty msg-block-sequential msg-block-known "
    "msg-delta-type"
)
CONDITIONS = (
    # Rules that apply to every reply, unlike the others of their family.
    Condition("n-index-int tool-calls-null use-only-if-asked"),
    # ---- all endpoints
    Condition("enc-no-replacement-char enc-no-lone-surrogate", _has_non_ascii_text, "no reply had text beyond ASCII"),
    Condition("sse-keepalive-form sse-keepalive-run-limit", _has_comment, _NO_KEEPALIVE),
    Condition("live-keepalive-in-silence", reason="no stream was slow enough to need a keep-alive"),
    Condition(_ERROR_RULES, _is_error_reply, "no request was refused"),
    Condition(_STREAM_ERROR_RULES, lambda view: view.all_errors, _NO_FAILURE),
    Condition("err-not-with-choices", _has_error_with_choices, _NO_FAILURE),
    Condition("err-retry-after", lambda v: v.trace.status in OVERLOAD_STATUSES, "the server was never overloaded"),
    # ---- chat and completions
    Condition("tool fin-tool-calls", lambda v: any(choice.tool_calls for choice in v.choices), _NO_TOOL_CALL),
    Condition("tool-no-markup-leak", _has_tool_call_or_markup, _NO_TOOL_CALL),
    Condition("ns-tool-calls", _has_buffered_tool_call, _NO_TOOL_CALL),
    Condition("tool-id-once tool-name-once tool-later-fields-absent", _has_tool_call_continuation, _NO_TOOL_CALL),
    Condition("tool-index-distinct", _has_parallel_tool_calls, _NO_TOOL_CALL),
    Condition("tool-id-stable", lambda v: _has_tool_call_continuation(v) or _has_parallel_tool_calls(v), _NO_TOOL_CALL),
    Condition(
        "tool-legacy-function-call",
        lambda view: (view.trace.request or {}).get("tools") and view.is_complete_stream,
        _NO_TOOL_CALL,
    ),
    Condition("fin-function-call-legacy", _has_legacy_function_call, "no reply had function_call"),
    Condition("use env-metadata-on-usage-chunk", lambda view: any(map(has_usage, view.chunks)), _NO_USAGE),
    Condition(
        "use-final-chunk use-null-elsewhere cmpl-usage-chunk",
        lambda view: view.trace.wants_usage is True and view.is_complete_stream,
        _NO_USAGE,
    ),
    Condition("n", lambda view: len(view.choices) > 1, "no reply had several choices"),
    Condition("cmpl", reason="the completions endpoint sent no answer"),
    Condition(
        _LOGPROBS_RULES,
        lambda view: any(delta.choice.get("logprobs") is not None for delta in view.choice_deltas),
        "no reply had logprobs",
    ),
    Condition(_REASONING_RULES, _has_reasoning, _NO_REASONING),
    Condition("ext-annotations", _has_delta_field("annotations"), "no reply had annotations"),
    Condition("ext-audio", _has_delta_field("audio"), "no reply had audio"),
    Condition("ext-refusal", _has_delta_field("refusal"), "no reply had a refusal"),
    Condition("env-obfuscation", _has_chunk_field("obfuscation"), "no reply had obfuscation"),
    Condition("env-service-tier", _has_chunk_field("service_tier"), "no reply had service_tier"),
    Condition("env-fingerprint", _has_chunk_field("system_fingerprint"), "no reply had system_fingerprint"),
    # ---- /v1/responses
    Condition(_ITEM_RULES, lambda view: view.responses_stream.items or _output_items(view)),
    Condition("resp-content-index resp-part-added-first resp-delta-equals-done", _has_part(lambda _: True)),
    Condition("resp-logprobs-array", _has_part(lambda text: text.part_type == "output_text")),
    Condition("resp-reasoning-parts", _has_part(lambda text: text.is_reasoning), _NO_REASONING),
    Condition("resp-function-ids resp-args-done", _has_function_call, "no reply had a function call"),
    Condition("resp-keepalive", _has_keepalive_event, _NO_KEEPALIVE),
    Condition("resp-error", _has_failed_response, _NO_FAILURE),
    # ---- /v1/messages
    Condition(_BLOCK_RULES, _has_content_block),
    Condition("msg-block-start-first", _has_block_event),
    Condition("msg-whole-content", lambda view: "content" in view.reply_object),
    Condition("msg-tool-ids msg-tool-input-json", _has_tool_use, _NO_TOOL_CALL),
    Condition("msg-stop-reason-tool-use", lambda v: _has_tool_use(v) or _has_stop_reason(v, "tool_use"), _NO_TOOL_CALL),
    Condition(
        "msg-stop-sequence", lambda v: _has_stop_reason(v, "stop_sequence"), "no answer ended at a stop sequence"
    ),
    Condition("msg-ping-form", _has_ping, "no stream had a ping"),
    # ---- Gemini
    Condition("gem-call gem-call-ids", _has_gemini_part("functionCall"), _NO_TOOL_CALL),
    Condition("gem-thoughts", _has_gemini_part("thought"), _NO_REASONING),
    Condition("gem-signature", _has_gemini_part("thoughtSignature"), "no reply had a thoughtSignature"),
    Condition("gem-blocked-prompt", lambda view: view.gemini_reply.is_blocked, "no prompt was blocked"),
    Condition("gem-usage-counts gem-usage-total gem-usage-cumulative gem-usage-last", _has_gemini_usage, _NO_USAGE),
)
_BY_RULE = {rule: condition for condition in CONDITIONS for rule in condition.rules.split()}
_NO_CONDITION = Condition("")


def _condition_of(rule: str) -> Condition:
    return _BY_RULE.get(rule) or _BY_RULE.get(rule.partition("-")[0], _NO_CONDITION)


def applicable_rules(view: TraceView) -> set[str]:
    """Ids of the rules that apply to the reply and can be judged on it."""
    rules = {
        check.rule
        for check in ALL_CHECKS
        if check.applies(view) and not check.missing_fields(view) and _condition_of(check.rule).is_met(view)
    }
    # A reply with an error status passes the rules that forbid an error with status 200.
    if view.reply_kind is ReplyKind.HTTP_ERROR:
        rules |= {"err-status-before-stream"} if view.trace.wants_stream is not False else set()
        rules |= {"ns-error-status"} if view.trace.wants_stream is not True else set()
    return rules


def not_applicable_reason(rule: str) -> str:
    """Why a rule was not judged in a whole run."""
    return _condition_of(rule).reason


UNCOVERED: Mapping[str, str] = {
    "sse-keepalive-resets-idle": "whether a comment resets the idle timeout depends on the client, not on the server",
    "ns-leading-space-ok": "it permits something, so it cannot be broken",
}
"""Rules that no probe judges, with the reason."""
