"""Readers of the pages under docs/rules."""

import re
from pathlib import Path

from welldone.rules.rule_pages import RuleExample, read_examples

PAGES = Path(__file__).parents[2] / "docs" / "rules"

_DIALOGUE = re.compile(r"^```text (wrong|right)\n(.+?)^```$", re.MULTILINE | re.DOTALL)


def read_page(path: Path) -> list[RuleExample]:
    """Return the examples of a page."""
    return read_examples(path.stem, path.read_text("utf-8"))


def read_dialogues(path: Path) -> dict[str, str]:
    """Return the wrong and the right dialogue of the page of a probe rule."""
    return dict(_DIALOGUE.findall(path.read_text("utf-8")))
