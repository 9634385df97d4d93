"""Common part of the chat and completions writers: chunks and their pending fields."""

import pytest

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    DONE,
    ENVELOPE,
    choice,
    chunk,
    content_chunks,
    count,
    delta_chunk,
    entry,
    finish,
    frame,
    role,
    text,
    text_choice,
    text_chunk,
    text_end,
)
from tests.table import table
from welldone.core.answer_format import escape_line_breaks
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import (
    ChoiceStart,
    Event,
    EventOrderError,
    Failure,
    FieldLocation,
    Finish,
    KeepAlive,
    Logprobs,
    Text,
    UnknownFields,
    Usage,
)
from welldone.core.fields import openai_error_object
from welldone.core.request_facts import RequestFacts
from welldone.dialects.chat.writer import ChunkFormat, ChunkWriter

OPEN, STOP = ChoiceStart(0), Finish(0, "stop")
KEEP_ALIVE = b": keep-alive\n\n"


def writer(endpoint: Endpoint = CHAT, *, usage_is_null: bool = False) -> ChunkWriter:
    envelope = ENVELOPE if endpoint is CHAT else Envelope("cmpl-1", 1700000000, "m")
    return ChunkFormat(RequestFacts(include_usage=usage_is_null), endpoint).make_writer(envelope)


def write(*events: Event, endpoint: Endpoint = CHAT, usage_is_null: bool = False) -> list[bytes]:
    """Bytes of each event and of the end."""
    out = writer(endpoint, usage_is_null=usage_is_null)
    return [*(out.send(event) for event in events), out.end()]


def on_chunk(fields: dict[str, object], *, alone: bool = False) -> UnknownFields:
    return UnknownFields(0, FieldLocation.CHUNK, fields, alone)


def on_choice(fields: dict[str, object], *, alone: bool = False) -> UnknownFields:
    return UnknownFields(0, FieldLocation.CHOICE, fields, alone)


def on_delta(fields: dict[str, object], *, alone: bool = False) -> UnknownFields:
    return UnknownFields(0, FieldLocation.DELTA, fields, alone)


def test_a_plain_stream_is_written_in_openai_s_format() -> None:
    assert write(OPEN, Text(0, "Hel"), Text(0, "lo"), STOP) == [
        frame(role()),
        frame(delta_chunk({"content": "Hel"})),
        frame(delta_chunk({"content": "lo"})),
        frame(finish()),
        DONE,
    ]


def test_requested_usage_is_last_and_null_on_earlier_chunks() -> None:
    usage = Usage(5, 3, 8, {"cost": 0.5})
    usage_chunk = frame(chunk(usage=count(5, 3, cost=0.5)))
    assert write(OPEN, STOP, usage) == [frame(role()), frame(finish()), usage_chunk, DONE]
    assert write(OPEN, Text(0, "a"), STOP, usage, usage_is_null=True) == [
        frame(role() | {"usage": None}),
        frame(delta_chunk({"content": "a"}) | {"usage": None}),
        frame(finish() | {"usage": None}),
        usage_chunk,
        DONE,
    ]


def test_a_fingerprint_is_on_each_chunk() -> None:
    out = ChunkFormat(RequestFacts()).make_writer(Envelope("chatcmpl-1", 1700000000, "m", "fp"))
    for event in (OPEN, Text(0, "a"), STOP, Usage(5, 3, 8, {})):
        assert b'"model":"m","system_fingerprint":"fp","choices":' in out.send(event)


def test_a_failure_is_one_error_event_before_done() -> None:
    error = {"message": "boom", "type": "server_error", "param": None, "code": "c", "x": 1}
    assert write(OPEN, Failure("boom", code="c", extra_fields={"x": 1})) == [
        frame(role()),
        frame({"error": error}),
        DONE,
    ]


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_a_stream_may_consist_of_a_failure(endpoint: Endpoint) -> None:
    error = {"message": "boom", "type": "t", "param": "p", "code": None}
    assert write(Failure("boom", "t", "p"), endpoint=endpoint) == [frame({"error": error}), DONE]
    assert openai_error_object(Failure("boom", "t", "p")) == {"error": error}


def test_a_keep_alive_is_a_comment_or_an_empty_chunk() -> None:
    quiet = KeepAlive(is_chunk=True)
    assert write(KeepAlive(), quiet, OPEN, KeepAlive(), quiet, STOP, quiet) == [
        KEEP_ALIVE,
        KEEP_ALIVE,
        frame(role()),
        KEEP_ALIVE,
        frame(delta_chunk({})),
        frame(finish()),
        KEEP_ALIVE,
        DONE,
    ]


