"""Usage in the words of the Responses dialect."""

from welldone.wire.counts import read_usage
from welldone.wire.events import Json, Usage
from welldone.wire.lenient import as_object
from welldone.wire.notes import RepairLog

_USAGE_FIELD_NAMES = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "prompt_tokens_details": "input_tokens_details",
    "completion_tokens_details": "output_tokens_details",
}
"""Chat's words for the same things."""
_USAGE_DETAILS = {"input_tokens_details": "cached_tokens", "output_tokens_details": "reasoning_tokens"}


def responses_usage_object(usage: Usage) -> Json:
    """Usage as OpenAI writes it here, with its unknown members; details that the upstream did not send are 0."""
    read, written = (
        as_object(usage.extra_fields.get(name)) for name in ("prompt_tokens_details", "completion_tokens_details")
    )
    counts: Json = {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": _complete_details(read, "cached_tokens", "cache_write_tokens"),
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": _complete_details(written, "reasoning_tokens"),
        "total_tokens": usage.total_tokens,
    }
    return {name: value for name, value in usage.extra_fields.items() if name not in _USAGE_FIELD_NAMES} | counts


def _complete_details(details: Json, *names: str) -> Json:
    """Details with these counts as integers: Codex fails where one is missing or null."""
    return details | {name: details[name] if type(details.get(name)) is int else 0 for name in names}


def parse_responses_usage(usage: Json) -> Usage | None:
    """The counts of a usage object, in the words of either dialect; None where they cannot be known."""
    renamed = {
        name: usage.get(ours, usage.get(name))
        for name, ours in _USAGE_FIELD_NAMES.items()
        if ours in usage or name in usage
    }
    return read_usage(renamed | {"total_tokens": usage.get("total_tokens")}, RepairLog())


def complete_usage(upstream_usage: Json, usage: Usage) -> Json:
    """A usage object with all that it must have, and all else that was told."""
    if is_complete_usage(upstream_usage):
        return upstream_usage
    ours = responses_usage_object(usage)
    details = {name: as_object(upstream_usage.get(name)) | ours[name] for name in _USAGE_DETAILS}
    return {key: value for key, value in upstream_usage.items() if key not in _USAGE_FIELD_NAMES} | ours | details


def is_complete_usage(usage: Json) -> bool:
    """Whether a usage object has all that it must have."""
    counts = [usage.get(name) for name in ("input_tokens", "output_tokens", "total_tokens")]
    counts += [as_object(usage.get(name)).get(detail) for name, detail in _USAGE_DETAILS.items()]
    return all(type(count) is int for count in counts)
