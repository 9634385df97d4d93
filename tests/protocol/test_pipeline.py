"""Repair of streams: rule cases, boundaries, hostile input."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    DONE,
    FALLBACK,
    Json,
    RepairedStream,
    call_start,
    choice,
    chunk,
    content_chunks,
    count,
    delta_chunk,
    finish,
    frame,
    pack,
    piece,
    role,
    stream,
    text,
    text_end,
    usage_chunk,
)
from tests.protocol.repair_cases import CASES, HELLO, Case
from tests.table import table
from welldone.core.catalog import RULES, Detection, Repairability
from welldone.core.envelope import Endpoint
from welldone.core.events import Failure, Usage
from welldone.core.request_facts import RequestFacts
from welldone.stream.pipeline import StreamPipeline, tool_call_id_factory

KEEP_ALIVE = b": keep-alive\n\n"
NOT_IN_THE_BYTES = {"sse-whole-event-writes", "err-status-before-stream"}
"""Rules on transport chunks and HTTP status, which the body alone does not show."""


def _names() -> list[str]:
    """Rule of each case, with a number if it has several."""
    seen: Counter[str] = Counter()
    names = []
    for case in CASES:
        seen[case.rule] += 1
        names.append(f"{case.rule}-{seen[case.rule]}")
    return names


cases = table("case", CASES, ids=_names())


@cases
def test_a_violation_is_repaired_and_recorded(case: Case) -> None:
    fixed = RepairedStream(case.malformed, case.endpoint, facts=case.facts)
    assert fixed.body == case.expected
    assert fixed.rules == sorted({case.rule, *case.also})


@pytest.mark.no_cover
@cases
def test_byte_boundaries_do_not_matter(case: Case) -> None:
    whole = RepairedStream(case.malformed, case.endpoint, facts=case.facts)
    for size in (1, 7):
        cut = RepairedStream(case.malformed, case.endpoint, facts=case.facts, size=size)
        assert cut.body == case.expected
        assert cut.pipeline.repair_log.entries() == whole.pipeline.repair_log.entries()


@cases
def test_a_repaired_stream_needs_no_repair(case: Case) -> None:
    assert RepairedStream(case.expected, case.endpoint, facts=case.facts).body == case.expected


def test_each_rule_with_a_repair_has_a_case() -> None:
    mendable = {
        rule.id
        for rule in RULES.values()
        if rule.detection is Detection.REPLY
        and rule.repairability is not Repairability.REPORT_ONLY
        and not rule.id.startswith(("http-", "ns-", "resp-", "msg-", "gem-"))
    }
    assert {case.rule for case in CASES} == mendable - NOT_IN_THE_BYTES


RIGHT = [
    (CHAT, stream(role(), *content_chunks("Hel", "lo"), finish())),
    (CHAT, stream(role(), *content_chunks("a"), finish("length"), usage_chunk(count()))),
    (CHAT, stream(role(), delta_chunk({"reasoning_content": "r"}), *content_chunks("a"), finish())),
    (CHAT, stream(role(), delta_chunk({"refusal": "no"}), finish("content_filter"))),
    (
        CHAT,
        stream(
            role(),
            delta_chunk(call_start()),
            delta_chunk(piece('{"x":1}')),
            delta_chunk(call_start(1, "call_b", "put")),
            delta_chunk(piece("{}", 1)),
            finish("tool_calls"),
        ),
    ),
    (CHAT, stream(role(), role(1), *content_chunks("b", index=1), *content_chunks("a"), finish(), finish("stop", 1))),
    (CHAT, stream(role(), chunk(choice({"content": "a", "x": "b"}, y=1), z=2), finish())),
    (CHAT, stream(KEEP_ALIVE, role(), KEEP_ALIVE, delta_chunk({}), *content_chunks("a"), finish())),
    (CHAT, stream({"error": {"message": "boom", "type": "t", "param": None, "code": None}})),
    (COMPLETIONS, stream(text("a"), text("b", 1), text_end(), text_end("length", 1))),
]


@table(("endpoint", "data"), RIGHT)
def test_a_correct_stream_passes_byte_for_byte_without_a_repair(endpoint: Endpoint, data: bytes) -> None:
    fixed = RepairedStream(data, endpoint)
    assert fixed.body == data
    assert fixed.rules == []


def test_the_pipeline_reports_how_the_stream_ended() -> None:
    whole = RepairedStream(
        stream(role(), finish(), usage_chunk(count())), facts=RequestFacts(include_usage=False)
    ).pipeline
    assert (whole.is_done, whole.failure, whole.usage) == (True, None, Usage(5, 3, 8, {}))
    assert whole.finish_reasons == ("stop",)
    cut = RepairedStream(stream(role(), end=b"")).pipeline
    message = "the server's stream ended before the answer was complete"
    assert (cut.is_done, cut.usage, cut.finish_reasons) == (True, None, ())
    assert cut.failure == Failure(message, "upstream_error", None, "incomplete_stream")


def test_bytes_are_sent_without_delay() -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK)
    assert pipeline.feed(b": ping\n") == KEEP_ALIVE
    assert pipeline.feed(frame(role())[:-1]) == b""
    assert pipeline.feed(b"\n") == frame(role())
    assert pipeline.is_done is False
    assert pipeline.feed(frame(content_chunks("a")[0]) + frame(content_chunks("b")[0])) == stream(
        *content_chunks("a", "b"), end=b""
    )
    assert pipeline.feed(frame(finish())) == b""
    assert pipeline.feed(DONE) == b""
    assert pipeline.is_done is True
    assert pipeline.close() == stream(finish())


def test_a_stream_without_an_answer_ends_with_an_error() -> None:
    body = b"<html>502 Bad Gateway</html>"
    for data, message, code in (
        (body, "the server sent no answer", "incomplete_stream"),
        (body + b"\n\n", "the server sent no answer", "incomplete_stream"),
        (b"data: " + body + b"\n\n", "the server sent a frame that is not JSON (frame 1)", "bad_upstream_stream"),
    ):
        error = {"message": message, "type": "upstream_error", "param": None, "code": code}
        assert RepairedStream(data).body == stream({"error": error})


def test_fields_before_the_envelope_are_sent_with_the_first_chunk() -> None:
    early = chunk(id="", object="", model="", prompt_filter_results=[1])
    fixed = RepairedStream(stream(early, b": ping\n\n", role(), finish()))
    assert fixed.body == KEEP_ALIVE + stream(role() | {"prompt_filter_results": [1]}, finish())
    assert fixed.rules == ["env-placeholder-chunk"]


BOOM = {"error": {"message": "boom", "type": "t", "param": None, "code": None}}


@pytest.mark.parametrize(
    ("held", "deltas"),
    [
        ([*content_chunks("ab"), delta_chunk(call_start())], [*content_chunks("ab"), delta_chunk(call_start())]),
        (
            [*content_chunks("ab"), delta_chunk(call_start(arguments="{}"))],
            [*content_chunks("ab"), delta_chunk(call_start()), delta_chunk(piece("{}"))],
        ),
    ],
    ids=["call", "placeholder"],
)
def test_pending_fields_are_sent_before_held_text_when_the_answer_fails(held: list[Json], deltas: list[Json]) -> None:
    pending = delta_chunk({}, logprobs={"content": [], "refusal": None}, x=1)
    fixed = RepairedStream(stream(role(), *held, pending, BOOM))
    assert fixed.body == stream(role(), deltas[0], pending, *deltas[1:], BOOM)
    assert fixed.rules == []


def test_a_finished_choice_is_finished_when_another_fails() -> None:
    fixed = RepairedStream(stream(role(), role(1), finish(), *content_chunks("b", index=1), BOOM))
    assert fixed.body == stream(role(), role(1), *content_chunks("b", index=1), finish(), BOOM)


def test_nothing_is_read_after_a_failure_from_outside() -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK)
    pipeline.feed(stream(*(delta_chunk(call_start(number, f"id{number}")) for number in range(2000)), end=b""))
    assert pipeline.is_done is True
    assert pipeline.feed(stream(*content_chunks("a"), finish())) == b""
    assert pipeline.close() == DONE


def test_missing_usage_is_not_invented() -> None:
    chat = RepairedStream(stream(role(), finish()), facts=RequestFacts(include_usage=True))
    assert chat.body == stream(role() | {"usage": None}, finish() | {"usage": None})
    assert chat.rules == ["use-final-chunk"]
    completions = RepairedStream(stream(text("a"), text_end()), COMPLETIONS, facts=RequestFacts(include_usage=True))
    assert completions.rules == ["cmpl-usage-chunk", "use-final-chunk"]


def test_continuous_usage_is_sent_if_requested() -> None:
    data = stream(
        *(one | {"usage": count(5, 1)} for one in (role(), *content_chunks("a"), finish())), usage_chunk(count())
    )
    fixed = RepairedStream(data, facts=RequestFacts(include_usage=True, continuous_usage=True))
    assert fixed.body == data
    assert fixed.rules == []


def test_a_request_with_functions_gets_a_function_call() -> None:
    deltas = [{"function_call": {"name": "get", "arguments": ""}}, {"function_call": {"arguments": '{"x":1}'}}]
    data = stream(role(), *(delta_chunk(delta) for delta in deltas), finish("function_call"))
    fixed = RepairedStream(data, facts=RequestFacts(uses_legacy_functions=True))
    assert fixed.body == data
    assert fixed.rules == []


def test_generated_call_ids_derive_from_the_stream_id() -> None:
    new_id = tool_call_id_factory("chatcmpl-abc")
    assert [new_id(), new_id()] == ["call_abc1", "call_abc2"]
    assert tool_call_id_factory("plain")() == "call_plain1"


BIG = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"x"}}]}}]}\n\n'


@pytest.mark.no_cover
@table(
    ("make", "size"),
    [
        (lambda: b"{" * 1_000_000, 4096),
        (lambda: b"data: " + b"x" * 10_000_000, 4096),
        (lambda: b"data:\n\n" * 10_000, 65536),
        (lambda: b": x\n" * 10_000, 65536),
        (lambda: b"data: [[[[\n" * 11_000, 65536),
        (lambda: BIG * 5_000, 65536),
        (lambda: frame(delta_chunk(call_start())) + BIG * 10_000, 65536),
        (lambda: stream(*(delta_chunk(call_start(number, f"id{number}")) for number in range(2000))), 65536),
        (lambda: b"data: " + pack(delta_chunk({"x": "@"})).replace(b'"@"', b"[" * 500 + b"]" * 500) + b"\n\n", 65536),
    ],
    ids=[
        "braces",
        "one line",
        "empty frames",
        "comments",
        "pieces of nothing",
        "pieces of no call",
        "pieces of a call",
        "calls",
        "deep fields",
    ],
)
def test_hostile_bytes_end_with_an_error_and_a_bounded_log(make: Callable[[], bytes], size: int) -> None:
    fixed = RepairedStream(make(), size=size, limit_bytes=1_000_000)
    assert fixed.body.endswith(b"}}\n\n" + DONE)
    assert fixed.body.count(b'data: {"error":{"message":"the server') == 1
    assert len(fixed.pipeline.repair_log.entries()) <= len(RULES)


@pytest.mark.parametrize("end", [b"", b"data: [DONE]\n\n"], ids=["cut", "done"])
def test_a_stream_of_comments_is_not_an_answer(end: bytes) -> None:
    pipeline = StreamPipeline(Endpoint.CHAT, fallback=FALLBACK)
    fixed = pipeline.feed(b": c\n\n" * 100 + end) + pipeline.close()
    assert fixed.startswith(KEEP_ALIVE * 40 + b'data: {"error":{"message":"the server sent no answer"')
    assert fixed.count(KEEP_ALIVE) == 40
    assert {repair.rule for repair in pipeline.repair_log.entries()} == {"sse-keepalive-run-limit", "err-empty-stream"}


@pytest.mark.parametrize("stray", [b"foo: bar\n", b"x\n"])
def test_a_stray_line_next_to_done_changes_nothing(stray: bytes) -> None:
    expected = stream(role(), *content_chunks("Hi"), finish())
    assert RepairedStream(expected.removesuffix(DONE) + stray + DONE).body == expected


def test_invalid_json_after_done_is_only_recorded() -> None:
    expected = stream(role(), *content_chunks("Hi"), finish())
    fixed = RepairedStream(expected + b"data: bye\n\n")
    assert (fixed.body, fixed.rules) == (expected, ["end-done-last"])


def test_white_space_after_empty_arguments_is_sent() -> None:
    expected = stream(
        role(), delta_chunk(call_start()), delta_chunk(piece("{}")), delta_chunk(piece("\n")), finish("tool_calls")
    )
    assert RepairedStream(expected).body == expected


def test_content_next_to_an_error_is_sent_before_it() -> None:
    fixed = RepairedStream(stream(role(), {**delta_chunk({"content": "bye"}), "error": {"message": "boom"}})).body
    assert 0 < fixed.index(b'"content":"bye"') < fixed.index(b'"message":"boom"')


def test_pending_unknown_fields_are_sent_with_their_chunk() -> None:
    held = [{**delta_chunk(piece("[", 1)), f"x{number}": "a"} for number in range(600)]
    fixed = RepairedStream(
        stream(role(), delta_chunk(call_start()), delta_chunk(call_start(1, "call_b")), *held, finish("tool_calls"))
    ).body
    assert all(fixed.count(b'"x%d"' % number) == 1 for number in range(600))


def test_all_buffers_are_bounded() -> None:
    placeholders = [{"id": "", "object": "", "choices": [], f"x{number}": 1} for number in range(100)]
    repaired_body = RepairedStream(stream(*placeholders, role(), *content_chunks("Hi"), finish())).body
    assert (b'"x63"' in repaired_body, b'"x64"' in repaired_body) == (True, False)
    lists = [delta_chunk({f"x{number}": [{}]}) for number in range(1100)]
    assert b'"x1099":[{}]' in RepairedStream(stream(role(), *lists, finish())).body
    many = [delta_chunk(piece(None, number)) for number in range(4200)]
    assert RepairedStream(stream(role(), *many, *content_chunks("Hi"), finish())).pipeline.failure is None


@table(
    ("message", "added"),
    [
        ({"role": "assistant", "content": "Hello"}, []),
        (
            {"content": "Hello", "reasoning_content": "why", "refusal": None},
            [delta_chunk({"reasoning_content": "why"})],
        ),
        ({"content": "Hello", "citations": ["a"]}, [delta_chunk({"citations": ["a"]})]),
        ({"content": "Hello", **call_start(arguments="{}")}, [delta_chunk(call_start()), delta_chunk(piece("{}"))]),
    ],
    ids=["text", "texts", "fields", "calls"],
)
def test_a_complete_message_at_the_end_does_not_repeat_the_text(message: Json, added: list[Json]) -> None:
    sent = RepairedStream(stream(*HELLO[:3], chunk(choice({}, None, message=message)), HELLO[3])).body
    reason = "tool_calls" if "tool_calls" in message else "stop"
    assert sent == stream(*HELLO[:3], *added, finish(reason))


def test_a_message_at_the_end_does_not_repeat_tool_calls() -> None:
    message = {"content": "Hello", **call_start(arguments="{}")}
    called = [delta_chunk(call_start()), delta_chunk(piece("{}"))]
    sent = RepairedStream(
        stream(*HELLO[:3], *called, chunk(choice({}, None, message=message)), finish("tool_calls"))
    ).body
    assert sent == stream(*HELLO[:3], delta_chunk({}), *called, finish("tool_calls"))


def test_a_role_and_a_comment_are_not_content() -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK)
    seen = []
    for data in (stream(role(), end=b""), b": wait\n\n", stream(text("Hi"), end=b"")):
        pipeline.feed(data)
        seen.append(pipeline.has_content)
    assert seen == [False, False, True]
