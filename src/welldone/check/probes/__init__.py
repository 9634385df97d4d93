"""The probes, one file for each thing that clients ask for. `PROBES_OF` has all of a dialect, in their order."""

from collections.abc import Mapping

from welldone.check.probe import Probe
from welldone.check.probes import (
    choices,
    completions,
    flush,
    http,
    leaving,
    limits,
    logprobs,
    long,
    messages,
    mistakes,
    models,
    reasoning,
    requests,
    responses,
    same,
    schema,
    stops,
    text,
    tools,
    usage,
)

CHAT_PROBES: tuple[Probe, ...] = (
    *text.TEXT_PROBES,
    *usage.USAGE_PROBES,
    *choices.CHOICE_PROBES,
    *limits.LIMIT_PROBES,
    *stops.STOP_PROBES,
    *logprobs.LOGPROB_PROBES,
    *same.STREAM_EQUALITY_PROBES,
    *tools.TOOL_PROBES,
    *schema.SCHEMA_PROBES,
    *reasoning.REASONING_PROBES,
    *requests.REQUEST_PROBES,
    *mistakes.BAD_REQUEST_PROBES,
    *completions.COMPLETION_PROBES,
    *models.MODEL_LIST_PROBES,
    *http.CORS_PROBES,
    *flush.FLUSH_PROBES,
    *long.PREFILL_PROBES,
    *leaving.DISCONNECT_PROBES,
)
"""Those of chat and completions."""

_COMMON_PROBES: tuple[Probe, ...] = (
    *http.CORS_PROBES,
    *flush.FLUSH_PROBES,
    *long.PREFILL_PROBES,
    *leaving.DISCONNECT_PROBES,
)

PROBES_BY_DIALECT: Mapping[str, tuple[Probe, ...]] = {
    "chat": CHAT_PROBES,
    "responses": (
        *text.TEXT_PROBES,
        text.NUMBERS_PROBE,
        *limits.truncation_probes(responses.RESP_INCOMPLETE),
        *tools.TOOL_PROBES,
        *responses.RESPONSES_PROBES,
        *reasoning.REASONING_PROBES,
        *requests.RESPONSES_REQUEST_PROBES,
        *mistakes.BAD_INPUT_PROBES,
        *models.MODEL_LIST_PROBES,
        *_COMMON_PROBES,
    ),
    "messages": (
        *text.TEXT_PROBES,
        text.NUMBERS_PROBE,
        *limits.truncation_probes(messages.MSG_MAX_TOKENS),
        *tools.TOOL_PROBES,
        *messages.MESSAGES_PROBES,
        *reasoning.REASONING_PROBES,
        *requests.STREAM_FIELD_PROBES,
        *mistakes.BAD_REQUEST_PROBES,
        *_COMMON_PROBES,
    ),
}
"""By dialect."""
