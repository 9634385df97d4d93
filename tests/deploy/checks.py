"""Checks across manifests that no schema covers: dangling references, inconsistent timeouts, missing restrictions."""

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
    """Every selector matches a pod."""
    found = list(pods(objects))
    for pod in found:
        if not _is_selected(pod, pod.owner["spec"]["selector"]["matchLabels"]):
            yield f"{pod.name} does not find its own pods"
    for one in objects:
        for labels in _pod_labels(one):
            if not any(_is_selected(pod, labels) for pod in found):
                yield f"{one['kind']} {one['metadata']['name']} finds no pod with {labels}"


def names(objects: list[Json]) -> Iterator[str]:
    """Referenced Services and scale targets exist."""
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
    """Mounted volumes and ConfigMaps exist."""
    maps = of_kind(objects, "ConfigMap")
    for pod in pods(objects):
        existing = {volume["name"] for volume in pod.spec.get("volumes", ())}
        existing |= {claim["metadata"]["name"] for claim in pod.owner["spec"].get("volumeClaimTemplates", ())}
        for volume in pod.spec.get("volumes", ()):
            if "configMap" in volume and volume["configMap"]["name"] not in maps:
                yield f"{pod.name} has no ConfigMap {volume['configMap']['name']}"
        for container in pod.spec["containers"]:
            for mount in container.get("volumeMounts", ()):
                if mount["name"] not in existing:
                    yield f"{pod.name} has no volume {mount['name']}"


def ports(objects: list[Json]) -> Iterator[str]:
    """Ports of Services and NetworkPolicies are ports of the container."""
    for pod in pods(objects):
        for service in of_kind(objects, "Service").values():
            for port in service["spec"]["ports"]:
                if _is_selected(pod, service["spec"]["selector"]) and port["targetPort"] not in pod.ports:
                    yield f"{pod.name} has no port {port['targetPort']} for its Service"
        for policy in of_kind(objects, "NetworkPolicy").values():
            if _is_selected(pod, policy["spec"]["podSelector"]["matchLabels"]):
                opened = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
                if opened != set(pod.ports):
                    yield f"{pod.name} has the ports {set(pod.ports)}, and {opened} are open"


def probed_ports(objects: list[Json]) -> Iterator[str]:
    """Probes and Prometheus use ports of the container."""
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
    """Referenced secrets are in the example, and every variable of the settings comes from a Secret."""
    example_keys = {one["metadata"]["name"]: set(one["stringData"]) for one in read(SECRETS)}
    for pod in pods(objects):
        for container in pod.spec["containers"]:
            for variable in container.get("env", ()):
                reference = variable.get("valueFrom", {}).get("secretKeyRef")
                if reference is not None and reference["key"] not in example_keys.get(reference["name"], ()):
                    yield f"{pod.name}: {reference['name']} has no {reference['key']}"
    container = _welldone(objects)
    secret = {one["name"] for one in container["env"] if "secretKeyRef" in one.get("valueFrom", {})}
    available = set(secret)
    for variable in container["env"]:  # $(NAME) expands only if NAME is defined earlier
        parts = _REFERENCE.findall(variable.get("value", ""))
        before = {one["name"] for one in container["env"][: container["env"].index(variable)]}
        if parts and secret.issuperset(parts) and before.issuperset(parts):
            available.add(variable["name"])
    for name in variables(_toml(objects)) - available:
        yield f"welldone gets no {name} out of a Secret"


def shutdown_times(objects: list[Json]) -> Iterator[str]:
    """The termination grace period covers preStop and drain."""
    for pod in pods(objects):
        for container in pod.spec["containers"]:
            before_s = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
            drain_s = _drain_s(pod, container, objects)
            if drain_s and not before_s:
                yield f"{pod.name} gets SIGTERM before it is removed from the endpoints"
            if before_s + drain_s > pod.spec["terminationGracePeriodSeconds"]:
                yield f"{pod.name} is killed while it drains"


def images(objects: list[Json]) -> Iterator[str]:
    """Images have a version and no registry."""
    for pod in pods(objects):
        for container in pod.spec["containers"]:
            name, _, tag = container["image"].partition(":")
            if tag in ("", "latest"):
                yield f"{pod.name}: {container['image']} has no fixed version"
            if "." in name:
                yield f"{pod.name}: {container['image']} names a registry"


