"""The short way of chunks past the parser: who takes them gets each once, in order, whatever the reads are."""

import asyncio
from collections.abc import Callable, Mapping

from hypothesis import given
from hypothesis import strategies as st

from tests.table import table
from welldone.http.address import Address
from welldone.http.client import Exchange, HttpClientError, split_chunk_framing

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Wire(asyncio.Transport):
    """A connection that goes nowhere."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def abort(self) -> None:
        pass


class Heard:
    """A receiver that notes what it is told, by either way."""

    def __init__(self, is_taken: Callable[[int], bool]) -> None:
        self.body = b""
        self.short = 0
        self.ends: list[HttpClientError | None] = []
        self._is_taken = is_taken

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        pass

    def data(self, data: bytes) -> None:
        self.body += data

    def end(self, error: HttpClientError | None) -> None:
        self.ends.append(error)

    def take(self, data: bytes) -> bool:
        around = split_chunk_framing(data)
        if around is None or not self._is_taken(len(data)):
            return False
        self.short += 1
        self.body += data[len(around[0]) : -len(around[1])]
        return True


def hear(reads: list[bytes], is_taken: Callable[[int], bool] = lambda _: True) -> Heard:
    heard = Heard(is_taken)
    exchange = Exchange(b"", heard, Address(), None)
    exchange.connection_made(Wire())
    for read in reads:
        exchange.data_received(read)
        if exchange.is_chunked and not heard.ends:
            exchange.fast_path = heard.take
    return heard


def chunk(content: bytes, form: bytes = b"%x") -> bytes:
    return form % len(content) + b"\r\n" + content + b"\r\n"


CONTENTS = st.lists(st.one_of(st.binary(min_size=1, max_size=40), st.sampled_from([b"\r\n", b"5\r\n", b"0\r\n\r\n"])))


@given(CONTENTS, st.lists(st.integers(1, 60)), st.sampled_from([b"%x", b"%X", b"00%x", b"%x;a=b"]), st.booleans())
def test_the_body_is_the_same_by_any_way(contents: list[bytes], cuts: list[int], form: bytes, takes_odd: bool) -> None:
    body = HEAD + b"".join(chunk(content, form) for content in contents) + b"0\r\n\r\n"
    reads = []
    for cut in cuts:
        reads.append(body[:cut])
        body = body[cut:]
    heard = hear([read for read in [*reads, body] if read], lambda size: takes_odd or size % 2 == 0)
    assert heard.body == b"".join(contents)
    assert heard.ends == [None]


def test_chunks_go_the_short_way_one_by_one_and_together() -> None:
    apart = hear([HEAD + chunk(b"a"), chunk(b"bc"), chunk(b"def", b"%X"), b"0\r\n\r\n"])
    assert (apart.body, apart.short, apart.ends) == (b"abcdef", 2, [None])
    together = hear([HEAD + chunk(b"a"), chunk(b"bc") + chunk(b"def") + chunk(b"g"), b"0\r\n\r\n"])
    assert (together.body, together.ends) == (b"abcdefg", [None])
    assert together.short == 2


@table("rest", [b"5\r\nab\r\n", b"zz\r\n", b"2\r\nabc\r\n", b"\r\n", b"-1\r\na\r\n", b"0x1\r\na\r\n", b" 1\r\na\r\n"])
def test_what_is_no_chunk_is_for_the_parser_to_judge(rest: bytes) -> None:
    short, long = hear([HEAD + chunk(b"a"), rest]), hear([HEAD + chunk(b"a"), rest], lambda _: False)
    assert short.short == 0
    assert (short.body, len(short.ends)) == (long.body, len(long.ends))


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
def test_only_one_whole_chunk_is_one(data: bytes) -> None:
    assert split_chunk_framing(data) is None


def test_a_chunk_is_known_by_its_frame() -> None:
    assert split_chunk_framing(b"1A\r\n" + b"x" * 26 + b"\r\n") == (b"1A\r\n", b"\r\n")
