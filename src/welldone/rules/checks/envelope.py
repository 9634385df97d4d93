"""Checks of chunk envelopes, choices, completions, whole replies and usage (`env-`, `n-`, `cmpl-`, `ns-`, `use-`)."""

from collections.abc import Callable, Iterator
from typing import Any

from welldone.rules import schemas
from welldone.rules.checks import content
from welldone.rules.rule_check import CheckList, Violation, chunk_objects, form_of, member
from welldone.rules.view.choices import ARGUMENTS_MEMBER, ChoiceDelta, as_list, as_object, call_type, is_int
from welldone.rules.view.stream import StreamMessage
from welldone.rules.view.view import ReplyKind, TraceView, has_usage, is_usage_chunk, is_without_choices

CHUNK_OBJECT = "chat.completion.chunk"
SERVICE_TIERS = (..., None, "auto", "default", "flex", "scale", "priority")
_EXPECTED_TIER = "null, auto, default, flex, scale or priority"
RESERVED_NAMES = frozenset(
    ("event", "data", "delta", "message", "role", "content", "finish_reason", "index", "logprobs", "tool_calls", "text")
)
"""Names that the protocol uses at other levels."""
ENVELOPE_MEMBERS = frozenset({"id", "object", "created", "model", "choices", "system_fingerprint"})
"""Members of every chunk. A chunk with no others and no choice is empty."""
MIN_MILLISECONDS = 10**11
"""As seconds this is the year 5138, as milliseconds 1973: no `created` in seconds reaches it."""

_ABSENT = "absent"

CHECKS = CheckList()


