"""Usage in the words of the Responses dialect."""

from welldone.wire.counts import read_usage
from welldone.wire.events import Json, Usage
from welldone.wire.lenient import as_object
from welldone.wire.notes import Notes

_NAMES = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "prompt_tokens_details": "input_tokens_details",
    "completion_tokens_details": "output_tokens_details",
}
"""Chat's words for the same things."""
_DETAILS = {"input_tokens_details": "cached_tokens", "output_tokens_details": "reasoning_tokens"}


def usage_object(usage: Usage) -> Json:
    """Usage as OpenAI writes it here, with its unknown members; details that the upstream did not send are 0."""
    read, written = (as_object(usage.more.get(name)) for name in ("prompt_tokens_details", "completion_tokens_details"))
    counts: Json = {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": _whole_details(read, "cached_tokens", "cache_write_tokens"),
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": _whole_details(written, "reasoning_tokens"),
        "total_tokens": usage.total_tokens,
    }
    return {name: value for name, value in usage.more.items() if name not in _NAMES} | counts


def _whole_details(details: Json, *names: str) -> Json:
    """Details with these counts as integers: Codex fails where one is missing or null."""
    return details | {name: details[name] if type(details.get(name)) is int else 0 for name in names}


def read_counts(told: Json) -> Usage | None:
    """The counts of a usage object, in the words of either dialect; None where they cannot be known."""
    renamed = {name: told.get(ours, told.get(name)) for name, ours in _NAMES.items() if ours in told or name in told}
    return read_usage(renamed | {"total_tokens": told.get("total_tokens")}, Notes())


def whole_usage(told: Json, usage: Usage) -> Json:
    """A usage object with all that it must have, and all else that was told."""
    if has_counts(told):
        return told
    ours = usage_object(usage)
    details = {name: as_object(told.get(name)) | ours[name] for name in _DETAILS}
    return {key: value for key, value in told.items() if key not in _NAMES} | ours | details


def has_counts(told: Json) -> bool:
    """Whether a usage object has all that it must have."""
    counts = [told.get(name) for name in ("input_tokens", "output_tokens", "total_tokens")]
    counts += [as_object(told.get(name)).get(detail) for name, detail in _DETAILS.items()]
    return all(type(count) is int for count in counts)
