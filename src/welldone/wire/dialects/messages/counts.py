"""Usage in Anthropic's words: tokens that were read from a cache are counted apart."""

from collections.abc import Mapping

from welldone.wire.events import Json, Usage
from welldone.wire.unicode import scrub_object

USAGE_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
_CHAT_DETAIL_FIELDS = frozenset({"prompt_tokens_details", "completion_tokens_details"})
"""Details in chat's words: those that Anthropic has a word for are translated."""
_MAX_SAFE_INTEGER = 2**53  # what every client can hold in a number


def anthropic_usage_object(usage: Usage | None) -> Json:
    """Tokens as Anthropic counts them: those of the prompt that were cached stand apart. Unknown is 0.

    Unknown members are carried on.
    """
    if usage is None:
        return {
            "input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        }
    cached = min(_detail(usage, "prompt_tokens_details", "cached_tokens") or 0, usage.prompt_tokens)
    counts: Json = {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    }
    thought = _detail(usage, "completion_tokens_details", "reasoning_tokens")
    if thought is not None:
        counts["output_tokens_details"] = {"thinking_tokens": thought}
    return {name: value for name, value in usage.extra_fields.items() if name not in _CHAT_DETAIL_FIELDS} | counts


def usage_from_counts(counted: Mapping[str, int]) -> Usage | None:
    """The same counts in our words; None while they are not known."""
    fresh, written, cached, completion = (counted.get(name) for name in USAGE_COUNTS)
    if fresh is None or completion is None:
        return None
    prompt = fresh + (written or 0) + (cached or 0)
    return Usage(prompt, completion, prompt + completion, {"prompt_tokens_details": {"cached_tokens": cached or 0}})


def valid_counts(usage: Json) -> Json:
    """A usage object without counts that are none."""
    bad = [name for name in USAGE_COUNTS if name in usage and not _is_count(usage[name])]
    nulls = [name for name in bad if usage[name] is None and name.startswith("cache")]
    return {name: value for name, value in scrub_object(usage).items() if name not in bad or name in nulls}


def with_default_counts(usage: Json, **counts: int) -> Json:
    """A usage object that has these counts, if it had others or none."""
    return usage | {name: count for name, count in counts.items() if name not in usage}


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MAX_SAFE_INTEGER


def _detail(usage: Usage, group: str, name: str) -> int | None:
    details = usage.extra_fields.get(group)
    count = details.get(name) if isinstance(details, dict) else None
    return count if type(count) is int and count >= 0 else None
