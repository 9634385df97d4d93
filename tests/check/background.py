"""A server in a thread: for those who ask from another process, or who block."""

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
def served(choose: Callable[[MockHttpRequest], MockReply] | None = None) -> Iterator[str]:
    """A server that answers as `choose` says, or rightly; its URL."""
    address: Future[str] = Future()
    loop, done = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with serving(choose or ReferenceServer().answer) as url:
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
    """A server that is right but for this: its streams end without [DONE]."""
    ideal = ReferenceServer(key=key)

    def answer(seen: MockHttpRequest) -> MockReply:
        reply = ideal.answer(seen)
        kept = tuple(piece for piece in reply.pieces if not piece.data.startswith(b"data: [DONE]"))
        return msgspec.structs.replace(reply, pieces=kept)

    return answer
