"""The compose file: its files exist, its settings are valid, and the gateway answers clients and Prometheus with it.

Docker is not run here: the gateway runs outside a container with the same command, configuration and environment.
"""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.deploy.manifests import ROOT
from tests.live.redis import NEEDS_REDIS, real_redis
from tests.support.faults import start_chat
from tests.support.raw import RawConnection
from tests.support.server import serving
from tests.support.upstream import Upstream
from welldone.cli.serve import read_serve_config
from welldone.config.server import Config
from welldone.mock.script import HELLO_REPLY

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
TOML = DEPLOY / "compose" / "welldone.toml"
VALUES = {
    "UPSTREAM_URL": "http://host.docker.internal:8001/v1",
    "CLIENT_KEY": "wd-client-0123456789",
    "PROMETHEUS_KEY": "wd-prometheus-0123456789",
    "GRAFANA_PASSWORD": "secret",
}


def environment(service: str) -> dict[str, str]:
    """The environment of a service, with the values of `.env`."""

    def value(match: re.Match[str]) -> str:
        name, _, rest = match[1].partition(":")
        assert name in VALUES or rest.startswith("-"), f"{name} has no default"
        return VALUES.get(name, rest[1:])

    return {name: re.sub(r"\$\{([^}]+)\}", value, text) for name, text in SERVICES[service]["environment"].items()}


def mounts(service: str) -> dict[str, Path]:
    """Files and folders of the repository that a service mounts, by path in the container."""
    words = [word.split(":") for word in SERVICES[service].get("volumes", ())]
    return {inside: DEPLOY / outside for outside, inside, *_ in words if outside.startswith(".")}


def read_config(**more: str) -> Config:
    """The configuration of the gateway, as its command reads it."""
    command, *arguments = SERVICES["welldone"]["command"]
    assert command == "serve"
    paths = mounts("welldone")
    arguments = [str(paths.get(word, word)) for word in arguments]
    return read_serve_config(arguments, {**environment("welldone"), **more})


def test_every_image_has_a_version() -> None:
    for name, service in SERVICES.items():
        tag = service["image"].partition(":")[2]
        assert re.fullmatch(r"v?\d+\.\d+(\.\d+)?(-alpine)?", tag), name


def test_the_gateway_uses_the_image_of_the_repository() -> None:
    build = SERVICES["welldone"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    assert SERVICES["welldone"]["image"] in (DEPLOY / "Dockerfile").read_text()


def test_mounted_files_exist_and_are_read_only() -> None:
    for service in SERVICES:
        for path in mounts(service).values():
            assert path.exists(), path
        for word in SERVICES[service].get("volumes", ()):
            assert word.endswith(":ro") or word.partition(":")[0] in COMPOSE["volumes"], word


def test_nothing_is_published_to_other_machines_and_nothing_has_more_rights_than_it_needs() -> None:
    for service in SERVICES.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    assert SERVICES["welldone"]["read_only"] is True


def test_the_settings_of_the_gateway_are_valid() -> None:
    config = read_config()
    assert config.warnings == ()
    assert [upstream.url for upstream in config.upstreams] == [VALUES["UPSTREAM_URL"]]
    assert config.upstreams[0].key is None
    assert read_config(WELLDONE_UPSTREAM_KEY="sk-1").upstreams[0].key == "sk-1"
    assert config.limits.store is not None
    store = urlsplit(config.limits.store)
    assert store.hostname in SERVICES
    assert SERVICES["welldone"]["depends_on"] == {store.hostname: {"condition": "service_healthy"}}
    (port,) = SERVICES["welldone"]["ports"]
    assert port.rpartition(":")[2] == str(config.server.port)
    assert float(SERVICES["welldone"]["stop_grace_period"].removesuffix("s")) > config.server.drain_s
    assert {key.name: (key.admin, key.metrics) for key in config.keys} == {
        "client": (True, False),
        "prometheus": (False, True),
    }


def test_the_example_has_every_variable_and_no_secret() -> None:
    lines = (DEPLOY / "compose" / "example.env").read_text().splitlines()
    pairs = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    used = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text()))
    secrets = {secret["environment"] for secret in COMPOSE["secrets"].values()}
    assert pairs.keys() == used | secrets
    assert not any(value for name, value in pairs.items() if name != "UPSTREAM_URL")


def test_prometheus_scrapes_the_gateway_with_its_key() -> None:
    folder = mounts("prometheus")["/etc/prometheus"]
    config = yaml.safe_load((folder / "prometheus.yml").read_text())
    assert "--config.file=/etc/prometheus/prometheus.yml" in SERVICES["prometheus"]["command"]
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"welldone:{read_config().server.port}"]}]
    (secret,) = SERVICES["prometheus"]["secrets"]
    assert job["authorization"] == {"type": "Bearer", "credentials_file": f"/run/secrets/{secret}"}
    assert COMPOSE["secrets"][secret]["environment"] in VALUES
    assert config["rule_files"] == ["/etc/prometheus/alerts.yml"]
    assert (folder / "alerts.yml").is_file()


def test_grafana_has_the_data_source_and_the_dashboards() -> None:
    (inside, folder), *_ = mounts("grafana").items()
    provisioning = environment("grafana")["GF_PATHS_PROVISIONING"]
    assert provisioning == f"{inside}/provisioning"
    (source,) = yaml.safe_load((folder / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert urlsplit(source["url"]).hostname in SERVICES
    assert (source["type"], source["uid"], source["isDefault"]) == ("prometheus", "prometheus", True)
    (provider,) = yaml.safe_load((folder / "provisioning/dashboards/welldone.yaml").read_text())["providers"]
    assert provider["options"]["path"] == inside
    assert (folder / "welldone.json").is_file()


@NEEDS_REDIS
@pytest.mark.parametrize("host", ["welldone:8000", "localhost:8000"])
def test_the_gateway_answers_clients_and_prometheus(host: str, tmp_path: Path) -> None:
    with real_redis() as redis:
        upstream = Upstream(lambda _: HELLO_REPLY)
        try:
            upstream.start()
            (tmp_path / "welldone.toml").write_text(TOML.read_text().replace("redis://redis:6379/0", redis.url))
            variables = {**environment("welldone"), "WELLDONE_UPSTREAM": upstream.url}
            with serving(
                [], model="scripted", key=None, folder=tmp_path, environment=variables, is_awaited=False
            ) as running:
                running.key = VALUES["CLIENT_KEY"]
                with start_chat(running) as line:
                    assert line.reply().status == 200
                running.key = VALUES["PROMETHEUS_KEY"]
                with RawConnection(running, "/metrics", None, headers={"Host": host}) as line:
                    reply = line.reply()
                assert (reply.status, b"welldone_" in reply.trace.body) == (200, True)
                with start_chat(running) as line:
                    assert line.reply().status == 403
        finally:
            upstream.end()