def test_a_keep_alive_chunk_belongs_to_an_unfinished_choice() -> None:
    assert write(OPEN, ChoiceStart(1), STOP, KeepAlive(is_chunk=True), Finish(1, "stop"))[3] == frame(
        delta_chunk({}, 1)
    )


LOGPROBS = {"content": [entry("a")], "refusal": None}


@table(
    ("pending", "carried"),
    [
        (Logprobs(0, LOGPROBS), delta_chunk({"content": "a"}, logprobs=LOGPROBS)),
        (on_choice({"x": 1}), delta_chunk({"content": "a"}, x=1)),
        (on_delta({"x": "b"}), delta_chunk({"content": "a", "x": "b"})),
        (on_chunk({"x": 1}), chunk(choice({"content": "a"}), x=1)),
    ],
)
def test_pending_fields_are_sent_with_the_next_chunk(pending: Event, carried: object) -> None:
    assert write(OPEN, pending, Text(0, "a"), Text(0, "b"), STOP) == [
        frame(role()),
        b"",
        frame(carried),
        frame(delta_chunk({"content": "b"})),
        frame(finish()),
        DONE,
    ]


def test_all_kinds_of_pending_fields_are_sent_together() -> None:
    pending_events: list[Event] = [
        Logprobs(0, LOGPROBS),
        on_choice({"x": 1}),
        on_delta({"y": 2}),
        on_chunk({"z": 3}),
        on_choice({"w": 4}),
    ]
    written = write(OPEN, *pending_events, Text(0, "a"), STOP)
    assert written[1:7] == [
        *[b""] * 5,
        frame(chunk(choice({"content": "a", "y": 2}, logprobs=LOGPROBS, x=1, w=4), z=3)),
    ]


@table(
    ("extra", "first"),
    [
        (on_choice({"x": 1}), chunk(choice({"role": "assistant", "content": ""}, x=1))),
        (on_delta({"x": 1}), delta_chunk({"role": "assistant", "content": "", "x": 1})),
        (on_chunk({"x": 1}), chunk(choice({"role": "assistant", "content": ""}), x=1)),
        (on_chunk({"x": 1}, alone=True), chunk(choice({"role": "assistant", "content": ""}), x=1)),
    ],
)
def test_fields_before_the_first_chunk_are_sent_with_it(extra: Event, first: object) -> None:
    assert write(extra, OPEN, STOP) == [b"", frame(first), frame(finish()), DONE]


@table(
    ("pending", "alone", "again"),
    [
        (Logprobs(0, LOGPROBS), delta_chunk({}, logprobs=LOGPROBS), delta_chunk({"content": "a"}, logprobs=LOGPROBS)),
        (on_choice({"x": 1}), delta_chunk({}, x=1), delta_chunk({"content": "a"}, x=1)),
        (on_delta({"x": "b"}), delta_chunk({"x": "b"}), delta_chunk({"content": "a", "x": "b"})),
        (on_chunk({"x": 1}), chunk(choice({}), x=1), chunk(choice({"content": "a"}), x=1)),
    ],
)
def test_conflicting_fields_are_sent_on_separate_chunks(pending: Event, alone: object, again: object) -> None:
    assert write(OPEN, pending, pending, Text(0, "a"), STOP)[1:4] == [b"", frame(alone), frame(again)]


@pytest.mark.parametrize(
    ("extra", "carried"),
    [
        (on_choice({"x": 1}, alone=True), delta_chunk({}, x=1)),
        (on_delta({"x": "b"}, alone=True), delta_chunk({"x": "b"})),
        (on_chunk({"x": 1}, alone=True), chunk(choice({}), x=1)),
    ],
)
def test_fields_in_their_own_chunk_are_sent_at_once(extra: Event, carried: object) -> None:
    assert write(OPEN, extra, extra, STOP)[1:3] == [frame(carried), frame(carried)]


@table(
    ("pending", "carried"),
    [
        (Logprobs(0, LOGPROBS), delta_chunk({}, logprobs=LOGPROBS)),
        (on_choice({"x": 1}), delta_chunk({}, x=1)),
        (on_delta({"x": "b"}), delta_chunk({"x": "b"})),
        (on_chunk({"x": 1}), chunk(choice({}), x=1)),
    ],
)
def test_pending_fields_are_sent_before_a_failure(pending: Event, carried: object) -> None:
    error = {"message": "boom", "type": "server_error", "param": None, "code": None}
    assert write(OPEN, pending, Failure("boom"))[2] == frame(carried) + frame({"error": error})


