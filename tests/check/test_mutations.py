"""Mutation test: for every rule there is a server that breaks only this rule. The check finds it, and a gateway between
them repairs it."""

import re
from collections.abc import Collection, Mapping
from functools import cache
from itertools import product
from pathlib import Path

import msgspec
import pytest

from tests.check.serving import Handler, serving
from tests.http.aio import run
from tests.table import table
from welldone.check.applicability import UNCOVERED
from welldone.check.probes import PROBES_BY_DIALECT
from welldone.check.report import Report, Verdict
from welldone.check.run import check
from welldone.check.session import Probe
from welldone.check.settings import DIALECTS, CheckSettings, Timeouts
from welldone.config.server import Config, ServeSettings
from welldone.config.upstream import UpstreamSettings
from welldone.core import sse
from welldone.core.catalog import RULES, Detection, Repairability, Rule
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockChunk, MockReply, MockScript
from welldone.mock.server import MockHttpRequest, MockServer
from welldone.mock.violations import violating_handler
from welldone.mock.violations.edits import MockExchange
from welldone.mock.violations.page_examples import PageExampleServer
from welldone.rules.judge import judge
from welldone.server.server import Server

NEVER_S = 60.0
LONG_TIMEOUTS = Timeouts(
    reply_s=20.0, silence_s=NEVER_S, prefill_s=NEVER_S, stream_s=NEVER_S, disconnect_s=0.2, after_done_s=0.2
)
"""No time that a busy machine takes counts as a violation."""
TIMED: Mapping[str, tuple[float, Timeouts]] = {
    "http-flush-each-event": (10.0, msgspec.structs.replace(LONG_TIMEOUTS, stream_s=0.03)),
    "http-headers-before-prefill": (2.0, msgspec.structs.replace(LONG_TIMEOUTS, prefill_s=0.1)),
    "live-keepalive-in-silence": (400.0, msgspec.structs.replace(LONG_TIMEOUTS, silence_s=0.03)),
    "live-cancel-on-disconnect": (3.0, LONG_TIMEOUTS),
}
"""Rules about times: speed factor of the mock server, and timeouts of the check."""
BY_REPLY = [fault.id for fault in RULES.values() if fault.detection is Detection.REPLY]
BY_PROBE = [
    (fault.id, dialect.name)
    for dialect in DIALECTS.values()
    for fault in RULES.values()
    if fault.detection is Detection.PROBE and fault.id not in UNCOVERED and {*dialect.endpoints} & {*fault.endpoints}
]
"""Probe rules with every dialect in which a server can break them."""
ALSO: Mapping[str, Collection[str]] = {
    # An empty answer lacks its role, its finish reason or its end, which breaks another rule as well.
    "live-empty-generation": {"delta-role-first"},
}
"""Rules that cannot be broken without another rule."""
KEY = "sk-of-the-ideal-server"
_OPTIONAL = "the field is optional, and the reference server does not send it"
_FAILED = "the streams of a correct server do not fail"
_QUICK = "a keep-alive is due only in a long silence"
_IN_EVERY_DIALECT = {
    **dict.fromkeys(("sse-keepalive-form", "live-keepalive-in-silence"), _QUICK),
    "err-not-error-field": _FAILED,
    "err-retry-after": "an idle server is not overloaded",
    **UNCOVERED,
}
NOT_APPLICABLE: Mapping[str, Mapping[str, str]] = {
    "chat": {
        **_IN_EVERY_DIALECT,
        "sse-keepalive-run-limit": _QUICK,
        **dict.fromkeys(("env-service-tier", "env-obfuscation"), _OPTIONAL),
        **dict.fromkeys(("ext-refusal", "ext-annotations", "ext-audio"), _OPTIONAL),
        "fin-function-call-legacy": "no probe sends the legacy `functions`",
        **dict.fromkeys(("err-midstream-event", "err-then-done", "err-not-object-error"), _FAILED),
        **dict.fromkeys(("err-not-with-choices", "err-event-name"), _FAILED),
    },
    "responses": {**_IN_EVERY_DIALECT, "resp-keepalive": _QUICK, "resp-error": _FAILED},
    "messages": {**_IN_EVERY_DIALECT, "msg-ping-form": _QUICK, "msg-error-event": _FAILED, "msg-error-last": _FAILED},
    "gemini": {
        "live-keepalive-in-silence": _QUICK,
        "ns-leading-space-ok": UNCOVERED["ns-leading-space-ok"],
        "err-not-error-field": _FAILED,
        "gem-error-element": _FAILED,
        "gem-error-last": _FAILED,
        "gem-signature": _OPTIONAL,
        "gem-blocked-prompt": "the reference server blocks no prompt",
    },
}
"""Rules that are not applicable to a correct server, by dialect, with the reason."""


async def _check(
    handler: Handler, *probes: Probe, endpoint: str = "chat", timeouts: Timeouts = LONG_TIMEOUTS, speed: float = 1.0
) -> Report:
    async with serving(handler, speed) as url:
        settings = CheckSettings(url=url, endpoint=endpoint, key=KEY, timeouts=timeouts)
        return await check(settings, probes=probes or None)


