"""From what the probes heard to the report: verdicts by probe and by rule, findings, and what it all cost."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from welldone.check import repro, trace_files
from welldone.check.applicability import UNCOVERED, not_applicable_reason
from welldone.check.probe import Probe
from welldone.check.probe_client import ServerFacts
from welldone.check.reply import ProbeReply
from welldone.check.report import Finding, ProbeResult, RuleResult, RunCost, Verdict
from welldone.check.session import ProbeViolation, Session
from welldone.check.settings import CheckSettings
from welldone.http.redaction import SecretRedactor
from welldone.protocol.catalog import ALL_RULES, RULES_BY_ID
from welldone.protocol.catalog.rule import Rule, Severity

_SEVERITY_ORDER = [severity.value for severity in Severity]
_CATALOGUE_ORDER = {fault.id: place for place, fault in enumerate(ALL_RULES)}
_CHARS_PER_TOKEN = 4  # of English text, roughly, in the tokenizers of today
_MAX_REPORTED_TOKENS = 10**9  # of a request: a hundred times the longest context of today


class ProbeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A probe that ran."""

    probe: Probe
    session: Session
    seconds: float
    is_supported: bool = True
    reason: str = ""
    """Why it ended early: not offered, or not heard."""
    inapplicable: Mapping[str, str]
    """Why rules of its own had no say."""
    is_finished: bool = True
    """False where the run was interrupted before the probe had done its work, or had begun it."""


def probe_result(outcome: ProbeOutcome) -> ProbeResult:
    """What a probe came to."""
    session = outcome.session
    verdict, why = _probe_verdict(outcome)
    return ProbeResult(
        name=outcome.probe.name,
        description=outcome.probe.description,
        verdict=verdict,
        reason=why,
        requests=len(session.replies),
        rules=len(session.judged),
        broken=tuple(dict.fromkeys(found.rule for found in session.violations)),
        is_incomplete=session.is_incomplete,
        is_timed_out=session.is_timed_out,
        causes=tuple(dict.fromkeys(found.rule for found in session.violations if found.cause is None)),
        seconds=round(outcome.seconds, 3),
    )


def _probe_verdict(outcome: ProbeOutcome) -> tuple[Verdict, str]:
    session = outcome.session
    if session.violations:
        return verdict_for(found.severity for found in session.violations), outcome.reason
    if session.is_timed_out:
        return Verdict.TIMED_OUT, outcome.reason
    if outcome.reason:
        return (Verdict.NOT_APPLICABLE if outcome.is_supported else Verdict.UNSUPPORTED), outcome.reason
    if not session.judged:
        return Verdict.NOT_APPLICABLE, next(iter(outcome.inapplicable.values()), "no rule that was asked for had a say")
    return Verdict.PASS, ""


def verdict_for(severities: Iterable[str]) -> Verdict:
    """The verdict on what breaks rules of these severities."""
    found = set(severities)
    if not found:
        return Verdict.PASS
    return Verdict.FAIL if Severity.BREAKS in found else Verdict.WARN


def build_findings(
    outcomes: Sequence[ProbeOutcome], settings: CheckSettings, facts: ServerFacts
) -> tuple[Finding, ...]:
    """What was heard, by severity; of each rule and probe the first, and how often it was."""
    secrets = settings.secrets
    all_found = [
        _build_finding(outcome, found, settings, facts, secrets)
        for outcome in outcomes
        for found in _first_per_rule(outcome.session.violations)
    ]
    # The sort is stable: the findings of one rule stay in the order of the probes.
    all_found.sort(key=lambda finding: (_SEVERITY_ORDER.index(finding.severity), _CATALOGUE_ORDER[finding.rule]))
    return tuple(all_found)


def _first_per_rule(violations: Sequence[ProbeViolation]) -> Iterable[ProbeViolation]:
    """Of each rule the first that nothing else explains, or else the first."""
    by_rule: dict[str, ProbeViolation] = {}
    for one in violations:
        first = by_rule.setdefault(one.rule, one)
        if first.cause is not None and one.cause is None:
            by_rule[one.rule] = one
    return by_rule.values()


