"""Get a model in the server view: search, choose, download with progress, cancel. With a fake Hub."""

import re
import threading
from pathlib import Path

from playwright.sync_api import Locator, expect

from tests.engines import files
from tests.engines.fake_hub import fake_hub
from tests.support.faults import small_server
from tests.web.browser import PHONE, Visit
from tests.web.conftest import Visiting
from tests.web.test_access import overflow, violations, with_axe

CONTENTS = {"a-Q8_0.gguf": files.model(4000), "a-Q4_K_M.gguf": files.model(3000)}


def section(page: Visit) -> Locator:
    """The section of the view."""
    return page.server.get_by_role("region", name="Get a model", exact=True)


def search(page: Visit, text: str) -> None:
    """Search for a model or a repository."""
    section(page).get_by_role("searchbox").fill(text)
    section(page).get_by_role("button", name="Search").click()


def test_a_model_is_searched_downloaded_and_cancelled(visit: Visiting, tiny_model: Path, tmp_path: Path) -> None:
    with fake_hub(tmp_path) as hub, small_server(tiny_model, key=None, environment=hub.environment) as running:
        hub.offer_repository(CONTENTS)
        hub.offer_search("owner/repo", "other/<b>markup</b>")
        released = threading.Event()
        for path, reply in hub.site.pages.items():
            if "a-Q8_0" in path:
                reply.released = released
        page = with_axe(visit(running.root, size=PHONE))
        page.go("Server")
        search(page, "a model")
        expect(section(page).get_by_text("other/<b>markup</b>")).to_be_visible()
        section(page).get_by_role("button", name="Show the files of owner/repo").click()
        expect(section(page).get_by_role("status")).to_have_text("owner/repo has 2 models.")
        expect(section(page).get_by_role("row").filter(has_text="Q4_K_M")).to_contain_text("usual choice")

        section(page).get_by_role("button", name="Download Q8_0").click()
        expect(section(page).get_by_role("progressbar", name="Download of hf:owner/repo:Q8_0")).to_be_visible()
        expect(section(page).get_by_role("button", name="Download Q4_K_M")).to_have_attribute("aria-disabled", "true")
        assert violations(page) == []
        assert overflow(page) <= 0
        section(page).get_by_role("button", name="Cancel the download").click()
        expect(section(page).get_by_text("cancelled. A new download resumes it.")).to_be_visible()

        section(page).get_by_role("button", name="Download Q4_K_M").click()
        expect(section(page).get_by_text("welldone serve -m a-Q4_K_M")).to_be_visible(timeout=60_000)
        assert (hub.folder / "a-Q4_K_M.gguf").read_bytes() == CONTENTS["a-Q4_K_M.gguf"]


def test_a_repository_that_cannot_be_read_is_explained(visit: Visiting, tiny_model: Path, tmp_path: Path) -> None:
    with fake_hub(tmp_path) as hub, small_server(tiny_model, key=None, environment=hub.environment) as running:
        hub.fail_list(403, "GatedRepo")
        page = visit(running.root)
        page.allow("status of 502")
        page.go("Server")
        search(page, "owner/repo")
        gated = re.compile("hf:owner/repo is gated: request access on the page of owner/repo")
        expect(section(page).get_by_role("status")).to_have_text(gated, timeout=60_000)
