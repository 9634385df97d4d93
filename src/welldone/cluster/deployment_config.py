"""What the settings of one server become on a cluster: those of the fronts, and those of each model's engines."""

import dataclasses
import re

from welldone.config.model import ModelSettings
from welldone.config.server import Config, ServeSettings
from welldone.config.upstream import UpstreamSettings

SHUTDOWN_MARGIN_S = 30.0
"""Beyond what running requests get at the end: for the last words, and for engines to end."""

_PROBE_INTERVAL_S = 2.0  # between looks at a replica: Ray tells who came and who left, and this finds who hangs
_REPLICA_CONCURRENCY = 4_096  # of one front at one engine, where they wait in one queue for all fronts
_UNASSIGNED_URL = "http://nobody.invalid/v1"  # where a place is before somebody takes it
_SLUG = re.compile(r"[^A-Za-z0-9]+")


def dynamic_upstream_name(model: str, number: int) -> str:
    """What a place of a model's replica is called in logs, counts and on the page."""
    return f"{model}/{number}"  # no upstream of the user's has a `/` in its name


def deployment_name(model: str, number: int) -> str:
    """What Ray calls the engines of a model; Ray allows less than we do, so the number keeps names apart."""
    return f"engine-{_SLUG.sub('-', model).strip('-') or 'model'}-{number}"


def engine_config(config: Config, model: ModelSettings) -> Config:
    """The settings of a server with this model alone. Fronts ask it: limits and keys of clients are theirs."""
    alone = dataclasses.replace(model, preload=True, idle_unload_s=0.0)
    defaults = ServeSettings()
    server = dataclasses.replace(
        config.server,
        config=None,
        port=0,
        ssl_cert_file=None,
        ssl_key_file=None,
        max_loaded=0,
        no_page=True,
        upstreams=(),
        upstream_key=None,
        record=None,
        report=False,
        workers=1,
        api_keys=(),
        api_key_file=None,
        no_api_key=False,
        allowed_hosts=(),
        cors_origins=(),
        connections=max(_REPLICA_CONCURRENCY, defaults.connections),
        requests_per_minute=0,
        tokens_per_minute=0,
        unknown_tools=defaults.unknown_tools,
    )
    return Config(server=server, models=(alone,))


def front_config(config: Config) -> Config:
    """The settings of a gateway before all engines, and before the upstreams that the user has."""
    places = tuple(place for model in config.models for place in dynamic_upstreams_of(config, model))
    server = config.server
    if not config.scale.front.port:  # then clients come through Ray's proxy alone, and it is the one that speaks TLS
        server = dataclasses.replace(server, ssl_cert_file=None, ssl_key_file=None)
    return dataclasses.replace(
        config, server=server, models=(), upstreams=(*places, *config.upstreams), model_locations={}
    )


def dynamic_upstreams_of(config: Config, model: ModelSettings) -> list[UpstreamSettings]:
    """The places of a model's replicas."""
    wanted = config.scale.engine_of(model.name)
    return [
        UpstreamSettings(
            name=dynamic_upstream_name(model.name, number),
            url=_UNASSIGNED_URL,
            models=(model.name, *model.aliases),
            limit=_REPLICA_CONCURRENCY,
            queue=0,
            queue_wait_s=model.queue_wait_s,
            n="native",
            sticky=wanted.sticky,
            health="/health",
            probe_s=_PROBE_INTERVAL_S,
            is_dynamic=True,
        )
        for number in range(1, wanted.max_replicas + 1)
    ]
