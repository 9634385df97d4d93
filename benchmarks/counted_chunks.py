"""Chunk workloads of `instructions.py`, which runs this program under callgrind.

The frames are fixed bytes, and not what our writers send: a change to a writer must not change the input.
"""

import gc
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from welldone.core.answer_format import AnswerFormat
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.request_facts import RepairOptions
from welldone.dialects.messages.writer import MessagesFormat
from welldone.dialects.ollama.writer import OllamaFormat
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.library.repairing import StreamRepairer
from welldone.stream.pipeline import StreamPipeline

from callgrind import mark  # isort: skip  # same folder: a script's own folder is on the path

CHUNKS = 240
"""Chunks of the short stream; the long one has twice as many. A multiple of the number of texts."""
_WARM_UP_CHUNKS = 48
TEXTS = (" there", " are", " three", " colours", ":", " red", ",", " green", " and", " blue", ".\\n", " na\u00efve")

Feed = Callable[[bytes], object]
Frames = Callable[[int], Iterator[bytes]]

_CHAT_CHUNK = (
    'data: {"choices":[{"finish_reason":null,"index":0,"delta":%s}],"created":%d,"id":"chatcmpl-tKuwrrGl4hhXNZgH",'
    '"model":"smollm2","system_fingerprint":"b0-b21e4de7","object":"chat.completion.chunk"%s}\n\n'
)


