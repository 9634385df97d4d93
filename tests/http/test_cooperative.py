"""A reply of which much comes at once is heard a little at a time, so that no other has to wait for the whole of it."""

import asyncio

from tests.http.aio import run
from tests.http.test_outbound import Heard
from tests.table import table
from welldone.http.address import Address
from welldone.http.client import _SLICE_BYTES, Exchange

BODY = b"".join(b"%07d." % number for number in range(40_000))
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\n" + BODY
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


class Line(asyncio.Transport):
    """A connection that only notes whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = True
        self.is_gone = False

    def write(self, data: object) -> None:
        """Nobody is there."""

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.is_gone = True


class Talk(Heard):
    """An exchange whose server is this test, and who hears it."""

    def __init__(self) -> None:
        super().__init__()
        self.pause_after = 0
        self.line = Line()
        self.exchange = Exchange(b"", self, Address(port=1), None)
        self.exchange.connection_made(self.line)

    def data(self, data: bytes) -> None:
        super().data(data)
        if len(self.pieces) == self.pause_after:
            self.exchange.pause()

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    async def turns(self) -> int:
        """How many turns of the loop pass until nothing more is heard."""
        count = 0
        while True:
            before = len(self.pieces)
            await asyncio.sleep(0)
            if len(self.pieces) == before:
                return count
            count += 1


def test_others_have_their_turn_between_the_pieces_of_a_long_read() -> None:
    async def listen() -> None:
        talk = Talk()
        talk.exchange.data_received(WHOLE)
        assert (talk.body, talk.line.is_read) == (b"", False)
        assert await talk.turns() == -(-len(WHOLE) // _SLICE_BYTES)
        assert max(map(len, talk.pieces)) <= _SLICE_BYTES
        assert talk.body == BODY
        assert talk.ends == [None]

    run(listen())


def test_what_is_short_is_heard_at_once_and_what_comes_meanwhile_after_it() -> None:
    async def listen() -> None:
        talk = Talk()
        talk.exchange.data_received(WHOLE[:_SLICE_BYTES])
        assert len(talk.pieces) == 1
        talk.exchange.data_received(WHOLE[_SLICE_BYTES:-5])
        talk.exchange.data_received(WHOLE[-5:])
        await talk.turns()
        assert talk.body == BODY
        assert talk.ends == [None]

    run(listen())


def test_when_all_is_heard_the_connection_is_read_on() -> None:
    async def listen() -> None:
        talk = Talk()
        talk.exchange.data_received(ENDLESS)
        await talk.turns()
        assert (talk.body, talk.line.is_read) == (BODY, True)

    run(listen())


@table("is_lost", [False, True], ids=["the line stays", "the line is lost"])
@table("after", [1, 3, -(-len(ENDLESS) // _SLICE_BYTES)])
def test_who_pauses_hears_nothing_and_then_all_of_it(after: int, is_lost: bool) -> None:
    async def listen() -> None:
        talk = Talk()
        talk.pause_after = after
        talk.exchange.data_received(ENDLESS)
        if is_lost:
            talk.exchange.connection_lost(None)
        await talk.turns()
        assert (len(talk.pieces), talk.ends, talk.line.is_read) == (after, [], False)
        talk.exchange.resume()
        await talk.turns()
        assert talk.body == BODY
        assert talk.ends == ([None] if is_lost else [])
        assert talk.line.is_read is not is_lost

    run(listen())


def test_a_line_that_is_lost_ends_the_reply_when_all_of_it_was_heard() -> None:
    async def listen() -> None:
        talk = Talk()
        talk.exchange.data_received(WHOLE[:-1])
        talk.exchange.connection_lost(ConnectionResetError())
        assert talk.ends == []
        await talk.turns()
        assert talk.body == BODY[:-1]
        assert [str(error) for error in talk.ends] == ["the connection was lost before the reply was whole"]

    run(listen())


def test_who_leaves_hears_no_more() -> None:
    async def listen() -> None:
        talk = Talk()
        talk.exchange.data_received(WHOLE)
        await asyncio.sleep(0)
        heard = talk.body
        talk.exchange.close()
        await talk.turns()
        assert (talk.body, talk.line.is_gone, talk.ends) == (heard, True, [])

    run(listen())


def test_what_comes_after_a_reply_is_nobodys_and_the_connection_is_not_used_again() -> None:
    class Home:
        """A pool that must not get it."""

        stale_s = 1.0

        def take(self, address: Address) -> None:
            raise AssertionError

        def give_back(self, address: Address, transport: object) -> None:
            raise AssertionError

        def drop(self, address: Address) -> None:
            raise AssertionError

    async def listen() -> None:
        heard, line = Heard(), Line()
        exchange = Exchange(b"", heard, Address(port=1), Home())
        exchange.connection_made(line)
        short = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (_SLICE_BYTES - 44)
        whole = short + b"x" * (_SLICE_BYTES - 44)
        exchange.data_received(whole.ljust(_SLICE_BYTES + 10, b"y"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert line.is_gone
        assert len(b"".join(heard.pieces)) == _SLICE_BYTES - 44

    run(listen())
