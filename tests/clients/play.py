"""One server that plays all recorded replies: the model that a request names is the name of its case."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread

from welldone.mock.script import MockReply, MockScript
from welldone.mock.server import MockServer

LIMIT_S = 60.0


@contextmanager
def playing(replies: Mapping[str, MockReply]) -> Iterator[str]:
    """Its base URL. It has a thread of its own, so that tests can wait for clients."""
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
