"""Checks of a reply that is one JSON object."""

from collections.abc import Iterator
from typing import Any

from welldone.rules import shapes
from welldone.rules.checks import cmpl, fin
from welldone.rules.checks.use import has_counts
from welldone.rules.choices import ARGUMENTS, as_list, as_object, call_kind
from welldone.rules.heard import Form, Heard
from welldone.rules.rule import Place, Rule
from welldone.wire.faults import ns as faults

_WHOLE = (Form.WHOLE,)
_BOTH = ("chat", "completions")


def _content_type(heard: Heard) -> Iterator[Place]:
    trace = heard.trace
    if heard.looks_like_json and trace.media_type != "application/json":
        shown = trace.header("content-type")
        yield Place(None, f"content-type: {shown}" if shown else "no content-type header", "application/json")


def _no_tail(heard: Heard) -> Iterator[Place]:
    if heard.tail:
        yield Place(None, heard.tail, "nothing after the JSON")


def _choices(heard: Heard) -> list[dict[str, Any]]:
    return [as_object(choice) for choice in as_list(heard.reply.get("choices"))]


def _messages(heard: Heard) -> Iterator[dict[str, Any]]:
    return (as_object(choice.get("message")) for choice in _choices(heard))


def _role(heard: Heard) -> Iterator[Place]:
    for message in _messages(heard):
        if message.get("role") != "assistant":
            yield Place(None, message, '"role":"assistant"')


def _has_choices(heard: Heard) -> Iterator[Place]:
    if not heard.reply_fails and not _choices(heard):
        yield Place(None, heard.value.source, '"choices":[{...}]')


def _finish(heard: Heard) -> Iterator[Place]:
    reasons = fin.REASONS if heard.is_chat else cmpl.REASONS
    for choice in _choices(heard):
        if choice.get("finish_reason") not in reasons:
            shown = {"finish_reason": choice["finish_reason"]} if "finish_reason" in choice else "no finish_reason"
            yield Place(None, shown, f"one of {', '.join(reasons)}")


def _content_key(heard: Heard) -> Iterator[Place]:
    for message in _messages(heard):
        if not isinstance(message.get("content", ...), str | None):
            yield Place(None, message, '"content":"<text>", or null')


def _usage(heard: Heard) -> Iterator[Place]:
    if not heard.reply_fails and not has_counts(heard.reply.get("usage")):
        shown = {"usage": heard.reply["usage"]} if "usage" in heard.reply else "no usage"
        yield Place(None, shown, "usage with its three integers")


def _tool_calls(heard: Heard) -> Iterator[Place]:
    for message in _messages(heard):
        calls = message.get("tool_calls")
        if calls is not None and not isinstance(calls, list):
            yield Place(None, {"tool_calls": calls}, '"tool_calls":[...]')
        for call in as_list(calls):
            if not _is_call(as_object(call)):
                wanted = '{"id":"call_...","type":"function","function":{"name":"...","arguments":"{...}"}}'
                yield Place(None, {"tool_call": call}, wanted)


def _is_call(call: dict[str, Any]) -> bool:
    kind = call_kind(call)
    function = as_object(call.get(kind))
    texts = (call.get("id"), function.get("name"))
    is_named = all(isinstance(text, str) and text for text in texts)
    is_typed = call.get("type") == kind and isinstance(function.get(ARGUMENTS[kind]), str)
    return is_named and is_typed and "index" not in call


def _error_status(heard: Heard) -> Iterator[Place]:
    if heard.reply_fails:
        yield Place(None, heard.value.source, "a status of 400 or more")


def _object(heard: Heard) -> Iterator[Place]:
    wanted = "chat.completion" if heard.is_chat else "text_completion"
    if not heard.reply_fails and heard.reply.get("object") != wanted:
        shown = {"object": heard.reply["object"]} if "object" in heard.reply else "no object"
        yield Place(None, shown, f'"object":"{wanted}"')


def _object_schema(heard: Heard) -> Iterator[Place]:
    if heard.reply_fails or not heard.reply:
        return
    shape = shapes.CHAT_CHOICE if heard.is_chat else shapes.TEXT_CHOICE
    wrong = shapes.mismatches(heard.reply, shapes.COMPLETION)
    for place, choice in enumerate(_choices(heard)):
        wrong += shapes.mismatches(choice, shape, f"choices[{place}].")
        if isinstance(choice.get("message"), dict):
            wrong += shapes.mismatches(choice["message"], shapes.CHAT_MESSAGE, f"choices[{place}].message.")
    if wrong:
        yield Place(None, heard.value.source, ", ".join(wrong))


RULES = (
    Rule(faults.CONTENT_TYPE_JSON, _content_type, (Form.WHOLE, Form.FAILURE), needs=("headers",)),
    Rule(faults.NO_SSE_TAIL, _no_tail, _WHOLE),
    Rule(faults.ROLE, _role, _WHOLE),
    Rule(faults.CHOICES, _has_choices, _WHOLE, _BOTH),
    Rule(faults.FINISH, _finish, _WHOLE, _BOTH),
    Rule(faults.CONTENT_KEY, _content_key, _WHOLE),
    Rule(faults.USAGE, _usage, _WHOLE, _BOTH),
    Rule(faults.TOOL_CALLS, _tool_calls, _WHOLE),
    Rule(faults.ERROR_STATUS, _error_status, _WHOLE, needs=("status",)),
    Rule(faults.OBJECT_SCHEMA, _object_schema, _WHOLE, _BOTH),
    Rule(faults.OBJECT, _object, _WHOLE, _BOTH),
)
