"""The Grafana dashboard and the Prometheus alerts: valid, documented, and about metrics that a real server has."""

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.manifests import ROOT
from tests.deploy.prometheus import NEEDS_PROMETHEUS, RealPrometheus, real_prometheus
from tests.deploy.promql import Selector, parse
from tests.support.faults import start_chat
from tests.support.raw import RawConnection
from tests.support.server import Running
from tests.support.upstream import REPLIES, eventually, gateway, upstream
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest

PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "welldone.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for rule in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"][0]["rules"]
}
VARIABLES = {"$__rate_interval": "1m", "$job": ".*", "$instance": ".*"}
TARGET_LABELS = {"job", "instance"}
"""Labels that Prometheus adds to each series."""
MAY_BE_EMPTY = {"WelldoneAbsent", "WelldoneQueueFull"}
"""Alerts whose expressions are empty for a healthy server: they compare two series, not one with a threshold."""


def expand(expression: str) -> str:
    """The expression with values for the variables of the dashboard."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


def without_threshold(expression: str) -> str:
    """The value that an alert compares with its threshold, so that it exists for a healthy server."""
    return re.sub(r"(?:>=?|==) [\d.]+\s*$", "", expression)


QUERIES: dict[str, str] = {
    **{
        f"{panel['title']} {target['refId']}": expand(target["expr"]) for panel in PANELS for target in panel["targets"]
    },
    **{name: without_threshold(rule["expr"]) for name, rule in RULES.items()},
}


# Structure and documents.


def test_the_dashboard_is_complete() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)
    for panel in PANELS:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
    variables = DASHBOARD["templating"]["list"]
    assert [variable["name"] for variable in variables] == ["datasource", "job", "instance"]
    assert (variables[0]["type"], variables[0]["query"]) == ("datasource", "prometheus")


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("name", RULES)
def test_an_alert_says_what_to_do(name: str) -> None:
    rule = RULES[name]
    assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"[1-9]\d*m", rule["for"])
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    notes = rule["annotations"]
    assert notes.keys() == {"summary", "description", "runbook"}
    assert notes["description"].endswith(".")
    path, _, anchor = notes["runbook"].partition("#")
    headings = re.findall(r"(?m)^#+ (.+)$", (ROOT / path).read_text())
    assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_documented_key_of_prometheus_is_that_of_the_compose_file() -> None:
    documented = re.findall(r"(?s)```toml\n(.*?)```", (ROOT / "docs" / "monitoring.md").read_text())
    deployed = tomllib.loads((ROOT / "deploy" / "compose" / "welldone.toml").read_text())
    assert [tomllib.loads(text)["keys"]["prometheus"] for text in documented] == [deployed["keys"]["prometheus"]]


def test_every_alert_has_a_unit_test() -> None:
    text = (PROMETHEUS / "alerts_test.yml").read_text()
    assert set(re.findall(r'alertname="(\w+)"', text)) == RULES.keys()


@NEEDS_PROMETHEUS
def test_promtool_accepts_the_alerts_and_each_fires_in_its_unit_test() -> None:
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


# A real server.


@pytest.fixture(scope="module")
def gateway_in_use(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with two upstreams and a local model, before the first request."""
    model = f"[models.tiny]\nfile = {json.dumps(str(tiny_model))}\nthreads = 1\n"
    with upstream(_reply) as server:
        folder = tmp_path_factory.mktemp("gateway")
        with gateway(folder, server.url, server.url, more=model, options=["--early", "60"]) as running:
            running.log.wait("model is ready")
            yield running


def _reply(request: MockHttpRequest) -> MockReply:
    return REPLIES[json.loads(request.body)["model"]]


def make_requests(server: Running) -> None:
    """Good answers, a repaired one, one that breaks off, and one that fails at both upstreams."""
    for model in ("tiny", "hello", "no-done", "cut", "broken"):
        with start_chat(server, model=model) as connection:
            connection.reply()


def scrape(server: Running) -> dict[str, list[dict[str, str]]]:
    """The labels of all series, by metric."""
    with RawConnection(server, "/metrics") as connection:
        reply = connection.reply()
    assert reply.status == 200
    series: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(reply.trace.body.decode()):
        for sample in family.samples:
            series.setdefault(sample.name, []).append({**dict.fromkeys(TARGET_LABELS, "x"), **sample.labels})
    return series


@pytest.fixture(scope="module")
def series(gateway_in_use: Running) -> dict[str, list[dict[str, str]]]:
    """The series of the gateway after requests."""
    make_requests(gateway_in_use)
    return scrape(gateway_in_use)


@pytest.mark.parametrize("name", QUERIES)
def test_metrics_and_labels_of_an_expression_exist(name: str, series: dict[str, list[dict[str, str]]]) -> None:
    expression = parse(QUERIES[name])
    assert expression.selectors or "vector" in QUERIES[name]
    labels: set[str] = set()
    for selector in expression.selectors:
        assert any(map(selector.matches, series.get(selector.metric, ()))), selector
        labels.update(*series[selector.metric])
    assert expression.labels <= labels


@pytest.mark.parametrize("name", [panel["title"] for panel in PANELS])
def test_a_legend_uses_labels_of_its_expression(name: str) -> None:
    panel = next(panel for panel in PANELS if panel["title"] == name)
    for target in panel["targets"]:
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= parse(expand(target["expr"])).labels


@NEEDS_PROMETHEUS
def test_a_real_prometheus_has_data_for_every_expression(gateway_in_use: Running, tmp_path: Path) -> None:
    with real_prometheus(tmp_path, gateway_in_use, PROMETHEUS / "alerts.yml") as prometheus:

        def scrapes() -> int:
            samples = prometheus.query("count_over_time(welldone_build_info[5m])")
            return sum(int(sample["value"][1]) for sample in samples)

        def wait_for_scrapes() -> None:
            wanted = scrapes() + 2  # one may have begun before the requests
            eventually(lambda: scrapes() >= wanted)

        for _ in range(2):  # the first time so that every series exists before its next increase
            make_requests(gateway_in_use)
            wait_for_scrapes()
        empty = {name for name, query in QUERIES.items() if not has_data(prometheus, query)}
        assert empty == MAY_BE_EMPTY
        eventually(lambda: all(rule["health"] == "ok" for rule in prometheus.rules()))
        assert {rule["name"] for rule in prometheus.rules()} == RULES.keys()


def has_data(prometheus: RealPrometheus, query: str) -> bool:
    """Whether the expression has a sample that is a number."""
    return any(sample["value"][1] != "NaN" for sample in prometheus.query(query))


# The tokenizer of these tests.


def test_the_tokenizer_reads_metrics_matchers_and_labels() -> None:
    text = 'sum by (a, le) (rate(x:y{b=~"1|{2}", c!="\\""}[5m]) * on (d) group_left (e) z) / 2.5 > 1e3 or vector(0)'
    expression = parse(text)
    first, second = expression.selectors
    assert first == Selector("x:y", (("b", "=~", "1|{2}"), ("c", "!=", '\\"')))
    assert second == Selector("z", ())
    assert expression.labels == {"a", "le", "d", "e"}
    assert parse('x{b=~"1|2"}').selectors[0].matches({"b": "2"})
    assert not parse('x{b!~"1|2"}').selectors[0].matches({"b": "2"})


@pytest.mark.parametrize("text", ["frobnicate(x)", "x ; y", "x{a='1'}"])
def test_the_tokenizer_refuses_what_it_does_not_know(text: str) -> None:
    with pytest.raises(ValueError, match=r"unknown function|cannot read"):
        parse(text)
