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

PROBES: tuple[Probe, ...] = (
    *text.PROBES,
    *usage.PROBES,
    *choices.PROBES,
    *limits.PROBES,
    *stops.PROBES,
    *logprobs.PROBES,
    *same.PROBES,
    *tools.PROBES,
    *schema.PROBES,
    *reasoning.PROBES,
    *requests.PROBES,
    *mistakes.PROBES,
    *completions.PROBES,
    *models.PROBES,
    *http.PROBES,
    *flush.PROBES,
    *long.PROBES,
    *leaving.PROBES,
)
"""Those of chat and completions."""

_OF_ALL: tuple[Probe, ...] = (*http.PROBES, *flush.PROBES, *long.PROBES, *leaving.PROBES)

PROBES_OF: Mapping[str, tuple[Probe, ...]] = {
    "chat": PROBES,
    "responses": (
        *text.PROBES,
        text.NUMBERS,
        *limits.cut_probes(responses.INCOMPLETE),
        *tools.PROBES,
        *responses.PROBES,
        *reasoning.PROBES,
        *requests.OPEN,
        *mistakes.INPUT_PROBES,
        *models.PROBES,
        *_OF_ALL,
    ),
    "messages": (
        *text.PROBES,
        text.NUMBERS,
        *limits.cut_probes(messages.MAX_TOKENS),
        *tools.PROBES,
        *messages.PROBES,
        *reasoning.PROBES,
        *requests.FORMS,
        *mistakes.PROBES,
        *_OF_ALL,
    ),
}
"""By dialect."""
