"""Readers for client authors: the events of a stream, and the whole reply that they form.

The bytes are repaired before they are read, so the events of every server come in a legal order.
"""

from collections.abc import AsyncIterable, AsyncIterator, Generator, Iterable, Iterator
from typing import Any

import msgspec

from welldone.core import collect as folding
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Event, Json
from welldone.core.fields import openai_error_object
from welldone.core.repair_log import RepairResult
from welldone.core.request_facts import RequestFacts
from welldone.core.text_filters import TextMode, ThinkMode
from welldone.dialects.chat.writer import ChunkFormat
from welldone.dialects.registry import SAME_DIALECT_ENDPOINTS
from welldone.library.arguments import EndpointName, RequestBody, parse_endpoint, require_bytes
from welldone.library.iteration import require_async_iterable, require_iterable
from welldone.library.repairing import BodyStart, make_checked_pipeline
from welldone.stream.pipeline import StreamPipeline


class _ParsedAnswer:
    """What is known of an answer while its events are read."""

    def __init__(self, endpoint: Endpoint, pipeline: StreamPipeline) -> None:
        self._endpoint = endpoint
        self._pipeline = pipeline

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint of the stream."""
        return self._endpoint

    @property
    def envelope(self) -> Envelope | None:
        """Id, time and model of the answer; None before its first chunk."""
        return self._pipeline.parts[0].envelope

    @property
    def result(self) -> RepairResult:
        """Usage, failure and repairs (one entry per rule), so far or at the end."""
        return self._pipeline.result


class EventParser(_ParsedAnswer):
    """Reads one stream without I/O: bytes in, events out. For the parameters see `StreamRepairer`."""

    def __init__(
        self,
        endpoint: EndpointName = "chat",
        *,
        request: RequestBody = None,
        think: ThinkMode = "no",
        text: TextMode = "delta",
    ) -> None:
        parsed_endpoint = parse_readable_endpoint(endpoint)
        pipeline = make_checked_pipeline(endpoint, request, think=think, text=text, is_stream=True)
        assert isinstance(pipeline, StreamPipeline)
        super().__init__(parsed_endpoint, pipeline)
        self._start: BodyStart | None = BodyStart()  # None once the body is known to be a stream
        self._is_closed = False

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that received bytes complete. After `close` there are none."""
        data = require_bytes(data, "feed")
        if self._is_closed:
            return []
        if self._start is None:
            return self._pipeline.read(data)
        stream = self._start.add(data)
        if stream is None:
            return []
        self._start = None
        return self._pipeline.read(stream)

    def close(self) -> list[Event]:
        """Return the last events, at the end of the received bytes. Later calls return none."""
        if self._is_closed:
            return []
        self._is_closed = True
        held, is_reply = (b"", False) if self._start is None else self._start.close()
        steps = self._pipeline.read_reply_in_steps(held) if is_reply else [self._pipeline.read(held)]
        events = [event for step in steps for event in step]
        return events + [event for _, step in self._pipeline.read_end_by_frame() for event in step]


class EventStream(_ParsedAnswer, Iterator[Event]):
    """The events of an iterable of bytes. `envelope` and `result` are complete at its end."""

    def __init__(self, chunks: Iterable[bytes], parser: EventParser) -> None:
        super().__init__(parser._endpoint, parser._pipeline)
        self._events = _parse(chunks, parser)

    def __next__(self) -> Event:
        return next(self._events)


class AsyncEventStream(_ParsedAnswer, AsyncIterator[Event]):
    """The events of an asynchronous iterable of bytes. `envelope` and `result` are complete at its end."""

    def __init__(self, chunks: AsyncIterable[bytes], parser: EventParser) -> None:
        super().__init__(parser._endpoint, parser._pipeline)
        self._events = _parse_async(chunks, parser)

    async def __anext__(self) -> Event:
        return await anext(self._events)


def parse(
    data: bytes | Iterable[bytes],
    endpoint: EndpointName = "chat",
    *,
    request: RequestBody = None,
    think: ThinkMode = "no",
    text: TextMode = "delta",
) -> EventStream:
    """Iterate over the events of a stream: its bytes, or an iterable of them. For the parameters see `StreamRepairer`.

    The events are legal: each text is one piece of one choice, tool calls are numbered and have an id and a name, and
    an incomplete answer ends with a `Failure`. A reply that was not streamed gives the same events. Exceptions of the
    iterable are raised.

    Raises:
        ValueError: the endpoint is `responses` or `messages`, which have events of their own.
    """
    chunks: Iterable[bytes] = [bytes(data)] if isinstance(data, bytes | bytearray | memoryview) else data
    require_iterable(chunks, "parse")
    return EventStream(chunks, EventParser(endpoint, request=request, think=think, text=text))


def aparse(
    data: AsyncIterable[bytes],
    endpoint: EndpointName = "chat",
    *,
    request: RequestBody = None,
    think: ThinkMode = "no",
    text: TextMode = "delta",
) -> AsyncEventStream:
    """Do the same as `parse` with an asynchronous iterable."""
    require_async_iterable(data, "aparse")
    return AsyncEventStream(data, EventParser(endpoint, request=request, think=think, text=text))


def collect(events: Iterable[Event], endpoint: EndpointName = "chat") -> dict[str, Any]:
    """Return the whole reply that the events form, as a server sends it without `stream`; the error if it failed.

    From the result of `parse`, the reply has id, time, model, usage and the endpoint of that stream.
    """
    if isinstance(events, str | bytes) or not isinstance(events, Iterable):
        raise TypeError(f"collect takes events; got {type(events).__name__}. Write collect(parse(data))")
    return _reply_object(folding.collect(events), events, endpoint)


async def acollect(events: AsyncIterable[Event], endpoint: EndpointName = "chat") -> dict[str, Any]:
    """Do the same as `collect` with the result of `aparse`."""
    require_async_iterable(events, "acollect")
    return _reply_object(folding.collect([event async for event in events]), events, endpoint)


def parse_readable_endpoint(name: str) -> Endpoint:
    """Return the endpoint with this name, whose streams can be read as events.

    Raises:
        ValueError: there is none, or it has events of its own.
    """
    endpoint = parse_endpoint(name)
    if endpoint in SAME_DIALECT_ENDPOINTS:
        raise ValueError(
            f"streams of {name} have events of their own; use the client library of that API, and repair() before it"
        )
    return endpoint


def _parse(chunks: Iterable[bytes], parser: EventParser) -> Generator[Event, None, None]:
    for data in chunks:
        yield from parser.feed(data)
    yield from parser.close()


async def _parse_async(chunks: AsyncIterable[bytes], parser: EventParser) -> AsyncIterator[Event]:
    async for data in chunks:
        for event in parser.feed(data):
            yield event
    for event in parser.close():
        yield event


def _reply_object(reply: folding.CollectedReply, source: object, endpoint_name: EndpointName) -> Json:
    """Return the reply; a parsed stream as the `source` of its events has id, time, model, usage and endpoint."""
    envelope, endpoint = None, None
    if isinstance(source, _ParsedAnswer):
        reply.usage = reply.usage or source.result.usage
        envelope, endpoint = source.envelope, source.endpoint
    endpoint = endpoint or parse_readable_endpoint(endpoint_name)
    if reply.failure is not None:
        return openai_error_object(reply.failure)
    encoded = ChunkFormat(RequestFacts(), endpoint).encode_reply(envelope or Envelope("", 0, ""), reply)
    decoded: Json = msgspec.json.decode(encoded)
    if envelope is None:
        decoded = {name: value for name, value in decoded.items() if name not in ("id", "created", "model")}
    return decoded
