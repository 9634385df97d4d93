"""`welldone rules`: the rules of the stream, and the page of each."""

import msgspec

from welldone.cli import show
from welldone.cli.exits import Exit, UsageError
from welldone.cli.options import Parser, nearest
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
    width = max(len(fault.id) for fault in faults)
    for fault in faults:
        severity = show.paint(f"{fault.severity:<9}", fault.severity)
        show.line(f"{fault.id:<{width}}  {severity}  {fault.mend:<8}  {fault.by:<5}  {fault.rule}")
    show.line(f"{len(faults)} rules; welldone rules ID shows one with examples")
    show.line("reply: heard in one captured reply, so welldone lint judges it too; probe: only welldone check does")
    return Exit.RIGHT


def _is_meant(fault: Fault, word: str) -> bool:
    return fault.id == word or fault.id.partition("-")[0] == word


def _parser() -> Parser:
    parser = Parser("rules", "List the rules of the stream, or show the page of one.", EXAMPLES)
    parser.add_argument("id", nargs="?", metavar="ID", help="a rule, or a family of rules such as tool")
    parser.add_argument("--json", action="store_true", help="the rules as JSON")
    return parser
