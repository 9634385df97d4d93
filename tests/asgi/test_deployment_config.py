"""Configuration of replicas, deployment names, the autoscaling policy and the replica registry."""

import dataclasses
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.table import table
from welldone.cluster import replica_registry
from welldone.cluster.deployment_config import (
    STREAMS_METRIC,
    autoscale_by_streams,
    deployment_name,
    dynamic_upstream_name,
    dynamic_upstreams_of,
    engine_config,
    front_config,
)
from welldone.config.model import ModelSettings
from welldone.config.server import Config, EngineScale, KeySettings, LimitsSettings, ScaleSettings, ServeSettings
from welldone.config.upstream import UpstreamSettings
from welldone.gateway.registry import UpstreamRegistry

LARGE = ModelSettings(name="org/large", command=("vllm", "{port}"), aliases=("big",), queue_wait_s=7.0)
SMALL = ModelSettings(name="org-large", command=("llama", "{port}"))
SECRETS = ["sk-of-clients", "sk-upstream-key", "sk-of-a-name", "sk-of-lab", "sk-in-a-header", "redis-password"]
CONFIG = Config(
    server=ServeSettings(
        port=9000,
        api_keys=("sk-of-clients",),
        upstream_key="sk-upstream-key",
        requests_per_minute=7,
        tokens_per_minute=7,
        workers=4,
        max_loaded=2,
        drain_s=9.0,
        first_byte_s=11.0,
        cors_origins=("https://a.example",),
        unknown_tools="ignore",
    ),
    models=(LARGE, SMALL),
    upstreams=(
        UpstreamSettings(name="lab", url="http://lab/v1", key="sk-of-lab", headers={"x-key": "sk-in-a-header"}),
        UpstreamSettings(name="org-large-1", url="http://other/v1"),
    ),
    keys=(KeySettings(name="ann", key="sk-of-a-name"),),
    routes={"fast": ("org/large",)},
    limits=LimitsSettings(store="redis://:redis-password@localhost/0"),
    scale=ScaleSettings(
        engine=EngineScale(max_replicas=3), engines={"org-large": EngineScale(max_replicas=2, sticky="key")}
    ),
)


@pytest.mark.parametrize("model", CONFIG.models)
def test_the_configuration_of_an_engine_contains_no_secrets(model: ModelSettings) -> None:
    replica_config = engine_config(CONFIG, model)
    pickled = pickle.dumps(replica_config).decode("latin-1")
    assert [secret for secret in SECRETS if secret in pickled] == []
    assert replica_config.secrets == ()


def test_the_test_configuration_contains_all_secrets() -> None:
    pickled = pickle.dumps(CONFIG).decode("latin-1")
    assert [secret for secret in SECRETS if secret not in pickled] == []


def test_an_engine_has_one_preloaded_model_and_no_client_limits() -> None:
    replica_config = engine_config(CONFIG, LARGE)
    (model,) = replica_config.models
    assert model == dataclasses.replace(LARGE, preload=True, idle_unload_s=0.0)
    assert (
        replica_config.upstreams,
        replica_config.keys,
        dict(replica_config.routes),
        replica_config.limits.store,
    ) == ((), (), {}, None)
    server = replica_config.server
    assert (server.port, server.workers, server.requests_per_minute, server.tokens_per_minute) == (0, 1, 0, 0)
    assert not server.no_api_key
    assert (server.drain_s, server.first_byte_s) == (9.0, 11.0)


def test_an_engine_inherits_only_server_settings_that_apply_to_it() -> None:
    inherited = {
        field.name
        for field in dataclasses.fields(ServeSettings)
        if getattr(engine_config(CONFIG, LARGE).server, field.name) == getattr(CONFIG.server, field.name)
    }
    assert {"drain_s", "first_byte_s", "idle_s", "body_limit_bytes"} <= inherited
    assert inherited.isdisjoint({"port", "api_keys", "upstream_key", "workers", "unknown_tools", "cors_origins"})


