"""The probes, grouped by topic. `PROBES_BY_DIALECT` lists those of each dialect in order."""

from collections.abc import Mapping

from welldone.check.probes import dialects, errors, http, limits, text, timing, tools
from welldone.check.session import Probe

_COMMON_PROBES: tuple[Probe, ...] = (*http.CORS_PROBES, *timing.TIMING_PROBES)
CHAT_PROBES: tuple[Probe, ...] = (
    *(*text.TEXT_PROBES, *text.USAGE_PROBES, *text.CHOICE_PROBES, *limits.LIMIT_PROBES, *limits.STOP_PROBES),
    *(*text.LOGPROB_PROBES, *text.STREAM_EQUALITY_PROBES, *tools.TOOL_PROBES, *text.SCHEMA_PROBES),
    *(*text.REASONING_PROBES, *errors.REQUEST_PROBES, *errors.BAD_REQUEST_PROBES, *dialects.COMPLETION_PROBES),
    *(*http.MODEL_LIST_PROBES, *_COMMON_PROBES),
)
"""Probes of chat and completions."""
_RESPONSES_PROBES: tuple[Probe, ...] = (
    *(*text.TEXT_PROBES, text.NUMBERS_PROBE, *limits.truncation_probes("resp-incomplete"), *tools.TOOL_PROBES),
    *(*dialects.RESPONSES_PROBES, *text.REASONING_PROBES, *errors.RESPONSES_REQUEST_PROBES, *errors.BAD_INPUT_PROBES),
    *(*http.RESPONSE_ENDPOINT_PROBES, *http.MODEL_LIST_PROBES, *_COMMON_PROBES),
)
_MESSAGES_PROBES: tuple[Probe, ...] = (
    *(*text.TEXT_PROBES, text.NUMBERS_PROBE, *limits.truncation_probes("msg-max-tokens"), *tools.TOOL_PROBES),
    *(*dialects.MESSAGES_PROBES, *text.REASONING_PROBES, *errors.STREAM_FIELD_PROBES, *errors.BAD_REQUEST_PROBES),
    *_COMMON_PROBES,
)
_GEMINI_PROBES: tuple[Probe, ...] = (
    *(*text.TEXT_PROBES, text.NUMBERS_PROBE, *limits.truncation_probes("gem-max-tokens"), *tools.TOOL_PROBES),
    *(*dialects.GEMINI_PROBES, *text.REASONING_PROBES, *errors.BAD_CONTENTS_PROBES),
    *_COMMON_PROBES,
)

PROBES_BY_DIALECT: Mapping[str, tuple[Probe, ...]] = {
    "chat": CHAT_PROBES,
    "responses": _RESPONSES_PROBES,
    "messages": _MESSAGES_PROBES,
    "gemini": _GEMINI_PROBES,
}
