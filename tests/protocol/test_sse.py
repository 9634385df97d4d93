"""SSE decoder and encoder."""

import pytest

from tests.protocol.build import cuts
from tests.table import table
from welldone.core import sse
from welldone.core.sse import Frame, SseDecoder

STREAMS = [
    b"data: a\n\ndata: b\n\n",
    b"data: a\r\n\r\ndata: b\r\n\r\n",
    b"data: a\r\rdata: b\r\r",
    b"data: a\n\r\ndata: b\r\n\ndata: c\r\rdata: d",
    b"\xef\xbb\xbfdata: a\n\n\n\n\ndata: b\n\n",
    b"\r\n\r\ndata: a\r\n\r\n\r\n: c\r\n\r\n",
    b"event: x\nid: 1\nretry: 5\ndata: a\ndata: b\n\ndata\n\n",
    b"data: a\ndata: b\n: c\ndata: d\n{}\n[DONE]\n\n",
    b": one\n: two\r\n\r: three\rdata: a\rdata: b",
    b'{"a":\n{"b":1}}\r\n{"c":2}\n\n',
    b"x\ndata: a\nevent: y\n\n\xef\xbb\xbfdata: z\n\n",
    b"data: a\r",
    b"data: a\r\r",
    b"\r\n\r",
]


def overlong(byte: int) -> Frame:
    return Frame(byte, b"", None, ended=False, is_overlong=True)


def decode(data: bytes, size: int, *, eager: bool = False, limit_bytes: int = sse.FRAME_LIMIT_BYTES) -> list[Frame]:
    decoder = SseDecoder(eager=eager, limit_bytes=limit_bytes)
    frames = [frame for piece in cuts(data, size) for frame in decoder.feed(piece)]
    return frames + decoder.close()


def decoded(data: bytes, *, eager: bool = False) -> list[tuple[bytes | None, str, bool]]:
    """Data, event name and `ended` of each frame."""
    return [(frame.data, frame.event, frame.ended) for frame in decode(data, len(data) or 1, eager=eager)]


@table("data", STREAMS)
@table("eager", [False, True])
def test_frames_do_not_depend_on_byte_boundaries(data: bytes, eager: bool) -> None:
    whole = decode(data, len(data), eager=eager)
    for size in range(1, len(data)):
        assert decode(data, size, eager=eager) == whole


@table("data", STREAMS)
@table("eager", [False, True])
def test_each_frame_has_its_offset_and_bytes(data: bytes, eager: bool) -> None:
    for frame in decode(data, len(data), eager=eager):
        assert data[frame.byte : frame.byte + len(frame.raw)] == frame.raw


def test_a_frame_ends_at_its_blank_line() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\n") == []
    assert decoder.feed(b"\n") == [Frame(0, b"data: a\n\n", b"a")]
    assert decoder.feed(b"\ndata: b\n\n") == [Frame(10, b"data: b\n\n", b"b")]
    assert decoder.close() == []


@pytest.mark.parametrize("ending", [b"\n", b"\r", b"\r\n"])
def test_lf_cr_and_crlf_end_lines(ending: bytes) -> None:
    data = ending.join([b": c", b"event: e", b"data: a", b"data: b", b"", b"data: d", b"", b""])
    assert decoded(data) == [(b"a\nb", "e", True), (b"d", "", True)]


def test_a_cr_at_the_end_waits_for_a_possible_lf() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\r\n\r") == []
    assert decoder.feed(b"\ndata: b\r\r") == [Frame(0, b"data: a\r\n\r\n", b"a")]
    assert decoder.close() == [Frame(11, b"data: b\r\r", b"b")]


def test_an_eager_comment_with_a_cr_at_the_end_waits_for_a_possible_lf() -> None:
    decoder = SseDecoder(eager=True)
    assert decoder.feed(b": a\r") == []
    assert decoder.feed(b"\n") == [Frame(0, b": a\r\n", None, ended=False)]
    assert decoder.feed(b": b\r") == []
    assert decoder.close() == [Frame(5, b": b\r", None, ended=False)]


@table(
    ("line", "data", "event"),
    [
        (b"data: a", b"a", ""),
        (b"data:a", b"a", ""),
        (b"data:  a", b" a", ""),
        (b"data: a: b", b"a: b", ""),
        (b"data:", b"", ""),
        (b"data", b"", ""),
        (b"Data: a", None, ""),
        (b" data: a", None, ""),
        (b"id: 1", None, ""),
        (b"retry: 1", None, ""),
        (b": data: a", None, ""),
        (b"event: a", None, "a"),
        (b"event: a\nevent: b", None, "b"),
        (b"event: \xff", None, "\ufffd"),
    ],
)
def test_a_line_has_a_name_and_a_value(line: bytes, data: bytes | None, event: str) -> None:
    assert decoded(line + b"\n\n") == [(data, event, True)]


