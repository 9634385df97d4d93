"""Checks of usage: presence, position and counts (`use-`)."""

from collections.abc import Iterator

from welldone.rules.rule_check import RuleCheck, Violation
from welldone.rules.view.choices import as_object, is_int
from welldone.rules.view.stream import StreamMessage
from welldone.rules.view.view import TraceView, has_usage, is_usage_chunk, is_without_choices

USAGE_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
USAGE_DETAILS = ("prompt_tokens_details", "completion_tokens_details")

_EXPECTED_USAGE_CHUNK = '"choices":[],"usage":{...} on one chunk right before [DONE]'


def has_usage_counts(usage: object) -> bool:
    """Whether a usage object has its three integer counts."""
    return isinstance(usage, dict) and all(is_int(usage.get(key)) for key in USAGE_COUNTS)


def usage_missing(view: TraceView) -> Iterator[Violation]:
    """Report a stream without the requested usage chunk, not even a malformed one."""
    if view.trace.wants_usage and view.is_complete_stream:
        is_sent = any(is_usage_chunk(chunk) for chunk in view.chunks) or next(misshapen_usage_chunks(view), None)
        if not is_sent:
            yield Violation(
                view.chunks[-1], "no usage chunk, though the request has include_usage", _EXPECTED_USAGE_CHUNK
            )


def misshapen_usage_chunks(view: TraceView) -> Iterator[Violation]:
    """Report usage chunks, after all choices have ended, whose `choices` is not []."""
    started: set[int] = set()
    ended: set[int] = set()  # a subset of the started choices
    for chunk, choice_deltas in view.deltas_by_chunk:
        is_over = bool(ended) and len(started) == len(ended)
        if (
            is_over
            and has_usage(chunk)
            and not is_usage_chunk(chunk)
            and all(choice_delta.is_noop for choice_delta in choice_deltas)
        ):
            yield Violation(chunk, _usage_fragment(chunk), '"choices":[]')
        started.update(choice_delta.choice_index for choice_delta in choice_deltas)
        ended.update(
            choice_delta.choice_index for choice_delta in choice_deltas if choice_delta.finish_reason is not None
        )


def _usage_fragment(chunk: StreamMessage) -> object:
    return {key: chunk.json[key] for key in ("choices", "usage") if key in chunk.json}


def _only_if_requested(view: TraceView) -> Iterator[Violation]:
    if not view.trace.wants_usage:
        for chunk in view.enveloped_chunks:
            if has_usage(chunk) or chunk.json.get("choices") == []:
                yield Violation(
                    chunk, _usage_fragment(chunk), "no usage and no chunk without choices: the request did not ask"
                )


def _null_elsewhere(view: TraceView) -> Iterator[Violation]:
    # With continuous_usage_stats a client requests usage on every chunk.
    if view.trace.wants_usage is False or view.trace.stream_option("continuous_usage_stats") is True:
        return
    misshapen = {violation.frame_number for violation in misshapen_usage_chunks(view)}
    for chunk in view.chunks:
        if has_usage(chunk) and not is_without_choices(chunk) and chunk.frame_number not in misshapen:
            yield Violation(chunk, {"usage": chunk.json["usage"]}, '"usage":null')


def _not_zero(view: TraceView) -> Iterator[Violation]:
    for chunk in [chunk for chunk in view.chunks if has_usage(chunk)][:-1]:
        usage = chunk.json["usage"]
        if has_usage_counts(usage) and not any(usage[key] for key in USAGE_COUNTS):
            yield Violation(chunk, {"usage": usage}, '"usage":null')


def _integer_counts(view: TraceView) -> Iterator[Violation]:
    for chunk in view.chunks:
        if chunk.json.get("usage") is not None and not has_usage_counts(chunk.json["usage"]):
            yield Violation(chunk, {"usage": chunk.json["usage"]}, f"{', '.join(USAGE_COUNTS)} as integers")


def _total_sum(view: TraceView) -> Iterator[Violation]:
    for chunk in view.chunks:
        usage = chunk.json.get("usage")
        if usage and has_usage_counts(usage):
            total = usage["prompt_tokens"] + usage["completion_tokens"]
            if usage["total_tokens"] != total:
                yield Violation(chunk, {"usage": usage}, f'"total_tokens":{total}')


def _usage_last(view: TraceView) -> Iterator[Violation]:
    after = False
    for chunk in view.chunks:
        if after and (not is_without_choices(chunk) or is_usage_chunk(chunk)):
            yield Violation(chunk, _usage_fragment(chunk), "nothing after the usage chunk but [DONE]")
        after = after or is_usage_chunk(chunk)


def _usage_details(view: TraceView) -> Iterator[Violation]:
    for chunk in view.chunks:
        usage = as_object(chunk.json.get("usage"))
        for key in USAGE_DETAILS:
            value = usage.get(key, {})
            if not isinstance(value, dict) or not all(is_int(count) for count in value.values()):
                yield Violation(chunk, {key: value}, f"{key} as an object of integers, or absent")


USAGE_CHECKS = (
    RuleCheck("use-final-chunk", usage_missing, required_fields=("request", "end")),
    RuleCheck("use-only-if-asked", _only_if_requested, required_fields=("request",)),
    RuleCheck("use-null-elsewhere", _null_elsewhere),
    RuleCheck("use-not-zero", _not_zero),
    RuleCheck("use-ints", _integer_counts),
    RuleCheck("use-total-sum", _total_sum),
    RuleCheck("use-last", _usage_last),
    RuleCheck("use-choices-empty-array", misshapen_usage_chunks),
    RuleCheck("use-details", _usage_details),
)
