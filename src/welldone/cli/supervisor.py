"""Several processes that serve on one port, and the parent that keeps them: who dies is replaced, and all end together.

The workers are forks of the parent. So they have its settings and its secrets without a file or a command line in
between, and accept on the same sockets: no connection is lost when one of them dies. That is why the parent has one
thread and no event loop. It serves nobody; it waits for signals, for workers that are ready, and for those that ended.
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import NoReturn

from welldone.cli import ui
from welldone.cli.ui import ExitCode, UsageError
from welldone.config.server import Config, ServeSettings
from welldone.engines.parent_death import exit_on_stdin_eof, signal_on_parent_death
from welldone.engines.process import describe_exit
from welldone.engines.supervisor import RestartBackoff
from welldone.http import sockets
from welldone.http.shared_memory import SharedNumbers
from welldone.server.access.keys import MAX_KEYS
from welldone.server.observe import log
from welldone.server.observe.workers import Worker

# SIGHUP: ignored with a log line, unless the terminal that the server was started in has closed.


SIGHUP_IGNORED = "SIGHUP is ignored: settings are read at the start; restart the server to change them"


class HangupPolicy:
    """What a SIGHUP asks for. Make it before a handler of the signal is set.

    `kill -HUP` and log rotation must not end a server. A terminal that closes sends the same signal, and a server in it
    should end with it, unless it was started with nohup, which ignores the signal from the start.
    """

    def __init__(self) -> None:
        self._ends_with_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()

    def should_exit(self) -> bool:
        """Whether the server should end; if not, that is logged."""
        if self._ends_with_terminal and not _has_terminal():
            return True
        log.event(logging.INFO, SIGHUP_IGNORED)
        return False


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal: it loses it when the terminal closes."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


_KILL_AFTER_S = 30.0
"""For a worker to end after what ran has been given its time. A server needs up to 18 s; after that it is killed."""

_SHARED_COUNTER_PAIRS = 2 * (MAX_KEYS + 1)
"""Of numbers that the workers share: requests and tokens of each key, and of those who have none."""

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_HANDLED_SIGNALS = (*_STOP_SIGNALS, signal.SIGHUP)
_FORK_CONTEXT = multiprocessing.get_context("fork")

ServeWorker = Callable[[Worker], int]
"""Serves until told to stop; the exit code."""


def run_workers(
    settings: ServeSettings,
    serve: ServeWorker,
    *,
    announce: Callable[[int], None],
    formatter: logging.Formatter,
    level: int,
) -> int:
    """Serve with `settings.workers` processes until told to stop; the worst of their exit codes.

    `announce` is called once, with the port, when the first of them serves.

    Raises:
        OSError: the address cannot be had.
    """
    listening = sockets.bind_sockets(settings.host, settings.port)
    port = listening[0].getsockname()[1]
    numbers = SharedNumbers(_SHARED_COUNTER_PAIRS)
    try:
        with tempfile.TemporaryDirectory(prefix="welldone-") as folder, _supervisor_log(formatter, level):

            def work(number: int, ready: Callable[[], None]) -> int:
                log.LOGGER.handlers.clear()  # a worker's own log has a thread, and the parent's has none
                return serve(
                    Worker(
                        number=number,
                        count=settings.workers,
                        sockets=tuple(listening),
                        bucket_storage=numbers,
                        folder=Path(folder),
                        on_ready=ready,
                    )
                )

            crew = WorkerSupervisor(settings.workers, work, drain_s=settings.drain_s, sockets=listening)
            return crew.run(announce=lambda: announce(port))
    finally:
        sockets.close_sockets(listening)
        numbers.close()


def worker_config(config: Config) -> Config:
    """The settings of one worker. What an upstream takes at once is divided, so that all together keep to that."""
    count = config.server.workers
    upstreams = tuple(
        replace(one, limit=max(1, one.limit // count), queue=math.ceil(one.queue / count)) for one in config.upstreams
    )
    return replace(config, upstreams=upstreams)


class WorkerNumberFilter(logging.Filter):
    """Gives each line of a log the number of the worker that says it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        record.__dict__["fields"] = {"worker": self._number, **record.__dict__.get("fields", {})}
        return True


class _WorkerSlot:
    """The place of a worker, and who fills it now."""

    def __init__(self, number: int, clock: Callable[[], float]) -> None:
        self.number = number
        self.backoff = RestartBackoff(clock)
        self.process: ForkProcess | None = None
        self.restart_at: float | None = None
        """When it is to be filled again."""


