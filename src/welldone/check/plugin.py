"""A plugin of pytest: the fixture `welldone_check`, with which the tests of a server check it.

pytest loads every plugin that is installed, in every run. So this one loads the check only where it is used.
"""

import importlib
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def welldone_check() -> Callable[..., Any]:
    """Checks a server: `welldone_check("http://127.0.0.1:8000/v1", model="m", profile="ai-sdk", strict=True)`.

    The test fails where the server does not pass. With `check=False` it does not: the report is what is returned.
    """
    fixture = importlib.import_module("welldone.check.api")

    def check(url: str, **settings: Any) -> Any:  # noqa: ANN401 - as `check_server` has them
        __tracebackhide__ = True
        try:
            return fixture.check_server(url, **settings)
        except fixture.NotPassedError as error:
            failed = str(error)
        return pytest.fail(failed, pytrace=False)

    return check
