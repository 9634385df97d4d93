"""Repair of streams and replies from Python."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import welldone
from tests.laws.strategies import any_bytes, damaged
from tests.laws.test_laws import UNKNOWABLE, violated_rules
from tests.table import table
from welldone import (
    EndpointName,
    EventOrderError,
    StreamRepairer,
    arepair,
    lint,
    repair,
    repair_response,
)
from welldone.core.envelope import Endpoint

untyped: Any = welldone
WRONG = b'data: {"id":"a","choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'
LAST = b'data: {"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
CHAT_REPLY = (
    b'{"id":"a","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{"role":'
    b'"assistant","content":"Hi","refusal":null},"logprobs":null,"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}'
)
REPLIES: dict[EndpointName, bytes] = {
    "chat": CHAT_REPLY,
    "completions": b'{"choices":[{"text":"Hi","finish_reason":"stop"}]}',
    "responses": b'{"object":"response","status":"completed","output":[{"type":"message","content":'
    b'[{"type":"output_text","text":"Hi"}]}],"usage":{"input_tokens":1,"output_tokens":2}}',
    "messages": b'{"type":"message","content":[{"type":"text","text":"Hi"}],"stop_reason":"end_turn",'
    b'"usage":{"input_tokens":1,"output_tokens":2}}',
}


def text_of(stream: bytes) -> str:
    """The text of a chat stream."""
    frames = [json.loads(frame[6:]) for frame in stream.split(b"\n\n") if frame.startswith(b"data: {")]
    return "".join(frame["choices"][0]["delta"].get("content", "") for frame in frames if frame.get("choices"))


def test_a_wrong_stream_becomes_right_and_the_repairs_are_listed() -> None:
    repairer = StreamRepairer(request={"model": "m", "stream": True})
    sent = repairer.feed(WRONG)
    assert text_of(sent) == "Hi"  # at once, not at the end
    assert not repairer.is_done
    sent += repairer.feed(LAST) + repairer.close()
    assert lint(sent, "chat").ok
    assert repairer.is_done
    result = repairer.result
    assert (result.failure, result.usage) == (None, None)
    entry = next(entry for entry in result.repairs if entry.rule == "delta-role-first")
    assert (entry.count, entry.frame) == (1, 1)


def test_close_and_fail_end_the_stream_once() -> None:
    repairer = StreamRepairer()
    repairer.feed(WRONG)
    failed = repairer.fail("out of memory", type="server_error", code="oom")
    assert failed.endswith(DONE)
    assert b'"message":"out of memory","type":"server_error","param":null,"code":"oom"' in failed
    assert repairer.result.failure is not None
    assert repairer.close() == repairer.fail("again") == repairer.keep_alive() == b""
    with pytest.raises(EventOrderError, match=r"feed\(\) while the stream is closed; legal now: a new StreamRepairer"):
        repairer.feed(b"data")


def test_a_complete_answer_does_not_fail() -> None:
    repairer = StreamRepairer()
    sent = repairer.feed(WRONG + LAST) + repairer.fail("connection lost")
    assert sent.endswith(DONE)
    assert b"error" not in sent


def test_a_keep_alive_fits_the_state_of_the_stream() -> None:
    for endpoint in REPLIES:
        repairer = StreamRepairer(endpoint, request={"stream": True})
        sent = repairer.keep_alive() + repairer.feed(REPLIES[endpoint]) + repairer.keep_alive() + repairer.close()
        assert sent.startswith(b":")
        assert lint(sent, endpoint, request={"stream": True}).ok


@table("endpoint", list(REPLIES))
def test_a_whole_reply_becomes_a_stream(endpoint: EndpointName) -> None:
    reply = REPLIES[endpoint]
    for chunks in ([reply], [b"\xef\xbb\xbf ", reply], [reply[:1], reply[1:7], reply[7:], b"\n"]):
        sent = b"".join(repair(chunks, endpoint, request={"stream": True}))
        assert lint(sent, endpoint, request={"stream": True}).ok
        assert b"Hi" in sent


def test_json_lines_are_repaired_as_they_arrive() -> None:
    repairer = StreamRepairer()
    line = WRONG.removeprefix(b"data: ")[:-1]
    assert text_of(repairer.feed(line) + repairer.feed(line)) == "Hi"
    repairer.feed(LAST.removeprefix(b"data: "))
    assert repairer.close().endswith(DONE)


def test_a_reply_that_is_too_long_fails_before_its_end() -> None:
    repairer = StreamRepairer()
    sent = b"".join(repairer.feed(b'{"x":"' + b"x" * 2**20) for _ in range(8))
    assert b'"error"' in sent


def test_fewer_choices_than_requested_are_sent_on() -> None:
    request = {"model": "m", "n": 2, "stream": True}
    repairer = StreamRepairer(request=request)
    assert b"error" not in repairer.feed(WRONG + LAST + DONE) + repairer.close()
    assert "n-refuse-if-unsupported" in {entry.rule for entry in repairer.result.repairs}
    reply = repair_response(CHAT_REPLY, request={**request, "stream": False})
    assert (reply.status, reply.result.failure) == (200, None)


def test_options_are_passed_on() -> None:
    think = StreamRepairer(think="tags").feed(WRONG.replace(b"Hi", b"<think>why</think>so"))
    assert b'"reasoning_content":"why"' in think
    cumulative = StreamRepairer(text="cumulative")
    assert text_of(cumulative.feed(WRONG + WRONG.replace(b"Hi", b"Hi you"))) == "Hi you"
    strict = StreamRepairer(strict=["delta-role-first"])
    assert b"upstream_rule_broken" in strict.feed(WRONG)
    assert b"upstream_rule_broken" not in StreamRepairer(strict=["use-last"]).feed(WRONG)
    assert b"upstream_rule_broken" in StreamRepairer(strict={"all"}).feed(WRONG)


def test_the_request_may_be_bytes_and_may_be_broken() -> None:
    body = b'{"model":"asked","stream_options":{"include_usage":true}}'
    usage = b'data: {"id":"a","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}\n\n'
    for request, is_sent in ((body, True), (json.loads(body), True), (b"[]", True), (b"\xff", True), (b"{}", False)):
        repairer = StreamRepairer(request=request)
        sent = repairer.feed(WRONG + LAST + usage) + repairer.close()
        assert (b'"total_tokens":3' in sent) is is_sent
        assert repairer.result.usage is not None


@table(
    "use, kind, message",
    [
        (
            lambda: untyped.StreamRepairer("chats"),
            ValueError,
            "unknown endpoint 'chats'; use one of 'chat', 'completions'",
        ),
        (lambda: untyped.StreamRepairer(think="yes"), ValueError, "think must be one of no, tags, open; got 'yes'"),
        (lambda: untyped.StreamRepairer(text="all"), ValueError, "text must be one of delta, cumulative; got 'all'"),
        (
            lambda: untyped.StreamRepairer(strict=["fin-alway"]),
            ValueError,
            "unknown rule 'fin-alway' in strict; did you mean",
        ),
        (
            lambda: untyped.StreamRepairer(strict=["?"]),
            ValueError,
            r"unknown rule '\?' in strict; welldone.RULES lists them",
        ),
        (lambda: untyped.StreamRepairer(strict="all"), TypeError, r"collection of rule ids; write \['all'\]"),
        (
            lambda: untyped.StreamRepairer(request=[1]),
            TypeError,
            "request must be a dict, or the body as bytes; got list",
        ),
        (
            lambda: untyped.StreamRepairer().feed("data: x"),
            TypeError,
            "feed takes bytes, not str; encode the text as UTF-8",
        ),
        (lambda: untyped.StreamRepairer().feed(None), TypeError, "feed takes bytes, not NoneType"),
        (
            lambda: untyped.repair(b"data: x"),
            TypeError,
            r"takes an iterable of bytes, not bytes; for bytes write \[data\]",
        ),
        (lambda: untyped.repair(3), TypeError, "repair takes an iterable of bytes, not int"),
        (lambda: list(untyped.repair(["data: x"])), TypeError, "feed takes bytes, not str"),
        (lambda: untyped.arepair([b"x"]), TypeError, "arepair takes an async iterable of bytes, not list"),
        (lambda: untyped.repair_response("{}"), TypeError, "repair_response takes bytes, not str"),
    ],
)
def test_wrong_use_raises_and_says_what_to_do(use: Callable[[], object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        use()


def test_other_kinds_of_bytes_are_accepted() -> None:
    repairer = untyped.StreamRepairer()
    assert text_of(repairer.feed(bytearray(WRONG)) + repairer.feed(memoryview(WRONG))) == "HiHi"


# Iterators.


def failing(*chunks: bytes) -> Iterator[bytes]:
    """Yield the chunks, then raise."""
    yield from chunks
    raise ConnectionError("10.0.0.1 refused")


async def asynchronous(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The same chunks, asynchronously."""
    for chunk in chunks:
        yield chunk


