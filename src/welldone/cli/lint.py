"""`welldone lint`: the verdict on a captured stream."""

from argparse import Namespace

import msgspec

from welldone.cli import captures, show
from welldone.cli.exits import Exit, UsageError
from welldone.cli.options import Parser, nearest
from welldone.drawing.columns import wrapped
from welldone.rules.judge import Finding, Judgement, Verdict, has_something, judge
from welldone.wire.faults import Hearing
from welldone.wire.faults.catalogue import BY_ID

EXAMPLES = """
curl -sN http://127.0.0.1:8000/v1/chat/completions -d @request.json | welldone lint --request request.json
curl -siN --raw http://127.0.0.1:8000/v1/chat/completions -d @request.json | welldone lint
welldone lint capture.txt --json
welldone lint capture.txt --rule delta-role-once
"""


_LONG_BYTES = 4 * 2**20  # what may take longer than two seconds to judge


def run(arguments: list[str]) -> Exit:
    """Judge what was captured."""
    options = _parser().read(arguments)
    for rule in options.rule:
        if rule not in BY_ID:
            raise UsageError(f"there is no rule {rule!r}{nearest(rule, BY_ID)}; welldone rules lists them")
        if BY_ID[rule].by is Hearing.PROBE:
            raise UsageError(f"{rule} cannot be heard in one captured reply; welldone check judges it on a server")
    request = captures.read_request(options.request, options.file)
    data = captures.read_bytes(options.file)
    trace = captures.read_reply(data, options.file, endpoint=options.endpoint, request=request)
    if not has_something(trace):
        show.note("nothing to judge: the capture is empty")
        return Exit.NOTHING
    if len(trace.body) > _LONG_BYTES:
        show.hint(f"judging {len(trace.body) // 2**20} MB, which takes some seconds …")
    judgement = judge(trace, options.rule or None)
    if judgement.rules == 0:
        show.note(f"nothing to judge: {' and '.join(options.rule)} cannot be judged on this capture alone")
        return Exit.NOTHING
    if options.json:
        show.line(msgspec.json.encode(report(judgement)).decode())
    else:
        _show(judgement, options)
    return Exit.FOUND if judgement.verdict is Verdict.WRONG else Exit.RIGHT


def report(judgement: Judgement) -> dict[str, object]:
    """The verdict for programs."""
    return {
        "version": 1,
        "verdict": judgement.verdict,
        "frames": judgement.frames,
        "findings": judgement.findings,
    }


def _parser() -> Parser:
    parser = Parser("lint", "Judge a captured stream: which rules it breaks, where, and whom that hurts.", EXAMPLES)
    captures.add_arguments(parser)
    parser.add_argument(
        "--rule", metavar="ID", action="append", default=[], help="judge only this rule (may be repeated)"
    )
    parser.add_argument("--json", action="store_true", help="the verdict as JSON")
    return parser


def _show(judgement: Judgement, options: Namespace) -> None:
    causes: dict[str, Finding] = {}
    following: dict[str, dict[str, None]] = {}
    for finding in judgement.findings:
        if finding.cause is None:
            causes.setdefault(finding.rule, finding)
    for finding in judgement.findings:
        if finding.cause is not None and finding.rule not in causes:
            following.setdefault(finding.cause, {})[finding.rule] = None
    for rule, first in causes.items():
        _show_rule(first, judgement.counts[rule], list(following.get(rule, ())))
    verdict = show.paint(judgement.verdict, judgement.verdict)
    broken = f"{_count(len(causes), 'rule')} broken" if causes else "no rule broken"
    others = len({rule for rules in following.values() for rule in rules})
    if others:
        broken += (
            f", and {others} that {'follows' if others == 1 else 'follow'} from {'it' if len(causes) == 1 else 'them'}"
        )
    summary = f": {_count(judgement.frames, 'frame')}, {_count(judgement.rules, 'rule')} judged, {broken}"
    top, *more = wrapped("", f"{judgement.verdict}{summary}", show.width())
    for line in [top.replace(judgement.verdict, verdict, 1), *more]:
        show.line(line)
    if judgement.missing and not options.rule:
        unjudged = f"{_count(judgement.unheard, 'rule')} not judged"
        needed = " and ".join(sorted({HINTS[need] for need in judgement.missing}))
        for line in wrapped("  ", f"{unjudged}; judged with {needed}", show.width()):
            show.line(line)


HINTS = {
    "request": "--request FILE",
    "status": "the head (curl -i)",
    "headers": "the head (curl -i)",
    "end": "a recording that goes on to the end",
    "complete": "the HTTP framing (curl -i --raw)",
    "pieces": "the HTTP framing (curl -i --raw)",
}
"""How a user lets the judge know what it needs."""


def _show_rule(first: Finding, count: int, following: list[str]) -> None:
    rule, width = first.rule, show.width()
    place = "the whole reply" if first.frame is None else f"frame {first.frame}, byte {first.byte}"
    again = f", and {count - 1} more" if count > 1 else ""
    show.line(f"x {rule}  {show.paint(first.severity, first.severity)}  {place}{again}")
    labelled = [("heard", first.heard), ("wanted", first.wanted), ("causes", ", ".join(following))]
    labelled += zip(["hurts", *[""] * len(first.hurts)], first.hurts, strict=False)
    lines = wrapped("  ", BY_ID[rule].rule, width)
    for label, text in labelled:
        lines += wrapped(f"  {label:<6}  ", text, width) if text or label == "heard" else []
    for line in [*lines, f"  more    welldone rules {rule}", ""]:
        show.line(line)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
