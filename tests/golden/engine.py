"""The stream engine under test, behind two functions. Nothing else of the golden tests knows it."""

from collections.abc import Callable, Iterable
from typing import Any

from welldone.core.answer_format import AnswerFormat
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.request_facts import RepairOptions, RequestFacts, read_request_facts
from welldone.dialects.gemini.writer import GeminiFormat
from welldone.dialects.messages.writer import MessagesFormat
from welldone.dialects.ollama.writer import OllamaFormat
from welldone.dialects.registry import SAME_DIALECT_ENDPOINTS, passthrough_repairer_for
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline
from welldone.stream.stream_template import TemplatedStream, TemplateSlot

_HEAD = Envelope("chatcmpl-golden", 1700000000, "m")
_DIALECTS: dict[str, Callable[[], AnswerFormat]] = {
    "responses": lambda: ResponsesFormat({}, clock=lambda: 1700000001),
    "messages": MessagesFormat,
    "gemini": lambda: GeminiFormat(includes_thoughts=True),
    "ollama": lambda: OllamaFormat(is_chat=True, created_at="2026-01-01T00:00:00Z"),
}
CLIENTS = ("chat", *_DIALECTS)


def clients_of(upstream: str) -> tuple[str, ...]:
    """The dialects of clients that can get an answer of an upstream's dialect."""
    return ("completions",) if upstream == "completions" else CLIENTS


def answer(
    upstream: str,
    client: str,
    pieces: Iterable[bytes],
    request: dict[str, Any] | None = None,
    *,
    is_stream: bool = True,
) -> bytes:
    """What a client of one dialect gets of an upstream of another: a stream of a stream, a reply of a reply."""
    endpoint = Endpoint(upstream)
    if upstream == client and endpoint in SAME_DIALECT_ENDPOINTS:
        options = {"clock": lambda: 1700000001} if endpoint is Endpoint.RESPONSES else {}
        passing = passthrough_repairer_for(endpoint, fallback=_HEAD, request=request, is_stream=is_stream, **options)
        if not is_stream:
            passing.feed_reply(b"".join(pieces))
            passing.close()
            return passing.body()
        return b"".join([*(passing.feed(piece) for piece in pieces), passing.close()])
    to_chat = endpoint if endpoint in (Endpoint.CHAT, Endpoint.COMPLETIONS) else Endpoint.CHAT
    is_read = request is not None and endpoint is to_chat
    facts = read_request_facts(request) if request is not None and is_read else RequestFacts(include_usage=True)
    make = StreamPipeline if is_stream else BufferedPipeline
    pipeline = make(
        to_chat,
        fallback=_HEAD,
        facts=facts,
        dialect=_DIALECTS[client]() if client in _DIALECTS else None,
        options=RepairOptions(upstream_dialect=None if endpoint is to_chat else endpoint),
    )
    if isinstance(pipeline, BufferedPipeline):
        pipeline.feed_reply(b"".join(pieces))
        pipeline.close()
        return pipeline.body()
    return b"".join([*(pipeline.feed(piece) for piece in pieces), pipeline.close()])


def like_streams(streams: Iterable[bytes], request: dict[str, Any]) -> Iterable[bytes]:
    """What a client of chat gets of like streams of one server, whose form is learnt from the first ones."""
    slot, facts = TemplateSlot(), read_request_facts(request)

    def make(envelope: Envelope = _HEAD) -> StreamPipeline:
        return StreamPipeline(Endpoint.CHAT, fallback=envelope, facts=facts)

    for stream in streams:
        templated = slot.begin(make)
        if templated is None:
            slot.learn(stream, make)
            yield answer("chat", "chat", [stream], request)
        else:
            yield _from_template(templated, [frame + b"\n\n" for frame in stream.split(b"\n\n")[:-1]])


def _from_template(stream: TemplatedStream, frames: list[bytes]) -> bytes:
    sent = b""
    for position, frame in enumerate(frames):
        written = stream.feed(frame)
        if written is None:
            pipeline = stream.restore()
            return b"".join([sent, *(pipeline.feed(rest) for rest in frames[position:]), pipeline.close()])
        sent += written
    end = stream.close()
    return sent + (stream.restore().close() if end is None else end)
