"""What no schema sees: names that lead nowhere, times that do not fit, doors left open. A check tells what is wrong."""

import re
import tomllib
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from tests.deploy.manifests import SECRETS, Json, Pod, of_kind, pods, read, variables
from welldone.server import server

Check = Callable[[list[Json]], Iterator[str]]

_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_REFERENCE = re.compile(r"\$\((\w+)\)")


def selectors(objects: list[Json]) -> Iterator[str]:
    """Who looks for pods finds some."""
    found = list(pods(objects))
    for pod in found:
        if not _is_chosen(pod, pod.owner["spec"]["selector"]["matchLabels"]):
            yield f"{pod.name} does not find its own pods"
    for one in objects:
        for labels in _wanted(one):
            if not any(_is_chosen(pod, labels) for pod in found):
                yield f"{one['kind']} {one['metadata']['name']} finds no pod with {labels}"


def names(objects: list[Json]) -> Iterator[str]:
    """What is called by name is there."""
    services = of_kind(objects, "Service")
    for pod in pods(objects):
        if "serviceName" in pod.owner["spec"]:
            service = services.get(pod.owner["spec"]["serviceName"])
            if service is None or service["spec"].get("clusterIP") != "None":
                yield f"{pod.name} has no headless Service"
    for scaler in of_kind(objects, "HorizontalPodAutoscaler").values():
        target = scaler["spec"]["scaleTargetRef"]
        if target["name"] not in of_kind(objects, target["kind"]):
            yield f"the autoscaler has no {target['name']}"


def volumes(objects: list[Json]) -> Iterator[str]:
    """What is mounted is there."""
    maps = of_kind(objects, "ConfigMap")
    for pod in pods(objects):
        there = {volume["name"] for volume in pod.spec.get("volumes", ())}
        there |= {claim["metadata"]["name"] for claim in pod.owner["spec"].get("volumeClaimTemplates", ())}
        for volume in pod.spec.get("volumes", ()):
            if "configMap" in volume and volume["configMap"]["name"] not in maps:
                yield f"{pod.name} has no ConfigMap {volume['configMap']['name']}"
        for container in pod.spec["containers"]:
            for mount in container.get("volumeMounts", ()):
                if mount["name"] not in there:
                    yield f"{pod.name} has no volume {mount['name']}"


def ports(objects: list[Json]) -> Iterator[str]:
    """A port that others call by its name or number is the container's."""
    for pod in pods(objects):
        for service in of_kind(objects, "Service").values():
            for port in service["spec"]["ports"]:
                if _is_chosen(pod, service["spec"]["selector"]) and port["targetPort"] not in pod.ports:
                    yield f"{pod.name} has no port {port['targetPort']} for its Service"
        for policy in of_kind(objects, "NetworkPolicy").values():
            if _is_chosen(pod, policy["spec"]["podSelector"]["matchLabels"]):
                opened = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
                if opened != set(pod.ports):
                    yield f"{pod.name} has the ports {set(pod.ports)}, and {opened} are open"


def looks(objects: list[Json]) -> Iterator[str]:
    """Who looks at a pod does so at a port that it has."""
    for pod in pods(objects):
        annotated = pod.template["metadata"].get("annotations", {}).get("prometheus.io/port")
        if annotated is not None and int(annotated) not in pod.ports.values():
            yield f"{pod.name} has no port {annotated} for Prometheus"
        for container in pod.spec["containers"]:
            for probe in (container[kind] for kind in _PROBES if kind in container):
                (action,) = (probe[kind] for kind in ("httpGet", "tcpSocket") if kind in probe)
                if action["port"] not in pod.ports:
                    yield f"{pod.name} is probed at no port: {action['port']}"


def secrets(objects: list[Json]) -> Iterator[str]:
    """Each secret is in the example, and each that welldone's settings name comes to it."""
    known = {one["metadata"]["name"]: set(one["stringData"]) for one in read(SECRETS)}
    for pod in pods(objects):
        for container in pod.spec["containers"]:
            for variable in container.get("env", ()):
                reference = variable.get("valueFrom", {}).get("secretKeyRef")
                if reference is not None and reference["key"] not in known.get(reference["name"], ()):
                    yield f"{pod.name}: {reference['name']} has no {reference['key']}"
    container = _welldone(objects)
    secret = {one["name"] for one in container["env"] if "secretKeyRef" in one.get("valueFrom", {})}
    given = set(secret)
    for variable in container["env"]:  # one that is made of others comes after them, else it stays as it is written
        parts = _REFERENCE.findall(variable.get("value", ""))
        before = {one["name"] for one in container["env"][: container["env"].index(variable)]}
        if parts and secret.issuperset(parts) and before.issuperset(parts):
            given.add(variable["name"])
    for name in variables(_toml(objects)) - given:
        yield f"welldone gets no {name} out of a Secret"


def times(objects: list[Json]) -> Iterator[str]:
    """The kubelet waits for longer than the drain takes."""
    for pod in pods(objects):
        for container in pod.spec["containers"]:
            before_s = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
            drain_s = _drain_s(pod, container, objects)
            if drain_s and not before_s:
                yield f"{pod.name} gets SIGTERM before all know that it goes"
            if before_s + drain_s > pod.spec["terminationGracePeriodSeconds"]:
                yield f"{pod.name} is killed while it drains"


