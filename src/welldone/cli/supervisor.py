"""Supervisor of worker processes that serve on one port.

The workers are forks of the supervisor. So they have its settings and secrets without a file or a command line, and
accept on the same sockets: no connection is lost when a worker dies. That is why the supervisor has one thread and no
event loop. It waits for signals, for workers that become ready, and for workers that exit, and restarts those.
"""

import logging
import math
import multiprocessing
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import NoReturn

from msgspec.structs import replace as replace_struct

from welldone.cli import ui
from welldone.cli.config_reader import ConfigReader, log_reload
from welldone.cli.service_manager import ServiceManager
from welldone.cli.ui import ExitCode, UsageError
from welldone.cli.worker_channel import Applied, Finished, ReloadRequest, SupervisorEnd
from welldone.config.server import Config, ServeSettings
from welldone.engines.parent_death import exit_on_stdin_eof, signal_on_parent_death
from welldone.engines.process import describe_exit
from welldone.engines.supervisor import RestartBackoff
from welldone.http import sockets
from welldone.http.shared_memory import SharedNumbers, WorkerLoads
from welldone.server.access.keys import MAX_KEYS, ApiKeys
from welldone.server.access.limits import FIRST_FILE_INDEX, keep_places, limited_principals
from welldone.server.observe import log
from welldone.server.observe.workers import Worker
from welldone.server.reload import NewConfig, ReloadResult


class HangupPolicy:
    """Decides whether SIGHUP ends the server or reloads its configuration. Create it before a handler is installed.

    A closing terminal sends the signal, and a server in it should end with it, unless it was started with nohup, which
    ignores the signal from the start.
    """

    def __init__(self) -> None:
        self._ends_with_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()

    def should_exit(self) -> bool:
        """Whether the server should end."""
        return self._ends_with_terminal and not _has_terminal()


def _has_terminal() -> bool:
    # A process loses its controlling terminal when the terminal closes.
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


KILL_AFTER_S = 30.0
"""Kill a worker this long after the drain time. A server needs up to 18 s to stop."""

_SHARED_COUNTER_PAIRS = 2 * (FIRST_FILE_INDEX + MAX_KEYS)
"""Shared counters: requests and tokens of each configured key, of requests without a key, and of the keys of a file."""

_APPLY_TIMEOUT_S = 10.0
"""For the workers to apply a configuration, which takes milliseconds. One that is late applies it later."""

_FLUSH_INTERVAL_S = 0.05
"""While a worker does not read its messages."""

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_HANDLED_SIGNALS = (*_STOP_SIGNALS, signal.SIGHUP)
_FORK_CONTEXT = multiprocessing.get_context("fork")

ServeWorker = Callable[[Worker], int]
"""Serves until a signal arrives, and returns the exit code."""


def run_workers(
    settings: ServeSettings,
    serve: ServeWorker,
    *,
    announce: Callable[[int], None],
    formatter: logging.Formatter,
    level: int,
    manager: ServiceManager,
    reader: ConfigReader | None = None,
) -> int:
    """Serve with `settings.workers` processes until a signal arrives; return the highest of their exit codes.

    `announce` is called once, with the port, when the first worker serves. `reader` reads the configuration again.

    Raises:
        OSError: the server cannot listen on the address.
    """
    listening = sockets.bind_sockets(settings.host, settings.port)
    port = listening[0].getsockname()[1]
    numbers, loads = SharedNumbers(_SHARED_COUNTER_PAIRS), WorkerLoads(settings.workers)
    try:
        with tempfile.TemporaryDirectory(prefix="welldone-") as folder, _supervisor_log(formatter, level):
            template = Worker(
                number=0,
                count=settings.workers,
                sockets=tuple(listening),
                loads=loads,
                bucket_storage=numbers,
                folder=Path(folder),
                on_ready=lambda: None,
                places=() if reader is None else _principals(reader.config, reader.keys),
            )
            return WorkerSupervisor(
                settings.drain_s, serve, template, lambda: announce(port), reader=reader, manager=manager
            ).run()
    finally:
        sockets.close_sockets(listening)
        numbers.close()


