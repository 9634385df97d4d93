"""Recording of upstream responses (`--record`), as traces that `lint`, `fix` and `mock` read.

A thread writes the files, with a bounded queue: if the disk is too slow, full or broken, traces are dropped and
counted. A trace is NAME.json and NAME.body; both appear when they are complete, or not at all.

Request headers are never recorded, response headers only from a list of harmless ones. Secrets are redacted everywhere
but in the body: a body with a secret is not recorded.
"""

import contextlib
import logging
import os
import queue
import re
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from welldone.http.redaction import SecretRedactor
from welldone.server.observe import log

SAFE_HEADERS = frozenset(
    {"cache-control", "content-encoding", "content-length", "content-type", "date", "retry-after", "server"}
    | {"transfer-encoding", "x-accel-buffering", "x-request-id"}
)
"""Reply headers without secrets. Recordings and captures have no others."""
WAITING_LIMIT_BYTES = 64 * 2**20
"""Bytes that wait for the disk, over all traces: a second of a slow disk."""
BODY_LIMIT_BYTES = 256 * 2**20
"""Longest recorded body: half of what `lint` reads."""
DISK_ERROR_PAUSE_S = 30.0
"""Pause after a disk error: a full disk stays full for a while."""
LOSS_LOG_INTERVAL_S = 60.0
"""Interval of warnings about dropped traces."""
FINDABLE_TRACES = 200
"""Finished traces that can be found by request id: as many as the web page lists."""
CLOSE_S = 5.0
"""Time at shutdown to write the last traces."""

_FLUSH_BYTES = 16384  # buffered per trace: 16 MB for a thousand streams
_PIECES_LIMIT = 2**20  # timestamps per trace; later data counts to the last one
_PIECE_BYTES = 16  # memory of a timestamp and a size
_NAME_LIMIT = 64
_UNSAFE_IN_NAME = re.compile(r"[^A-Za-z0-9.-]+")
_encode = msgspec.json.encode


