"""Reader of streams."""

import json
from collections.abc import Callable

import pytest

from tests.protocol.build import (
    ABSENT,
    CHAT,
    COMPLETIONS,
    DONE,
    ENVELOPE,
    FALLBACK,
    Read,
    chunk,
    content_chunks,
    count,
    delta_chunk,
    finish,
    frame,
    pack,
    role,
    stream,
    text,
    text_end,
    usage_chunk,
)
from tests.table import table
from welldone.core.catalog import RULES
from welldone.core.events import ChoiceStart, Event, Failure, Finish, KeepAlive, Text, Usage
from welldone.core.fields import incomplete_stream_failure
from welldone.core.repair_log import RepairEntry, RepairLog
from welldone.core.request_facts import RequestFacts
from welldone.dialects.chat.reader import EventReader

A, B = pack(delta_chunk({"content": "a"})), pack(delta_chunk({"content": "b"}))
TEXT_A, SAID_B = Text(0, "a"), Text(0, "b")
QUIET = KeepAlive(is_chunk=True)
ERROR = {"message": "m", "type": "t", "param": None, "code": None}
PRETTY = json.dumps(delta_chunk({"content": "a"}), indent=1).encode().split(b"\n")


def bad_stream(content: str) -> Failure:
    return Failure(f"the server sent {content}", "upstream_error", None, "bad_upstream_stream")


def test_a_correct_chat_stream_is_read_without_a_repair() -> None:
    read = Read(stream(role(), *content_chunks("Hel", "lo"), finish(), usage_chunk(count())))
    assert read.events == [ChoiceStart(0), Text(0, "Hel"), Text(0, "lo"), Finish(0, "stop"), Usage(5, 3, 8, {})]
    assert read.rules == []
    assert read.is_done is True
    assert read.envelope == ENVELOPE


def test_a_correct_completions_stream_is_read_without_a_repair() -> None:
    read = Read(stream(text("a"), text_end()), COMPLETIONS)
    assert read.events == [TEXT_A, Finish(0, "stop")]
    assert read.rules == []


def test_events_are_emitted_as_soon_as_their_frame_is_complete() -> None:
    reader = EventReader(CHAT, fallback=FALLBACK, facts=RequestFacts(), repair_log=RepairLog())
    assert reader.chunks.envelope is None
    assert reader.feed(b"data: " + A) == []
    assert reader.feed(b"\n\n: pi") == [TEXT_A]
    assert reader.feed(b"ng\n") == [KeepAlive()]
    assert reader.chunks.has_usage_chunk is False
    assert reader.feed(frame(usage_chunk(count()))) == [Usage(5, 3, 8, {})]
    assert reader.chunks.has_usage_chunk is True
    assert reader.is_done is False
    assert reader.feed(DONE) == []
    assert reader.is_done is True
    assert reader.close() == []


