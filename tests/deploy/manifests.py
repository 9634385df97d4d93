"""The manifests of deploy/, as objects."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes_validate  # type: ignore[import-untyped]  # it has none
import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
RAY_SERVICE = ROOT / "deploy" / "ray" / "rayservice.yaml"
SECRETS = KUBERNETES / "secrets.example.yaml"
TOML = KUBERNETES / "welldone.toml"

Json = dict[str, Any]

VERSION: str = kubernetes_validate.latest_version()
"""The newest Kubernetes whose schemas the checker has."""
SchemaError: type[Exception] = kubernetes_validate.ValidationError


class Pod(NamedTuple):
    """Whose pods they are, and what they are made from."""

    owner: Json
    template: Json

    @property
    def name(self) -> str:
        """The name of their owner."""
        name: str = self.owner["metadata"]["name"]
        return name

    @property
    def spec(self) -> Json:
        """What is in such a pod."""
        spec: Json = self.template["spec"]
        return spec

    @property
    def labels(self) -> dict[str, str]:
        """By which it is found."""
        labels: dict[str, str] = self.template["metadata"]["labels"]
        return labels

    @property
    def ports(self) -> dict[str, int]:
        """Its ports, by their names."""
        ports = (port for container in self.spec["containers"] for port in container.get("ports", ()))
        return {port["name"]: port["containerPort"] for port in ports}


def read(path: Path) -> list[Json]:
    """The objects of a file."""
    return [one for one in yaml.safe_load_all(path.read_text()) if one is not None]


def kustomization() -> Json:
    """What `kubectl apply -k` begins with."""
    (only,) = read(KUBERNETES / "kustomization.yaml")
    return only


def applied() -> list[Json]:
    """What `kubectl apply -k` makes, but for the hash that it puts behind the names of ConfigMaps."""
    made = kustomization()
    objects = [one for name in made["resources"] for one in read(KUBERNETES / name)]
    for generated in made["configMapGenerator"]:
        data = {name: (KUBERNETES / name).read_text() for name in generated["files"]}
        metadata = {"name": generated["name"]}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    return objects


def pods(objects: list[Json]) -> Iterator[Pod]:
    """All kinds of pods."""
    for one in objects:
        if one["kind"] in ("Deployment", "StatefulSet"):
            yield Pod(one, one["spec"]["template"])


def validate(one: Json) -> None:
    """Hold an object against Kubernetes' own schema, in which no unknown field is let through.

    Raises:
        SchemaError: it is not one.
    """
    kubernetes_validate.validate(one, VERSION, strict=True)


def of_kind(objects: list[Json], kind: str) -> dict[str, Json]:
    """Those of a kind, by name."""
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def variables(toml: str) -> set[str]:
    """The environment variables that settings are taken from."""
    return set(re.findall(r'^[^#\n]*"env:(\w+)"', toml, re.MULTILINE))