def _is_id(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_seconds(value: object) -> bool:
    return is_int(value) and 0 <= value < MIN_MILLISECONDS


def _envelopes(view: TraceView) -> Iterator[tuple[StreamMessage, dict[str, Any]]]:
    return ((chunk, chunk.json) for chunk in view.enveloped_chunks)


CHECKS.member("env-object-const", _envelopes, "object", lambda it: it == CHUNK_OBJECT, f'"object":"{CHUNK_OBJECT}"')
CHECKS.member("env-id-present", _envelopes, "id", _is_id, '"id":"chatcmpl-...", the same on every chunk')
CHECKS.member("env-created-int", _envelopes, "created", _is_seconds, '"created":1700000000, whole seconds')
CHECKS.member("env-model-string", _envelopes, "model", lambda it: isinstance(it, str), '"model":"<the name asked for>"')
CHECKS.member("env-choices-array", _envelopes, "choices", lambda it: isinstance(it, list), '"choices":[]')


def _require_constant(rule: str, key: str, is_valid: Callable[[object], bool]) -> None:
    """Add the check that all chunks with a valid member have the same."""

    @CHECKS.rule(rule)
    def _check(view: TraceView) -> Iterator[Violation]:
        chunks = [chunk for chunk in view.enveloped_chunks if is_valid(chunk.json.get(key))]
        for chunk in chunks:
            if chunk.json[key] != (first := chunks[0].json[key]):
                yield Violation(chunk, {key: chunk.json[key]}, f"{str(first)[:80]} as on the first chunk")


_require_constant("env-id-constant", "id", _is_id)
_require_constant("env-created-constant", "created", is_int)
CHECKS.member("env-no-error-key", chunk_objects, "error", lambda value: value is ..., "no error key")


@CHECKS.each("env-metadata-on-usage-chunk", lambda view: view.chunks)
def _usage_metadata(chunk: StreamMessage) -> Iterator[Violation]:
    missing = [key for key in ("id", "object", "created", "model") if chunk.json.get(key) in (None, "")]
    if missing and has_usage(chunk) and is_without_choices(chunk):
        yield Violation(chunk, f"no {', '.join(missing)}", "id, object, created and model as on the other chunks")


@CHECKS.rule("env-fingerprint")
def _fingerprint(view: TraceView) -> Iterator[Violation]:
    values = [_comparable(chunk.json.get("system_fingerprint", _ABSENT)) for chunk in view.enveloped_chunks]
    for chunk, value in zip(view.enveloped_chunks, values, strict=True):
        if value != values[0]:
            expected = f"system_fingerprint as on the first chunk: {str(values[0])[:80]}"
            yield Violation(chunk, member(chunk.json, "system_fingerprint"), expected)
            return  # report the first change only


def _comparable(value: object) -> str | None:
    # Values that are not strings are malformed and may be large: they compare as equal.
    return value if value is None or isinstance(value, str) else "no string"


CHECKS.member("env-service-tier", chunk_objects, "service_tier", lambda it: it in SERVICE_TIERS, _EXPECTED_TIER)


@CHECKS.each("env-extra-fields", lambda view: view.chunks)
def _extra_fields(chunk: StreamMessage) -> Iterator[Violation]:
    for key in [key for key in chunk.json if key in RESERVED_NAMES]:
        yield Violation(chunk, {key: chunk.json[key]}, f"no top-level {key}")


@CHECKS.rule("env-obfuscation")
def _obfuscation(view: TraceView) -> Iterator[Violation]:
    is_off = view.trace.stream_option("include_obfuscation") is False
    expected = "no obfuscation: the request turned it off" if is_off else '"obfuscation":"<padding>"'
    for chunk in view.chunks:
        if "obfuscation" in chunk.json and (is_off or not isinstance(chunk.json["obfuscation"], str)):
            yield Violation(chunk, {"obfuscation": chunk.json["obfuscation"]}, expected)


@CHECKS.rule("env-placeholder-chunk")
def _placeholder(view: TraceView) -> Iterator[Violation]:
    if first := view.placeholder_chunk:
        yield Violation(first, first.json, "a first chunk with id, object and a choice")
    if view.trace.wants_usage is False:
        return  # use-only-if-asked reports it
    for chunk in view.enveloped_chunks:
        carried = {name for name, value in chunk.json.items() if value is not None} - ENVELOPE_MEMBERS
        # Usage and extensions such as prompt_filter_results (Azure) need a chunk without choices.
        if chunk.json.get("choices") == [] and not carried:
            yield Violation(chunk, chunk.json, "a chunk with a choice, or a comment")


# Several choices


@CHECKS.rule("n-index-int")
@CHECKS.rule("cmpl-index")
def _choice_index(view: TraceView) -> Iterator[Violation]:
    for delta in view.choice_deltas:
        if not _is_choice_index(delta.choice.get("index")):
            yield Violation(delta, delta.choice, '"index":0', form_of(delta.choice.get("index", ...)))
    if view.trace.request is not None:
        count = _requested_choices(view.trace.request)
        for choice in view.choices[count:]:
            delta, expected = choice.deltas[0], f"no more than {count} choices, as requested"
            yield Violation(delta, delta.choice, expected, "too many")


def _is_choice_index(value: object) -> bool:
    return is_int(value) and value >= 0


def _requested_choices(request: dict[str, Any]) -> int:
    # A list of numbers is one prompt of token ids.
    n, prompts = request.get("n"), as_list(request.get("prompt"))
    count = len(prompts) if prompts and isinstance(prompts[0], str | list) else 1
    return count * n if is_int(n) and n > 0 else count


@CHECKS.rule("n-first-order")
def _first_order(view: TraceView) -> Iterator[Violation]:
    expected = 0
    for choice in view.choices:
        if _is_choice_index(choice.deltas[0].choice.get("index")):
            # Report the choice that comes too early, not the one that it overtakes.
            if choice.index > expected:
                yield Violation(choice.deltas[0], {"index": choice.index}, f'"index":{expected} first')
            expected = max(expected, choice.index + 1)


@CHECKS.rule("n-one-choice-per-chunk")
def _one_choice(view: TraceView) -> Iterator[Violation]:
    for chunk, deltas in view.deltas_by_chunk:
        if len(deltas) > 1:
            yield Violation(chunk, {"choices": chunk.json["choices"]}, "one choice in each chunk")


# Streams of /v1/completions

COMPLETIONS_FINISH_REASONS = ("stop", "length", "content_filter")
COMPLETIONS_LOGPROBS_MEMBERS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@CHECKS.each("cmpl-text-string", lambda view: view.choice_deltas)
def _text_string(delta: ChoiceDelta) -> Iterator[Violation]:
    # cmpl-no-delta reports a delta in place of the text.
    if not isinstance(delta.choice.get("text"), str) and "delta" not in delta.choice:
        yield Violation(delta, delta.choice, '"text":""')


@CHECKS.each("cmpl-no-delta", lambda view: view.choice_deltas)
def _no_delta(delta: ChoiceDelta) -> Iterator[Violation]:
    if "delta" in delta.choice:
        yield Violation(delta, delta.choice, '"text":"<the new text>"')


CHECKS.member("cmpl-object", chunk_objects, "object", lambda it: it == "text_completion", '"object":"text_completion"')


@CHECKS.rule("cmpl-finish")
def _completions_finish(view: TraceView) -> Iterator[Violation]:
    for delta in view.choice_deltas:
        if delta.choice.get("finish_reason", ...) not in (None, *COMPLETIONS_FINISH_REASONS):
            yield Violation(delta, delta.choice, f"null, then one of {', '.join(COMPLETIONS_FINISH_REASONS)}")
    for choice in view.choices:
        for delta in choice.after_finish:
            yield Violation(delta, delta.choice, f"nothing for choice {choice.index} after its finish_reason")
    for choice in view.unfinished_choices if view.done_messages else ():
        yield Violation(choice.deltas[-1], f"no finish_reason for choice {choice.index}", '"finish_reason":"stop"')


@CHECKS.each("cmpl-logprobs", lambda view: view.choice_deltas)
def _completions_logprobs(delta: ChoiceDelta) -> Iterator[Violation]:
    logprobs = delta.choice.get("logprobs")
    lists = [as_object(logprobs).get(key) for key in COMPLETIONS_LOGPROBS_MEMBERS]
    lengths = {len(values) if isinstance(values, list) else -1 for values in lists}
    if logprobs is not None and (len(lengths) != 1 or -1 in lengths):
        expected = f"null, or {', '.join(COMPLETIONS_LOGPROBS_MEMBERS)} as lists of one length"
        yield Violation(delta, {"logprobs": logprobs}, expected)


@CHECKS.rule("cmpl-usage-chunk", needs=("request", "end"))
def _completions_usage_chunk(view: TraceView) -> Iterator[Violation]:
    if view.trace.wants_usage:
        yield from usage_missing(view)
        yield from misshapen_usage_chunks(view)


@CHECKS.rule("cmpl-id-constant")
def _completions_id(view: TraceView) -> Iterator[Violation]:
    for chunk in view.chunks:
        id = chunk.json.get("id")
        if not isinstance(id, str) or not id.startswith("cmpl-") or id != view.chunks[0].json.get("id"):
            yield Violation(chunk, member(chunk.json, "id"), '"id":"cmpl-...", the same on every chunk')


# Non-streamed replies


@CHECKS.rule("ns-content-type-json", ReplyKind.WHOLE, ReplyKind.HTTP_ERROR, needs=("headers",))
def _json_content_type(view: TraceView) -> Iterator[Violation]:
    if view.looks_like_json and view.trace.media_type != "application/json":
        observed = view.trace.header("content-type")
        yield Violation(None, f"content-type: {observed}" if observed else "no content-type header", "application/json")


@CHECKS.rule("ns-no-sse-tail", ReplyKind.WHOLE)
def _no_sse_tail(view: TraceView) -> Iterator[Violation]:
    if view.text_after_json:
        yield Violation(None, view.text_after_json, "nothing after the JSON")


def _reply_choices(view: TraceView) -> list[dict[str, Any]]:
    return [as_object(choice) for choice in as_list(view.reply_object.get("choices"))]


def _reply_messages(view: TraceView) -> Iterator[dict[str, Any]]:
    return (as_object(choice.get("message")) for choice in _reply_choices(view))


@CHECKS.each("ns-role", _reply_messages, ReplyKind.WHOLE)
def _whole_role(message: dict[str, Any]) -> Iterator[Violation]:
    if message.get("role") != "assistant":
        yield Violation(None, message, '"role":"assistant"')


@CHECKS.rule("ns-choices", ReplyKind.WHOLE)
def _has_choices(view: TraceView) -> Iterator[Violation]:
    if not view.is_error_reply and not _reply_choices(view):
        yield Violation(None, view.first_value.source, '"choices":[{...}]')


@CHECKS.rule("ns-finish", ReplyKind.WHOLE)
def _whole_finish(view: TraceView) -> Iterator[Violation]:
    reasons = content.FINISH_REASONS if view.is_chat else COMPLETIONS_FINISH_REASONS
    for choice in _reply_choices(view):
        if choice.get("finish_reason") not in reasons:
            yield Violation(None, member(choice, "finish_reason"), f"one of {', '.join(reasons)}")


@CHECKS.each("ns-content-key", _reply_messages, ReplyKind.WHOLE)
def _whole_content_key(message: dict[str, Any]) -> Iterator[Violation]:
    if not isinstance(message.get("content", ...), str | None):
        yield Violation(None, message, '"content":"<text>", or null')


@CHECKS.rule("ns-usage", ReplyKind.WHOLE)
def _whole_usage(view: TraceView) -> Iterator[Violation]:
    if not view.is_error_reply and not has_usage_counts(view.reply_object.get("usage")):
        yield Violation(None, member(view.reply_object, "usage"), "usage with its three integers")


@CHECKS.each("ns-tool-calls", _reply_messages, ReplyKind.WHOLE)
def _whole_tool_calls(message: dict[str, Any]) -> Iterator[Violation]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list | None):
        yield Violation(None, {"tool_calls": calls}, '"tool_calls":[...]')
    for tool_call in as_list(calls):
        if not _is_whole_tool_call(as_object(tool_call)):
            expected = '{"id":"call_...","type":"function","function":{"name":"...","arguments":"{...}"}}'
            yield Violation(None, {"tool_call": tool_call}, expected)


