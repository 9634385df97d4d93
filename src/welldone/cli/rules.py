"""`welldone rules`: the rules of the stream, and the page of each."""

from collections.abc import Sequence

import msgspec

from welldone.cli import show
from welldone.cli.exits import Exit, UsageError
from welldone.cli.options import Parser, nearest
from welldone.drawing.columns import table, wrapped
from welldone.rules.page import page
from welldone.wire.faults import Fault
from welldone.wire.faults.catalogue import ALL, BY_ID

EXAMPLES = """
welldone rules
welldone rules tool
welldone rules delta-role-once
welldone rules --json
"""


def run(arguments: list[str]) -> Exit:
    """List rules, or show one."""
    options = _parser().read(arguments)
    if options.id in BY_ID and not options.json:
        show.line(page(options.id))
        return Exit.RIGHT
    faults = [fault for fault in ALL if options.id is None or _is_meant(fault, options.id)]
    if not faults:
        known = [*BY_ID, *{fault.id.partition("-")[0] for fault in ALL}]
        raise UsageError(f"there is no rule {options.id!r}{nearest(options.id, known)}; welldone rules lists them")
    if options.json:
        show.line(msgspec.json.encode({"version": 1, "rules": faults}).decode())
        return Exit.RIGHT
    for line in _lines(faults, show.width()):
        show.line(line)
    return Exit.RIGHT


def _lines(faults: Sequence[Fault], width: int | None) -> list[str]:
    def colour(row: int, column: int, cell: str) -> str:
        return show.paint(cell, faults[row].severity) if column == 1 else cell

    rows = [(fault.id, fault.severity, fault.mend, fault.by, fault.rule) for fault in faults]
    legend = "reply: heard in one captured reply, so welldone lint judges it too; probe: only welldone check does"
    return [
        *table(rows, width, paint=colour),
        *wrapped("", f"{len(faults)} rules; welldone rules ID shows one with examples", width),
        *wrapped("", legend, width),
    ]


def _is_meant(fault: Fault, word: str) -> bool:
    return fault.id == word or fault.id.partition("-")[0] == word


def _parser() -> Parser:
    parser = Parser("rules", "List the rules of the stream, or show the page of one.", EXAMPLES)
    parser.add_argument("id", nargs="?", metavar="ID", help="a rule, or a family of rules such as tool")
    parser.add_argument("--json", action="store_true", help="the rules as JSON")
    return parser