class WorkerSupervisor:
    """The workers. `work` gets the number of one, from 1, and what to call when it serves; it gives the exit code."""

    def __init__(
        self,
        count: int,
        work: Callable[[int, Callable[[], None]], int],
        *,
        drain_s: float,
        sockets: Iterable[socket.socket] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work = work
        self._drain_s = drain_s
        self._sockets = sockets
        self._clock = clock
        self._slots = [_WorkerSlot(number, clock) for number in range(1, count + 1)]
        self._was_ready = False
        self._kill_at: float | None = None
        """While they end: when those that have not are killed."""
        self._exit_code: int = ExitCode.OK
        self._hangup = HangupPolicy()

    def run(self, *, announce: Callable[[], None] = lambda: None) -> int:
        """Keep the workers until told to stop; the worst of their exit codes."""
        self._announce = announce
        with (
            _pipe() as self._signals,
            _pipe() as self._ready,
            _pipe() as self._parent_pipe,
            _signals_to_pipe(self._signals[1]),
        ):
            try:
                for post in self._slots:
                    self._start(post)
                while self._kill_at is None or self._running:
                    self._wait_for_events()
            finally:
                for process in self._running:  # none, but for a mistake of ours
                    process.kill()
        return self._exit_code

    @property
    def _running(self) -> list[ForkProcess]:
        return [post.process for post in self._slots if post.process is not None]

    # What the parent does.

    def _wait_for_events(self) -> None:
        """Wait for the next thing that happens, and do what it asks for."""
        due = [post.restart_at for post in self._slots if post.restart_at is not None]
        due += [] if self._kill_at is None else [self._kill_at]
        ends = {post.process.sentinel: post for post in self._slots if post.process is not None}
        signals, ready = self._signals[0], self._ready[0]
        heard = wait([signals, ready, *ends], max(0.0, min(due) - self._clock()) if due else None)
        if ready in heard:
            self._on_workers_ready(os.read(ready, 4096))
        for sentinel, post in ends.items():
            if sentinel in heard:
                self._on_worker_exit(post)
        if signals in heard:
            for number in os.read(signals, 4096):
                if number in _STOP_SIGNALS or (number == signal.SIGHUP and self._hangup.should_exit()):
                    self._stop_workers()
        self._run_due_timers()

    def _run_due_timers(self) -> None:
        now = self._clock()
        if self._kill_at is not None and now >= self._kill_at:
            for process in self._running:
                process.kill()
        for post in self._slots:
            if post.restart_at is not None and now >= post.restart_at:
                self._start(post)

    def _start(self, slot: _WorkerSlot) -> None:
        slot.restart_at = None
        slot.process = _FORK_CONTEXT.Process(target=self._run_worker, args=(slot.number, os.getpid()), daemon=True)
        # A signal that comes to the child before it is ready for one would be told to the parent, by the pipe of both.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED_SIGNALS)
        try:
            slot.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED_SIGNALS)

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
        if self._kill_at is not None:
            # Who was asked to end before it could hear that has ended as it should.
            self._exit_code = max(self._exit_code, 0 if -code in _STOP_SIGNALS else _shell_exit_code(code))
            return
        wait_s = slot.backoff.record_exit()
        is_refusal = code > 0 and not self._was_ready  # it has said why, and would say the same again
        if is_refusal or (slot.backoff.is_exhausted and not self._running):
            self._exit_code = max(self._exit_code, _shell_exit_code(code))
            self._stop_workers()
            return
        slot.restart_at = self._clock() + wait_s
        log.event(logging.ERROR, f"worker {describe_exit(code)}", {"worker": slot.number, "again_s": wait_s})

    def _stop_workers(self) -> None:
        """Ask all workers to end; asked once more, they hurry."""
        asked = signal.SIGTERM if self._kill_at is None else signal.SIGINT  # which makes them hurry
        if self._kill_at is None:
            ui.print_hint("ending: running requests may finish; once more to end at once")
            self._kill_at = self._clock() + self._drain_s + _KILL_AFTER_S
            for post in self._slots:
                post.restart_at = None
            for one in self._sockets:  # else clients would wait here for workers who take nobody any more
                one.close()
        else:
            self._kill_at = min(self._kill_at, self._clock() + _KILL_AFTER_S)
        for process in self._running:
            if process.pid is not None:
                os.kill(process.pid, asked)

    # What a worker does.

    def _run_worker(self, number: int, parent: int) -> NoReturn:
        os.setsid()  # the terminal's Ctrl-C is for the parent alone
        signal.set_wakeup_fd(-1)
        for one in _STOP_SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED_SIGNALS)
        self._exit_with_parent(parent)
        try:
            code = self._work(number, lambda: _write_byte(self._ready[1], number - 1))
        except UsageError as error:
            ui.print_note(str(error))
            code = ExitCode.USAGE
        sys.exit(int(code))

    def _exit_with_parent(self, parent: int) -> None:
        """End with the parent, however that ends. Its end of the rope is held by nobody else."""
        signal_on_parent_death(signal.SIGKILL, parent)
        os.dup2(self._parent_pipe[0], 0)
        os.close(self._parent_pipe[1])
        exit_on_stdin_eof()


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """A pipe's end to read from, and its end to write to."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


@contextmanager
def _signals_to_pipe(pipe: int) -> Iterator[None]:
    """A byte comes in the pipe for each signal; signals do nothing else, also afterwards, when all is done."""
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
    """The parent's own log."""
    handler = _NonBlockingHandler()
    handler.setFormatter(formatter)
    log.LOGGER.setLevel(level)
    log.LOGGER.addHandler(handler)
    try:
        yield
    finally:
        log.LOGGER.removeHandler(handler)


class _NonBlockingHandler(logging.Handler):
    """Writes lines without a thread, and drops those that it would have to wait for."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, if standard error takes it at once. A pipe does so for what is shorter than 4,096 bytes."""
        line = self.format(record).encode()[:4000] + b"\n"
        if select.select([], [sys.stderr], [], 0)[1]:
            try:
                os.write(sys.stderr.fileno(), line)
            except OSError:  # nobody reads it any more
                return


def _write_byte(pipe: int, number: int) -> None:
    os.write(pipe, bytes([number]))


def _shell_exit_code(code: int) -> int:
    """An exit code as shells show it: 128 and the number of the signal that ended a process."""
    return code if code >= 0 else 128 - code
