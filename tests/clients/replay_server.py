"""A server that replays all recorded replies: the model of a request is the name of a case."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread

from welldone.mock.script import MockReply, MockScript
from welldone.mock.server import MockServer

LIMIT_S = 60.0


@contextmanager
def replaying(replies: Mapping[str, MockReply]) -> Iterator[str]:
    """Run the server in a thread; yields its base URL."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    server = MockServer(MockScript(speed=0), lambda seen: replies[json.loads(seen.body)["model"]])
    try:
        asyncio.run_coroutine_threadsafe(server.listen(), loop).result(LIMIT_S)
        yield f"http://127.0.0.1:{server.port}/v1"
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(LIMIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(LIMIT_S)
        loop.close()
