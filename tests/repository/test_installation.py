"""welldone is on no package index, where anyone can publish the name: no text may advise to install it from one."""

import re
from pathlib import Path

from tests.table import table
from welldone.config.settings import install_advice

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "src", "deploy", "tools", "benchmarks", "faults")
SUFFIXES = {"", ".md", ".py", ".toml", ".yml", ".yaml", ".json", ".1", ".js", ".html", ".service", ".sh"}
INSTALLER = r"(?:pip3? (?:install|download|wheel)|pipx (?:install|run)|uv (?:add|tool (?:install|run))|uvx|poetry add)"
OPTIONS = r"(?:\s+-(?!-from\b)[^\s`'\"]+)*"
ADVICE = re.compile(rf"\b{INSTALLER}{OPTIONS}\s+['\"]?welldone(?![\w./-])[^\s`]*")


def documents() -> list[Path]:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]
    files += [*ROOT.glob("*.md"), *ROOT.glob("*.yml"), ROOT / "Makefile"]
    return [path for path in files if path.is_file() and "node_modules" not in path.parts]


def test_no_text_advises_to_install_welldone_from_an_index() -> None:
    assert [
        f"{path.relative_to(ROOT)}: {found}"
        for path in documents()
        for found in ADVICE.findall(path.read_text("utf-8", "replace"))
    ] == []


@table(
    "text",
    [
        "pip install welldone",
        "pip install 'welldone[serve]'",
        "/opt/welldone/bin/pip install --quiet 'welldone[serve]==0.2.0'",
        'pipx install "welldone[all]"',
        "uv tool install welldone",
        "uvx welldone check URL",
    ],
)
def test_advice_to_install_from_an_index_is_found(text: str) -> None:
    assert ADVICE.search(f"Run `{text}` first.")


@table(
    "text",
    [
        "pip install '.[serve]'",
        "pip install .",
        install_advice("serve"),
        "/opt/welldone/bin/pip install --no-deps 'dist/welldone-0.2.0-py3-none-any.whl[serve]'",
        "uvx --from dist/welldone-*.whl welldone check URL",
        "pip install welldone-0.2.0-py3-none-any.whl",
    ],
)
def test_a_clone_and_a_wheel_are_no_index(text: str) -> None:
    assert not ADVICE.search(f"Run `{text}` first.")
