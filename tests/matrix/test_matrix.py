"""What hurts real clients is heard by the judge and mended by repair: the measured matrix, case by case."""

import json

from tests.matrix.build import HEAD
from tests.matrix.cases import CASES, EXPECTED, HEADS, OURS, request
from tests.matrix.heard import HEARD, LEGAL
from tests.matrix.oracle import fix
from tests.oracle.repaired import plain
from tests.table import table
from welldone.protocol.catalog import RULES_BY_ID
from welldone.protocol.catalog.rule import Repairability
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

END = b"data: [DONE]\n\n"
OUR_ERROR = b'"type":"upstream_error"'


def _broken(name: str, body: bytes, status: int | None = None) -> set[str]:
    return set(judge(Trace(body=body, request=request(name), status=status)).counts)


@table("name", CASES)
def test_a_repaired_stream_breaks_no_rule_that_can_be_mended(name: str) -> None:
    left = {
        rule
        for rule in _broken(name, fix(name, [CASES[name]]))
        if RULES_BY_ID[rule].repairability is not Repairability.REPORT_ONLY
    }
    expected = EXPECTED[name]
    is_counted = expected["usage"] is not None or expected["error"] is not None
    # Counts that the server never gave are not made up.
    assert left == (set() if is_counted else {"use-final-chunk"})


@table("name", CASES)
def test_a_repaired_stream_says_what_the_server_meant(name: str) -> None:
    fixed = fix(name, [CASES[name]])
    said = plain(fixed)
    if OUR_ERROR in fixed:
        said["error"] = OURS
    assert said == EXPECTED[name]


@table("name", CASES)
def test_a_repaired_stream_ends_as_it_should(name: str) -> None:
    *_, last, end = fix(name, [CASES[name]]).split(b"\n\n")[:-1]
    assert end + b"\n\n" == END
    assert last.startswith(b'data: {"error":') == (EXPECTED[name]["error"] is not None)


@table("name", CASES)
def test_a_repaired_stream_has_one_envelope_and_the_servers_where_it_gave_one(name: str) -> None:
    lines = fix(name, [CASES[name]]).decode().split("\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith('data: {"id"')]
    assert [{key: chunk[key] for key in HEAD} for chunk in chunks] == [HEADS[name]] * len(chunks)
    assert bool(chunks) == bool(EXPECTED[name]["choices"])


@table("name", CASES)
def test_where_the_bytes_are_cut_does_not_matter(name: str) -> None:
    body = CASES[name]
    assert fix(name, [body[at : at + 1] for at in range(len(body))]) == fix(name, [body])


@table("name", CASES)
def test_what_is_repaired_needs_no_repair(name: str) -> None:
    fixed = fix(name, [CASES[name]])
    assert fix(name, [fixed]) == fixed


@table("name", HEARD)
def test_the_judge_hears_what_is_odd(name: str) -> None:
    assert HEARD[name] in _broken(name, CASES[name], status=200)


@table("name", sorted(LEGAL))
def test_the_judge_hears_nothing_where_nothing_is_odd(name: str) -> None:
    assert _broken(name, CASES[name], status=200) == set()


def test_every_case_is_legal_or_heard() -> None:
    assert sorted([*LEGAL, *HEARD]) == sorted(CASES)


@table(
    ("name", "kept"),
    [
        ("extra.unknown_fields", b'"timings":{"predicted_ms":12.5}'),
        ("extra.unknown_delta_fields", b'"vendor":"x"'),
        ("azure.first_empty", b'"prompt_filter_results":[]'),
        ("json.nan", b'"t":null'),
    ],
)
def test_what_nobody_knows_is_kept(name: str, kept: bytes) -> None:
    assert kept in fix(name, [CASES[name]])
