"""Checks of a reply that is one JSON object."""

from collections.abc import Iterator
from typing import Any

from welldone.rules import shapes
from welldone.rules.checks import cmpl, fin
from welldone.rules.checks.use import has_usage_counts
from welldone.rules.choices import ARGUMENTS_MEMBER, as_list, as_object, call_type
from welldone.rules.heard import ReplyKind, TraceView
from welldone.rules.rule import Violation, RuleCheck
from welldone.wire import faults

_WHOLE_ONLY = (ReplyKind.WHOLE,)
_COMPLETION_ENDPOINTS = ("chat", "completions")


def _json_content_type(view: TraceView) -> Iterator[Violation]:
    trace = view.trace
    if view.looks_like_json and trace.media_type != "application/json":
        shown = trace.header("content-type")
        yield Violation(None, f"content-type: {shown}" if shown else "no content-type header", "application/json")


def _no_sse_tail(view: TraceView) -> Iterator[Violation]:
    if view.text_after_json:
        yield Violation(None, view.text_after_json, "nothing after the JSON")


def _reply_choices(view: TraceView) -> list[dict[str, Any]]:
    return [as_object(choice) for choice in as_list(view.reply_object.get("choices"))]


def _reply_messages(view: TraceView) -> Iterator[dict[str, Any]]:
    return (as_object(choice.get("message")) for choice in _reply_choices(view))


def _whole_role(view: TraceView) -> Iterator[Violation]:
    for message in _reply_messages(view):
        if message.get("role") != "assistant":
            yield Violation(None, message, '"role":"assistant"')


def _has_choices(view: TraceView) -> Iterator[Violation]:
    if not view.is_error_reply and not _reply_choices(view):
        yield Violation(None, view.first_value.source, '"choices":[{...}]')


def _whole_finish(view: TraceView) -> Iterator[Violation]:
    reasons = fin.FINISH_REASONS if view.is_chat else cmpl.COMPLETIONS_FINISH_REASONS
    for choice in _reply_choices(view):
        if choice.get("finish_reason") not in reasons:
            shown = {"finish_reason": choice["finish_reason"]} if "finish_reason" in choice else "no finish_reason"
            yield Violation(None, shown, f"one of {', '.join(reasons)}")


def _whole_content_key(view: TraceView) -> Iterator[Violation]:
    for message in _reply_messages(view):
        if not isinstance(message.get("content", ...), str | None):
            yield Violation(None, message, '"content":"<text>", or null')


def _whole_usage(view: TraceView) -> Iterator[Violation]:
    if not view.is_error_reply and not has_usage_counts(view.reply_object.get("usage")):
        shown = {"usage": view.reply_object["usage"]} if "usage" in view.reply_object else "no usage"
        yield Violation(None, shown, "usage with its three integers")


def _whole_tool_calls(view: TraceView) -> Iterator[Violation]:
    for message in _reply_messages(view):
        calls = message.get("tool_calls")
        if calls is not None and not isinstance(calls, list):
            yield Violation(None, {"tool_calls": calls}, '"tool_calls":[...]')
        for call in as_list(calls):
            if not _is_whole_tool_call(as_object(call)):
                wanted = '{"id":"call_...","type":"function","function":{"name":"...","arguments":"{...}"}}'
                yield Violation(None, {"tool_call": call}, wanted)


def _is_whole_tool_call(call: dict[str, Any]) -> bool:
    kind = call_type(call)
    function = as_object(call.get(kind))
    texts = (call.get("id"), function.get("name"))
    is_named = all(isinstance(text, str) and text for text in texts)
    is_typed = call.get("type") == kind and isinstance(function.get(ARGUMENTS_MEMBER[kind]), str)
    return is_named and is_typed and "index" not in call


def _error_status(view: TraceView) -> Iterator[Violation]:
    if view.is_error_reply:
        yield Violation(None, view.first_value.source, "a status of 400 or more")


def _whole_object(view: TraceView) -> Iterator[Violation]:
    wanted = "chat.completion" if view.is_chat else "text_completion"
    if not view.is_error_reply and view.reply_object.get("object") != wanted:
        shown = {"object": view.reply_object["object"]} if "object" in view.reply_object else "no object"
        yield Violation(None, shown, f'"object":"{wanted}"')


def _object_schema(view: TraceView) -> Iterator[Violation]:
    if view.is_error_reply or not view.reply_object:
        return
    shape = shapes.CHAT_CHOICE_MEMBERS if view.is_chat else shapes.TEXT_CHOICE_MEMBERS
    wrong = shapes.mismatches(view.reply_object, shapes.COMPLETION_MEMBERS)
    for place, choice in enumerate(_reply_choices(view)):
        wrong += shapes.mismatches(choice, shape, f"choices[{place}].")
        if isinstance(choice.get("message"), dict):
            wrong += shapes.mismatches(choice["message"], shapes.CHAT_MESSAGE_MEMBERS, f"choices[{place}].message.")
    if wrong:
        yield Violation(None, view.first_value.source, ", ".join(wrong))


WHOLE_REPLY_CHECKS = (
    RuleCheck(
        faults.ns.CONTENT_TYPE_JSON,
        _json_content_type,
        (ReplyKind.WHOLE, ReplyKind.HTTP_ERROR),
        required_fields=("headers",),
    ),
    RuleCheck(faults.ns.NO_SSE_TAIL, _no_sse_tail, _WHOLE_ONLY),
    RuleCheck(faults.ns.ROLE, _whole_role, _WHOLE_ONLY),
    RuleCheck(faults.ns.CHOICES, _has_choices, _WHOLE_ONLY, _COMPLETION_ENDPOINTS),
    RuleCheck(faults.ns.FINISH, _whole_finish, _WHOLE_ONLY, _COMPLETION_ENDPOINTS),
    RuleCheck(faults.ns.CONTENT_KEY, _whole_content_key, _WHOLE_ONLY),
    RuleCheck(faults.ns.USAGE, _whole_usage, _WHOLE_ONLY, _COMPLETION_ENDPOINTS),
    RuleCheck(faults.ns.TOOL_CALLS, _whole_tool_calls, _WHOLE_ONLY),
    RuleCheck(faults.ns.ERROR_STATUS, _error_status, _WHOLE_ONLY, required_fields=("status",)),
    RuleCheck(faults.ns.OBJECT_SCHEMA, _object_schema, _WHOLE_ONLY, _COMPLETION_ENDPOINTS),
    RuleCheck(faults.ns.OBJECT, _whole_object, _WHOLE_ONLY, _COMPLETION_ENDPOINTS),
)
