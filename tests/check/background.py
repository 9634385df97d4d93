"""A mock server in a thread, for clients in another process and blocking clients."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import msgspec

from tests.check.serving import serving
from tests.http.aio import LIMIT_S
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest


@contextmanager
def served(handler: Callable[[MockHttpRequest], MockReply] | None = None) -> Iterator[str]:
    """Run a server with the replies of `handler`, by default of the reference server; yields its URL."""
    address: Future[str] = Future()
    loop, done = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with serving(handler or ReferenceServer().answer) as url:
            address.set_result(url)
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield address.result(LIMIT_S)
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(LIMIT_S)
        loop.close()


def without_done(key: str | None = None) -> Callable[[MockHttpRequest], MockReply]:
    """A reference server whose streams end without [DONE]."""
    ideal = ReferenceServer(key=key)

    def answer(http_request: MockHttpRequest) -> MockReply:
        reply = ideal.answer(http_request)
        pieces = tuple(piece for piece in reply.pieces if not piece.data.startswith(b"data: [DONE]"))
        return msgspec.structs.replace(reply, pieces=pieces)

    return answer