def _probe_of(http_request: MockHttpRequest) -> str:
    """The probe in the User-Agent."""
    match = re.search(r"\((.+)\)", http_request.headers["user-agent"])
    assert match is not None
    return match[1]


@cache
def _all_exchanges(endpoint: str) -> list[MockExchange]:
    """All requests of the probes of a dialect, with the replies of the reference server."""
    ideal, exchanges = ReferenceServer(), list[MockExchange]()

    def handler(http_request: MockHttpRequest) -> MockReply:
        exchanges.append(MockExchange(ideal, http_request))
        return exchanges[-1].reply

    run(_check(handler, endpoint=endpoint))
    order = {probe.name: number for number, probe in enumerate(PROBES_BY_DIALECT[endpoint])}
    by_probes = [exchange for exchange in exchanges if _probe_of(exchange.http_request) in order]
    return sorted(by_probes, key=lambda exchange: order[_probe_of(exchange.http_request)])


def _dialect(rule: str) -> str:
    """The first dialect to which the rule applies."""
    return next(dialect.name for dialect in DIALECTS.values() if {*dialect.endpoints} & {*RULES[rule].endpoints})


@cache
def _first_fitting(rule: str, endpoint: str) -> tuple[str, Collection[str]]:
    """The first probe whose request fits the example of the page, and all rules that the example breaks."""
    example_server = PageExampleServer(rule, ReferenceServer())
    for exchange in _all_exchanges(endpoint):
        trace = example_server.find_example(exchange)
        if trace is not None:
            return _probe_of(exchange.http_request), judge(trace).counts.keys()
    raise AssertionError(f"no probe has a request that fits the example of {rule}")


@table("rule", BY_REPLY)
def test_only_the_rule_that_a_reply_breaks_is_found(rule: str) -> None:
    endpoint = _dialect(rule)
    name, broken = _first_fitting(rule, endpoint)
    probe = next(probe for probe in PROBES_BY_DIALECT[endpoint] if probe.name == name)
    ideal = ReferenceServer()
    violating = violating_handler(rule, ideal)

    def handler(http_request: MockHttpRequest) -> MockReply:
        return violating(http_request) if _probe_of(http_request) == name else ideal.answer(http_request)

    report = run(_check(handler, probe, endpoint=endpoint))
    assert rule in report.findings_by_rule
    assert report.findings_by_rule.keys() <= {*broken}


@pytest.mark.tier3
@pytest.mark.parametrize(("rule", "endpoint"), BY_PROBE)
def test_only_the_rule_that_a_server_breaks_is_found(rule: str, endpoint: str) -> None:
    speed, timeouts = TIMED.get(rule, (1.0, LONG_TIMEOUTS))
    report = run(_check(violating_handler(rule, ReferenceServer()), endpoint=endpoint, timeouts=timeouts, speed=speed))
    assert rule in report.findings_by_rule
    assert report.findings_by_rule.keys() <= {rule, *ALSO.get(rule, ())}


@pytest.mark.parametrize("rule", UNCOVERED)
def test_no_mock_server_breaks_an_uncovered_rule(rule: str) -> None:
    with pytest.raises(LookupError):
        violating_handler(rule, ReferenceServer())


def _slow_where_timed(ideal: ReferenceServer) -> Handler:
    """The reference server, slow for the probes that measure times."""
    slow, plain = ReferenceServer(gap_s=0.005, key=KEY), ReferenceServer(key=KEY)

    def handler(http_request: MockHttpRequest) -> MockReply:
        if _probe_of(http_request) in ("flush", "leaving"):
            return slow.answer(http_request)
        if _probe_of(http_request) != "long":
            return ideal.answer(http_request)
        pieces = list(plain.answer(http_request).pieces)
        # The first piece of other dialects has no text.
        first = 0 if http_request.path == "/v1/messages" or ":streamGenerateContent" in http_request.path else 1
        pieces[first] = MockChunk(base64=pieces[first].data, after_s=0.4)
        return MockReply(tuple(pieces), headers=dict(sse.HEADERS))

    return handler


@pytest.mark.parametrize("endpoint", DIALECTS)
def test_a_correct_server_has_no_findings_and_nearly_every_rule_is_judged(endpoint: str) -> None:
    timeouts = msgspec.structs.replace(LONG_TIMEOUTS, prefill_s=0.2, disconnect_s=10.0)
    reports = [
        run(_check(_slow_where_timed(ReferenceServer(key=KEY)), endpoint=endpoint, timeouts=timeouts)),
        run(_check(ReferenceServer(key=KEY, models=("ideal-thinking",)).answer, endpoint=endpoint, timeouts=timeouts)),
    ]
    assert [report.findings for report in reports] == [(), ()]
    judged = {rule.id for report in reports for rule in report.rules if rule.verdict is Verdict.PASS}
    assert {rule.id for rule in reports[0].rules} - judged == NOT_APPLICABLE[endpoint].keys()
    assert [(probe.name, probe.reason) for probe in reports[0].probes if probe.verdict is not Verdict.PASS] == [
        ("reasoning", "the model sends no reasoning")
    ]


