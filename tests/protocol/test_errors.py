"""Errors in the shapes of different servers."""

from typing import Any

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    FALLBACK,
    FALLBACKS,
    choice,
    chunk,
    content_chunks,
    count,
    finish,
    frame,
    pack,
    role,
    rules,
    stream,
    text,
    text_end,
    usage_chunk,
)
from tests.table import table
from welldone.core import sse
from welldone.core.events import Failure
from welldone.core.fields import bad_stream_failure, incomplete_stream_failure, read_error
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import RequestFacts
from welldone.dialects.messages.repair import MessagesRepairer
from welldone.dialects.responses.repair import ResponsesRepairer
from welldone.dialects.same_dialect import PassthroughRepairer
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

MESSAGE_START: dict[str, Any] = {"type": "message_start", "message": {"id": "m", "content": []}}
RIGHT = {"message": "m", "type": "t", "param": "p", "code": "c"}


def read(value: dict[str, Any], data: bytes | None = None) -> tuple[Failure | None, list[str]]:
    repair_log = RepairLog()
    return read_error(value, data or pack(value), repair_log), rules(repair_log)


def test_a_correct_error_is_read_without_a_repair() -> None:
    assert read({"error": RIGHT}) == (Failure("m", "t", "p", "c"), [])
    assert read({"error": RIGHT | {"param": None, "code": None}}) == (Failure("m", "t"), [])


NOTHING: list[Any] = ["", {}, False, [], None, 0, {"message": "", "code": 0, "type": None}]


@table("error", NOTHING)
def test_an_empty_error_does_not_end_a_correct_stream(error: object) -> None:
    extra = {"error": error}
    chunks = [one | extra for one in (role(), *content_chunks("Hello"), finish(), usage_chunk(count()))]
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(include_usage=True))
    sent = pipeline.feed(stream(*chunks)) + pipeline.close()
    assert sent == stream(
        *(one | {"usage": None} for one in (role(), *content_chunks("Hello"), finish())), usage_chunk(count())
    )
    assert rules(pipeline.repair_log) == ["env-no-error-key"]
    assert set(judge(Trace(body=stream(*chunks), endpoint="chat")).counts) == {"env-no-error-key"}
    texts = [text("Hello") | extra, text_end() | extra]
    completion = StreamPipeline(COMPLETIONS, fallback=FALLBACKS[COMPLETIONS])
    assert completion.feed(stream(*texts)) + completion.close() == stream(text("Hello"), text_end())


@table("error", NOTHING)
def test_an_empty_error_does_not_fail_a_correct_reply(error: object) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK)
    buffered.feed_reply(pack({"object": "chat.completion", "choices": [choice], "error": error}))
    buffered.close()
    assert buffered.failure is None
    message = {"type": "message", "content": [{"type": "text", "text": "Hello"}], "stop_reason": "end_turn"}
    native = MessagesRepairer(fallback=FALLBACK, is_stream=False)
    native.feed_reply(pack(message | {"error": error}))
    native.close()
    assert native.failure is None
    response = {"object": "response", "status": "completed", "output": [{"type": "message", "content": []}]}
    other = ResponsesRepairer(fallback=FALLBACK, is_stream=False)
    other.feed_reply(pack(response | {"error": error}))
    other.close()
    assert other.failure is None


@table("error", NOTHING)
def test_an_empty_error_does_not_end_a_correct_passthrough_stream(error: object) -> None:
    created = {"type": "response.created", "response": {"id": "r", "error": error}}
    streams: list[tuple[PassthroughRepairer, list[dict[str, Any]]]] = [
        (MessagesRepairer(fallback=FALLBACK), [MESSAGE_START, {"type": "ping"}]),
        (ResponsesRepairer(fallback=FALLBACK), [created]),
    ]
    for native, events in streams:
        for event in events:
            native.feed(sse.named_frame(event["type"], pack(event | {"error": error})))
        assert native.failure is None


@table(
    ("error", "failure", "recorded"),
    [
        ("boom", Failure("boom"), ["err-body-shape", "err-midstream-event"]),
        ("", Failure("unknown error"), ["err-body-shape", "err-midstream-event"]),
        (["a"], Failure('["a"]'), ["err-body-shape", "err-midstream-event"]),
        ({}, Failure("unknown error"), ["err-body-shape", "err-midstream-event"]),
        (RIGHT | {"message": 7}, Failure("7", "t", "p", "c"), ["err-midstream-event"]),
        (RIGHT | {"message": None}, Failure("unknown error", "t", "p", "c"), ["err-midstream-event"]),
        ({"message": "m"}, Failure("m"), ["err-body-shape"]),
        (RIGHT | {"code": 500}, Failure("m", "t", "p", "500"), ["err-code-string"]),
        (RIGHT | {"type": 7, "param": ["a"]}, Failure("m", "7", '["a"]', "c"), []),
        (RIGHT | {"status": [1]}, Failure("m", "t", "p", "c", {"status": [1]}), []),
        (RIGHT | {"message": "\ud83d"}, Failure("\ufffd", "t", "p", "c"), []),
    ],
)
def test_a_malformed_error_is_read_and_recorded(error: object, failure: Failure, recorded: list[str]) -> None:
    assert read({"error": error}, b'{"error":') == (failure, recorded)


