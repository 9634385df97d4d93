"""A check run: discovery, the concurrent probes, then the exclusive ones, and the report."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from welldone import __version__
from welldone.check import summary, trace_files
from welldone.check.applicability import NO_APPLICABLE_REPLY
from welldone.check.discovery import CheckUnreachableError, discover
from welldone.check.probe import Probe
from welldone.check.probe_client import ProbeClient, RecordResponse, ServerFacts
from welldone.check.probes import PROBES_BY_DIALECT
from welldone.check.report import Report, Verdict
from welldone.check.selection import rules_for_client
from welldone.check.session import NotApplicableError, Session, UnsupportedError
from welldone.check.settings import CheckSettings
from welldone.check.summary import ProbeOutcome
from welldone.http import recording_client
from welldone.protocol.catalog import RULES


class CheckProgress(msgspec.Struct, frozen=True):
    """Progress of a run."""

    done: int
    total: int
    running: tuple[str, ...]
    """Names of the running probes."""


class NothingToCheckError(Exception):
    """No rule was judged. The message is the reason."""


class InterruptedCheckError(Exception):
    """The run was interrupted before any rule was judged."""


ResultT = TypeVar("ResultT")
_INTERRUPTED_EARLY = "interrupted before any rule was judged"
ProgressCallback = Callable[[CheckProgress], None]


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
        InterruptedCheckError: `stop` was set before any rule was judged.
        ValueError: the URL, the key or a header is invalid.
        OSError: the traces cannot be written.
    """
    selected = select_probes(settings, PROBES_BY_DIALECT[settings.endpoint] if probes is None else probes)
    rule_ids = select_rules(settings)
    client = ProbeClient(settings, record_response)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    started = time.monotonic()
    if settings.record is not None:
        trace_files.prepare_trace_folder(settings.record, [probe.name for probe in selected])
    on_progress(CheckProgress(0, len(selected), ("discovery",)))
    stop = stop or asyncio.Event()
    try:
        facts = await _run_until(stop, discover(client))
    except CheckUnreachableError as error:  # the message may quote the server, which may quote the key
        raise CheckUnreachableError(settings.secrets.redact(str(error))) from None
    if facts is None:
        raise InterruptedCheckError(_INTERRUPTED_EARLY)
    outcomes = [ProbeOutcome(probe, Session(client, facts, probe.name, rule_ids)) for probe in selected]
    await _run_until(stop, _run_probes(outcomes, settings, on_progress))
    if settings.record is not None:
        for outcome in outcomes:
            trace_files.write_traces(settings.record, outcome.probe.name, outcome.session.replies, settings.secrets)
    _require_judged(settings, outcomes)
    return _build_report(settings, facts, outcomes, rule_ids, date, time.monotonic() - started)


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
    if any(outcome.session.judged for outcome in outcomes):
        return
    if not all(outcome.is_finished for outcome in outcomes):
        raise InterruptedCheckError(_INTERRUPTED_EARLY)
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


def _build_report(
    settings: CheckSettings,
    facts: ServerFacts,
    outcomes: Sequence[ProbeOutcome],
    rule_ids: frozenset[str],
    date: str,
    seconds: float,
) -> Report:
    findings = summary.build_findings(outcomes, settings, facts)
    is_interrupted = not all(outcome.is_finished for outcome in outcomes)
    is_timed_out = any(outcome.session.is_timed_out for outcome in outcomes)
    is_incomplete = any(outcome.session.is_incomplete for outcome in outcomes)
    verdict = summary.verdict_for(finding.severity for finding in findings)
    new_verdict = summary.verdict_for(finding.severity for finding in findings if finding.is_new)
    is_passed = new_verdict is Verdict.PASS or (new_verdict is Verdict.WARN and not settings.is_strict)
    return Report(
        tool=__version__,
        date=date,
        url=settings.url,
        model=facts.model,
        server=settings.secrets.redact(facts.server),
        endpoint=settings.endpoint,
        profile=settings.profile,
        is_strict=settings.is_strict,
        verdict=Verdict.TIMED_OUT if is_timed_out and not findings else verdict,
        passed=is_passed and not is_incomplete and not is_interrupted,
        timeout_s=settings.timeouts.reply_s,
        is_interrupted=is_interrupted,
        cost=summary.run_cost(outcomes, seconds),
        probes=tuple(map(summary.probe_result, outcomes)),
        rules=summary.rule_results(outcomes, rule_ids),
        findings=findings,
    )
