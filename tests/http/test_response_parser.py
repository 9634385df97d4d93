"""Response parser: framing, errors and limits, independent of how the bytes are split."""

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
GZIPPED = gzip.compress(TEXT, mtime=0)


def raw_deflate(data: bytes) -> bytes:
    """Compress with deflate, without the zlib header."""
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


def compressed_response(coding: str, data: bytes) -> bytes:
    """Return a response with a compressed body."""
    return OK + f"Content-Encoding: {coding}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def parse(*pieces: bytes, method: str = "GET", limit_bytes: int = 2**20, is_closed: bool = True) -> ResponseParser:
    """Parse the pieces, then the end of the connection."""
    parser = ResponseParser(method, limit_bytes)
    for piece in pieces:
        parser.feed(piece)
    if is_closed:
        parser.feed_eof()
    return parser


COMPLETE = {
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
    "the same length twice": (
        OK + b"Content-Length: 5\r\nContent-Length: 5, 5\r\n\r\nhello",
        b"hello",
        None,
    ),
    "hints": (b"HTTP/1.1 103 Early Hints\r\nContent-Length: 9\r\n\r\n" + OK + b"\r\nhello", b"hello", None),
    "empty lines before": (b"\r\n\n" + OK + b"Content-Length: 5\r\n\r\nhello", b"hello", None),
    "more than the reply": (OK + b"Content-Length: 5\r\n\r\nhello" + OK, b"hello", None),
    "no content": (b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", b"", None),
    "gzip": (compressed_response("gzip", GZIPPED), TEXT, None),
    "old gzip": (compressed_response("X-GZIP", GZIPPED), TEXT, None),
    "members of gzip": (compressed_response("gzip", GZIPPED * 2), TEXT * 2, None),
    "gzip and padding": (compressed_response("gzip", GZIPPED + bytes(9)), TEXT, None),
    "zlib": (compressed_response("deflate", zlib.compress(TEXT)), TEXT, None),
    "deflate": (compressed_response("deflate", raw_deflate(TEXT)), TEXT, None),
    "deflate and padding": (compressed_response("deflate", raw_deflate(TEXT) + b"x"), TEXT, None),
    "unknown packing": (compressed_response("br", b"hello"), b"hello", None),
}
INVALID = {
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
    "no header": (OK + b"hello\r\n\r\n", f"{NOT_HTTP}: a line of the head is not a header"),
    "folded first": (OK + b" hello: 1\r\n\r\n", f"{NOT_HTTP}: a line of the head is not a header"),
    "two lengths": (
        OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        f"{NOT_HTTP}: it has two different values of Content-Length",
    ),
    "odd length": (OK + b"Content-Length: -5\r\n\r\nhello", f"{NOT_HTTP}: its Content-Length is not a number"),
    "long length": (
        OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        f"{NOT_HTTP}: its Content-Length is not a number",
    ),
    "odd size": (CHUNKED + b"5\r\nhello\r\nzz\r\n", f"{NOT_HTTP}: a chunk has no valid size"),
    "long size": (CHUNKED + b"5\r\nhello\r\n" + b"f" * 16 + b"\r\n", f"{NOT_HTTP}: a chunk has no valid size"),
    "wrong size": (CHUNKED + b"4\r\nhello\r\n", f"{NOT_HTTP}: a chunk is longer than its size"),
    "endless size": (CHUNKED + b"5;" + b"a" * 5000, "a line of the reply is too long"),
    "endless trailers": (CHUNKED + b"0\r\n" + b"X: 1\r\n" * 20_000, "a line of the reply is too long"),
    "endless head": (OK + b"X: " + b"a" * 70_000, "the head of the reply is too long"),
    "endless headers": (OK + b"X: 1\r\n" * 20_000, "the head of the reply is too long"),
    "endless hints": (b"HTTP/1.1 103 Hint\r\n\r\n" * 5_000, "the head of the reply is too long"),
    "not compressed": (
        compressed_response("gzip", b"hello there"),
        "the body is not compressed as its Content-Encoding declares",
    ),
}


@table("name", COMPLETE)
def test_a_complete_response_is_parsed(name: str) -> None:
    data, body, pieces = COMPLETE[name]
    parser = parse(data)
    assert (bytes(parser.body), parser.pieces) == (body, pieces)
    assert (parser.is_done, parser.is_complete, parser.error) == (True, True, None)


@table("name", sorted(COMPLETE.keys() - {"no length", "HTTP/1.0", "hints"}))
def test_a_response_with_framing_ends_before_the_connection(name: str) -> None:
    assert parse(COMPLETE[name][0], is_closed=False).is_complete


@table("name", INVALID)
def test_an_invalid_or_incomplete_response_is_reported(name: str) -> None:
    data, error = INVALID[name]
    parser = parse(data)
    assert (parser.is_done, parser.is_complete, parser.error) == (True, False, error)


def assert_split_does_not_matter(*pieces: bytes, limit_bytes: int) -> None:
    """Assert that the pieces are parsed like their concatenation."""
    whole, parser = parse(b"".join(pieces), limit_bytes=limit_bytes), parse(*pieces, limit_bytes=limit_bytes)
    for name in ("status", "headers", "body", "pieces", "is_complete", "error"):
        assert getattr(parser, name) == getattr(whole, name), name


REPLIES = [data for data, *_ in COMPLETE.values()] + [data for data, _ in INVALID.values() if len(data) < 4096]
"""Responses that are short enough to be split at every byte."""


@table("limit_bytes", [10, 2**20])
@table("data", REPLIES, ids=range(len(REPLIES)))
def test_a_response_is_parsed_a_byte_at_a_time(data: bytes, limit_bytes: int) -> None:
    assert_split_does_not_matter(*(data[at : at + 1] for at in range(len(data))), limit_bytes=limit_bytes)


@given(st.sampled_from(REPLIES), st.lists(st.integers(0, 300), max_size=8), st.sampled_from([7, 10, 2**20]))
def test_chunk_boundaries_of_the_transport_do_not_matter(data: bytes, sizes: list[int], limit_bytes: int) -> None:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    assert_split_does_not_matter(*pieces, data, limit_bytes=limit_bytes)


@given(st.binary(), st.binary(), st.sampled_from([b"", OK, CHUNKED, CHUNKED + b"5\r\n"]))
def test_arbitrary_bytes_are_parsed_to_an_end(first: bytes, second: bytes, start: bytes) -> None:
    parser = parse(start, first, second)
    assert parser.is_done
    assert parser.is_complete is (parser.error is None)


def test_headers_keep_their_order_case_and_repetitions() -> None:
    head = b"X-A:  1 \r\nx-a: 2\r\nLong: a\r\n\t b\r\n  c\r\nOdd : \xe4\r\nEmpty:\r\n\r\n"
    headers = [("X-A", "1"), ("x-a", "2"), ("Long", "a b c"), ("Odd", "ä"), ("Empty", "")]
    assert parse(OK + head).headers == headers


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified", b"200 OK"])
def test_responses_without_a_body_end_with_the_head(status: bytes) -> None:
    data = b"HTTP/1.1 " + status + b"\r\nContent-Length: 5\r\n\r\n"
    assert parse(data, method="HEAD", is_closed=False).is_complete
    assert parse(data, is_closed=False).is_complete is (status != b"200 OK")


@pytest.mark.parametrize("start", [OK + b"\r\n", CHUNKED + b"ffffff\r\n", OK + b"Content-Length: 999\r\n\r\n"])
def test_a_body_is_truncated_at_the_limit(start: bytes) -> None:
    parser = parse(start, b"hello", b" there", b"!", limit_bytes=10)
    assert (bytes(parser.body), parser.error) == (b"hello ther", "a reply of more than 10 bytes")
    assert parser.pieces in (None, (10,))
    assert not parser.is_complete


def test_a_body_of_exactly_the_limit_is_complete() -> None:
    assert parse(CHUNKED + HELLO, limit_bytes=11).is_complete


@pytest.mark.parametrize(
    ("coding", "data"),
    [
        ("gzip", gzip.compress(bytes(2**22))),
        ("gzip", gzip.compress(bytes(100)) * 50),
        ("deflate", zlib.compress(bytes(2**22))),
    ],
)
def test_a_decompression_bomb_is_truncated_at_the_limit(coding: str, data: bytes) -> None:
    parser = parse(compressed_response(coding, data), limit_bytes=1000)
    assert (len(parser.body), parser.error) == (1000, "a reply of more than 1,000 bytes")


def test_the_number_of_chunks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_parser, "_CHUNKS_LIMIT", 3)
    assert parse(CHUNKED + b"1\r\nx\r\n" * 3 + b"0\r\n\r\n").is_complete
    parser = parse(CHUNKED + b"1\r\nx\r\n" * 4)
    assert (bytes(parser.body), parser.pieces, parser.error) == (b"xxx", (1, 1, 1), "a reply of more than 3 chunks")
