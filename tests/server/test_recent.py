"""The last requests: the newest first, bounded, without secrets and without what was said."""

import json

import msgspec

from tests.table import table
from welldone.server.inspector.recent import RECENT_LIMIT, RecentRequests
from welldone.server.observe.log import RequestLogEntry

KEY = "canary-key-0123456789"


def _line(number: int = 1, /, **fields: object) -> RequestLogEntry:
    given = {"request_id": f"req_{number}", "principal": "ci", "method": "POST", "path": "/v1/chat/completions"}
    return msgspec.convert({**given, "status": 200, "duration_ms": 1.5, **fields}, RequestLogEntry)


def test_the_newest_request_comes_first_with_its_time() -> None:
    times = iter([10.0, 20.0])
    subject = RecentRequests(now=lambda: next(times))
    subject.add(_line(1))
    subject.add(_line(2))
    assert [(row.request_id, row.at) for row in subject.rows()] == [("req_2", 20.0), ("req_1", 10.0)]


def test_no_more_than_the_limit_is_kept_however_often_one_looks() -> None:
    subject = RecentRequests()
    for number in range(2 * RECENT_LIMIT + 50):
        subject.add(_line(number))
        if number == RECENT_LIMIT // 2:
            subject.rows()
    rows = subject.rows()
    assert [row.request_id for row in rows] == [f"req_{2 * RECENT_LIMIT + 49 - place}" for place in range(RECENT_LIMIT)]
    assert subject.rows() == rows


def test_a_principal_sees_its_own_requests_only() -> None:
    subject = RecentRequests()
    subject.add(_line(1, principal="a"))
    subject.add(_line(2, principal="b"))
    assert [row.principal for row in subject.rows("a")] == ["a"]
    assert len(subject.rows()) == 2


def test_a_row_says_what_the_log_says_and_leaves_out_what_is_not_known() -> None:
    subject = RecentRequests(now=lambda: 5.0)
    mended = ("delta-role-once",)
    subject.add(_line(model="m", ttft_ms=3.0, prompt_tokens=0, mended=mended, upstream="lab", failed=("b:timeout",)))
    assert json.loads(msgspec.json.encode(subject.rows()))[0] == {
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
        "mended": ["delta-role-once"],
        "upstream": "lab",
        "failed": ["b:timeout"],
    }


@table("field", ["request_id", "path", "model", "error", "method"])
@table("secret", [KEY, "sk-looks-like-a-key-of-openai"])
def test_a_secret_is_in_no_field(field: str, secret: str) -> None:
    subject = RecentRequests(secrets=[KEY])
    subject.add(_line(**{field: f"/v1/{secret}/x"}))
    shown = msgspec.json.encode(subject.rows()).decode()
    assert secret not in shown
    assert "[hidden]" in shown


def test_what_stands_behind_a_path_is_not_shown_and_long_or_odd_texts_do_no_harm() -> None:
    subject = RecentRequests()
    subject.add(_line(path="/v1/models?key=canary"))
    subject.add(_line(path="/" + "x" * 100_000 + "\udcff"))
    subject.add(_line(path="/\udcff"))
    odd, long, plain = subject.rows()
    assert plain.path == "/v1/models"
    assert len(long.path) < 300
    assert odd.path == "/\\udcff"
    assert msgspec.json.encode([odd, long, plain])
