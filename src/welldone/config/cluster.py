"""What can be set for a cluster: how many of each there are, and what each takes of a machine. The names are Ray's."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from welldone.config.settings import Setting

SCALE = "Scale"

_REPLICAS = 10_000  # of one kind in one cluster
_CPUS, _GPUS = 1_024, 64  # of one machine
_STREAMS = 100_000
_HOUR_S = 3_600.0


@dataclass(frozen=True, kw_only=True)
class FrontScale:
    """Those who speak to clients."""

    min_replicas: Annotated[int, Setting("", "how many there are at least", SCALE, limits=(1, _REPLICAS))] = 1
    max_replicas: Annotated[int, Setting("", "how many there are at most", SCALE, limits=(1, _REPLICAS))] = 1
    num_cpus: Annotated[float, Setting("", "CPUs that each takes", SCALE, limits=(0, _CPUS))] = 1.0
    streams: Annotated[
        int, Setting("", "streams that each should have: with more of them there are more", SCALE, limits=(1, _STREAMS))
    ] = 50  # at 30 tokens a second a front and Ray's proxy, two processes, take one core for 27 to 37 streams
    port: Annotated[
        int,
        Setting(
            "",
            "a port on which each listens itself, on its own machine, so that no stream goes through Ray; 0: none",
            SCALE,
            limits=(0, 65_535),
        ),
    ] = 0


@dataclass(frozen=True, kw_only=True)
class EngineScale:
    """Those who run a model."""

    min_replicas: Annotated[int, Setting("", "how many there are at least", SCALE, limits=(1, _REPLICAS))] = 1
    max_replicas: Annotated[int, Setting("", "how many there are at most", SCALE, limits=(1, _REPLICAS))] = 1
    num_cpus: Annotated[float, Setting("", "CPUs that each takes", SCALE, limits=(0, _CPUS))] = 1.0
    num_gpus: Annotated[float, Setting("", "GPUs that each takes", SCALE, limits=(0, _GPUS))] = 0.0
    streams: Annotated[
        int | None,
        Setting(
            "",
            "streams that each should have: with more of them there are more replicas",
            SCALE,
            limits=(1, _STREAMS),
            unset="the model's slots",
        ),
    ] = None
    sticky: Annotated[
        str,
        Setting(
            "",
            "what stays with one replica while it is well, for its prompt cache",
            SCALE,
            choices="none key conversation",
        ),
    ] = "none"


@dataclass(frozen=True, kw_only=True)
class ScaleSettings:
    """The cluster."""

    upscale_delay_s: Annotated[
        float, Setting("", "seconds of too many streams before there are more replicas", SCALE, limits=(0, _HOUR_S))
    ] = 5.0  # an engine takes some seconds to load: who waits before that waits twice
    downscale_delay_s: Annotated[
        float, Setting("", "seconds of few streams before there are fewer replicas", SCALE, limits=(0, _HOUR_S))
    ] = 120.0  # what was loaded is kept over a pause between two questions
    look_back_s: Annotated[
        float, Setting("", "seconds over which streams are averaged; Ray counts every 10", SCALE, limits=(1, _HOUR_S))
    ] = 15.0
    front: FrontScale = FrontScale()
    engine: EngineScale = EngineScale()
    """What holds for all models that have no table of their own."""
    engines: Mapping[str, EngineScale] = field(default_factory=dict)
    """By the names of models."""

    def engine_of(self, model: str) -> EngineScale:
        """What holds for a model."""
        return self.engines.get(model, self.engine)