def _is_whole_tool_call(tool_call: dict[str, Any]) -> bool:
    tool_type = call_type(tool_call)
    function = as_object(tool_call.get(tool_type))
    is_typed = tool_call.get("type") == tool_type and isinstance(function.get(ARGUMENTS_MEMBER[tool_type]), str)
    return _is_id(tool_call.get("id")) and _is_id(function.get("name")) and is_typed and "index" not in tool_call


@CHECKS.rule("ns-error-status", ReplyKind.WHOLE, needs=("status",))
def _error_status(view: TraceView) -> Iterator[Violation]:
    if view.is_error_reply:
        yield Violation(None, view.first_value.source, "a status of 400 or more")


@CHECKS.rule("ns-object", ReplyKind.WHOLE)
def _whole_object(view: TraceView) -> Iterator[Violation]:
    expected = "chat.completion" if view.is_chat else "text_completion"
    if not view.is_error_reply and view.reply_object.get("object") != expected:
        yield Violation(None, member(view.reply_object, "object"), f'"object":"{expected}"')


@CHECKS.rule("ns-object-schema", ReplyKind.WHOLE)
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


# ---- usage: presence, position and counts


USAGE_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
USAGE_DETAILS = ("prompt_tokens_details", "completion_tokens_details")

_EXPECTED_USAGE_CHUNK = '"choices":[],"usage":{...} on one chunk right before [DONE]'


