"""What a cluster is made of: whose settings are whose, names, who is there, how many there should be."""

import dataclasses
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.table import table
from welldone.cluster import replica_registry
from welldone.cluster.autoscaling import STREAMS_METRIC, autoscale_by_streams
from welldone.cluster.deployment_config import (
    deployment_name,
    dynamic_upstream_name,
    dynamic_upstreams_of,
    engine_config,
    front_config,
)
from welldone.config.cluster import EngineScale, ScaleSettings
from welldone.config.model import ModelSettings
from welldone.config.server import Config, KeySettings, LimitsSettings, ServeSettings
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
def test_an_engine_knows_no_secret_of_others(model: ModelSettings) -> None:
    own = engine_config(CONFIG, model)
    written = pickle.dumps(own).decode("latin-1")
    assert [secret for secret in SECRETS if secret in written] == []
    assert own.secrets == ()


def test_the_secrets_of_this_test_are_those_that_there_are() -> None:
    written = pickle.dumps(CONFIG).decode("latin-1")
    assert [secret for secret in SECRETS if secret not in written] == []


def test_an_engine_has_one_model_always_loaded_and_leaves_limits_to_the_fronts() -> None:
    own = engine_config(CONFIG, LARGE)
    (model,) = own.models
    assert model == dataclasses.replace(LARGE, preload=True, idle_unload_s=0.0)
    assert (own.upstreams, own.keys, dict(own.routes), own.limits.store) == ((), (), {}, None)
    server = own.server
    assert (server.port, server.workers, server.requests_per_minute, server.tokens_per_minute) == (0, 1, 0, 0)
    assert not server.no_api_key
    assert (server.drain_s, server.first_byte_s) == (9.0, 11.0)


def test_every_field_that_an_engine_takes_over_was_thought_of() -> None:
    same = {
        field.name
        for field in dataclasses.fields(ServeSettings)
        if getattr(engine_config(CONFIG, LARGE).server, field.name) == getattr(CONFIG.server, field.name)
    }
    assert {"drain_s", "first_byte_s", "idle_s", "body_limit_bytes"} <= same
    assert same.isdisjoint({"port", "api_keys", "upstream_key", "workers", "unknown_tools", "cors_origins"})


def test_a_front_has_the_places_of_all_engines_and_what_the_user_has() -> None:
    own = front_config(CONFIG)
    assert own.models == ()
    assert (own.keys, own.routes, own.limits, own.server) == (CONFIG.keys, CONFIG.routes, CONFIG.limits, CONFIG.server)
    names = [upstream.name for upstream in own.upstreams]
    assert names == ["org/large/1", "org/large/2", "org/large/3", "org-large/1", "org-large/2", "lab", "org-large-1"]
    first, small = own.upstreams[0], own.upstreams[3]
    assert first.is_dynamic
    assert (first.models, first.queue_wait_s, first.sticky) == (("org/large", "big"), 7.0, "none")
    assert (small.models, small.sticky) == (("org-large",), "key")
    assert not own.upstreams[-1].is_dynamic


def test_names_differ_however_alike_models_are_called() -> None:
    models = ["a/b", "a-b", "a b", "a-b-1", "é", "ü", "a", "a/b/1"]
    places = [dynamic_upstream_name(model, number) for model in models for number in range(1, 12)]
    assert len(set(places)) == len(places)
    names = [deployment_name(model, number) for number, model in enumerate(models, 1)]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() and name.isascii() for name in names)


def test_the_names_of_a_front_lead_to_its_places() -> None:
    own = front_config(CONFIG)
    upstreams = UpstreamRegistry(own.upstreams, own.routes)
    for name in ("org/large", "big", "fast"):
        found = upstreams.resolve(name)
        assert found is not None
        assert [member.upstream.name for member in cast("Any", found).members] == [
            place.name for place in dynamic_upstreams_of(CONFIG, LARGE)
        ]


@pytest.mark.parametrize("make", [front_config, lambda config: engine_config(config, LARGE)])
def test_what_ray_carries_to_another_machine_arrives_as_it_is(make: Any) -> None:  # noqa: ANN401 - one of two
    own = make(CONFIG)
    assert pickle.loads(pickle.dumps(own)) == own


def context(counted: dict[str, Any] | None, target: float) -> Any:  # noqa: ANN401 - Ray's
    return SimpleNamespace(aggregated_metrics=counted, config=SimpleNamespace(target_ongoing_requests=target))


@table(
    ("counts", "target", "wanted"),
    [([], 4, 1), ([0, 0], 4, 1), ([4], 4, 1), ([4, 0.1], 4, 2), ([4, 4], 4, 2), ([9], 4, 3), ([1, 1, 1], 1, 3)],
)
def test_there_are_as_many_replicas_as_streams_need(counts: list[float], target: float, wanted: int) -> None:
    counted = {STREAMS_METRIC: {str(number): count for number, count in enumerate(counts)}}
    assert autoscale_by_streams(context(counted, target)) == (wanted, {})


@pytest.mark.parametrize("counted", [None, {}, {"else": {"a": 9.0}}])
def test_where_nothing_is_counted_there_is_one(counted: dict[str, Any] | None) -> None:
    assert autoscale_by_streams(context(counted, 4)) == (1, {})


def test_who_listens_hears_what_is_known_and_all_that_comes() -> None:
    heard: list[Any] = []
    replica_registry.publish("unit-test", {"a": {"port": 1}})
    replica_registry.subscribe("unit-test", heard.append)
    replica_registry.publish("unit-test", {"b": {"port": 2}})
    replica_registry.publish("unit-test-other", {"c": {"port": 3}})
    assert heard == [{"a": {"port": 1}}, {"b": {"port": 2}}]


def test_who_listens_before_anything_is_known_hears_it_then() -> None:
    heard: list[Any] = []
    replica_registry.subscribe("unit-test-early", heard.append)
    assert heard == []
    replica_registry.publish("unit-test-early", {})
    assert heard == [{}]


def test_who_listens_last_is_who_hears() -> None:
    first: list[Any] = []
    last: list[Any] = []
    replica_registry.subscribe("unit-test-last", first.append)
    replica_registry.subscribe("unit-test-last", last.append)
    replica_registry.publish("unit-test-last", {})
    assert (first, last) == ([], [{}])


def test_a_front_behind_rays_proxy_leaves_tls_to_it() -> None:
    server = ServeSettings(ssl_cert_file=Path("cert.pem"), ssl_key_file=Path("key.pem"))
    own = front_config(dataclasses.replace(CONFIG, server=server)).server
    assert (own.ssl_cert_file, own.ssl_key_file) == (None, None)
