"""An OpenAI-compatible server in each web framework: `python -m tests.asgi.framework_apps fastapi repaired`.

Its streams are wrong as in LightLLM before its pull request 1262: no role-only first chunk but the role in every delta,
usage on every chunk instead of one of its own, no [DONE]; its errors are FastAPI's. It prints its port, and a line when
a stream is closed. Runs in `.venv-frameworks`, which has the frameworks.
"""

import json
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from welldone.asgi import RepairMiddleware
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest
from welldone.wsgi import RepairMiddleware as WsgiRepairMiddleware

FAILING_PROMPT = "Fail after two chunks."
ENDLESS_PROMPT = "Never stop."
REFERENCE = ReferenceServer(models=("ideal", "smollm2-135m-instruct"))  # the second in docs/servers.md
Reply = tuple[int, dict[str, str], list[bytes]]


def answer(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
    """The wrong answer to a request: status, headers, and the parts of the body."""
    lower = {name.lower(): value for name, value in headers.items()}
    reply = REFERENCE.answer(MockHttpRequest(method, path, lower, body.decode("utf-8", "replace")))
    kept = {name.lower(): value for name, value in reply.headers.items()}
    if reply.status >= 400 and path.endswith("completions"):
        detail = {"detail": json.loads(reply.body)["error"]["message"]} if reply.body else {}
        return reply.status, kept, [json.dumps(detail).encode()]
    if path == "/v1/chat/completions" and kept.get("content-type", "").startswith("text/event-stream"):
        allowed = "access-control-allow-origin"
        return reply.status, {"content-type": "text/event-stream", allowed: kept[allowed]}, list(_spoil(reply))
    return reply.status, kept, [piece.data for piece in reply.pieces]


def _spoil(reply: MockReply) -> Iterator[bytes]:
    lines = [line[6:] for line in reply.body.split(b"\n\n") if line.startswith(b"data: {")]
    chunks: list[dict[str, Any]] = [json.loads(line) for line in lines]
    usage = next((chunk["usage"] for chunk in chunks if not chunk["choices"]), None)
    for chunk in chunks:
        for choice in chunk["choices"]:
            is_role_only = choice["delta"].get("role") and not choice["finish_reason"]
            choice["delta"] = {"role": "assistant", **choice["delta"]}
            if not is_role_only:
                counts = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
                yield b"data: " + json.dumps({**chunk, "usage": usage or counts}).encode() + b"\n\n"


def parts_of(body: bytes, parts: list[bytes]) -> Iterator[bytes]:
    """The parts, with an exception or without an end if the prompt asks for it."""
    is_endless = ENDLESS_PROMPT.encode() in body
    try:
        for number, part in enumerate(parts):
            if number == 2 and FAILING_PROMPT.encode() in body:
                raise ZeroDivisionError
            yield part
            while is_endless:
                yield part
    finally:
        print("closed", flush=True)  # noqa: T201 - for the test


async def stream_of(body: bytes, parts: list[bytes]) -> AsyncIterator[bytes]:
    """The same, asynchronously."""
    sleep = import_module("asyncio").sleep
    for part in parts_of(body, parts):
        yield part
        await sleep(0)


def _starlette(is_repaired: bool) -> object:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    async def handle(request: Request) -> StreamingResponse:
        body = await request.body()
        status, headers, parts = answer(request.method, request.url.path, request.headers, body)
        return StreamingResponse(stream_of(body, parts), status, headers)

    app = Starlette(routes=[Route("/{path:path}", handle, methods=["GET", "POST", "OPTIONS"])])
    if is_repaired:
        app.add_middleware(RepairMiddleware)
    return app


def _fastapi(is_repaired: bool) -> object:
    from fastapi import FastAPI, Request
    from fastapi.responses import StreamingResponse

    app = FastAPI()
    if is_repaired:
        app.add_middleware(RepairMiddleware)

    @app.api_route("/{path:path}", methods=["GET", "POST", "OPTIONS"])
    async def handle(request: Request) -> StreamingResponse:
        body = await request.body()
        status, headers, parts = answer(request.method, request.url.path, request.headers, body)
        return StreamingResponse(stream_of(body, parts), status, headers)

    return app


def _litestar(is_repaired: bool) -> object:
    from litestar import Litestar, Request, route
    from litestar.enums import HttpMethod
    from litestar.response import Stream

    @route("/{path:path}", http_method=[HttpMethod.GET, HttpMethod.POST, HttpMethod.OPTIONS])
    async def handle(request: Request[Any, Any, Any]) -> Stream:
        body = await request.body()
        status, headers, parts = answer(request.method, request.url.path, request.headers, body)
        media_type = headers.pop("content-type", None)
        return Stream(stream_of(body, parts), status_code=status, headers=headers, media_type=media_type)

    return Litestar([handle], middleware=[RepairMiddleware] if is_repaired else [])


def _quart(is_repaired: bool) -> object:
    from quart import Quart, request

    app = Quart(__name__)

    @app.route("/<path:path>", methods=["GET", "POST", "OPTIONS"])
    async def handle(path: str) -> object:
        body = await request.get_data()
        status, headers, parts = answer(request.method, request.path, request.headers, body)
        return stream_of(body, parts), status, headers

    if is_repaired:
        app.asgi_app = RepairMiddleware(app.asgi_app)
    return app


def _flask(is_repaired: bool) -> object:
    from flask import Flask, Response, request

    app = Flask(__name__)

    @app.route("/<path:path>", methods=["GET", "POST", "OPTIONS"])
    def handle(path: str) -> object:
        body = request.get_data()
        status, headers, parts = answer(request.method, request.path, request.headers, body)
        return Response(parts_of(body, parts), status, headers)

    if is_repaired:
        app.wsgi_app = WsgiRepairMiddleware(app.wsgi_app)
    return app


FRAMEWORKS: dict[str, Callable[[bool], Any]] = {
    "starlette": _starlette,
    "fastapi": _fastapi,
    "litestar": _litestar,
    "quart": _quart,
    "flask": _flask,
}


def main(framework: str, kind: str, port: str = "0") -> None:
    """Serve on a port, by default a free one: Quart with hypercorn, Flask with werkzeug, the others with uvicorn."""
    app = FRAMEWORKS[framework](kind == "repaired")
    listener = socket.create_server(("127.0.0.1", int(port)))
    print(listener.getsockname()[1], flush=True)  # noqa: T201 - for the test
    if framework == "flask":
        from werkzeug.serving import make_server

        make_server("127.0.0.1", 0, app, threaded=True, fd=listener.fileno()).serve_forever()
    elif framework == "quart":
        import asyncio

        from hypercorn.asyncio import serve
        from hypercorn.config import Config

        config = Config()
        config.bind = [f"fd://{listener.fileno()}"]
        asyncio.run(serve(app, config))
    else:
        import uvicorn

        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