FRAMES: list[tuple[bytes, list[Event], list[str]]] = [
    # framing
    (b"data:" + A + b"\n\n", [TEXT_A], ["sse-data-space"]),
    (b"data:  " + A + b"\n\n", [TEXT_A], ["sse-data-space"]),
    (b"data: data: " + A + b"\n\n", [TEXT_A], ["sse-data-space"]),
    (b"data:data:data:" + A + b"\r\n\r\n", [TEXT_A], ["sse-data-space", "sse-lf-only"]),
    (A + b"\n\n" + B + b"\n\n", [TEXT_A, SAID_B], ["sse-data-space"]),
    (b"data: " + A + b"\r\n\r\n", [TEXT_A], ["sse-lf-only"]),
    (b"data: " + A + b"\r\r", [TEXT_A], ["sse-lf-only"]),
    (b"\xef\xbb\xbfdata: " + A + b"\n\n", [TEXT_A], ["sse-no-bom"]),
    (b"id: 7\ndata: " + A + b"\n\n", [TEXT_A], ["sse-no-id-field"]),
    (b"retry: 7\ndata: " + A + b"\n\n", [TEXT_A], ["sse-no-retry-frame"]),
    (b"event: x\ndata: " + A + b"\n\n", [TEXT_A], ["sse-no-event-name"]),
    (b"x: 7\ndata: " + A + b"\n\n", [TEXT_A], ["sse-json-on-one-line"]),
    (b": c\ndata: " + A + b"\n\n", [KeepAlive(), TEXT_A], []),
    (b"data: " + A + b"\n: c\n\n", [TEXT_A], []),
    (b"data: " + A + b"\ndata: " + B + b"\n\n", [TEXT_A, SAID_B], ["sse-event-blank-line", "sse-one-object-per-event"]),
    (
        b"data: " + A + b"\n" + B + b"\n\n",
        [TEXT_A, SAID_B],
        ["sse-data-space", "sse-event-blank-line", "sse-one-object-per-event"],
    ),
    (b"data: " + A + B + b"\n\n", [TEXT_A, SAID_B], ["sse-one-object-per-event"]),
    (b"data: [" + A + b"," + B + b"]\n\n", [TEXT_A, SAID_B], ["sse-one-object-per-event"]),
    (b"data: " + b"\n".join(PRETTY) + b"\n\n", [TEXT_A], ["sse-json-on-one-line"]),
    (b"data:" + b"\ndata:".join(PRETTY) + b"\n\n", [TEXT_A], ["sse-data-space", "sse-json-on-one-line"]),
    (b"data: " + A[:19] + b"\ndata: " + A[19:] + b"\n\n", [TEXT_A], ["sse-json-on-one-line"]),
    # frames without data
    (b"data: \n\n", [], ["sse-no-empty-data"]),
    (b"event: ping\n\n", [], ["sse-no-empty-data", "sse-no-event-name"]),
    (b"retry: 7\n\n", [], ["sse-no-retry-frame"]),
    (b"data: null\n\n", [], ["sse-no-foreign-json"]),
    (b"data: []\n\n", [], ["sse-no-foreign-json"]),
    (b"data: [null]\n\n", [], ["sse-no-foreign-json"]),
    (b'data: {"type":"ping"}\n\n', [], ["sse-no-foreign-json"]),
    (b": ping\n\n", [KeepAlive()], []),
    (b": ping\n: pong\n", [KeepAlive(), KeepAlive()], []),
    (b"data: : ping\n\n", [KeepAlive()], ["sse-keepalive-form"]),
    # encoding
    (frame(delta_chunk({"content": "\u2028"})), [Text(0, "\u2028")], ["enc-escape-line-breaks"]),
    (frame(delta_chunk({"content": "\u0085"})), [Text(0, "\u0085")], ["enc-escape-line-breaks"]),
    (frame(delta_chunk({"content": "é"})), [Text(0, "é")], []),
    (frame(delta_chunk({"content": "a\ufffd"})), [Text(0, "a\ufffd")], ["enc-no-replacement-char"]),
    (b"data: " + A.replace(b'"a"', b'"x\ty"') + b"\n\n", [Text(0, "x\ty")], ["enc-escape-line-breaks"]),
    (b"data: " + A.replace(b"1700000000", b"NaN") + b"\n\n", [TEXT_A], ["enc-strict-json", "env-created-int"]),
    (b"data: " + repr(delta_chunk({"content": "a"})).encode() + b"\n\n", [TEXT_A], ["enc-strict-json"]),
    (b"data: " + repr(A).encode() + b"\n\n", [TEXT_A], ["enc-strict-json"]),
    (b"data: " + A.replace(b'"a"', b'"\xf0\x9f"') + b"\n\n", [QUIET, Text(0, "\ufffd")], ["enc-valid-utf8"]),
    (b"data: " + A.replace(b'"a"', b'"\\ud83d"') + b"\n\n", [QUIET, Text(0, "\ufffd")], ["enc-no-lone-surrogate"]),
    (frame(finish(7)).replace(b":7}", b":NaN}"), [QUIET], ["enc-strict-json", "fin-closed-enum"]),
    # the end
    (DONE, [], []),
    (b"data: [DONE] \n\n", [], ["end-done-exact"]),
    (b'data: "[DONE]"\n\n', [], ["end-done-exact"]),
    (b"data: [done]\n\n", [], ["end-done-exact"]),
    (b"data:[DONE]\n\n", [], ["end-done-exact", "sse-data-space"]),
    (b"data: data: [DONE]\n\n", [], ["end-done-exact", "sse-data-space"]),
    (b"[DONE]\n\n", [], ["end-done-exact", "sse-data-space"]),
    (b"data: [DONE]", [], ["end-last-event-terminated"]),
    (b"data: [DONE]\n", [], ["end-last-event-terminated"]),
    (DONE + DONE, [], ["end-done-last"]),
    (
        DONE + frame(delta_chunk({"content": "a"})),
        [incomplete_stream_failure("the server sent [DONE] before the answer was complete")],
        ["end-done-last"],
    ),
    (DONE + frame(finish()) + frame({"error": ERROR}), [Finish(0, "stop")], ["end-done-last"]),
    (DONE + frame({"error": ERROR}), [Failure("m", "t")], ["end-done-last"]),
    (b"data: " + A, [TEXT_A], ["end-last-event-terminated"]),
    (b"data: " + repr(A).encode() + b"\n[DONE]\n\n", [TEXT_A], ["enc-strict-json", "end-done-exact", "sse-data-space"]),
    (b"data: " + A + b"\n[DONE]\n\n", [TEXT_A], ["end-done-exact", "sse-data-space"]),
    (b"data: " + A + b"\ndata: [DONE]\n\n", [TEXT_A], ["sse-event-blank-line", "sse-one-object-per-event"]),
    # errors
    (frame({"error": ERROR}) + DONE, [Failure("m", "t")], []),
    (frame({"error": ERROR}), [Failure("m", "t")], ["err-then-done"]),
    (frame({"error": ERROR}) + frame(delta_chunk({"content": "a"})) + DONE, [Failure("m", "t")], ["err-then-done"]),
    (frame({"error": ERROR}) + b": c\n\n" + DONE, [Failure("m", "t")], []),
    (b"event: error\n" + frame({"error": ERROR}) + DONE, [Failure("m", "t")], ["err-event-name", "sse-no-event-name"]),
    (b"error: " + pack({"error": ERROR}) + b"\n\n" + DONE, [Failure("m", "t")], ["err-not-error-field"]),
    (b"error: " + pack(ERROR) + b"\n\n" + DONE, [Failure("m", "t")], ["err-not-error-field"]),
    (b"error: boom\n\n" + DONE, [Failure("boom")], ["err-not-error-field"]),
    (b"error: boom\n\n", [Failure("boom")], ["err-not-error-field", "err-then-done"]),
    (frame({"error": ERROR | {"message": 7}}) + DONE, [Failure("7", "t")], ["err-midstream-event"]),
    # after an error that the server sent, [DONE] is required
    (b"data: {\n\n" + frame(delta_chunk({})), [bad_stream("a frame that is not JSON (frame 1)")], ["enc-strict-json"]),
    (frame({"detail": "d"}) + DONE, [Failure("d")], ["err-not-object-error"]),
    (frame(chunk(error=None)), [], ["env-no-error-key", "env-placeholder-chunk"]),
    (frame(chunk(choices=ABSENT)), [], ["env-choices-array"]),
    (b"data: " + pack({"error": ERROR}) * 2 + b"\n\n" + DONE, [Failure("m", "t")], ["sse-one-object-per-event"]),
    (
        b"data: [" + pack({"error": "a"}) + b",{}]\n\n" + DONE,
        [Failure("a")],
        ["err-body-shape", "err-midstream-event", "sse-one-object-per-event"],
    ),
]


