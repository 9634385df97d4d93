"""Repairs of the gateway: a check through the gateway finds no repairable violation of the server behind it."""

from itertools import product
from pathlib import Path

import pytest

from tests.check.serving import Handler
from tests.check.test_mutations import LONG_TIMEOUTS, TIMED, _dialect, _first_fitting
from tests.http.aio import run
from tests.table import table
from welldone.check.applicability import UNCOVERED
from welldone.check.probes import PROBES_BY_DIALECT
from welldone.check.report import Report
from welldone.check.run import check
from welldone.check.session import Probe
from welldone.check.settings import CheckSettings
from welldone.config.server import Config, ServeSettings
from welldone.config.upstream import UpstreamSettings
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockScript
from welldone.mock.server import MockServer
from welldone.mock.violations import violating_handler
from welldone.protocol.catalog import RULES, Detection, Repairability, Rule
from welldone.server.server import Server

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


async def _check(
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
    report = run(_check(tmp_path, handler, speed, endpoint, *_probes(rule, endpoint)))
    is_failure = rule.id.startswith(("err-", "resp-error", "msg-error-"))
    assert report.findings_by_rule.keys() <= ({BAD_GATEWAY_RULE} if is_failure else set())


@pytest.mark.tier3
@pytest.mark.parametrize(("endpoint", "is_native"), PATHS)
@pytest.mark.parametrize("model", ["ideal", "ideal-thinking"])
def test_a_gateway_in_front_of_a_correct_server_passes(
    endpoint: str, is_native: bool, model: str, tmp_path: Path
) -> None:
    right = ReferenceServer(models=(model,)).answer
    report = run(_check(tmp_path, right, 1.0, endpoint, *PROBES_BY_DIALECT[endpoint], model=model, is_native=is_native))
    # An upstream that only speaks chat cannot count tokens.
    assert report.findings_by_rule.keys() <= (set() if is_native else {"msg-count-tokens"})
    assert not any(probe.is_incomplete for probe in report.probes)


@table(("endpoint", "is_native"), PATHS)
def test_a_slow_stream_passes_the_gateway_without_loss(endpoint: str, is_native: bool, tmp_path: Path) -> None:
    probes = [probe for probe in PROBES_BY_DIALECT[endpoint] if probe.name in ("text", "tools-required")]
    report = run(_check(tmp_path, ReferenceServer(gap_s=0.02).answer, 1.0, endpoint, *probes, is_native=is_native))
    assert report.findings == ()
