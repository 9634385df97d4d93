"""Benchmark of the core: CPU time per chunk, compared with other ways to process it in the same run.

Machines differ, so the ratios count. Each number is the best of several rounds.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial

from welldone.core.answer_format import AnswerFormat
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import ChoiceStart, Text
from welldone.core.request_facts import RepairOptions, RequestFacts
from welldone.dialects.chat.writer import ChunkFormat
from welldone.dialects.messages.writer import MessagesFormat
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.library.repairing import StreamRepairer
from welldone.library.writing import ChatStream
from welldone.stream.pipeline import StreamPipeline

ENVELOPE = Envelope("chatcmpl-tKuwrrGl4hhXNZgHdcS3mAeG4W8qOlDR", 1794706576, "smollm2", "b0-b21e4de7")
TEXTS = [" there", " are", " three", " colours", ":", " red", ",", " green", " and", " blue", ".\n", " naïve"]
LIBRARY_WRITE_LIMIT_US = 2.0
OFFICIAL_LIMIT, JSON_LIMIT, WRITE_LIMIT, DIALECT_LIMIT = 0.1, 4.0, 0.4, 2.0


def correct_stream(chunks: int) -> bytes:
    """Stream as the chat writer sends it."""
    writer = ChunkFormat(RequestFacts()).make_writer(ENVELOPE)
    texts = (writer.send(Text(0, TEXTS[number % len(TEXTS)])) for number in range(chunks))
    return b"".join([writer.send(ChoiceStart(0)), *texts])


def llama_stream(chunks: int) -> bytes:
    """The same text as llama.cpp sends it: role without content, changing `created`, no logprobs."""
    envelope = {"id": ENVELOPE.id, "model": ENVELOPE.model, "system_fingerprint": ENVELOPE.fingerprint}

    def frame(number: int, delta: dict[str, object]) -> bytes:
        choice = {"finish_reason": None, "index": 0, "delta": delta}
        chunk = {
            "choices": [choice],
            "created": ENVELOPE.created + number // 50,
            **envelope,
            "object": "chat.completion.chunk",
        }
        return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"

    texts = (frame(number, {"content": TEXTS[number % len(TEXTS)]}) for number in range(chunks))
    return b"".join([frame(0, {"role": "assistant", "content": None}), *texts])


def dialect_stream(chunks: int, dialect: AnswerFormat) -> bytes:
    """The same text as a server with another dialect sends it."""
    writer = dialect.make_writer(ENVELOPE, lambda: None)
    texts = (writer.send(Text(0, TEXTS[number % len(TEXTS)])) for number in range(chunks))
    return b"".join([writer.send(ChoiceStart(0)), *texts])


def google_stream(chunks: int) -> bytes:
    """The same text as Google sends it: the usage so far is in each element."""

    def frame(number: int) -> bytes:
        content = {"parts": [{"text": TEXTS[number % len(TEXTS)]}], "role": "model"}
        counts = {"promptTokenCount": 9, "candidatesTokenCount": number, "totalTokenCount": 9 + number}
        element = {
            "candidates": [{"content": content, "index": 0}],
            "usageMetadata": {**counts, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 9}]},
            "modelVersion": ENVELOPE.model,
            "responseId": "1794706576",
        }
        return b"data: " + json.dumps(element, separators=(",", ":")).encode() + b"\n\n"

    return b"".join(map(frame, range(chunks)))


def run_pipeline(
    stream: bytes, dialect: AnswerFormat | None = None, *, upstream: Endpoint | None = None, uses_fast_path: bool = True
) -> None:
    """Run reader, repair and writer with one frame per read."""
    options = RepairOptions(upstream_dialect=upstream)
    pipeline = StreamPipeline(Endpoint.CHAT, fallback=ENVELOPE, dialect=dialect, options=options)
    if not uses_fast_path:
        pipeline.fast_path.disable()
    for frame in stream.split(b"\n\n")[:-1]:
        pipeline.feed(frame + b"\n\n")


def bare_json(stream: bytes) -> None:
    """Decode and encode each chunk, as a proxy that parses chunks does."""
    for frame in stream.split(b"\n\n")[:-1]:
        json.dumps(json.loads(frame[6:]))


def official_client(stream: bytes) -> None:
    """Read the same bytes from memory with the official Python client."""
    import httpx2
    import openai
    from openai.types.chat import ChatCompletionChunk

    frames = [frame + b"\n\n" for frame in stream.split(b"\n\n")[:-1]]

    class Body(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield from frames

    request = httpx2.Request("POST", "http://127.0.0.1/")
    response = httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Body(), request=request)
    client = openai.OpenAI(api_key="none", base_url="http://127.0.0.1/")
    for _ in openai.Stream(cast_to=ChatCompletionChunk, response=response, client=client):
        pass


def write_texts(chunks: int, dialect: AnswerFormat) -> None:
    """Write the text events of a stream."""
    writer = dialect.make_writer(ENVELOPE, lambda: None)
    writer.send(ChoiceStart(0))
    for number in range(chunks):
        writer.send(Text(0, TEXTS[number % len(TEXTS)]))


def dump_texts(chunks: int) -> None:
    """Encode the same chunks with `json.dumps`, as SSE frames."""
    for number in range(chunks):
        choice = {"index": 0, "delta": {"content": TEXTS[number % len(TEXTS)]}, "logprobs": None, "finish_reason": None}
        chunk = {
            "id": ENVELOPE.id,
            "object": "chat.completion.chunk",
            "created": ENVELOPE.created,
            "model": ENVELOPE.model,
            "system_fingerprint": ENVELOPE.fingerprint,
            "choices": [choice],
        }
        _ = f"data: {json.dumps(chunk)}\n\n".encode()


def library_write(chunks: int) -> None:
    """Write the texts with the public writer, which also stores them for `to_response`."""
    stream = ChatStream(ENVELOPE.model, id=ENVELOPE.id, created=ENVELOPE.created, fingerprint=ENVELOPE.fingerprint)
    stream.text("first")
    for number in range(chunks):
        stream.text(TEXTS[number % len(TEXTS)])


def library_repair(stream: bytes) -> None:
    """Repair with the public repairer, with one frame per read."""
    repairer = StreamRepairer()
    for frame in stream.split(b"\n\n")[:-1]:
        repairer.feed(frame + b"\n\n")


def cost(work: Callable[[], None], chunks: int, rounds: int) -> float:
    """Return the CPU time per chunk in microseconds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best / chunks * 1e6


