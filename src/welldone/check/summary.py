"""Builds the parts of a report from the outcomes of the probes: verdicts, findings and cost."""

from collections.abc import Iterable, Sequence

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
from welldone.protocol.catalog import RULES, Rule, Severity

_SEVERITY_ORDER = [severity.value for severity in Severity]
_CATALOGUE_ORDER = {rule: number for number, rule in enumerate(RULES)}
_CHARS_PER_TOKEN = 4  # roughly, for English text in current tokenizers
_MAX_REPORTED_TOKENS = 10**9  # larger usage counts are wrong: a hundred times the longest context of today


class ProbeOutcome(msgspec.Struct):
    """A probe, and what is known of its run."""

    probe: Probe
    session: Session
    seconds: float = 0.0
    is_supported: bool = True
    early_reason: str = ""
    """Why it ended early."""
    is_finished: bool = False
    """False where the run was interrupted before the probe ended."""

    @property
    def reason(self) -> str:
        """Why it ended early, or was interrupted."""
        if self.is_finished:
            return self.early_reason
        return "interrupted" if self.session.replies else "not run: the check was interrupted"


def probe_result(outcome: ProbeOutcome) -> ProbeResult:
    """Result of a probe."""
    session = outcome.session
    verdict, reason = _probe_verdict(outcome)
    return ProbeResult(
        name=outcome.probe.name,
        description=outcome.probe.description,
        verdict=verdict,
        reason=reason,
        requests=len(session.replies),
        rules=len(session.judged),
        broken=tuple(dict.fromkeys(violation.rule for violation in session.violations)),
        is_incomplete=session.is_incomplete,
        is_timed_out=session.is_timed_out,
        causes=tuple(dict.fromkeys(violation.rule for violation in session.violations if violation.cause is None)),
        seconds=round(outcome.seconds, 3),
    )


def _probe_verdict(outcome: ProbeOutcome) -> tuple[Verdict, str]:
    session = outcome.session
    if session.violations:
        return verdict_for(violation.severity for violation in session.violations), outcome.reason
    if session.is_timed_out:
        return Verdict.TIMED_OUT, outcome.reason
    if outcome.reason:
        return (Verdict.NOT_APPLICABLE if outcome.is_supported else Verdict.UNSUPPORTED), outcome.reason
    if not session.judged:
        return Verdict.NOT_APPLICABLE, next(iter(session.inapplicable.values()), "none of the selected rules applies")
    return Verdict.PASS, ""


def verdict_for(severities: Iterable[str]) -> Verdict:
    """The verdict on violations of these severities."""
    distinct = set(severities)
    if not distinct:
        return Verdict.PASS
    return Verdict.FAIL if Severity.BREAKS in distinct else Verdict.WARN


def build_findings(
    outcomes: Sequence[ProbeOutcome], settings: CheckSettings, facts: ServerFacts
) -> tuple[Finding, ...]:
    """One finding for each rule and probe, by severity."""
    secrets = settings.secrets
    findings = [
        _build_finding(outcome, violation, settings, facts, secrets)
        for outcome in outcomes
        for violation in _first_per_rule(outcome.session.violations)
    ]
    # The sort is stable: the findings of one rule stay in the order of the probes.
    findings.sort(key=lambda finding: (_SEVERITY_ORDER.index(finding.severity), _CATALOGUE_ORDER[finding.rule]))
    return tuple(findings)


def _first_per_rule(violations: Sequence[ProbeViolation]) -> Iterable[ProbeViolation]:
    """For each rule the first root cause, or else the first violation."""
    by_rule: dict[str, ProbeViolation] = {}
    for violation in violations:
        first = by_rule.setdefault(violation.rule, violation)
        if first.cause is not None and violation.cause is None:
            by_rule[violation.rule] = violation
    return by_rule.values()


def _build_finding(
    outcome: ProbeOutcome,
    violation: ProbeViolation,
    settings: CheckSettings,
    facts: ServerFacts,
    secrets: SecretRedactor,
) -> Finding:
    probe, rule = outcome.probe.name, violation.rule
    is_recorded = settings.record is not None and trace_files.is_recordable(violation.reply, secrets)
    curl = repro.repro_curl(settings, violation.reply.request)
    return Finding(
        rule=rule,
        severity=violation.severity,
        probe=probe,
        request=violation.reply.number,
        frame=violation.frame,
        byte=violation.byte,
        observed=secrets.redact(violation.observed),
        expected=secrets.redact(violation.expected),
        count=outcome.session.counts[rule],
        affects=violation.affects,
        reproduce=repro.repro_command(settings, facts.model, probe, rule),
        curl=None if curl is None else secrets.redact(curl),
        trace=trace_files.trace_filename(probe, violation.reply) if is_recorded else None,
        is_new=settings.known is None or rule not in settings.known,
        cause=violation.cause,
    )


def rule_results(outcomes: Sequence[ProbeOutcome], rule_ids: frozenset[str]) -> tuple[RuleResult, ...]:
    """Results of the selected rules, in catalogue order."""
    return tuple(_rule_result(rule, outcomes) for rule in RULES.values() if rule.id in rule_ids)


def _rule_result(rule: Rule, outcomes: Sequence[ProbeOutcome]) -> RuleResult:
    found = [
        (outcome.probe.name, violation.severity)
        for outcome in outcomes
        for violation in outcome.session.violations
        if violation.rule == rule.id
    ]
    broken = dict(found)
    judged = [outcome.probe.name for outcome in outcomes if rule.id in outcome.session.judged]
    verdict, reason = verdict_for(severity for _, severity in found), ""
    if not broken and not judged:
        verdict, reason = _not_judged(rule.id, outcomes)
    return RuleResult(
        id=rule.id,
        summary=rule.summary,
        severity=rule.severity.value,
        verdict=verdict,
        reason=reason,
        probes=tuple(broken or judged),
    )


def _not_judged(rule: str, outcomes: Sequence[ProbeOutcome]) -> tuple[Verdict, str]:
    """Why a rule was not judged, preferably from a probe of that rule."""
    if rule in UNCOVERED:
        return Verdict.NOT_APPLICABLE, UNCOVERED[rule]
    probed = [outcome for outcome in outcomes if rule in outcome.probe.rules]
    for outcome in probed:
        if not outcome.is_supported:
            return Verdict.UNSUPPORTED, outcome.reason
    reasons = [outcome.session.inapplicable.get(rule) or outcome.reason for outcome in probed]
    return Verdict.NOT_APPLICABLE, next(filter(None, reasons), None) or not_applicable_reason(rule)


def run_cost(outcomes: Sequence[ProbeOutcome], seconds: float) -> RunCost:
    """Requests, tokens and time of the run."""
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
    return _tokens(reply, ("prompt_tokens", "input_tokens"), len(reply.request.body or b"") // _CHARS_PER_TOKEN)


def _completion_tokens(reply: ProbeReply) -> int:
    # Most servers send one token per chunk.
    estimate = len(reply.delta_times) if reply.is_stream else len(reply.text) // _CHARS_PER_TOKEN
    return _tokens(reply, ("completion_tokens", "output_tokens"), estimate)


def _tokens(reply: ProbeReply, names: tuple[str, str], estimate: int) -> int:
    """A plausible count from the reply's usage, or the estimate. `names` are those of different dialects."""
    count = next((count for name in names if (count := reply.usage_count(name)) is not None), -1)
    return count if 0 <= count <= _MAX_REPORTED_TOKENS else estimate
