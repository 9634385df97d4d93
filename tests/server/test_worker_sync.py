"""Worker sync over Unix sockets: merged metrics and queries."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from tests.http.aio import run
from welldone.config.server import ServeSettings
from welldone.http.shared_memory import SharedNumbers, WorkerLoads
from welldone.server.observe.metrics import Metrics
from welldone.server.observe.workers import QueryHandler, Worker, WorkerQuery, WorkerSync
from welldone.server.resume.sources import WorkerStreams
from welldone.server.resume.streams import EventBatch, StreamLostError, StreamRegistry, StreamState

Make = Callable[[int, int], Worker]
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(scope="module")
def numbers() -> Iterator[SharedNumbers]:
    """Shared rate limits, unused here."""
    shared = SharedNumbers(1)
    yield shared
    shared.close()


@pytest.fixture
def worker(short_path: Path, numbers: SharedNumbers) -> Make:
    """A factory of workers."""

    def make(number: int, count: int) -> Worker:
        return Worker(
            number=number,
            count=count,
            sockets=(),
            loads=WorkerLoads(4),
            bucket_storage=numbers,
            folder=short_path,
            on_ready=lambda: None,
        )

    return make


def answering(answer: Callable[[WorkerQuery], bytes]) -> QueryHandler:
    """A query handler."""

    async def respond(query: WorkerQuery) -> bytes:
        return answer(query)

    return respond


def _value(page: bytes, name: str) -> float:
    return next(float(line.split()[1]) for line in page.decode().splitlines() if line.startswith(f"{name} "))


def test_each_worker_reports_the_same_sum(worker: Make) -> None:
    async def main() -> None:
        crew = []
        for number in (1, 2, 3):
            metrics = Metrics([], ["lab"])
            for _ in range(number):
                metrics.count_disconnect()
            crew.append(WorkerSync(worker(number, 3), metrics.render))
            await crew[-1].start()
        for siblings in crew:
            kind, page = await siblings.metrics_page()
            assert kind.startswith("text/plain")
            assert _value(page, "welldone_client_disconnects_total") == 6
            assert _value(page, "welldone_workers_missing") == 0
        for siblings in crew:
            await siblings.stop()

    run(main())


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()  # until the other side closes
    writer.close()


async def _cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"welldone_client_disconnects_total 1.0\n")
    writer.close()


async def _endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            writer.write(b"x" * 2**20)
            await writer.drain()
    except ConnectionError:
        writer.close()


@pytest.mark.parametrize("answer", [None, _silent, _cut, _endless])
def test_a_worker_without_a_complete_page_in_time_is_left_out(
    answer: Answer | None, short_path: Path, worker: Make
) -> None:
    async def main() -> None:
        server = None if answer is None else await asyncio.start_unix_server(answer, short_path / "2.sock")
        metrics = Metrics([], ["lab"])
        metrics.count_disconnect()
        siblings = WorkerSync(worker(1, 2), metrics.render)
        _, page = await siblings.metrics_page()
        assert _value(page, "welldone_workers_missing") == 1
        assert _value(page, "welldone_client_disconnects_total") == 1
        if server is not None:
            server.close()

    run(main())


def test_a_restarted_worker_reuses_the_socket_path(short_path: Path, worker: Make) -> None:
    async def main() -> None:
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(short_path / "2.sock"))
        second = WorkerSync(worker(2, 2), Metrics([], ["lab"]).render)
        await second.start()
        _, page = await WorkerSync(worker(1, 2), Metrics([], ["lab"]).render).metrics_page()
        assert _value(page, "welldone_workers_missing") == 0
        await second.stop()

    run(main())


def test_gather_returns_all_non_empty_replies(worker: Make) -> None:
    async def main() -> None:
        crew = [WorkerSync(worker(number, 4), Metrics([]).render) for number in (1, 2, 3, 4)]
        crew[0].register("name", answering(lambda query: b"my own, which I know"))
        crew[1].register("name", answering(lambda query: msgspec.json.encode(["two", query["of"]])))
        crew[2].register("name", answering(lambda query: b""))
        for siblings in crew:
            await siblings.start()
        replies = await crew[0].gather("name", {"of": "x\n\0"})
        assert [msgspec.json.decode(answer) for answer in replies] == [["two", "x\n\0"]]
        assert await crew[0].gather("unknown topic", {}) == []
        assert crew[0].count == 4
        for siblings in crew:
            await siblings.stop()

    run(main())


def test_a_long_reply_is_complete(worker: Make) -> None:
    async def main() -> None:
        one, other = (WorkerSync(worker(number, 2), Metrics([]).render) for number in (1, 2))
        other.register("much", answering(lambda query: b"x" * 5_000_000))
        await other.start()
        assert [len(answer) for answer in await one.gather("much", {})] == [5_000_000]
        await other.stop()

    run(main())


@pytest.mark.parametrize("query", [b"", b"no JSON\n", b"[]\n", b'{"topic": 1}\n', b"x" * 200_000])
def test_an_invalid_query_gets_an_empty_reply(query: bytes, short_path: Path, worker: Make) -> None:
    async def main() -> None:
        siblings = WorkerSync(worker(1, 2), Metrics([]).render)
        await siblings.start()
        reader, writer = await asyncio.open_unix_connection(short_path / "1.sock")
        writer.write(query)
        writer.write_eof()
        with suppress(ConnectionError):  # the worker closes early
            assert await reader.read() in (b"", b"\0")
        writer.close()
        await siblings.stop()

    run(main())


@pytest.mark.parametrize("answer", [_silent, _cut, _endless])
def test_an_incomplete_reply_is_ignored(answer: Answer, short_path: Path, worker: Make) -> None:
    async def main() -> None:
        server = await asyncio.start_unix_server(answer, short_path / "2.sock")
        assert await WorkerSync(worker(1, 2), Metrics([]).render).gather("name", {}) == []
        server.close()

    run(main())


def test_streams_of_another_worker_are_read_and_stopped(worker: Make) -> None:
    async def main() -> None:
        syncs = [WorkerSync(worker(number, 2), Metrics([]).render) for number in (1, 2)]
        registry = StreamRegistry(ServeSettings())
        other, here = WorkerStreams(syncs[0], registry), WorkerStreams(syncs[1], StreamRegistry(ServeSettings()))
        for sync in syncs:
            await sync.start()
        assert await other.find("me", "stream_1") is None
        stream = registry.open("me", "stream_1")
        assert stream is not None
        stream.write(b"data: 1\n\n: keep-alive\n\ndata: 2\n\nda")
        assert await here.find("you", "stream_1") is None
        source = await here.find("me", "stream_1")
        assert source is not None
        assert await source.read(0, 0.0) == EventBatch(0, 2, StreamState.RUNNING, [b"data: 1\n\n", b"data: 2\n\n"])
        assert (await source.read(2, 0.0)).events == []
        reading = asyncio.create_task(source.read(2, 30.0))
        asyncio.get_running_loop().call_later(0.7, stream.write, b"ta: 3\n\n")  # longer than one query waits
        assert (await reading).events == [b"data: 3\n\n"]
        stream.end(StreamState.COMPLETE)
        assert (await source.read(3, 30.0)).state is StreamState.COMPLETE
        await source.stop()
        assert len(registry) == 0
        await source.stop()
        with pytest.raises(StreamLostError):
            await source.read(3, 30.0)
        for sync in syncs:
            await sync.stop()

    run(main())