# ---- through the gateway

EXCLUDED = {
    **UNCOVERED,
    "http-no-buffering-compression": "a compressed stream that was not requested is refused with a 502",
    "cmpl-usage-chunk": "usage that the server did not send is not invented",
    "live-keepalive-in-silence": "the gateway sends keep-alives only after seconds",
}
"""Rules that the gateway does not repair in this setup, with the reason."""
REPAIRED = [rule for rule in RULES.values() if rule.repairability is Repairability.LOSSLESS and rule.id not in EXCLUDED]
PATHS = [("chat", True), *product(("responses", "messages"), (True, False))]
"""Endpoints, and whether the upstream speaks their dialect."""
BAD_GATEWAY_RULE = "err-refused-4xx"
"""A stream that fails before its first byte becomes a 502."""


async def _check_through_gateway(
    folder: Path,
    handler: Handler,
    speed: float,
    endpoint: str,
    *probes: Probe,
    model: str = "ideal",
    is_native: bool = True,
) -> Report:
    """The report on a gateway in front of a server that speaks the dialect itself, or only chat."""
    async with await MockServer(MockScript(speed=speed), handler, handles_all=True).listen() as mock:
        speaks = (endpoint,) if is_native and endpoint != "chat" else ()
        upstream = UpstreamSettings(name="a", url=f"http://127.0.0.1:{mock.port}/v1", probe_s=0.0, speaks=speaks)
        settings = ServeSettings(port=0, cors_origins=("http://localhost:3000",))
        server = Server(Config(server=settings, models=(), upstreams=(upstream,)), keys=(), folder=folder)
        await server.start()
        try:
            url = f"http://127.0.0.1:{server.port}/v1"
            check_settings = CheckSettings(url=url, endpoint=endpoint, model=model, timeouts=LONG_TIMEOUTS)
            return await check(check_settings, probes=probes)
        finally:
            await server.stop()


def _correct_for_discovery(violating: Handler) -> Handler:
    """A server that answers the first request correctly: with some violations discovery would fail."""
    ideal = ReferenceServer()
    first = iter(["/v1/chat/completions"])
    return lambda http_request: (
        ideal.answer(http_request) if http_request.method == "POST" and next(first, None) else violating(http_request)
    )


def _probes(rule: Rule, endpoint: str) -> list[Probe]:
    """The probes that find a violation of the rule."""
    if rule.detection is Detection.REPLY:
        name, _ = _first_fitting(rule.id, endpoint)
        return [probe for probe in PROBES_BY_DIALECT[endpoint] if probe.name == name]
    return [probe for probe in PROBES_BY_DIALECT[endpoint] if rule.id in probe.rules]


@table("rule", REPAIRED, ids=lambda rule: rule.id)
def test_the_gateway_repairs_every_repairable_violation(rule: Rule, tmp_path: Path) -> None:
    speed, _ = TIMED.get(rule.id, (1.0, LONG_TIMEOUTS))
    endpoint = _dialect(rule.id)
    handler = _correct_for_discovery(violating_handler(rule.id, ReferenceServer()))
    report = run(_check_through_gateway(tmp_path, handler, speed, endpoint, *_probes(rule, endpoint)))
    is_failure = rule.id.startswith(("err-", "resp-error", "msg-error-"))
    assert report.findings_by_rule.keys() <= ({BAD_GATEWAY_RULE} if is_failure else set())


@pytest.mark.tier3
@pytest.mark.parametrize(("endpoint", "is_native"), PATHS)
@pytest.mark.parametrize("model", ["ideal", "ideal-thinking"])
def test_a_gateway_in_front_of_a_correct_server_passes(
    endpoint: str, is_native: bool, model: str, tmp_path: Path
) -> None:
    right = ReferenceServer(models=(model,)).answer
    report = run(
        _check_through_gateway(
            tmp_path, right, 1.0, endpoint, *PROBES_BY_DIALECT[endpoint], model=model, is_native=is_native
        )
    )
    # An upstream that only speaks chat cannot count tokens.
    assert report.findings_by_rule.keys() <= (set() if is_native else {"msg-count-tokens"})
    assert not any(probe.is_incomplete for probe in report.probes)


@table(("endpoint", "is_native"), PATHS)
def test_a_slow_stream_passes_the_gateway_without_loss(endpoint: str, is_native: bool, tmp_path: Path) -> None:
    probes = [probe for probe in PROBES_BY_DIALECT[endpoint] if probe.name in ("text", "tools-required")]
    report = run(
        _check_through_gateway(
            tmp_path, ReferenceServer(gap_s=0.02).answer, 1.0, endpoint, *probes, is_native=is_native
        )
    )
    assert report.findings == ()
