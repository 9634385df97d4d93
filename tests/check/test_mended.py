"""What a gateway can mend is mended: behind it a server may break the rule, and the check finds nothing."""

from pathlib import Path

import pytest

from tests.check.serving import BY_NAME, Choose
from tests.check.test_mutation import PATIENCE, TIMED, _first_fitting
from tests.net.aio import run
from welldone.check.probe import Probe
from welldone.check.probes import PROBES
from welldone.check.reach import OUT_OF_REACH
from welldone.check.report import Report
from welldone.check.run import check
from welldone.check.settings import CheckSettings
from welldone.engines.flaws import flawed
from welldone.engines.ideal import Ideal
from welldone.engines.scripted import Scripted
from welldone.engines.scripts import Script
from welldone.engines.upstream_settings import UpstreamSettings
from welldone.serve.server import Server
from welldone.serve.settings import Config, ServeSettings
from welldone.wire.faults import Fault, Hearing, Mend
from welldone.wire.faults.catalogue import ALL

OTHERWISE = {
    **OUT_OF_REACH,
    "http-no-buffering-compression": "a compressed stream that nobody asked for is refused, with a 502",
    "cmpl-usage-chunk": "usage that the server never sent is not invented",
    "live-keepalive-in-silence": "the gateway's own signs of life come after seconds, and no test waits",
}
"""What is not mended in this way, and why."""
MENDED = [fault for fault in ALL if fault.mend is Mend.LOSSLESS and fault.id not in OTHERWISE]
FAILED = "err-refused-4xx"
"""A stream that failed behind the gateway before it had said anything is a 502."""


async def _check(folder: Path, choose: Choose, speed: float, *probes: Probe) -> Report:
    """What is heard of a gateway in front of a server."""
    async with await Scripted(Script(speed=speed), choose, for_all=True).listen() as behind:
        upstream = UpstreamSettings(name="a", url=f"http://127.0.0.1:{behind.port}/v1", probe_s=0.0)
        settings = ServeSettings(port=0, cors_origins=("http://localhost:3000",))
        server = Server(Config(server=settings, models=(), upstreams=(upstream,)), keys=(), folder=folder)
        await server.start()
        try:
            url = f"http://127.0.0.1:{server.port}/v1"
            return await check(CheckSettings(url=url, model="ideal", patience=PATIENCE), probes=probes)
        finally:
            await server.stop()


def _after_the_first_look(flaw: Choose) -> Choose:
    """A server that shows its flaw only when the probes begin: with some the first look would find no server."""
    ideal = Ideal()
    first = iter(["/v1/chat/completions"])
    return lambda seen: ideal.answer(seen) if seen.method == "POST" and next(first, None) else flaw(seen)


def _probes(fault: Fault) -> list[Probe]:
    """Who would hear it."""
    if fault.by is Hearing.REPLY:
        return [BY_NAME[_first_fitting(fault.id)[0]]]
    return [probe for probe in PROBES if fault.id in probe.rules]


@pytest.mark.parametrize("fault", MENDED, ids=lambda fault: fault.id)
def test_what_can_be_mended_is_mended(fault: Fault, tmp_path: Path) -> None:
    speed, _ = TIMED.get(fault.id, (1.0, PATIENCE))
    report = run(_check(tmp_path, _after_the_first_look(flawed(fault.id, Ideal())), speed, *_probes(fault)))
    is_failure = fault.id.startswith("err-")
    assert report.broken.keys() <= ({FAILED} if is_failure else set())
