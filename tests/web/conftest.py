"""A browser for each file of tests, a visit for each test, and a scripted stage. A visit that had complaints fails."""

from collections.abc import Iterator
from typing import Protocol

import pytest
from playwright.sync_api import Browser

from tests.web.browser import DESKTOP, Size, Visit, browsing, program
from tests.web.stage import Stage, staged


class Visiting(Protocol):
    """Opens the page of the server at an address."""

    def __call__(self, origin: str, *, size: Size = DESKTOP, is_dark: bool = False) -> Visit: ...


# A browser keeps an event loop running in this thread, and other tests want their own: it ends with the file.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium."""
    if program() is None:
        pytest.skip("no Chromium here: install the system's package chromium")
    with browsing() as made:
        yield made


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visiting]:
    """Opens pages; looks through what they complained of when the test is over."""
    visits: list[Visit] = []

    def open_one(origin: str, *, size: Size = DESKTOP, is_dark: bool = False) -> Visit:
        visits.append(Visit(browser, origin, size=size, is_dark=is_dark))
        return visits[-1]

    try:
        yield open_one
        assert [text for one in visits for text in one.complaints()] == []
    finally:
        for one in visits:
            one.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A gateway without a key. Who breaks its upstream takes one of its own."""
    with staged(tmp_path_factory.mktemp("stage")) as made:
        yield made


@pytest.fixture
def page(visit: Visiting, stage: Stage) -> Visit:
    """The page of the stage, on a desktop."""
    return visit(stage.server.root)