def images(objects: list[Json]) -> Iterator[str]:
    """Each has a version, and none names where it is fetched from."""
    for pod in pods(objects):
        for container in pod.spec["containers"]:
            name, _, tag = container["image"].partition(":")
            if tag in ("", "latest"):
                yield f"{pod.name}: {container['image']} may be another one tomorrow"
            if "." in name:
                yield f"{pod.name}: {container['image']} names a registry"


def doors(objects: list[Json]) -> Iterator[str]:
    """No pod can do more than it needs."""
    for pod in pods(objects):
        if pod.spec.get("enableServiceLinks") is not False:
            yield f"{pod.name} gets variables that other Services make, such as WELLDONE_PORT"
        if pod.spec.get("automountServiceAccountToken") is not False:
            yield f"{pod.name} gets a token of the cluster"
        if pod.spec["securityContext"].get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{pod.name} may make any system call"
        if pod.name != "vllm" and pod.spec["securityContext"].get("runAsNonRoot") is not True:
            yield f"{pod.name} may be root"  # vLLM's image is made for root
        for container in pod.spec["containers"]:
            security = container["securityContext"]
            if security.get("allowPrivilegeEscalation") is not False or security.get("capabilities") != {
                "drop": ["ALL"]
            }:
                yield f"{pod.name} has capabilities"
            if pod.name != "vllm" and security.get("readOnlyRootFilesystem") is not True:
                yield f"{pod.name} may change its files"  # vLLM compiles
            if "memory" not in container["resources"]["limits"] or "cpu" not in container["resources"]["requests"]:
                yield f"{pod.name} may take all of a node"


def probes(objects: list[Json]) -> Iterator[str]:
    """Each is looked at, and welldone is not restarted for what others do."""
    for pod in pods(objects):
        for container in pod.spec["containers"]:
            for kind in _PROBES[1:]:
                if kind not in container:
                    yield f"{pod.name} has no {kind}"
    container = _welldone(objects)
    paths = {kind: container[kind]["httpGet"]["path"] for kind in _PROBES if kind in container}
    if paths != {"startupProbe": "/livez", "readinessProbe": "/readyz", "livenessProbe": "/livez"}:
        yield f"welldone is probed at {paths}"


def upstreams(objects: list[Json]) -> Iterator[str]:
    """Each pod of vLLM is an upstream, by the name and the port that it has."""
    there = {
        (f"{pod.name}-{number}.{pod.owner['spec']['serviceName']}", port)
        for pod in pods(objects)
        if pod.name == "vllm"
        for number in range(pod.owner["spec"]["replicas"])
        for port in pod.ports.values()
    }
    urls = [urlsplit(one["url"]) for one in tomllib.loads(_toml(objects))["upstreams"].values()]
    asked = {(url.hostname, url.port) for url in urls}
    if asked != there:
        yield f"there are {sorted(there)}, and welldone asks {asked}"


def replicas(objects: list[Json]) -> Iterator[str]:
    """One that goes leaves another, and who scales is not overruled."""
    (scaler,) = of_kind(objects, "HorizontalPodAutoscaler").values()
    if scaler["spec"]["minReplicas"] < 2:
        yield "one welldone alone cannot be rolled"
    if "replicas" in of_kind(objects, "Deployment")["welldone"]["spec"]:
        yield "each apply sets the number back that the autoscaler chose"


CHECKS: tuple[Check, ...] = (
    selectors,
    names,
    volumes,
    ports,
    looks,
    secrets,
    times,
    images,
    doors,
    probes,
    upstreams,
    replicas,
)


def problems(objects: list[Json]) -> list[str]:
    """All that is wrong."""
    return [problem for check in CHECKS for problem in check(objects)]


def _wanted(one: Json) -> Iterator[dict[str, str]]:
    """The labels by which an object looks for pods of its own namespace."""
    spec = one.get("spec", {})
    match one["kind"]:
        case "Service":
            yield spec["selector"]
        case "PodDisruptionBudget":
            yield spec["selector"]["matchLabels"]
        case "NetworkPolicy":
            yield spec["podSelector"]["matchLabels"]
            rules = [*spec.get("ingress", ()), *spec.get("egress", ())]
            for peer in (peer for rule in rules for peer in (*rule.get("from", ()), *rule.get("to", ()))):
                if "namespaceSelector" not in peer:
                    yield peer["podSelector"]["matchLabels"]
        case "Deployment" | "StatefulSet":
            for spread in spec["template"]["spec"].get("topologySpreadConstraints", ()):
                yield spread["labelSelector"]["matchLabels"]
        case _:
            pass


def _is_chosen(pod: Pod, labels: dict[str, str]) -> bool:
    return labels.items() <= pod.labels.items()


def _welldone(objects: list[Json]) -> Json:
    (container,) = of_kind(objects, "Deployment")["welldone"]["spec"]["template"]["spec"]["containers"]
    made: Json = container
    return made


def _toml(objects: list[Json]) -> str:
    text: str = of_kind(objects, "ConfigMap")["welldone"]["data"]["welldone.toml"]
    return text


def _drain_s(pod: Pod, container: Json, objects: list[Json]) -> float:
    """The longest that it takes from SIGTERM to its end."""
    if pod.name == "welldone":
        drain_s: float = tomllib.loads(_toml(objects))["server"]["drain_s"]
        return drain_s + server._ABORT_GRACE_S + server._ENGINES_STOP_S
    found = re.search(r"--shutdown-timeout=(\d+)", " ".join(container.get("args", ())))
    return float(found[1]) if found else 0.0