def test_one_byte_order_mark_is_skipped() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"\xef\xbb") == []
    assert decoder.feed(b"\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n") == [
        Frame(3, b"data: a\n\n", b"a"),
        Frame(12, b"\xef\xbb\xbfdata: b\n\n", None),
    ]
    assert decoder.has_bom is True


def test_a_partial_byte_order_mark_is_data() -> None:
    assert decode(b"\xef\xbb", 1) == [Frame(0, b"\xef\xbb", None, ended=False)]
    decoder = SseDecoder()
    decoder.feed(b"\xefdata: a\n\n")
    assert decoder.has_bom is False


def test_the_rest_at_the_end_is_a_frame_that_is_not_ended() -> None:
    assert decoded(b"data: a\n\ndata: b") == [(b"a", "", True), (b"b", "", False)]
    assert decoded(b"data: a\n") == [(b"a", "", False)]
    assert decoded(b"") == []
    assert decoded(b"\n\r\n\r") == []


def test_an_eager_decoder_ends_a_frame_at_the_next_data_line() -> None:
    decoder = SseDecoder(eager=True)
    assert decoder.feed(b"data: a\n") == []
    assert decoder.feed(b"data:") == [Frame(0, b"data: a\n", b"a", ended=False)]
    assert decoder.feed(b" b\n{") == [Frame(8, b"data: b\n", b"b", ended=False)]
    assert decoder.feed(b"}\n\n") == [Frame(16, b"{}\n\n", None)]


def test_an_eager_decoder_does_not_split_a_frame_without_data() -> None:
    assert decoded(b"event: x\nid: 3\ndata: a\n\n", eager=True) == [(b"a", "x", True)]
    assert decoded(b"event: x\nid: 3\ndata: a\n", eager=True) == [(b"a", "x", False)]


def test_an_eager_decoder_returns_a_leading_comment_without_delay() -> None:
    decoder = SseDecoder(eager=True)
    assert decoder.feed(b": pi") == []
    assert decoder.feed(b"ng\nda") == [Frame(0, b": ping\n", None, ended=False)]
    assert decoder.feed(b"ta: a\n: b\n\n") == [Frame(7, b"data: a\n: b\n\n", b"a")]


def test_an_eager_decoder_rejects_a_comment_longer_than_half_the_limit() -> None:
    decoder = SseDecoder(eager=True, limit_bytes=20)
    assert decoder.feed(b": xxxxxxx\n") == [Frame(0, b": xxxxxxx\n", None, ended=False)]
    assert decoder.feed(b": xxxxxxxx\n") == [overlong(10)]
    assert decoder.feed(b": x\n") == []


def test_a_plain_decoder_does_not_split_a_frame() -> None:
    data = b"data: a\ndata: b\n{}\n\n"
    assert decoded(data) == [(b"a\nb", "", True)]
    assert decoded(data, eager=True) == [(b"a", "", False), (b"b", "", False), (None, "", True)]


@table("size", [1, 7, 100])
@table("eager", [False, True])
def test_a_frame_longer_than_the_limit_is_rejected(size: int, eager: bool) -> None:
    right, long = b"data: " + b"a" * 12 + b"\n\n", b"data: " + b"b" * 13 + b"\n\n"
    decoder = SseDecoder(eager=eager, limit_bytes=20)
    frames = [frame for piece in cuts(right + long + right, size) for frame in decoder.feed(piece)]
    assert frames == [Frame(0, right, b"a" * 12), overlong(20)]
    assert decoder.feed(right) == []
    assert decoder.close() == []


def test_an_endless_line_is_rejected_at_the_limit() -> None:
    decoder = SseDecoder(limit_bytes=100_000)
    frames = [frame for _ in range(2560) for frame in decoder.feed(b"x" * 4096)]
    assert frames == [overlong(0)]
    assert decoder.close() == []


def test_a_rest_longer_than_the_limit_is_rejected_at_the_end() -> None:
    decoder = SseDecoder(limit_bytes=20)
    assert decoder.feed(b"data: a\n\n" + b"b" * 21) == [Frame(0, b"data: a\n\n", b"a")]
    assert decoder.close() == [overlong(9)]


