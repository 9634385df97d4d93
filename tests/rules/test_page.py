"""Each rule has a page, which is told without what only its generator needs."""

from tests.table import table
from welldone.rules.page import read_page
from welldone.wire.faults.catalogue import RULES_BY_ID


@table("rule", RULES_BY_ID)
def test_a_rule_has_a_page(rule: str) -> None:
    text = read_page(rule)
    assert text.startswith("# ")
    assert "<!--" not in text