def test_pending_fields_can_be_flushed() -> None:
    nudge = on_choice({}, alone=True)
    assert write(OPEN, nudge, STOP)[1] == b""
    assert write(OPEN, on_delta({"x": "b"}), nudge, STOP)[2] == frame(delta_chunk({"x": "b"}))
    assert write(OPEN, on_chunk({"x": 1}), nudge, STOP)[2] == frame(chunk(choice({}), x=1))


def test_chunk_fields_stay_with_a_choice_of_their_chunk() -> None:
    alone = UnknownFields(1, FieldLocation.CHUNK, {"x": 1}, in_own_chunk=True)
    assert write(OPEN, ChoiceStart(1), alone, STOP, Finish(1, "stop"))[2] == frame(chunk(choice({}, None, 1), x=1))
    assert write(OPEN, ChoiceStart(1), Finish(1, "stop"), alone, STOP)[3] == frame(chunk(choice({}), x=1))


def test_fields_of_a_choice_that_never_starts_are_dropped() -> None:
    assert write(on_choice({"x": 1}), on_chunk({"y": 1}), Failure("boom"))[2].startswith(b'data: {"error":')


def test_pending_fields_stay_with_their_choice() -> None:
    written = write(OPEN, ChoiceStart(1), on_choice({"x": 1}), Text(1, "b"), Text(0, "a"), STOP, Finish(1, "stop"))
    assert written[3:5] == [frame(delta_chunk({"content": "b"}, 1)), frame(delta_chunk({"content": "a"}, x=1))]


def test_the_finish_chunk_has_an_empty_delta() -> None:
    assert write(OPEN, Logprobs(0, LOGPROBS), on_delta({"x": "b"}), on_choice({"y": 1}), STOP)[4] == frame(
        delta_chunk({"x": "b"})
    ) + frame(chunk(choice({}, "stop", logprobs=LOGPROBS, y=1)))


def test_completions_have_one_text_per_chunk_and_no_opening_chunk() -> None:
    assert write(OPEN, Text(0, "a"), ChoiceStart(1), Text(1, "b"), STOP, Finish(1, "length"), endpoint=COMPLETIONS) == [
        b"",
        frame(text("a")),
        b"",
        frame(text("b", 1)),
        frame(text_end()),
        frame(text_end("length", 1)),
        DONE,
    ]


def test_pending_fields_of_completions_are_next_to_the_text() -> None:
    assert write(OPEN, on_delta({"x": 1}), on_choice({"y": 2}), Text(0, "a"), STOP, endpoint=COMPLETIONS)[3] == (
        b'data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m",'
        b'"choices":[{"index":0,"text":"a","x":1,"logprobs":null,"finish_reason":null,"y":2}]}\n\n'
    )
    assert write(OPEN, KeepAlive(is_chunk=True), STOP, endpoint=COMPLETIONS)[1] == frame(text_chunk(text_choice()))


@table(
    ("content", "written"),
    [
        ("plain", b'"plain"'),
        ('"\\\n\r\t\x00', b'"\\"\\\\\\n\\r\\t\\u0000"'),
        ("é漢😀", '"é漢😀"'.encode()),
        ("\u2028\u2029\u0085", b'"\\u2028\\u2029\\u0085"'),
    ],
)
@table("is_first", [True, False])
def test_line_breaks_of_all_kinds_are_escaped(content: str, written: bytes, is_first: bool) -> None:
    before = [] if is_first else [Text(0, "x")]
    sent = write(OPEN, *before, Text(0, content), STOP)[-3]
    assert sent == frame(delta_chunk({"content": "@"})).replace(b'"@"', written)


def test_escaping_changes_only_line_breaks() -> None:
    assert escape_line_breaks("é\u2028".encode()) == b"\xc3\xa9\\u2028"
    assert escape_line_breaks(b"plain") == b"plain"


def test_a_text_that_equals_the_template_marker_is_text() -> None:
    assert write(OPEN, Text(0, "\x00text\x00"), STOP)[1] == frame(delta_chunk({"content": "\x00text\x00"}))


def test_the_same_events_give_the_same_bytes() -> None:
    events: list[Event] = [OPEN, *(Text(0, word) for word in ("a", "b", "a")), STOP]
    assert (
        write(*events)
        == write(*events)
        == [frame(part) for part in (role(), *content_chunks("a", "b", "a"), finish())] + [DONE]
    )


def test_an_illegal_event_raises_and_changes_no_state() -> None:
    out = writer()
    with pytest.raises(EventOrderError, match="legal now: ChoiceStart, UnknownFields"):
        out.send(Text(0, "a"))
    with pytest.raises(EventOrderError, match="the end while the stream is running"):
        out.end()
    assert out.send(OPEN) == frame(role())
