"""A reply out of its bytes: what counts as one, how it ends, and that where the bytes are cut never matters."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.table import table
from welldone.http import response_parser
from welldone.http.response_parser import CONNECTION_LOST, NOT_HTTP, ResponseParser

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
HELLO = b"5\r\nhello\r\n6\r\n there\r\n0\r\n\r\n"
TEXT = b"hello there, hello there" * 40
PACKED = gzip.compress(TEXT, mtime=0)


def bare(data: bytes) -> bytes:
    """Deflate without the frame of zlib."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def packed(coding: str, data: bytes) -> bytes:
    """A reply with a compressed body."""
    return OK + f"Content-Encoding: {coding}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def read(*pieces: bytes, method: str = "GET", limit_bytes: int = 2**20, is_closed: bool = True) -> ResponseParser:
    """What is heard of them; then the server closes."""
    reading = ResponseParser(method, limit_bytes)
    for piece in pieces:
        reading.feed(piece)
    if is_closed:
        reading.feed_eof()
    return reading


WHOLE = {
    "length": (OK + b"Content-Length: 5\r\n\r\nhello", b"hello", None),
    "nothing": (OK + b"Content-Length: 0\r\n\r\n", b"", None),
    "chunks": (CHUNKED + HELLO, b"hello there", (5, 6)),
    "extensions": (CHUNKED + b'5;a="b"\r\nhello\r\n0 ;x\r\n\r\n', b"hello", (5,)),
    "trailers": (CHUNKED + b"5\r\nhello\r\n0\r\nX: 1\r\nY: 2\r\n\r\n", b"hello", (5,)),
    "bare LF": (b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n5\nhello\n0\n\n", b"hello", (5,)),
    "large letters": (OK + b"TRANSFER-ENCODING: Chunked\r\n\r\nA\r\nhelloworld\r\n0\r\n\r\n", b"helloworld", (10,)),
    "length and chunks": (
        OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n" + HELLO,
        b"hello there",
        (5, 6),
    ),
    "no length": (OK + b"\r\nhello", b"hello", None),
    "HTTP/1.0": (b"HTTP/1.0 200\r\n\r\nhello", b"hello", None),
    "the same length twice": (OK + b"Content-Length: 5\r\nContent-Length: 5, 5\r\n\r\nhello", b"hello", None),
    "hints": (b"HTTP/1.1 103 Early Hints\r\nContent-Length: 9\r\n\r\n" + OK + b"\r\nhello", b"hello", None),
    "empty lines before": (b"\r\n\n" + OK + b"Content-Length: 5\r\n\r\nhello", b"hello", None),
    "more than the reply": (OK + b"Content-Length: 5\r\n\r\nhello" + OK, b"hello", None),
    "no content": (b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", b"", None),
    "gzip": (packed("gzip", PACKED), TEXT, None),
    "old gzip": (packed("X-GZIP", PACKED), TEXT, None),
    "members of gzip": (packed("gzip", PACKED * 2), TEXT * 2, None),
    "gzip and padding": (packed("gzip", PACKED + bytes(9)), TEXT, None),
    "zlib": (packed("deflate", zlib.compress(TEXT)), TEXT, None),
    "deflate": (packed("deflate", bare(TEXT)), TEXT, None),
    "deflate and padding": (packed("deflate", bare(TEXT) + b"x"), TEXT, None),
    "unknown packing": (packed("br", b"hello"), b"hello", None),
}
BROKEN = {
    "nothing": (b"", CONNECTION_LOST),
    "half a head": (OK + b"Content-Le", CONNECTION_LOST),
    "short": (OK + b"Content-Length: 6\r\n\r\nhello", CONNECTION_LOST),
    "no last chunk": (CHUNKED + b"5\r\nhello\r\n", CONNECTION_LOST),
    "half a chunk": (CHUNKED + b"5\r\nhel", CONNECTION_LOST),
    "half an end": (CHUNKED + b"5\r\nhello\r", CONNECTION_LOST),
    "no end of trailers": (CHUNKED + b"0\r\nX: 1\r\n", CONNECTION_LOST),
    "hints alone": (b"HTTP/1.1 100 Continue\r\n\r\n", CONNECTION_LOST),
    "TLS": (b"\x15\x03\x01\x00\x02\x02\n\x00", NOT_HTTP),
    "SSH": (b"SSH-2.0-OpenSSH\r\n", NOT_HTTP),
    "no status": (b"HTTP/1.1 OK\r\n\r\n", NOT_HTTP),
    "no header": (OK + b"hello\r\n\r\n", f"{NOT_HTTP}: a line of the head is no header"),
    "folded first": (OK + b" hello: 1\r\n\r\n", f"{NOT_HTTP}: a line of the head is no header"),
    "two lengths": (OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", f"{NOT_HTTP}: it has two lengths"),
    "odd length": (OK + b"Content-Length: -5\r\n\r\nhello", f"{NOT_HTTP}: its length is no number"),
    "long length": (OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", f"{NOT_HTTP}: its length is no number"),
    "odd size": (CHUNKED + b"5\r\nhello\r\nzz\r\n", f"{NOT_HTTP}: a chunk has no size"),
    "long size": (CHUNKED + b"5\r\nhello\r\n" + b"f" * 16 + b"\r\n", f"{NOT_HTTP}: a chunk has no size"),
    "wrong size": (CHUNKED + b"4\r\nhello\r\n", f"{NOT_HTTP}: a chunk is longer than its size"),
    "endless size": (CHUNKED + b"5;" + b"a" * 5000, "a line of the reply is too long"),
    "endless trailers": (CHUNKED + b"0\r\n" + b"X: 1\r\n" * 20_000, "a line of the reply is too long"),
    "endless head": (OK + b"X: " + b"a" * 70_000, "the head of the reply is too long"),
    "endless headers": (OK + b"X: 1\r\n" * 20_000, "the head of the reply is too long"),
    "endless hints": (b"HTTP/1.1 103 Hint\r\n\r\n" * 5_000, "the head of the reply is too long"),
    "not packed": (packed("gzip", b"hello there"), "the body is not packed as it says"),
}


@table("name", WHOLE)
def test_a_whole_reply_is_heard(name: str) -> None:
    data, body, pieces = WHOLE[name]
    reading = read(data)
    assert (bytes(reading.body), reading.pieces) == (body, pieces)
    assert (reading.is_done, reading.is_complete, reading.error) == (True, True, None)


@table("name", sorted(WHOLE.keys() - {"no length", "HTTP/1.0", "hints"}))
def test_a_reply_with_a_length_is_over_before_its_connection_is(name: str) -> None:
    assert read(WHOLE[name][0], is_closed=False).is_complete


@table("name", BROKEN)
def test_what_is_no_whole_reply_is_said(name: str) -> None:
    data, error = BROKEN[name]
    reading = read(data)
    assert (reading.is_done, reading.is_complete, reading.error) == (True, False, error)


def same(*cut: bytes, limit_bytes: int) -> None:
    """Hear the same as of the whole."""
    whole, reading = read(b"".join(cut), limit_bytes=limit_bytes), read(*cut, limit_bytes=limit_bytes)
    for name in ("status", "headers", "body", "pieces", "is_complete", "error"):
        assert getattr(reading, name) == getattr(whole, name), name


REPLIES = [data for data, *_ in WHOLE.values()] + [data for data, _ in BROKEN.values() if len(data) < 4096]
"""Those that are short enough to be cut everywhere."""


@table("limit_bytes", [10, 2**20])
@table("data", REPLIES, ids=range(len(REPLIES)))
def test_a_byte_at_a_time_is_heard_as_the_whole(data: bytes, limit_bytes: int) -> None:
    same(*(data[at : at + 1] for at in range(len(data))), limit_bytes=limit_bytes)


@given(st.sampled_from(REPLIES), st.lists(st.integers(0, 300), max_size=8), st.sampled_from([7, 10, 2**20]))
def test_where_the_bytes_are_cut_never_matters(data: bytes, sizes: list[int], limit_bytes: int) -> None:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    same(*pieces, data, limit_bytes=limit_bytes)


@given(st.binary(), st.binary(), st.sampled_from([b"", OK, CHUNKED, CHUNKED + b"5\r\n"]))
def test_no_bytes_are_too_odd(first: bytes, second: bytes, start: bytes) -> None:
    reading = read(start, first, second)
    assert reading.is_done
    assert reading.is_complete is (reading.error is None)


def test_headers_are_kept_as_they_were_sent() -> None:
    head = b"X-A:  1 \r\nx-a: 2\r\nLong: a\r\n\t b\r\n  c\r\nOdd : \xe4\r\nEmpty:\r\n\r\n"
    headers = [("X-A", "1"), ("x-a", "2"), ("Long", "a b c"), ("Odd", "ä"), ("Empty", "")]
    assert read(OK + head).headers == headers


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified", b"200 OK"])
def test_where_no_body_comes_none_is_waited_for(status: bytes) -> None:
    data = b"HTTP/1.1 " + status + b"\r\nContent-Length: 5\r\n\r\n"
    assert read(data, method="HEAD", is_closed=False).is_complete
    assert read(data, is_closed=False).is_complete is (status != b"200 OK")


@pytest.mark.parametrize("start", [OK + b"\r\n", CHUNKED + b"ffffff\r\n", OK + b"Content-Length: 999\r\n\r\n"])
def test_a_body_is_cut_at_the_limit(start: bytes) -> None:
    reading = read(start, b"hello", b" there", b"!", limit_bytes=10)
    assert (bytes(reading.body), reading.error) == (b"hello ther", "a reply of more than 10 bytes")
    assert reading.pieces in (None, (10,))
    assert not reading.is_complete


def test_a_body_as_long_as_the_limit_is_whole() -> None:
    assert read(CHUNKED + HELLO, limit_bytes=11).is_complete


@pytest.mark.parametrize(
    ("coding", "data"),
    [
        ("gzip", gzip.compress(bytes(2**22))),
        ("gzip", gzip.compress(bytes(100)) * 50),
        ("deflate", zlib.compress(bytes(2**22))),
    ],
)
def test_a_bomb_is_not_unpacked(coding: str, data: bytes) -> None:
    reading = read(packed(coding, data), limit_bytes=1000)
    assert (len(reading.body), reading.error) == (1000, "a reply of more than 1,000 bytes")


def test_more_chunks_than_anyone_sends_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_parser, "_PIECES_LIMIT", 3)
    assert read(CHUNKED + b"1\r\nx\r\n" * 3 + b"0\r\n\r\n").is_complete
    reading = read(CHUNKED + b"1\r\nx\r\n" * 4)
    assert (bytes(reading.body), reading.pieces, reading.error) == (b"xxx", (1, 1, 1), "a reply of more than 3 chunks")
