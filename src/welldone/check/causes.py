"""Causes of what a server does wrong, in plain sentences: what happens, in which replies, and what to change.

`causes.json` has the sentences. Broken rules with one sentence are one cause. The findings that follow from others in
the same reply (`rules/judge.RootCauses`) are in none.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pkgutil import get_data

import msgspec

from welldone.check.reply import ProbeReply
from welldone.check.report import Cause, Finding, group_by
from welldone.check.session import Session
from welldone.core.catalog import RULES, Detection, Severity

_STREAM_FIELDS = ("stream", "stream_options")
_FAILURE_CHANGE = "Find the reason in the server's log. Refuse with a 400 only what the server does not support."
HANG_CHANGE = "Refuse this request with a 400, or answer it: no request may stop the server."
_SEVERITIES = [severity.value for severity in Severity]


class CauseText(msgspec.Struct, frozen=True):
    """What a server does that breaks these rules, and what to change."""

    rules: tuple[str, ...]
    cause: str
    change: str
    is_compared: bool = False
    """Whether the same request tells more where it was sent both streamed and not streamed."""


_TEXTS = msgspec.json.decode(get_data("welldone.check", "causes.json") or b"", type=list[CauseText])
CAUSES: Mapping[str, CauseText] = {rule: text for text in _TEXTS for rule in text.rules}
"""Texts by rule."""


def _is_streamed(reply: ProbeReply) -> bool:
    return reply.trace.wants_stream is True


def _has_tools(reply: ProbeReply) -> bool:
    return bool((reply.request.json or {}).get("tools"))


def _is_tool_call(reply: ProbeReply) -> bool:
    return any(choice.tool_calls for choice in reply.choices)


_CLASSES: tuple[tuple[str, Callable[[ProbeReply], bool]], ...] = (
    ("streamed tool calls", lambda reply: _is_tool_call(reply) and _is_streamed(reply)),
    ("tool calls", _is_tool_call),
    ("streams with tools", lambda reply: _has_tools(reply) and _is_streamed(reply)),
    ("replies with tools", _has_tools),
    ("streams", _is_streamed),
    ("replies that are not streamed", lambda reply: not _is_streamed(reply)),
    ("replies", lambda _: True),
)
"""Kinds of reply, the smallest first."""


def find_causes(
    findings: Sequence[Finding], sessions: Sequence[Session], curl_of: Callable[[ProbeReply], str | None]
) -> Iterator[Cause]:
    """Answers that ended in an error, then the causes of the findings: by severity, the most frequent first."""
    answers = [reply for session in sessions for reply in session.answers]
    violations = [violation for session in sessions for violation in session.violations]
    failed = [reply for reply in answers if reply.failure]
    wrong = {*failed, *(violation.reply for violation in violations if violation.severity == Severity.BREAKS)}
    if failed:
        where = _where({*failed}, {*answers}) + _comparison({*failed}, answers, wrong)
        yield Cause(f"answers end in an error{where}", _FAILURE_CHANGE, (), Severity.BREAKS.value, curl_of(failed[0]))
    causes: list[tuple[int, int, Cause]] = []
    by_text = group_by(findings, lambda finding: CAUSES.get(finding.rule) or _own_text(finding))
    for text, (first, *others) in by_text.items():
        rules = (first.rule, *(finding.rule for finding in others))
        roots = {violation.reply for violation in violations if violation.rule in rules and violation.cause is None}
        where = ""
        if all(RULES[rule].detection is Detection.REPLY for rule in rules):
            judged = {reply for session in sessions for rule in rules for reply in session.judged.get(rule, ())}
            where = _where(roots, judged) + (_comparison(roots, answers, wrong) if text.is_compared else "")
        cause = Cause(f"{text.cause}{where}", text.change, rules, first.severity, first.curl or first.reproduce)
        causes.append((_SEVERITIES.index(first.severity), -len(roots), cause))
    yield from (cause for *_, cause in sorted(causes, key=lambda item: item[:2]))


def _own_text(finding: Finding) -> CauseText:
    """The text of a rule that has none."""
    return CauseText((finding.rule,), f"{finding.rule} is broken: {finding.observed}", RULES[finding.rule].summary)


def _where(these: set[ProbeReply], judged: set[ProbeReply]) -> str:
    """The part of the judged replies that these are."""
    groups = [(name, {reply for reply in judged if is_in(reply)}) for name, is_in in _CLASSES]
    candidates = [group for group in groups if group[1] == these] + [group for group in groups if group[1] >= these]
    name, replies = candidates[0]
    if len(replies) == 1:
        return ""
    return f", in {'all' if these == replies else f'{len(these)} of'} {len(replies)} {name}"


def _comparison(these: set[ProbeReply], answers: Iterable[ProbeReply], wrong: set[ProbeReply]) -> str:
    """Whether the same requests are answered correctly in the other form, streamed or not."""
    forms, requests = {_is_streamed(reply) for reply in these}, {_without_stream(reply) for reply in these}
    partners = [reply for reply in answers if _is_streamed(reply) not in forms and _without_stream(reply) in requests]
    if len(forms) != 1 or not partners or not wrong.isdisjoint(partners):
        return ""
    noun = "calls" if all(map(_has_tools, these)) else "requests"
    if noun == "calls" and not all(map(_is_tool_call, partners)):
        return ""
    return f"; the same {noun} {'unstreamed' if True in forms else 'streamed'} are right"


def _without_stream(reply: ProbeReply) -> str:
    fields = {name: value for name, value in (reply.request.json or {}).items() if name not in _STREAM_FIELDS}
    return json.dumps(fields, sort_keys=True)
