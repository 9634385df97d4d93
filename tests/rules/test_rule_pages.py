"""Rule pages: every rule has one; wrong blocks violate the rule, right blocks violate none."""

from tests.rules.pages import PAGES, read_dialogues, read_page
from tests.table import table
from welldone.core.catalog import RULES, Detection
from welldone.rules import rule_pages
from welldone.rules.judge import LintVerdict, judge
from welldone.rules.rule_pages import RuleExample

BLOCKS = [block for path in sorted(PAGES.glob("*-*.md")) for block in read_page(path)]


@table("rule", RULES)
def test_a_rule_has_a_page_without_generator_comments(rule: str) -> None:
    text = rule_pages.read_page(rule)
    assert text.startswith("# ")
    assert "<!--" not in text


@table("block", [block for block in BLOCKS if not block.is_correct], ids=lambda block: block.name)
def test_a_wrong_block_violates_the_rule_of_its_page(block: RuleExample) -> None:
    assert block.rule in judge(block.trace).counts


@table("block", [block for block in BLOCKS if block.is_correct], ids=lambda block: block.name)
def test_a_right_block_violates_no_rule(block: RuleExample) -> None:
    report = judge(block.trace)
    assert report.findings == ()
    assert report.verdict is LintVerdict.PASS


@table("rule", [rule.id for rule in RULES.values() if rule.detection is Detection.REPLY])
def test_every_rule_detected_in_a_reply_has_wrong_and_right_blocks(rule: str) -> None:
    assert {block.is_correct for block in BLOCKS if block.rule == rule} == {True, False}


@table("rule", [rule.id for rule in RULES.values() if rule.detection is Detection.PROBE])
def test_every_rule_detected_by_a_probe_has_wrong_and_right_dialogues(rule: str) -> None:
    page = PAGES / f"{rule}.md"
    dialogues = read_dialogues(page)
    assert set(dialogues) == {"wrong", "right"}
    assert dialogues["wrong"] != dialogues["right"]
    assert all(part in page.read_text("utf-8") for part in ("**Why.**", "**Repair.**", "**Check.**"))
    assert read_page(page) == []  # a reply cannot show it
