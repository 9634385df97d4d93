"""The manifests against the schemas of Kubernetes, against each other, and against welldone's configuration reader."""

import copy
import functools
import re
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.deploy.checks import problems
from tests.deploy.manifests import (
    KUBERNETES,
    RAY_SERVICE,
    SECRETS,
    TOML,
    Json,
    SchemaError,
    applied,
    kustomization,
    read,
    validate,
    variables,
)
from tests.live.routes import OPEN
from welldone import __version__
from welldone.config.settings import SettingsError
from welldone.server.access.origins import OriginPolicy
from welldone.server.config import read_config

ENVIRONMENT = {name: f"{name.lower()}-0123456789abcdef" for name in variables(TOML.read_text())} | {
    "REDIS_URL": "redis://:password@redis:6379/0"
}
PLAIN = [one for one in (*applied(), *read(SECRETS), *read(RAY_SERVICE)) if one["kind"] != "RayService"]


def named(one: Json) -> str:
    return f"{one['kind']} {one['metadata']['name']}"


@pytest.mark.parametrize("one", PLAIN, ids=named)
def test_each_object_is_valid_for_kubernetes(one: Json) -> None:
    validate(one)


def test_an_unknown_field_is_detected() -> None:
    (one,) = (copy.deepcopy(one) for one in PLAIN if named(one) == "Deployment welldone")
    one["spec"]["template"]["spec"]["terminationGraceSeconds"] = 330
    with pytest.raises(SchemaError):
        validate(one)


def test_all_files_except_the_example_secrets_are_applied() -> None:
    files = {path.name for path in KUBERNETES.iterdir()} - {"kustomization.yaml", SECRETS.name}
    config = kustomization()
    assert files == {*config["resources"], *(name for one in config["configMapGenerator"] for name in one["files"])}


def test_no_object_sets_a_namespace() -> None:
    assert [named(one) for one in PLAIN if "namespace" in one["metadata"]] == []


def test_the_image_has_the_version_of_the_package() -> None:
    (image,) = kustomization()["images"]
    assert image == {"name": "welldone", "newName": "welldone", "newTag": __version__}
    for one in read(RAY_SERVICE):
        found = re.findall(r"'image': '(\S+)'", str(one))
        assert set(found) <= {f"welldone-ray:{__version__}"}


def test_the_manifests_are_consistent() -> None:
    assert problems(applied()) == []


def put(value: object, *path: str | int) -> Callable[[dict[str, Json]], None]:
    """Set the value at a path; `...` removes it."""

    def change(objects: dict[str, Json]) -> None:
        parent: Any = functools.reduce(lambda parent, key: parent[key], path[:-1], cast("Any", objects))
        if value is ...:
            del parent[path[-1]]
        else:
            parent[path[-1]] = value

    return change


WELLDONE = ("Deployment welldone", "spec", "template", "spec")
VLLM = ("StatefulSet vllm", "spec", "template", "spec")
FIRST = ("containers", 0)
NAME = "app.kubernetes.io/name"


