"""Usage as servers send it, made whole or left out; never invented."""

from welldone.wire import faults
from welldone.wire.events import Json, Usage
from welldone.wire.notes import Notes

_MOST = 2**53  # what every client can hold in a number
_NAMES = ("prompt_tokens", "completion_tokens", "total_tokens")
_DETAILS = frozenset({"prompt_tokens_details", "completion_tokens_details"})


def read_usage(usage: Json, notes: Notes) -> Usage | None:
    """The counts of a usage object, with all its other members; None where the counts cannot be known."""
    counts = [_count(usage.get(name)) for name in _NAMES]
    prompt, completion, total = counts
    if prompt is None and completion is not None and total is not None:
        prompt = total - completion
    if completion is None and prompt is not None and total is not None:
        completion = total - prompt
    if any(type(usage.get(name)) is not int or count is None for name, count in zip(_NAMES, counts, strict=True)):
        notes.note(faults.use.INTS, usage)
    if prompt is None or completion is None or prompt < 0 or completion < 0:
        return None
    if total is not None and total != prompt + completion:
        notes.note(faults.use.TOTAL_SUM, usage)
    if total is None or total < max(prompt, completion):
        total = prompt + completion
    more = {key: value for key, value in usage.items() if key not in _NAMES}
    for key in _DETAILS & more.keys():
        more[key] = _details(more[key])
        if not _is_details(usage[key]):
            notes.note(faults.use.DETAILS, {key: usage[key]})
    return Usage(prompt, completion, total, more)


def read_timings(timings: Json) -> Usage | None:
    """The counts of llama.cpp's timings, which it can give with each token; None where they are not there."""
    fresh, cached, completion = (_count(timings.get(name)) for name in ("prompt_n", "cache_n", "predicted_n"))
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
        **usage.more,
    }


def is_zero(usage: Usage) -> bool:
    """Whether it is a placeholder: no real request counts nothing."""
    return usage.prompt_tokens == usage.completion_tokens == 0


def _count(value: object) -> int | None:
    if type(value) is int or (isinstance(value, float) and value.is_integer()):
        return int(value) if 0 <= value < _MOST else None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < len(str(_MOST)):
        return int(value)
    return None


def _details(value: object) -> object:
    """A details object with counts as integers where it has them as text; all else as it is."""
    if not isinstance(value, dict):
        return value
    return {
        key: count if isinstance(item, str) and (count := _count(item)) is not None else item
        for key, item in value.items()
    }


def _is_details(value: object) -> bool:
    return isinstance(value, dict) and all(type(count) is int for count in value.values())
