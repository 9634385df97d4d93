"""What ASGI calls its parts, and how an error is said over it."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from welldone.serve.errors import ApiError, Shape

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


async def refuse(send: Send, error: ApiError, shape: Shape = Shape.OPENAI) -> None:
    """A whole reply that is an error."""
    body = error.body(shape)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
