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
    """Usage as OpenAI writes it here; details that nobody told are 0."""
    read, written = (as_object(usage.more.get(name)) for name in ("prompt_tokens_details", "completion_tokens_details"))
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0, **read},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0, **written},
        "total_tokens": usage.total_tokens,
    }


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
