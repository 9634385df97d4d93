"""ASGI applications with right and wrong answers, and a call of one with its middleware."""

import json
from collections.abc import Sequence
from typing import Any

from tests.asgi.asgi_client import Client, scope
from tests.http.aio import run
from welldone.asgi import AnswerReport, RepairMiddleware
from welldone.asgi.middleware import ASGIApp, ASGIReceive, ASGIScope, ASGISend
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

CHAT_PATH = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
SSE = ("content-type", "text/event-stream")
JSON = ("content-type", "application/json")


def chunk(delta: dict[str, Any], **members: object) -> bytes:
    """A chunk of a server that repeats the role and sends usage with each chunk."""
    choice = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": members.pop("finish", None)}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    value = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps({**value, "usage": usage, **members}).encode() + b"\n\n"


WRONG_STREAM = (chunk({"content": "He"}), chunk({"content": "llo"}), chunk({}, finish="stop"))
"""No role-only first chunk, usage that nobody asked for, no [DONE], as in LightLLM's pull request 1262."""
WRONG_REPLY = json.dumps(
    {"id": "c-1", "created": 1, "model": "m", "choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
).encode()


def app_with(
    *parts: bytes,
    status: int = 200,
    headers: Sequence[tuple[str, str]] = (SSE,),
    error: Exception | None = None,
    reads_request: bool = True,
) -> ASGIApp:
    """An application that answers every request with these parts, and then raises `error`."""

    async def app(scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        while reads_request and (await receive()).get("more_body"):
            pass
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [[name.encode(), value.encode()] for name, value in headers],
            }
        )
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        if error is not None:
            raise error
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


class Answer:
    """A response, what the middleware reported of it, and its findings."""

    def __init__(self, client: Client, reports: list[AnswerReport], endpoint: str, request: object) -> None:
        self.client = client
        self.reports = reports
        self.status = client.status
        self.body = client.body
        self.headers = {name.decode(): value.decode() for name, value in client.headers.items()}
        trace = Trace(
            body=self.body,
            endpoint=endpoint,
            request=request if isinstance(request, dict) else None,
            status=self.status,
            headers=tuple(self.headers.items()),
        )
        self.findings = [finding.rule for finding in judge(trace).findings]

    @property
    def repairs(self) -> set[str]:
        """Ids of the rules that were repaired."""
        (report,) = self.reports
        return {entry.rule for entry in report.result.repairs}

    @property
    def json(self) -> Any:  # noqa: ANN401 - any JSON
        """The body as a value."""
        return json.loads(self.body)


async def acall(
    app: ASGIApp,
    request: object = CHAT,
    path: str = CHAT_PATH,
    *,
    method: str = "POST",
    **settings: Any,  # noqa: ANN401 - of the middleware
) -> Answer:
    """Call an application through the middleware."""
    reports: list[AnswerReport] = []
    middleware = RepairMiddleware(app, report=reports.append, **settings)
    client = Client(request if isinstance(request, bytes) else json.dumps(request).encode())
    endpoint = {"completions": "completions", "responses": "responses", "messages": "messages"}
    name = "chat" if path.endswith("/chat/completions") else endpoint.get(path.rstrip("/").rpartition("/")[2], "chat")
    await middleware(scope(path, method), client.receive, client.send)
    return Answer(client, reports, name, request)


def call(app: ASGIApp, request: object = CHAT, path: str = CHAT_PATH, **settings: Any) -> Answer:  # noqa: ANN401 - of the middleware
    """Call an application through the middleware, with a time limit."""
    return run(acall(app, request, path, **settings))