def has_usage_counts(usage: object) -> bool:
    """Whether a usage object has its three integer counts."""
    return isinstance(usage, dict) and all(is_int(usage.get(key)) for key in USAGE_COUNTS)


@CHECKS.rule("use-final-chunk", needs=("request", "end"))
def usage_missing(view: TraceView) -> Iterator[Violation]:
    """Report a stream without the requested usage chunk, not even a malformed one."""
    is_sent = any(map(is_usage_chunk, view.chunks)) or next(misshapen_usage_chunks(view), None) is not None
    if view.trace.wants_usage and view.is_complete_stream and not is_sent:
        yield Violation(view.chunks[-1], "no usage chunk, though the request has include_usage", _EXPECTED_USAGE_CHUNK)


@CHECKS.rule("use-choices-empty-array")
def misshapen_usage_chunks(view: TraceView) -> Iterator[Violation]:
    """Report usage chunks, after all choices have ended, whose `choices` is not []."""
    started: set[int] = set()
    ended: set[int] = set()  # a subset of the started choices
    for chunk, deltas in view.deltas_by_chunk:
        is_over = bool(ended) and len(started) == len(ended)
        is_misshapen = has_usage(chunk) and not is_usage_chunk(chunk)
        if is_over and is_misshapen and all(delta.is_noop for delta in deltas):
            form = form_of(chunk.json.get("choices", ...))
            yield Violation(chunk, _usage_fragment(chunk), '"choices":[]', form)
        started.update(delta.choice_index for delta in deltas)
        ended.update(delta.choice_index for delta in deltas if delta.finish_reason is not None)


