"""Objects of Anthropic's Messages API: messages, blocks, usage, stop reasons and errors."""

from collections.abc import Mapping

import msgspec

from welldone.core.answer_format import tool_calls_with_arguments
from welldone.core.collect import CollectedChoice
from welldone.core.envelope import Envelope
from welldone.core.error_types import failure_kind
from welldone.core.events import Failure, Json, Usage
from welldone.core.fields import parse_count, unread_usage, usage_detail
from welldone.core.finish_reasons import outcome_of
from welldone.core.lenient_json import as_object, scrub_object

USAGE_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
_CHAT_DETAIL_FIELDS = frozenset({"prompt_tokens_details", "completion_tokens_details"})
"""Details in chat's format; those with an equivalent are converted."""
_OUTPUT_DETAILS = "output_tokens_details"
_USAGE_MEMBERS: Json = {_OUTPUT_DETAILS: None, "server_tool_use": None}
_MAX_SAFE_INTEGER = 2**53  # of IEEE 754 doubles, as in JavaScript


def anthropic_usage_object(usage: Usage | None) -> Json:
    """Convert usage: Anthropic counts cached prompt tokens separately. Missing counts are 0.

    Unknown members are kept. These are all members that the schema requires at the end of a stream.
    """
    usage = usage or Usage(0, 0, 0, {})
    cached = min(usage_detail(usage, "prompt_tokens_details", "cached_tokens") or 0, usage.prompt_tokens)
    written = min(usage_detail(usage, "prompt_tokens_details", "cache_write_tokens") or 0, usage.prompt_tokens - cached)
    values = usage.prompt_tokens - cached - written, written, cached, usage.completion_tokens
    counts: Json = dict(zip(USAGE_COUNTS, values, strict=True))
    thinking = usage_detail(usage, "completion_tokens_details", "reasoning_tokens")
    if thinking is not None:
        counts[_OUTPUT_DETAILS] = {"thinking_tokens": thinking}
    extra_fields = {name: value for name, value in usage.extra_fields.items() if name not in _CHAT_DETAIL_FIELDS}
    return _USAGE_MEMBERS | extra_fields | counts


def usage_from_counts(counts: Mapping[str, int], members: Json) -> Usage | None:
    """Convert Anthropic's counts; None if input or output tokens are missing. Other `members` of the usage are kept."""
    uncached, cache_writes, cached, completion = (counts.get(name) for name in USAGE_COUNTS)
    if uncached is None or completion is None:
        return None
    prompt = uncached + (cache_writes or 0) + (cached or 0)
    details = {"cached_tokens": cached or 0} | ({"cache_write_tokens": cache_writes} if cache_writes else {})
    extra_fields = {name: value for name, value in members.items() if name not in (*USAGE_COUNTS, _OUTPUT_DETAILS)}
    extra_fields["prompt_tokens_details"] = details
    thinking = as_object(members.get(_OUTPUT_DETAILS)).get("thinking_tokens")
    if _is_count(thinking):
        extra_fields["completion_tokens_details"] = {"reasoning_tokens": thinking}
    return Usage(prompt, completion, prompt + completion, extra_fields)


def valid_counts(usage: object) -> Json:
    """Return a usage object, with what is no count in a field of this package."""
    if not isinstance(usage, dict):
        return unread_usage(usage)
    members = scrub_object(usage)
    counts = {name: parse_count(value) if name in USAGE_COUNTS else value for name, value in members.items()}
    nullable = [name for name in USAGE_COUNTS if name.startswith("cache") and members.get(name) is None]
    wrong = {n: members[n] for n in USAGE_COUNTS if n not in nullable and n in members and counts[n] is None}
    return {name: count for name, count in counts.items() if name not in wrong} | unread_usage(wrong)


def with_default_counts(usage: Json, **counts: int) -> Json:
    """Add missing counts to a usage object."""
    return usage | {name: count for name, count in counts.items() if name not in usage}


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MAX_SAFE_INTEGER


