"""How all tests run: which of them, how hard hypothesis tries, which share a worker, and that CI skips nothing."""

import functools
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

pytest_plugins = ["tests.models.fixtures", "tests.live.server"]

ROOT = Path(__file__).parent
TIERS = {"clients": 2, "deploy": 2, "web": 2, "faults": 3}
"""Folders of tests that take minutes, or need Node, Chromium, root or packages that `make test` does not install."""
COVERED = ("protocol/", "rules/", "recorded/", "laws/test_real.py")
"""Tests by which coverage of the core is measured: others would reach a branch without looking at what it does."""
ALONE = ("cluster", "vllm")
"""Folders whose tests have targets of their own: they run only where they are named."""
LONGEST_FIRST = ("clients", "web", "faults", "live", "cli")
"""Folders of tests that start programs: begun first, so that no worker ends long after the others."""
SHARED = ("zoo: Running", "server: Running")
"""Servers that take long to start: the files of tests that take one as an argument share a worker."""

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() not in {"", "0", "false"}


os.environ.pop("COLUMNS", None)  # pytest-xdist sets it, and then what commands print is cut to that width
IN_CI = _is_set("CI")
NO_SKIP = IN_CI or _is_set("WELLDONE_NO_SKIP")

# No deadline anywhere: it would make a slow machine a failing one.
settings.register_profile("quick", deadline=None, max_examples=25)
# In CI the same examples each time: a change is judged by what it changes. Who wants others runs them at home.
settings.register_profile("ci", deadline=None, max_examples=30, print_blob=True, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile("ci" if IN_CI else "quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which tests run."""
    words = "1: those of make test; 2: others that CI runs; 3: all others (default: 1, or all of what is named)"
    parser.addoption("--tier", type=int, choices=(1, 2, 3), help=words)


def pytest_configure(config: pytest.Config) -> None:
    """A named folder or file is run whole."""
    config.addinivalue_line("markers", "tier2: CI runs it (`make test-more`), `make test` does not")
    config.addinivalue_line("markers", "tier3: only `make test-all` runs it")
    if config.option.tier is None and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.option.tier = 1


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what will not run: that would take longer than to run it."""
    if ROOT not in collection_path.parents:
        return None
    folder = collection_path.relative_to(ROOT).parts[0]
    if folder in ALONE:
        return None if any(f"tests/{folder}" in argument for argument in config.args) else True
    if config.option.tier is None or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text("utf-8")
    of_file = re.search(r"(?m)^pytestmark = .*mark\.tier(\d)", text)
    usual = int(of_file[1]) if of_file else TIERS.get(folder, 1)
    return None if config.option.tier == usual or f"mark.tier{config.option.tier}" in text else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the other tier, and begin with the tests that take longest."""
    chosen: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (chosen if config.option.tier in (None, _tier(item)) else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = sorted(chosen, key=_rank)
    for item in items:
        if not item.path.relative_to(ROOT).as_posix().startswith(COVERED):
            item.add_marker("no_cover")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Which tests share a worker: those of a file, and the files that share a server."""
    return _Scheduler(config, log)


class _Scheduler(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid.partition("::")[0])


@functools.cache
def _scope(path: str) -> str:
    if path.startswith("tests/clients/"):  # they take so long that each file is worth a server of its own
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
    """A new folder, as `tmp_path`, whose path is short enough for sockets."""
    return tmp_path_factory.mktemp("s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that did not run has shown nothing."""
    return _not_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A file that was skipped whole has shown nothing either."""
    return _not_skipped((yield))


def _not_skipped(report: Report) -> Report:
    if NO_SKIP and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"a skipped test counts as a failure here. {reason}"
    return report
