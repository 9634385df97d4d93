"""Streams of other processes: of the other workers, over `WorkerSync`, and of other front ends, in the shared store.

A process copies the events of its streams to the store, and other front ends read them there: a copy has the same
limits as the original, is refreshed while its process lives, and expires otherwise.
"""

import asyncio
import time
from contextlib import suppress
from operator import methodcaller

import msgspec

from welldone.gateway.stream_endings import server_gone
from welldone.server.access.store import STORE_RETRY_S, RefusedError, SharedStore, StoreUnavailableError
from welldone.server.observe.workers import WorkerQuery, WorkerSync
from welldone.server.resume.streams import (
    LOST,
    READING,
    STOPPED,
    EventBatch,
    ResumableStream,
    StreamLostError,
    StreamRegistry,
    StreamState,
)

_READ_TOPIC = "stream"
_STOP_TOPIC = "stream-stop"
_WORKER_WAIT_S = 0.5
"""How long another worker waits for an event before it replies: half the timeout of a query."""

_COPY_INTERVAL_S = 0.05
"""Between two writes of one stream to the store, and between two reads: 20 round trips per second."""
_COPY_DELAY_S = 2.0
"""How long a reader waits for a copy that is behind the stream."""
HEARTBEAT_S = 1.0
"""Longest interval between two writes to the copy of a running stream, and between two messages of a reader."""
COPY_TTL_S = 30.0
"""How long the copy of a running stream is kept without a write. Until then, clients can read what it has."""
LATE_S, DEAD_S = 1.5, 4.5
"""Time without a write after which the process of a stream is late, and dead. It writes several times per second, or
every second. The longest time measured was 1.05 s on an idle machine with two cores, 1.22 s beside sixteen busy
processes, and 2.7 s with a twentieth of a core. A client of a living process that counts as dead may resume again."""
_LATE_CHECKS = 4
"""Checks, one per second, in which a dead process must have been late: after an outage of the store, or after a pause
of the whole machine, it needs time to write. With `DEAD_S`, its readers learn of its death within 5.5 seconds."""
_RETRY_S = STORE_RETRY_S / 4
"""Between two attempts to write to a store that is unavailable: its return is noticed soon after the probe."""
_STORE_PATIENCE_S = 10.0
"""How long a reader waits for a store that is unavailable."""


class WriterDiedError(Exception):
    """The process that generated a stream has died. `first`: an event of the stream; `count`: how many it has."""

    def __init__(self, first: bytes, count: int) -> None:
        self.first: bytes = first
        self.count: int = count


class _RemoteSource:
    def attach(self) -> None:
        """Do nothing: reading keeps the stream."""

    def detach(self) -> None:
        """Do nothing: the stream is kept for the time after the last read."""


class WorkerStreams:
    """The streams of the other workers of this server, and the replies to their queries."""

    def __init__(self, worker_sync: WorkerSync, registry: StreamRegistry) -> None:
        self._worker_sync = worker_sync
        self._registry = registry
        worker_sync.register(_READ_TOPIC, self._answer_read)
        worker_sync.register(_STOP_TOPIC, self._answer_stop)

    async def find(self, principal: str, stream_id: str) -> "WorkerSource | None":
        """Return a stream of another worker."""
        query = {"principal": principal, "id": stream_id, "after": 0, "wait_s": 0.0}
        others = self._worker_sync.others
        replies = await asyncio.gather(*(self._worker_sync.query(number, _READ_TOPIC, query) for number in others))
        number = next((number for number, reply in zip(others, replies, strict=True) if reply), None)
        return None if number is None else WorkerSource(self._worker_sync, number, principal, stream_id)

    async def _answer_read(self, query: WorkerQuery) -> bytes:
        stream = self._find(query)
        if stream is None:
            return b""
        stream.attach()
        try:
            return msgspec.json.encode(await stream.read(query["after"], query["wait_s"]))
        finally:
            stream.detach()  # restarts the time that the stream is kept

    async def _answer_stop(self, query: WorkerQuery) -> bytes:
        stream = self._find(query)
        if stream is not None:
            await stream.stop()
        return b""

    def _find(self, query: WorkerQuery) -> ResumableStream | None:
        return self._registry.get(query["principal"], query["id"])


class WorkerSource(_RemoteSource):
    """A stream of another worker."""

    def __init__(self, worker_sync: WorkerSync, number: int, principal: str, stream_id: str) -> None:
        self._worker_sync = worker_sync
        self._number = number
        self._address = {"principal": principal, "id": stream_id}

    async def read(self, after: int, wait_s: float) -> EventBatch:
        """See `EventSource.read`."""
        end = time.monotonic() + wait_s
        while True:
            left_s = max(0.0, end - time.monotonic())
            query = {**self._address, "after": after, "wait_s": min(left_s, _WORKER_WAIT_S)}
            reply = await self._worker_sync.query(self._number, _READ_TOPIC, query)
            if not reply:
                raise StreamLostError
            batch = msgspec.json.decode(reply, type=EventBatch)
            if batch.events or batch.state is not StreamState.RUNNING or left_s <= _WORKER_WAIT_S:
                return batch

    async def stop(self) -> None:
        """See `EventSource.stop`."""
        await self._worker_sync.query(self._number, _STOP_TOPIC, self._address)


