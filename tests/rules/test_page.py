"""Each rule has a page, which is told without what only its generator needs."""

from tests.table import table
from welldone.protocol.catalog import RULES_BY_ID
from welldone.rules.rule_pages import read_page


@table("rule", RULES_BY_ID)
def test_a_rule_has_a_page(rule: str) -> None:
    text = read_page(rule)
    assert text.startswith("# ")
    assert "<!--" not in text
