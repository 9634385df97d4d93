"""Checks of usage: when it comes, on which chunk, and whether it adds up."""

from collections.abc import Iterator

from welldone.rules.choices import as_object, is_int
from welldone.rules.heard import Heard, has_usage, is_usage_chunk, is_without_choices
from welldone.rules.messages import Message
from welldone.rules.rule import Place, Rule
from welldone.wire.faults import use as faults

COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
DETAILS = ("prompt_tokens_details", "completion_tokens_details")

_USAGE_CHUNK = '"choices":[],"usage":{...} on one chunk right before [DONE]'


def has_counts(usage: object) -> bool:
    """Whether it is an object that has the three integers."""
    return isinstance(usage, dict) and all(is_int(usage.get(key)) for key in COUNTS)


def usage_missing(heard: Heard) -> Iterator[Place]:
    """The end of a stream that owes a usage chunk and has none, not even a misshapen one."""
    if heard.trace.wants_usage and heard.is_whole:
        heard_one = any(is_usage_chunk(chunk) for chunk in heard.chunks) or next(misshapen(heard), None)
        if not heard_one:
            yield Place(heard.chunks[-1], "no usage chunk, though the request has include_usage", _USAGE_CHUNK)


def misshapen(heard: Heard) -> Iterator[Place]:
    """The usage chunks, after every choice has ended, whose `choices` is not []."""
    begun: set[int] = set()
    ended: set[int] = set()  # always some of those that have begun, so that their numbers tell all
    for chunk, parts in heard.by_chunk:
        is_over = bool(ended) and len(begun) == len(ended)
        if is_over and has_usage(chunk) and not is_usage_chunk(chunk) and all(part.is_noop for part in parts):
            yield Place(chunk, _brief(chunk), '"choices":[]')
        begun.update(part.key for part in parts)
        ended.update(part.key for part in parts if part.finish is not None)


def _brief(chunk: Message) -> object:
    return {key: chunk.json[key] for key in ("choices", "usage") if key in chunk.json}


def _only_if_asked(heard: Heard) -> Iterator[Place]:
    if not heard.trace.wants_usage:
        for chunk in heard.envelopes:
            if has_usage(chunk) or chunk.json.get("choices") == []:
                yield Place(chunk, _brief(chunk), "no usage and no chunk without choices: the request did not ask")


def _null_elsewhere(heard: Heard) -> Iterator[Place]:
    # continuous_usage_stats is how a client asks for it on every chunk.
    if heard.trace.wants_usage is False or heard.trace.stream_option("continuous_usage_stats") is True:
        return
    dummies = {place.number for place in misshapen(heard)}
    for chunk in heard.chunks:
        if has_usage(chunk) and not is_without_choices(chunk) and chunk.number not in dummies:
            yield Place(chunk, {"usage": chunk.json["usage"]}, '"usage":null')


def _not_zero(heard: Heard) -> Iterator[Place]:
    for chunk in [chunk for chunk in heard.chunks if has_usage(chunk)][:-1]:
        usage = chunk.json["usage"]
        if has_counts(usage) and not any(usage[key] for key in COUNTS):
            yield Place(chunk, {"usage": usage}, '"usage":null')


def _ints(heard: Heard) -> Iterator[Place]:
    for chunk in heard.chunks:
        if chunk.json.get("usage") is not None and not has_counts(chunk.json["usage"]):
            yield Place(chunk, {"usage": chunk.json["usage"]}, f"{', '.join(COUNTS)} as integers")


def _total_sum(heard: Heard) -> Iterator[Place]:
    for chunk in heard.chunks:
        usage = chunk.json.get("usage")
        if usage and has_counts(usage):
            total = usage["prompt_tokens"] + usage["completion_tokens"]
            if usage["total_tokens"] != total:
                yield Place(chunk, {"usage": usage}, f'"total_tokens":{total}')


def _last(heard: Heard) -> Iterator[Place]:
    after = False
    for chunk in heard.chunks:
        if after and (not is_without_choices(chunk) or is_usage_chunk(chunk)):
            yield Place(chunk, _brief(chunk), "nothing after the usage chunk but [DONE]")
        after = after or is_usage_chunk(chunk)


def _details(heard: Heard) -> Iterator[Place]:
    for chunk in heard.chunks:
        usage = as_object(chunk.json.get("usage"))
        for key in DETAILS:
            value = usage.get(key, {})
            if not isinstance(value, dict) or not all(is_int(count) for count in value.values()):
                yield Place(chunk, {key: value}, f"{key} as an object of integers, or absent")


RULES = (
    Rule(faults.FINAL_CHUNK, usage_missing, needs=("request", "end")),
    Rule(faults.ONLY_IF_ASKED, _only_if_asked, needs=("request",)),
    Rule(faults.NULL_ELSEWHERE, _null_elsewhere),
    Rule(faults.NOT_ZERO, _not_zero),
    Rule(faults.INTS, _ints),
    Rule(faults.TOTAL_SUM, _total_sum),
    Rule(faults.LAST, _last),
    Rule(faults.CHOICES_EMPTY_ARRAY, misshapen),
    Rule(faults.DETAILS, _details),
)