class StoreSource(_RemoteSource):
    """The copy of another front end's stream in the shared store."""

    def __init__(self, store: SharedStore, principal: str, stream_id: str) -> None:
        self._store = store
        self._name = store.copy_name(principal, stream_id)
        self._next_message_at = 0.0
        self._late_checks = 0

    async def find(self) -> "StoreSource | None":
        """Return the source if the store has the stream.

        Raises:
            StoreUnavailableError: it is not known.
        """
        return None if await self._store.find(lambda client: client.read_events(self._name, 0)) is None else self

    async def read(self, after: int, wait_s: float) -> EventBatch:
        """See `EventSource.read`."""
        start, silent_s = time.monotonic(), 0.0
        while True:
            try:
                batch = await self._store.find(lambda client: client.read_events(self._name, after))
                if batch is None:
                    raise StreamLostError
                if time.monotonic() >= self._next_message_at:
                    self._next_message_at = time.monotonic() + HEARTBEAT_S
                    kept_s = await self._store.call(lambda client: client.message_writer(self._name, READING))
                    silent_s = COPY_TTL_S - kept_s
                    await self._check_writer(batch, silent_s)
            except StoreUnavailableError:
                self._late_checks = 0
                if time.monotonic() > start + (_STORE_PATIENCE_S if wait_s > 0 else 0.0):
                    raise
            else:
                is_behind = batch.count < after  # the copy, of what the reader has received elsewhere
                end = start + max(wait_s, _COPY_DELAY_S if is_behind else 0.0)
                if batch.events or batch.state is not StreamState.RUNNING or time.monotonic() >= end:
                    if is_behind and batch.state is StreamState.RUNNING and silent_s > LATE_S:
                        raise server_gone()  # before it has copied what the reader has received of it
                    return batch
            await asyncio.sleep(_COPY_INTERVAL_S)

    async def _check_writer(self, batch: EventBatch, silent_s: float) -> None:
        """Raise `WriterDiedError` if the process of the stream has died after the events that have been read."""
        is_late = batch.state is StreamState.RUNNING and not batch.events and silent_s > LATE_S
        self._late_checks = self._late_checks + 1 if is_late else 0
        if self._late_checks >= _LATE_CHECKS and silent_s > DEAD_S:
            copy = await self._store.call(lambda client: client.read_events(self._name, batch.dropped))
            raise WriterDiedError(copy.events[0] if copy is not None and copy.events else b"", batch.count)

    async def stop(self) -> None:
        """See `EventSource.stop`. The process of the stream reads the message at its next write."""
        await self._store.call(lambda client: client.message_writer(self._name, STOPPED))


class StoreCopies:
    """Copies of this process's streams in the shared store."""

    def __init__(self, store: SharedStore, registry: StreamRegistry) -> None:
        self._store = store
        self._registry = registry
        self._tasks: dict[ResumableStream, asyncio.Task[None]] = {}
        self._drops: set[asyncio.Task[None]] = set()
        registry.on_remove = self._drop

    def start(self, stream: ResumableStream) -> None:
        """Copy a stream until its end."""
        task = self._tasks[stream] = asyncio.create_task(self._copy(stream))
        task.add_done_callback(lambda _: self._tasks.pop(stream, None))

    async def close(self, timeout_s: float) -> None:
        """Wait until the last events of ended streams are copied."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=timeout_s)
        for task in (*self._tasks.values(), *self._drops):
            task.cancel()

    async def _copy(self, stream: ResumableStream) -> None:
        name, sent, wait_s = self._store.copy_name(stream.principal, stream.id), 0, 0.0
        while True:
            batch = await stream.peek(sent, wait_s)
            first = max(sent, batch.dropped) + 1
            last = first + len(batch.events) - 1
            state = batch.state if last == batch.count else StreamState.RUNNING
            ttl_s = COPY_TTL_S if state is StreamState.RUNNING else self._registry.keep_s
            copy = EventBatch(batch.dropped, last, state, batch.events)
            try:
                message = await self._store.call(methodcaller("append_events", name, copy, ttl_s))
            except RefusedError:
                return
            except StoreUnavailableError:
                await asyncio.sleep(_RETRY_S)
                continue
            sent, wait_s = (0, 0.0) if message == LOST else (last, HEARTBEAT_S)
            if message == STOPPED:
                await stream.stop()
            elif message == READING:
                self._registry.schedule_removal(stream)
            if state is not StreamState.RUNNING and sent == last:
                return
            await asyncio.sleep(_COPY_INTERVAL_S)

    def _drop(self, stream: ResumableStream) -> None:
        """Delete the copy of a stream that is forgotten here: it would exceed the limits of memory."""
        if (task := self._tasks.get(stream)) is not None:
            task.cancel()
        drop = asyncio.create_task(self._delete(self._store.copy_name(stream.principal, stream.id)))
        self._drops.add(drop)
        drop.add_done_callback(self._drops.discard)

    async def _delete(self, name: str) -> None:
        for _ in range(1 + int(self._registry.keep_s / STORE_RETRY_S)):  # then it has expired
            with suppress(StoreUnavailableError):
                await self._store.find(lambda client: client.drop_events(name))
                break
            await asyncio.sleep(STORE_RETRY_S)