class TraceRecorder:
    """Records traces from `start` to `close`. Files are written in a thread; all else runs in the event loop."""

    def __init__(
        self, folder: Path, *, secrets: Iterable[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.clock = clock
        self.secrets: SecretRedactor = SecretRedactor(secrets)
        self.written: int = 0
        """Traces on the disk."""
        self.withheld = 0
        """Traces not written because they contain a secret."""
        self.folder = folder
        self._findable: OrderedDict[str, str] = OrderedDict()  # written by the thread, read by the event loop
        self._lost = 0  # counted by the event loop
        self._unwritten = 0  # counted by the thread
        self._count = 0
        self._jobs: queue.SimpleQueue[tuple[TraceWriter, Callable[[], None], int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name="recorder", daemon=True)
        self.unfinished: set[TraceWriter] = set()
        """Traces with files of temporary names. Used by the thread only."""
        # Each is written by one thread; the difference is what waits.
        self._reserved_bytes = 0
        self._released_bytes = 0
        self._is_closed = False
        self._paused_until = float("-inf")
        self._has_disk_error = False
        self._loss_logged_at = float("-inf")

    @property
    def dropped(self) -> int:
        """Traces dropped: too large, too many for the disk, or disk errors."""
        return self._lost + self._unwritten

    def start(self) -> None:
        """Create the folder and start the thread. Raises `OSError`."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._thread.start()

    def close(self) -> None:
        """Write the finished traces, up to `CLOSE_S`; unfinished ones are dropped."""
        self._is_closed = True
        self._jobs.put(None)
        self._thread.join(CLOSE_S)

    def begin(self, endpoint: str, request: Mapping[str, Any], upstream: str, request_id: str) -> "TraceWriter":
        """Start the trace of an exchange."""
        fields = {"server": upstream, "endpoint": endpoint, "method": "POST", "request_id": request_id}
        record = _encode({**fields, "request": request})
        self._count += 1
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3] + "Z"
        # With the process id: several workers may write into one folder.
        names = [now, *(_safe_name(self.secrets.redact(name)) for name in (upstream, endpoint))]
        name = "_".join([*names, f"{os.getpid()}-{self._count:06}"])
        writer = TraceWriter(self, name, request_id, record)
        if self.clock() < self._paused_until or not writer.reserve(len(record)):
            writer.drop()
        return writer

    def find(self, request_id: str) -> str | None:
        """The name of the last trace of a request, if it is finished and recent."""
        return self._findable.get(request_id)

    def reserve(self, size: int) -> bool:
        """Reserve bytes of the queue; False if it is full."""
        if self._is_closed or self._reserved_bytes - self._released_bytes + size > WAITING_LIMIT_BYTES:
            return False
        self._reserved_bytes += size
        return True

    def enqueue(self, writer: "TraceWriter", job: Callable[[], None], size: int) -> None:
        """Queue a job of a trace for the thread; `size` bytes are released when it is done."""
        self._jobs.put((writer, job, size))

    def count_drop(self) -> None:
        """Count a dropped trace, and log a warning from time to time."""
        self._lost += 1
        now = self.clock()
        if now - self._loss_logged_at >= LOSS_LOG_INTERVAL_S:
            self._loss_logged_at = now
            log.event(logging.WARNING, "traces were not recorded", {"dropped": self.dropped})

    # The methods below run in the thread.

    def add_written(self, name: str, request_id: str) -> None:
        """Count a trace that is on the disk, and make it findable."""
        self.written += 1
        self._has_disk_error = False
        self._findable[request_id] = name
        self._findable.move_to_end(request_id)
        if len(self._findable) > FINDABLE_TRACES:
            self._findable.popitem(last=False)

    def _write_all(self) -> None:
        while (entry := self._jobs.get()) is not None:
            writer, job, size = entry
            try:
                job()
            except OSError as error:
                writer.remove()
                self._pause(error)
            self._released_bytes += size
        for writer in tuple(self.unfinished):
            writer.remove()

    def _pause(self, error: OSError) -> None:
        self._unwritten += 1
        self._paused_until = self.clock() + DISK_ERROR_PAUSE_S
        if not self._has_disk_error:
            self._has_disk_error = True
            reason = error.strerror or "disk error"
            log.event(logging.ERROR, "recording is paused", {"reason": reason, "pause_s": DISK_ERROR_PAUSE_S})


class TraceWriter:
    """The trace of one exchange. After it was dropped, all calls are ignored."""

    def __init__(self, recorder: TraceRecorder, name: str, request_id: str, record: bytes) -> None:
        self._recorder = recorder
        self._name = name
        self._request_id = request_id
        self._record = record
        self._started_at = recorder.clock()
        self._reply_fields: dict[str, object] = {"status": None, "headers": []}
        self._times = array("d")
        self._sizes = array("Q")
        self._buffer: list[bytes] = []
        self._buffer_bytes = 0
        self._reserved_bytes = 0  # reserved and not yet queued
        self._size = 0
        self._is_finished = False
        # Used by the thread only: the temporary and the final path of each file.
        self._files = {
            suffix: (recorder.folder / f".{name}.{suffix}.part", recorder.folder / f"{name}.{suffix}")
            for suffix in ("body", "json")
        }
        self._has_secret = False
        self._is_lost = False
        self._tail = b""  # may contain the beginning of a secret

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Record status and headers."""
        safe = [[name, value] for name, value in headers.items() if name.lower() in SAFE_HEADERS]
        self._reply_fields = {"status": f"HTTP/1.1 {status}", "headers": safe, "head_s": self._now()}

    def data(self, data: bytes) -> None:
        """Record a piece of the body."""
        if self._is_finished:
            return
        self._size += len(data)
        if self._size > BODY_LIMIT_BYTES or not self.reserve(len(data) + _PIECE_BYTES):
            self.drop()
            return
        if len(self._sizes) < _PIECES_LIMIT:
            self._times.append(self._now())
            self._sizes.append(len(data))
        else:
            self._sizes[-1] += len(data)
        self._buffer.append(data)
        self._buffer_bytes += len(data)
        if self._buffer_bytes >= _FLUSH_BYTES:
            self._flush()

    def end(self, error: str | None, *, is_aborted: bool = False) -> None:
        """Record the end, complete or with an error. `is_aborted`: the client disconnected, and the rest is unknown."""
        if self._is_finished:
            return
        self._is_finished = True
        self._flush()
        self._reply_fields |= {"body_complete": None if is_aborted else error is None, "body": f"{self._name}.body"}
        if error is not None:
            self._reply_fields["error"] = error
        self._recorder.enqueue(self, self._finish, self._reserved_bytes)

    def reserve(self, size: int) -> bool:
        """Reserve bytes of the queue; False if it is full."""
        if not self._recorder.reserve(size):
            return False
        self._reserved_bytes += size
        return True

    def drop(self) -> None:
        """Drop the trace and delete its files."""
        self._is_finished = True
        self._buffer.clear()
        self._recorder.count_drop()
        self._recorder.enqueue(self, self.remove, self._reserved_bytes)

    def _now(self) -> float:
        return round(self._recorder.clock() - self._started_at, 6)

    def _flush(self) -> None:
        if self._buffer:
            data = b"".join(self._buffer)
            self._recorder.enqueue(self, partial(self._add, data), self._buffer_bytes)
            self._reserved_bytes -= self._buffer_bytes
            self._buffer.clear()
            self._buffer_bytes = 0

    # The methods below run in the thread. After an `OSError` the trace is removed.

    def _add(self, data: bytes) -> None:
        """Append to the body."""
        self._recorder.unfinished.add(self)
        if self._is_lost or self._has_secret:
            return
        secrets, window = self._recorder.secrets, self._tail + data
        self._has_secret = secrets.occur_in(window)
        self._tail = window[max(0, len(window) - secrets.longest_bytes + 1) :]
        self._append("body", data)

    def _finish(self) -> None:
        """Write the record and rename both files. It is encoded here, since it may be long."""
        self._recorder.unfinished.discard(self)
        if self._is_lost:
            return
        if self._has_secret:
            self.remove()
            self._recorder.withheld += 1
            return
        pieces = list(zip(self._times, self._sizes, strict=True))
        record = self._record[:-1] + b"," + _encode(self._reply_fields | {"pieces": pieces})[1:]
        self._append("body", b"")
        self._append("json", self._recorder.secrets.redact_json(record) + b"\n")
        for temporary, final in self._files.values():
            temporary.rename(final)
        self._recorder.add_written(self._name, self._request_id)

    def remove(self) -> None:
        """Delete the files."""
        self._recorder.unfinished.discard(self)
        self._is_lost = True
        with contextlib.suppress(OSError):
            for temporary, _ in self._files.values():
                temporary.unlink(missing_ok=True)

    def _append(self, suffix: str, data: bytes) -> None:
        # The file is closed after each piece: a thousand open files exceed the usual limit of descriptors.
        with open(self._files[suffix][0], "ab", opener=_private) as file:
            file.write(data)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _safe_name(text: str) -> str:
    """The text as part of a file name."""
    return _UNSAFE_IN_NAME.sub("-", text)[:_NAME_LIMIT].strip(".-") or "x"
