"""Large reads are processed in slices, so that other streams are served in between."""

import asyncio
from typing import cast

from tests.http.aio import run
from tests.http.test_client import RecordingReceiver
from tests.table import table
from welldone.http.address import Address
from welldone.http.client import _SLICE_BYTES, ConnectionPool, Exchange

BODY = b"".join(b"%07d." % number for number in range(40_000))
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\n" + BODY
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


class FakeTransport(asyncio.Transport):
    """A transport that records whether it is being read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True
        self.is_aborted = False

    def write(self, data: object) -> None:
        """Discard the data."""

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.is_aborted

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.is_aborted = True


class FakeExchange(RecordingReceiver):
    """An exchange with a fake transport, and its receiver."""

    def __init__(self) -> None:
        super().__init__()
        self.pause_after = 0
        self.transport = FakeTransport()
        self.exchange = Exchange((), self, Address(port=1), None)
        self.exchange.connection_made(self.transport)

    def data(self, data: bytes) -> None:
        super().data(data)
        if len(self.pieces) == self.pause_after:
            self.exchange.pause_reading()

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    async def iterations(self) -> int:
        """Count the event loop iterations until no more data is received."""
        count = 0
        while True:
            count_before = len(self.pieces)
            await asyncio.sleep(0)
            if len(self.pieces) == count_before:
                return count
            count += 1


def test_a_large_read_is_processed_in_one_slice_per_iteration() -> None:
    async def check() -> None:
        fake = FakeExchange()
        fake.exchange.data_received(WHOLE)
        assert (fake.body, fake.transport.reads) == (b"", False)
        assert await fake.iterations() == -(-len(WHOLE) // _SLICE_BYTES)
        assert max(map(len, fake.pieces)) <= _SLICE_BYTES
        assert fake.body == BODY
        assert fake.ends == [None]

    run(check())


def test_a_short_read_is_processed_at_once_and_later_reads_in_order() -> None:
    async def check() -> None:
        fake = FakeExchange()
        fake.exchange.data_received(WHOLE[:_SLICE_BYTES])
        assert len(fake.pieces) == 1
        fake.exchange.data_received(WHOLE[_SLICE_BYTES:-5])
        fake.exchange.data_received(WHOLE[-5:])
        await asyncio.sleep(0)  # the turn of the first read
        await fake.iterations()
        assert fake.body == BODY
        assert fake.ends == [None]

    run(check())


def test_reading_continues_when_all_slices_are_processed() -> None:
    async def check() -> None:
        fake = FakeExchange()
        fake.exchange.data_received(ENDLESS)
        await fake.iterations()
        assert (fake.body, fake.transport.reads) == (BODY, True)

    run(check())


@table("is_lost", [False, True], ids=["connected", "connection lost"])
@table("after", [1, 3, -(-len(ENDLESS) // _SLICE_BYTES)])
def test_a_paused_receiver_gets_nothing_until_it_resumes(after: int, is_lost: bool) -> None:
    async def check() -> None:
        fake = FakeExchange()
        fake.pause_after = after
        fake.exchange.data_received(ENDLESS)
        if is_lost:
            fake.exchange.connection_lost(None)
        await fake.iterations()
        assert (len(fake.pieces), fake.ends, fake.transport.reads) == (after, [], False)
        fake.exchange.resume_reading()
        await fake.iterations()
        assert fake.body == BODY
        assert fake.ends == ([None] if is_lost else [])
        assert fake.transport.reads is not is_lost

    run(check())


def test_a_lost_connection_is_reported_after_the_last_slice() -> None:
    async def check() -> None:
        fake = FakeExchange()
        fake.exchange.data_received(WHOLE[:-1])
        fake.exchange.connection_lost(ConnectionResetError())
        assert fake.ends == []
        await fake.iterations()
        assert fake.body == BODY[:-1]
        assert [str(error) for error in fake.ends] == ["the connection was lost before the reply was complete"]

    run(check())


def test_a_closed_exchange_delivers_no_more_slices() -> None:
    async def check() -> None:
        fake = FakeExchange()
        fake.exchange.data_received(WHOLE)
        await asyncio.sleep(0)
        body = fake.body
        fake.exchange.close()
        await fake.iterations()
        assert (fake.body, fake.transport.is_aborted, fake.ends) == (body, True, [])

    run(check())


def test_a_connection_with_bytes_after_the_response_is_not_reused() -> None:
    class UnusedPool:
        """A pool that must not be used."""

        stale_s = 1.0

        def take(self, address: Address) -> None:
            raise AssertionError

        def give_back(self, address: Address, transport: object) -> None:
            raise AssertionError

        def drop(self, address: Address) -> None:
            raise AssertionError

    async def check() -> None:
        receiver, transport = RecordingReceiver(), FakeTransport()
        exchange = Exchange((), receiver, Address(port=1), cast("ConnectionPool", UnusedPool()))
        exchange.connection_made(transport)
        short = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (_SLICE_BYTES - 44)
        whole = short + b"x" * (_SLICE_BYTES - 44)
        exchange.data_received(whole.ljust(_SLICE_BYTES + 10, b"y"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert transport.is_aborted
        assert len(b"".join(receiver.pieces)) == _SLICE_BYTES - 44

    run(check())