def _chat(count: int, delta: str, *, rest: str = "", call: str = "", per_time: int = 0) -> Iterator[bytes]:
    """Chunks as llama.cpp sends them. `per_time`: chunks with the same `created`; 0: all."""
    for opening in ('{"role":"assistant","content":null}', *([call] if call else [])):
        yield (_CHAT_CHUNK % (opening, 1794706576, rest.replace("@", "0"))).encode()
    for number in range(count):
        text = TEXTS[number % len(TEXTS)]
        created = 1794706576 + (number // per_time if per_time else 0)
        yield (_CHAT_CHUNK % (delta % text, created, rest.replace("@", str(number)))).encode()


def chat_texts(count: int) -> Iterator[bytes]:
    """Text chunks."""
    return _chat(count, '{"content":"%s"}')


def chat_texts_with_times(count: int) -> Iterator[bytes]:
    """Text chunks whose `created` is the time of each, as llama.cpp sends it."""
    return _chat(count, '{"content":"%s"}', per_time=48)


def chat_texts_with_usage(count: int) -> Iterator[bytes]:
    """Text chunks with the usage so far and a member that is unknown."""
    usage = '{"prompt_tokens":9,"completion_tokens":@,"total_tokens":9,"queue_time":0.1}'
    return _chat(count, '{"content":"%s"}', rest=f',"provider":"x","usage":{usage}')


def chat_arguments(count: int) -> Iterator[bytes]:
    """Arguments of a tool call."""
    function = '{"name":"f","arguments":"{\\"a\\":\\""}'
    call = f'{{"tool_calls":[{{"index":0,"id":"call_1","type":"function","function":{function}}}]}}'
    return _chat(count, '{"tool_calls":[{"index":0,"function":{"arguments":"%s"}}]}', call=call)


def completions_texts(count: int) -> Iterator[bytes]:
    """Text chunks of completions."""
    frame = (
        'data: {"id":"cmpl-1","object":"text_completion","created":1794706576,"model":"smollm2",'
        '"choices":[{"index":0,"text":"%s","logprobs":null,"finish_reason":null}]}\n\n'
    )
    return ((frame % TEXTS[number % len(TEXTS)]).encode() for number in range(count))


def _event(event: dict[str, Any]) -> bytes:
    written = json.dumps(event, separators=(",", ":"), ensure_ascii=False)
    return f"event: {event['type']}\ndata: {written}\n\n".encode()


def responses_texts(count: int) -> Iterator[bytes]:
    """Text deltas of Responses."""
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "in_progress"}
    item = {"id": "msg_1", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    begun: tuple[dict[str, Any], ...] = (
        {"type": "response.created", "response": {**response, "output": []}},
        {"type": "response.in_progress", "response": {**response, "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **where, "part": part},
    )
    for number, event in enumerate(begun):
        yield _event({**event, "sequence_number": number})
    for number in range(count):
        text = TEXTS[number % len(TEXTS)].replace("\\n", "\n")
        delta = {"type": "response.output_text.delta", **where, "delta": text, "logprobs": []}
        yield _event({**delta, "sequence_number": len(begun) + number})


def messages_texts(count: int) -> Iterator[bytes]:
    """Text deltas of Messages."""
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}
    usage = {"input_tokens": 9, "output_tokens": 1}
    yield _event({"type": "message_start", "message": {**message, "stop_sequence": None, "usage": usage}})
    yield _event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    for number in range(count):
        text = TEXTS[number % len(TEXTS)].replace("\\n", "\n")
        delta = {"type": "text_delta", "text": text}
        yield _event({"type": "content_block_delta", "index": 0, "delta": delta})


def gemini_texts(count: int) -> Iterator[bytes]:
    """Text elements of Gemini, with the usage so far in each."""
    frame = (
        'data: {"candidates":[{"content":{"parts":[{"text":"%s"}],"role":"model"},"index":0}],"usageMetadata":'
        '{"promptTokenCount":9,"candidatesTokenCount":%d,"totalTokenCount":%d},"modelVersion":"m","responseId":"r1"}'
        "\r\n\r\n"
    )
    for number in range(count):
        yield (frame % (TEXTS[number % len(TEXTS)], number, 9 + number)).encode()


@dataclass(frozen=True)
class Workload:
    """A kind of stream, and what reads it."""

    frames: Frames
    make_feed: Callable[[], Feed]


def _pipeline(dialect: AnswerFormat | None = None, upstream: Endpoint | None = None, *, is_fast: bool = True) -> Feed:
    pipeline = StreamPipeline(
        Endpoint.CHAT,
        fallback=Envelope("chatcmpl-1", 1794706576, "smollm2"),
        dialect=dialect,
        options=RepairOptions(upstream_dialect=upstream),
    )
    if not is_fast:
        pipeline.fast_path.disable()
    return pipeline.feed


WORKLOADS: dict[str, Workload] = {
    "chat, fast path": Workload(chat_texts, lambda: StreamRepairer().feed),
    "chat, times of llama.cpp": Workload(chat_texts_with_times, lambda: StreamRepairer().feed),
    "chat, off the fast path": Workload(chat_texts, lambda: _pipeline(is_fast=False)),
    "chat, usage and an unknown member": Workload(chat_texts_with_usage, lambda: StreamRepairer().feed),
    "chat, arguments of a call": Workload(chat_arguments, lambda: StreamRepairer().feed),
    "completions": Workload(completions_texts, lambda: StreamRepairer("completions").feed),
    "Responses": Workload(responses_texts, lambda: StreamRepairer("responses").feed),
    "Messages": Workload(messages_texts, lambda: StreamRepairer("messages").feed),
    "Gemini": Workload(gemini_texts, lambda: StreamRepairer("gemini").feed),
    "chat to Responses": Workload(chat_texts, lambda: _pipeline(ResponsesFormat({}))),
    "chat to Messages": Workload(chat_texts, lambda: _pipeline(MessagesFormat())),
    "chat to Ollama": Workload(chat_texts, lambda: _pipeline(OllamaFormat(is_chat=True, created_at="now"))),
    "Responses to chat": Workload(responses_texts, lambda: _pipeline(upstream=Endpoint.RESPONSES)),
    "Messages to chat": Workload(messages_texts, lambda: _pipeline(upstream=Endpoint.MESSAGES)),
    "Gemini to chat": Workload(gemini_texts, lambda: _pipeline(upstream=Endpoint.GEMINI)),
}


def read_stream(workload: Workload, chunks: int) -> None:
    """Read one stream; only what happens between the marks is measured."""
    frames, feed = list(workload.frames(chunks)), workload.make_feed()
    mark()
    for frame in frames:
        feed(frame)
    mark()


def main() -> None:
    """Run every workload: a stream that is not measured, a short one and a long one."""
    gc.disable()  # a collection that falls into one of both streams would be a difference of their chunks
    for workload in WORKLOADS.values():
        for chunks in (_WARM_UP_CHUNKS, CHUNKS, 2 * CHUNKS):
            read_stream(workload, chunks)


if __name__ == "__main__":
    main()
