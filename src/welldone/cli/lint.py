"""`welldone lint`: judge a captured stream.

Report the rules that a captured stream breaks: where, what was observed and expected, and which clients
are affected. The exit code is 1 if a rule is broken that is not advice.

examples:
  curl -sN http://127.0.0.1:8000/v1/chat/completions -d @request.json | welldone lint --request request.json
  curl -siN --raw http://127.0.0.1:8000/v1/chat/completions -d @request.json | welldone lint
  welldone lint capture.txt --json
  welldone lint capture.txt --rule delta-role-once
"""

from argparse import Namespace

import msgspec

from welldone.cli import captures, ui
from welldone.cli.options import CommandParser
from welldone.cli.ui import ExitCode, UsageError
from welldone.config.settings import unknown_rule
from welldone.core.catalog import RULES, Detection
from welldone.reporting import follow_summary, pluralize, wrap_text
from welldone.rules.judge import LintFinding, LintReport, LintVerdict, has_content, judge

_SLOW_BYTES = 4 * 2**20  # a capture of this size takes about two seconds to judge
LINT_REPORT_VERSION = 2


def run(arguments: list[str]) -> ExitCode:
    """Judge a capture."""
    options = _parser().parse(arguments)
    for rule in options.rule:
        if rule not in RULES:
            raise UsageError(unknown_rule(rule, RULES))
        if RULES[rule].detection is Detection.PROBE:
            raise UsageError(f"{rule} cannot be judged from a captured reply; welldone check tests a server for it")
    request = captures.read_request(options.request, options.file)
    data = captures.read_bytes(options.file)
    trace = captures.read_reply(data, options.file, endpoint=options.endpoint, request=request)
    if not has_content(trace):
        ui.print_note("nothing to judge: the capture is empty")
        return ExitCode.NOTHING_TO_DO
    if len(trace.body) > _SLOW_BYTES:
        ui.print_hint(f"judging {len(trace.body) // 2**20} MB, which takes a few seconds …")
    report = judge(trace, options.rule or None)
    if report.rules == 0:
        ui.print_note(f"nothing to judge: {' and '.join(options.rule)} cannot be judged from this capture alone")
        return ExitCode.NOTHING_TO_DO
    if options.json:
        fields = {"version": LINT_REPORT_VERSION, "verdict": report.verdict}
        fields |= {"frames": report.frames, "findings": report.findings}
        ui.print_line(msgspec.json.encode(fields).decode())
    else:
        _print_report(report, options)
    return ExitCode.FAILED if report.verdict is LintVerdict.FAIL else ExitCode.OK


def _parser() -> CommandParser:
    parser = CommandParser("lint", __doc__)
    captures.add_arguments(parser)
    parser.option("--rule ID...", "judge only this rule (may be repeated)")
    parser.option("--json", "print the report as JSON")
    return parser


def _print_report(report: LintReport, options: Namespace) -> None:
    causes: dict[str, LintFinding] = {}
    following: dict[str, dict[str, None]] = {}
    # Both loops are needed: a finding may come before the one that causes it.
    for finding in report.findings:
        if finding.cause is None:
            causes.setdefault(finding.rule, finding)
    for finding in report.findings:
        if finding.cause is not None and finding.rule not in causes:
            following.setdefault(finding.cause, {})[finding.rule] = None
    for rule, first in causes.items():
        _print_finding(first, report.counts[rule], list(following.get(rule, ())))
    verdict = ui.colorize(report.verdict, report.verdict)
    broken = f"{pluralize(len(causes), 'rule')} broken" if causes else "no rule broken"
    others = len({rule for rules in following.values() for rule in rules})
    broken += follow_summary(others, len(causes))
    summary = f": {pluralize(report.frames, 'frame')}, {pluralize(report.rules, 'rule')} judged, {broken}"
    top, *more = wrap_text("", f"{report.verdict}{summary}", ui.terminal_width())
    ui.print_lines([top.replace(report.verdict, verdict, 1), *more])
    if report.missing and not options.rule:
        unjudged = f"{pluralize(report.skipped, 'rule')} not judged"
        needed = " and ".join(sorted({MISSING_INPUT_HINTS[need] for need in report.missing}))
        ui.print_lines(wrap_text("  ", f"{unjudged}; add {needed}", ui.terminal_width()))


MISSING_INPUT_HINTS = {
    "request": "--request FILE",
    "status": "the response head (curl -i)",
    "headers": "the response head (curl -i)",
    "path": "a trace with the path of the request",
    "end": "a recording that continues to the end",
    "complete": "the HTTP framing (curl -i --raw)",
    "chunk_sizes": "the HTTP framing (curl -i --raw)",
}
"""What the user can add to a capture, by the field of the trace that is missing."""


def _print_finding(first: LintFinding, count: int, following: list[str]) -> None:
    rule, width = first.rule, ui.terminal_width()
    position = "the whole reply" if first.frame is None else f"frame {first.frame}, byte {first.byte}"
    repeats = f", and {count - 1} more" if count > 1 else ""
    ui.print_line(f"x {rule}  {ui.colorize(first.label, first.severity)}  {position}{repeats}")
    labelled = [("observed", first.observed), ("expected", first.expected), ("causes", ", ".join(following))]
    labelled += zip(["affects", *[""] * len(first.affects)], first.affects, strict=False)
    labelled.append(("more", f"welldone rules {rule}"))
    lines = wrap_text("  ", RULES[rule].summary, width)
    for label, text in labelled:
        lines += wrap_text(f"  {label:<9}  ", text, width) if text or label == "observed" else []
    ui.print_lines([*lines, ""])
