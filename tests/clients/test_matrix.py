"""Every recorded server with every real client: the client shows what the server sent.

With WELLDONE_WRITE_MATRIX=1 the page is written anew (`make matrix`).
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.clients.cases import Case, recorded_cases
from tests.clients.client import ROOT, Client, Program
from tests.clients.failing_servers import failing_cases
from tests.clients.matrix_clients import MATRIX_CLIENTS, MatrixClient
from tests.clients.programs.job import Job, Result
from tests.clients.replay_server import replaying
from tests.clients.table import Cell, draw
from tests.support.server import KEY, serving

pytestmark = pytest.mark.tier3

PAGE = ROOT / "docs" / "matrix.md"
CASES = [*recorded_cases(), *failing_cases()]
CONCURRENT_CLIENTS = 3
"""One more than the cores of a small machine, since clients wait for input and output."""
INTERNAL_ERRORS = {
    "AssertionError",
    "AttributeError",
    "IndexError",
    "KeyError",
    "NameError",
    "TypeError",
    "UnboundLocalError",
}
"""Exceptions that point to a bug in the client (or in a test program), not to a reported failure."""

GATEWAY = """
[upstreams.recorded]
url = "{url}"
models = ["*"]
n = "native"   # several choices were recorded as one reply
probe_s = 0    # the replay server answers chat requests only
"""

Results = dict[str, tuple[Result, Result]]
"""Results of a client by case: through welldone, and without it."""


def _read_all(client: Client, reader: MatrixClient, through: str, without: str) -> Results:
    def run(case: Case, url: str, key: str) -> Result:
        job = Job(
            scenario="read", base_url=url, model=case.name, key=key, endpoint=case.endpoint, parameters=case.parameters
        )
        return client.run_job(job)

    cases = [case for case in CASES if reader.can_send(case)]
    return {case.name: (run(case, through, KEY), run(case, without, "none")) for case in cases}


@pytest.fixture(scope="module")
def all_results(
    client_of: Callable[[Program], Client], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Results]]:
    """Results by client title; clients that are not installed are missing."""
    config = tmp_path_factory.mktemp("gateway") / "welldone.toml"
    clients = [reader for reader in MATRIX_CLIENTS if reader.program.why_missing() is None]
    with replaying({case.name: case.reply for case in CASES}) as without:
        config.write_text(GATEWAY.format(url=without))
        with (
            serving(["--config", str(config)], is_awaited=False) as gateway,
            ThreadPoolExecutor(CONCURRENT_CLIENTS) as pool,
        ):
            # The last clients take longest, so they start first.
            reads = {
                reader.title: pool.submit(_read_all, client_of(reader.program), reader, gateway.url, without)
                for reader in reversed(clients)
            }
            yield {title: read.result() for title, read in reads.items()}


@pytest.mark.parametrize("reader", MATRIX_CLIENTS, ids=lambda reader: reader.program.name)
def test_a_client_shows_what_the_server_sent(all_results: dict[str, Results], reader: MatrixClient) -> None:
    results = _results_of(all_results, reader)
    differences = {case.name: reader.difference(case, results[case.name][0]) for case in CASES if case.name in results}
    assert len(differences) > len(CASES) / 3  # a client can send many of the requests
    assert {name: difference for name, difference in differences.items() if difference} == {}


@pytest.mark.parametrize("reader", MATRIX_CLIENTS, ids=lambda reader: reader.program.name)
def test_a_failed_server_raises_the_error_of_the_client(all_results: dict[str, Results], reader: MatrixClient) -> None:
    results = _results_of(all_results, reader)
    errors = {
        case.name: results[case.name][0]["error"] or "" for case in CASES if case.is_failure and case.name in results
    }
    assert errors
    assert {name: error for name, error in errors.items() if error.partition(":")[0] in INTERNAL_ERRORS} == {}


def _results_of(all_results: dict[str, Results], reader: MatrixClient) -> Results:
    if reader.title not in all_results:
        pytest.skip(str(reader.program.why_missing()))
    return all_results[reader.title]


def test_the_page_matches_the_measurement(all_results: dict[str, Results]) -> None:
    for reader in MATRIX_CLIENTS:
        _results_of(all_results, reader)
    cells = {
        (reader.title, case.name): Cell(
            *(reader.difference(case, result) for result in all_results[reader.title][case.name])
        )
        for reader in MATRIX_CLIENTS
        for case in CASES
        if case.name in all_results[reader.title]
    }
    page = draw(MATRIX_CLIENTS, CASES, cells)
    if os.environ.get("WELLDONE_WRITE_MATRIX"):
        PAGE.write_text(page, "utf-8")
    assert PAGE.read_text("utf-8") == page, "the page is not fresh: make matrix"
