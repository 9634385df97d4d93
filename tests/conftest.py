"""Test configuration: tiers, Hypothesis profiles, distribution over workers, and no skips in CI."""

import functools
import gc
import os
import re
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.support.path_comparison import compared_paths

pytest_plugins = ["tests.models.fixtures", "tests.support.server"]

ROOT = Path(__file__).parent
TIERS = {"clients": 2, "deploy": 2, "web": 2, "faults": 3}
"""Tier of folders whose tests take minutes, or need Node, Chromium, root or packages beyond those of `make test`."""
COMPARED = ("protocol/", "laws/", "recorded/", "matrix/", "server/test_gateway_laws", "server/test_stream_templates")
"""Tests whose pipelines compare the fast path with the slow one, which costs twice the time."""
ALONE = ("cluster", "vllm")
"""Folders with their own make targets, which run only if named on the command line."""
LONGEST_FIRST = ("clients", "web", "faults", "live", "cli")
"""Folders whose tests start programs. They run first, so that all workers end at about the same time."""
SHARED = ("zoo: Running", "server: Running")
"""Fixtures of servers that start slowly. The test files that use one share a worker."""

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() not in {"", "0", "false"}


# Builds of llama.cpp on this machine are not used, but those that `make test-engine` names.
os.environ.setdefault("WELLDONE_ENGINES", str(Path(tempfile.gettempdir()) / f"welldone-no-engines-{os.getuid()}"))
os.environ.pop("COLUMNS", None)  # set by pytest-xdist; it would limit the width of command output
IN_CI = _is_set("CI")
NO_SKIP = IN_CI or _is_set("WELLDONE_NO_SKIP")

# No deadline: tests must not fail on a slow machine.
settings.register_profile("quick", deadline=None, max_examples=25)
# CI uses the same examples in every run, so that a failure is caused by the change under test.
settings.register_profile("ci", deadline=None, max_examples=30, print_blob=True, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile("ci" if IN_CI else "quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--tier`."""
    text = "1: tests of make test; 2: further tests of CI; 3: all others (default: 1, or all tiers of named paths)"
    parser.addoption("--tier", type=int, choices=(1, 2, 3), help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Register markers; run all tiers of paths that are named on the command line."""
    config.addinivalue_line("markers", "tier2: CI runs it (`make test-more`), `make test` does not")
    config.addinivalue_line("markers", "tier3: only `make test-all` runs it")
    if config.option.tier is None and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.option.tier = 1


@pytest.fixture(scope="module", autouse=True)
def compare_paths(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the pipelines of the tests that are about streams check that fast path and slow path agree."""
    with compared_paths(is_on=request.path.relative_to(ROOT).as_posix().startswith(COMPARED)):
        yield


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Let child processes receive SIGINT even if the tests run with SIGINT ignored, as in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the import of files and folders without tests of the selected tier: it may need packages of that tier."""
    if ROOT not in collection_path.parents:
        return None
    folder = collection_path.relative_to(ROOT).parts[0]
    if folder in ALONE:
        return None if any(f"tests/{folder}" in argument for argument in config.args) else True
    if config.option.tier is None:
        return None
    files = collection_path.rglob("test_*.py") if collection_path.is_dir() else [collection_path]
    return None if any(config.option.tier in _tiers_in(file) for file in files) else True


def _tiers_in(file: Path) -> set[int]:
    text = file.read_text("utf-8")
    of_file = re.search(r"(?m)^pytestmark = .*mark\.tier(\d)", text)
    usual = int(of_file[1]) if of_file else TIERS.get(file.relative_to(ROOT).parts[0], 1)
    return {usual, *(int(tier) for tier in re.findall(r"mark\.tier(\d)", text))}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the other tiers, and run the slowest tests first."""
    selected: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    for item in items:
        (selected if config.option.tier in (None, _tier(item)) else deselected).append(item)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
    items[:] = sorted(selected, key=_rank)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude modules and tests from garbage collection: each would take 0.2 s, and load tests start many."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Run the tests of a file, and files that share a server, in one worker."""
    return _Scheduler(config, log)


class _Scheduler(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid.partition("::")[0])


@functools.cache
def _scope(path: str) -> str:
    if path.startswith("tests/clients/"):  # slow enough for one server per file
        return path
    text = (ROOT.parent / path).read_text("utf-8")
    return next((server for server in SHARED if server in text), path)


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT).parts[0]


def _tier(item: pytest.Item) -> int:
    marked = [tier for tier in (2, 3) if item.get_closest_marker(f"tier{tier}")]
    return max([TIERS.get(_folder(item), 1), *marked])


def _rank(item: pytest.Item) -> int:
    return LONGEST_FIRST.index(_folder(item)) if _folder(item) in LONGEST_FIRST else len(LONGEST_FIRST)


@pytest.fixture
def short_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """New folder like `tmp_path`, with a path that is short enough for Unix sockets."""
    return tmp_path_factory.mktemp("s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a skipped test as a failure if skips are not allowed."""
    return _not_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Report a skipped file as a failure if skips are not allowed."""
    return _not_skipped((yield))


def _not_skipped(report: Report) -> Report:
    if NO_SKIP and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped tests count as failures in this run: {reason}"
    return report
