"""A server that replays all recorded replies: the model of a request, in its body or path, is the name of a case."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from urllib.parse import unquote

from welldone.mock.script import MockReply, MockScript
from welldone.mock.server import MockHttpRequest, MockServer

LIMIT_S = 60.0


def _model(seen: MockHttpRequest) -> str:
    named: str | None = json.loads(seen.body).get("model")
    return named or unquote(seen.path.rpartition("/models/")[2].rpartition(":")[0])


@contextmanager
def replaying(replies: Mapping[str, MockReply]) -> Iterator[str]:
    """Run the server in a thread; yields its base URL."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    server = MockServer(MockScript(speed=0), lambda seen: replies[_model(seen)])
    try:
        asyncio.run_coroutine_threadsafe(server.listen(), loop).result(LIMIT_S)
        yield f"http://127.0.0.1:{server.port}/v1"
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(LIMIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(LIMIT_S)
        loop.close()
