"""Configuration of front and engine replicas, derived from that of a single server, and their autoscaling policy.

Ray's controller imports this module by name.
"""

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

from welldone.config.model import ModelSettings
from welldone.config.server import Config, ServeSettings
from welldone.config.upstream import UpstreamSettings

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext


SHUTDOWN_MARGIN_S = 30.0
"""Added to the drain time of requests: for final events, and for engines to end."""

_PROBE_INTERVAL_S = 2.0  # probes find replicas that hang; Ray reports those that start and end
_REPLICA_CONCURRENCY = 4_096  # of one front at one engine, which has one queue for all fronts
_UNASSIGNED_URL = "http://nobody.invalid/v1"  # of a dynamic upstream without a replica (RFC 2606: .invalid)
_FRONT_SETTINGS = (
    *("config", "ssl_cert_file", "ssl_key_file", "max_loaded", "upstreams", "upstream_key", "record", "report"),
    *("workers", "api_keys", "api_key_file", "no_api_key", "allowed_hosts", "cors_origins", "requests_per_minute"),
    *("tokens_per_minute", "unknown_tools"),
)
"""Settings of the fronts only; engines have the defaults."""
_SLUG = re.compile(r"[^A-Za-z0-9]+")


def dynamic_upstream_name(model: str, number: int) -> str:
    """Return the name of a dynamic upstream in logs, metrics and the inspector."""
    return f"{model}/{number}"  # names of configured upstreams cannot contain a slash


def deployment_name(model: str, number: int) -> str:
    """Return the Ray deployment name of a model. Ray allows fewer characters, so the number makes it unique."""
    return f"engine-{_SLUG.sub('-', model).strip('-') or 'model'}-{number}"


def engine_config(config: Config, model: ModelSettings) -> Config:
    """Return the configuration of a server with this model only; fronts apply the clients' keys and limits."""
    only_model = dataclasses.replace(model, preload=True, idle_unload_s=0.0)
    defaults = ServeSettings()
    own = {name: getattr(defaults, name) for name in _FRONT_SETTINGS}
    connections = max(_REPLICA_CONCURRENCY, defaults.connections)
    server = dataclasses.replace(config.server, port=0, no_page=True, connections=connections, **own)
    return Config(server=server, models=(only_model,))


def front_config(config: Config) -> Config:
    """Return the configuration of a gateway to all engine replicas and all configured upstreams."""
    dynamic = tuple(upstream for model in config.models for upstream in dynamic_upstreams_of(config, model))
    server = config.server
    if not config.scale.front.port:  # clients connect only to Ray's proxy, which terminates TLS
        server = dataclasses.replace(server, ssl_cert_file=None, ssl_key_file=None)
    return dataclasses.replace(
        config, server=server, models=(), upstreams=(*dynamic, *config.upstreams), model_locations={}
    )


def dynamic_upstreams_of(config: Config, model: ModelSettings) -> list[UpstreamSettings]:
    """Return the dynamic upstreams for the replicas of a model."""
    scale = config.scale.engine_of(model.name)
    return [
        UpstreamSettings(
            name=dynamic_upstream_name(model.name, number),
            url=_UNASSIGNED_URL,
            models=(model.name, *model.aliases),
            limit=_REPLICA_CONCURRENCY,
            queue=0,
            queue_wait_s=model.queue_wait_s,
            n="native",
            sticky=scale.sticky,
            health="/health",
            probe_s=_PROBE_INTERVAL_S,
            is_dynamic=True,
        )
        for number in range(1, scale.max_replicas + 1)
    ]


# Autoscaling of engine replicas, by the number of streams.

STREAMS_METRIC = "streams"
"""Metric that each engine replica reports: answers in progress and queued."""


def autoscale_by_streams(context: "AutoscalingContext") -> tuple[int, dict[str, Any]]:
    """Return the number of replicas for the target streams per replica. Ray applies bounds and delays."""
    metrics = (context.aggregated_metrics or {}).get(STREAMS_METRIC, {})
    streams = sum(metrics.values())
    target = context.config.target_ongoing_requests
    return max(1, math.ceil(streams / target)), {}
