"""Finish reasons: the documented values of each provider, and the OpenAI value for each.

An interrupted answer is a failure, and so is a value that no provider documents: only a documented value for a natural
end becomes `stop`. `finish_reasons.json` has the table, and the rule page fin-closed-enum prints it.
"""

from collections.abc import Mapping
from pkgutil import get_data

import msgspec

from welldone.core.envelope import Endpoint
from welldone.core.events import Failure
from welldone.core.fields import incomplete_stream_failure
from welldone.core.lenient_json import clean_unicode
from welldone.core.repair_log import format_json, shorten

FAILURE_OUTCOME = "failure"
"""The answer was interrupted: it is incomplete, and no finish reason of OpenAI applies."""
_EXCERPT_CHARACTERS = 100  # of a value or message of the upstream in an error
_NO_WORDS: Mapping[str, str] = {}


class ProviderFinishReasons(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Documented finish reasons of a provider, by their OpenAI value."""

    name: str
    source: str
    """Documentation of the values."""
    note: str = ""
    stop: tuple[str, ...] = ()
    length: tuple[str, ...] = ()
    tool_calls: tuple[str, ...] = ()
    content_filter: tuple[str, ...] = ()
    failure: tuple[str, ...] = ()


# One table for all providers, by value and regardless of case: a value has one meaning, whoever sends it (a test checks
# that). The providers are the documentation. Streams of the Messages dialect keep a value that is not listed here.
PROVIDERS = msgspec.json.decode(
    get_data("welldone.core", "finish_reasons.json") or b"", type=tuple[ProviderFinishReasons, ...]
)
OUTCOMES = ("stop", "length", "tool_calls", "content_filter", FAILURE_OUTCOME)

_OUTCOME_BY_WORD: dict[str, str] = {
    word.lower(): outcome for provider in PROVIDERS for outcome in OUTCOMES for word in getattr(provider, outcome)
}


def outcome_of(word: str) -> str | None:
    """Return the outcome of a finish reason, one of OUTCOMES; None if no provider documents it."""
    word = word.strip().lower()
    known = _OUTCOME_BY_WORD.get(word)
    if known is not None:
        return known
    prefix = _OUTCOME_BY_WORD.get(word.partition(":")[0].rstrip())
    return prefix if prefix in ("content_filter", FAILURE_OUTCOME) else None


def finish_word(reason: object) -> str | None:
    """Return a finish reason of any JSON type as a string; None if it shows that the choice continues."""
    if isinstance(reason, dict) and isinstance(reason.get("type"), str):
        reason = reason["type"]  # SGLang
    if not reason or reason == "null" or reason != reason:
        return None
    return clean_unicode(reason) if isinstance(reason, str) else format_json(reason)


def finish_reason_for(word: str, endpoint: Endpoint, own: Mapping[str, str] = _NO_WORDS) -> str | None:
    """Return the OpenAI finish reason; None if the answer counts as interrupted. `own`: words of this upstream."""
    outcome = own.get(word) or outcome_of(word)
    return outcome if outcome in endpoint.finish_reasons else None


def interrupted_failure(word: str, reason: object = None, *, field: str = "finish_reason") -> Failure:
    """Failure of an upstream that ended its answer with `word`, which was read from the JSON value `reason`."""
    is_known = outcome_of(word) is not None
    unknown = "" if is_known else "the unknown "
    shown = shorten(word, _EXCERPT_CHARACTERS)
    key = shown if shown.isascii() and shown.isidentifier() else format_json(shown)  # of TOML
    advice = f'; if it ends a whole answer, set finish_reasons = {{{key} = "stop"}} in [upstreams.NAME]'
    advice = "" if is_known or field != "finish_reason" else advice  # the other dialects have no such setting
    message = reason.get("message") if isinstance(reason, dict) else None
    detail = f": {shorten(clean_unicode(message), _EXCERPT_CHARACTERS)}" if isinstance(message, str) and message else ""
    return incomplete_stream_failure(f"the server ended the answer with {unknown}{field} {shown!r}{detail}{advice}")
