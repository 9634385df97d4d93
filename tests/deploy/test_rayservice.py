"""The RayService against the requirements of KubeRay and Ray Serve; Kubernetes has schemas only for its pods."""

import importlib
import importlib.util
import warnings
from pathlib import Path

import pytest
import yaml

from tests.deploy.manifests import RAY_SERVICE, Json, of_kind, read, validate, variables
from welldone.server.config import read_config

OBJECTS = read(RAY_SERVICE)
SERVICE = of_kind(OBJECTS, "RayService")["welldone-ray"]
CLUSTER = SERVICE["spec"]["rayClusterConfig"]
GROUPS = [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]]
TOML = of_kind(OBJECTS, "ConfigMap")["welldone-ray"]["data"]["welldone.toml"]
SERVE = yaml.safe_load(SERVICE["spec"]["serveConfigV2"])
SCHEMA = None
if importlib.util.find_spec("ray"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray uses what Pydantic deprecates
        SCHEMA = importlib.import_module("ray.serve.schema")


def test_the_rayservice_has_the_fields_that_kuberay_requires() -> None:
    assert SERVICE["apiVersion"] == "ray.io/v1"
    assert set(SERVICE["spec"]) == {"serveConfigV2", "rayClusterConfig"}
    assert set(CLUSTER) == {"rayVersion", "enableInTreeAutoscaling", "headGroupSpec", "workerGroupSpecs"}
    assert set(CLUSTER["headGroupSpec"]) == {"rayStartParams", "template"}
    for group in CLUSTER["workerGroupSpecs"]:
        assert set(group) == {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in GROUPS:  # KubeRay puts them into command lines: all are strings
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.get("groupName", "head"))
def test_its_pod_templates_are_valid(group: Json) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": group["template"]["spec"]}
    validate(pod)
    labels = of_kind(OBJECTS, "NetworkPolicy")["welldone-ray"]["spec"]["podSelector"]["matchLabels"]
    assert labels.items() <= group["template"]["metadata"]["labels"].items()


def test_all_nodes_have_the_version_of_ray_that_the_image_has() -> None:
    first = next(line for line in (RAY_SERVICE.parent / "Dockerfile").read_text().splitlines() if line[:5] == "FROM ")
    assert first.startswith(f"FROM rayproject/ray:{CLUSTER['rayVersion']}-py3")
    assert len({container["image"] for group in GROUPS for container in group["template"]["spec"]["containers"]}) == 1


def test_the_app_finds_its_settings_on_every_node() -> None:
    (application,) = SERVE["applications"]
    path = Path(application["args"]["config"])
    for group in GROUPS:
        spec = group["template"]["spec"]
        (mount,) = (one for one in spec["containers"][0]["volumeMounts"] if one["mountPath"] == str(path.parent))
        (volume,) = (one for one in spec["volumes"] if one["name"] == mount["name"])
        assert path.name in of_kind(OBJECTS, "ConfigMap")[volume["configMap"]["name"]]["data"]
        assert variables(TOML) <= {variable["name"] for variable in spec["containers"][0]["env"]}


def test_welldone_reads_its_settings(tmp_path: Path) -> None:
    (tmp_path / "welldone.toml").write_text(TOML)
    config = read_config({}, dict.fromkeys(variables(TOML), "0123456789abcdef-key"), folder=tmp_path)
    assert [model.name for model in config.models] == ["qwen3-8b"]
    assert config.warnings == ()


def test_ray_serve_accepts_the_configuration() -> None:
    """Check field names of Ray 2.60, and the schema of Ray where it is installed (`make test-scale`)."""
    assert set(SERVE) == {"proxy_location", "http_options", "applications"}
    assert [set(one) for one in SERVE["applications"]] == [{"name", "route_prefix", "import_path", "args"}]
    if SCHEMA is not None:
        SCHEMA.ServeDeploySchema.model_validate(SERVE)


def test_a_node_has_room_for_an_engine_and_a_front(tmp_path: Path) -> None:
    (tmp_path / "welldone.toml").write_text(TOML)
    scale = read_config({}, dict.fromkeys(variables(TOML), "0123456789abcdef-key"), folder=tmp_path).scale
    (workers,) = CLUSTER["workerGroupSpecs"]
    assert CLUSTER["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert int(workers["rayStartParams"]["num-cpus"]) >= scale.engine.num_cpus + scale.front.num_cpus
    assert workers["maxReplicas"] >= scale.engine.max_replicas
    requests = workers["template"]["spec"]["containers"][0]["resources"]["requests"]
    assert requests["cpu"] == workers["rayStartParams"]["num-cpus"]


def test_the_import_path_of_the_app_exists() -> None:
    (application,) = SERVE["applications"]
    module, _, _ = application["import_path"].partition(":")
    assert importlib.util.find_spec(module) is not None


def test_the_port_that_clients_reach_is_the_one_that_serve_listens_on() -> None:
    assert SERVE["http_options"] == {"host": "0.0.0.0", "port": 8000}
    for group in GROUPS:
        ports = {port["name"]: port["containerPort"] for port in group["template"]["spec"]["containers"][0]["ports"]}
        assert ports["serve"] == SERVE["http_options"]["port"]
