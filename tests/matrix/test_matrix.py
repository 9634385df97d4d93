"""The measured matrix of client failures: the judge finds each malformed stream, and repair fixes it."""

import json

import pytest

from tests.matrix.build import HEAD
from tests.matrix.cases import CASES, EXPECTED, HEADS, OURS, request
from tests.matrix.expected_rules import EXPECTED_RULES, LEGAL
from tests.matrix.repaired_cases import fix
from tests.oracle.repaired import plain
from tests.table import table
from welldone.core.catalog import RULES, Repairability
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

END = b"data: [DONE]\n\n"
OUR_ERROR = b'"type":"upstream_error"'


def _violated_rules(name: str, body: bytes, status: int | None = None) -> set[str]:
    return set(judge(Trace(body=body, request=request(name), status=status)).counts)


@table("name", CASES)
def test_a_repaired_stream_violates_no_repairable_rule(name: str) -> None:
    left = {
        rule
        for rule in _violated_rules(name, fix(name, [CASES[name]]))
        if RULES[rule].repairability is not Repairability.REPORT_ONLY
    }
    expected = EXPECTED[name]
    is_counted = expected["usage"] is not None or expected["error"] is not None
    # Missing counts are not invented.
    assert left == (set() if is_counted else {"use-final-chunk"})


@table("name", CASES)
def test_a_repaired_stream_has_the_expected_content(name: str) -> None:
    fixed = fix(name, [CASES[name]])
    reply = plain(fixed)
    if OUR_ERROR in fixed:
        reply["error"] = OURS
    assert reply == EXPECTED[name]


@table("name", CASES)
def test_a_repaired_stream_ends_with_done(name: str) -> None:
    *_, last, end = fix(name, [CASES[name]]).split(b"\n\n")[:-1]
    assert end + b"\n\n" == END
    assert last.startswith(b'data: {"error":') == (EXPECTED[name]["error"] is not None)


@table("name", CASES)
def test_a_repaired_stream_has_one_envelope_from_the_server_if_it_sent_one(name: str) -> None:
    lines = fix(name, [CASES[name]]).decode().split("\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith('data: {"id"')]
    assert [{key: chunk[key] for key in HEAD} for chunk in chunks] == [HEADS[name]] * len(chunks)
    assert bool(chunks) == bool(EXPECTED[name]["choices"])


@pytest.mark.parametrize("size", [3, pytest.param(1, marks=pytest.mark.tier3)])
@table("name", CASES)
def test_chunk_boundaries_do_not_matter(name: str, size: int) -> None:
    body = CASES[name]
    assert fix(name, [body[at : at + size] for at in range(0, len(body), size)]) == fix(name, [body])


@table("name", CASES)
def test_repair_is_idempotent(name: str) -> None:
    fixed = fix(name, [CASES[name]])
    assert fix(name, [fixed]) == fixed


@table("name", EXPECTED_RULES)
def test_the_judge_finds_the_violation(name: str) -> None:
    assert EXPECTED_RULES[name] in _violated_rules(name, CASES[name], status=200)


@table("name", sorted(LEGAL))
def test_the_judge_finds_nothing_in_a_legal_stream(name: str) -> None:
    assert _violated_rules(name, CASES[name], status=200) == set()


def test_every_case_is_legal_or_has_an_expected_rule() -> None:
    assert sorted([*LEGAL, *EXPECTED_RULES]) == sorted(CASES)


@table(
    ("name", "fragment"),
    [
        ("extra.unknown_fields", b'"timings":{"predicted_ms":12.5}'),
        ("extra.unknown_delta_fields", b'"vendor":"x"'),
        ("azure.first_empty", b'"prompt_filter_results":[]'),
        ("json.nan", b'"t":null'),
    ],
)
def test_unknown_fields_are_kept(name: str, fragment: bytes) -> None:
    assert fragment in fix(name, [CASES[name]])
