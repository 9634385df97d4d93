"""Any server's bytes in, the bytes of a right stream out."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    DONE,
    FALLBACK,
    Fixed,
    Json,
    choice,
    chunk,
    count,
    counted,
    finish,
    frame,
    named,
    pack,
    piece,
    role,
    say,
    stream,
    text,
    text_end,
    words,
)
from tests.protocol.mends import CASES, HELLO, Case
from tests.table import table
from welldone.protocol.catalog import ALL_RULES
from welldone.protocol.catalog.rule import Detection, Repairability
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import Failure, Usage
from welldone.protocol.merger import tool_call_id_factory
from welldone.protocol.pipeline import StreamPipeline
from welldone.protocol.request_facts import RequestFacts

KEEP_ALIVE = b": keep-alive\n\n"
NOT_IN_THE_BYTES = {"sse-whole-event-writes", "err-status-before-stream"}
"""How the bytes were cut, and with which status they came, is known only where they come from."""


def _names() -> list[str]:
    """The rule of each case, with a number where it has several."""
    seen: Counter[str] = Counter()
    names = []
    for case in CASES:
        seen[case.rule] += 1
        names.append(f"{case.rule}-{seen[case.rule]}")
    return names


cases = table("case", CASES, ids=_names())


@cases
def test_what_breaks_a_rule_is_mended_and_noted(case: Case) -> None:
    fixed = Fixed(case.odd, case.endpoint, asked=case.asked)
    assert fixed.body == case.right
    assert fixed.rules == sorted({case.rule, *case.also})


@pytest.mark.no_cover
@cases
def test_where_the_bytes_are_cut_never_matters(case: Case) -> None:
    whole = Fixed(case.odd, case.endpoint, asked=case.asked)
    for size in (1, 3, 50):
        cut = Fixed(case.odd, case.endpoint, asked=case.asked, size=size)
        assert cut.body == case.right
        assert cut.pipe.repair_log.entries() == whole.pipe.repair_log.entries()


@cases
def test_what_was_mended_needs_no_more(case: Case) -> None:
    assert Fixed(case.right, case.endpoint, asked=case.asked).body == case.right


def test_each_rule_that_can_be_mended_has_a_case() -> None:
    mendable = {
        fault.id
        for fault in ALL_RULES
        if fault.detection is Detection.REPLY
        and fault.repairability is not Repairability.REPORT_ONLY
        and not fault.id.startswith(("http-", "ns-", "resp-", "msg-"))
    }
    assert {case.rule for case in CASES} == mendable - NOT_IN_THE_BYTES


RIGHT = [
    (CHAT, stream(role(), *words("Hel", "lo"), finish())),
    (CHAT, stream(role(), *words("a"), finish("length"), counted(count()))),
    (CHAT, stream(role(), say({"reasoning_content": "r"}), *words("a"), finish())),
    (CHAT, stream(role(), say({"refusal": "no"}), finish("content_filter"))),
    (
        CHAT,
        stream(
            role(),
            say(named()),
            say(piece('{"x":1}')),
            say(named(1, "call_b", "put")),
            say(piece("{}", 1)),
            finish("tool_calls"),
        ),
    ),
    (CHAT, stream(role(), role(1), *words("b", index=1), *words("a"), finish(), finish("stop", 1))),
    (CHAT, stream(role(), chunk(choice({"content": "a", "x": "b"}, y=1), z=2), finish())),
    (CHAT, stream(KEEP_ALIVE, role(), KEEP_ALIVE, say({}), *words("a"), finish())),
    (CHAT, stream({"error": {"message": "boom", "type": "t", "param": None, "code": None}})),
    (COMPLETIONS, stream(text("a"), text("b", 1), text_end(), text_end("length", 1))),
]


@table(("endpoint", "data"), RIGHT)
def test_a_right_stream_passes_byte_for_byte_without_a_note(endpoint: Endpoint, data: bytes) -> None:
    fixed = Fixed(data, endpoint)
    assert fixed.body == data
    assert fixed.rules == []


def test_the_pipe_tells_how_the_stream_ended() -> None:
    whole = Fixed(stream(role(), finish(), counted(count())), asked=RequestFacts(include_usage=False)).pipe
    assert (whole.is_done, whole.failure, whole.usage) == (True, None, Usage(5, 3, 8, {}))
    cut = Fixed(stream(role(), end=b"")).pipe
    message = "the server's stream ended before the answer was whole"
    assert (cut.is_done, cut.usage) == (True, None)
    assert cut.failure == Failure(message, "upstream_error", None, "incomplete_stream")


def test_bytes_go_out_as_soon_as_they_can() -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK)
    assert pipe.feed(b": ping\n") == KEEP_ALIVE
    assert pipe.feed(frame(role())[:-1]) == b""
    assert pipe.feed(b"\n") == frame(role())
    assert pipe.is_done is False
    assert pipe.feed(frame(words("a")[0]) + frame(words("b")[0])) == stream(*words("a", "b"), end=b"")
    assert pipe.feed(frame(finish())) == b""
    assert pipe.feed(DONE) == b""
    assert pipe.is_done is True
    assert pipe.close() == stream(finish())


def test_what_holds_no_answer_ends_in_an_error_with_our_own_envelope() -> None:
    body = b"<html>502 Bad Gateway</html>"
    for data, message, code in (
        (body, "the server sent no answer", "incomplete_stream"),
        (body + b"\n\n", "the server sent no answer", "incomplete_stream"),
        (b"data: " + body + b"\n\n", "the server sent a frame that is no JSON (frame 1)", "bad_upstream_stream"),
    ):
        error = {"message": message, "type": "upstream_error", "param": None, "code": code}
        assert Fixed(data).body == stream({"error": error})


def test_fields_that_come_before_the_envelope_ride_on_the_first_chunk() -> None:
    early = chunk(id="", object="", model="", prompt_filter_results=[1])
    fixed = Fixed(stream(early, b": ping\n\n", role(), finish()))
    assert fixed.body == KEEP_ALIVE + stream(role() | {"prompt_filter_results": [1]}, finish())
    assert fixed.rules == ["env-placeholder-chunk"]


BOOM = {"error": {"message": "boom", "type": "t", "param": None, "code": None}}


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ([*words("ab"), say(named())], [*words("ab"), say(named())]),
        ([*words("ab"), say(named(arguments="{}"))], [*words("ab"), say(named()), say(piece("{}"))]),
    ],
    ids=["call", "placeholder"],
)
def test_what_rides_goes_out_before_what_was_held_back_when_the_answer_fails(
    held: list[Json], said: list[Json]
) -> None:
    rider = say({}, logprobs={"content": [], "refusal": None}, x=1)
    fixed = Fixed(stream(role(), *held, rider, BOOM))
    assert fixed.body == stream(role(), said[0], rider, *said[1:], BOOM)
    assert fixed.rules == []


def test_a_choice_that_had_finished_is_finished_when_another_fails() -> None:
    fixed = Fixed(stream(role(), role(1), finish(), *words("b", index=1), BOOM))
    assert fixed.body == stream(role(), role(1), *words("b", index=1), finish(), BOOM)


def test_nothing_is_read_after_our_own_failure() -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK)
    pipe.feed(stream(*(say(named(number, f"id{number}")) for number in range(2000)), end=b""))
    assert pipe.is_done is True
    assert pipe.feed(stream(*words("a"), finish())) == b""
    assert pipe.close() == DONE


def test_usage_that_never_came_is_not_made_up() -> None:
    chat = Fixed(stream(role(), finish()), asked=RequestFacts(include_usage=True))
    assert chat.body == stream(role() | {"usage": None}, finish() | {"usage": None})
    assert chat.rules == ["use-final-chunk"]
    completions = Fixed(stream(text("a"), text_end()), COMPLETIONS, asked=RequestFacts(include_usage=True))
    assert completions.rules == ["cmpl-usage-chunk", "use-final-chunk"]


def test_usage_on_each_chunk_is_sent_on_if_it_was_asked_for() -> None:
    data = stream(*(one | {"usage": count(5, 1)} for one in (role(), *words("a"), finish())), counted(count()))
    fixed = Fixed(data, asked=RequestFacts(include_usage=True, continuous_usage=True))
    assert fixed.body == data
    assert fixed.rules == []


def test_a_client_that_used_functions_gets_a_function_call() -> None:
    said = [{"function_call": {"name": "get", "arguments": ""}}, {"function_call": {"arguments": '{"x":1}'}}]
    data = stream(role(), *(say(delta) for delta in said), finish("function_call"))
    fixed = Fixed(data, asked=RequestFacts(uses_legacy_functions=True))
    assert fixed.body == data
    assert fixed.rules == []


def test_ids_of_calls_are_made_of_the_stream_s_id() -> None:
    mint = tool_call_id_factory("chatcmpl-abc")
    assert [mint(), mint()] == ["call_abc1", "call_abc2"]
    assert tool_call_id_factory("plain")() == "call_plain1"


BIG = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"x"}}]}}]}\n\n'


@pytest.mark.no_cover
@table(
    ("make", "size"),
    [
        (lambda: b"{" * 1_000_000, 4096),
        (lambda: b"data: " + b"x" * 10_000_000, 4096),
        (lambda: b"data:\n\n" * 20_000, 65536),
        (lambda: b": x\n" * 20_000, 65536),
        (lambda: b"data: [[[[\n" * 20_000, 65536),
        (lambda: BIG * 5_000, 65536),
        (lambda: frame(say(named())) + BIG * 10_000, 65536),
        (lambda: stream(*(say(named(number, f"id{number}")) for number in range(2000))), 65536),
        (lambda: b"data: " + pack(say({"x": "@"})).replace(b'"@"', b"[" * 500 + b"]" * 500) + b"\n\n", 65536),
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
def test_hostile_bytes_end_in_an_error_and_leave_few_notes(make: Callable[[], bytes], size: int) -> None:
    fixed = Fixed(make(), size=size, limit_bytes=1_000_000)
    assert fixed.body.endswith(b"}}\n\n" + DONE)
    assert fixed.body.count(b'data: {"error":{"message":"the server') == 1
    assert len(fixed.pipe.repair_log.entries()) <= len(ALL_RULES)


@pytest.mark.parametrize("end", [b"", b"data: [DONE]\n\n"], ids=["cut", "done"])
def test_comments_and_nothing_else_are_no_answer(end: bytes) -> None:
    pipe = StreamPipeline(Endpoint.CHAT, fallback=FALLBACK)
    fixed = pipe.feed(b": c\n\n" * 100 + end) + pipe.close()
    assert fixed.startswith(KEEP_ALIVE * 40 + b'data: {"error":{"message":"the server sent no answer"')
    assert fixed.count(KEEP_ALIVE) == 40
    assert {note.rule for note in pipe.repair_log.entries()} == {"sse-keepalive-run-limit", "err-empty-stream"}


@pytest.mark.parametrize("stray", [b"foo: bar\n", b"x\n"])
def test_a_stray_line_beside_done_changes_nothing(stray: bytes) -> None:
    right = stream(role(), *words("Hi"), finish())
    assert Fixed(right.removesuffix(DONE) + stray + DONE).body == right


def test_what_follows_done_and_is_no_json_is_only_noted() -> None:
    right = stream(role(), *words("Hi"), finish())
    fixed = Fixed(right + b"data: bye\n\n")
    assert (fixed.body, fixed.rules) == (right, ["end-done-last"])


def test_white_space_after_empty_arguments_is_kept() -> None:
    right = stream(role(), say(named()), say(piece("{}")), say(piece("\n")), finish("tool_calls"))
    assert Fixed(right).body == right


def test_the_last_words_beside_an_error_go_out_before_it() -> None:
    fixed = Fixed(stream(role(), {**say({"content": "bye"}), "error": {"message": "boom"}})).body
    assert 0 < fixed.index(b'"content":"bye"') < fixed.index(b'"message":"boom"')


def test_unknown_fields_that_wait_are_let_out_in_time() -> None:
    held = [{**say(piece("[", 1)), f"x{number}": "a"} for number in range(600)]
    fixed = Fixed(stream(role(), say(named()), say(named(1, "call_b")), *held, finish("tool_calls"))).body
    assert all(fixed.count(b'"x%d"' % number) == 1 for number in range(600))


def test_nothing_that_waits_or_is_told_apart_is_without_a_bound() -> None:
    placeholders = [{"id": "", "object": "", "choices": [], f"x{number}": 1} for number in range(100)]
    kept = Fixed(stream(*placeholders, role(), *words("Hi"), finish())).body
    assert (b'"x63"' in kept, b'"x64"' in kept) == (True, False)
    lists = [say({f"x{number}": [{}]}) for number in range(1100)]
    assert b'"x1099":[{}]' in Fixed(stream(role(), *lists, finish())).body
    many = [say(piece(None, number)) for number in range(4200)]
    assert Fixed(stream(role(), *many, *words("Hi"), finish())).pipe.failure is None


@table(
    ("message", "added"),
    [
        ({"role": "assistant", "content": "Hello"}, []),
        ({"content": "Hello", "reasoning_content": "why", "refusal": None}, [say({})]),
        ({"content": "Hello", "citations": ["a"]}, [say({"citations": ["a"]})]),
        ({"content": "Hello", **named(arguments="{}")}, [say(named()), say(piece("{}"))]),
    ],
    ids=["text", "texts", "fields", "calls"],
)
def test_a_whole_message_at_the_end_does_not_say_the_text_again(message: Json, added: list[Json]) -> None:
    sent = Fixed(stream(*HELLO[:3], chunk(choice({}, None, message=message)), HELLO[3])).body
    reason = "tool_calls" if "tool_calls" in message else "stop"
    assert sent == stream(*HELLO[:3], *added, finish(reason))


def test_calls_that_came_in_deltas_are_not_made_again_by_a_message() -> None:
    message = {"content": "Hello", **named(arguments="{}")}
    called = [say(named()), say(piece("{}"))]
    sent = Fixed(stream(*HELLO[:3], *called, chunk(choice({}, None, message=message)), finish("tool_calls"))).body
    assert sent == stream(*HELLO[:3], say({}), *called, finish("tool_calls"))


def test_a_role_and_a_comment_are_no_content() -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK)
    seen = []
    for data in (stream(role(), end=b""), b": wait\n\n", stream(text("Hi"), end=b"")):
        pipe.feed(data)
        seen.append(pipe.has_content)
    assert seen == [False, False, True]
