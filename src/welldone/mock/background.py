"""Mock server in a thread of this process, for tests of clients."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from welldone.mock.server import MockHttpRequest, MockServer

_STOP_TIMEOUT_S = 10.0  # connections are closed at once; more means that the machine hangs


ResultT = TypeVar("ResultT")


class BackgroundMock:
    """Runs a mock server on a free port of this machine, until `close`."""

    def __init__(self, server: MockServer) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="welldone-mock", daemon=True)
        self._thread.start()
        self._server = self._run(server.listen())
        self.url: str = f"http://127.0.0.1:{self._server.port}/v1"
        """Base URL, as clients want it."""

    @property
    def requests(self) -> list[MockHttpRequest]:
        """The requests so far: method, path, headers, body, and how each reply ended (`end`)."""
        return list(self._server.requests)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait for a condition, which is checked whenever a request or a connection starts or ends.

        Raises:
            TimeoutError: it did not become true.
        """
        self._run(asyncio.wait_for(self._server.wait_until(condition), timeout_s))

    def _run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Stop the server and close its connections. Later calls do nothing."""
        if self._loop.is_closed():
            return
        self._run(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_TIMEOUT_S)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