def worker_config(config: Config) -> Config:
    """Return the settings of one worker, with the limits of upstreams divided by the number of workers."""
    count = config.server.workers
    upstreams = tuple(
        replace(upstream, limit=max(1, upstream.limit // count), queue=math.ceil(upstream.queue / count))
        for upstream in config.upstreams
    )
    return replace(config, upstreams=upstreams)


def _principals(config: Config, keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(limited_principals(config, ApiKeys(keys, config.keys)))


class WorkerNumberFilter(logging.Filter):
    """Adds the number of the worker to the fields of each log record."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the field and accept the record."""
        record.__dict__["fields"] = {"worker": self._number, **log.record_fields(record)}
        return True


@dataclass
class _WorkerSlot:
    number: int
    backoff: RestartBackoff
    process: ForkProcess | None = None
    restart_at: float | None = None
    """When to start the worker again; None while it runs."""
    channel: SupervisorEnd | None = None
    requests: list[int] = field(default_factory=list)
    """Requests to reload that the next reload answers."""


class WorkerSupervisor:
    """Starts and restarts workers; `announce` is called when the first one is ready.

    `template` is a worker without its number and without what to call when it is ready.
    """

    def __init__(
        self,
        drain_s: float,
        serve: ServeWorker,
        template: Worker,
        announce: Callable[[], None],
        *,
        reader: ConfigReader | None,
        manager: ServiceManager,
    ) -> None:
        self._drain_s = drain_s
        self._reader = reader
        self._manager = manager
        self._is_reload_due = False
        self._reload: _RunningReload | None = None
        self._alive_at = time.monotonic()
        """When the service manager expects a sign of life."""
        self._serve = serve
        self._template = template
        self._announce = announce
        self._slots = [_WorkerSlot(number, RestartBackoff(time.monotonic)) for number in range(1, template.count + 1)]
        self._was_ready = False
        self._kill_at: float | None = None
        """While stopping: when workers that still run are killed."""
        self._exit_code: int = ExitCode.OK
        self._hangup = HangupPolicy()

    def run(self) -> int:
        """Supervise until a signal arrives; return the highest exit code of the workers."""
        with (
            _pipe() as self._signals,
            _pipe() as self._ready,
            _pipe() as self._parent_pipe,
            _signals_to_pipe(self._signals[1]),
        ):
            try:
                for slot in self._slots:
                    self._start(slot)
                while self._kill_at is None or self._running:
                    self._wait_for_events()
            finally:
                for process in self._running:  # none, unless an exception was raised
                    process.kill()
        return self._exit_code

    @property
    def _running(self) -> list[ForkProcess]:
        return [slot.process for slot in self._slots if slot.process is not None]

    def _wait_for_events(self) -> None:
        """Wait for a signal, a ready worker, a worker's exit or a timer, and handle it."""
        due = [slot.restart_at for slot in self._slots if slot.restart_at is not None]
        due += [] if self._kill_at is None else [self._kill_at]
        due += [] if self._reload is None else [self._reload.ends_at]
        due += [] if self._manager.watchdog_s is None else [self._alive_at]
        channels = {slot.channel.fileno(): slot for slot in self._slots if slot.channel is not None}
        if any(slot.channel is not None and slot.channel.has_unsent for slot in self._slots):
            due.append(time.monotonic() + _FLUSH_INTERVAL_S)
        exits = {slot.process.sentinel: slot for slot in self._slots if slot.process is not None}
        signals, ready = self._signals[0], self._ready[0]
        events = wait([signals, ready, *exits, *channels], max(0.0, min(due) - time.monotonic()) if due else None)
        if ready in events:
            self._on_workers_ready(os.read(ready, 4096))
        for descriptor, slot in channels.items():
            self._exchange_messages(slot, is_readable=descriptor in events)
        for sentinel, slot in exits.items():
            if sentinel in events:
                self._on_worker_exit(slot)
        if signals in events:
            for number in os.read(signals, 4096):
                if number in _STOP_SIGNALS or (number == signal.SIGHUP and self._hangup.should_exit()):
                    self._stop_workers()
                elif number == signal.SIGHUP:
                    self._is_reload_due = True
        self._continue_reload()
        now = time.monotonic()
        if self._manager.watchdog_s is not None and now >= self._alive_at:
            self._manager.keep_alive()
            self._alive_at = now + self._manager.watchdog_s
        if self._kill_at is not None and now >= self._kill_at:
            for process in self._running:
                process.kill()
        for slot in self._slots:
            if slot.restart_at is not None and now >= slot.restart_at:
                self._start(slot)

    # Reload: the supervisor reads and checks the configuration, and the workers apply it.

    def _exchange_messages(self, slot: _WorkerSlot, *, is_readable: bool) -> None:
        if slot.channel is None:
            return
        slot.channel.flush()
        for message in slot.channel.receive() if is_readable else ():
            if isinstance(message, ReloadRequest):
                slot.requests.append(message.number)
                self._is_reload_due = True
            elif isinstance(message, Applied) and self._reload is not None:
                self._reload.workers.discard(slot.number)
                if message.problem is not None:
                    self._reload.warnings.append(f"worker {slot.number} has not applied it: {message.problem}")

    def _continue_reload(self) -> None:
        """Start a reload that is due, and end one that all workers have applied."""
        if self._is_reload_due and self._reload is None and self._kill_at is None:
            self._is_reload_due = False
            self._begin_reload()
        if (running := self._reload) is None:
            return
        late = running.workers if time.monotonic() >= running.ends_at else set()
        if running.workers == late:
            self._reload = None
            texts = [f"worker {number} has not applied it yet" for number in sorted(late)]
            result = running.result
            self._end_reload(
                replace_struct(result, warnings=(*result.warnings, *running.warnings, *texts)), running.requests
            )

    def _begin_reload(self) -> None:
        requests = {slot.number: tuple(slot.requests) for slot in self._slots}
        for slot in self._slots:
            slot.requests.clear()
        if self._reader is None:
            return
        self._manager.reloading()
        result, new = self._reader.prepare()
        if new is None:
            self._end_reload(result, requests)
            return
        self._reader.commit(new)
        names = _principals(new.config, new.keys)
        places = tuple(keep_places(self._template.places, names, self._template.bucket_storage))
        self._template = replace(self._template, places=places)
        message = NewConfig(config=worker_config(new.config), keys=new.keys, places=places)
        workers = {slot.number for slot in self._slots if slot.process is not None}
        for slot in self._slots:
            if slot.channel is not None:
                slot.channel.send(message)
        self._reload = _RunningReload(result, requests, workers, time.monotonic() + _APPLY_TIMEOUT_S)

    def _end_reload(self, result: ReloadResult, requests: Mapping[int, tuple[int, ...]]) -> None:
        log_reload(result)
        self._manager.ready(result.error or "serving")
        for slot in self._slots:
            if slot.channel is not None:
                slot.channel.send(Finished(result, requests.get(slot.number, ())))

    def _start(self, slot: _WorkerSlot) -> None:
        slot.restart_at = None
        own_end, worker_end = socket.socketpair()
        slot.channel = SupervisorEnd(own_end)
        arguments = (slot.number, os.getpid(), worker_end)
        slot.process = _FORK_CONTEXT.Process(target=self._run_worker, args=arguments, daemon=True)
        # Until the child has its own handlers, a signal to it would be written to the pipe that it shares with us.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED_SIGNALS)
        try:
            slot.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED_SIGNALS)
            worker_end.close()

    def _on_workers_ready(self, numbers: bytes) -> None:
        for number in numbers:
            self._slots[number].backoff.record_ready()
            log.event(logging.INFO, "worker is ready", {"worker": number + 1})
        if not self._was_ready:
            self._was_ready = True
            self._announce()

    def _on_worker_exit(self, slot: _WorkerSlot) -> None:
        assert slot.process is not None
        slot.process.join()
        code = slot.process.exitcode or 0
        slot.process.close()
        slot.process = None
        if slot.channel is not None:
            slot.channel.close()
            slot.channel = None
        slot.requests.clear()
        if self._reload is not None:
            self._reload.workers.discard(slot.number)
        if self._kill_at is not None:
            # A worker that was stopped before it had its own signal handlers counts as a normal exit.
            self._exit_code = max(self._exit_code, 0 if -code in _STOP_SIGNALS else _shell_exit_code(code))
            return
        wait_s, requests = slot.backoff.record_exit(), self._template.loads.record_death(slot.number)
        is_refusal = code > 0 and not self._was_ready  # a configuration error, already printed; a restart cannot help
        if is_refusal or (slot.backoff.is_exhausted and not self._running):
            self._exit_code = max(self._exit_code, _shell_exit_code(code))
            self._stop_workers()
            return
        slot.restart_at = time.monotonic() + wait_s
        fields = {"worker": slot.number, "restart_s": wait_s, "requests_cut": requests}
        log.event(logging.ERROR, f"worker {describe_exit(code)}", fields)

    def _stop_workers(self) -> None:
        """Send SIGTERM to all workers, or SIGINT, which aborts running requests, if they are stopping already."""
        number = signal.SIGTERM if self._kill_at is None else signal.SIGINT
        if self._kill_at is None:
            ui.print_hint("stopping: running requests may finish; press Ctrl-C again to stop at once")
            self._manager.stopping()
            self._kill_at = time.monotonic() + self._drain_s + KILL_AFTER_S
            for slot in self._slots:
                slot.restart_at = None
            for listening in self._template.sockets:  # otherwise new connections would wait in the backlog
                listening.close()
        else:
            self._kill_at = min(self._kill_at, time.monotonic() + KILL_AFTER_S)
        for process in self._running:
            if process.pid is not None:
                os.kill(process.pid, number)

    def _run_worker(self, number: int, parent: int, control: socket.socket) -> NoReturn:
        for slot in self._slots:
            if slot.channel is not None:
                slot.channel.close()
        os.setsid()  # Ctrl-C on the terminal goes to the supervisor only
        signal.set_wakeup_fd(-1)
        for stop_signal in _STOP_SIGNALS:
            signal.signal(stop_signal, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED_SIGNALS)
        # The worker exits with the supervisor, however that ends: nothing else holds the write end of this pipe.
        signal_on_parent_death(signal.SIGKILL, parent)
        os.dup2(self._parent_pipe[0], 0)
        os.close(self._parent_pipe[1])
        exit_on_stdin_eof()
        log.LOGGER.handlers.clear()  # the log handler of a worker has a thread, that of the supervisor has none

        def on_ready() -> None:
            os.write(self._ready[1], bytes([number - 1]))

        try:
            code = self._serve(replace(self._template, number=number, on_ready=on_ready, control=control))
        except UsageError as error:
            ui.print_note(str(error))
            code = ExitCode.USAGE
        sys.exit(int(code))


@dataclass
class _RunningReload:
    result: ReloadResult
    requests: Mapping[int, tuple[int, ...]]
    """Requests to reload that it answers, by worker."""
    workers: set[int]
    """Workers that have not applied it yet."""
    ends_at: float
    warnings: list[str] = field(default_factory=list)


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """Open a pipe; yield its read end and its write end."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


@contextmanager
def _signals_to_pipe(pipe: int) -> Iterator[None]:
    """Write a byte to the pipe for each signal. Afterwards signals are ignored."""
    os.set_blocking(pipe, False)
    signal.set_wakeup_fd(pipe, warn_on_full_buffer=False)
    for number in _HANDLED_SIGNALS:
        signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)


@contextmanager
def _supervisor_log(formatter: logging.Formatter, level: int) -> Iterator[None]:
    """Log of the supervisor."""
    handler = _NonBlockingHandler()
    handler.setFormatter(formatter)
    log.LOGGER.setLevel(level)
    log.LOGGER.addHandler(handler)
    try:
        yield
    finally:
        log.LOGGER.removeHandler(handler)


class _NonBlockingHandler(logging.Handler):
    """Writes log lines without a thread, and drops lines that would block."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line if stderr accepts it at once; a pipe does for up to 4,096 bytes (PIPE_BUF)."""
        line = self.format(record).encode()[:4000] + b"\n"
        if select.select([], [sys.stderr], [], 0)[1]:
            try:
                os.write(sys.stderr.fileno(), line)
            except OSError:  # the reader has gone
                return


def _shell_exit_code(code: int) -> int:
    """Return the exit code as shells report it: 128 + the signal that ended the process."""
    return code if code >= 0 else 128 - code
