"""The endpoints, error codes, statuses, metrics, headers and other names in the documents are those of the program."""

import asyncio
import re
from typing import NamedTuple

import pytest

from tests.repository.documents import DEPLOYED, DOCUMENTS, ROOT, expect_none, lines, spans
from tests.repository.error_codes import read_error_codes
from tests.server.running_gateway import gateway
from welldone.config.model import ModelSettings
from welldone.config.server import LimitsSettings
from welldone.mock.script import MockScript
from welldone.server.observe.workers import merge_metrics_pages
from welldone.server.reload import ReloadResult
from welldone.server.routes import Routes

SOURCES = [path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")]


class Published(NamedTuple):
    """The paths and metrics of a server with every feature."""

    routes: Routes
    labels: dict[str, tuple[str, ...]]
    """Of each metric."""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """The routes and metrics of a gateway with local models, a recorder, and a store that cannot be reached."""
    folder = tmp_path_factory.mktemp("server")
    models = tuple(ModelSettings(name=name, command=("false", "{port}")) for name in "mn")  # never loaded
    config = {"models": models, "limits": LimitsSettings(store="redis://127.0.0.1:1")}
    suffixes = {"counter": ("_total",), "histogram": ("", "_bucket", "_sum", "_count")}

    async def reload() -> ReloadResult:
        return ReloadResult(outcome="unchanged")

    async def read() -> Published:
        async with gateway(folder, MockScript(), config=config, on_reload=reload, slots=True, record=folder) as running:
            families = running.server._parts.metrics.collect()
            labels = {  # prometheus_client has no public list of labels, and families without series show none
                family.name + suffix: vars(family).get("_labelnames", ())
                for family in families
                for suffix in suffixes.get(family.type, ("",))
            }
            of_workers = dict.fromkeys(re.findall(r"# TYPE (\S+)", merge_metrics_pages([], 0, (0, 0))), ())
            return Published(running.server.routes, labels | of_workers)

    return asyncio.run(read())


# Endpoints.

FOREIGN_PATHS = {
    "llama-server": "/completion /infill /props /apply-template /lora-adapters /v1/stream",
    "Ollama": "/api/show /api/ps /api/embed /api/pull /api/create /api/copy /api/delete",
    "LiteLLM": "/health/liveliness /health/readiness",
    "SGLang": "/health_generate",
    "OpenTelemetry": "/v1/traces",
    "examples": "/rooms/5/messages /llm",
}
"""Paths of other programs: welldone does not serve them, and some documents say so."""
METHOD = "GET|POST|DELETE"
ENDPOINT = re.compile(rf"(?:({METHOD}) )?(/[\w/{{}}.:-]+)(?:\?.*)?")
NO_ENDPOINT = re.compile(r"/(?:etc|opt|proc|var)/.*|/v1(?:beta)?|/page/api")
"""Files, and beginnings of paths."""


def test_every_endpoint_is_served_with_its_method(published: Published) -> None:
    foreign = {path for paths in FOREIGN_PATHS.values() for path in paths.split()}
    problems = []
    for span in spans():
        endpoint = ENDPOINT.fullmatch(span.text)
        if endpoint is None or NO_ENDPOINT.fullmatch(endpoint[2]) or endpoint[2] in foreign:
            continue
        # In a column of paths, the first method of a cell applies to the further paths without one
        method = endpoint[1] or next(iter(re.findall(METHOD, span.row.get("path", ""))), None)
        route = published.routes.find(re.sub(r"[{}]", "", endpoint[2]))
        methods = () if route is None else (*route.handlers, *(["GET"] if route.socket else []))
        if not methods:
            problems.append(span.problem(f"welldone does not serve {endpoint[2]}"))
        elif method is not None and method not in methods:
            problems.append(span.problem(f"{endpoint[2]} has no {method}; it has {', '.join(methods)}"))
    expect_none(problems)


def test_paths_of_other_programs_are_not_served(published: Published) -> None:
    expect_none(
        f"welldone serves {path}: the documents list it as a path of {owner} alone"
        for owner, paths in FOREIGN_PATHS.items()
        for path in paths.split()
        if published.routes.find(path) is not None
    )


# Metrics.

FIXTURES = {"welldone_check", "welldone_mock"}
"""Of pytest."""
TARGET_LABELS = {"job", "instance", "namespace", "pod", "le"}
"""Labels that Prometheus adds to each series, and that of the buckets of a histogram."""


def test_every_metric_exists_with_its_labels(published: Published) -> None:
    problems = []
    for line in lines(DOCUMENTS | DEPLOYED):
        for name, given in re.findall(r"(?<![$\w])(welldone_\w+|llamacpp:\w+)(?:\{([^}]*)\})?", line.text):
            known = published.labels.get(name)
            if known is None and name not in FIXTURES:
                problems.append(line.problem(f"there is no metric {name}"))
            unknown = {*re.findall(r"(\w+)(?=\s*[!=,]|$)", given)} - {*(known or ()), *TARGET_LABELS}
            if known is not None and unknown:
                problems.append(line.problem(f"{name} has the labels {', '.join(known)}, and not {', '.join(unknown)}"))
    expect_none(problems)


# Error codes and statuses.


def test_every_error_code_has_the_status_beside_it() -> None:
    codes = read_error_codes(SOURCES)
    problems = []
    for span in spans():
        if span.column.strip("`") == "code" and span.text not in codes:
            problems.append(span.problem(f"there is no error code {span.text}"))
        row = {int(status) for status in re.findall(r"\b[45]\d\d\b", span.row.get("status", ""))}
        if row and (codes.get(span.text) or row).isdisjoint(row):
            problems.append(span.problem(f"the status of {span.text} is {codes[span.text]}"))
    problems += [
        line.problem(f"there is no error {status} {code}; its statuses are {codes.get(code)}")
        for line in lines()
        for status, code in re.findall(r"\b([45]\d\d)[;:]? \(?`([a-z]+(?:_[a-z]+)*)`", line.text)
        if code not in codes or (codes[code] and int(status) not in codes[code])
    ]
    expect_none(problems)


# Other names.

FOREIGN_NAMES = {
    "Codex": "env_key openai_base_url supports_websockets",
    "Starlette": "add_middleware",
    "nginx": "client_max_body_size limit_conn limit_req worker_connections",
    "Caddy": "handle_path reverse_proxy",
    "LiteLLM": "allowed_fails cooldown_time drop_params failure_callback master_key max_parallel_requests num_retries "
    "num_workers redis_host routing_strategy stream_timeout success_callback",
    "OpenTelemetry": "parentbased_traceidratio",
    "SGLang": "popen_launch_server",
    "npm": "node_modules",
    "tests, and an example": "test_agent_loop test_json_mode the_case",
}
"""Names of other programs, and examples."""


def test_every_name_is_one_of_the_program() -> None:
    """Fields, members, codes, labels and words of the log: a name that the source does not have is an old one."""
    known = {name for text in SOURCES for name in re.findall(r"\w+", text)}
    known.update(name for names in FOREIGN_NAMES.values() for name in names.split())
    expect_none(
        span.problem(f"the source has no name {span.text}")
        for span in spans()
        if re.fullmatch(r"[a-z]+(?:_[a-z0-9]+)+", span.text) and not span.text.startswith("welldone_")
        if span.text not in known
    )


def test_every_header_of_welldone_exists() -> None:
    known = {name for text in SOURCES for name in re.findall(r'"(x-welldone-[a-z-]+)"', text)}
    expect_none(
        line.problem(f"there is no header {name}; there are {', '.join(sorted(known))}")
        for line in lines()
        for name in re.findall(r"x-welldone-[a-z]+(?:-[a-z]+)*", line.text)
        if name not in known
    )
