"""Readers for client authors: events of right and wrong streams, and the replies that they form."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import welldone
from tests.laws.strategies import any_bytes, damaged
from tests.table import table
from welldone import (
    RULES,
    ChatStream,
    ChoiceStart,
    CompletionsStream,
    EndpointName,
    Event,
    EventParser,
    Failure,
    Finish,
    Reasoning,
    Text,
    ToolArguments,
    ToolCall,
    Usage,
    acollect,
    aparse,
    collect,
    parse,
)
from welldone.core.envelope import Endpoint
from welldone.rules.rule_pages import RuleExample, read_examples, read_page

ENDPOINTS: dict[str, EndpointName] = {"chat": "chat", "completions": "completions"}
untyped: Any = welldone
WRONG = (
    b'data:{"id":"a","model":"m","created":1,"choices":[{"delta":{"content":"Hi","role":"assistant"}}]}\r\n\r\n'
    b'data:{"id":"a","model":"m","created":1,"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":'
    b'{"a":1}}}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}\r\n\r\n'
)
REPLY = (
    b'{"id":"a","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"Hi","reasoning_content":"why"},"finish_reason":"stop"}]}'
)


async def asynchronous(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """The same chunks, asynchronously."""
    for chunk in chunks:
        yield chunk


def test_a_wrong_stream_gives_legal_events() -> None:
    stream = parse(WRONG)
    events = list(stream)
    call = next(event for event in events if isinstance(event, ToolCall))
    assert call.id
    assert events == [
        ChoiceStart(0),
        Text(0, "Hi"),
        ToolCall(0, 0, call.id, "f"),
        ToolArguments(0, 0, '{"a":1}'),
        Finish(0, "tool_calls"),
        Usage(1, 2, 3, {}),
    ]
    assert stream.envelope is not None
    assert (stream.envelope.id, stream.envelope.model) == ("a", "m")
    assert stream.result.usage == Usage(1, 2, 3, {})
    assert "sse-lf-only" in [entry.rule for entry in stream.result.repairs]


def test_a_whole_reply_gives_the_same_events_as_a_stream() -> None:
    expected = [ChoiceStart(0), Reasoning(0, "why"), Text(0, "Hi"), Finish(0, "stop")]
    assert list(parse(REPLY)) == list(parse([REPLY[:9], REPLY[9:]])) == expected


def test_an_incomplete_answer_ends_with_a_failure() -> None:
    *_, last = parse(WRONG[:130])
    assert isinstance(last, Failure)
    assert "error" in collect(parse(WRONG[:130]))


def test_collect_gives_the_reply_with_its_envelope_and_usage() -> None:
    reply = collect(parse(WRONG, request={"model": "m"}))
    message = reply["choices"][0].pop("message")
    assert (message["content"], message["tool_calls"][0]["function"]) == ("Hi", {"name": "f", "arguments": '{"a":1}'})
    assert reply["usage"]["total_tokens"] == 3  # also if the request did not ask for it
    assert (reply["id"], reply["model"], reply["created"], reply["object"]) == ("a", "m", 1, "chat.completion")


def test_collect_takes_plain_events_without_an_envelope() -> None:
    assert collect([ChoiceStart(0), Text(0, "Hi"), Finish(0, "stop")], "completions") == {
        "object": "text_completion",
        "choices": [{"index": 0, "text": "Hi", "logprobs": None, "finish_reason": "stop"}],
    }
    assert collect([])["choices"] == []


def test_the_asynchronous_functions_do_the_same() -> None:
    async def read() -> None:
        stream = aparse(asynchronous([WRONG[:50], WRONG[50:]]))
        events = [event async for event in stream]
        assert [type(event) for event in events] == [type(event) for event in parse(WRONG)]
        assert stream.envelope == parse_to_end(WRONG).envelope
        assert (stream.endpoint, stream.result.failure) == ("chat", None)
        assert (await acollect(aparse(asynchronous([REPLY])))) == collect(parse(REPLY))
        assert "id" not in await acollect(plain_events())

    async def plain_events() -> AsyncIterator[Event]:
        for event in parse(REPLY):
            yield event

    asyncio.run(read())


def parse_to_end(data: bytes) -> Any:  # noqa: ANN401 - the stream
    """The stream after its end."""
    stream = parse(data)
    list(stream)
    return stream


def test_the_parser_without_io_can_be_closed_twice() -> None:
    parser = EventParser("completions")
    stream = CompletionsStream("m")
    events = parser.feed(stream.text("x") + stream.finish())
    assert events + parser.close() == [ChoiceStart(0), Text(0, "x"), Finish(0, "stop")]
    assert parser.close() == parser.feed(b"data: x\n\n") == []


def test_exceptions_of_the_source_are_raised() -> None:
    def broken() -> Iterable[bytes]:
        yield ChatStream("m").text("x")
        raise ConnectionError

    events = parse(broken())
    assert [next(events), next(events)] == [ChoiceStart(0), Text(0, "x")]
    with pytest.raises(ConnectionError):
        next(events)


@table(
    "use, kind, message",
    [
        (
            lambda: untyped.parse(b"", "messages"),
            ValueError,
            "streams of messages have events of their own; use the client",
        ),
        (lambda: untyped.parse("data: x"), TypeError, "parse takes an iterable of bytes, not str"),
        (lambda: list(untyped.parse(["x"])), TypeError, "feed takes bytes, not str"),
        (lambda: untyped.aparse([b"x"]), TypeError, "aparse takes an async iterable of bytes, not list"),
        (
            lambda: untyped.collect(b"data"),
            TypeError,
            r"collect takes events; got bytes. Write collect\(parse\(data\)\)",
        ),
        (lambda: untyped.collect([], "responses"), ValueError, "streams of responses have events of their own"),
    ],
)
def test_wrong_use_raises_and_says_what_to_do(use: Callable[[], object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        use()


def wrong_examples() -> list[RuleExample]:
    """Wrong chat and completions streams and replies, of all rule pages."""
    examples = [example for rule in RULES for example in read_examples(rule, read_page(rule))]
    return [example for example in examples if not example.is_correct and example.trace.endpoint in ENDPOINTS]


@table("example", wrong_examples, ids=lambda example: example.name)
def test_every_wrong_server_of_the_catalogue_can_be_read(example: RuleExample) -> None:
    stream = parse(example.trace.body, ENDPOINTS[example.trace.endpoint], request=example.trace.request)
    events = list(stream)
    assert isinstance(events[-1], Failure) or any(isinstance(event, Finish) for event in events)
    assert (events[-1] == stream.result.failure) is isinstance(events[-1], Failure)


@given(stream=st.one_of(damaged(), any_bytes.map(lambda data: (Endpoint.CHAT, data))))
def test_any_bytes_can_be_read(stream: tuple[Endpoint, bytes]) -> None:
    endpoint, data = stream
    events = list(parse(data, endpoint.value))
    assert [event for event in events[:-1] if isinstance(event, Failure)] == []
    assert isinstance(collect(parse(data, endpoint.value)), dict)
    is_complete = isinstance(events[-1], Failure) or any(isinstance(event, Finish) for event in events)
    assert is_complete
