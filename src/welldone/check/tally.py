"""From what the probes heard to the report: verdicts by probe and by rule, findings, and what it all cost."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from welldone.check import again, recording
from welldone.check.desk import Facts
from welldone.check.occasions import why_unheard
from welldone.check.probe import Probe
from welldone.check.reach import OUT_OF_REACH
from welldone.check.reply import Reply
from welldone.check.report import Cost, Finding, Probed, Ruled, Verdict
from welldone.check.session import Found, Session
from welldone.check.settings import CheckSettings
from welldone.net.secrets import Secrets
from welldone.wire.faults import Fault, Severity
from welldone.wire.faults.catalogue import ALL, BY_ID

_SEVERITIES = [severity.value for severity in Severity]
_PLACES = {fault.id: place for place, fault in enumerate(ALL)}
_LETTERS_PER_TOKEN = 4  # of English text, roughly, in the tokenizers of today
_MOST_TOKENS = 10**9  # of a request: a hundred times the longest context of today


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A probe that ran."""

    probe: Probe
    session: Session
    seconds: float
    is_offered: bool = True
    why: str = ""
    """Why it ended early: not offered, or not heard."""
    unheard: Mapping[str, str]
    """Why rules of its own had no say."""
    is_ended: bool = True
    """False where the run was interrupted before the probe had done its work, or had begun it."""


def probed(outcome: Outcome) -> Probed:
    """What a probe came to."""
    session = outcome.session
    verdict, why = _verdict(outcome)
    return Probed(
        name=outcome.probe.name,
        says=outcome.probe.says,
        verdict=verdict,
        why=why,
        requests=len(session.replies),
        rules=len(session.judged),
        broken=tuple(dict.fromkeys(found.rule for found in session.found)),
        is_given_up=session.is_given_up,
        is_timed_out=session.is_timed_out,
        causes=tuple(dict.fromkeys(found.rule for found in session.found if found.cause is None)),
        seconds=round(outcome.seconds, 3),
    )


def _verdict(outcome: Outcome) -> tuple[Verdict, str]:
    session = outcome.session
    if session.found:
        return worth(found.severity for found in session.found), outcome.why
    if session.is_timed_out:
        return Verdict.TIMED_OUT, outcome.why
    if outcome.why:
        return (Verdict.NOT_HEARD if outcome.is_offered else Verdict.NOT_OFFERED), outcome.why
    if not session.judged:
        return Verdict.NOT_HEARD, next(iter(outcome.unheard.values()), "no rule that was asked for had a say")
    return Verdict.RIGHT, ""


def worth(severities: Iterable[str]) -> Verdict:
    """The verdict on what breaks rules of these severities."""
    found = set(severities)
    if not found:
        return Verdict.RIGHT
    return Verdict.WRONG if Severity.BREAKS in found else Verdict.LAX


def findings(outcomes: Sequence[Outcome], settings: CheckSettings, facts: Facts) -> tuple[Finding, ...]:
    """What was heard, by severity; of each rule and probe the first, and how often it was."""
    secrets = settings.secrets
    all_found = [
        _finding(outcome, found, settings, facts, secrets)
        for outcome in outcomes
        for found in _firsts(outcome.session.found)
    ]
    # The sort is stable: the findings of one rule stay in the order of the probes.
    all_found.sort(key=lambda finding: (_SEVERITIES.index(finding.severity), _PLACES[finding.rule]))
    return tuple(all_found)


def _firsts(found: Sequence[Found]) -> Iterable[Found]:
    """Of each rule the first that nothing else explains, or else the first."""
    by_rule: dict[str, Found] = {}
    for one in found:
        first = by_rule.setdefault(one.rule, one)
        if first.cause is not None and one.cause is None:
            by_rule[one.rule] = one
    return by_rule.values()


