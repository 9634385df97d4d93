"""What the writers of both dialects share: the maker of chunks, and what rides on them."""

import pytest

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    DONE,
    HEAD,
    choice,
    chunk,
    count,
    entry,
    finish,
    frame,
    role,
    say,
    text,
    text_choice,
    text_chunk,
    text_end,
    words,
)
from tests.table import table
from welldone.protocol.dialects.chat import (
    ChatWriter,
    ChunkWriter,
    CompletionsWriter,
    escape_line_breaks,
    openai_error_object,
)
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import (
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

OPEN, STOP = ChoiceStart(0), Finish(0, "stop")
KEEP_ALIVE = b": keep-alive\n\n"


def writer(endpoint: Endpoint = CHAT, *, usage_is_null: bool = False) -> ChunkWriter:
    if endpoint is CHAT:
        return ChatWriter(HEAD, usage_is_null=usage_is_null)
    return CompletionsWriter(Envelope("cmpl-1", 1700000000, "m"), usage_is_null=usage_is_null)


def write(*events: Event, endpoint: Endpoint = CHAT, usage_is_null: bool = False) -> list[bytes]:
    """The bytes of each event and of the end."""
    out = writer(endpoint, usage_is_null=usage_is_null)
    return [*(out.send(event) for event in events), out.end()]


def on_chunk(fields: dict[str, object], *, alone: bool = False) -> UnknownFields:
    return UnknownFields(0, FieldLocation.CHUNK, fields, alone)


def on_choice(fields: dict[str, object], *, alone: bool = False) -> UnknownFields:
    return UnknownFields(0, FieldLocation.CHOICE, fields, alone)


def on_delta(fields: dict[str, object], *, alone: bool = False) -> UnknownFields:
    return UnknownFields(0, FieldLocation.DELTA, fields, alone)


def test_a_plain_stream_is_written_as_openai_does() -> None:
    assert write(OPEN, Text(0, "Hel"), Text(0, "lo"), STOP) == [
        frame(role()),
        frame(say({"content": "Hel"})),
        frame(say({"content": "lo"})),
        frame(finish()),
        DONE,
    ]


def test_usage_comes_last_and_is_null_before_if_it_was_asked_for() -> None:
    usage = Usage(5, 3, 8, {"cost": 0.5})
    counted = frame(chunk(usage=count(5, 3, cost=0.5)))
    assert write(OPEN, STOP, usage) == [frame(role()), frame(finish()), counted, DONE]
    assert write(OPEN, Text(0, "a"), STOP, usage, usage_is_null=True) == [
        frame(role() | {"usage": None}),
        frame(say({"content": "a"}) | {"usage": None}),
        frame(finish() | {"usage": None}),
        counted,
        DONE,
    ]


def test_a_fingerprint_is_on_each_chunk() -> None:
    out = ChatWriter(Envelope("chatcmpl-1", 1700000000, "m", "fp"))
    for event in (OPEN, Text(0, "a"), STOP, Usage(5, 3, 8, {})):
        assert b'"model":"m","system_fingerprint":"fp","choices":' in out.send(event)


def test_a_failure_is_one_event_and_then_done() -> None:
    error = {"message": "boom", "type": "server_error", "param": None, "code": "c", "x": 1}
    assert write(OPEN, Failure("boom", code="c", extra_fields={"x": 1})) == [
        frame(role()),
        frame({"error": error}),
        DONE,
    ]


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_a_failure_may_be_all_there_is(endpoint: Endpoint) -> None:
    error = {"message": "boom", "type": "t", "param": "p", "code": None}
    assert write(Failure("boom", "t", "p"), endpoint=endpoint) == [frame({"error": error}), DONE]
    assert openai_error_object(Failure("boom", "t", "p")) == {"error": error}


def test_a_keep_alive_is_a_comment_or_a_chunk_that_says_nothing() -> None:
    quiet = KeepAlive(is_chunk=True)
    assert write(KeepAlive(), quiet, OPEN, KeepAlive(), quiet, STOP, quiet) == [
        KEEP_ALIVE,
        KEEP_ALIVE,
        frame(role()),
        KEEP_ALIVE,
        frame(say({})),
        frame(finish()),
        KEEP_ALIVE,
        DONE,
    ]


def test_a_keep_alive_chunk_belongs_to_a_choice_that_goes_on() -> None:
    assert write(OPEN, ChoiceStart(1), STOP, KeepAlive(is_chunk=True), Finish(1, "stop"))[3] == frame(say({}, 1))


LOGPROBS = {"content": [entry("a")], "refusal": None}


@table(
    ("rider", "carried"),
    [
        (Logprobs(0, LOGPROBS), say({"content": "a"}, logprobs=LOGPROBS)),
        (on_choice({"x": 1}), say({"content": "a"}, x=1)),
        (on_delta({"x": "b"}), say({"content": "a", "x": "b"})),
        (on_chunk({"x": 1}), chunk(choice({"content": "a"}), x=1)),
    ],
)
def test_what_rides_goes_out_with_the_next_chunk(rider: Event, carried: object) -> None:
    assert write(OPEN, rider, Text(0, "a"), Text(0, "b"), STOP) == [
        frame(role()),
        b"",
        frame(carried),
        frame(say({"content": "b"})),
        frame(finish()),
        DONE,
    ]


def test_all_kinds_of_riders_ride_together() -> None:
    riders: list[Event] = [
        Logprobs(0, LOGPROBS),
        on_choice({"x": 1}),
        on_delta({"y": 2}),
        on_chunk({"z": 3}),
        on_choice({"w": 4}),
    ]
    written = write(OPEN, *riders, Text(0, "a"), STOP)
    assert written[1:7] == [
        *[b""] * 5,
        frame(chunk(choice({"content": "a", "y": 2}, logprobs=LOGPROBS, x=1, w=4), z=3)),
    ]


@table(
    ("extra", "first"),
    [
        (on_choice({"x": 1}), chunk(choice({"role": "assistant", "content": ""}, x=1))),
        (on_delta({"x": 1}), say({"role": "assistant", "content": "", "x": 1})),
        (on_chunk({"x": 1}), chunk(choice({"role": "assistant", "content": ""}), x=1)),
        (on_chunk({"x": 1}, alone=True), chunk(choice({"role": "assistant", "content": ""}), x=1)),
    ],
)
def test_what_comes_before_the_first_chunk_rides_on_it(extra: Event, first: object) -> None:
    assert write(extra, OPEN, STOP) == [b"", frame(first), frame(finish()), DONE]


@table(
    ("rider", "alone", "again"),
    [
        (Logprobs(0, LOGPROBS), say({}, logprobs=LOGPROBS), say({"content": "a"}, logprobs=LOGPROBS)),
        (on_choice({"x": 1}), say({}, x=1), say({"content": "a"}, x=1)),
        (on_delta({"x": "b"}), say({"x": "b"}), say({"content": "a", "x": "b"})),
        (on_chunk({"x": 1}), chunk(choice({}), x=1), chunk(choice({"content": "a"}), x=1)),
    ],
)
def test_two_that_cannot_ride_together_ride_one_after_the_other(rider: Event, alone: object, again: object) -> None:
    assert write(OPEN, rider, rider, Text(0, "a"), STOP)[1:4] == [b"", frame(alone), frame(again)]


@pytest.mark.parametrize(
    ("extra", "carried"),
    [
        (on_choice({"x": 1}, alone=True), say({}, x=1)),
        (on_delta({"x": "b"}, alone=True), say({"x": "b"})),
        (on_chunk({"x": 1}, alone=True), chunk(choice({}), x=1)),
    ],
)
def test_what_stands_alone_has_a_chunk_of_its_own(extra: Event, carried: object) -> None:
    assert write(OPEN, extra, extra, STOP)[1:3] == [frame(carried), frame(carried)]


@table(
    ("rider", "carried"),
    [
        (Logprobs(0, LOGPROBS), say({}, logprobs=LOGPROBS)),
        (on_choice({"x": 1}), say({}, x=1)),
        (on_delta({"x": "b"}), say({"x": "b"})),
        (on_chunk({"x": 1}), chunk(choice({}), x=1)),
    ],
)
def test_what_still_rides_when_the_answer_fails_goes_out_first(rider: Event, carried: object) -> None:
    error = {"message": "boom", "type": "server_error", "param": None, "code": None}
    assert write(OPEN, rider, Failure("boom"))[2] == frame(carried) + frame({"error": error})


def test_what_waits_can_be_let_out() -> None:
    nudge = on_choice({}, alone=True)
    assert write(OPEN, nudge, STOP)[1] == b""
    assert write(OPEN, on_delta({"x": "b"}), nudge, STOP)[2] == frame(say({"x": "b"}))
    assert write(OPEN, on_chunk({"x": 1}), nudge, STOP)[2] == frame(chunk(choice({}), x=1))


def test_fields_of_a_chunk_stay_with_a_choice_that_the_chunk_had() -> None:
    alone = UnknownFields(1, FieldLocation.CHUNK, {"x": 1}, in_own_chunk=True)
    assert write(OPEN, ChoiceStart(1), alone, STOP, Finish(1, "stop"))[2] == frame(chunk(choice({}, None, 1), x=1))
    assert write(OPEN, ChoiceStart(1), Finish(1, "stop"), alone, STOP)[3] == frame(chunk(choice({}), x=1))


def test_what_rides_on_a_choice_that_never_opened_is_left_out() -> None:
    assert write(on_choice({"x": 1}), on_chunk({"y": 1}), Failure("boom"))[2].startswith(b'data: {"error":')


def test_riders_of_one_choice_do_not_ride_on_another() -> None:
    written = write(OPEN, ChoiceStart(1), on_choice({"x": 1}), Text(1, "b"), Text(0, "a"), STOP, Finish(1, "stop"))
    assert written[3:5] == [frame(say({"content": "b"}, 1)), frame(say({"content": "a"}, x=1))]


def test_the_finish_chunk_has_an_empty_delta() -> None:
    assert write(OPEN, Logprobs(0, LOGPROBS), on_delta({"x": "b"}), on_choice({"y": 1}), STOP)[4] == frame(
        say({"x": "b"})
    ) + frame(chunk(choice({}, "stop", logprobs=LOGPROBS, y=1)))


def test_completions_have_one_text_per_chunk_and_no_chunk_that_opens() -> None:
    assert write(OPEN, Text(0, "a"), ChoiceStart(1), Text(1, "b"), STOP, Finish(1, "length"), endpoint=COMPLETIONS) == [
        b"",
        frame(text("a")),
        b"",
        frame(text("b", 1)),
        frame(text_end()),
        frame(text_end("length", 1)),
        DONE,
    ]


def test_riders_of_completions_stand_beside_the_text() -> None:
    assert write(OPEN, on_delta({"x": 1}), on_choice({"y": 2}), Text(0, "a"), STOP, endpoint=COMPLETIONS)[3] == (
        b'data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m",'
        b'"choices":[{"index":0,"text":"a","x":1,"logprobs":null,"finish_reason":null,"y":2}]}\n\n'
    )
    assert write(OPEN, KeepAlive(is_chunk=True), STOP, endpoint=COMPLETIONS)[1] == frame(text_chunk(text_choice()))


@table(
    ("said", "written"),
    [
        ("plain", b'"plain"'),
        ('"\\\n\r\t\x00', b'"\\"\\\\\\n\\r\\t\\u0000"'),
        ("é漢😀", '"é漢😀"'.encode()),
        ("\u2028\u2029\u0085", b'"\\u2028\\u2029\\u0085"'),
    ],
)
@table("is_first", [True, False])
def test_line_breaks_of_all_kinds_are_escaped(said: str, written: bytes, is_first: bool) -> None:
    before = [] if is_first else [Text(0, "x")]
    sent = write(OPEN, *before, Text(0, said), STOP)[-3]
    assert sent == frame(say({"content": "@"})).replace(b'"@"', written)


def test_escaping_leaves_all_else_as_it_is() -> None:
    assert escape_line_breaks("é\u2028".encode()) == b"\xc3\xa9\\u2028"
    assert escape_line_breaks(b"plain") == b"plain"


def test_a_text_that_looks_like_our_own_mark_is_text() -> None:
    assert write(OPEN, Text(0, "\x00text\x00"), STOP)[1] == frame(say({"content": "\x00text\x00"}))


def test_the_same_events_make_the_same_bytes() -> None:
    events: list[Event] = [OPEN, *(Text(0, word) for word in ("a", "b", "a")), STOP]
    assert (
        write(*events) == write(*events) == [frame(part) for part in (role(), *words("a", "b", "a"), finish())] + [DONE]
    )


def test_what_may_not_come_now_is_refused_and_leaves_nothing_behind() -> None:
    out = writer()
    with pytest.raises(EventOrderError, match="legal now: Opening, Extra"):
        out.send(Text(0, "a"))
    with pytest.raises(EventOrderError, match="the end while the stream is running"):
        out.end()
    assert out.send(OPEN) == frame(role())
