"""A run of the check: the first look, the probes side by side, then those that must be alone, and the report."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from welldone import __version__
from welldone.check import summary, trace_files
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
from welldone.protocol.catalog import ALL_RULES


class CheckProgress(msgspec.Struct, frozen=True):
    """How far a run is."""

    done: int
    total: int
    running: tuple[str, ...]
    """The probes that are under way."""


class NothingToCheckError(Exception):
    """There was nothing to judge. The message says why."""


class InterruptedCheckError(Exception):
    """The run was stopped before there was anything to report."""


ResultT = TypeVar("ResultT")
_INTERRUPTED_EARLY = "interrupted before anything was judged"
ProgressCallback = Callable[[CheckProgress], None]


async def check(
    settings: CheckSettings,
    *,
    on_progress: ProgressCallback = lambda _: None,
    record_response: RecordResponse = recording_client.record_response,
    probes: Sequence[Probe] | None = None,
    clock: Callable[[], float] = time.monotonic,
    stop: asyncio.Event | None = None,
) -> Report:
    """The report on a server. Once `stop` is set, the report has what was done by then.

    Raises:
        UnreachableError: it cannot be checked.
        NothingError: no probe, or no rule, was left to judge.
        InterruptedCheckError: `stop` was set before anything was judged.
        ValueError: the URL, the key or a header cannot be used.
        OSError: the traces cannot be written.
    """
    chosen = select_probes(settings, PROBES_BY_DIALECT[settings.endpoint] if probes is None else probes)
    wanted = select_rules(settings)
    desk = ProbeClient(settings, record_response)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    begun = clock()
    if settings.record is not None:
        trace_files.prepare_trace_folder(settings.record, [probe.name for probe in chosen])
    on_progress(CheckProgress(0, len(chosen), ("first look",)))
    stop = stop or asyncio.Event()
    facts = await _run_until(stop, _discover_redacted(desk))
    if facts is None:
        raise InterruptedCheckError(_INTERRUPTED_EARLY)
    probing = _ProbeRunner(desk, facts, wanted, on_progress, clock, chosen)
    await _run_until(stop, probing.run_all())
    outcomes = probing.outcomes()
    if settings.record is not None:
        for outcome in outcomes:
            trace_files.write_traces(settings.record, outcome.probe.name, outcome.session.replies, settings.secrets)
    _require_judged(settings, outcomes)
    return _build_report(settings, facts, outcomes, wanted, date, clock() - begun)


def select_probes(settings: CheckSettings, probes: Sequence[Probe]) -> list[Probe]:
    """The probes that shall run."""
    chosen = [
        probe
        for probe in probes
        if (not settings.only or _is_selected(probe, settings.only)) and not _is_selected(probe, settings.skip)
    ]
    if not chosen:
        raise NothingToCheckError("no probe is left to run: look at --only and --skip")
    return chosen


def _is_selected(probe: Probe, words: Sequence[str]) -> bool:
    return any(probe.name == word or probe.name.startswith(f"{word}-") for word in words)


def select_rules(settings: CheckSettings) -> frozenset[str]:
    """The rules that shall be judged."""
    wanted = frozenset(fault.id for fault in ALL_RULES if not {*fault.endpoints}.isdisjoint(settings.dialect.endpoints))
    if settings.rules:
        wanted &= frozenset(settings.rules)
    if not wanted:
        raise NothingToCheckError(
            f"no rule is left to judge: those that --rule names do not speak about {settings.endpoint}"
        )
    if settings.profile is not None:
        wanted &= rules_for_client(settings.profile)
    if not wanted:
        raise NothingToCheckError("no rule is left to judge: the profile has none of them")
    return wanted


async def _discover_redacted(client: ProbeClient) -> ServerFacts:
    try:
        return await discover(client)
    except CheckUnreachableError as error:  # it may quote the server, which may quote the key
        raise CheckUnreachableError(client.settings.secrets.redact(str(error))) from None


def _require_judged(settings: CheckSettings, outcomes: Sequence[ProbeOutcome]) -> None:
    """Refuse to report on a server of which nothing was heard."""
    if any(outcome.session.judged for outcome in outcomes):
        return
    if not all(outcome.is_finished for outcome in outcomes):
        raise InterruptedCheckError(_INTERRUPTED_EARLY)
    why = next((outcome.reason for outcome in outcomes if outcome.reason), "no reply gave an occasion")
    if any(outcome.session.is_incomplete for outcome in outcomes):
        raise CheckUnreachableError(f"{settings.url}: {why}")
    raise NothingToCheckError(f"no rule had a say: {why}")


async def _run_until(stop: asyncio.Event, work: Coroutine[Any, Any, ResultT]) -> ResultT | None:
    """What the work gives; None where `stop` was set before, and it is cancelled."""
    running, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        is_done = running.done()
        running.cancel()
        stopping.cancel()
        await asyncio.wait({running, stopping})
    return running.result() if is_done else None


class _ProbeRunner:
    """The probes under way."""

    def __init__(
        self,
        client: ProbeClient,
        facts: ServerFacts,
        rule_ids: frozenset[str],
        on_progress: ProgressCallback,
        clock: Callable[[], float],
        probes: Sequence[Probe],
    ) -> None:
        self._on_progress = on_progress
        self._clock = clock
        self._probes = probes
        self._sessions = {probe.name: Session(client, facts, probe.name, rule_ids) for probe in probes}
        self._outcomes: dict[str, ProbeOutcome] = {}
        self._running: list[str] = []
        self._done = 0
        self._semaphore = asyncio.Semaphore(client.settings.jobs)
        self._secrets = client.settings.secrets

    async def run_all(self) -> None:
        """Run them all."""

        async def run(probe: Probe) -> None:
            async with self._semaphore:
                self._outcomes[probe.name] = await self._run_one(probe)

        async with asyncio.TaskGroup() as group:
            for probe in self._probes:
                if not probe.is_exclusive:
                    group.create_task(run(probe))
        for probe in self._probes:
            if probe.is_exclusive:
                await run(probe)

    def outcomes(self) -> list[ProbeOutcome]:
        """What each came to, in the order given. One that has not ended has what it has found so far."""
        return [self._outcomes.get(probe.name) or self._interrupted_outcome(probe) for probe in self._probes]

    def _interrupted_outcome(self, probe: Probe) -> ProbeOutcome:
        session = self._sessions[probe.name]
        why = "interrupted" if session.replies else "not run: the check was interrupted"
        return ProbeOutcome(probe=probe, session=session, seconds=0.0, reason=why, inapplicable={}, is_finished=False)

    async def _run_one(self, probe: Probe) -> ProbeOutcome:
        session = self._sessions[probe.name]
        is_offered, why = True, ""
        begun = self._clock()
        self._report_progress(began=probe.name)
        try:
            await probe.run(session)
        except UnsupportedError as error:
            is_offered, why = False, str(error)
        except NotApplicableError as error:
            why = str(error)
        self._report_progress(ended=probe.name)
        return ProbeOutcome(
            probe=probe,
            session=session,
            seconds=self._clock() - begun,
            is_supported=is_offered,
            reason=self._secrets.redact(why),
            inapplicable={rule: self._secrets.redact(reason) for rule, reason in session.inapplicable.items()},
        )

    def _report_progress(self, *, began: str | None = None, ended: str | None = None) -> None:
        if began is not None:
            self._running.append(began)
        if ended is not None:
            self._running.remove(ended)
            self._done += 1
        self._on_progress(CheckProgress(self._done, len(self._probes), tuple(self._running)))


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
    is_given_up = any(outcome.session.is_incomplete for outcome in outcomes)
    verdict = summary.verdict_for(finding.severity for finding in findings)
    counting = summary.verdict_for(finding.severity for finding in findings if finding.is_new)
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
        passed=_is_passed(counting, settings) and not is_given_up and not is_interrupted,
        timeout_s=settings.timeouts.reply_s,
        is_interrupted=is_interrupted,
        cost=summary.run_cost(outcomes, seconds),
        probes=tuple(map(summary.probe_result, outcomes)),
        rules=summary.rule_results(outcomes, rule_ids),
        findings=findings,
    )


def _is_passed(verdict: Verdict, settings: CheckSettings) -> bool:
    return verdict is Verdict.PASS or (verdict is Verdict.WARN and not settings.is_strict)