def _finding(outcome: Outcome, found: Found, settings: CheckSettings, facts: Facts, secrets: Secrets) -> Finding:
    probe, rule = outcome.probe.name, found.rule
    is_kept = settings.record is not None and recording.is_kept(found.reply, secrets)
    curl = again.curl(settings, found.reply.asked)
    return Finding(
        rule=rule,
        severity=found.severity.value,
        probe=probe,
        request=found.reply.number,
        frame=found.frame,
        byte=found.byte,
        heard=secrets.clean(found.heard),
        wanted=secrets.clean(found.wanted),
        count=outcome.session.counts[rule],
        hurts=BY_ID[rule].hurts,
        again=again.command(settings, facts.model, probe, rule),
        curl=None if curl is None else secrets.clean(curl),
        trace=recording.name_of(probe, found.reply) if is_kept else None,
        is_new=settings.known is None or rule not in settings.known,
        cause=found.cause,
    )


def ruled(outcomes: Sequence[Outcome], wanted: frozenset[str]) -> tuple[Ruled, ...]:
    """What each rule came to."""
    return tuple(_ruled(fault, outcomes) for fault in ALL if fault.id in wanted)


def _ruled(fault: Fault, outcomes: Sequence[Outcome]) -> Ruled:
    rule = fault.id
    broken = [outcome for outcome in outcomes if any(found.rule == rule for found in outcome.session.found)]
    judged = [outcome for outcome in outcomes if rule in outcome.session.judged]
    verdict, why = Verdict.RIGHT, ""
    if broken:
        severities = (found.severity for outcome in broken for found in outcome.session.found if found.rule == rule)
        verdict = worth(severities)
    elif not judged:
        verdict, why = _unjudged(rule, outcomes)
    return Ruled(
        id=rule,
        rule=fault.rule,
        severity=fault.severity.value,
        verdict=verdict,
        why=why,
        probes=tuple(outcome.probe.name for outcome in broken or judged),
    )


def _unjudged(rule: str, outcomes: Sequence[Outcome]) -> tuple[Verdict, str]:
    """Why a rule had no say: its own probes know best."""
    if rule in OUT_OF_REACH:
        return Verdict.NOT_HEARD, OUT_OF_REACH[rule]
    own = [outcome for outcome in outcomes if rule in outcome.probe.rules]
    for outcome in own:
        if not outcome.is_offered:
            return Verdict.NOT_OFFERED, outcome.why
    reasons = [outcome.unheard.get(rule) or outcome.why for outcome in own]
    return Verdict.NOT_HEARD, next(filter(None, reasons), None) or why_unheard(rule)


def cost(outcomes: Sequence[Outcome], seconds: float) -> Cost:
    """What the run has cost the server."""
    replies = [reply for outcome in outcomes for reply in outcome.session.replies]
    answered = [reply for reply in replies if reply.is_judged and reply.is_ok]
    return Cost(
        requests=len(replies),
        prompt_tokens=sum(_prompt_tokens(reply) for reply in answered),
        completion_tokens=sum(_completion_tokens(reply) for reply in answered),
        is_counted=all(reply.usage is not None for reply in answered),
        seconds=round(seconds, 3),
    )


def _prompt_tokens(reply: Reply) -> int:
    told = _told(reply, "prompt_tokens", "input_tokens")
    return len(reply.asked.body or b"") // _LETTERS_PER_TOKEN if told is None else told


def _told(reply: Reply, *names: str) -> int | None:
    """What the server has counted, where it can be true. Dialects have other names for the same."""
    told = next((count for name in names if (count := reply.tokens(name)) is not None), None)
    return told if told is not None and 0 <= told <= _MOST_TOKENS else None


def _completion_tokens(reply: Reply) -> int:
    told = _told(reply, "completion_tokens", "output_tokens")
    if told is not None:
        return told
    # A chunk is most often a token.
    return len(reply.text_times) if reply.is_stream else len(reply.text) // _LETTERS_PER_TOKEN
