"""Every rule has a server that breaks just this one, and the check hears it. Of a right server it hears nothing."""

import re
from collections.abc import Collection, Mapping
from functools import cache

import msgspec
import pytest

from tests.check.serving import Choose, serving
from tests.http.aio import run
from tests.table import table
from welldone.check.applicability import UNCOVERED
from welldone.check.probe import Probe
from welldone.check.probes import PROBES_BY_DIALECT
from welldone.check.report import Report, Verdict
from welldone.check.run import check
from welldone.check.settings import DIALECTS, CheckSettings, Timeouts
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockChunk, MockReply
from welldone.mock.server import MockHttpRequest
from welldone.mock.violations import violating_handler
from welldone.mock.violations.page_examples import PageExampleServer
from welldone.protocol import sse
from welldone.protocol.catalog import ALL_RULES, RULES_BY_ID
from welldone.protocol.catalog.rule import Detection
from welldone.rules.judge import judge

NEVER_S = 60.0
PATIENCE = Timeouts(
    reply_s=20.0, silence_s=NEVER_S, prefill_s=NEVER_S, stream_s=NEVER_S, disconnect_s=0.2, after_done_s=0.2
)
"""Nothing is waited for, and no time that a busy machine takes is the server's fault."""
TIMED: Mapping[str, tuple[float, Timeouts]] = {
    "http-flush-each-event": (10.0, msgspec.structs.replace(PATIENCE, stream_s=0.03)),
    "http-headers-before-prefill": (2.0, msgspec.structs.replace(PATIENCE, prefill_s=0.1)),
    "live-keepalive-in-silence": (400.0, msgspec.structs.replace(PATIENCE, silence_s=0.03)),
    "live-cancel-on-disconnect": (3.0, PATIENCE),
}
"""Rules about times: how much faster than by itself the server is, and who waits for it."""
BY_REPLY = [fault.id for fault in ALL_RULES if fault.detection is Detection.REPLY]
BY_PROBE = [
    (fault.id, dialect.name)
    for dialect in DIALECTS.values()
    for fault in ALL_RULES
    if fault.detection is Detection.PROBE and fault.id not in UNCOVERED and {*dialect.endpoints} & {*fault.endpoints}
]
"""Rules, each with every dialect in which a server can break it."""
ALSO: Mapping[str, Collection[str]] = {
    # An answer of nothing lacks its role, its reason or its end: whichever it is, a rule of its own speaks of it.
    "live-empty-generation": {"delta-role-first"},
}
"""What cannot be broken without another rule."""
KEY = "sk-of-the-ideal-server"
_OPTIONAL = "a server need not send it, and the ideal one does not"
_FAILED = "the streams of a right server do not fail"
_QUICK = "a sign of life is due only in a long silence"
_IN_ALL = {
    **dict.fromkeys(("sse-keepalive-form", "live-keepalive-in-silence"), _QUICK),
    "err-not-error-field": _FAILED,
    "err-retry-after": "a right server that has time is never too busy",
    **UNCOVERED,
}
UNHEARD: Mapping[str, Mapping[str, str]] = {
    "chat": {
        **_IN_ALL,
        "sse-keepalive-run-limit": _QUICK,
        **dict.fromkeys(("env-service-tier", "env-obfuscation"), _OPTIONAL),
        **dict.fromkeys(("ext-refusal", "ext-annotations", "ext-audio"), _OPTIONAL),
        "fin-function-call-legacy": "no probe asks with the old functions",
        **dict.fromkeys(("err-midstream-event", "err-then-done", "err-not-object-error"), _FAILED),
        **dict.fromkeys(("err-not-with-choices", "err-event-name"), _FAILED),
    },
    "responses": {**_IN_ALL, "resp-keepalive": _QUICK, "resp-error": _FAILED},
    "messages": {**_IN_ALL, "msg-ping-form": _QUICK, "msg-error-event": _FAILED, "msg-error-last": _FAILED},
}
"""What a right server gives no occasion to judge, by dialect, and why."""


async def _check(
    choose: Choose, *probes: Probe, endpoint: str = "chat", patience: Timeouts = PATIENCE, speed: float = 1.0
) -> Report:
    async with serving(choose, speed) as url:
        settings = CheckSettings(url=url, endpoint=endpoint, key=KEY, timeouts=patience)
        return await check(settings, probes=probes or None)


def _probe_of(seen: MockHttpRequest) -> str:
    """Who asks."""
    found = re.search(r"\((.+)\)", seen.headers["user-agent"])
    assert found is not None
    return found[1]


