"""Checks of chunk envelopes, choices, completions chunks and non-streamed replies (`env-`, `n-`, `cmpl-`, `ns-`)."""

from collections.abc import Iterator
from typing import Any

from welldone.rules import schemas
from welldone.rules.checks import content
from welldone.rules.checks.framing import done_missing
from welldone.rules.checks.usage import has_usage_counts, misshapen_usage_chunks, usage_missing
from welldone.rules.rule_check import RuleCheck, Violation
from welldone.rules.view.choices import ARGUMENTS_MEMBER, as_list, as_object, call_type, is_int
from welldone.rules.view.stream import StreamMessage
from welldone.rules.view.view import ReplyKind, TraceView, has_usage, is_without_choices

CHUNK_OBJECT = "chat.completion.chunk"
SERVICE_TIERS = (None, "auto", "default", "flex", "scale", "priority")
RESERVED_NAMES = frozenset(
    (
        "event",
        "data",
        "delta",
        "message",
        "role",
        "content",
        "finish_reason",
        "index",
        "logprobs",
        "tool_calls",
        "text",
    )
)
"""Names that the protocol uses at other levels."""
ENVELOPE_MEMBERS = frozenset({"id", "object", "created", "model", "choices", "system_fingerprint"})
"""Members of every chunk. A chunk with no others and no choice is empty."""
MIN_MILLISECONDS = 10**11
"""As seconds this is the year 5138, as milliseconds 1973: no `created` in seconds reaches it."""

_ABSENT = "absent"


def chunk_member(chunk: StreamMessage, key: str) -> object:
    """Return a member of a chunk as a JSON fragment for a finding."""
    return {key: chunk.json[key]} if key in chunk.json else f"no {key}"


def _object_const(view: TraceView) -> Iterator[Violation]:
    for chunk in view.enveloped_chunks:
        if chunk.json.get("object") != CHUNK_OBJECT:
            yield Violation(chunk, chunk_member(chunk, "object"), f'"object":"{CHUNK_OBJECT}"')