def test_an_error_that_is_not_first_or_has_choices_is_recorded() -> None:
    assert read({"error": RIGHT}, b'{ "error": {}}') == (Failure("m", "t", "p", "c"), ["err-midstream-event"])
    assert read(chunk() | {"error": RIGHT}) == (
        Failure("m", "t", "p", "c"),
        ["err-midstream-event", "err-not-with-choices"],
    )


@table(
    ("value", "failure"),
    [
        ({"object": "error", "message": "m", "type": "t", "code": 40}, Failure("m", "t", None, "40")),
        ({"object": "error"}, Failure("unknown error")),
        ({"message": "m", "code": 7}, Failure("m", code="7")),
        ({"message": "m", "type": "t"}, Failure("m", "t")),
        ({"message": "m", "status": 503}, Failure("m", extra_fields={"status": 503})),
        ({"detail": "d"}, Failure("d")),
        ({"detail": [{"loc": 1}]}, Failure('[{"loc":1}]')),
    ],
)
def test_a_flat_error_is_read(value: dict[str, Any], failure: Failure) -> None:
    assert read(value) == (failure, ["err-not-object-error"])


@table(
    "value",
    [
        {},
        {"error": None},
        {"message": "m"},
        {"message": 7, "code": 7},
        {"detail": "d", "x": 1},
        {"type": "ping"},
        {"choices": [], "message": "m", "code": 7},
        chunk(),
    ],
)
def test_objects_that_are_not_errors_give_no_failure(value: dict[str, Any]) -> None:
    assert read(value) == (None, [])


def test_failures_of_the_upstream_have_the_type_upstream_error() -> None:
    assert bad_stream_failure("a stone") == Failure(
        "the server sent a stone", "upstream_error", None, "bad_upstream_stream"
    )
    assert incomplete_stream_failure("it ended") == Failure("it ended", "upstream_error", None, "incomplete_stream")


OPENROUTER = {"message": "Provider overloaded", "code": 502, "metadata": {"provider_name": "x"}}


@table("reason", ["error", "stop", None, "a_word"])
def test_the_error_of_a_choice_ends_the_answer_with_its_message(reason: object) -> None:
    last = chunk(choice({"content": "lo"}, reason, error=OPENROUTER))
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK)
    sent = pipeline.feed(stream(role(), *content_chunks("Hel"), last)) + pipeline.close()
    failure = Failure("Provider overloaded", "server_error", None, "502", {"metadata": {"provider_name": "x"}})
    assert pipeline.failure == failure
    assert b'"content":"lo"' in sent
    assert sent.count(b'"error":') == 1
    assert b'"finish_reason":"' not in sent
    message = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": reason}
    reply = {"object": "chat.completion", "choices": [message | {"error": OPENROUTER}]}
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK)
    buffered.feed_reply(pack(reply))
    buffered.close()
    assert buffered.failure == failure


@table("error", [None, "", {}, {"message": "", "code": 0}])
def test_an_empty_error_of_a_choice_is_an_unknown_field(error: object) -> None:
    right = stream(role(), *content_chunks("Hel"), chunk(choice({}, "stop", error=error)))
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK)
    assert pipeline.feed(right) + pipeline.close() == right


@table("glue", [b"\n", b"", b"\ndata: "])
@table("end", [30, -40, -2])
def test_an_error_glued_to_an_unfinished_chunk_keeps_its_message(glue: bytes, end: int) -> None:
    cut = frame(content_chunks("lo")[0])[:end]
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK)
    pipeline.feed(stream(role(), *content_chunks("Hel"), cut + glue + pack({"error": RIGHT}) + b"\n\n"))
    pipeline.close()
    assert pipeline.failure == Failure("m", "t", "p", "c")


@table("rest", [b'{"error":null}', b'{"error":{"message":"m"}', b'{"type":"error"}'])
def test_data_that_ends_with_something_else_is_unreadable(rest: bytes) -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK)
    pipeline.feed(stream(role(), b'data: {"id":"cut' + rest + b"\n\n"))
    assert pipeline.failure == bad_stream_failure("a frame that is not JSON (frame 2)")
