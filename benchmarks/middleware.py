"""Benchmark of the ASGI middleware: CPU time per chunk and per request that it adds to an application.

The application sends ready chunks, one body message for each, to a server that discards them, so that the difference
between both runs is the middleware. Each number is the best of several rounds.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Callable

from welldone.asgi import RepairMiddleware
from welldone.asgi.middleware import ASGIApp, ASGIMessage, ASGIReceive, ASGIScope, ASGISend
from welldone.library.writing import ChatStream, CompletionsStream, MessagesStream, ResponsesStream

LIMIT_US = 10.0
TEXTS = [" there", " are", " three", " colours", ":", " red", ",", " green", " and", " blue", ".\n", " naïve"]
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
WRITERS = {
    "chat": ChatStream,
    "completions": CompletionsStream,
    "responses": ResponsesStream,
    "messages": MessagesStream,
}


def right_stream(endpoint: str, count: int) -> list[bytes]:
    """Return a stream as our writers send it."""
    stream = WRITERS[endpoint]("m")
    usage = {"prompt_tokens": 10, "completion_tokens": count}
    return [*(stream.text(TEXTS[number % len(TEXTS)]) for number in range(count)), stream.finish(usage=usage)]


def wrong_stream(count: int, *, has_usage: bool) -> list[bytes]:
    """Return the same text with the role, and possibly usage, on each chunk, and without [DONE]."""

    def chunk(number: int, delta: dict[str, object], reason: str | None = None) -> bytes:
        usage = {"prompt_tokens": 10, "completion_tokens": number, "total_tokens": 10 + number}
        choice = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": reason}
        envelope = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1794706576, "model": "m"}
        chunk = {**envelope, "choices": [choice]} | ({"usage": usage} if has_usage else {})
        return f"data: {json.dumps(chunk)}\n\n".encode()

    texts = [chunk(number, {"content": TEXTS[number % len(TEXTS)]}) for number in range(count)]
    return [*texts, chunk(count, {}, "stop")]


def application(parts: list[bytes]) -> ASGIApp:
    """Return an application that streams these parts."""

    async def app(scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        await receive()
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


async def request(app: ASGIApp, path: str) -> None:
    """Send one request and discard the response."""
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}], "input": "Hi"}
    data = json.dumps(body).encode()

    async def receive() -> ASGIMessage:
        return {"type": "http.request", "body": data, "more_body": False}

    async def send(message: ASGIMessage) -> None:
        pass

    await app({"type": "http", "method": "POST", "path": path, "headers": []}, receive, send)


def cost(app: ASGIApp, path: str, requests: int, rounds: int) -> float:
    """Return the CPU time of one request in seconds."""

    async def send_all() -> None:
        for _ in range(requests):
            await request(app, path)

    def measure(work: Callable[[], None]) -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    return min(measure(lambda: asyncio.run(send_all())) for _ in range(rounds)) / requests


def main() -> None:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=20_000, help="chunks in a stream (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the best counts (default: %(default)s)")
    options = parser.parse_args()
    chunks, rounds = options.chunks, options.rounds
    streams = {f"{endpoint}, right stream": (endpoint, right_stream(endpoint, chunks)) for endpoint in PATHS}
    streams["chat, role on each chunk"] = ("chat", wrong_stream(chunks, has_usage=False))
    streams["chat, role and usage on each chunk"] = ("chat", wrong_stream(chunks, has_usage=True))

    print(f"\nCPU that the ASGI middleware adds, best of {rounds} rounds\n")
    for name, (endpoint, parts) in streams.items():
        app, path = application(parts), PATHS[endpoint]
        bare = cost(app, path, 1, rounds)
        added = (cost(RepairMiddleware(app), path, 1, rounds) - bare) / chunks * 1e6
        verdict = "within" if added <= LIMIT_US else "OVER"
        print(f"  {name:<44} {added:8.2f} µs a chunk    {verdict} the limit of {LIMIT_US:g} µs")
    few, many = application(right_stream("chat", 1)), max(1, chunks // 10)
    for name, path in (("a request of one chunk", PATHS["chat"]), ("a request of another path", "/health")):
        added = (cost(RepairMiddleware(few), path, many, rounds) - cost(few, path, many, rounds)) * 1e6
        print(f"  {name:<44} {added:8.2f} µs")


if __name__ == "__main__":
    main()
