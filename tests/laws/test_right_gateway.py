"""Law 3 through the gateway over HTTP: the client reads what the upstream has sent, in every dialect.

`right_gateway` has the comparisons. 2,000 streams of a dialect take some 20 s on one core.
"""

from pathlib import Path

import pytest

from tests.laws.right_gateway import ROUTES, SERVERS, STREAMS_PER_SERVER, law_gateway
from tests.table import table


@pytest.mark.parametrize(
    "streams", [20, pytest.param(200, marks=pytest.mark.tier2), pytest.param(2_000, marks=pytest.mark.tier3)]
)
@table("dialect", ROUTES)
def test_a_legal_stream_keeps_its_content(tmp_path: Path, dialect: str, streams: int) -> None:
    seeds = range(streams // STREAMS_PER_SERVER if dialect == SERVERS else streams)
    with law_gateway(tmp_path, ROUTES[dialect]) as gateway:
        found = {seed: list(ROUTES[dialect].check(gateway, seed)) for seed in seeds}
        assert {seed: differences for seed, differences in found.items() if differences} == {}
