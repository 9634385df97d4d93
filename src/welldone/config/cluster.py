"""Settings of a Ray cluster: replicas, their resources, and autoscaling. The names are Ray's."""

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
    """Replicas of the HTTP front end."""

    min_replicas: Annotated[int, Setting("", "minimum number of replicas", SCALE, limits=(1, _REPLICAS))] = 1
    max_replicas: Annotated[int, Setting("", "maximum number of replicas", SCALE, limits=(1, _REPLICAS))] = 1
    num_cpus: Annotated[float, Setting("", "CPUs per replica", SCALE, limits=(0, _CPUS))] = 1.0
    streams: Annotated[
        int, Setting("", "target number of streams per replica for autoscaling", SCALE, limits=(1, _STREAMS))
    ] = 50  # at 30 tokens/s a front replica and Ray's proxy together use one core for 27 to 37 streams
    port: Annotated[
        int,
        Setting(
            "",
            "port on which each front replica listens on its own node, to bypass Ray's proxy; 0: none",
            SCALE,
            limits=(0, 65_535),
        ),
    ] = 0


@dataclass(frozen=True, kw_only=True)
class EngineScale:
    """Replicas of a model's engine."""

    min_replicas: Annotated[int, Setting("", "minimum number of replicas", SCALE, limits=(1, _REPLICAS))] = 1
    max_replicas: Annotated[int, Setting("", "maximum number of replicas", SCALE, limits=(1, _REPLICAS))] = 1
    num_cpus: Annotated[float, Setting("", "CPUs per replica", SCALE, limits=(0, _CPUS))] = 1.0
    num_gpus: Annotated[float, Setting("", "GPUs per replica", SCALE, limits=(0, _GPUS))] = 0.0
    streams: Annotated[
        int | None,
        Setting(
            "",
            "target number of streams per replica for autoscaling",
            SCALE,
            limits=(1, _STREAMS),
            unset="the model's slots",
        ),
    ] = None
    sticky: Annotated[
        str,
        Setting(
            "",
            "which requests go to the same replica while it is healthy, for its prompt cache",
            SCALE,
            choices="none key conversation",
        ),
    ] = "none"


@dataclass(frozen=True, kw_only=True)
class ScaleSettings:
    """Settings of the cluster."""

    upscale_delay_s: Annotated[
        float, Setting("", "seconds of high load before replicas are added", SCALE, limits=(0, _HOUR_S))
    ] = 5.0  # loading an engine takes several seconds more
    downscale_delay_s: Annotated[
        float, Setting("", "seconds of low load before replicas are removed", SCALE, limits=(0, _HOUR_S))
    ] = 120.0  # longer than the pause between two turns of a chat
    look_back_s: Annotated[
        float,
        Setting("", "seconds over which the load is averaged; Ray samples it every 10", SCALE, limits=(1, _HOUR_S)),
    ] = 15.0
    front: FrontScale = FrontScale()
    engine: EngineScale = EngineScale()
    """Settings for models without a table of their own."""
    engines: Mapping[str, EngineScale] = field(default_factory=dict)
    """By name of the model."""

    def engine_of(self, model: str) -> EngineScale:
        """The settings of a model's engine replicas."""
        return self.engines.get(model, self.engine)
