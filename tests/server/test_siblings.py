"""What several workers know together, gathered over their sockets: the page of metrics, and whatever else is asked."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from tests.http.aio import run
from welldone.http.shared_memory import SharedNumbers
from welldone.server.observe.metrics import Metrics
from welldone.server.observe.workers import QueryHandler, Worker, WorkerQuery, WorkerSync

Make = Callable[[int, int], Worker]
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(scope="module")
def numbers() -> Iterator[SharedNumbers]:
    """What workers share, which is not used here."""
    made = SharedNumbers(1)
    yield made
    made.close()


@pytest.fixture
def worker(short_path: Path, numbers: SharedNumbers) -> Make:
    """Makes one of several workers."""

    def make(number: int, count: int) -> Worker:
        return Worker(
            number=number, count=count, sockets=(), bucket_storage=numbers, folder=short_path, on_ready=lambda: None
        )

    return make


def answering(answer: Callable[[WorkerQuery], bytes]) -> QueryHandler:
    """As a process answers."""

    async def respond(question: WorkerQuery) -> bytes:
        return answer(question)

    return respond


def _value(page: bytes, name: str) -> float:
    return next(float(line.split()[1]) for line in page.decode().splitlines() if line.startswith(f"{name} "))


def test_each_worker_gives_the_same_sum(worker: Make) -> None:
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
    await reader.read()  # until the other has had enough
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
def test_who_gives_no_whole_page_in_time_is_left_out(answer: Answer | None, short_path: Path, worker: Make) -> None:
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


def test_a_worker_that_comes_after_one_that_was_killed_takes_its_socket(short_path: Path, worker: Make) -> None:
    async def main() -> None:
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(short_path / "2.sock"))
        second = WorkerSync(worker(2, 2), Metrics([], ["lab"]).render)
        await second.start()
        _, page = await WorkerSync(worker(1, 2), Metrics([], ["lab"]).render).metrics_page()
        assert _value(page, "welldone_workers_missing") == 0
        await second.stop()

    run(main())


def test_who_asks_hears_all_others_who_have_something_to_say(worker: Make) -> None:
    async def main() -> None:
        crew = [WorkerSync(worker(number, 4), Metrics([]).render) for number in (1, 2, 3, 4)]
        crew[0].register("name", answering(lambda question: b"my own, which I know"))
        crew[1].register("name", answering(lambda question: msgspec.json.encode(["two", question["of"]])))
        crew[2].register("name", answering(lambda question: b""))
        for siblings in crew:
            await siblings.start()
        heard = await crew[0].gather("name", {"of": "x\n\0"})
        assert [msgspec.json.decode(answer) for answer in heard] == [["two", "x\n\0"]]
        assert await crew[0].gather("nobody knows", {}) == []
        assert crew[0].count == 4
        for siblings in crew:
            await siblings.stop()

    run(main())


def test_an_answer_of_many_pieces_comes_whole(worker: Make) -> None:
    async def main() -> None:
        one, other = (WorkerSync(worker(number, 2), Metrics([]).render) for number in (1, 2))
        other.register("much", answering(lambda question: b"x" * 5_000_000))
        await other.start()
        assert [len(answer) for answer in await one.gather("much", {})] == [5_000_000]
        await other.stop()

    run(main())


@pytest.mark.parametrize("question", [b"", b"no JSON\n", b"[]\n", b'{"what": 1}\n', b"x" * 200_000])
def test_a_question_that_is_none_gets_nothing_and_harms_nobody(question: bytes, short_path: Path, worker: Make) -> None:
    async def main() -> None:
        siblings = WorkerSync(worker(1, 2), Metrics([]).render)
        await siblings.start()
        reader, writer = await asyncio.open_unix_connection(short_path / "1.sock")
        writer.write(question)
        writer.write_eof()
        with suppress(ConnectionError):  # it does not wait for the rest
            assert await reader.read() in (b"", b"\0")
        writer.close()
        await siblings.stop()

    run(main())


@pytest.mark.parametrize("answer", [_silent, _cut, _endless])
def test_who_gives_no_whole_answer_in_time_is_not_heard(answer: Answer, short_path: Path, worker: Make) -> None:
    async def main() -> None:
        server = await asyncio.start_unix_server(answer, short_path / "2.sock")
        assert await WorkerSync(worker(1, 2), Metrics([]).render).gather("name", {}) == []
        server.close()

    run(main())