@table(("data", "events", "recorded"), FRAMES)
@table("size", [None, 1, 7])
def test_malformed_frames_are_read_and_recorded(
    data: bytes, events: list[Event], recorded: list[str], size: int | None
) -> None:
    read = Read(data, size=size)
    assert read.events == events
    assert read.rules == recorded


@table("end", [DONE, b"data: [DONE] \n\n", b"[DONE]\n\n", b"data: [DONE]"])
def test_done_is_recognised_in_all_forms(end: bytes) -> None:
    assert Read(stream(role(), finish(), end=end)).is_done is True
    assert Read(b"data: " + repr(A).encode() + b"\n[DONE]\n\n").is_done is True
    assert Read(b"data: " + A + b"\n[DONE]\n\n").is_done is True


def test_after_an_error_only_the_exact_done_marker_counts() -> None:
    assert Read(frame({"error": ERROR}) + DONE).is_done is True
    assert Read(frame({"error": ERROR}) + frame(delta_chunk({}))).is_done is False


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        (b"\xf0\x9f", b"\x98\x80", "😀"),
        (b"\xc3", b"\xa9", "é"),
        (b"\\ud83d", b"\\ude00", "😀"),
    ],
)
def test_a_character_that_is_split_over_frames_is_joined(first: bytes, second: bytes, joined: str) -> None:
    halves = [b"data: " + A.replace(b'"a"', b'"' + half + b'"') + b"\n\n" for half in (first, second)]
    assert Read(b"".join(halves)).events == [QUIET, Text(0, joined)]


