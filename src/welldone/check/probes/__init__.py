"""The probes, one file for each thing that clients ask for. `PROBES` has them all, in the order in which they run."""

from welldone.check.probe import Probe
from welldone.check.probes import text

PROBES: tuple[Probe, ...] = (*text.PROBES,)
