"""Recent requests: newest first, limited, without secrets and without content."""

import json

import msgspec

from tests.table import table
from welldone.server.inspector.recent import RECENT_LIMIT, RecentRequests
from welldone.server.observe.log import RequestLogEntry

KEY = "canary-key-0123456789"


def _entry(number: int = 1, /, **fields: object) -> RequestLogEntry:
    given = {"request_id": f"req_{number}", "principal": "ci", "method": "POST", "path": "/v1/chat/completions"}
    return msgspec.convert({**given, "status": 200, "duration_ms": 1.5, **fields}, RequestLogEntry)


def test_the_newest_request_comes_first_with_its_time() -> None:
    times = iter([10.0, 20.0])
    recent = RecentRequests(now=lambda: next(times))
    recent.add(_entry(1))
    recent.add(_entry(2))
    assert [(row.request_id, row.at) for row in recent.rows()] == [("req_2", 20.0), ("req_1", 10.0)]


def test_the_limit_holds_however_often_the_rows_are_read() -> None:
    recent = RecentRequests()
    for number in range(2 * RECENT_LIMIT + 50):
        recent.add(_entry(number))
        if number == RECENT_LIMIT // 2:
            recent.rows()
    rows = recent.rows()
    assert [row.request_id for row in rows] == [f"req_{2 * RECENT_LIMIT + 49 - index}" for index in range(RECENT_LIMIT)]
    assert recent.rows() == rows


def test_a_principal_sees_its_own_requests_only() -> None:
    recent = RecentRequests()
    recent.add(_entry(1, principal="a"))
    recent.add(_entry(2, principal="b"))
    assert [row.principal for row in recent.rows("a")] == ["a"]
    assert len(recent.rows()) == 2


def test_a_row_has_the_fields_of_the_log_entry_and_omits_empty_ones() -> None:
    recent = RecentRequests(now=lambda: 5.0)
    repaired = ("delta-role-once",)
    recent.add(
        _entry(model="m", ttft_ms=3.0, prompt_tokens=0, repaired=repaired, upstream="lab", failed=("b:timeout",))
    )
    assert json.loads(msgspec.json.encode(recent.rows()))[0] == {
        "at": 5.0,
        "request_id": "req_1",
        "principal": "ci",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "duration_ms": 1.5,
        "model": "m",
        "ttft_ms": 3.0,
        "prompt_tokens": 0,
        "repaired": ["delta-role-once"],
        "upstream": "lab",
        "failed": ["b:timeout"],
    }


@table("field", ["request_id", "path", "model", "error", "method"])
@table("secret", [KEY, "sk-looks-like-a-key-of-openai"])
def test_secrets_are_redacted_in_every_field(field: str, secret: str) -> None:
    recent = RecentRequests(secrets=[KEY])
    recent.add(_entry(**{field: f"/v1/{secret}/x"}))
    shown = msgspec.json.encode(recent.rows()).decode()
    assert secret not in shown
    assert "[hidden]" in shown


def test_queries_are_removed_and_long_or_invalid_paths_are_shortened() -> None:
    recent = RecentRequests()
    recent.add(_entry(path="/v1/models?key=canary"))
    recent.add(_entry(path="/" + "x" * 100_000 + "\udcff"))
    recent.add(_entry(path="/\udcff"))
    odd, long, plain = recent.rows()
    assert plain.path == "/v1/models"
    assert len(long.path) < 300
    assert odd.path == "/\\udcff"
    assert msgspec.json.encode([odd, long, plain])
