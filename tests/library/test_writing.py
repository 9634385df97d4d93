"""Writers for server authors: what the methods return, what they refuse, and how a stream ends."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import welldone
from tests.library.writer_calls import USAGE, WRITERS, AnyStream
from tests.table import table
from welldone import (
    STREAM_HEADERS,
    ChatStream,
    CompletionsStream,
    EndpointName,
    EventOrderError,
    MessagesStream,
    ResponsesStream,
    Usage,
    lint,
)

untyped: Any = welldone
DONE = b"data: [DONE]\n\n"


def chunks(data: bytes) -> list[dict[str, Any]]:
    """The JSON of a stream's frames, without the end marker."""
    lines = [line.removeprefix(b"data: ") for line in data.splitlines() if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]


def test_a_stream_opens_with_the_role_and_ends_with_done() -> None:
    stream = ChatStream("m", id="chatcmpl-1", created=7, fingerprint="fp")
    first, *rest = chunks(stream.text("Hel") + stream.text("lo"))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["delta"] for chunk in rest] == [{"content": "Hel"}, {"content": "lo"}]
    assert {(chunk["id"], chunk["created"], chunk["model"], chunk["system_fingerprint"]) for chunk in rest} == {
        ("chatcmpl-1", 7, "m", "fp")
    }
    assert not stream.is_ended
    last = stream.finish()
    assert last.endswith(DONE)
    assert chunks(last)[0]["choices"][0]["finish_reason"] == "stop"
    assert stream.is_ended


def test_ids_are_made_up_and_differ() -> None:
    assert ChatStream("m").id.startswith("chatcmpl-")
    assert ResponsesStream("m").id.startswith("resp_")
    assert ChatStream("m").id != ChatStream("m").id


def test_empty_text_gives_no_bytes() -> None:
    stream = ChatStream("m")
    assert stream.text("") == stream.reasoning("") == stream.refusal("") == b""
    assert len(chunks(stream.text("x"))) == 2


@table(
    "request_body, include_usage, expected",
    [
        (None, None, 0),
        (None, True, 1),
        ({"stream_options": {"include_usage": True}}, None, 1),
        (b'{"stream_options":{"include_usage":true}}', None, 1),
        ({"stream_options": {"include_usage": True}}, False, 0),
        ({}, None, 0),
        (b"not JSON", None, 0),
    ],
)
def test_usage_is_sent_if_the_request_asks_for_it(
    request_body: dict[str, Any] | bytes | None, include_usage: bool | None, expected: int
) -> None:
    for writer in (ChatStream, CompletionsStream):
        stream = writer("m", request=request_body, include_usage=include_usage)
        written = chunks(stream.text("x") + stream.finish(usage=USAGE))
        assert [chunk["usage"]["total_tokens"] for chunk in written if chunk.get("usage")] == [8] * expected
        assert stream.to_response()["usage"]["total_tokens"] == 8