async def drain(chunks: AsyncIterator[bytes]) -> list[bytes]:
    """All chunks."""
    return [chunk async for chunk in chunks]


def test_an_exception_of_the_source_ends_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    for sent in (list(repair(failing(WRONG))), asyncio.run(drain(arepair(asynchronous(failing(WRONG)))))):
        assert lint(b"".join(sent), "chat").ok
        assert b"The server failed while it was answering; the answer is incomplete." in sent[-1]
        assert b"10.0.0.1" not in b"".join(sent)
    assert "10.0.0.1 refused" in caplog.text


def test_an_exception_before_the_first_bytes_is_raised() -> None:
    with pytest.raises(ConnectionError):
        list(repair(failing()))
    with pytest.raises(ConnectionError):
        asyncio.run(drain(arepair(asynchronous(failing(b"")))))


def test_the_source_is_closed_with_the_iterator() -> None:
    closed = []

    def endless(name: str) -> Iterator[bytes]:
        try:
            while True:
                yield WRONG
        finally:
            closed.append(name)

    async def endless_async() -> AsyncIterator[bytes]:
        try:
            while True:
                yield WRONG
        finally:
            closed.append("async")

    chunks = repair(endless("sync"))
    next(chunks)
    chunks.close()

    async def take_one() -> None:
        chunks = arepair(endless_async())
        await anext(chunks)
        await chunks.aclose()

    asyncio.run(take_one())
    assert closed == ["sync", "async"]


