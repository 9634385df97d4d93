"""The pages under docs/rules, read from their files."""

import re
from pathlib import Path

from welldone.rules.rule_pages import RuleExample, read_examples

PAGES = Path(__file__).parents[2] / "docs" / "rules"

_DIALOGUE = re.compile(r"^```text (wrong|right)\n(.+?)^```$", re.MULTILINE | re.DOTALL)


def read_page(path: Path) -> list[RuleExample]:
    """The cases of one page."""
    return read_examples(path.stem, path.read_text("utf-8"))


def read_dialogues(path: Path) -> dict[str, str]:
    """The dialogues of the page of a rule that takes a probe to hear: the wrong one and the right one."""
    return dict(_DIALOGUE.findall(path.read_text("utf-8")))
