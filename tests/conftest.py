"""How all tests run: how hard hypothesis tries, and that nothing is skipped in silence where CI watches."""

import os
from collections.abc import Generator
from typing import TypeVar

import pytest
from hypothesis import settings

pytest_plugins = ["tests.models.fixtures", "tests.live.server"]

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() not in {"", "0", "false"}


IN_CI = _is_set("CI")
NO_SKIP = IN_CI or _is_set("WELLDONE_NO_SKIP")

# No deadline anywhere: it would make a slow machine a failing one.
settings.register_profile("dev", deadline=None, max_examples=100)
# In CI the same examples each time: a change is judged by what it changes. Who wants others runs them at home.
settings.register_profile("ci", deadline=None, max_examples=100, print_blob=True, derandomize=True)
settings.load_profile("ci" if IN_CI else "dev")


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
