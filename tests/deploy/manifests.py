"""Loads the manifests of deploy/."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes_validate  # type: ignore[import-untyped]  # untyped
import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
RAY_SERVICE = ROOT / "deploy" / "ray" / "rayservice.yaml"
SECRETS = KUBERNETES / "secrets.example.yaml"
TOML = KUBERNETES / "welldone.toml"

Json = dict[str, Any]

VERSION: str = kubernetes_validate.latest_version()
"""Newest Kubernetes version with schemas in the validator."""
SchemaError: type[Exception] = kubernetes_validate.ValidationError


class Pod(NamedTuple):
    """Pod template and the object that owns it."""

    owner: Json
    template: Json

    @property
    def name(self) -> str:
        """Name of the owner."""
        name: str = self.owner["metadata"]["name"]
        return name

    @property
    def spec(self) -> Json:
        """Pod spec."""
        spec: Json = self.template["spec"]
        return spec

    @property
    def labels(self) -> dict[str, str]:
        """Pod labels."""
        labels: dict[str, str] = self.template["metadata"]["labels"]
        return labels

    @property
    def ports(self) -> dict[str, int]:
        """Container ports by name."""
        ports = (port for container in self.spec["containers"] for port in container.get("ports", ()))
        return {port["name"]: port["containerPort"] for port in ports}


def read(path: Path) -> list[Json]:
    """Read the objects of a file."""
    return [one for one in yaml.safe_load_all(path.read_text()) if one is not None]


def kustomization() -> Json:
    """Read kustomization.yaml."""
    (only,) = read(KUBERNETES / "kustomization.yaml")
    return only


def applied() -> list[Json]:
    """Return the objects of `kubectl apply -k`, without the hash suffix of ConfigMaps."""
    config = kustomization()
    objects = [one for name in config["resources"] for one in read(KUBERNETES / name)]
    for generated in config["configMapGenerator"]:
        data = {name: (KUBERNETES / name).read_text() for name in generated["files"]}
        metadata = {"name": generated["name"]}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    return objects


def pods(objects: list[Json]) -> Iterator[Pod]:
    """Yield the pod templates of Deployments and StatefulSets."""
    for one in objects:
        if one["kind"] in ("Deployment", "StatefulSet"):
            yield Pod(one, one["spec"]["template"])


def validate(one: Json) -> None:
    """Validate an object with the schema of Kubernetes; unknown fields are errors.

    Raises:
        SchemaError: the object is invalid.
    """
    kubernetes_validate.validate(one, VERSION, strict=True)


def of_kind(objects: list[Json], kind: str) -> dict[str, Json]:
    """Return the objects of a kind by name."""
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def variables(toml: str) -> set[str]:
    """Return the environment variables that the settings reference."""
    return set(re.findall(r'^[^#\n]*"env:(\w+)"', toml, re.MULTILINE))
