"""`welldone rules`: the rules of the stream, and the page of each."""

from collections.abc import Sequence

import msgspec

from welldone.cli import ui
from welldone.cli.options import CommandParser
from welldone.cli.ui import ExitCode, UsageError
from welldone.config.settings import did_you_mean
from welldone.protocol.catalog import ALL_RULES, RULES_BY_ID
from welldone.protocol.catalog.rule import Rule
from welldone.reporting import format_table, wrap_text
from welldone.rules.rule_pages import read_page

EXAMPLES = """
welldone rules
welldone rules tool
welldone rules delta-role-once
welldone rules --json
"""


def run(arguments: list[str]) -> ExitCode:
    """List rules, or show one."""
    options = _parser().parse(arguments)
    if options.id in RULES_BY_ID and not options.json:
        ui.print_line(read_page(options.id))
        return ExitCode.OK
    faults = [fault for fault in ALL_RULES if options.id is None or _matches(fault, options.id)]
    if not faults:
        known = [*RULES_BY_ID, *{fault.id.partition("-")[0] for fault in ALL_RULES}]
        raise UsageError(f"there is no rule {options.id!r}{did_you_mean(options.id, known)}; welldone rules lists them")
    if options.json:
        ui.print_line(msgspec.json.encode({"version": 1, "rules": faults}).decode())
        return ExitCode.OK
    for line in _rule_lines(faults, ui.terminal_width()):
        ui.print_line(line)
    return ExitCode.OK


def _rule_lines(faults: Sequence[Rule], width: int | None) -> list[str]:
    def colour(row: int, column: int, cell: str) -> str:
        return ui.colorize(cell, faults[row].severity) if column == 1 else cell

    rows = [(fault.id, fault.severity, fault.repairability, fault.detection, fault.summary) for fault in faults]
    legend = "reply: heard in one captured reply, so welldone lint judges it too; probe: only welldone check does"
    return [
        *format_table(rows, width, paint=colour),
        *wrap_text("", f"{len(faults)} rules; welldone rules ID shows one with examples", width),
        *wrap_text("", legend, width),
    ]


def _matches(fault: Rule, word: str) -> bool:
    return fault.id == word or fault.id.partition("-")[0] == word


def _parser() -> CommandParser:
    parser = CommandParser("rules", "List the rules of the stream, or show the page of one.", EXAMPLES)
    parser.add_argument("id", nargs="?", metavar="ID", help="a rule, or a family of rules such as tool")
    parser.add_argument("--json", action="store_true", help="the rules as JSON")
    return parser
