"""How much CPU a chunk costs in the core, beside what else one could do with it, in the same run.

Ratios count, since machines differ. Each figure is the best of several rounds: the least disturbed one.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator

import httpx2
import openai
from openai.types.chat import ChatCompletionChunk

from welldone.protocol.dialects.anthropic.writer import MessagesDialect
from welldone.protocol.dialects.base import Dialect
from welldone.protocol.dialects.chat import ChatDialect, ChatWriter
from welldone.protocol.dialects.responses.writer import ResponsesDialect
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import ChoiceStart, Text
from welldone.protocol.pipeline import StreamPipeline
from welldone.protocol.request_facts import RequestFacts

HEAD = Envelope("chatcmpl-tKuwrrGl4hhXNZgHdcS3mAeG4W8qOlDR", 1794706576, "smollm2", "b0-b21e4de7")
WORDS = [" there", " are", " three", " colours", ":", " red", ",", " green", " and", " blue", ".\n", " naïve"]
OFFICIAL_LIMIT, JSON_LIMIT, WRITE_LIMIT, DIALECT_LIMIT = 0.1, 4.0, 0.4, 2.0


def right_stream(chunks: int) -> bytes:
    """A stream as we send it."""
    writer = ChatWriter(HEAD)
    texts = (writer.send(Text(0, WORDS[number % len(WORDS)])) for number in range(chunks))
    return b"".join([writer.send(ChoiceStart(0)), *texts])


def llama_stream(chunks: int) -> bytes:
    """The same text as llama.cpp sends it: role without content, `created` that moves, no logprobs."""
    envelope = {"id": HEAD.id, "model": HEAD.model, "system_fingerprint": HEAD.fingerprint}

    def frame(number: int, delta: dict[str, object]) -> bytes:
        choice = {"finish_reason": None, "index": 0, "delta": delta}
        chunk = {
            "choices": [choice],
            "created": HEAD.created + number // 50,
            **envelope,
            "object": "chat.completion.chunk",
        }
        return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"

    texts = (frame(number, {"content": WORDS[number % len(WORDS)]}) for number in range(chunks))
    return b"".join([frame(0, {"role": "assistant", "content": None}), *texts])


def through_the_pipe(stream: bytes, dialect: Dialect | None = None) -> None:
    """Reader, repair and writer, a frame at a time, as a socket would bring them."""
    pipe = StreamPipeline(Endpoint.CHAT, fallback=HEAD, dialect=dialect)
    for frame in stream.split(b"\n\n")[:-1]:
        pipe.feed(frame + b"\n\n")


def bare_json(stream: bytes) -> None:
    """What any proxy does that looks at a chunk at all."""
    for frame in stream.split(b"\n\n")[:-1]:
        json.dumps(json.loads(frame[6:]))


def official_client(stream: bytes) -> None:
    """The official Python client reading the same bytes, from memory."""
    frames = [frame + b"\n\n" for frame in stream.split(b"\n\n")[:-1]]

    class Body(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield from frames

    request = httpx2.Request("POST", "http://127.0.0.1/")
    response = httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Body(), request=request)
    client = openai.OpenAI(api_key="none", base_url="http://127.0.0.1/")
    for _ in openai.Stream(cast_to=ChatCompletionChunk, response=response, client=client):
        pass


def write_texts(chunks: int, dialect: Dialect) -> None:
    """A writer saying one text after the other."""
    writer = dialect.make_writer(HEAD, lambda: None)
    writer.send(ChoiceStart(0))
    for number in range(chunks):
        writer.send(Text(0, WORDS[number % len(WORDS)]))


def dump_texts(chunks: int) -> None:
    """`json.dumps` of the same chunks, framed."""
    for number in range(chunks):
        choice = {"index": 0, "delta": {"content": WORDS[number % len(WORDS)]}, "logprobs": None, "finish_reason": None}
        chunk = {"id": HEAD.id, "object": "chat.completion.chunk", "created": HEAD.created, "model": HEAD.model}
        _ = f"data: {json.dumps({**chunk, 'system_fingerprint': HEAD.fingerprint, 'choices': [choice]})}\n\n".encode()


def cost(work: Callable[[], None], chunks: int, rounds: int) -> float:
    """Microseconds of CPU per chunk."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best / chunks * 1e6


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=20_000, help="chunks in a stream (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the best counts (default: %(default)s)")
    options = parser.parse_args()
    chunks, rounds = options.chunks, options.rounds
    few = max(1, chunks // 10)  # the official client is slow
    right, odd, short = right_stream(chunks), llama_stream(chunks), right_stream(few)

    pipe = cost(lambda: through_the_pipe(right), chunks, rounds)
    pipe_odd = cost(lambda: through_the_pipe(odd), chunks, rounds)
    bare = cost(lambda: bare_json(right), chunks, rounds)
    official = cost(lambda: official_client(short), few, rounds)
    write = cost(lambda: write_texts(chunks, ChatDialect(RequestFacts())), chunks, rounds)
    responses = cost(lambda: write_texts(chunks, ResponsesDialect({})), chunks, rounds)
    messages = cost(lambda: write_texts(chunks, MessagesDialect()), chunks, rounds)
    to_responses = cost(lambda: through_the_pipe(odd, ResponsesDialect({})), chunks, rounds)
    to_messages = cost(lambda: through_the_pipe(odd, MessagesDialect()), chunks, rounds)
    dump = cost(lambda: dump_texts(chunks), chunks, rounds)

    print(f"CPU per chunk, best of {rounds} rounds of {chunks:,} text chunks ({len(right) // chunks} bytes each)\n")
    for name, figure in (
        ("reader -> repair -> writer, a right stream", pipe),
        ("reader -> repair -> writer, as llama.cpp sends it", pipe_odd),
        ("the same, translated to /v1/responses", to_responses),
        ("the same, translated to /v1/messages", to_messages),
        ("json.loads + json.dumps", bare),
        ("official Python client reading it", official),
        ("writing a text chunk", write),
        ("writing a text delta of /v1/responses", responses),
        ("writing a text delta of /v1/messages", messages),
        ("json.dumps of the same chunk, framed", dump),
    ):
        print(f"  {name:<52} {figure:8.2f} µs")
    print("\nratios")
    for name, ratio, limit in (
        ("reader -> repair -> writer / official client", pipe / official, OFFICIAL_LIMIT),
        ("reader -> repair -> writer / JSON round trip", pipe / bare, JSON_LIMIT),
        ("the same, as llama.cpp sends it / JSON round trip", pipe_odd / bare, JSON_LIMIT),
        ("writing / json.dumps", write / dump, WRITE_LIMIT),
        ("writing for /v1/responses / for chat", responses / write, DIALECT_LIMIT),
        ("writing for /v1/messages / for chat", messages / write, DIALECT_LIMIT),
    ):
        print(f"  {name:<52} {ratio:8.2f}    {'within' if ratio <= limit else 'OVER'} the bar of {limit}")


if __name__ == "__main__":
    main()
