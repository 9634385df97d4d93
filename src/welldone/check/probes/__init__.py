"""The probes, one file for each thing that clients ask for. `PROBES` has them all, in the order in which they run."""

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
    mistakes,
    models,
    reasoning,
    requests,
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
