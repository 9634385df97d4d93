"""The application that Ray Serve runs: a deployment of fronts, and one of engines for each model."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from welldone.cluster.deployment_config import SHUTDOWN_MARGIN_S, deployment_name, engine_config
from welldone.cluster.engine_replica import EngineReplica
from welldone.cluster.front_replica import FrontReplica
from welldone.config.model import ModelSettings
from welldone.config.server import Config
from welldone.config.settings import RawSetting
from welldone.server.access.keys import read_key_file
from welldone.server.access.origins import is_loopback
from welldone.server.config import read_config

FRONT = "front"
_QUEUE_FACTOR = 4  # so many times the streams that a front should have it may get while others are started
_REPLICA_ROUTER = "welldone.cluster.replica_router.Directory"
_AUTOSCALING_POLICY = "welldone.cluster.autoscaling:by_streams"
_HEALTH_CHECK_S = 5.0  # between Ray's looks at a replica, and for its answer


def app(args: Mapping[str, str]) -> Application:
    """What `serve run welldone.cluster:app config=welldone.toml` runs.

    Raises:
        SettingsError: the file is wrong; one line that says what to do.
        ValueError: there are no keys where there must be some.
    """
    given = {"config": RawSetting(str(args["config"]), "config=", Path.cwd())} if "config" in args else {}
    config = read_config(given, os.environ, folder=Path.cwd())
    return build_application(config, keys_of(config))


def keys_of(config: Config) -> list[str]:
    """The keys without a name that clients may send. One that is made here would be another one each time.

    Raises:
        ValueError: others can reach it, and there is no key; or the file of keys is wrong.
    """
    settings = config.server
    keys = list(settings.api_keys)
    if settings.api_key_file is not None:
        keys += read_key_file(settings.api_key_file, allows_weak=is_loopback(settings.host)).keys
    if not config.has_keys(keys) and not settings.no_api_key and not is_loopback(settings.host):
        raise ValueError("a cluster that others can reach needs a key: --api-key env:NAME, or --no-api-key")
    return keys


def build_application(config: Config, keys: Sequence[str]) -> Application:
    """The deployments of these settings.

    Raises:
        ValueError: fronts would have to speak TLS to clients, and not to Ray.
    """
    if config.scale.front.port and config.server.ssl_cert_file is not None:
        raise ValueError("TLS is for Ray's proxies: without [scale.front] port, or with a load balancer that speaks it")
    names = {model.name: deployment_name(model.name, number) for number, model in enumerate(config.models, 1)}
    engines = {model.name: _engine_deployment(config, model, names[model.name]) for model in config.models}
    wanted = config.scale.front
    deployment = serve.deployment(FrontReplica).options(
        name=FRONT,
        max_ongoing_requests=_QUEUE_FACTOR * wanted.streams,
        ray_actor_options={"num_cpus": wanted.num_cpus},
        autoscaling_config=AutoscalingConfig(
            min_replicas=wanted.min_replicas,
            max_replicas=wanted.max_replicas,
            target_ongoing_requests=wanted.streams,
            **_autoscaling_delays(config),
        ),
        **_lifecycle_options(config),
    )
    bound: Application = deployment.bind(config, tuple(keys), engines)
    return bound


def _engine_deployment(config: Config, model: ModelSettings, name: str) -> Application:
    wanted = config.scale.engine_of(model.name)
    deployment = serve.deployment(EngineReplica).options(
        name=name,
        ray_actor_options={"num_cpus": wanted.num_cpus, "num_gpus": wanted.num_gpus},
        request_router_config=RequestRouterConfig(request_router_class=_REPLICA_ROUTER),
        autoscaling_config=AutoscalingConfig(
            min_replicas=wanted.min_replicas,
            max_replicas=wanted.max_replicas,
            target_ongoing_requests=wanted.streams or model.slots,
            policy=AutoscalingPolicy(policy_function=_AUTOSCALING_POLICY),
            **_autoscaling_delays(config),
        ),
        **_lifecycle_options(config),
    )
    bound: Application = deployment.bind(engine_config(config, model))
    return bound


def _autoscaling_delays(config: Config) -> dict[str, Any]:
    scale = config.scale
    return {
        "upscale_delay_s": scale.upscale_delay_s,
        "downscale_delay_s": scale.downscale_delay_s,
        "look_back_period_s": scale.look_back_s,
    }


def _lifecycle_options(config: Config) -> dict[str, Any]:
    return {
        "graceful_shutdown_timeout_s": config.server.drain_s + SHUTDOWN_MARGIN_S,
        "graceful_shutdown_wait_loop_s": 0.5,
        "health_check_period_s": _HEALTH_CHECK_S,
        "health_check_timeout_s": _HEALTH_CHECK_S,
    }
