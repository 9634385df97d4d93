"""Schemathesis on the published OpenAPI document: valid requests, and slightly invalid ones.

It generates requests from the schemas alone, and checks each reply against the document. It is a package of
requirements/dev.in.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from faults.case import Case, CaseContext, Figure, Outcome
from tests.clients.client import ENVIRONMENT
from tests.support.faults import small_server
from tests.support.raw import RawConnection
from tests.support.server import Running
from tests.support.upstream import Upstream, gateway
from welldone.mock.reference.server import ReferenceServer

Json: TypeAlias = dict[str, Any]

LIMIT_S = 900.0
"""No run takes that long, also on a busy machine: a hang is a failure."""
PROGRAM = Path(sys.executable).with_name("schemathesis")
CONTEXT = "256"
"""Token limit of the local model, whatever a request asks for."""
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"),
    *("unsupported_method", "allow_header_conformance", "ignored_auth"),
)
REFUSES = "negative_data_rejection"
"""Invalid bodies are rejected. Only for local models: upstreams validate their fields themselves."""
CONFIG = """
[generation]
with-security-parameters = false
[checks.negative_data_rejection]
expected-statuses = ["4xx"]
"""
SERVER_ERROR = "ServerError"
"""Name of schemathesis for a status of 500 or more."""


class Report(msgspec.Struct):
    """The parts of a schemathesis report that are used."""

    test_cases: dict[str, int]
    failures: list[Json]
    errors: list[Json]


def local(context: CaseContext) -> Outcome:
    """Test `welldone serve` with a local model."""
    with small_server(context.model, "-c", CONTEXT, "--embeddings") as server:
        return _outcome(context, server, (*CHECKS, REFUSES))


def through_the_gateway(context: CaseContext) -> Outcome:
    """Test the gateway in front of the reference server."""
    with _before_an_ideal_server(context.folder) as server:
        return _outcome(context, server, CHECKS)


@contextmanager
def _before_an_ideal_server(folder: Path) -> Iterator[Running]:
    backend = Upstream(ReferenceServer(models=("hello",)).answer, handles_all=True)
    try:
        backend.start()
        with gateway(folder, backend.url) as server:
            yield server
    finally:
        backend.end()


def _outcome(context: CaseContext, server: Running, checks: tuple[str, ...]) -> Outcome:
    if not PROGRAM.is_file():
        return Outcome(not_run="schemathesis is not installed: make .venv/.dev")
    folder = context.folder / "schemathesis"
    folder.mkdir()
    document = _document(server)
    (folder / "openapi.json").write_bytes(msgspec.json.encode(_narrowed(document, server.model)))
    (folder / "schemathesis.toml").write_text(CONFIG)
    report = _run(context, server, folder, checks)
    cases = report.test_cases["generated"]
    wrong = {one["title"]: one for one in report.failures}
    failed = sum(one["count"] for one in report.failures if one["type"] == SERVER_ERROR)
    others = sum(one["count"] for one in report.failures if one["type"] != SERVER_ERROR)
    alive = server.process.poll() is None
    summary = (
        "every reply matched the document" if not wrong else f"{len(wrong)} kinds of replies violated the document"
    )
    return Outcome(
        count=cases,
        happened=f"{summary}, and the server {'kept running' if alive else 'exited'}",
        figures=(
            Figure("operations tested", len(list(_operations(document))), least=20),
            Figure("responses with status 5xx", failed, most=0),
            Figure("replies that violate the document", others, most=0),
        ),
        problems=(
            *(f"{title}: {', '.join(one['operations'])}" for title, one in wrong.items()),
            *(f"schemathesis failed: {str(one)[:300]}" for one in report.errors),
            *(() if alive else ("the server exited",)),
        ),
    )


def _document(server: Running) -> Json:
    with RawConnection(server, "/openapi.json", method="GET") as line:
        found: Json = msgspec.json.decode(line.reply().trace.body)
    return found


def _operations(document: Json) -> Iterator[tuple[str, str]]:
    for path, item in document["paths"].items():
        yield from ((path, method) for method in item if method != "parameters")


def _narrowed(document: Json, model: str) -> Json:
    """Fix the key and the model in the document; else most requests would fail at either."""
    parts = document["components"]
    schemas = dict(parts["schemas"])
    for name, schema in schemas.items():
        if name.endswith("Request") and "model" in schema.get("properties", {}):
            schemas[name] = {**schema, "properties": {**schema["properties"], "model": {"enum": [model, None]}}}
    schemes = {"bearer": parts["securitySchemes"]["bearer"]}
    return {
        **document,
        "security": [{"bearer": []}],
        "components": {"schemas": schemas, "securitySchemes": schemes},
    }


def _run(context: CaseContext, server: Running, folder: Path, checks: tuple[str, ...]) -> Report:
    written = folder / "report.json"
    command = [str(PROGRAM), "run", "openapi.json", "--url", server.url]
    command += ["--header", f"Authorization: Bearer {server.key}", "--checks", ",".join(checks)]
    command += ["--seed", str(context.seed), "--max-examples", str(context.times(30, 1)), "--no-shrink"]
    command += ["--phases", "fuzzing" if context.is_short else "coverage,fuzzing", "--continue-on-failure"]
    command += ["--report", "json", "--report-json-path", str(written), "--suppress-health-check", "all"]
    with (folder / "output.txt").open("wb") as summary:
        process = subprocess.Popen(command, cwd=folder, stdout=summary, stderr=summary, env=ENVIRONMENT)
        try:
            began = time.monotonic()
            while process.poll() is None and time.monotonic() - began < LIMIT_S:
                context.note(f"{time.monotonic() - began:.0f} s")
                with suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
        finally:
            process.kill()
            process.wait()
    if not written.exists():
        words = (folder / "output.txt").read_text(errors="replace")[-500:]
        return Report({"generated": 0}, [], [{"output": words}])
    return msgspec.json.decode(written.read_bytes(), type=Report)


CASES = (
    Case("schemas", "requests generated from the OpenAPI document (schemathesis), to a local model", local),
    Case("schemas-gateway", "the same, through the gateway to a correct server", through_the_gateway),
)
