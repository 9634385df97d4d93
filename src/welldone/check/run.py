"""A run of the check: the first look, the probes side by side, then those that must be alone, and the report."""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

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


Tell = Callable[[Progress], None]


async def check(
    settings: CheckSettings,
    *,
    tell: Tell = lambda _: None,
    listen: Listen = ear.listen,
    probes: Sequence[Probe] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """The report on a server.

    Raises:
        UnreachableError: it cannot be checked.
        NothingError: no probe, or no rule, was left to judge.
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
    facts = await _look(desk)
    outcomes = await _Run(desk, facts, wanted, tell, clock).all(chosen)
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
    why = next((outcome.why for outcome in outcomes if outcome.why), "no reply gave an occasion")
    if any(outcome.session.is_given_up for outcome in outcomes):
        raise UnreachableError(f"{settings.url}: {why}")
    raise NothingError(f"no rule had a say: {why}")


class _Run:
    """The probes under way."""

    def __init__(
        self, desk: Desk, facts: Facts, wanted: frozenset[str], tell: Tell, clock: Callable[[], float]
    ) -> None:
        self._desk = desk
        self._facts = facts
        self._wanted = wanted
        self._tell = tell
        self._clock = clock
        self._running: list[str] = []
        self._done = 0
        self._total = 0
        self._places = asyncio.Semaphore(desk.settings.side_by_side)
        self._secrets = desk.settings.secrets

    async def all(self, probes: Sequence[Probe]) -> list[Outcome]:
        """What each came to, in the order given."""
        self._total = len(probes)
        outcomes: dict[str, Outcome] = {}

        async def run(probe: Probe) -> None:
            async with self._places:
                outcomes[probe.name] = await self._one(probe)

        async with asyncio.TaskGroup() as group:
            for probe in probes:
                if not probe.is_alone:
                    group.create_task(run(probe))
        for probe in probes:
            if probe.is_alone:
                await run(probe)
        return [outcomes[probe.name] for probe in probes]

    async def _one(self, probe: Probe) -> Outcome:
        session = Session(self._desk, self._facts, probe.name, self._wanted)
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
        self._tell(Progress(self._done, self._total, tuple(self._running)))


def _report(
    settings: CheckSettings,
    facts: Facts,
    outcomes: Sequence[Outcome],
    wanted: frozenset[str],
    date: str,
    seconds: float,
) -> Report:
    findings = tally.findings(outcomes, settings, facts)
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
        verdict=tally.worth(finding.severity for finding in findings),
        passed=_is_passed(counting, settings) and not any(outcome.session.is_given_up for outcome in outcomes),
        cost=tally.cost(outcomes, seconds),
        probes=tuple(map(tally.probed, outcomes)),
        rules=tally.ruled(outcomes, wanted),
        findings=findings,
    )


def _is_passed(verdict: Verdict, settings: CheckSettings) -> bool:
    return verdict is Verdict.RIGHT or (verdict is Verdict.LAX and not settings.is_strict)