@table(
    "counts",
    [
        {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
        {"prompt_tokens": 3, "completion_tokens": 5},
        {"input_tokens": 3, "output_tokens": 5},
        {"input_tokens": 1, "cache_read_input_tokens": 2, "output_tokens": 5},
        Usage(3, 5, 8, {}),
    ],
)
def test_token_counts_may_have_the_names_of_any_api(counts: Any) -> None:  # noqa: ANN401 - several types
    for name, make in WRITERS.items():
        stream = make(None)
        stream.text("x")
        stream.finish(usage=counts)
        usage = stream.to_response()["usage"]
        given = "prompt_tokens" if name in ("chat", "completions") else "input_tokens"
        assert usage[given] + usage.get("cache_read_input_tokens", 0) == 3


def test_several_choices_end_with_the_last_one() -> None:
    stream = ChatStream("m", request={"n": 2}, include_usage=True)
    written = stream.text("b", 1) + stream.text("a") + stream.finish(index=1)
    assert not stream.is_ended
    written += stream.text("c") + stream.finish("length", usage=USAGE)
    assert written.endswith(DONE)
    assert [(choice["message"]["content"], choice["finish_reason"]) for choice in stream.to_response()["choices"]] == [
        ("ac", "length"),
        ("b", "stop"),
    ]
    assert lint(written, request={"n": 2, "stream": True, "stream_options": {"include_usage": True}}).findings == ()


def test_a_tool_call_is_written_whole_or_in_pieces() -> None:
    stream = ChatStream("m")
    whole = chunks(stream.tool_call("f", {"a": 1}, id="call_1"))
    assert [chunk["choices"][0]["delta"].get("tool_calls") for chunk in whole[1:]] == [
        [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"a":1}'}}],
    ]
    stream.tool_call("g")
    stream.tool_arguments('{"b":')
    stream.tool_arguments("2}")
    stream.tool_call("no_arguments")
    stream.tool_call("custom", "free text", custom=True)
    assert b'"finish_reason":"tool_calls"' in stream.finish()
    calls = stream.to_response()["choices"][0]["message"]["tool_calls"]
    assert [call.get("function", call.get("custom")) for call in calls] == [
        {"name": "f", "arguments": '{"a":1}'},
        {"name": "g", "arguments": '{"b":2}'},
        {"name": "no_arguments", "arguments": "{}"},
        {"name": "custom", "input": "free text"},
    ]
    assert len({call["id"] for call in calls}) == 4


@table(
    "request_body, reason, expected",
    [
        (None, None, "tool_calls"),
        (None, "stop", "tool_calls"),  # what engines report for a call that was found in the text
        (None, "end_turn", "tool_calls"),
        (None, "length", "length"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "stop", "stop"),
        ({"functions": [{"name": "f"}]}, None, "function_call"),
    ],
)
def test_the_finish_reason_after_a_call(request_body: dict[str, Any] | None, reason: str | None, expected: str) -> None:
    stream = ChatStream("m", request=request_body)
    stream.tool_call("f", "{}")
    stream.finish(reason)
    assert stream.to_response()["choices"][0]["finish_reason"] == expected


def test_a_call_without_arguments_in_a_truncated_answer_stays_open() -> None:
    stream = ChatStream("m")
    written = stream.tool_call("f") + stream.finish("length")
    assert b"{}" not in written.replace(b'"delta":{}', b"")


def test_the_fields_of_reasoning_can_be_chosen() -> None:
    stream = ChatStream("m", reasoning_fields=["reasoning", "reasoning_content"])
    assert chunks(stream.reasoning("why"))[1]["choices"][0]["delta"] == {"reasoning": "why", "reasoning_content": "why"}
    assert chunks(ChatStream("m", reasoning_fields="reasoning").reasoning("why"))[1]["choices"][0]["delta"] == {
        "reasoning": "why"
    }


def test_log_probabilities_come_with_their_text() -> None:
    entry = {"token": "Hi", "logprob": -0.1}
    chat = ChatStream("m")
    logprobs = chunks(chat.text("Hi", logprobs=[entry]))[1]["choices"][0]["logprobs"]
    assert logprobs["content"] == [entry | {"bytes": [72, 105], "top_logprobs": []}]
    completions = CompletionsStream("m")
    written = completions.text("Hi", logprobs=[entry]) + completions.text(" you", logprobs=[entry | {"token": " you"}])
    assert [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks(written)] == [[0], [2]]
    completions.finish()
    assert completions.to_response()["choices"][0]["logprobs"]["tokens"] == ["Hi", " you"]


def test_halves_of_a_character_do_not_raise() -> None:
    stream = ChatStream("m")
    stream.text("x")
    assert chunks(stream.text("\ud83d"))[0]["choices"][0]["delta"]["content"] == "\ufffd"


def test_a_response_repeats_its_request() -> None:
    request = {"model": "asked", "input": "x", "temperature": 0.5, "reasoning": {"effort": "low", "summary": "auto"}}
    stream = ResponsesStream("m", request=request)
    written = stream.reasoning("why") + stream.text("so") + stream.finish(usage=USAGE)
    assert b"response.reasoning_summary_text.delta" in written
    reply = stream.to_response()
    assert (reply["temperature"], reply["status"]) == (0.5, "completed")
    cut = ResponsesStream("m")
    cut.text("so")
    cut.finish("max_tokens", usage=USAGE)
    assert (cut.to_response()["status"], cut.to_response()["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )


def test_a_message_starts_with_the_prompt_tokens() -> None:
    request = {"thinking": {"type": "enabled"}, "stop_sequences": ["END"]}
    stream = MessagesStream("m", request=request, prompt_tokens=12)
    start = chunks(stream.reasoning("why"))[0]
    assert start["message"]["usage"]["input_tokens"] == 12
    stream.text("so")
    stream.finish("stop_sequence", usage={"input_tokens": 12, "output_tokens": 2}, stop_sequence="END")
    reply = stream.to_response()
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "END")
    assert [block["type"] for block in reply["content"]] == ["thinking", "text"]
    without_thinking = MessagesStream("m", request={})
    assert without_thinking.reasoning("why") == b""


@table("endpoint, end", [("chat", DONE), ("completions", DONE), ("responses", b"\n\n"), ("messages", b"\n\n")])
def test_a_failure_ends_the_stream(endpoint: EndpointName, end: bytes) -> None:
    for has_text in (True, False):
        stream = WRITERS[endpoint](None)
        written = (stream.text("x") if has_text else b"") + stream.fail(
            "out of memory", code="oom", type="server_error"
        )
        assert stream.is_ended
        assert written.endswith(end)
        assert b"out of memory" in written
        assert lint(written, endpoint).findings == ()
        assert stream.to_response()["error"]["message"] == "out of memory"
        assert stream.fail("again") == stream.keep_alive() == b""


def test_a_keep_alive_is_allowed_at_any_time() -> None:
    for endpoint, make in WRITERS.items():
        stream = make(None)
        written = stream.keep_alive() + stream.text("x") + stream.keep_alive() + stream.finish(usage=USAGE)
        assert written.startswith(b":")
        assert lint(written, endpoint).findings == ()  # type: ignore[arg-type]  # the names of endpoints


def test_the_headers_name_the_type_and_forbid_buffering() -> None:
    assert STREAM_HEADERS["Content-Type"].startswith("text/event-stream")
    assert STREAM_HEADERS["X-Accel-Buffering"] == "no"
    with pytest.raises(TypeError):
        STREAM_HEADERS["x"] = "y"  # type: ignore[index]  # that is the test


# Wrong use.


def _finished() -> ChatStream:
    stream = ChatStream("m")
    stream.finish()
    return stream


def _half_finished() -> ChatStream:
    stream = ChatStream("m", n=2)
    stream.finish(index=0)
    return stream


WRONG: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: untyped.ChatStream(""), TypeError, "model must be the name of the model; got ''"),
    (lambda: untyped.ChatStream("m", n=0), ValueError, "n must be a number from 1 to 128; got 0"),
    (lambda: untyped.ChatStream("m", request="{}"), TypeError, "request must be a dict, or the body as bytes; got str"),
    (lambda: untyped.ChatStream("m").text(b"x"), TypeError, "text takes text as a str, not bytes"),
    (lambda: untyped.ChatStream("m").text(None), TypeError, "text takes text as a str, not NoneType"),
    (lambda: untyped.ChatStream("m").text("x", 1), ValueError, "index 1 is out of range: the stream has n=1 choices"),
    (lambda: untyped.ChatStream("m").tool_call(""), TypeError, "name must be the name of the tool; got ''"),
    (lambda: untyped.ChatStream("m").tool_call("f", 5), TypeError, "arguments must be JSON text or a dict; got 5"),
    (lambda: untyped.ChatStream("m").tool_arguments(5), TypeError, "tool_arguments takes text as a str, not int"),
    (
        lambda: untyped.ChatStream("m").tool_arguments("{}"),
        EventOrderError,
        "choice 0 has no tool call; legal now: text,",
    ),
    (lambda: _finished().text("x"), EventOrderError, "text() while the stream has ended; legal now: a new ChatStream"),
    (lambda: _half_finished().text("x"), EventOrderError, "choice 0 is finished; legal now: text, .*, of choice 1"),
    (
        lambda: untyped.ChatStream("m").finish("tool_calls"),
        ValueError,
        "the choice has no tool call; call tool_call() first",
    ),
    (lambda: untyped.ChatStream("m").finish("abort"), ValueError, "unknown finish reason 'abort'; use stop, length"),
    (lambda: untyped.ChatStream("m").finish(5), TypeError, "reason must be stop, length"),
    (lambda: untyped.ChatStream("m").finish(usage={"tokens": 1}), ValueError, "lacks counts; write"),
    (lambda: untyped.ChatStream("m").finish(usage=3), TypeError, "usage must be a dict of token counts; got 3"),
    (lambda: untyped.ChatStream("m", include_usage=True).finish(), ValueError, "the client needs the token counts"),
    (lambda: untyped.ResponsesStream("m").finish(), ValueError, "the client needs the token counts"),
    (lambda: untyped.ChatStream("m").to_response(), EventOrderError, "to_response() while the answer is not finished"),
    (lambda: untyped.ChatStream("m").__enter__(), TypeError, "with needs send="),
    (lambda: untyped.ChatStream("m").complete(b"x"), TypeError, "complete takes an iterable of bytes, not bytes"),
    (lambda: untyped.ChatStream("m").acomplete([]), TypeError, "acomplete takes an async iterable of bytes, not list"),
]