@cache
def _asked(endpoint: str) -> list[tuple[MockHttpRequest, MockReply]]:
    """All that the probes of a dialect ask, and what is right to reply."""
    ideal, asked = ReferenceServer(), list[tuple[MockHttpRequest, MockReply]]()

    def choose(seen: MockHttpRequest) -> MockReply:
        asked.append((seen, ideal.answer(seen)))
        return asked[-1][1]

    run(_check(choose, endpoint=endpoint))
    order = {probe.name: place for place, probe in enumerate(PROBES_BY_DIALECT[endpoint])}
    asked = [(seen, reply) for seen, reply in asked if _probe_of(seen) in order]
    return sorted(asked, key=lambda one: order[_probe_of(one[0])])


def _dialect(rule: str) -> str:
    """The first one whose endpoints the rule speaks about."""
    return next(dialect.name for dialect in DIALECTS.values() if {*dialect.endpoints} & {*RULES_BY_ID[rule].endpoints})


def _first_fitting(rule: str, endpoint: str) -> tuple[str, Collection[str]]:
    """The first probe that asks for what the page shows, and all rules that its bytes break."""
    shown = PageExampleServer(rule, ReferenceServer())
    for seen, right in _asked(endpoint):
        trace = shown.find_example(seen, right)
        if trace is not None:
            return _probe_of(seen), judge(trace).counts.keys()
    raise AssertionError(f"no probe asks for what breaks {rule}")


@table("rule", BY_REPLY)
def test_a_rule_that_a_reply_breaks_is_found_and_no_other(rule: str) -> None:
    endpoint = _dialect(rule)
    name, shown = _first_fitting(rule, endpoint)
    probe = next(probe for probe in PROBES_BY_DIALECT[endpoint] if probe.name == name)
    ideal = ReferenceServer()
    flaw = violating_handler(rule, ideal)
    choose: Choose = lambda seen: flaw(seen) if _probe_of(seen) == name else ideal.answer(seen)  # noqa: E731
    report = run(_check(choose, probe, endpoint=endpoint))
    assert rule in report.findings_by_rule
    assert report.findings_by_rule.keys() <= {*shown}


@pytest.mark.tier3
@pytest.mark.parametrize(("rule", "endpoint"), BY_PROBE)
def test_a_rule_that_a_server_breaks_is_found_and_no_other(rule: str, endpoint: str) -> None:
    speed, patience = TIMED.get(rule, (1.0, PATIENCE))
    report = run(_check(violating_handler(rule, ReferenceServer()), endpoint=endpoint, patience=patience, speed=speed))
    assert rule in report.findings_by_rule
    assert report.findings_by_rule.keys() <= {rule, *ALSO.get(rule, ())}


@pytest.mark.parametrize("rule", UNCOVERED)
def test_what_is_out_of_reach_is_broken_by_no_server(rule: str) -> None:
    with pytest.raises(LookupError):
        violating_handler(rule, ReferenceServer())


def _unhurried(ideal: ReferenceServer) -> Choose:
    """The ideal server, which takes its time where a probe looks at times."""
    talks, reads = ReferenceServer(gap_s=0.005, key=KEY), ReferenceServer(key=KEY)

    def choose(seen: MockHttpRequest) -> MockReply:
        if _probe_of(seen) in ("flush", "leaving"):
            return talks.answer(seen)
        if _probe_of(seen) != "long":
            return ideal.answer(seen)
        pieces = list(reads.answer(seen).pieces)
        place = 0 if seen.path == "/v1/messages" else 1  # nothing comes before the first word there
        pieces[place] = MockChunk(base64=pieces[place].data, after_s=0.4)
        return MockReply(tuple(pieces), headers=dict(sse.HEADERS))

    return choose


@pytest.mark.parametrize("endpoint", DIALECTS)
def test_nothing_is_found_in_a_right_server_and_nearly_every_rule_is_judged(endpoint: str) -> None:
    patience = msgspec.structs.replace(PATIENCE, prefill_s=0.2, disconnect_s=10.0)
    reports = [
        run(_check(_unhurried(ReferenceServer(key=KEY)), endpoint=endpoint, patience=patience)),
        run(_check(ReferenceServer(key=KEY, models=("ideal-thinking",)).answer, endpoint=endpoint, patience=patience)),
    ]
    assert [report.findings for report in reports] == [(), ()]
    judged = {rule.id for report in reports for rule in report.rules if rule.verdict is Verdict.PASS}
    assert {rule.id for rule in reports[0].rules} - judged == UNHEARD[endpoint].keys()
    assert [(probe.name, probe.reason) for probe in reports[0].probes if probe.verdict is not Verdict.PASS] == [
        ("reasoning", "the model does not think aloud")
    ]
