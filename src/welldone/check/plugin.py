"""pytest plugin with the fixture `welldone_check`, which checks a server in a test.

pytest loads every installed plugin in every run, so this module imports the check only when the fixture is used.
"""

import importlib
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def welldone_check() -> Callable[..., Any]:
    """Checks a server: `welldone_check("http://127.0.0.1:8000/v1", model="m", profile="ai-sdk", strict=True)`.

    The test fails if the server does not pass; with `check=False` it does not. Returns the report.
    """
    api = importlib.import_module("welldone.check.api")

    def check(url: str, **settings: Any) -> Any:  # noqa: ANN401 - the parameters of `check_server`
        __tracebackhide__ = True
        try:
            return api.check_server(url, **settings)
        except api.CheckFailedError as error:
            message = str(error)
        return pytest.fail(message, pytrace=False)

    return check
