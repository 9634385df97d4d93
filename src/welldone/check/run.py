"""A check run: discovery, the concurrent probes, then the exclusive ones, and the report on them."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from welldone import __version__
from welldone.check import repro
from welldone.check.applicability import NO_APPLICABLE_REPLY, UNCOVERED, not_applicable_reason
from welldone.check.causes import HANG_CHANGE, find_causes
from welldone.check.discovery import CheckUnreachableError, discover
from welldone.check.probe_client import SLOW_SERVER_HINT, ProbeClient, RecordResponse, ServerFacts
from welldone.check.probes import PROBES_BY_DIALECT
from welldone.check.reply import ProbeReply
from welldone.check.report import Cause, Finding, ProbeResult, Report, RuleResult, RunCost, Verdict, rules_for_client
from welldone.check.reports import text
from welldone.check.session import ENDED_IN_ERROR, NotApplicableError, Probe, ProbeViolation, Session, UnsupportedError
from welldone.check.settings import CheckSettings
from welldone.core.catalog import RULES, Kind, Severity
from welldone.http import recording_client
from welldone.reporting import pluralize
from welldone.rules.judge import LintFinding


class CheckProgress(msgspec.Struct, frozen=True):
    """Progress of a run."""

    done: int
    total: int
    running: tuple[str, ...]
    """Names of the running probes."""


class NothingToCheckError(Exception):
    """No rule was judged. The message is the reason."""


ResultT = TypeVar("ResultT")
ProgressCallback = Callable[[CheckProgress], None]
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


async def check(
    settings: CheckSettings,
    *,
    on_progress: ProgressCallback = lambda _: None,
    record_response: RecordResponse = recording_client.record_response,
    probes: Sequence[Probe] | None = None,
    stop: asyncio.Event | None = None,
) -> Report:
    """Check a server. When `stop` is set, the report covers what was done by then.

    Raises:
        CheckUnreachableError: the server cannot be checked.
        NothingToCheckError: no probe or no rule is selected, or no rule was judged.
        ValueError: the URL, the key or a header is invalid.
        OSError: the traces cannot be written.
    """
    selected = select_probes(settings, PROBES_BY_DIALECT[settings.endpoint] if probes is None else probes)
    rule_ids = select_rules(settings)
    client = ProbeClient(settings, record_response=record_response)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    started = time.monotonic()
    if settings.record is not None:
        repro.prepare_trace_folder(settings.record, [probe.name for probe in selected])
    on_progress(CheckProgress(0, len(selected), ("discovery",)))
    stop = stop or asyncio.Event()
    try:
        facts = await _run_until(stop, discover(client))
    except CheckUnreachableError as error:  # the message may quote the server, which may quote the key
        raise CheckUnreachableError(settings.secrets.redact(str(error))) from None
    facts = facts or ServerFacts(model=settings.model or "")  # interrupted
    outcomes = [ProbeOutcome(probe, Session(client, facts, probe.name, rule_ids)) for probe in selected]
    await _run_until(stop, _run_probes(outcomes, settings, on_progress))
    if settings.record is not None:
        for outcome in outcomes:
            repro.write_traces(settings.record, outcome.probe.name, outcome.session.replies, settings.secrets)
    is_interrupted = not all(outcome.is_finished for outcome in outcomes)
    is_partial = is_interrupted or bool(client.hang)
    if not is_partial:
        _require_judged(settings, outcomes)
    for outcome in outcomes:
        outcome.early_reason = outcome.early_reason.removesuffix(f"; {SLOW_SERVER_HINT}" if client.hang else "")
    findings = _build_findings(outcomes, settings, facts)
    is_timed_out = any(outcome.session.is_timed_out for outcome in outcomes)
    is_incomplete = any(outcome.session.is_incomplete for outcome in outcomes)
    verdict = _verdict_for(finding.kind for finding in findings)
    new_verdict = _verdict_for(finding.kind for finding in findings if finding.is_new)
    is_passed = new_verdict is Verdict.PASS or (new_verdict is Verdict.WARN and not settings.is_strict)
    failures = Counter(failure for outcome in outcomes for failure in outcome.session.failures)
    if failures and verdict is not Verdict.FAIL:
        verdict = Verdict.ERROR
    elif is_timed_out and not findings:
        verdict = Verdict.TIMED_OUT
    rules, known = _rule_results(outcomes, rule_ids), settings.known or frozenset()
    gone = {rule.id for rule in rules if rule.verdict is Verdict.PASS} | (known - RULES.keys())
    stale = [] if is_partial or is_incomplete or failures else sorted(known & gone)
    report = Report(
        tool=__version__,
        date=date,
        url=settings.url,
        model=facts.model,
        server=settings.secrets.redact(facts.server),
        endpoint=settings.endpoint,
        profile=settings.profile,
        is_strict=settings.is_strict,
        verdict=verdict,
        passed=is_passed and not (is_incomplete or is_partial or failures or stale),
        hang=client.hang,
        stale=tuple(stale),
        answers=sum(len(outcome.session.answers) for outcome in outcomes),
        failed_answers=failures.total(),
        failures=tuple(failure for failure, _ in failures.most_common()),
        timeout_s=settings.timeouts.reply_s,
        is_interrupted=is_interrupted,
        is_partial=is_partial,
        docs_url=settings.docs_url,
        cost=_run_cost(outcomes, time.monotonic() - started),
        probes=tuple(map(_probe_result, outcomes)),
        rules=rules,
        findings=findings,
    )
    sessions = [outcome.session for outcome in outcomes]
    causes = find_causes(_deciding_findings(report), sessions, lambda reply: repro.repro_curl(settings, reply.request))
    hang = []
    if client.hang_request is not None:
        curl = repro.repro_curl(settings, client.hang_request)
        hang = [Cause("the server stops answering", HANG_CHANGE, (), Severity.BREAKS.value, curl)]
    return msgspec.structs.replace(report, headline=text.headline(report), causes=(*hang, *causes))


def select_probes(settings: CheckSettings, probes: Sequence[Probe]) -> list[Probe]:
    """The probes to run."""

    def is_named(probe: Probe, names: Sequence[str]) -> bool:
        return any(f"{probe.name}-".startswith(f"{name}-") for name in names)

    chosen = [probe for probe in probes if not settings.only or is_named(probe, settings.only)]
    selected = [probe for probe in chosen if not is_named(probe, settings.skip)]
    if not selected:
        raise NothingToCheckError("no probe is selected: change --only and --skip")
    return selected


def select_rules(settings: CheckSettings) -> frozenset[str]:
    """Ids of the rules to judge."""
    selected = frozenset(
        rule.id for rule in RULES.values() if not {*rule.endpoints}.isdisjoint(settings.dialect.endpoints)
    )
    if settings.rules:
        selected &= frozenset(settings.rules)
    if not selected:
        raise NothingToCheckError(
            f"no rule is selected: the rules given with --rule do not apply to {settings.endpoint}"
        )
    if settings.profile is not None:
        selected &= rules_for_client(settings.profile)
    if not selected:
        raise NothingToCheckError(f"no rule is selected: none of them affects the profile {settings.profile}")
    return selected


def _require_judged(settings: CheckSettings, outcomes: Sequence[ProbeOutcome]) -> None:
    if any(outcome.session.judged or outcome.session.failures for outcome in outcomes):
        return
    reason = next((outcome.reason for outcome in outcomes if outcome.reason), NO_APPLICABLE_REPLY)
    if any(outcome.session.is_incomplete for outcome in outcomes):
        raise CheckUnreachableError(f"{settings.url}: {reason}")
    raise NothingToCheckError(f"no rule was judged: {reason}")


async def _run_until(stop: asyncio.Event, work: Coroutine[Any, Any, ResultT]) -> ResultT | None:
    """Result of the work; None where `stop` was set first and the work was cancelled."""
    running, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        is_done = running.done()
        running.cancel()
        stopping.cancel()
        await asyncio.wait({running, stopping})
    return running.result() if is_done else None


async def _run_probes(outcomes: Sequence[ProbeOutcome], settings: CheckSettings, on_progress: ProgressCallback) -> None:
    """Run the shared probes concurrently, then the exclusive ones in turn."""
    semaphore = asyncio.Semaphore(settings.jobs)
    running: list[str] = []

    def report_progress() -> None:
        done = sum(outcome.is_finished for outcome in outcomes)
        on_progress(CheckProgress(done, len(outcomes), tuple(running)))

    async def run(outcome: ProbeOutcome) -> None:
        async with semaphore:
            started = time.monotonic()
            running.append(outcome.probe.name)
            report_progress()
            try:
                await outcome.probe.run(outcome.session)
            except (UnsupportedError, NotApplicableError) as error:
                outcome.is_supported = not isinstance(error, UnsupportedError)
                outcome.early_reason = settings.secrets.redact(str(error))
            outcome.seconds = time.monotonic() - started
            outcome.is_finished = True
            running.remove(outcome.probe.name)
            report_progress()

    async with asyncio.TaskGroup() as group:
        for outcome in outcomes:
            if not outcome.probe.is_exclusive:
                group.create_task(run(outcome))
    for outcome in outcomes:
        if outcome.probe.is_exclusive:
            await run(outcome)


# ---- report


def _probe_result(outcome: ProbeOutcome) -> ProbeResult:
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
        failed_answers=len(session.failures),
        is_incomplete=session.is_incomplete,
        is_timed_out=session.is_timed_out,
        causes=tuple(dict.fromkeys(violation.rule for violation in session.violations if violation.cause is None)),
        seconds=round(outcome.seconds, 3),
    )


def _probe_verdict(outcome: ProbeOutcome) -> tuple[Verdict, str]:
    session = outcome.session
    verdict = _verdict_for(violation.kind for violation in session.violations)
    if session.failures:
        is_broken = verdict is Verdict.FAIL
        return verdict if is_broken else Verdict.ERROR, f"{ENDED_IN_ERROR}: {session.failures[0]}"
    if session.violations:
        return verdict, outcome.reason
    if session.is_timed_out:
        return Verdict.TIMED_OUT, outcome.reason
    if outcome.reason:
        return (Verdict.NOT_APPLICABLE if outcome.is_supported else Verdict.UNSUPPORTED), outcome.reason
    if not session.judged:
        return Verdict.NOT_APPLICABLE, next(iter(session.inapplicable.values()), "none of the selected rules applies")
    return Verdict.PASS, ""


def _verdict_for(kinds: Iterable[str]) -> Verdict:
    """The verdict on violations of rules of these kinds."""
    distinct = set(kinds)
    if not distinct:
        return Verdict.PASS
    return Verdict.WARN if distinct == {Kind.ADVICE} else Verdict.FAIL


def _build_findings(
    outcomes: Sequence[ProbeOutcome], settings: CheckSettings, facts: ServerFacts
) -> tuple[Finding, ...]:
    """One finding for each rule and probe, by severity."""
    secrets, findings = settings.secrets, []
    for outcome in outcomes:
        for violation in _first_per_rule(outcome.session.violations):
            probe, rule, reply = outcome.probe.name, violation.rule, violation.reply
            is_recorded = settings.record is not None and repro.is_recordable(reply, secrets)
            texts = {name: secrets.redact(getattr(violation, name)) for name in ("observed", "expected")}
            findings.append(
                Finding(
                    **{name: getattr(violation, name) for name in LintFinding.__struct_fields__} | texts,
                    probe=probe,
                    request=reply.number,
                    count=outcome.session.counts[rule],
                    reproduce=repro.repro_command(settings, facts.model, probe, rule),
                    curl=repro.repro_curl(settings, reply.request),
                    trace=repro.trace_filename(probe, reply) if is_recorded else None,
                    is_new=settings.known is None or rule not in settings.known,
                )
            )
    # The sort is stable: the findings of one rule stay in the order of the probes.
    findings.sort(key=lambda finding: (_SEVERITY_ORDER.index(finding.severity), _CATALOGUE_ORDER[finding.rule]))
    return tuple(findings)


def _deciding_findings(report: Report) -> list[Finding]:
    """The first root cause of each rule that fails the check; if none does, of each that may matter to a client."""
    roots = [findings[0] for findings in report.root_causes.values()]
    failing = [finding for finding in roots if text.is_failing(report, finding)]
    return failing or [finding for finding in roots if finding.severity != Severity.STYLE]


def _first_per_rule(violations: Sequence[ProbeViolation]) -> Iterable[ProbeViolation]:
    """For each rule the first root cause, or else the first violation."""
    by_rule: dict[str, ProbeViolation] = {}
    for violation in violations:
        first = by_rule.setdefault(violation.rule, violation)
        if first.cause is not None and violation.cause is None:
            by_rule[violation.rule] = violation
    return by_rule.values()


def _rule_results(outcomes: Sequence[ProbeOutcome], rule_ids: frozenset[str]) -> tuple[RuleResult, ...]:
    """Results of the selected rules, in catalogue order."""
    results = []
    for rule in RULES.values():
        if rule.id not in rule_ids:
            continue
        violations = [
            (outcome.probe.name, violation.kind)
            for outcome in outcomes
            for violation in outcome.session.violations
            if violation.rule == rule.id
        ]
        broken = dict(violations)
        judged = [outcome.probe.name for outcome in outcomes if rule.id in outcome.session.judged]
        verdict, reason = _verdict_for(violation_kind for _, violation_kind in violations), ""
        if not broken and not judged:
            verdict, reason = _not_judged(rule.id, outcomes)
        probes, severity = tuple(broken or judged), rule.severity.value
        results.append(
            RuleResult(
                id=rule.id, summary=rule.summary, severity=severity, verdict=verdict, reason=reason, probes=probes
            )
        )
    return tuple(results)


def _not_judged(rule: str, outcomes: Sequence[ProbeOutcome]) -> tuple[Verdict, str]:
    """Why a rule was not judged, preferably from a probe of that rule."""
    if rule in UNCOVERED:
        return Verdict.NOT_APPLICABLE, UNCOVERED[rule]
    probed = [outcome for outcome in outcomes if rule in outcome.probe.rules]
    for outcome in probed:
        if not outcome.is_supported:
            return Verdict.UNSUPPORTED, outcome.reason
    reasons = [outcome.session.inapplicable.get(rule) or outcome.reason for outcome in probed]
    failures = sum(len(outcome.session.failures) for outcome in outcomes)
    missing = sum(outcome.session.is_incomplete or not outcome.is_finished for outcome in outcomes)
    also = f"; {pluralize(failures, 'answer')} ended in an error" if failures else ""
    also += f"; {pluralize(missing, 'probe')} got no complete reply" if missing else ""
    return Verdict.NOT_APPLICABLE, next(filter(None, reasons), None) or f"{not_applicable_reason(rule)}{also}"


def _run_cost(outcomes: Sequence[ProbeOutcome], seconds: float) -> RunCost:
    """Requests, tokens and time of the run."""
    replies = [reply for outcome in outcomes for reply in outcome.session.replies]
    answered = [reply for reply in replies if reply.is_judged and reply.is_ok]
    prompt_tokens = completion_tokens = 0
    for reply in answered:
        estimate = len(reply.request.body or b"") // _CHARS_PER_TOKEN
        prompt_tokens += _tokens(reply, ("prompt_tokens", "input_tokens"), estimate)
        # Most servers send one token per chunk.
        estimate = len(reply.delta_times) if reply.is_stream else len(reply.text) // _CHARS_PER_TOKEN
        completion_tokens += _tokens(reply, ("completion_tokens", "output_tokens"), estimate)
    return RunCost(
        requests=len(replies),
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        is_counted=all(reply.usage is not None for reply in answered),
        seconds=round(seconds, 3),
    )


def _tokens(reply: ProbeReply, names: tuple[str, str], estimate: int) -> int:
    """A plausible count from the reply's usage, or the estimate. `names` are those of different dialects."""
    count = next((count for name in names if (count := reply.usage_count(name)) is not None), -1)
    return count if 0 <= count <= _MAX_REPORTED_TOKENS else estimate