@table("use, kind, message", WRONG)
def test_wrong_use_raises_and_says_what_to_do(use: Callable[[], object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message.replace("(", r"\(").replace(")", r"\)")):
        use()


def test_two_calls_with_one_id_are_refused() -> None:
    stream = ChatStream("m")
    stream.tool_call("f", id="a")
    with pytest.raises(ValueError, match="already has a tool call with the id 'a'"):
        stream.tool_call("g", id="a")


def test_a_refused_call_changes_nothing() -> None:
    stream = ChatStream("m")
    with pytest.raises(ValueError, match="tool_calls"):
        stream.finish("tool_calls")
    assert lint(stream.text("x") + stream.finish()).findings == ()


# The end of a stream, whatever happens.


def _write_all(stream: ChatStream, *, error: Exception | None = None) -> Iterator[bytes]:
    yield stream.text("x")
    yield stream.text("")
    if error is not None:
        raise error


async def _write_all_async(stream: ChatStream, *, error: Exception | None = None) -> AsyncIterator[bytes]:
    for data in _write_all(stream, error=error):
        yield data


def test_complete_ends_what_a_generator_leaves_open(caplog: pytest.LogCaptureFixture) -> None:
    stream = ChatStream("m")
    written = list(stream.complete(_write_all(stream)))
    assert b"" not in written
    assert lint(b"".join(written)).findings == ()
    assert stream.to_response()["choices"][0]["finish_reason"] == "stop"

    failing = ChatStream("m")
    cut = b"".join(failing.complete(_write_all(failing, error=RuntimeError("secret"))))
    assert lint(cut).findings == ()
    assert b"The server failed while it was answering" in cut
    assert b"secret" not in cut
    assert "secret" in caplog.text

    async def collect() -> list[bytes]:
        stream = ChatStream("m")
        return [data async for data in stream.acomplete(_write_all_async(stream, error=RuntimeError("secret")))]

    assert lint(b"".join(asyncio.run(collect()))).findings == ()


def test_complete_raises_an_exception_before_the_first_bytes() -> None:
    def fail() -> Iterator[bytes]:
        raise RuntimeError("no model")
        yield b""

    with pytest.raises(RuntimeError, match="no model"):
        list(ChatStream("m").complete(fail()))


def test_complete_closes_a_generator_that_is_not_read_to_its_end() -> None:
    is_closed = False

    def answer(stream: ChatStream) -> Iterator[bytes]:
        nonlocal is_closed
        try:
            while True:
                yield stream.text("x")
        finally:
            is_closed = True

    stream = ChatStream("m")
    chunks = stream.complete(answer(stream))
    next(chunks)
    chunks.close()
    assert is_closed


@table("endpoint", list(WRITERS))
def test_a_with_block_sends_the_end(endpoint: EndpointName) -> None:
    for error in (None, RuntimeError("secret")):
        sent: list[bytes] = []
        try:
            with _sending(endpoint, sent.append) as stream:
                sent.append(stream.text("x"))
                if error is not None:
                    raise error
                if endpoint in ("responses", "messages"):
                    sent.append(stream.finish(usage=USAGE))
        except RuntimeError as raised:
            assert raised is error  # noqa: PT017 - also without an exception
        assert lint(b"".join(sent), endpoint).findings == ()
        assert (b"server failed" in sent[-1]) is (error is not None)
        assert b"secret" not in b"".join(sent)


def _sending(endpoint: EndpointName, send: Callable[[bytes], None]) -> AnyStream:
    kinds: dict[str, type[AnyStream]] = {
        "chat": ChatStream,
        "completions": CompletionsStream,
        "responses": ResponsesStream,
        "messages": MessagesStream,
    }
    return kinds[endpoint]("m", send=send)


def test_an_async_with_block_sends_the_end() -> None:
    sent: list[bytes] = []

    async def send(data: bytes) -> None:
        await asyncio.sleep(0)
        sent.append(data)

    async def answer(error: Exception | None) -> None:
        async with ChatStream("m", send=send) as stream:
            await send(stream.text("x"))
            if error is not None:
                raise error

    asyncio.run(answer(None))
    assert lint(b"".join(sent)).findings == ()
    sent.clear()
    with pytest.raises(RuntimeError):
        asyncio.run(answer(RuntimeError("secret")))
    assert lint(b"".join(sent)).findings == ()
    assert b'"error"' in sent[-1]


def test_a_with_block_without_usage_ends_with_an_error_and_raises() -> None:
    sent: list[bytes] = []
    with pytest.raises(ValueError, match="needs the token counts"), ResponsesStream("m", send=sent.append) as stream:
        sent.append(stream.text("x"))
    assert lint(b"".join(sent), "responses").findings == ()
    assert b"response.failed" in sent[-1]


def test_nothing_is_sent_after_a_cancellation_or_the_end() -> None:
    sent: list[bytes] = []

    async def answer() -> None:
        async with ChatStream("m", send=sent.append):
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(answer())
    with ChatStream("m", send=sent.append) as stream:
        stream.finish()
    assert sent == []


def test_an_asynchronous_send_needs_async_with() -> None:
    async def send(data: bytes) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match="use async with"), ChatStream("m", send=send):
        pass