@table("data", [b"data: hello\n\n", b"data: {\n\n", b"data: [DONE]x\n\n", b"{\n\n"])
def test_unreadable_data_is_a_failure(data: bytes) -> None:
    read = Read(frame(delta_chunk({"content": "a"})) + data + frame(delta_chunk({"content": "b"})))
    assert read.events == [TEXT_A, bad_stream("a frame that is not JSON (frame 2)")]


@table("data", [b"hello\n\n", b"x: 7\ny\n\n", b"\xff\xfe\n\n", b"id: 7\nx: 7\n\n"])
def test_unknown_sse_fields_are_ignored(data: bytes) -> None:
    read = Read(frame(delta_chunk({"content": "a"})) + data + frame(delta_chunk({"content": "b"})))
    assert read.events == [TEXT_A, SAID_B]


@table("name", [b"ata: ", b"a: ", b": ", b"d\xff\x00{]\n\nata: ", b"data\xff\n\n: "])
def test_a_chunk_in_another_field_is_a_failure(name: bytes) -> None:
    hidden = frame(delta_chunk({"content": "b"})).removeprefix(b"data: ")
    read = Read(frame(delta_chunk({"content": "a"})) + name + hidden + frame(delta_chunk({"content": "c"})))
    long_text, failure = read.events
    assert long_text == TEXT_A
    assert failure in [bad_stream(f"a chunk that is not in a data field (frame {number})") for number in (2, 3)]


@pytest.mark.parametrize("data", [b'x: {"choices"\n\n', b'x: ["choices"]\n\n', b': {"a":"\\"choices\\""}\n\n'])
def test_data_that_resembles_a_chunk_is_not_a_failure(data: bytes) -> None:
    read = Read(frame(delta_chunk({"content": "a"})) + data + frame(delta_chunk({"content": "b"})))
    assert [event for event in read.events if not isinstance(event, KeepAlive)] == [TEXT_A, SAID_B]


@table("cut", [b"data: {", b"data: hello", b"data: " + A[:-1], b"data: " + A[:-1] + b"\n"])
def test_a_truncated_last_frame_is_dropped(cut: bytes) -> None:
    read = Read(stream(role(), finish(), end=cut))
    assert read.events == [ChoiceStart(0), Finish(0, "stop")]
    assert read.rules == ["end-last-event-terminated"]


def test_a_finish_reason_that_reports_an_error_ends_the_stream() -> None:
    failure = Failure(
        "the server ended the answer with finish_reason 'abort'", "upstream_error", None, "incomplete_stream"
    )
    assert Read(stream(role(), finish("abort"), delta_chunk({"content": "a"}))).events == [ChoiceStart(0), failure]


def test_a_partial_character_is_emitted_before_a_failure() -> None:
    half = b"data: " + A.replace(b'"a"', b'"\xf0\x9f"') + b"\n\n"
    assert Read(half + frame({"error": ERROR})).events == [QUIET, Text(0, "\ufffd"), Failure("m", "t")]


def test_log_entries_have_the_frame_and_the_byte() -> None:
    first, second = frame(role()), b"data:" + A + b"\n\n"
    read = Read(first + second + second)
    assert read.repair_log.entries() == [RepairEntry("sse-data-space", 2, 2, len(first), "data:" + A.decode())]


def test_a_frame_that_is_read_in_pieces_counts_as_one() -> None:
    read = Read(b"data: " + A + b"\ndata: " + A + b"\n\ndata:" + A + b"\n\n")
    assert [(repair.rule, repair.frame) for repair in read.repair_log.entries()] == [
        ("sse-event-blank-line", 1),
        ("sse-one-object-per-event", 1),
        ("sse-data-space", 2),
    ]


@pytest.mark.parametrize("size", [None, 4096])
def test_an_endless_frame_is_a_failure(size: int | None) -> None:
    read = Read(frame(delta_chunk({"content": "a"})) + b"data: " + b"x" * 100_000, size=size, limit_bytes=10_000)
    assert read.events == [TEXT_A, bad_stream("a frame of more than 10000 bytes or 10000 lines")]
    assert "enc-strict-json" in read.rules


