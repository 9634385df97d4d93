"""Fast path past the parser: each chunk is delivered once and in order, however the reads are split."""

import asyncio
from collections.abc import Callable, Mapping

from hypothesis import given
from hypothesis import strategies as st

from tests.http.aio import run
from tests.table import table
from welldone.http.address import Address
from welldone.http.client import Exchange, split_chunk_framing
from welldone.http.connect import HttpClientError
from welldone.http.turns import SMALL_BYTES, next_turn

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class NullTransport(asyncio.Transport):
    """A transport that discards everything."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def abort(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False


class RecordingReceiver:
    """A receiver that records its data, from the parser and from the fast path."""

    def __init__(self, accepts: Callable[[int], bool]) -> None:
        self.body = b""
        self.fast_count = 0
        self.ends: list[HttpClientError | None] = []
        self._accepts = accepts

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        pass

    def data(self, data: bytes) -> None:
        self.body += data

    def end(self, error: HttpClientError | None) -> None:
        self.ends.append(error)

    def take_chunk(self, data: bytes) -> bool:
        framing = split_chunk_framing(data)
        if framing is None or not self._accepts(len(data)):
            return False
        self.fast_count += 1
        self.body += data[len(framing[0]) : -len(framing[1])]
        return True


def receive(reads: list[bytes], accepts: Callable[[int], bool] = lambda _: True) -> RecordingReceiver:
    receiver = RecordingReceiver(accepts)

    async def read_all() -> None:
        exchange = Exchange((), receiver, Address(), None)
        exchange.connection_made(NullTransport())
        for read in reads:
            exchange.data_received(read)
            for _ in range(len(read) // SMALL_BYTES + 2):  # its slices
                await next_turn()
            if exchange.is_chunked and not receiver.ends:
                exchange.fast_path = receiver.take_chunk

    run(read_all())
    return receiver


def chunk(content: bytes, form: bytes = b"%x") -> bytes:
    return form % len(content) + b"\r\n" + content + b"\r\n"


CONTENTS = st.lists(st.one_of(st.binary(min_size=1, max_size=40), st.sampled_from([b"\r\n", b"5\r\n", b"0\r\n\r\n"])))


@given(CONTENTS, st.lists(st.integers(1, 60)), st.sampled_from([b"%x", b"%X", b"00%x", b"%x;a=b"]), st.booleans())
def test_the_body_is_the_same_with_and_without_the_fast_path(
    contents: list[bytes], cuts: list[int], form: bytes, accepts_odd: bool
) -> None:
    body = HEAD + b"".join(chunk(content, form) for content in contents) + b"0\r\n\r\n"
    reads = []
    for cut in cuts:
        reads.append(body[:cut])
        body = body[cut:]
    receiver = receive([read for read in [*reads, body] if read], lambda size: accepts_odd or size % 2 == 0)
    assert receiver.body == b"".join(contents)
    assert receiver.ends == [None]


def test_chunks_take_the_fast_path_one_by_one_and_together() -> None:
    apart = receive([HEAD + chunk(b"a"), chunk(b"bc"), chunk(b"def", b"%X"), b"0\r\n\r\n"])
    assert (apart.body, apart.fast_count, apart.ends) == (b"abcdef", 2, [None])
    together = receive([HEAD + chunk(b"a"), chunk(b"bc") + chunk(b"def") + chunk(b"g"), b"0\r\n\r\n"])
    assert (together.body, together.ends) == (b"abcdefg", [None])
    assert together.fast_count == 3


@table("rest", [b"5\r\nab\r\n", b"zz\r\n", b"2\r\nabc\r\n", b"\r\n", b"-1\r\na\r\n", b"0x1\r\na\r\n", b" 1\r\na\r\n"])
def test_invalid_chunks_are_left_to_the_parser(rest: bytes) -> None:
    with_fast_path, without = receive([HEAD + chunk(b"a"), rest]), receive([HEAD + chunk(b"a"), rest], lambda _: False)
    assert with_fast_path.fast_count == 0
    assert (with_fast_path.body, len(with_fast_path.ends)) == (without.body, len(without.ends))


@table(
    "data",
    [
        b"",
        b"\r\n",
        b"1\r\n",
        b"1\r\na",
        b"1\r\na\r",
        b"1\r\nab\r\n",
        b"1\r\na\r\n0",
        b"1\r\na\n\n",
        b"g\r\na\r\n",
        b"0\r\n\r\n",
    ],
)
def test_only_exactly_one_complete_chunk_has_framing(data: bytes) -> None:
    assert split_chunk_framing(data) is None


def test_the_framing_of_a_chunk_is_split_off() -> None:
    assert split_chunk_framing(b"1A\r\n" + b"x" * 26 + b"\r\n") == (b"1A\r\n", b"\r\n")