def toml(old: str, new: str) -> Callable[[dict[str, Json]], None]:
    """Replace text in welldone.toml."""

    def change(objects: dict[str, Json]) -> None:
        data = objects["ConfigMap welldone"]["data"]
        assert old in data["welldone.toml"]
        data["welldone.toml"] = data["welldone.toml"].replace(old, new)

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (put("front", "Deployment welldone", "spec", "selector", "matchLabels", NAME), "does not find its own pods"),
        (put("front", "Service welldone", "spec", "selector", NAME), "Service welldone finds no pod"),
        (put("v", "PodDisruptionBudget vllm", "spec", "selector", "matchLabels", NAME), "Budget vllm finds no pod"),
        (put("x", "NetworkPolicy redis", "spec", "podSelector", "matchLabels", NAME), "Policy redis finds no pod"),
        (
            put("x", "NetworkPolicy vllm", "spec", "ingress", 0, "from", 0, "podSelector", "matchLabels", NAME),
            "NetworkPolicy vllm finds no pod",
        ),
        (put("10.0.0.1", "Service vllm", "spec", "clusterIP"), "no headless Service"),
        (put("config", *WELLDONE, "volumes", 0, "configMap", "name"), "no ConfigMap config"),
        (put("temp", *WELLDONE, "volumes", 1, "name"), "no volume tmp"),
        (put("front", "HorizontalPodAutoscaler welldone", "spec", "scaleTargetRef", "name"), "the autoscaler has no"),
        (put("web", *WELLDONE, *FIRST, "ports", 0, "name"), "probed at no port: http"),
        (put("web", "Service welldone", "spec", "ports", 0, "targetPort"), "no port web for its Service"),
        (put(8080, *WELLDONE, *FIRST, "ports", 0, "containerPort"), "no port 8000 for Prometheus"),
        (put([], "NetworkPolicy welldone", "spec", "ingress"), "are open"),
        (put("TEAM", *WELLDONE, *FIRST, "env", 1, "valueFrom", "secretKeyRef", "key"), "welldone has no TEAM"),
        (put("plain", *WELLDONE, *FIRST, "env", 4, "value"), "gets no REDIS_URL"),
        (put("REDIS", *WELLDONE, *FIRST, "env", 3, "name"), "gets no REDIS_URL"),
        (toml("env:TEAM_KEY", "env:OTHER_KEY"), "gets no OTHER_KEY"),
        (put(60, *WELLDONE, "terminationGracePeriodSeconds"), "welldone is killed while it drains"),
        (toml("drain_s = 300", "drain_s = 310"), "welldone is killed while it drains"),
        (put(30, *VLLM, "terminationGracePeriodSeconds"), "vllm is killed while it drains"),
        (put(..., *WELLDONE, *FIRST, "lifecycle"), "SIGTERM before it is removed"),
        (put("welldone:latest", *WELLDONE, *FIRST, "image"), "no fixed version"),
        (put("welldone", *WELLDONE, *FIRST, "image"), "no fixed version"),
        (put("example.com/welldone:1", *WELLDONE, *FIRST, "image"), "names a registry"),
        (put(..., *WELLDONE, "enableServiceLinks"), "WELLDONE_PORT"),
        (put(..., *WELLDONE, "automountServiceAccountToken"), "a service account token"),
        (put(..., *WELLDONE, "securityContext", "seccompProfile"), "any system call"),
        (put(..., *WELLDONE, "securityContext", "runAsNonRoot"), "may be root"),
        (put([], *WELLDONE, *FIRST, "securityContext", "capabilities", "drop"), "has capabilities"),
        (put(..., *WELLDONE, *FIRST, "securityContext", "readOnlyRootFilesystem"), "has a writable root file system"),
        (put(..., *WELLDONE, *FIRST, "resources", "limits", "memory"), "has no CPU request or memory limit"),
        (put(..., *WELLDONE, *FIRST, "readinessProbe"), "no readinessProbe"),
        (put("/health", *WELLDONE, *FIRST, "livenessProbe", "httpGet", "path"), "welldone is probed at"),
        (put(3, "StatefulSet vllm", "spec", "replicas"), "vllm-2.vllm"),
        (toml("http://vllm-1.vllm:8000", "http://vllm:8000"), "upstreams of welldone"),
        (put(1, "HorizontalPodAutoscaler welldone", "spec", "minReplicas"), "cannot be updated without downtime"),
        (put(2, "Deployment welldone", "spec", "replicas"), "resets the replicas"),
    ],
)
def test_an_inconsistency_is_detected(change: Callable[[dict[str, Json]], None], problem: str) -> None:
    objects = {named(one): copy.deepcopy(one) for one in applied()}
    change(objects)
    assert any(problem in found for found in problems(list(objects.values()))), problems(list(objects.values()))


def test_welldone_reads_its_settings() -> None:
    config = read_config({}, ENVIRONMENT, folder=KUBERNETES)
    assert config.warnings == ()
    assert [upstream.name for upstream in config.upstreams] == ["vllm-0", "vllm-1"]
    assert {upstream.health for upstream in config.upstreams} == {"/health"}
    assert {key.name for key in config.keys} == {"team", "prometheus"}


@pytest.mark.parametrize("name", sorted(ENVIRONMENT))
def test_a_missing_secret_is_reported(name: str) -> None:
    less = {key: value for key, value in ENVIRONMENT.items() if key != name}
    with pytest.raises(SettingsError, match=name):
        read_config({}, less, folder=KUBERNETES)


def test_service_variables_of_kubernetes_would_be_read_as_settings() -> None:
    config = {"WELLDONE_PORT": "tcp://10.0.0.10:80", "WELLDONE_SERVICE_HOST": "10.0.0.10"}
    with pytest.raises(SettingsError, match="WELLDONE_PORT"):
        read_config({}, ENVIRONMENT | config, folder=KUBERNETES)


@pytest.mark.parametrize("host", ["10.244.1.7:8000", "welldone", "welldone.prod.svc.cluster.local", "api.example.org"])
def test_the_host_check_accepts_the_pod_address_and_all_service_names(host: str) -> None:
    server = read_config({}, ENVIRONMENT, folder=KUBERNETES).server
    origins = OriginPolicy(
        host=server.host,
        port=server.port,
        allowed_hosts=server.allowed_hosts,
        cors_origins=(),
        is_tls=False,
        has_keys=True,
    )
    origins.check("GET", {"host": host})


def test_probed_paths_need_no_key() -> None:
    (deployment,) = (one for one in applied() if named(one) == "Deployment welldone")
    found = set(re.findall(r"'path': '(/\w+)'", str(deployment["spec"]["template"]["spec"])))
    assert found == {"/livez", "/readyz"}
    assert found <= OPEN