def restrictions(objects: list[Json]) -> Iterator[str]:
    """Pods run with least privilege and with resource limits."""
    for pod in pods(objects):
        if pod.spec.get("enableServiceLinks") is not False:
            yield f"{pod.name} gets variables of other Services, such as WELLDONE_PORT"
        if pod.spec.get("automountServiceAccountToken") is not False:
            yield f"{pod.name} gets a service account token"
        if pod.spec["securityContext"].get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{pod.name} may make any system call"
        if pod.name != "vllm" and pod.spec["securityContext"].get("runAsNonRoot") is not True:
            yield f"{pod.name} may be root"  # vLLM's image requires root
        for container in pod.spec["containers"]:
            security = container["securityContext"]
            if security.get("allowPrivilegeEscalation") is not False or security.get("capabilities") != {
                "drop": ["ALL"]
            }:
                yield f"{pod.name} has capabilities"
            if pod.name != "vllm" and security.get("readOnlyRootFilesystem") is not True:
                yield f"{pod.name} has a writable root file system"  # vLLM compiles
            if "memory" not in container["resources"]["limits"] or "cpu" not in container["resources"]["requests"]:
                yield f"{pod.name} has no CPU request or memory limit"


def probes(objects: list[Json]) -> Iterator[str]:
    """Every container has probes, and the liveness of welldone does not depend on others."""
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
    """Every vLLM pod is an upstream, with its host name and port."""
    existing = {
        (f"{pod.name}-{number}.{pod.owner['spec']['serviceName']}", port)
        for pod in pods(objects)
        if pod.name == "vllm"
        for number in range(pod.owner["spec"]["replicas"])
        for port in pod.ports.values()
    }
    urls = [urlsplit(one["url"]) for one in tomllib.loads(_toml(objects))["upstreams"].values()]
    configured = {(url.hostname, url.port) for url in urls}
    if configured != existing:
        yield f"vLLM pods: {sorted(existing)}; upstreams of welldone: {configured}"


def replicas(objects: list[Json]) -> Iterator[str]:
    """At least two replicas, and the Deployment leaves their number to the autoscaler."""
    (scaler,) = of_kind(objects, "HorizontalPodAutoscaler").values()
    if scaler["spec"]["minReplicas"] < 2:
        yield "a single replica cannot be updated without downtime"
    if "replicas" in of_kind(objects, "Deployment")["welldone"]["spec"]:
        yield "`kubectl apply` resets the replicas of the autoscaler"


CHECKS: tuple[Check, ...] = (
    selectors,
    names,
    volumes,
    ports,
    probed_ports,
    secrets,
    shutdown_times,
    images,
    restrictions,
    probes,
    upstreams,
    replicas,
)


def problems(objects: list[Json]) -> list[str]:
    """Run all checks."""
    return [problem for check in CHECKS for problem in check(objects)]


def _pod_labels(one: Json) -> Iterator[dict[str, str]]:
    """Labels by which an object selects pods of its own namespace."""
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


def _is_selected(pod: Pod, labels: dict[str, str]) -> bool:
    return labels.items() <= pod.labels.items()


def _welldone(objects: list[Json]) -> Json:
    (container,) = of_kind(objects, "Deployment")["welldone"]["spec"]["template"]["spec"]["containers"]
    result: Json = container
    return result


def _toml(objects: list[Json]) -> str:
    text: str = of_kind(objects, "ConfigMap")["welldone"]["data"]["welldone.toml"]
    return text


def _drain_s(pod: Pod, container: Json, objects: list[Json]) -> float:
    """Longest time from SIGTERM to exit."""
    if pod.name == "welldone":
        drain_s: float = tomllib.loads(_toml(objects))["server"]["drain_s"]
        return drain_s + server._ABORT_GRACE_S + server._ENGINES_STOP_S
    found = re.search(r"--shutdown-timeout=(\d+)", " ".join(container.get("args", ())))
    return float(found[1]) if found else 0.0
