"""A small server with worker processes, for tests: `python -m tests.cli.worker_program KIND`. Prints its port."""

import asyncio
import json
import logging
import os
import signal
import sys

from welldone.cli import ui
from welldone.cli.service_manager import ServiceManager
from welldone.cli.supervisor import run_workers
from welldone.cli.ui import UsageError
from welldone.config.server import ServeSettings
from welldone.engines import supervisor as engine_supervisor
from welldone.gateway.errors import ApiError
from welldone.http.messages import HttpRequest, HttpResponse
from welldone.http.server import HttpServer
from welldone.server.access.limits import RateLimiter
from welldone.server.app import protocol_error_response
from welldone.server.observe.log import LineFormatter, Redactor
from welldone.server.observe.metrics import Metrics
from welldone.server.observe.workers import Worker, WorkerSync

ABORTED = 7
"""Exit code of a worker that received SIGINT while it was stopping."""

PER_MINUTE = 5
"""Requests per minute, over all workers."""


class _Server:
    """Serves until SIGTERM; a second signal aborts."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._metrics = Metrics([], ["lab"])
        self._sync = WorkerSync(worker, self._metrics.render)
        self._limits = RateLimiter(requests_per_minute=PER_MINUTE, tokens_per_minute=0, storage=worker.bucket_storage)
        self._listener = HttpServer(
            self._handle,
            error_response=protocol_error_response,
            connections=100,
            keep_alive_s=10.0,
            write_timeout_s=60.0,
            worker=(worker.loads, worker.number),
        )
        self._end = asyncio.Event()

    async def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._end.set)
        await self._listener.start("", 0, sockets=self._worker.sockets)
        await self._sync.start()
        self._worker.on_ready()
        await self._end.wait()
        self._end.clear()
        await self._listener.stop_accepting()
        ui.print_note("draining")
        idle, abort = asyncio.create_task(self._listener.wait_idle(100)), asyncio.create_task(self._end.wait())
        await asyncio.wait({idle, abort}, return_when=asyncio.FIRST_COMPLETED)
        for task in (idle, abort):
            task.cancel()
        await self._listener.close()
        await self._sync.stop()
        return ABORTED if abort.done() and not abort.cancelled() else 0

    async def _handle(self, request: HttpRequest) -> HttpResponse | None:
        if request.path == "/wait":
            stream = await request.start_stream({})
            stream.write(b"started\n")
            await asyncio.Event().wait()
        if request.path == "/metrics":
            kind, body = await self._sync.metrics_page()
            return HttpResponse(200, body, kind)
        if request.path == "/take":
            try:
                self._limits.take_request("anonymous")
            except ApiError as error:
                return HttpResponse(error.status)
        self._metrics.count_disconnect()
        facts = {"pid": os.getpid(), "session": os.getsid(0), "worker": self._worker.number}
        return HttpResponse(200, json.dumps(facts).encode(), closes_connection=True)


def _serve(worker: Worker) -> int:
    kind = sys.argv[1]
    if kind == "refuse":
        raise UsageError("the settings have an error")
    if kind == "crash-late":
        worker.on_ready()
    if kind in ("crash", "crash-late"):
        os.kill(os.getpid(), signal.SIGKILL)
    return asyncio.run(_run(worker))


async def _run(worker: Worker) -> int:
    return await _Server(worker).run()


def _announce(port: int) -> None:
    ui.print_line(str(port))
    ui.flush_output()


if __name__ == "__main__":
    engine_supervisor.BACKOFF_INITIAL_S = 0.001
    sys.exit(
        run_workers(
            ServeSettings(port=0, workers=2),
            _serve,
            announce=_announce,
            formatter=LineFormatter("json", Redactor()),
            level=logging.INFO,
            manager=ServiceManager({}),
        )
    )