def test_a_frame_that_exceeds_the_limit_at_the_end_is_a_failure() -> None:
    read = Read(b"data: " + b"x" * 10_000, limit_bytes=10_000)
    assert read.events == [bad_stream("a frame of more than 10000 bytes or 10000 lines")]


@pytest.mark.parametrize("size", [None, 1, 64])
def test_buffered_lines_of_a_frame_are_bounded(size: int | None) -> None:
    lines = (b"data: {" + b"x" * 50 + b"\n") * 3
    assert Read(lines + b"\n", size=size, limit_bytes=200).events == [bad_stream("a frame that is not JSON (frame 1)")]
    read = Read(lines + b"data: }\n\n", size=size, limit_bytes=120)
    assert read.events == [bad_stream("a frame of more than 120 bytes or 10000 lines")]
    assert read.rules == ["enc-strict-json", "sse-json-on-one-line"]


NO_JSON = "a frame that is not JSON (frame 1)"
TOO_LONG = "a frame of more than 16777216 bytes or 10000 lines"
TOO_COMPLEX = "a frame that is too complex to parse (frame 1)"


@pytest.mark.no_cover
@table(
    ("make", "events"),
    [
        (lambda: b"{" * 1_000_000, []),
        (lambda: b"data: " + b"{" * 1_000_000 + b"\n\n", [bad_stream(TOO_COMPLEX)]),
        (lambda: b"data: " + b"[" * 1_000_000 + b"\n\n", [bad_stream(TOO_COMPLEX)]),
        (lambda: b'data: {"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n", [bad_stream(TOO_COMPLEX)]),
        (lambda: b"data:\n\n" * 30_000, []),
        (lambda: b": x\n" * 30_000, [KeepAlive()] * 30_000),
        (lambda: b"\n" * 300_000, []),
        (lambda: b"\r\n" * 150_000, []),
        (lambda: b"data: {}\n" * 50_000, []),
        (lambda: b"data\n" * 100_000 + b"\n", [bad_stream(TOO_LONG)]),
        (lambda: b"event: x\n" * 100_000 + b"\n", [bad_stream(TOO_LONG)]),
        (lambda: b"x\r" * 100_000 + b"\r", [bad_stream(TOO_LONG)]),
        (lambda: b"{\n" * 50_000 + b"\n", [bad_stream(NO_JSON)]),
    ],
    ids=[
        "braces",
        "braces in a frame",
        "brackets in a frame",
        "deep choices",
        "empty frames",
        "comments",
        "line feeds",
        "line breaks",
        "empty objects",
        "bare fields",
        "names",
        "lines with CR",
        "braces on lines",
    ],
)
def test_hostile_bytes_do_not_raise_and_the_log_is_bounded(make: Callable[[], bytes], events: list[Event]) -> None:
    read = Read(make(), size=65536)
    assert read.events == events
    assert len(read.repair_log.entries()) <= len(RULES)


def test_a_comment_between_the_lines_of_a_frame_is_left_out() -> None:
    assert Read(b"data: " + A[:40] + b"\n: x\ndata: " + A[40:] + b"\n\n").events == [TEXT_A]


def test_one_line_of_six_megabytes_in_small_pieces_is_one_event() -> None:
    long_text = "x" * 6_000_000
    assert Read(frame(delta_chunk({"content": long_text})), size=4096).events == [Text(0, long_text)]


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (b"x" * 200_000, NO_JSON),
        (b'{"choices":"' + b"\xff" * 200_000 + b'"}', NO_JSON),
        (b'{"choices":[' + b"8.5e-323," * 50_000 + b"1]}", TOO_COMPLEX),
    ],
    ids=["no JSON", "no UTF-8", "numbers that are almost nothing"],
)
def test_a_long_frame_must_be_strict_json_within_the_blocking_budget(data: bytes, content: str) -> None:
    read = Read(b"data: " + data + b"\n\n")
    assert read.events == [bad_stream(content)]
    assert read.rules == ["enc-strict-json"]


def test_a_long_frame_on_several_lines_is_not_json() -> None:
    read = Read(b"data: {\ndata: " + b"x" * 200_000 + b"\n\n")
    assert read.events == [bad_stream(NO_JSON)]
