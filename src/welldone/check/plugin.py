"""pytest plugin: `welldone_check` checks a server in a test, `welldone_mock` is a server for tests of clients.

pytest loads every installed plugin in every run, so this module imports nothing else until a fixture is used.
"""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def welldone_check() -> Callable[..., Any]:
    """Checks a server: `welldone_check("http://127.0.0.1:8000/v1", model="m", profile="ai-sdk", strict=True)`.

    `welldone_check(asgi_app=app)` checks an ASGI application in this process, without a port. The test fails if the
    server does not pass; with `check=False` it does not. Returns the report.
    """
    api = importlib.import_module("welldone.check.api")

    def check(url: str | None = None, **settings: Any) -> Any:  # noqa: ANN401 - the parameters of `check_server`
        __tracebackhide__ = True
        try:
            return api.check_server(url, **settings)
        except api.CheckFailedError as error:
            message = str(error)
        return pytest.fail(message, pytrace=False)

    return check


@pytest.fixture
def welldone_mock() -> Iterator[Callable[..., Any]]:
    """Starts a server without a model, in this process: `server = welldone_mock(rule="delta-role-once")`.

    `rule` is broken in answers that are otherwise correct; `fault` names a fault of `welldone mock --list`; `text` is
    the answer to every request, with a pause of `gap_s` before each token. Without any, answers are correct.
    `server.url` is its base URL, `server.requests` what it received. It is closed at the end of the test.
    """
    mock = importlib.import_module("welldone.mock.server")
    variants = importlib.import_module("welldone.mock.variants")
    started: list[Any] = []

    def start(**parameters: Any) -> Any:  # noqa: ANN401 - the parameters of `make_mock_server`
        started.append(mock.BackgroundMock(variants.make_mock_server(**parameters)))
        return started[-1]

    yield start
    for server in started:
        server.close()
