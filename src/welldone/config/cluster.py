"""Settings of a Ray cluster: replicas, their resources, and autoscaling. The names are Ray's."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from welldone.config.settings import HOUR_S, Setting, setting_group

setting = setting_group(Setting, "Scale")

_REPLICAS = 10_000  # of one kind in one cluster
_CPUS, _GPUS = 1_024, 64  # of one machine
_STREAMS = 100_000


@dataclass(frozen=True, kw_only=True)
class _ReplicaScale:
    min_replicas: int = setting(1, "minimum number of replicas", limits=(1, _REPLICAS))
    max_replicas: int = setting(1, "maximum number of replicas", limits=(1, _REPLICAS))
    num_cpus: float = setting(1.0, "CPUs per replica", limits=(0, _CPUS))


@dataclass(frozen=True, kw_only=True)
class FrontScale(_ReplicaScale):
    """Replicas of the HTTP front end."""

    # At 30 tokens/s a front replica and Ray's proxy together use one core for 27 to 37 streams
    streams: int = setting(50, "target number of streams per replica for autoscaling", limits=(1, _STREAMS))
    port: int = setting(
        0,
        "port on which each front replica listens on its own node, to bypass Ray's proxy; 0: none",
        limits=(0, 65_535),
    )


@dataclass(frozen=True, kw_only=True)
class EngineScale(_ReplicaScale):
    """Replicas of a model's engine."""

    num_gpus: float = setting(0.0, "GPUs per replica", limits=(0, _GPUS))
    streams: int | None = setting(
        None, "target number of streams per replica for autoscaling", limits=(1, _STREAMS), unset="the model's slots"
    )
    sticky: str = setting(
        "none",
        "which requests go to the same replica while it is healthy, for its prompt cache",
        choices="none key conversation",
    )


@dataclass(frozen=True, kw_only=True)
class ScaleSettings:
    """Settings of the cluster."""

    # Loading an engine takes several seconds more
    upscale_delay_s: float = setting(5.0, "seconds of high load before replicas are added", limits=(0, HOUR_S))
    # Longer than the pause between two turns of a chat
    downscale_delay_s: float = setting(120.0, "seconds of low load before replicas are removed", limits=(0, HOUR_S))
    look_back_s: float = setting(
        15.0, "seconds over which the load is averaged; Ray samples it every 10", limits=(1, HOUR_S)
    )
    front: FrontScale = FrontScale()
    engine: EngineScale = EngineScale()
    """Settings for models without a table of their own."""
    engines: Mapping[str, EngineScale] = field(default_factory=dict)
    """By name of the model."""

    def engine_of(self, model: str) -> EngineScale:
        """The settings of a model's engine replicas."""
        return self.engines.get(model, self.engine)
