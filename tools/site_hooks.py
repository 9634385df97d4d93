"""Hooks of MkDocs: pages from outside docs/, a page of the HTTP API, and the navigation of rules and decisions.

In the repository, pages link to files of the tree. On the site, those files are pages too, or plain text.
"""

import json
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
ROOT_PAGES = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Pages of the site from the root of the repository."""
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
_METHODS = ("get", "post", "put", "delete")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the rules by family, the decisions, and pages that no section names."""
    assert config.nav is not None
    sections = {title: pages for section in config.nav for title, pages in section.items()}
    sections["Rules"] += rule_families((ROOT / "docs" / "rules" / "README.md").read_text("utf-8"))
    sections["Design"].append({"Decisions": pages_in("decisions")})
    named = {page for pages in sections.values() for page in pages if isinstance(page, str)}
    if rest := [page for page in pages_in(".") if page not in named]:
        config.nav.append({"More": rest})
    return config


def rule_families(index: str) -> list[dict[str, list[str]]]:
    """Return the pages of the rules by family, from the index of the rules."""
    families = re.split(r"(?m)^## ", index)[1:]
    page = re.compile(r"(?m)^\| \[[\w-]+\]\(([\w-]+\.md)\)")
    return [{family.partition("\n")[0]: [f"rules/{name}" for name in page.findall(family)]} for family in families]


def pages_in(folder: str) -> list[str]:
    """Return the pages in a folder of docs/."""
    paths = sorted((ROOT / "docs" / folder).glob("*.md"))
    return [path.relative_to(ROOT / "docs").as_posix() for path in paths]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for source, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    files.append(File.generated(config, "api.md", content=api_page()))
    return files


def api_page() -> str:
    """Return the page of the HTTP API: a table of all operations."""
    document = json.loads((ROOT / "docs" / "openapi.json").read_text("utf-8"))
    lines = [
        "# HTTP API",
        "",
        "Every path is available with and without `/v1`. The whole description, with all fields of requests and",
        "replies, is [openapi.json](openapi.json) (OpenAPI 3.1); a running server has it at `GET /openapi.json`.",
        "[Request fields](requests.md) explains the fields of requests for answers.",
        "",
        "| operation | purpose |",
        "|---|---|",
    ]
    for path, operations in document["paths"].items():
        found = [method for method in _METHODS if method in operations]
        lines += [f"| `{method.upper()} {path}` | {operations[method]['summary']} |" for method in found]
    return "\n".join(lines) + "\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links to files of the repository, outside code."""
    source = {page_name: name for name, page_name in ROOT_PAGES.items()}.get(page.file.src_uri)
    folder = "" if source is not None else posixpath.dirname(posixpath.join("docs", page.file.src_uri))

    def rewrite(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        path, mark, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        in_tree = posixpath.normpath(posixpath.join(folder, path))
        on_site = site_path(in_tree, files)
        if on_site is None:
            return match[0] if image or in_tree.startswith("docs/") else text  # a file of the tree has no address here
        relative = posixpath.relpath(on_site, posixpath.dirname(page.file.src_uri) or ".")
        return f"{image}[{text}]({relative}{mark}{anchor})"

    parts = _CODE.split(markdown)
    # A link around code, such as [`name`](page.md), must stay whole: code is replaced by marks meanwhile.
    marks = parts[1::2]
    text = "".join(part if index % 2 == 0 else f"\x00{index // 2}\x00" for index, part in enumerate(parts))
    return re.sub(r"\x00(\d+)\x00", lambda match: marks[int(match[1])], _LINK.sub(rewrite, text))


def site_path(path: str, files: Files) -> str | None:
    """Return the path on the site of a file or folder of the repository."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    if not path.startswith("docs"):
        return None
    inside = path.removeprefix("docs").strip("/")
    for candidate in (inside, posixpath.join(inside, "README.md")):
        if files.get_file_from_path(candidate) is not None:
            return candidate
    return None
