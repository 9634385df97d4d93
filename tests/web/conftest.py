"""Fixtures: a browser per test file, a page per test, a scripted gateway. Unexpected console messages fail a test."""

from collections.abc import Iterator
from typing import Protocol

import pytest
from playwright.sync_api import Browser

from tests.web.browser import DESKTOP, Size, Visit, browsing, program
from tests.web.stage import Stage, staged


class Visiting(Protocol):
    """Opens the page of the server at an address."""

    def __call__(self, origin: str, *, size: Size = DESKTOP, is_dark: bool = False) -> Visit: ...


# Per module: the browser keeps an event loop running in this thread, which blocks others.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium."""
    if program() is None:
        pytest.skip("Chromium is not installed (system package chromium)")
    with browsing() as made:
        yield made


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visiting]:
    """Open pages; assert at the end that they had no complaints."""
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
    """A gateway without a key, shared by a module. Tests that break its upstream start their own."""
    with staged(tmp_path_factory.mktemp("stage")) as made:
        yield made


@pytest.fixture
def page(visit: Visiting, stage: Stage) -> Visit:
    """The page of the gateway at desktop size."""
    return visit(stage.server.root)
