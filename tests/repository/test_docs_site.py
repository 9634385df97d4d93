"""The documentation site builds without warnings, every link leads somewhere, nothing comes from other hosts."""

import json
import os
import posixpath
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from welldone.core.catalog import RULES

pytestmark = pytest.mark.tier2

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / ".venv-docs" / "bin" / "mkdocs"
LIMIT_S = 600.0
"""The build takes 15 seconds of CPU time, and more on a busy machine."""
LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("object", "data")}
"""Attributes whose target the browser loads without a click."""


class LinkParser(HTMLParser):
    """Collects the targets of a page: its ids, its links, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.ids.add(value)
            elif (tag, name) in LOADED and value:
                self.loaded.add(value)
            elif (tag, name) == ("a", "href") and value:
                self.links.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    if not PROGRAM.is_file():
        pytest.skip("run: make .venv-docs/.ready")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [str(PROGRAM), "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, LinkParser]:
    """The links of each page, by its path on the site."""
    found = {}
    for path in site.rglob("*.html"):
        parser = LinkParser()
        parser.feed(path.read_text("utf-8"))
        found[path.relative_to(site).as_posix()] = parser
    return found


def test_every_rule_has_its_address(site: Path) -> None:
    assert [rule for rule in RULES if not (site / "rules" / rule / "index.html").is_file()] == []


def test_every_link_and_anchor_leads_somewhere(site: Path, pages: dict[str, LinkParser]) -> None:
    broken = []
    for name, page in pages.items():
        if name == "404.html":  # its links begin at the root of the host
            continue
        for link in page.links | page.loaded:
            target = urlsplit(link)
            if target.scheme or target.netloc:
                continue
            path = (
                posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(target.path)))
                if target.path
                else name
            )
            if (site / path).is_dir():
                path = posixpath.join(path, "index.html").removeprefix("./")
            if not (site / path).is_file():
                broken.append(f"{name}: {link}")
            elif target.fragment and path in pages and unquote(target.fragment) not in pages[path].ids:
                broken.append(f"{name}: {link} (no such anchor)")
    assert broken == []


def test_nothing_is_loaded_from_other_hosts(site: Path, pages: dict[str, LinkParser]) -> None:
    foreign = {link for page in pages.values() for link in page.loaded if urlsplit(link).netloc}
    assert foreign == set()
    for path in site.rglob("*.css"):
        assert not re.search(r"""url\(["']?(https?:)?//""", path.read_text("utf-8")), path.name


def test_pages_are_found_by_the_search(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    texts = {entry["location"]: entry["text"] for entry in index["docs"]}
    assert "rules/fin-always-sent/" in texts
    for page in ("settings/", "cli/", "api/", "python/", "changelog/", "architecture/", "decisions/"):
        assert page in texts


def test_the_api_page_has_every_operation(site: Path) -> None:
    page = (site / "api" / "index.html").read_text("utf-8")
    document = json.loads((ROOT / "docs" / "openapi.json").read_text("utf-8"))
    assert [path for path in document["paths"] if f" {path}</code>" not in page] == []
    assert (site / "openapi.json").is_file()
