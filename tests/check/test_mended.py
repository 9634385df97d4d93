"""What a gateway can mend is mended: behind it a server may break the rule, and the check finds nothing."""

from itertools import product
from pathlib import Path

import pytest

from tests.check.serving import Choose
from tests.check.test_mutation import PATIENCE, TIMED, _dialect, _first_fitting
from tests.http.aio import run
from tests.table import table
from welldone.check.applicability import UNCOVERED
from welldone.check.probe import Probe
from welldone.check.probes import PROBES_BY_DIALECT
from welldone.check.report import Report
from welldone.check.run import check
from welldone.check.settings import CheckSettings
from welldone.config.server import Config, ServeSettings
from welldone.config.upstream import UpstreamSettings
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockScript
from welldone.mock.server import MockServer
from welldone.mock.violations import violating_handler
from welldone.protocol.catalog import ALL_RULES
from welldone.protocol.catalog.rule import Detection, Repairability, Rule
from welldone.server.server import Server

OTHERWISE = {
    **UNCOVERED,
    "http-no-buffering-compression": "a compressed stream that nobody asked for is refused, with a 502",
    "cmpl-usage-chunk": "usage that the server never sent is not invented",
    "live-keepalive-in-silence": "the gateway's own signs of life come after seconds, and no test waits",
}
"""What is not mended in this way, and why."""
MENDED = [fault for fault in ALL_RULES if fault.repairability is Repairability.LOSSLESS and fault.id not in OTHERWISE]
WAYS = [("chat", True), *product(("responses", "messages"), (True, False))]
"""Endpoints, each with whether the server behind the gateway has it too."""
FAILED = "err-refused-4xx"
"""A stream that failed behind the gateway before it had said anything is a 502."""


async def _check(
    folder: Path,
    choose: Choose,
    speed: float,
    endpoint: str,
    *probes: Probe,
    model: str = "ideal",
    is_native: bool = True,
) -> Report:
    """What is heard of a gateway in front of a server that speaks the dialect itself, or only chat."""
    async with await MockServer(MockScript(speed=speed), choose, handles_all=True).listen() as behind:
        speaks = (endpoint,) if is_native and endpoint != "chat" else ()
        upstream = UpstreamSettings(name="a", url=f"http://127.0.0.1:{behind.port}/v1", probe_s=0.0, speaks=speaks)
        settings = ServeSettings(port=0, cors_origins=("http://localhost:3000",))
        server = Server(Config(server=settings, models=(), upstreams=(upstream,)), keys=(), folder=folder)
        await server.start()
        try:
            url = f"http://127.0.0.1:{server.port}/v1"
            asked = CheckSettings(url=url, endpoint=endpoint, model=model, timeouts=PATIENCE)
            return await check(asked, probes=probes)
        finally:
            await server.stop()


def _after_the_first_look(flaw: Choose) -> Choose:
    """A server that shows its flaw only when the probes begin: with some the first look would find no server."""
    ideal = ReferenceServer()
    first = iter(["/v1/chat/completions"])
    return lambda seen: ideal.answer(seen) if seen.method == "POST" and next(first, None) else flaw(seen)


def _probes(fault: Rule, endpoint: str) -> list[Probe]:
    """Who would hear it."""
    if fault.detection is Detection.REPLY:
        name, _ = _first_fitting(fault.id, endpoint)
        return [probe for probe in PROBES_BY_DIALECT[endpoint] if probe.name == name]
    return [probe for probe in PROBES_BY_DIALECT[endpoint] if fault.id in probe.rules]


@table("fault", MENDED, ids=lambda fault: fault.id)
def test_what_can_be_mended_is_mended(fault: Rule, tmp_path: Path) -> None:
    speed, _ = TIMED.get(fault.id, (1.0, PATIENCE))
    endpoint = _dialect(fault.id)
    flaw = _after_the_first_look(violating_handler(fault.id, ReferenceServer()))
    report = run(_check(tmp_path, flaw, speed, endpoint, *_probes(fault, endpoint)))
    is_failure = fault.id.startswith(("err-", "resp-error", "msg-error-"))
    assert report.findings_by_rule.keys() <= ({FAILED} if is_failure else set())


@pytest.mark.tier3
@pytest.mark.parametrize(("endpoint", "is_native"), WAYS)
@pytest.mark.parametrize("model", ["ideal", "ideal-thinking"])
def test_a_gateway_in_front_of_a_right_server_is_right(
    endpoint: str, is_native: bool, model: str, tmp_path: Path
) -> None:
    right = ReferenceServer(models=(model,)).answer
    report = run(_check(tmp_path, right, 1.0, endpoint, *PROBES_BY_DIALECT[endpoint], model=model, is_native=is_native))
    # Who only speaks chat cannot count beforehand.
    assert report.findings_by_rule.keys() <= (set() if is_native else {"msg-count-tokens"})
    assert not any(probe.is_incomplete for probe in report.probes)


@table(("endpoint", "is_native"), WAYS)
def test_nothing_is_lost_of_a_stream_that_comes_piece_by_piece(endpoint: str, is_native: bool, tmp_path: Path) -> None:
    probes = [probe for probe in PROBES_BY_DIALECT[endpoint] if probe.name in ("text", "tools-required")]
    report = run(_check(tmp_path, ReferenceServer(gap_s=0.02).answer, 1.0, endpoint, *probes, is_native=is_native))
    assert report.findings == ()
