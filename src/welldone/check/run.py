"""A run of the check: the first look, the probes side by side, then those that must be alone, and the report."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from welldone import __version__
from welldone.check import recording, tally
from welldone.check.desk import Desk, Facts, Listen
from welldone.check.probe import Probe
from welldone.check.probes import PROBES_OF
from welldone.check.profiles import rules_of
from welldone.check.report import Report, Verdict
from welldone.check.scout import UnreachableError as UnreachableError
from welldone.check.scout import look
from welldone.check.session import NotHeardError, NotOfferedError, Session
from welldone.check.settings import CheckSettings
from welldone.check.tally import Outcome
from welldone.net import ear
from welldone.wire.faults.catalogue import ALL


class Progress(msgspec.Struct, frozen=True):
    """How far a run is."""

    done: int
    total: int
    running: tuple[str, ...]
    """The probes that are under way."""


class NothingError(Exception):
    """There was nothing to judge. The message says why."""


class InterruptedCheckError(Exception):
    """The run was stopped before there was anything to report."""


Result = TypeVar("Result")
_TOO_EARLY = "interrupted before anything was judged"
Tell = Callable[[Progress], None]


async def check(
    settings: CheckSettings,
    *,
    tell: Tell = lambda _: None,
    listen: Listen = ear.listen,
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
    chosen = choose(settings, PROBES_OF[settings.endpoint] if probes is None else probes)
    wanted = wanted_rules(settings)
    desk = Desk(settings, listen)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    begun = clock()
    if settings.record is not None:
        recording.prepare(settings.record, [probe.name for probe in chosen])
    tell(Progress(0, len(chosen), ("first look",)))
    stop = stop or asyncio.Event()
    facts = await _until(stop, _look(desk))
    if facts is None:
        raise InterruptedCheckError(_TOO_EARLY)
    probing = _Run(desk, facts, wanted, tell, clock, chosen)
    await _until(stop, probing.all())
    outcomes = probing.outcomes()
    if settings.record is not None:
        for outcome in outcomes:
            recording.write(settings.record, outcome.probe.name, outcome.session.replies, settings.secrets)
    _want_judged(settings, outcomes)
    return _report(settings, facts, outcomes, wanted, date, clock() - begun)


def choose(settings: CheckSettings, probes: Sequence[Probe]) -> list[Probe]:
    """The probes that shall run."""
    chosen = [
        probe
        for probe in probes
        if (not settings.only or _is_named(probe, settings.only)) and not _is_named(probe, settings.skip)
    ]
    if not chosen:
        raise NothingError("no probe is left to run: look at --only and --skip")
    return chosen


def _is_named(probe: Probe, words: Sequence[str]) -> bool:
    return any(probe.name == word or probe.name.startswith(f"{word}-") for word in words)


def wanted_rules(settings: CheckSettings) -> frozenset[str]:
    """The rules that shall be judged."""
    wanted = frozenset(fault.id for fault in ALL if not {*fault.endpoints}.isdisjoint(settings.dialect.endpoints))
    if settings.rules:
        wanted &= frozenset(settings.rules)
    if not wanted:
        raise NothingError(f"no rule is left to judge: those that --rule names do not speak about {settings.endpoint}")
    if settings.profile is not None:
        wanted &= rules_of(settings.profile)
    if not wanted:
        raise NothingError("no rule is left to judge: the profile has none of them")
    return wanted


async def _look(desk: Desk) -> Facts:
    try:
        return await look(desk)
    except UnreachableError as error:  # it may quote the server, which may quote the key
        raise UnreachableError(desk.settings.secrets.clean(str(error))) from None


def _want_judged(settings: CheckSettings, outcomes: Sequence[Outcome]) -> None:
    """Refuse to report on a server of which nothing was heard."""
    if any(outcome.session.judged for outcome in outcomes):
        return
    if not all(outcome.is_ended for outcome in outcomes):
        raise InterruptedCheckError(_TOO_EARLY)
    why = next((outcome.why for outcome in outcomes if outcome.why), "no reply gave an occasion")
    if any(outcome.session.is_given_up for outcome in outcomes):
        raise UnreachableError(f"{settings.url}: {why}")
    raise NothingError(f"no rule had a say: {why}")


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result | None:
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


class _Run:
    """The probes under way."""

    def __init__(
        self,
        desk: Desk,
        facts: Facts,
        wanted: frozenset[str],
        tell: Tell,
        clock: Callable[[], float],
        probes: Sequence[Probe],
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._probes = probes
        self._sessions = {probe.name: Session(desk, facts, probe.name, wanted) for probe in probes}
        self._outcomes: dict[str, Outcome] = {}
        self._running: list[str] = []
        self._done = 0
        self._places = asyncio.Semaphore(desk.settings.side_by_side)
        self._secrets = desk.settings.secrets

    async def all(self) -> None:
        """Run them all."""

        async def run(probe: Probe) -> None:
            async with self._places:
                self._outcomes[probe.name] = await self._one(probe)

        async with asyncio.TaskGroup() as group:
            for probe in self._probes:
                if not probe.is_alone:
                    group.create_task(run(probe))
        for probe in self._probes:
            if probe.is_alone:
                await run(probe)

    def outcomes(self) -> list[Outcome]:
        """What each came to, in the order given. One that has not ended has what it has found so far."""
        return [self._outcomes.get(probe.name) or self._interrupted(probe) for probe in self._probes]

    def _interrupted(self, probe: Probe) -> Outcome:
        session = self._sessions[probe.name]
        why = "interrupted" if session.replies else "not run: the check was interrupted"
        return Outcome(probe=probe, session=session, seconds=0.0, why=why, unheard={}, is_ended=False)

    async def _one(self, probe: Probe) -> Outcome:
        session = self._sessions[probe.name]
        is_offered, why = True, ""
        begun = self._clock()
        self._show(began=probe.name)
        try:
            await probe.work(session)
        except NotOfferedError as error:
            is_offered, why = False, str(error)
        except NotHeardError as error:
            why = str(error)
        self._show(ended=probe.name)
        return Outcome(
            probe=probe,
            session=session,
            seconds=self._clock() - begun,
            is_offered=is_offered,
            why=self._secrets.clean(why),
            unheard={rule: self._secrets.clean(reason) for rule, reason in session.unheard.items()},
        )

    def _show(self, *, began: str | None = None, ended: str | None = None) -> None:
        if began is not None:
            self._running.append(began)
        if ended is not None:
            self._running.remove(ended)
            self._done += 1
        self._tell(Progress(self._done, len(self._probes), tuple(self._running)))


def _report(
    settings: CheckSettings,
    facts: Facts,
    outcomes: Sequence[Outcome],
    wanted: frozenset[str],
    date: str,
    seconds: float,
) -> Report:
    findings = tally.findings(outcomes, settings, facts)
    is_interrupted = not all(outcome.is_ended for outcome in outcomes)
    is_timed_out = any(outcome.session.is_timed_out for outcome in outcomes)
    is_given_up = any(outcome.session.is_given_up for outcome in outcomes)
    verdict = tally.worth(finding.severity for finding in findings)
    counting = tally.worth(finding.severity for finding in findings if finding.is_new)
    return Report(
        tool=__version__,
        date=date,
        url=settings.url,
        model=facts.model,
        server=settings.secrets.clean(facts.server),
        endpoint=settings.endpoint,
        profile=settings.profile,
        is_strict=settings.is_strict,
        verdict=Verdict.TIMED_OUT if is_timed_out and not findings else verdict,
        passed=_is_passed(counting, settings) and not is_given_up and not is_interrupted,
        timeout_s=settings.patience.reply_s,
        is_interrupted=is_interrupted,
        cost=tally.cost(outcomes, seconds),
        probes=tuple(map(tally.probed, outcomes)),
        rules=tally.ruled(outcomes, wanted),
        findings=findings,
    )


def _is_passed(verdict: Verdict, settings: CheckSettings) -> bool:
    return verdict is Verdict.RIGHT or (verdict is Verdict.LAX and not settings.is_strict)
