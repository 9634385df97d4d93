"""What ASGI calls its parts, and how an error is said over it."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from welldone.serve.errors import ApiError, ErrorFormat

ASGIMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[ASGIMessage]]
Send = Callable[[ASGIMessage], Awaitable[None]]
ASGIApp = Callable[[ASGIMessage, Receive, Send], Awaitable[None]]


async def send_error(send: Send, error: ApiError, shape: ErrorFormat = ErrorFormat.OPENAI) -> None:
    """A whole reply that is an error."""
    body = error.body(shape)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
