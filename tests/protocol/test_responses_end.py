"""Repair of the Responses API: the end of the stream, failures and keep-alives."""

import json

import msgspec

from tests.protocol.responses_streams import HEAD, RESPONSE, USAGE, Json, changed, frame, read, repair, text_stream
from tests.table import table
from welldone.core.answer_format import KEEP_ALIVE
from welldone.core.events import Failure
from welldone.core.request_facts import RepairOptions
from welldone.dialects.responses.repair import ResponsesRepairer


def test_a_completed_event_with_status_incomplete_becomes_incomplete() -> None:
    values = text_stream()
    values[8]["response"] |= {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
    repaired, repairer = repair(values)
    assert repaired[-1]["type"] == "response.incomplete"
    assert repaired[-1]["response"]["incomplete_details"] == {"reason": "content_filter"}
    assert repairer.repair_log.counts() == {"resp-terminal-once": 1}


def test_an_incomplete_answer_has_a_reason_and_incomplete_items() -> None:
    values = text_stream()
    end = {"type": "response.incomplete", "response": RESPONSE | {"status": "incomplete", "usage": USAGE}}
    repaired, _ = repair([*values[:5], end])
    assert repaired[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert repaired[-1]["response"]["output"][0]["status"] == "incomplete"


def test_done_completes_the_response_if_all_items_are_done() -> None:
    repairer = ResponsesRepairer(fallback=HEAD)
    repaired = read(repairer.feed(b"".join(map(frame, text_stream()[:8])) + b"data: [DONE]\n\n") + repairer.close())
    assert repaired[-1]["type"] == "response.completed"
    assert repaired[-1]["response"]["usage"] is None
    assert repairer.failure is None


@table("count", range(9))
def test_a_truncated_stream_has_failed(count: int) -> None:
    repaired, repairer = repair(text_stream()[:count])
    assert repaired[0]["type"] == "response.created"
    assert repaired[-1]["type"] == "response.failed"
    assert repaired[-1]["response"]["error"]["code"] == "incomplete_stream"
    is_closed = count == 8
    statuses = ["completed" if is_closed else "incomplete"] * (count > 2)
    assert [item["status"] for item in repaired[-1]["response"]["output"]] == statuses
    assert repairer.failure is not None
    assert repairer.final_object == repaired[-1]["response"]


FAILED: list[tuple[Json, Json]] = [
    ({"type": "error", "code": "c", "message": "boom", "param": "p"}, {"code": "c", "message": "boom", "param": "p"}),
    ({"type": "error", "error": {"type": "rate_limit_error", "message": "boom"}}, {"code": "rate_limit_exceeded"}),
    ({"type": "error"}, {"code": "server_error", "message": "unknown error"}),
    ({"error": {"message": "boom", "code": 500}, "type": ""}, {"code": "500", "message": "boom"}),
    (
        {"type": "response.failed", "response": RESPONSE | {"error": {"code": "c", "message": "boom", "x": 1}}},
        {"code": "c", "message": "boom", "x": 1},
    ),
    ({"type": "response.failed", "response": RESPONSE}, {"code": "server_error", "message": "unknown error"}),
    (
        {"type": "response.completed", "response": RESPONSE | {"status": "failed", "error": {"message": "boom"}}},
        {"code": "server_error", "message": "boom"},
    ),
]


@table(("value", "error"), FAILED)
def test_failures_are_normalised(value: Json, error: Json) -> None:
    repaired, repairer = repair([*text_stream()[:5], value])
    assert repaired[-1]["type"] == "response.failed"
    assert repaired[-1]["response"]["error"].items() >= error.items()
    assert repaired[-1]["response"]["output"][0]["status"] == "incomplete"
    assert repairer.failure is not None


def test_an_error_event_is_forwarded_before_response_failed() -> None:
    error, failed = FAILED[0][0] | {"sequence_number": 5}, FAILED[4][0] | {"sequence_number": 6}
    failed["response"] = failed["response"] | {"status": "failed"}
    repaired, repairer = repair([*text_stream()[:5], error, failed])
    assert repaired[5] == error
    assert repaired[-1]["response"]["error"]["message"] == "boom"
    assert "resp-error" not in repairer.repair_log.counts()
    assert repairer.has_started


def test_an_error_event_at_the_end_becomes_response_failed() -> None:
    repaired, repairer = repair([FAILED[0][0]])
    assert [value["type"] for value in repaired] == ["response.created", "error", "response.failed"]
    assert "resp-error" in repairer.repair_log.counts()


def test_failures_pass_through_the_failure_mapper() -> None:
    repairer = ResponsesRepairer(fallback=HEAD)
    repairer.configure(
        0, RepairOptions(map_failure=lambda failure: msgspec.structs.replace(failure, message="trouble"))
    )
    repaired, _ = repair([FAILED[0][0]], repairer)
    assert repaired[1]["message"] == "trouble"
    assert repaired[2]["response"]["error"]["message"] == "trouble"
    assert "boom" not in json.dumps(repaired)


def test_fail_ends_the_answer() -> None:
    repairer = ResponsesRepairer(fallback=HEAD)
    sent = b"".join(frame(value) for value in text_stream()[:5])
    repaired = read(repairer.feed(sent) + repairer.fail(Failure("too slow", code="timeout")) + repairer.close())
    assert repaired[-1]["response"]["error"] == {"code": "timeout", "message": "too slow"}


def test_a_violation_of_a_strict_rule_fails_the_answer() -> None:
    repairer = ResponsesRepairer(fallback=HEAD)
    repairer.configure(0, RepairOptions(strict=frozenset({"resp-logprobs-array"})))
    repaired = read(repairer.feed(changed(text_stream(), 4, {"logprobs": None})) + repairer.close())
    assert repaired[-1]["response"]["error"]["code"] == "upstream_rule_broken"


# Keep-alives


def test_a_keep_alive_is_a_comment_and_the_sixth_in_a_row_a_numbered_event() -> None:
    first, delta, *_ = (value for value in text_stream() if value["type"] not in ("response.in_progress",))
    repairer = ResponsesRepairer(fallback=HEAD)
    assert repairer.feed(b": ping\n\n" * 7) == KEEP_ALIVE * 7  # not before the first event
    repairer.feed(frame(first))
    event = b'event: keepalive\ndata: {"type":"keepalive","sequence_number":%d}\n\n'
    assert repairer.feed(b": ping\n\n" * 4) + repairer.keep_alive() == KEEP_ALIVE * 5
    assert repairer.keep_alive() == event % 1
    assert repairer.feed(b": ping\n\n" * 3) == KEEP_ALIVE * 3
    assert repairer.feed(b'data: {"type":"keepalive"}\n\n') == event % 2  # an event of the server stays one
    assert repairer.feed(b": ping\n\n" * 5) == KEEP_ALIVE * 5
    repairer.feed(frame(delta))
    assert repairer.keep_alive() == KEEP_ALIVE  # the run has ended


def test_a_numbered_keep_alive_counts_as_an_event() -> None:
    values = [
        value | {"sequence_number": value["sequence_number"] + (position > 4)}
        for position, value in enumerate(text_stream())
    ]
    values.insert(5, {"type": "keepalive", "sequence_number": 5})
    repaired, repairer = repair(values)
    assert repaired == values
    assert repairer.repair_log.entries() == []


def test_an_event_without_data_becomes_a_keep_alive_and_is_logged() -> None:
    repairer = ResponsesRepairer(fallback=HEAD)
    assert repairer.feed(b'event: keepalive\n\ndata: {"type":"keepalive"}\n\n: ping\n\n') == KEEP_ALIVE * 3
    assert repairer.repair_log.counts()["resp-keepalive"] == 2


@table("glue", [b"\n", b"", b"\nevent: error\n"])
@table("end", [60, -20, -2])
@table("is_nested", [False, True])
def test_an_error_glued_to_an_unfinished_event_keeps_its_message(glue: bytes, end: int, is_nested: bool) -> None:
    error: Json = {"message": "stream_read_error", "code": "c"}
    failed = frame({"type": "error", "sequence_number": 0} | ({"error": error} if is_nested else error))
    data = failed[failed.index(b"data: ") :]
    repairer = ResponsesRepairer(fallback=HEAD)
    started = b"".join(map(frame, text_stream()[:4]))
    repaired = read(
        repairer.feed(started + frame(text_stream()[4])[:end] + glue + (data if glue else data[6:])) + repairer.close()
    )
    assert repairer.failure is not None
    assert repaired[-1]["response"]["error"] == error