def print_library(chunks: int, rounds: int) -> None:
    """Print the cost of the public Python API."""
    write = cost(lambda: library_write(chunks), chunks, rounds)
    correct, llama = correct_stream(chunks), llama_stream(chunks)
    print(f"library: CPU per text chunk, best of {rounds} rounds of {chunks:,}\n")
    verdict = f"{'within' if write <= LIBRARY_WRITE_LIMIT_US else 'OVER'} the limit of {LIBRARY_WRITE_LIMIT_US} µs"
    print(f"  {'ChatStream.text':<52} {write:8.2f} µs    {verdict}")
    for name, stream in (("correct", correct), ("llama.cpp", llama)):
        figure = cost(partial(library_repair, stream), chunks, rounds)
        print(f"  {f'StreamRepairer.feed, {name} stream':<52} {figure:8.2f} µs")


def main() -> None:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=20_000, help="chunks in a stream (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the best counts (default: %(default)s)")
    parser.add_argument("--library", action="store_true", help="measure only the public Python API")
    options = parser.parse_args()
    chunks, rounds = options.chunks, options.rounds
    print_library(chunks, rounds)
    if options.library:
        return
    print()
    few = max(1, chunks // 10)  # the official client is slow
    correct, llama, short = correct_stream(chunks), llama_stream(chunks), correct_stream(few)

    pipeline = cost(lambda: run_pipeline(correct), chunks, rounds)
    pipeline_llama = cost(lambda: run_pipeline(llama), chunks, rounds)
    bare = cost(lambda: bare_json(correct), chunks, rounds)
    official = cost(lambda: official_client(short), few, rounds)
    write = cost(lambda: write_texts(chunks, ChunkFormat(RequestFacts())), chunks, rounds)
    responses = cost(lambda: write_texts(chunks, ResponsesFormat({})), chunks, rounds)
    messages = cost(lambda: write_texts(chunks, MessagesFormat()), chunks, rounds)
    to_responses = cost(lambda: run_pipeline(llama, ResponsesFormat({})), chunks, rounds)
    to_messages = cost(lambda: run_pipeline(llama, MessagesFormat()), chunks, rounds)
    dump = cost(lambda: dump_texts(chunks), chunks, rounds)
    slow = cost(lambda: run_pipeline(correct, uses_fast_path=False), chunks, rounds)
    read = {
        dialect: cost(partial(run_pipeline, dialect_stream(chunks, writer), upstream=dialect), chunks, rounds)
        for dialect, writer in (
            (Endpoint.RESPONSES, ResponsesFormat({})),
            (Endpoint.MESSAGES, MessagesFormat()),
        )
    }
    google = cost(partial(run_pipeline, google_stream(chunks), upstream=Endpoint.GEMINI), chunks, rounds)

    print(f"CPU per chunk, best of {rounds} rounds of {chunks:,} text chunks ({len(correct) // chunks} bytes each)\n")
    for name, figure in (
        ("reader -> repair -> writer, correct stream", pipeline),
        ("reader -> repair -> writer, llama.cpp stream", pipeline_llama),
        ("llama.cpp stream, translated to /v1/responses", to_responses),
        ("llama.cpp stream, translated to /v1/messages", to_messages),
        ("reader -> repair -> writer, without the fast path", slow),
        ("/v1/responses stream, translated to chat", read[Endpoint.RESPONSES]),
        ("/v1/messages stream, translated to chat", read[Endpoint.MESSAGES]),
        ("Gemini stream, translated to chat", google),
        ("json.loads + json.dumps", bare),
        ("official Python client", official),
        ("writing a text chunk", write),
        ("writing a text delta of /v1/responses", responses),
        ("writing a text delta of /v1/messages", messages),
        ("json.dumps of the same chunk, framed", dump),
    ):
        print(f"  {name:<52} {figure:8.2f} µs")
    print("\nratios")
    for name, ratio, limit in (
        ("reader -> repair -> writer / official client", pipeline / official, OFFICIAL_LIMIT),
        ("reader -> repair -> writer / JSON round trip", pipeline / bare, JSON_LIMIT),
        ("llama.cpp stream / JSON round trip", pipeline_llama / bare, JSON_LIMIT),
        ("writing / json.dumps", write / dump, WRITE_LIMIT),
        ("writing for /v1/responses / for chat", responses / write, DIALECT_LIMIT),
        ("writing for /v1/messages / for chat", messages / write, DIALECT_LIMIT),
        ("from /v1/responses / chat without the fast path", read[Endpoint.RESPONSES] / slow, DIALECT_LIMIT),
        ("from /v1/messages / chat without the fast path", read[Endpoint.MESSAGES] / slow, DIALECT_LIMIT),
        ("from Gemini / chat without the fast path", google / slow, DIALECT_LIMIT),
    ):
        print(f"  {name:<52} {ratio:8.2f}    {'within' if ratio <= limit else 'OVER'} the limit of {limit}")


if __name__ == "__main__":
    main()