def test_a_cancelled_source_is_closed_and_the_cancellation_passes() -> None:
    closed = []

    async def waiting() -> AsyncIterator[bytes]:
        try:
            yield WRONG
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async def cancel() -> None:
        chunks = arepair(waiting())
        await anext(chunks)
        task = asyncio.ensure_future(anext(chunks))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert closed == [True]


# Laws.


@given(
    stream=st.one_of(damaged(), any_bytes.map(lambda data: (Endpoint.CHAT, data))), cuts=st.sets(st.integers(1, 999))
)
def test_any_bytes_give_a_right_stream_at_any_boundaries(stream: tuple[Endpoint, bytes], cuts: set[int]) -> None:
    endpoint, data = stream
    ends = [*sorted(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    fixed = b"".join(repair(pieces, endpoint.value, request={"stream": True}))
    assert violated_rules(fixed, endpoint, {"stream": True}) <= UNKNOWABLE


@given(data=any_bytes, endpoint=st.sampled_from(list(REPLIES)), status=st.sampled_from([200, 400, 503]))
def test_any_bytes_give_a_reply(data: bytes, endpoint: EndpointName, status: int) -> None:
    repaired = repair_response(data, endpoint, status=status)
    assert lint(repaired.body, endpoint, status=repaired.status).ok
    assert isinstance(json.loads(repaired.body), dict)
    assert (repaired.status >= 400) is (repaired.result.failure is not None)


# Whole replies.


def test_a_right_reply_stays_as_it_is() -> None:
    repaired = repair_response(CHAT_REPLY)
    assert (repaired.status, repaired.result.repairs) == (200, [])
    assert json.loads(repaired.body) == json.loads(CHAT_REPLY)


@table("endpoint", list(REPLIES))
def test_a_wrong_reply_becomes_right(endpoint: EndpointName) -> None:
    repaired = repair_response(REPLIES[endpoint], endpoint)
    assert repaired.status == 200
    assert lint(repaired.body, endpoint, request={"stream": False}).ok


def test_a_stream_that_was_not_asked_for_becomes_a_reply() -> None:
    repaired = repair_response(WRONG + LAST + DONE, request={"model": "m"})
    assert json.loads(repaired.body)["choices"][0]["message"]["content"] == "Hi"


@table(
    "endpoint, status, body, error",
    [
        ("chat", 500, b"Internal Server Error", {"message": "Internal Server Error", "type": "server_error"}),
        ("chat", 404, b'{"detail":"Not Found"}', {"message": "Not Found", "type": "invalid_request_error"}),
        ("chat", 503, b"<html>", {"message": "The server replied with status 503.", "type": "server_error"}),
        ("chat", 401, b'{"error":"no key"}', {"message": "no key", "type": "authentication_error"}),
        ("responses", 429, b"", {"message": "The server replied with status 429.", "type": "rate_limit_error"}),
        ("messages", 404, b'{"detail":"Not Found"}', {"message": "Not Found", "type": "not_found_error"}),
        ("messages", 500, b"oh", {"message": "oh", "type": "api_error"}),
        ("chat", 400, b'{"error":{"message":"m","type":"t","code":"c"}}', {"message": "m", "type": "t", "code": "c"}),
    ],
)
def test_an_error_gets_the_shape_of_its_api(
    endpoint: EndpointName, status: int, body: bytes, error: dict[str, Any]
) -> None:
    repaired = repair_response(body, endpoint, status=status)
    assert repaired.status == status
    assert json.loads(repaired.body)["error"].items() >= error.items()


@table(
    "body, status",
    [
        (b'{"error":{"message":"m","type":"rate_limit_error"}}', 429),
        (b'{"error":{"message":"m"}}', 500),
        (b'{"error":{"message":"m","code":404}}', 404),
        (b'{"error":{"message":"m","code":1234}}', 500),
        (b"", 502),
        (b"<html>", 502),
    ],
)
def test_an_error_with_a_status_of_success_gets_another(body: bytes, status: int) -> None:
    assert repair_response(body).status == status


def test_the_end_of_a_source_can_be_the_end_of_its_answer() -> None:
    async def source() -> AsyncIterator[bytes]:
        yield WRONG

    async def collect() -> bytes:
        return b"".join([part async for part in arepair(source(), ends="close")])

    repairer = StreamRepairer(ends="close")
    streams = [b"".join(repair([WRONG], ends="close")), repairer.feed(WRONG) + repairer.close(), asyncio.run(collect())]
    for stream in streams:
        assert lint(stream, "chat").ok
        assert b'"finish_reason":"stop"' in stream
    assert json.loads(repair_response(WRONG, ends="close").body)["choices"][0]["finish_reason"] == "stop"
    assert b'"incomplete_stream"' in b"".join(repair([WRONG]))
    with pytest.raises(ValueError, match="ends must be one of finish, close; got 'never'"):
        untyped.StreamRepairer(ends="never")


def test_a_source_that_fails_has_not_ended_its_answer() -> None:
    def source() -> Iterator[bytes]:
        yield WRONG
        raise OSError

    assert b'"finish_reason":"' not in b"".join(repair(source(), ends="close"))
