"""Rules that a server is held to: who breaks one of them has failed."""

import pytest

from tests.protocol.build import CHAT, DONE, FALLBACK, cuts, finish, frame, pack, role, rules, stream, words
from tests.table import table
from welldone.protocol.events import Failure
from welldone.protocol.merger import FanOut
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline
from welldone.protocol.request_facts import RequestFacts
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

RIGHT = stream(role(), *words("a", "b"), finish())


def failure(rule: str) -> Failure:
    return Failure(
        f"The upstream broke the rule {rule}, and this server is strict about it.", code="upstream_rule_broken"
    )


def fix(data: bytes, *strict: str, size: int = 1 << 20) -> tuple[bytes, StreamPipeline]:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(include_usage=None), strict=frozenset(strict))
    return b"".join([*(pipe.feed(piece) for piece in cuts(data, size)), pipe.close()]), pipe


@table("size", [1, 100, 1 << 20])
@table(
    ("data", "strict", "rule", "said"),
    [
        # in the middle: what came before is said, what follows is not
        (
            stream(role(), *words("a"), role(), *words("b", "c"), finish()),
            "delta-role-once",
            "delta-role-once",
            [role(), *words("a")],
        ),
        # in the first frame
        (stream(*words("a", "b"), finish()), "all", "delta-role-first", [role(), *words("a")]),
        # at the end: it is no success
        (stream(role(), *words("a", "b")), "fin-always-sent", "fin-always-sent", [role(), *words("a", "b")]),
        (stream(role(), *words("a"), finish(), end=b""), "end-done-sent", "end-done-sent", [role(), *words("a")]),
        # one that can only be reported, named
        (
            stream(role(), *words("a", "\ufffd"), finish()),
            "enc-no-replacement-char",
            "enc-no-replacement-char",
            [role(), *words("a", "\ufffd")],
        ),
    ],
    ids=["middle", "first", "finish", "done", "report"],
)
def test_a_rule_that_may_not_be_broken_ends_the_answer(
    data: bytes, strict: str, rule: str, said: list[object], size: int
) -> None:
    body, pipe = fix(data, strict, size=size)
    told = failure(rule)
    error = {"error": {"message": told.message, "type": "server_error", "param": None, "code": told.code}}
    assert body == stream(*said, frame(error))
    assert pipe.failure == told
    assert judge(Trace(body=body, endpoint="chat")).findings == () or rule == "enc-no-replacement-char"


def test_other_rules_are_mended_as_ever() -> None:
    odd = stream(role(), role(), *words("a", "b"), finish())
    body, pipe = fix(odd, "fin-always-sent")
    assert (body, rules(pipe.repair_log), pipe.failure) == (RIGHT, ["delta-role-once"], None)


@pytest.mark.parametrize("strict", ["all", "tool-args-json-object"])
def test_a_right_stream_is_right(strict: str) -> None:
    assert fix(RIGHT, strict)[0] == RIGHT


def test_what_can_only_be_reported_is_not_among_all() -> None:
    odd = stream(role(), *words("a", "\ufffd"), finish())
    assert fix(odd, "all")[0] == odd


def test_an_error_of_the_server_stays_its_own() -> None:
    body, pipe = fix(stream(role(), {"error": {"message": "boom", "type": "t", "param": None, "code": None}}), "all")
    assert pipe.failure == Failure("boom", "t")
    assert body.count(b'"error"') == 1
    cut, pipe = fix(stream(role(), *words("a"), end=b""), "all")
    assert pipe.failure is not None
    assert pipe.failure.code == "incomplete_stream"
    assert cut.endswith(DONE)


def test_a_whole_reply_is_held_to_the_rules_of_whole_replies() -> None:
    envelope = {"id": "chatcmpl-1", "created": 1, "model": "m"}
    reply = {**envelope, "choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]}
    for strict, told in (("ns-role", failure("ns-role")), ("all", failure("ns-object")), ("delta-role-once", None)):
        fold = BufferedPipeline(CHAT, fallback=FALLBACK, strict=frozenset({strict}))
        fold.feed_reply(pack(reply))
        fold.close()
        assert fold.failure == told


def test_each_part_may_be_held_to_rules_of_its_own() -> None:
    odd = stream(role(), role(), *words("a"), finish())
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(choice_count=2), fan_out=FanOut(2))
    pipe.configure(1, strict=frozenset({"delta-role-once"}))
    body = pipe.feed(odd, 0) + pipe.close(0)
    assert pipe.failure is None
    body += pipe.feed(odd, 1) + pipe.close(1)
    assert pipe.failure == failure("delta-role-once")
    assert body.count(b'"finish_reason":"stop"') == 1
