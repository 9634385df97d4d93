"""Usage as servers send it, made whole or left out; never invented."""

from welldone.wire import faults
from welldone.wire.events import Json, Usage
from welldone.wire.notes import RepairLog

_MAX_COUNT = 2**53  # what every client can hold in a number
_COUNT_FIELDS = ("prompt_tokens", "completion_tokens", "total_tokens")
_DETAIL_FIELDS = frozenset({"prompt_tokens_details", "completion_tokens_details"})


def read_usage(usage: Json, repair_log: RepairLog) -> Usage | None:
    """The counts of a usage object, with all its other members; None where the counts cannot be known."""
    counts = [_parse_count(usage.get(name)) for name in _COUNT_FIELDS]
    prompt, completion, total = counts
    if prompt is None and completion is not None and total is not None:
        prompt = total - completion
    if completion is None and prompt is not None and total is not None:
        completion = total - prompt
    if any(
        type(usage.get(name)) is not int or count is None for name, count in zip(_COUNT_FIELDS, counts, strict=True)
    ):
        repair_log.record(faults.use.INTS, usage)
    if prompt is None or completion is None or prompt < 0 or completion < 0:
        return None
    if total is not None and total != prompt + completion:
        repair_log.record(faults.use.TOTAL_SUM, usage)
    if total is None or total < max(prompt, completion):
        total = prompt + completion
    more = {key: value for key, value in usage.items() if key not in _COUNT_FIELDS}
    for key in _DETAIL_FIELDS & more.keys():
        more[key] = _fix_details(more[key])
        if not _is_valid_details(usage[key]):
            repair_log.record(faults.use.DETAILS, {key: usage[key]})
    return Usage(prompt, completion, total, more)


def usage_from_timings(timings: Json) -> Usage | None:
    """The counts of llama.cpp's timings, which it can give with each token; None where they are not there."""
    fresh, cached, completion = (_parse_count(timings.get(name)) for name in ("prompt_n", "cache_n", "predicted_n"))
    if fresh is None or cached is None or completion is None:
        return None
    prompt = cached + fresh
    return Usage(prompt, completion, prompt + completion, {"prompt_tokens_details": {"cached_tokens": cached}})


def usage_object(usage: Usage) -> Json:
    """Usage as OpenAI writes it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        **usage.extra_fields,
    }


def is_placeholder_usage(usage: Usage) -> bool:
    """Whether it is a placeholder: no real request counts nothing."""
    return usage.prompt_tokens == usage.completion_tokens == 0


def _parse_count(value: object) -> int | None:
    if type(value) is int or (isinstance(value, float) and value.is_integer()):
        return int(value) if 0 <= value < _MAX_COUNT else None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < len(str(_MAX_COUNT)):
        return int(value)
    return None


def _fix_details(value: object) -> object:
    """A details object with counts as integers where it has them as text; all else as it is."""
    if not isinstance(value, dict):
        return value
    return {
        key: count if isinstance(item, str) and (count := _parse_count(item)) is not None else item
        for key, item in value.items()
    }


def _is_valid_details(value: object) -> bool:
    return isinstance(value, dict) and all(type(count) is int for count in value.values())