def test_a_front_has_dynamic_upstreams_for_all_engines_and_the_configured_ones() -> None:
    replica_config = front_config(CONFIG)
    assert replica_config.models == ()
    assert (replica_config.keys, replica_config.routes, replica_config.limits, replica_config.server) == (
        CONFIG.keys,
        CONFIG.routes,
        CONFIG.limits,
        CONFIG.server,
    )
    names = [upstream.name for upstream in replica_config.upstreams]
    assert names == ["org/large/1", "org/large/2", "org/large/3", "org-large/1", "org-large/2", "lab", "org-large-1"]
    first, small = replica_config.upstreams[0], replica_config.upstreams[3]
    assert first.is_dynamic
    assert (first.models, first.queue_wait_s, first.sticky) == (("org/large", "big"), 7.0, "none")
    assert (small.models, small.sticky) == (("org-large",), "key")
    assert not replica_config.upstreams[-1].is_dynamic


def test_names_of_similar_models_are_unique() -> None:
    models = ["a/b", "a-b", "a b", "a-b-1", "é", "ü", "a", "a/b/1"]
    upstream_names = [dynamic_upstream_name(model, number) for model in models for number in range(1, 12)]
    assert len(set(upstream_names)) == len(upstream_names)
    names = [deployment_name(model, number) for number, model in enumerate(models, 1)]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() and name.isascii() for name in names)


def test_model_names_resolve_to_dynamic_upstreams() -> None:
    replica_config = front_config(CONFIG)
    upstreams = UpstreamRegistry(replica_config.upstreams, replica_config.routes)
    for name in ("org/large", "big", "fast"):
        found = upstreams.resolve(name)
        assert found is not None
        assert [member.upstream.name for member in cast("Any", found).members] == [
            upstream.name for upstream in dynamic_upstreams_of(CONFIG, LARGE)
        ]


@pytest.mark.parametrize("make", [front_config, lambda config: engine_config(config, LARGE)])
def test_configurations_can_be_pickled(make: Any) -> None:  # noqa: ANN401 - a function or a lambda
    replica_config = make(CONFIG)
    assert pickle.loads(pickle.dumps(replica_config)) == replica_config


def context(metrics: dict[str, Any] | None, target: float) -> Any:  # noqa: ANN401 - a fake of Ray's context
    return SimpleNamespace(aggregated_metrics=metrics, config=SimpleNamespace(target_ongoing_requests=target))


@table(
    ("counts", "target", "expected"),
    [([], 4, 1), ([0, 0], 4, 1), ([4], 4, 1), ([4, 0.1], 4, 2), ([4, 4], 4, 2), ([9], 4, 3), ([1, 1, 1], 1, 3)],
)
def test_the_number_of_replicas_follows_the_streams(counts: list[float], target: float, expected: int) -> None:
    metrics = {STREAMS_METRIC: {str(number): count for number, count in enumerate(counts)}}
    assert autoscale_by_streams(context(metrics, target)) == (expected, {})


@pytest.mark.parametrize("metrics", [None, {}, {"else": {"a": 9.0}}])
def test_without_metrics_there_is_one_replica(metrics: dict[str, Any] | None) -> None:
    assert autoscale_by_streams(context(metrics, 4)) == (1, {})


def test_a_subscriber_gets_the_current_replicas_and_all_changes() -> None:
    updates: list[Any] = []
    replica_registry.publish("unit-test", {"a": {"port": 1}})
    replica_registry.subscribe("unit-test", updates.append)
    replica_registry.publish("unit-test", {"b": {"port": 2}})
    replica_registry.publish("unit-test-other", {"c": {"port": 3}})
    assert updates == [{"a": {"port": 1}}, {"b": {"port": 2}}]


def test_an_early_subscriber_gets_the_first_update() -> None:
    updates: list[Any] = []
    replica_registry.subscribe("unit-test-early", updates.append)
    assert updates == []
    replica_registry.publish("unit-test-early", {})
    assert updates == [{}]


def test_the_last_subscriber_replaces_earlier_ones() -> None:
    first: list[Any] = []
    second: list[Any] = []
    replica_registry.subscribe("unit-test-last", first.append)
    replica_registry.subscribe("unit-test-last", second.append)
    replica_registry.publish("unit-test-last", {})
    assert (first, second) == ([], [{}])


def test_a_front_behind_rays_proxy_has_no_tls() -> None:
    server = ServeSettings(ssl_cert_file=Path("cert.pem"), ssl_key_file=Path("key.pem"))
    replica_config = front_config(dataclasses.replace(CONFIG, server=server)).server
    assert (replica_config.ssl_cert_file, replica_config.ssl_key_file) == (None, None)
