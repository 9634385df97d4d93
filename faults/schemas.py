"""Schemathesis on the document that the server publishes: requests that fit it, and requests that do not quite.

It makes its requests from the schemas alone, so it tries what nobody thought of; and it holds each reply to what the
document promises. It is one of the packages of requirements/dev.in.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from faults.case import Case, Figure, Outcome, Stage
from tests.clients.client import QUIET
from tests.live.faults import small
from tests.live.raw import Line
from tests.live.server import Running
from tests.live.upstream import Upstream, gateway
from welldone.mock.reference.server import ReferenceServer

Json: TypeAlias = dict[str, Any]

LIMIT_S = 900.0
"""No run takes that long, also on a busy machine: a hang is a failure."""
PROGRAM = Path(sys.executable).with_name("schemathesis")
CONTEXT = "256"
"""Tokens of the local model: nobody's answer is longer, whatever a request asks for."""
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"),
    *("unsupported_method", "allow_header_conformance", "ignored_auth"),
)
REFUSES = "negative_data_rejection"
"""A body that does not fit is refused. Upstreams judge their fields themselves, so only local models are asked it."""
CONFIG = """
[generation]
with-security-parameters = false
[checks.negative_data_rejection]
expected-statuses = ["4xx"]
"""
SERVER_ERROR = "ServerError"
"""What schemathesis calls a status of 500 or more."""


class Report(msgspec.Struct):
    """What a run has shown, as far as it is read here."""

    test_cases: dict[str, int]
    failures: list[Json]
    errors: list[Json]


def local(stage: Stage) -> Outcome:
    """Ask `welldone serve` with a local model."""
    with small(stage.model, "-c", CONTEXT, "--embeddings") as server:
        return _outcome(stage, server, (*CHECKS, REFUSES))


def through_the_gateway(stage: Stage) -> Outcome:
    """Ask the gateway before a server that does all right."""
    with _before_an_ideal_server(stage.folder) as server:
        return _outcome(stage, server, CHECKS)


@contextmanager
def _before_an_ideal_server(folder: Path) -> Iterator[Running]:
    behind = Upstream(ReferenceServer(models=("hello",)).answer, for_all=True)
    try:
        behind.start()
        with gateway(folder, behind.url) as server:
            yield server
    finally:
        behind.end()


def _outcome(stage: Stage, server: Running, checks: tuple[str, ...]) -> Outcome:
    if not PROGRAM.is_file():
        return Outcome(not_run="schemathesis is not installed: make .venv/.dev")
    folder = stage.folder / "schemathesis"
    folder.mkdir()
    document = _document(server)
    (folder / "openapi.json").write_bytes(msgspec.json.encode(_narrowed(document, server.model)))
    (folder / "schemathesis.toml").write_text(CONFIG)
    report = _run(stage, server, folder, checks)
    cases = report.test_cases["generated"]
    wrong = {one["title"]: one for one in report.failures}
    failed = sum(one["count"] for one in report.failures if one["type"] == SERVER_ERROR)
    others = sum(one["count"] for one in report.failures if one["type"] != SERVER_ERROR)
    alive = server.process.poll() is None
    said = "every reply fitted the document" if not wrong else f"replies of {len(wrong)} kinds did not fit the document"
    return Outcome(
        count=cases,
        happened=f"{said}, and the server {'went on' if alive else 'ended'}",
        figures=(
            Figure("operations asked", len(list(_operations(document))), least=20),
            Figure("statuses of 500 and more", failed, most=0),
            Figure("replies that do not fit", others, most=0),
        ),
        troubles=(
            *(f"{title}: {', '.join(one['operations'])}" for title, one in wrong.items()),
            *(f"schemathesis failed: {str(one)[:300]}" for one in report.errors),
            *(() if alive else ("the server ended",)),
        ),
    )


def _document(server: Running) -> Json:
    with Line(server, "/openapi.json", method="GET") as line:
        found: Json = msgspec.json.decode(line.reply().trace.body)
    return found


def _operations(document: Json) -> Iterator[tuple[str, str]]:
    for path, item in document["paths"].items():
        yield from ((path, method) for method in item if method != "parameters")


def _narrowed(document: Json, model: str) -> Json:
    """The same document for who has one key and one model: else most requests would end at either."""
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


def _run(stage: Stage, server: Running, folder: Path, checks: tuple[str, ...]) -> Report:
    written = folder / "report.json"
    command = [str(PROGRAM), "run", "openapi.json", "--url", server.url]
    command += ["--header", f"Authorization: Bearer {server.key}", "--checks", ",".join(checks)]
    command += ["--seed", str(stage.seed), "--max-examples", str(stage.times(30, 1)), "--no-shrink"]
    command += ["--phases", "fuzzing" if stage.is_short else "coverage,fuzzing", "--continue-on-failure"]
    command += ["--report", "json", "--report-json-path", str(written), "--suppress-health-check", "all"]
    with (folder / "said.txt").open("wb") as said:
        process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said, env=QUIET)
        try:
            began = time.monotonic()
            while process.poll() is None and time.monotonic() - began < LIMIT_S:
                stage.note(f"{time.monotonic() - began:.0f} s")
                with suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
        finally:
            process.kill()
            process.wait()
    if not written.exists():
        words = (folder / "said.txt").read_text(errors="replace")[-500:]
        return Report({"generated": 0}, [], [{"said": words}])
    return msgspec.json.decode(written.read_bytes(), type=Report)


CASES = (
    Case("schemas", "requests made from the OpenAPI document (schemathesis), to a local model", local),
    Case("schemas-gateway", "the same, through the gateway to a server that does all right", through_the_gateway),
)
