"""Each rule has a page, which is told without what only its generator needs."""

from tests.table import table
from welldone.rules.page import page
from welldone.wire.faults.catalogue import BY_ID


@table("rule", BY_ID)
def test_a_rule_has_a_page(rule: str) -> None:
    text = page(rule)
    assert text.startswith("# ")
    assert "<!--" not in text
