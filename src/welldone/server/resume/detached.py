"""The request and the response of a generation that outlives its connection: it writes to a `ResumableStream`."""

from collections.abc import Callable, Mapping, Sequence

from welldone.http.messages import HttpRequest, StreamingResponse
from welldone.server.resume.events import StreamState
from welldone.server.resume.streams import ResumableStream, StreamHead


class DetachedResponse(StreamingResponse):
    """A response without a connection."""

    def __init__(self, stream: ResumableStream) -> None:  # the base class needs a connection
        self._events = stream
        self.write_framed: Callable[[bytes], None] = stream.write

    def chunk_framing(self, size: int) -> tuple[bytes, bytes]:
        """Return no framing: each reader's connection adds its own."""
        return b"", b""

    def on_backpressure(self, callback: Callable[[], object]) -> None:
        """Set the callback for a full stream."""
        self._events.on_backpressure = callback

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Ignore it: the generation goes on."""

    @property
    def has_backpressure(self) -> bool:
        """Whether the stream is full of events that nobody has received."""
        return self._events.has_backpressure

    @property
    def is_open(self) -> bool:
        """Whether the stream has not ended."""
        return self._events.state is StreamState.RUNNING

    def write(self, data: bytes) -> None:
        """Add output to the stream."""
        self._events.write(data)

    async def drain(self) -> None:
        """Wait until a reader has received enough."""
        await self._events.drain()

    async def end(self, trailers: Mapping[str, str] | None = None, *, last: bytes = b"") -> None:
        """End the stream after the `last` data."""
        self._events.write(last)
        self._events.trailers = trailers or {}
        self._events.end(StreamState.COMPLETE)

    def abort(self) -> None:
        """End the stream without its last events."""
        self._events.end(StreamState.CUT)


class DetachedRequest(HttpRequest):
    """A request whose response is written to a stream."""

    def __init__(self, request: HttpRequest, stream: ResumableStream) -> None:  # the base class needs a connection
        self.method: str = request.method
        self.path: str = request.path
        self.query: str = request.query
        self.headers: Mapping[str, str] = request.headers
        self.stream: StreamingResponse | None = None
        self.on_body_data: Callable[[int], object] | None = None
        self.events = stream
        """Where the response is written."""
        self._request = request

    def header_values(self, name: str) -> list[str]:
        """Return all values of a header."""
        return self._request.header_values(name)

    async def start_stream(
        self,
        headers: Mapping[str, str],
        *,
        status: int = 200,
        trailers: Sequence[str] = (),
        first: bytes = b"",
        holds_head: bool = False,
    ) -> StreamingResponse:
        """Open the stream; its readers send the head."""
        response = DetachedResponse(self.events)
        self.stream = response
        if not self.events.opened.done():
            self.events.opened.set_result(StreamHead(headers, tuple(trailers)))
        response.write(first)
        return response