def _is_id(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _id_present(view: TraceView) -> Iterator[Violation]:
    for chunk in view.enveloped_chunks:
        if not _is_id(chunk.json.get("id")):
            yield Violation(chunk, chunk_member(chunk, "id"), '"id":"chatcmpl-...", the same on every chunk')


def _id_constant(view: TraceView) -> Iterator[Violation]:
    yield from _changed_values("id", [chunk for chunk in view.enveloped_chunks if _is_id(chunk.json.get("id"))])


def _changed_values(key: str, chunks: list[StreamMessage]) -> Iterator[Violation]:
    first = chunks[0].json[key] if chunks else None
    expected = f"{str(first)[:80]} as on the first chunk"
    for chunk in chunks:
        if chunk.json[key] != first:
            yield Violation(chunk, chunk_member(chunk, key), expected)


def _created_int(view: TraceView) -> Iterator[Violation]:
    for chunk in view.enveloped_chunks:
        created = chunk.json.get("created")
        if not is_int(created) or not 0 <= created < MIN_MILLISECONDS:
            yield Violation(chunk, chunk_member(chunk, "created"), '"created":1700000000, whole seconds')


def _created_constant(view: TraceView) -> Iterator[Violation]:
    yield from _changed_values(
        "created", [chunk for chunk in view.enveloped_chunks if is_int(chunk.json.get("created"))]
    )


def _model_string(view: TraceView) -> Iterator[Violation]:
    for chunk in view.enveloped_chunks:
        if not isinstance(chunk.json.get("model"), str):
            yield Violation(chunk, chunk_member(chunk, "model"), '"model":"<the name asked for>"')


def _choices_array(view: TraceView) -> Iterator[Violation]:
    for chunk in view.enveloped_chunks:
        if not isinstance(chunk.json.get("choices"), list):
            yield Violation(chunk, chunk_member(chunk, "choices"), '"choices":[]')


def _no_error_key(view: TraceView) -> Iterator[Violation]:
    for chunk in view.chunks:
        if "error" in chunk.json:
            yield Violation(chunk, chunk_member(chunk, "error"), "no error key")


def _usage_metadata(view: TraceView) -> Iterator[Violation]:
    for chunk in view.chunks:
        if has_usage(chunk) and is_without_choices(chunk):
            missing = [key for key in ("id", "object", "created", "model") if chunk.json.get(key) in (None, "")]
            if missing:
                yield Violation(
                    chunk, f"no {', '.join(missing)}", "id, object, created and model as on the other chunks"
                )


def _fingerprint(view: TraceView) -> Iterator[Violation]:
    values = [_comparable(chunk.json.get("system_fingerprint", _ABSENT)) for chunk in view.enveloped_chunks]
    for chunk, value in zip(view.enveloped_chunks, values, strict=True):
        if value != values[0]:
            expected = f"system_fingerprint as on the first chunk: {str(values[0])[:80]}"
            yield Violation(chunk, chunk_member(chunk, "system_fingerprint"), expected)
            return  # report the first change only


def _comparable(value: object) -> str | None:
    # Values that are not strings are malformed and may be large: they compare as equal.
    return value if value is None or isinstance(value, str) else "no string"


def _service_tier(view: TraceView) -> Iterator[Violation]:
    for chunk in view.chunks:
        if chunk.json.get("service_tier") not in SERVICE_TIERS:
            yield Violation(chunk, chunk_member(chunk, "service_tier"), "null, auto, default, flex, scale or priority")


def _extra_fields(view: TraceView) -> Iterator[Violation]:
    for chunk in view.chunks:
        for key in chunk.json.keys() & RESERVED_NAMES:
            yield Violation(chunk, chunk_member(chunk, key), f"no top-level {key}")


def _obfuscation(view: TraceView) -> Iterator[Violation]:
    is_off = view.trace.stream_option("include_obfuscation") is False
    for chunk in view.chunks:
        if "obfuscation" in chunk.json and (is_off or not isinstance(chunk.json["obfuscation"], str)):
            expected = "no obfuscation: the request turned it off" if is_off else '"obfuscation":"<padding>"'
            yield Violation(chunk, chunk_member(chunk, "obfuscation"), expected)


def _placeholder(view: TraceView) -> Iterator[Violation]:
    if view.placeholder_chunk:
        yield Violation(
            view.placeholder_chunk, view.placeholder_chunk.json, "a first chunk with id, object and a choice"
        )
    if view.trace.wants_usage is False:
        return  # use-only-if-asked reports it
    for chunk in view.enveloped_chunks:
        carried = {name for name, value in chunk.json.items() if value is not None} - ENVELOPE_MEMBERS
        # Usage and extensions such as prompt_filter_results (Azure) need a chunk without choices.
        if chunk.json.get("choices") == [] and not carried:
            yield Violation(chunk, chunk.json, "a chunk with a choice, or a comment")


_CHUNK_ENDPOINTS = ("chat", "completions")

ENVELOPE_CHECKS = (
    RuleCheck("env-object-const", _object_const),
    RuleCheck("env-id-present", _id_present),
    RuleCheck("env-id-constant", _id_constant),
    RuleCheck("env-created-int", _created_int, endpoints=_CHUNK_ENDPOINTS),
    RuleCheck("env-created-constant", _created_constant),
    RuleCheck("env-model-string", _model_string, endpoints=_CHUNK_ENDPOINTS),
    RuleCheck("env-choices-array", _choices_array, endpoints=_CHUNK_ENDPOINTS),
    RuleCheck("env-no-error-key", _no_error_key),
    RuleCheck("env-metadata-on-usage-chunk", _usage_metadata),
    RuleCheck("env-fingerprint", _fingerprint),
    RuleCheck("env-service-tier", _service_tier),
    RuleCheck("env-extra-fields", _extra_fields),
    RuleCheck("env-obfuscation", _obfuscation),
    RuleCheck("env-placeholder-chunk", _placeholder),
)


# Several choices


def choice_index(view: TraceView) -> Iterator[Violation]:
    """Report choices without an integer index, and choices beyond `n`."""
    for choice_delta in view.choice_deltas:
        if not _is_choice_index(choice_delta.choice.get("index")):
            yield Violation(choice_delta, choice_delta.choice, '"index":0')
    if view.trace.request is not None:
        count = _requested_choices(view.trace.request)
        for choice in view.choices[count:]:
            yield Violation(choice.deltas[0], choice.deltas[0].choice, f"no more than {count} choices, as requested")


def _is_choice_index(value: object) -> bool:
    return is_int(value) and value >= 0


def _requested_choices(request: dict[str, Any]) -> int:
    # A list of numbers is one prompt of token ids.
    n, prompts = request.get("n"), as_list(request.get("prompt"))
    count = len(prompts) if prompts and isinstance(prompts[0], str | list) else 1
    return count * n if is_int(n) and n > 0 else count


def _first_order(view: TraceView) -> Iterator[Violation]:
    expected = 0
    for choice in view.choices:
        if _is_choice_index(choice.deltas[0].choice.get("index")):
            # Report the choice that comes too early, not the one that it overtakes.
            if choice.index > expected:
                yield Violation(choice.deltas[0], {"index": choice.index}, f'"index":{expected} first')
            expected = max(expected, choice.index + 1)


def _one_choice(view: TraceView) -> Iterator[Violation]:
    for chunk, choice_deltas in view.deltas_by_chunk:
        if len(choice_deltas) > 1:
            yield Violation(chunk, {"choices": chunk.json["choices"]}, "one choice in each chunk")


CHOICE_CHECKS = (
    RuleCheck("n-index-int", choice_index),
    RuleCheck("n-first-order", _first_order),
    RuleCheck("n-one-choice-per-chunk", _one_choice),
)


# Streams of /v1/completions

COMPLETIONS_FINISH_REASONS = ("stop", "length", "content_filter")
COMPLETIONS_LOGPROBS_MEMBERS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def _text_string(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        # cmpl-no-delta reports a delta in place of the text.
        if not isinstance(choice_delta.choice.get("text"), str) and "delta" not in choice_delta.choice:
            yield Violation(choice_delta, choice_delta.choice, '"text":""')


def _no_delta(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        if "delta" in choice_delta.choice:
            yield Violation(choice_delta, choice_delta.choice, '"text":"<the new text>"')


def _completions_object(view: TraceView) -> Iterator[Violation]:
    for chunk in view.chunks:
        if chunk.json.get("object") != "text_completion":
            yield Violation(chunk, chunk_member(chunk, "object"), '"object":"text_completion"')


def _completions_finish(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        reason = choice_delta.choice.get("finish_reason", ...)
        if reason is not None and reason not in COMPLETIONS_FINISH_REASONS:
            yield Violation(
                choice_delta, choice_delta.choice, f"null, then one of {', '.join(COMPLETIONS_FINISH_REASONS)}"
            )
    for choice in view.choices:
        for choice_delta in choice.after_finish:
            yield Violation(
                choice_delta, choice_delta.choice, f"nothing for choice {choice.index} after its finish_reason"
            )
    for choice in view.unfinished_choices if view.done_messages else []:
        yield Violation(choice.deltas[-1], f"no finish_reason for choice {choice.index}", '"finish_reason":"stop"')


def _completions_logprobs(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        logprobs = choice_delta.choice.get("logprobs")
        if logprobs is not None and not _has_parallel_lists(logprobs):
            yield Violation(
                choice_delta,
                {"logprobs": logprobs},
                f"null, or {', '.join(COMPLETIONS_LOGPROBS_MEMBERS)} as lists of one length",
            )


def _has_parallel_lists(logprobs: object) -> bool:
    lists = [logprobs.get(key) for key in COMPLETIONS_LOGPROBS_MEMBERS] if isinstance(logprobs, dict) else [None]
    lengths = {len(one) if isinstance(one, list) else -1 for one in lists}
    return len(lengths) == 1 and -1 not in lengths


def _completions_usage_chunk(view: TraceView) -> Iterator[Violation]:
    if view.trace.wants_usage:
        yield from usage_missing(view)
        yield from misshapen_usage_chunks(view)


def _completions_id(view: TraceView) -> Iterator[Violation]:
    first = view.chunks[0].json.get("id") if view.chunks else None
    for chunk in view.chunks:
        id = chunk.json.get("id")
        if not isinstance(id, str) or not id.startswith("cmpl-") or id != first:
            yield Violation(chunk, chunk_member(chunk, "id"), '"id":"cmpl-...", the same on every chunk')


COMPLETIONS_CHECKS = (
    RuleCheck("cmpl-text-string", _text_string),
    RuleCheck("cmpl-no-delta", _no_delta),
    RuleCheck("cmpl-object", _completions_object),
    RuleCheck("cmpl-index", choice_index),
    RuleCheck("cmpl-finish", _completions_finish),
    RuleCheck("cmpl-logprobs", _completions_logprobs),
    RuleCheck("cmpl-done", done_missing, required_fields=("end",)),
    RuleCheck("cmpl-usage-chunk", _completions_usage_chunk, required_fields=("request", "end")),
    RuleCheck("cmpl-id-constant", _completions_id),
)


# Non-streamed replies

_WHOLE_ONLY = (ReplyKind.WHOLE,)


def _json_content_type(view: TraceView) -> Iterator[Violation]:
    trace = view.trace
    if view.looks_like_json and trace.media_type != "application/json":
        observed = trace.header("content-type")
        yield Violation(None, f"content-type: {observed}" if observed else "no content-type header", "application/json")


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
    reasons = content.FINISH_REASONS if view.is_chat else COMPLETIONS_FINISH_REASONS
    for choice in _reply_choices(view):
        if choice.get("finish_reason") not in reasons:
            observed = {"finish_reason": choice["finish_reason"]} if "finish_reason" in choice else "no finish_reason"
            yield Violation(None, observed, f"one of {', '.join(reasons)}")


def _whole_content_key(view: TraceView) -> Iterator[Violation]:
    for message in _reply_messages(view):
        if not isinstance(message.get("content", ...), str | None):
            yield Violation(None, message, '"content":"<text>", or null')


def _whole_usage(view: TraceView) -> Iterator[Violation]:
    if not view.is_error_reply and not has_usage_counts(view.reply_object.get("usage")):
        observed = {"usage": view.reply_object["usage"]} if "usage" in view.reply_object else "no usage"
        yield Violation(None, observed, "usage with its three integers")


def _whole_tool_calls(view: TraceView) -> Iterator[Violation]:
    for message in _reply_messages(view):
        calls = message.get("tool_calls")
        if calls is not None and not isinstance(calls, list):
            yield Violation(None, {"tool_calls": calls}, '"tool_calls":[...]')
        for call in as_list(calls):
            if not _is_whole_tool_call(as_object(call)):
                expected = '{"id":"call_...","type":"function","function":{"name":"...","arguments":"{...}"}}'
                yield Violation(None, {"tool_call": call}, expected)


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
    expected = "chat.completion" if view.is_chat else "text_completion"
    if not view.is_error_reply and view.reply_object.get("object") != expected:
        observed = {"object": view.reply_object["object"]} if "object" in view.reply_object else "no object"
        yield Violation(None, observed, f'"object":"{expected}"')


def _object_schema(view: TraceView) -> Iterator[Violation]:
    if view.is_error_reply or not view.reply_object:
        return
    shape = schemas.CHAT_CHOICE_MEMBERS if view.is_chat else schemas.TEXT_CHOICE_MEMBERS
    wrong = schemas.mismatches(view.reply_object, schemas.COMPLETION_MEMBERS)
    for index, choice in enumerate(_reply_choices(view)):
        wrong += schemas.mismatches(choice, shape, f"choices[{index}].")
        if isinstance(choice.get("message"), dict):
            wrong += schemas.mismatches(choice["message"], schemas.CHAT_MESSAGE_MEMBERS, f"choices[{index}].message.")
    if wrong:
        yield Violation(None, view.first_value.source, ", ".join(wrong))


WHOLE_REPLY_CHECKS = (
    RuleCheck(
        "ns-content-type-json",
        _json_content_type,
        (ReplyKind.WHOLE, ReplyKind.HTTP_ERROR),
        required_fields=("headers",),
    ),
    RuleCheck("ns-no-sse-tail", _no_sse_tail, _WHOLE_ONLY),
    RuleCheck("ns-role", _whole_role, _WHOLE_ONLY),
    RuleCheck("ns-choices", _has_choices, _WHOLE_ONLY, _CHUNK_ENDPOINTS),
    RuleCheck("ns-finish", _whole_finish, _WHOLE_ONLY, _CHUNK_ENDPOINTS),
    RuleCheck("ns-content-key", _whole_content_key, _WHOLE_ONLY),
    RuleCheck("ns-usage", _whole_usage, _WHOLE_ONLY, _CHUNK_ENDPOINTS),
    RuleCheck("ns-tool-calls", _whole_tool_calls, _WHOLE_ONLY),
    RuleCheck("ns-error-status", _error_status, _WHOLE_ONLY, required_fields=("status",)),
    RuleCheck("ns-object-schema", _object_schema, _WHOLE_ONLY, _CHUNK_ENDPOINTS),
    RuleCheck("ns-object", _whole_object, _WHOLE_ONLY, _CHUNK_ENDPOINTS),
)