@pytest.mark.parametrize("eager", [False, True])
def test_one_line_of_six_megabytes_in_small_pieces_is_one_frame(eager: bool) -> None:
    payload = b"x" * 6_000_000
    assert decode(b"data: " + payload + b"\n\n", 4096, eager=eager) == [
        Frame(0, b"data: " + payload + b"\n\n", payload)
    ]


@pytest.mark.no_cover
@table("ending", [b"\n", b"\r", b"\r\n"])
@table("eager", [False, True])
def test_a_frame_with_too_many_lines_is_rejected(ending: bytes, eager: bool) -> None:
    most = b"event: x" + ending + (b"y" + ending) * (sse.FRAME_LINES_LIMIT - 2) + ending
    long = (b"y" + ending) * sse.FRAME_LINES_LIMIT + ending
    data = most + long + b"data: z\n\n"
    for size in (4096, len(data)):
        decoder = SseDecoder(eager=eager)
        frames = [frame for piece in cuts(data, size) for frame in decoder.feed(piece)]
        assert frames[0].raw == most
        assert frames[1:] == [overlong(len(most))]
        assert decoder.close() == []


@table("before", [b"event: x\n", b"", b"data: a\r\n\r\n"])
@table("eager", [False, True])
def test_an_eager_decoder_accepts_the_full_limit_only_for_one_plain_line(before: bytes, eager: bool) -> None:
    data = before + b"data: " + b"x" * 600 + b"\n\n"
    for size in (50, len(data)):
        frames = decode(data, size, eager=eager, limit_bytes=1_000)
        assert bool(frames and frames[-1].data == b"x" * 600) is not (eager and before == b"event: x\n")


PLAIN, NAMED = b"data: " + b"x" * 1_200 + b"\n\n", b"event: x\ndata: " + b"x" * 600 + b"\n\n"


@table("eager", [False, True])
@table("long", [PLAIN, PLAIN + NAMED, b"event: y\n" + PLAIN, b"y\n" * 20_000 + b"\n"])
@table("rest", [b"", b"data: b\ndata: c\ndata: d", b"data: b\n\n", b"b"])
def test_nothing_is_decoded_after_an_overlong_frame(eager: bool, long: bytes, rest: bytes) -> None:
    data = b"data: a\n\n" + long + rest
    for size in (50, len(data)):
        decoder = SseDecoder(eager=eager, limit_bytes=1_000)
        frames = [frame for piece in cuts(data, size) for frame in decoder.feed(piece)] + decoder.close()
        assert frames == [Frame(0, b"data: a\n\n", b"a"), overlong(9)]


@pytest.mark.parametrize("size", [4096, 2**21])
def test_the_line_limit_applies_to_each_piece_of_a_frame(size: int) -> None:
    data = b"data: x\n" * (2 * sse.FRAME_LINES_LIMIT) + b"\n"
    assert len(decode(data, size, eager=True)) == 2 * sse.FRAME_LINES_LIMIT


def test_a_hundred_thousand_blank_lines_are_no_frame() -> None:
    assert decode(b"\n" * 100_000, 1000) == []


@pytest.mark.no_cover
def test_a_hundred_thousand_empty_frames_are_decoded() -> None:
    frames = decode(b"data:\n\n" * 100_000, 4096, eager=True)
    assert len(frames) == 100_000
    assert frames[-1] == Frame(699_993, b"data:\n\n", b"")


@pytest.mark.no_cover
def test_a_hundred_thousand_comments_without_blank_lines_are_a_frame_each() -> None:
    frames = decode(b": x\n" * 100_000, 4096, eager=True)
    assert len(frames) == 100_000
    assert frames[-1] == Frame(399_996, b": x\n", None, ended=False)


def test_split_lines_drops_empty_lines() -> None:
    assert sse.split_lines(b"a\r\n\r\nb\rc\n\n") == [b"a", b"b", b"c"]


def test_encoded_frames_are_decoded() -> None:
    assert sse.data_frame(b'{"a":1}') == b'data: {"a":1}\n\n'
    assert sse.comment(b"keep-alive") == b": keep-alive\n\n"
    assert sse.DONE == b"data: [DONE]\n\n"
    assert decoded(sse.data_frame(b"{}") + sse.comment(b"x") + sse.DONE) == [
        (b"{}", "", True),
        (None, "", True),
        (b"[DONE]", "", True),
    ]


def test_streams_are_neither_cached_nor_buffered() -> None:
    assert dict(sse.HEADERS) == {
        "Content-Type": "text/event-stream; charset=utf-8",
        "Cache-Control": "no-cache, no-transform",
        "X-Accel-Buffering": "no",
    }
