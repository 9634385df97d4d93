"""Each page's blocks, run: a wrong one breaks the page's rule, a right one breaks none."""

from tests.rules.pages import PAGES, read_dialogues, read_page
from tests.table import table
from welldone.protocol.catalog import ALL_RULES
from welldone.protocol.catalog.rule import Detection
from welldone.rules.judge import LintVerdict, judge
from welldone.rules.rule_pages import RuleExample

BLOCKS = [block for path in sorted(PAGES.glob("*-*.md")) for block in read_page(path)]


@table("block", [block for block in BLOCKS if not block.is_correct], ids=lambda block: block.name)
def test_a_wrong_block_breaks_the_rule_of_its_page(block: RuleExample) -> None:
    assert block.rule in judge(block.trace).counts


@table("block", [block for block in BLOCKS if block.is_correct], ids=lambda block: block.name)
def test_a_right_block_breaks_no_rule(block: RuleExample) -> None:
    judgement = judge(block.trace)
    assert judgement.findings == ()
    assert judgement.verdict is LintVerdict.PASS


@table("rule", [fault.id for fault in ALL_RULES if fault.detection is Detection.REPLY])
def test_every_rule_that_a_reply_shows_has_a_page_with_both_kinds_of_blocks(rule: str) -> None:
    assert {block.is_correct for block in BLOCKS if block.rule == rule} == {True, False}


@table("rule", [fault.id for fault in ALL_RULES if fault.detection is Detection.PROBE])
def test_every_rule_that_takes_a_probe_has_a_page_with_both_kinds_of_dialogues(rule: str) -> None:
    page = PAGES / f"{rule}.md"
    dialogues = read_dialogues(page)
    assert set(dialogues) == {"wrong", "right"}
    assert dialogues["wrong"] != dialogues["right"]
    assert all(part in page.read_text("utf-8") for part in ("**Why.**", "**Repair.**", "**Check.**"))
    assert read_page(page) == []  # no reply shows it