ANTHROPIC_VERSION_HEADER, ANTHROPIC_VERSION = "anthropic-version", "2023-06-01"
"""Header that identifies Anthropic's clients, and the default version, which is also the latest."""
_STOP_REASON_FOR = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
"""Stop reason by finish reason."""
STOP_REASONS = frozenset(
    {*_STOP_REASON_FOR.values(), "stop_sequence", "pause_turn", "model_context_window_exceeded", "compaction"}
)


def message_object(envelope: Envelope, usage: Json, content: list[Json]) -> Json:
    """Return a message that has not ended."""
    message = {"id": envelope.id, "type": "message", "role": "assistant", "model": envelope.model, "content": content}
    return message | {"stop_reason": None, "stop_sequence": None, "usage": usage}


_REPLY_MEMBERS: Json = dict.fromkeys(("container", "diagnostics", "stop_details"))
_REPLY_USAGE_MEMBERS: Json = dict.fromkeys(("cache_creation", "inference_geo", "service_tier", "speed"))
_BLOCK_MEMBERS: dict[str, Json] = {"text": {"citations": []}, "tool_use": {"caller": {"type": "direct"}}}
"""Members without a value that Anthropic's schema requires: clients with generated types read them.

Citations are not null, as they may be, since the AI SDK accepts only an array.
"""


def reply_object(envelope: Envelope, usage: Json, content: list[Json]) -> Json:
    """Return a message that has not ended, with all members that the schema requires."""
    return message_object(envelope, _REPLY_USAGE_MEMBERS | usage, content) | _REPLY_MEMBERS


def reply_block(block: Json) -> Json:
    """Return a block with all members that the schema requires."""
    return block | _BLOCK_MEMBERS.get(block["type"], {}) | block


def text_block(text: str = "") -> Json:
    """Return a text block."""
    return {"type": "text", "text": text}


def thinking_block(text: str = "", signature: str = "") -> Json:
    """Return a thinking block. Clients require a signature and send it back; it is empty if there is none."""
    return {"type": "thinking", "thinking": text, "signature": signature}


def tool_use_block(id: str, name: str, input: Json | msgspec.Raw, more: Json) -> Json:
    """Return a tool call."""
    return {**more, "type": "tool_use", "id": id, "name": name, "input": input}


def content_blocks(answer: CollectedChoice) -> list[Json]:
    """Return the blocks of an answer, in streaming order."""
    blocks = [thinking_block(answer.reasoning)] if answer.reasoning else []
    blocks += [text_block(text) for text in (answer.text, answer.refusal) if text]
    blocks += [
        tool_use_block(tool_call.id, tool_call.name, arguments, tool_call.extra_fields)
        for tool_call, arguments in tool_calls_with_arguments(answer)
        if arguments is not None
    ]
    return [reply_block(block) for block in blocks]


def stop_members(reason: str, stop: str | None, *, has_tool_use: bool, has_refusal: bool) -> Json:
    """Convert a finish reason to a stop reason and, if one matched, the stop sequence, with the members beside them."""
    members: Json = {"stop_sequence": None, "stop_details": None, "container": None}
    stop_reason = "end_turn" if reason == "tool_calls" else _STOP_REASON_FOR.get(reason, "end_turn")
    if has_tool_use and reason not in ("content_filter", "length"):
        stop_reason = "tool_use"  # also for forced calls, for which OpenAI sends `stop`
    elif has_refusal and reason != "length":
        stop_reason = "refusal"
    elif stop is not None and reason != "length":
        stop_reason, members["stop_sequence"] = "stop_sequence", stop
    return {"stop_reason": stop_reason} | members


def normalise_stop_reason(word: str) -> str | None:
    """Map the finish or stop reason of any provider to a stop reason; None for an interrupted answer.

    An undocumented identifier is kept: Anthropic adds reasons, and its clients tolerate unknown ones.
    """
    if word in STOP_REASONS:
        return word
    outcome = outcome_of(word)
    if outcome is None:
        return word if word.isidentifier() else None
    return _STOP_REASON_FOR.get(outcome)


def anthropic_error_object(failure: Failure) -> Json:
    """Return an error in Anthropic's format."""
    more = dict(failure.extra_fields)
    request = more.pop("request_id", None)
    body: Json = {"type": "error", "error": {**more, "type": failure_kind(failure), "message": failure.message}}
    return body if request is None else body | {"request_id": request}
