"""`welldone rules`: list the rules of the stream, or show the page of one.

List the rules of the stream, or show one with examples.

examples:
  welldone rules
  welldone rules tool
  welldone rules delta-role-once
  welldone rules --json
"""

from collections.abc import Sequence

import msgspec

from welldone.cli import ui
from welldone.cli.options import CommandParser
from welldone.cli.ui import ExitCode, UsageError
from welldone.config.settings import unknown_rule
from welldone.core.catalog import FAMILIES, RULES, Rule
from welldone.reporting import format_table, wrap_text
from welldone.rules.rule_pages import read_page

RULES_JSON_VERSION = 3


def run(arguments: list[str]) -> ExitCode:
    """List rules, or show the page of one."""
    options = _parser().parse(arguments)
    if options.id in RULES and not options.json:
        ui.print_line(read_page(options.id))
        return ExitCode.OK
    rules = [rule for rule in RULES.values() if options.id is None or options.id in (rule.id, rule.family)]
    if not rules:
        raise UsageError(unknown_rule(options.id, [*RULES, *FAMILIES]))
    if options.json:
        ui.print_line(msgspec.json.encode({"version": RULES_JSON_VERSION, "rules": rules}).decode())
        return ExitCode.OK
    ui.print_lines(_rule_lines(rules, ui.terminal_width()))
    return ExitCode.OK


def _rule_lines(rules: Sequence[Rule], width: int | None) -> list[str]:
    def colour(row: int, column: int, cell: str) -> str:
        return ui.colorize(cell, rules[row].severity) if column == 1 else cell

    rows = [(rule.id, rule.severity, rule.repairability, rule.detection, rule.summary) for rule in rules]
    legend = "reply: judged from one captured reply by welldone lint and check; probe: judged by welldone check only"
    return [
        *format_table(rows, width, paint=colour),
        *wrap_text("", f"{len(rules)} rules; welldone rules ID shows one with examples", width),
        *wrap_text("", legend, width),
    ]


def _parser() -> CommandParser:
    parser = CommandParser("rules", __doc__)
    parser.option("ID", "a rule, or a family of rules such as tool", dest="id", nargs="?")
    parser.option("--json", "print the rules as JSON")
    return parser
