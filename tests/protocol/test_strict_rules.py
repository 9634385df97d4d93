"""Rules that are configured as strict."""

import pytest

from tests.protocol.build import CHAT, DONE, FALLBACK, content_chunks, cuts, finish, frame, pack, role, rules, stream
from tests.table import table
from welldone.core.events import Failure
from welldone.core.request_facts import RepairOptions, RequestFacts
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.stream.fan_out import FanOut
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

RIGHT = stream(role(), *content_chunks("a", "b"), finish())


def failure(rule: str) -> Failure:
    return Failure(
        f"The upstream violated the rule {rule}, which is configured as strict.", code="upstream_rule_broken"
    )


def fix(data: bytes, *strict: str, size: int = 1 << 20) -> tuple[bytes, StreamPipeline]:
    pipeline = StreamPipeline(
        CHAT, fallback=FALLBACK, facts=RequestFacts(include_usage=None), options=RepairOptions(strict=frozenset(strict))
    )
    return b"".join([*(pipeline.feed(piece) for piece in cuts(data, size)), pipeline.close()]), pipeline


@table("size", [1, 100, 1 << 20])
@table(
    ("data", "strict", "rule", "sent"),
    [
        # in the middle: earlier content is sent, later content is not
        (
            stream(role(), *content_chunks("a"), role(), *content_chunks("b", "c"), finish()),
            "delta-role-once",
            "delta-role-once",
            [role(), *content_chunks("a")],
        ),
        # in the first frame
        (stream(*content_chunks("a", "b"), finish()), "all", "delta-role-first", [role(), *content_chunks("a")]),
        # at the end: a failure instead of the finish
        (
            stream(role(), *content_chunks("a", "b")),
            "fin-always-sent",
            "fin-always-sent",
            [role(), *content_chunks("a", "b")],
        ),
        (
            stream(role(), *content_chunks("a"), finish(), end=b""),
            "end-done-sent",
            "end-done-sent",
            [role(), *content_chunks("a")],
        ),
        # a rule without a repair, by its id
        (
            stream(role(), *content_chunks("a", "\ufffd"), finish()),
            "enc-no-replacement-char",
            "enc-no-replacement-char",
            [role(), *content_chunks("a", "\ufffd")],
        ),
    ],
    ids=["middle", "first", "finish", "done", "report"],
)
def test_a_violated_strict_rule_ends_the_answer(
    data: bytes, strict: str, rule: str, sent: list[object], size: int
) -> None:
    body, pipeline = fix(data, strict, size=size)
    expected_failure = failure(rule)
    error = {
        "error": {
            "message": expected_failure.message,
            "type": "server_error",
            "param": None,
            "code": expected_failure.code,
        }
    }
    assert body == stream(*sent, frame(error))
    assert pipeline.failure == expected_failure
    assert judge(Trace(body=body, endpoint="chat")).findings == () or rule == "enc-no-replacement-char"


def test_violations_of_other_rules_are_repaired() -> None:
    malformed = stream(role(), role(), *content_chunks("a", "b"), finish())
    body, pipeline = fix(malformed, "fin-always-sent")
    assert (body, rules(pipeline.repair_log), pipeline.failure) == (RIGHT, ["delta-role-once"], None)


@pytest.mark.parametrize("strict", ["all", "tool-args-json-object"])
def test_a_correct_stream_passes_with_strict_rules(strict: str) -> None:
    assert fix(RIGHT, strict)[0] == RIGHT


def test_rules_without_a_repair_are_not_included_in_all() -> None:
    malformed = stream(role(), *content_chunks("a", "\ufffd"), finish())
    assert fix(malformed, "all")[0] == malformed


def test_an_error_of_the_server_is_sent_unchanged() -> None:
    body, pipeline = fix(
        stream(role(), {"error": {"message": "boom", "type": "t", "param": None, "code": None}}), "all"
    )
    assert pipeline.failure == Failure("boom", "t")
    assert body.count(b'"error"') == 1
    cut, pipeline = fix(stream(role(), *content_chunks("a"), end=b""), "all")
    assert pipeline.failure is not None
    assert pipeline.failure.code == "incomplete_stream"
    assert cut.endswith(DONE)


def test_a_reply_is_checked_by_the_strict_rules_of_replies() -> None:
    envelope = {"id": "chatcmpl-1", "created": 1, "model": "m"}
    reply = {**envelope, "choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]}
    for strict, expected_failure in (
        ("ns-role", failure("ns-role")),
        ("all", failure("ns-object")),
        ("delta-role-once", None),
    ):
        buffered = BufferedPipeline(CHAT, fallback=FALLBACK, options=RepairOptions(strict=frozenset({strict})))
        buffered.feed_reply(pack(reply))
        buffered.close()
        assert buffered.failure == expected_failure


def test_strict_rules_are_set_per_part() -> None:
    malformed = stream(role(), role(), *content_chunks("a"), finish())
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(choice_count=2), fan_out=FanOut(2))
    pipeline.configure(1, RepairOptions(strict=frozenset({"delta-role-once"})))
    body = pipeline.feed(malformed, 0) + pipeline.close(0)
    assert pipeline.failure is None
    body += pipeline.feed(malformed, 1) + pipeline.close(1)
    assert pipeline.failure == failure("delta-role-once")
    assert body.count(b'"finish_reason":"stop"') == 1
