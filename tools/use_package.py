"""Use each part of the library, in an environment with the package and msgspec only. tools/package.py runs this."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

before = set(sys.modules)

import welldone  # noqa: E402 - after the names of the modules above are known

CHUNK = b'data: {"choices":[{"delta":{"content":"Hello"},"finish_reason":"stop"}]}\n\n'
"""A chat stream without role, envelope and `[DONE]`."""
PATH = "/v1/chat/completions"
WSGI_ENVIRONMENT = {"REQUEST_METHOD": "POST", "PATH_INFO": PATH, "wsgi.input": BytesIO()}
EVENT_STREAM = ("content-type", "text/event-stream")


def main() -> None:
    """Use the library; a wrong result raises."""
    assert set(sys.modules) - before == {"welldone"}, "import welldone loads other modules"
    assert Path(welldone.__file__).is_relative_to(sys.prefix), f"{welldone.__file__} is not the installed package"

    assert not welldone.lint(CHUNK, "chat").ok
    for body in (
        b"".join(welldone.repair([CHUNK])),
        asyncio.run(read_arepair()),
        asyncio.run(call_asgi(welldone.asgi.RepairMiddleware(asgi_app))),
        b"".join(welldone.wsgi.RepairMiddleware(wsgi_app)(WSGI_ENVIRONMENT, start)),
    ):
        welldone.assert_valid(body, "chat", strict=True)
        assert welldone.collect(welldone.parse(body))["choices"][0]["message"]["content"] == "Hello"
    reply = welldone.repair_response(b'{"choices":[{"message":{"content":"Hello"}}]}')
    welldone.assert_valid(reply.body, "chat", strict=True)

    for writer in (welldone.ChatStream, welldone.CompletionsStream, welldone.ResponsesStream, welldone.MessagesStream):
        stream = writer("m")
        body = stream.text("Hello") + stream.finish(usage={"prompt_tokens": 1, "completion_tokens": 1})
        welldone.assert_valid(body, strict=True)
        assert "Hello" in str(stream.to_response())

    assert all(hasattr(welldone, name) for name in welldone.__all__)
    loaded = {name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names
    assert loaded == {"welldone", "msgspec"}, f"the library loads {sorted(loaded)}"


async def read_arepair() -> bytes:
    """Repair an asynchronous stream."""

    async def chunks() -> AsyncIterator[bytes]:
        yield CHUNK

    return b"".join([data async for data in welldone.arepair(chunks())])


async def call_asgi(app: Callable[..., Any]) -> bytes:
    """Call an ASGI application; the body of its response."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"model":"m","messages":[],"stream":true}'}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app({"type": "http", "method": "POST", "path": PATH, "headers": []}, receive, send)
    return b"".join(message.get("body", b"") for message in sent)


async def asgi_app(scope: object, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
    """Send the wrong stream."""
    await receive()
    headers = [tuple(text.encode() for text in EVENT_STREAM)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": CHUNK})


def wsgi_app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Send the wrong stream."""
    start_response("200 OK", [EVENT_STREAM])
    return [CHUNK]


def start(status: str, headers: object, exc_info: object = None) -> Callable[[bytes], object]:
    """The server's side of a WSGI response."""
    return lambda data: None


if __name__ == "__main__":
    main()
