"""A small server of several processes, with the real parts: `python -m tests.cli.crew KIND`. It prints its port."""

import asyncio
import json
import logging
import os
import signal
import sys

from welldone.cli import show, workers
from welldone.cli.exits import UsageError
from welldone.engines import backoff
from welldone.net.inbound import Call, Listener, Reply
from welldone.serve.app import error_page
from welldone.serve.errors import ApiError
from welldone.serve.limits import Limits
from welldone.serve.log import LineFormatter, Redactor
from welldone.serve.metrics import Metrics
from welldone.serve.settings import ServeSettings
from welldone.serve.siblings import Siblings, Worker

HURRIED = 7
"""The exit code of a worker that was told to hurry."""

PER_MINUTE = 5
"""Requests of everyone together."""


class _Server:
    """Serves until SIGTERM; at SIGINT it hurries."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._metrics = Metrics([], ["lab"])
        self._siblings = Siblings(worker, self._metrics.render)
        self._limits = Limits(requests_per_minute=PER_MINUTE, tokens_per_minute=0, numbers=worker.numbers)
        self._listener = Listener(
            self._handle, error_page=error_page, connections=100, keep_alive_s=10.0, unread_s=60.0
        )
        self._end = asyncio.Event()

    async def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._end.set)
        await self._listener.start("", 0, sockets=self._worker.sockets)
        await self._siblings.start()
        self._worker.ready()
        await self._end.wait()
        self._end.clear()
        await self._listener.stop_accepting()
        show.note("draining")
        idle, hurry = asyncio.create_task(self._listener.idle(100)), asyncio.create_task(self._end.wait())
        await asyncio.wait({idle, hurry}, return_when=asyncio.FIRST_COMPLETED)
        for task in (idle, hurry):
            task.cancel()
        await self._listener.close()
        await self._siblings.stop()
        return HURRIED if hurry.done() and not hurry.cancelled() else 0

    async def _handle(self, call: Call) -> Reply | None:
        if call.path == "/wait":
            stream = await call.open({})
            stream.write(b"begun\n")
            await asyncio.Event().wait()
        if call.path == "/metrics":
            kind, body = await self._siblings.page()
            return Reply(200, body, kind)
        if call.path == "/take":
            try:
                self._limits.take("anonymous")
            except ApiError as error:
                return Reply(error.status)
        self._metrics.disconnect()
        facts = {"pid": os.getpid(), "session": os.getsid(0), "worker": self._worker.number}
        return Reply(200, json.dumps(facts).encode(), is_last=True)


def _serve(worker: Worker) -> int:
    kind = sys.argv[1]
    if kind == "refuse":
        raise UsageError("there is something that the user can mend")
    if kind == "crash-late":
        worker.ready()
    if kind in ("crash", "crash-late"):
        os.kill(os.getpid(), signal.SIGKILL)
    return asyncio.run(_run(worker))


async def _run(worker: Worker) -> int:
    return await _Server(worker).run()


def _announce(port: int) -> None:
    show.line(str(port))
    show.flush()


if __name__ == "__main__":
    backoff.FIRST_S = 0.001
    sys.exit(
        workers.run(
            ServeSettings(port=0, workers=2),
            _serve,
            announce=_announce,
            formatter=LineFormatter("json", Redactor()),
            level=logging.INFO,
        )
    )