def _build_finding(
    outcome: ProbeOutcome,
    violation: ProbeViolation,
    settings: CheckSettings,
    facts: ServerFacts,
    secrets: SecretRedactor,
) -> Finding:
    probe, rule = outcome.probe.name, violation.rule
    is_kept = settings.record is not None and trace_files.is_recordable(violation.reply, secrets)
    curl = repro.repro_curl(settings, violation.reply.request)
    return Finding(
        rule=rule,
        severity=violation.severity.value,
        probe=probe,
        request=violation.reply.number,
        frame=violation.frame,
        byte=violation.byte,
        observed=secrets.redact(violation.observed),
        expected=secrets.redact(violation.expected),
        count=outcome.session.counts[rule],
        affects=RULES_BY_ID[rule].affects,
        reproduce=repro.repro_command(settings, facts.model, probe, rule),
        curl=None if curl is None else secrets.redact(curl),
        trace=trace_files.trace_filename(probe, violation.reply) if is_kept else None,
        is_new=settings.known is None or rule not in settings.known,
        cause=violation.cause,
    )


def rule_results(outcomes: Sequence[ProbeOutcome], rule_ids: frozenset[str]) -> tuple[RuleResult, ...]:
    """What each rule came to."""
    return tuple(_rule_result(fault, outcomes) for fault in ALL_RULES if fault.id in rule_ids)


def _rule_result(fault: Rule, outcomes: Sequence[ProbeOutcome]) -> RuleResult:
    rule = fault.id
    broken = [outcome for outcome in outcomes if any(found.rule == rule for found in outcome.session.violations)]
    judged = [outcome for outcome in outcomes if rule in outcome.session.judged]
    verdict, why = Verdict.PASS, ""
    if broken:
        severities = (
            found.severity for outcome in broken for found in outcome.session.violations if found.rule == rule
        )
        verdict = verdict_for(severities)
    elif not judged:
        verdict, why = _not_judged(rule, outcomes)
    return RuleResult(
        id=rule,
        summary=fault.summary,
        severity=fault.severity.value,
        verdict=verdict,
        reason=why,
        probes=tuple(outcome.probe.name for outcome in broken or judged),
    )


def _not_judged(rule: str, outcomes: Sequence[ProbeOutcome]) -> tuple[Verdict, str]:
    """Why a rule had no say: its own probes know best."""
    if rule in UNCOVERED:
        return Verdict.NOT_APPLICABLE, UNCOVERED[rule]
    own = [outcome for outcome in outcomes if rule in outcome.probe.rules]
    for outcome in own:
        if not outcome.is_supported:
            return Verdict.UNSUPPORTED, outcome.reason
    reasons = [outcome.inapplicable.get(rule) or outcome.reason for outcome in own]
    return Verdict.NOT_APPLICABLE, next(filter(None, reasons), None) or not_applicable_reason(rule)


def run_cost(outcomes: Sequence[ProbeOutcome], seconds: float) -> RunCost:
    """What the run has cost the server."""
    replies = [reply for outcome in outcomes for reply in outcome.session.replies]
    answered = [reply for reply in replies if reply.is_judged and reply.is_ok]
    return RunCost(
        requests=len(replies),
        prompt_tokens=sum(_prompt_tokens(reply) for reply in answered),
        completion_tokens=sum(_completion_tokens(reply) for reply in answered),
        is_counted=all(reply.usage is not None for reply in answered),
        seconds=round(seconds, 3),
    )


def _prompt_tokens(reply: ProbeReply) -> int:
    told = _reported_tokens(reply, "prompt_tokens", "input_tokens")
    return len(reply.request.body or b"") // _CHARS_PER_TOKEN if told is None else told


def _reported_tokens(reply: ProbeReply, *names: str) -> int | None:
    """What the server has counted, where it can be true. Dialects have other names for the same."""
    told = next((count for name in names if (count := reply.usage_count(name)) is not None), None)
    return told if told is not None and 0 <= told <= _MAX_REPORTED_TOKENS else None


def _completion_tokens(reply: ProbeReply) -> int:
    told = _reported_tokens(reply, "completion_tokens", "output_tokens")
    if told is not None:
        return told
    # A chunk is most often a token.
    return len(reply.delta_times) if reply.is_stream else len(reply.text) // _CHARS_PER_TOKEN