def _usage_fragment(chunk: StreamMessage) -> object:
    return {key: chunk.json[key] for key in ("choices", "usage") if key in chunk.json}


@CHECKS.rule("use-only-if-asked", needs=("request",))
def _only_if_requested(view: TraceView) -> Iterator[Violation]:
    expected = "no usage and no chunk without choices: the request did not ask"
    for chunk in view.enveloped_chunks if not view.trace.wants_usage else ():
        if has_usage(chunk) or chunk.json.get("choices") == []:
            yield Violation(chunk, _usage_fragment(chunk), expected)


@CHECKS.rule("use-null-elsewhere")
def _null_elsewhere(view: TraceView) -> Iterator[Violation]:
    # With continuous_usage_stats a client requests usage on every chunk.
    if view.trace.wants_usage is False or view.trace.stream_option("continuous_usage_stats") is True:
        return
    misshapen = {violation.frame_number for violation in misshapen_usage_chunks(view)}
    for chunk in view.chunks:
        if has_usage(chunk) and not is_without_choices(chunk) and chunk.frame_number not in misshapen:
            yield Violation(chunk, {"usage": chunk.json["usage"]}, '"usage":null')
    for delta in view.choice_deltas if not any(map(has_usage, view.chunks)) else ():
        if usage := as_object(delta.choice.get("usage")):
            yield Violation(delta, {"choices": [{"usage": usage}]}, _EXPECTED_USAGE_CHUNK, "in a choice")


@CHECKS.rule("use-not-zero")
def _not_zero(view: TraceView) -> Iterator[Violation]:
    for chunk in list(filter(has_usage, view.chunks))[:-1]:
        usage = chunk.json["usage"]
        if has_usage_counts(usage) and not any(usage[key] for key in USAGE_COUNTS):
            yield Violation(chunk, {"usage": usage}, '"usage":null')


@CHECKS.each("use-ints", lambda view: view.chunks)
def _integer_counts(chunk: StreamMessage) -> Iterator[Violation]:
    if chunk.json.get("usage") is not None and not has_usage_counts(chunk.json["usage"]):
        counts = (as_object(chunk.json["usage"]).get(key, ...) for key in USAGE_COUNTS)
        form = form_of(next(value for value in counts if not is_int(value)))
        yield Violation(chunk, {"usage": chunk.json["usage"]}, f"{', '.join(USAGE_COUNTS)} as integers", form)


@CHECKS.each("use-total-sum", lambda view: view.chunks)
def _total_sum(chunk: StreamMessage) -> Iterator[Violation]:
    usage = as_object(chunk.json.get("usage"))
    if has_usage_counts(usage) and usage["total_tokens"] != usage["prompt_tokens"] + usage["completion_tokens"]:
        total = usage["prompt_tokens"] + usage["completion_tokens"]
        yield Violation(chunk, {"usage": usage}, f'"total_tokens":{total}')


@CHECKS.rule("use-last")
def _usage_last(view: TraceView) -> Iterator[Violation]:
    after = False
    for chunk in view.chunks:
        if after and (not is_without_choices(chunk) or is_usage_chunk(chunk)):
            yield Violation(chunk, _usage_fragment(chunk), "nothing after the usage chunk but [DONE]")
        after = after or is_usage_chunk(chunk)


@CHECKS.each("use-details", lambda view: view.chunks)
def _usage_details(chunk: StreamMessage) -> Iterator[Violation]:
    for key in USAGE_DETAILS:
        value = as_object(chunk.json.get("usage")).get(key, {})
        if not isinstance(value, dict) or not all(map(is_int, value.values())):
            yield Violation(chunk, {key: value}, f"{key} as an object of integers, or absent")
