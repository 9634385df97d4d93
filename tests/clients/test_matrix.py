"""Every recorded or quoted server and every real client: what the client shows is what the server sent.

With WELLDONE_WRITE_MATRIX=1 the page is written anew (`make matrix`).
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.clients.cases import Case, recorded_cases
from tests.clients.client import ROOT, Client, Program
from tests.clients.failing import failing_cases
from tests.clients.play import playing
from tests.clients.programs.job import Job, Saw
from tests.clients.readers import READERS, Reader
from tests.clients.table import Cell, draw
from tests.live.server import KEY, serving

pytestmark = pytest.mark.tier3

PAGE = ROOT / "docs" / "matrix.md"
CASES = [*recorded_cases(), *failing_cases()]
AT_ONCE = 3
"""Clients that read at the same time: one more than a small machine has cores, since each waits now and then."""
STUMBLES = {"AssertionError", "AttributeError", "IndexError", "KeyError", "NameError", "TypeError", "UnboundLocalError"}
"""A client that ends so tells nobody what happened. A mistake in one of our programs ends so, too."""

GATEWAY = """
[upstreams.recorded]
url = "{url}"
models = ["*"]
n = "native"   # several choices were recorded as one reply
probe_s = 0    # it answers nothing but requests
"""

Shown = dict[str, tuple[Saw, Saw]]
"""What a client has shown of each case: through welldone, and without it."""


def _read_all(client: Client, reader: Reader, through: str, without: str) -> Shown:
    def one(case: Case, url: str, key: str) -> Saw:
        job = Job(scenario="read", base_url=url, model=case.name, key=key, endpoint=case.endpoint, asks=case.asks)
        return client.ask(job)

    asked = [case for case in CASES if reader.can_ask(case)]
    return {case.name: (one(case, through, KEY), one(case, without, "none")) for case in asked}


@pytest.fixture(scope="module")
def shown(
    client_of: Callable[[Program], Client], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Shown]]:
    """All cells, by the title of the client; the clients that are not here are left out."""
    config = tmp_path_factory.mktemp("gateway") / "welldone.toml"
    readers = [reader for reader in READERS if reader.program.why_missing() is None]
    with playing({case.name: case.reply for case in CASES}) as without:
        config.write_text(GATEWAY.format(url=without))
        with serving(["--config", str(config)], is_awaited=False) as gateway, ThreadPoolExecutor(AT_ONCE) as pool:
            # The last ones take longest, so they begin.
            reads = {
                reader.title: pool.submit(_read_all, client_of(reader.program), reader, gateway.url, without)
                for reader in reversed(readers)
            }
            yield {title: read.result() for title, read in reads.items()}


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.program.name)
def test_a_client_shows_what_the_server_sent(shown: dict[str, Shown], reader: Reader) -> None:
    mine = _of(shown, reader)
    wrong = {case.name: reader.what_is_wrong(case, mine[case.name][0]) for case in CASES if case.name in mine}
    assert len(wrong) > len(CASES) / 3  # else hardly anything was looked at
    assert {name: complaint for name, complaint in wrong.items() if complaint} == {}


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.program.name)
def test_a_server_that_failed_is_the_clients_own_error(shown: dict[str, Shown], reader: Reader) -> None:
    mine = _of(shown, reader)
    errors = {case.name: mine[case.name][0]["error"] or "" for case in CASES if case.is_failure and case.name in mine}
    assert errors
    assert {name: error for name, error in errors.items() if error.partition(":")[0] in STUMBLES} == {}


def _of(shown: dict[str, Shown], reader: Reader) -> Shown:
    if reader.title not in shown:
        pytest.skip(str(reader.program.why_missing()))
    return shown[reader.title]


def test_the_page_is_what_was_measured(shown: dict[str, Shown]) -> None:
    for reader in READERS:
        _of(shown, reader)
    cells = {
        (reader.title, case.name): Cell(*(reader.what_is_wrong(case, saw) for saw in shown[reader.title][case.name]))
        for reader in READERS
        for case in CASES
        if case.name in shown[reader.title]
    }
    page = draw(READERS, CASES, cells)
    if os.environ.get("WELLDONE_WRITE_MATRIX"):
        PAGE.write_text(page, "utf-8")
    assert PAGE.read_text("utf-8") == page, "the page is not fresh: make matrix"
