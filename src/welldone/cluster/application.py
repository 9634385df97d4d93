"""The Ray Serve application: one deployment of front replicas, and one of engine replicas per model."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ray import serve
from ray.serve import Application, Deployment
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from welldone.cluster.deployment_config import SHUTDOWN_MARGIN_S, deployment_name, engine_config
from welldone.cluster.replicas import EngineReplica, FrontReplica
from welldone.config.server import Config, EngineScale, FrontScale
from welldone.config.settings import RawSetting
from welldone.server.access.keys import read_key_file
from welldone.server.access.origins import is_loopback
from welldone.server.config import read_config

FRONT = "front"
_QUEUE_FACTOR = 4  # a front accepts this multiple of its target streams while others are being started
_REPLICA_ROUTER = "welldone.cluster.replica_router.ReplicaRouter"  # imported by Ray
_AUTOSCALING_POLICY = "welldone.cluster.deployment_config:autoscale_by_streams"  # imported by Ray
_HEALTH_CHECK_S = 5.0  # interval and timeout of Ray's health checks


def app(args: Mapping[str, str]) -> Application:
    """Build the application for `serve run welldone.cluster:app config=welldone.toml`.

    Raises:
        SettingsError: the configuration file is not valid.
        ValueError: a key is required and missing.
    """
    settings = {"config": RawSetting(str(args["config"]), "config=", Path.cwd())} if "config" in args else {}
    config = read_config(settings, os.environ, folder=Path.cwd())
    return build_application(config, keys_of(config))


def keys_of(config: Config) -> list[str]:
    """Return the unnamed API keys. None is generated, since every start would generate another one.

    Raises:
        ValueError: the server is reachable from other machines and has no key, or the key file is not valid.
    """
    settings = config.server
    keys = list(settings.api_keys)
    if settings.api_key_file is not None:
        keys += read_key_file(settings.api_key_file, allows_weak=is_loopback(settings.host))[0]
    if not config.has_keys(keys) and not settings.no_api_key and not is_loopback(settings.host):
        raise ValueError(
            "a cluster that is reachable from other machines needs a key: --api-key env:NAME, or --no-api-key"
        )
    return keys


def build_application(config: Config, keys: Sequence[str]) -> Application:
    """Build the deployments.

    Raises:
        ValueError: TLS and a port of the fronts are both configured.
    """
    if config.scale.front.port and config.server.ssl_cert_file is not None:
        raise ValueError(
            "TLS works with Ray's proxies only: remove [scale.front] port, or terminate TLS in a load balancer"
        )
    engines: dict[str, Application] = {}
    for number, model in enumerate(config.models, 1):
        scale = config.scale.engine_of(model.name)
        policy = AutoscalingPolicy(policy_function=_AUTOSCALING_POLICY)
        engine = _deployment(EngineReplica, config, scale, scale.streams or model.slots, policy=policy).options(
            name=deployment_name(model.name, number),
            ray_actor_options={"num_cpus": scale.num_cpus, "num_gpus": scale.num_gpus},
            request_router_config=RequestRouterConfig(request_router_class=_REPLICA_ROUTER),
        )
        engines[model.name] = engine.bind(engine_config(config, model))
    fronts = config.scale.front
    front = _deployment(FrontReplica, config, fronts, fronts.streams).options(
        name=FRONT, max_ongoing_requests=_QUEUE_FACTOR * fronts.streams, ray_actor_options={"num_cpus": fronts.num_cpus}
    )
    bound: Application = front.bind(config, tuple(keys), engines)
    return bound


def _deployment(
    replica: type, config: Config, scale: FrontScale | EngineScale, streams: int, **autoscaling: AutoscalingPolicy
) -> Deployment:
    """Return a deployment of replicas that Ray scales to so many streams per replica."""
    autoscaling_config = AutoscalingConfig(
        min_replicas=scale.min_replicas,
        max_replicas=scale.max_replicas,
        target_ongoing_requests=streams,
        upscale_delay_s=config.scale.upscale_delay_s,
        downscale_delay_s=config.scale.downscale_delay_s,
        look_back_period_s=config.scale.look_back_s,
        **autoscaling,
    )
    return serve.deployment(replica).options(
        autoscaling_config=autoscaling_config,
        graceful_shutdown_timeout_s=config.server.drain_s + SHUTDOWN_MARGIN_S,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=_HEALTH_CHECK_S,
        health_check_timeout_s=_HEALTH_CHECK_S,
    )
