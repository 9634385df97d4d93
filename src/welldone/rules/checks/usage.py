"""Checks of usage: presence, position and counts (`use-`)."""

from collections.abc import Iterator

from welldone.rules.rule_check import CheckList, Violation, form_of
from welldone.rules.view.choices import as_object, is_int
from welldone.rules.view.stream import StreamMessage
from welldone.rules.view.view import TraceView, has_usage, is_usage_chunk, is_without_choices

USAGE_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
USAGE_DETAILS = ("prompt_tokens_details", "completion_tokens_details")

_EXPECTED_USAGE_CHUNK = '"choices":[],"usage":{...} on one chunk right before [DONE]'

CHECKS = CheckList()


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
    for chunk, parts in view.deltas_by_chunk:
        is_over = bool(ended) and len(started) == len(ended)
        is_misshapen = has_usage(chunk) and not is_usage_chunk(chunk)
        if is_over and is_misshapen and all(part.is_noop for part in parts):
            form = form_of(chunk.json.get("choices", ...))
            yield Violation(chunk, _usage_fragment(chunk), '"choices":[]', form)
        started.update(part.choice_index for part in parts)
        ended.update(part.choice_index for part in parts if part.finish_reason is not None)


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
    for part in view.choice_deltas if not any(map(has_usage, view.chunks)) else ():
        if usage := as_object(part.choice.get("usage")):
            yield Violation(part, {"choices": [{"usage": usage}]}, _EXPECTED_USAGE_CHUNK, "in a choice")


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
