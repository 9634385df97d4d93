"""The last lines of whatever a program writes."""

from hypothesis import given
from hypothesis import strategies as st

from welldone.engines.tail import LINE_LIMIT, LINES, READ_BYTES, Tail


def test_the_last_lines_are_kept() -> None:
    heard: list[str] = []
    tail = Tail(heard.append)
    for number in range(100):
        tail.feed(f"line {number}\r\n\n".encode())
    tail.feed(b"no end")
    tail.end()
    assert heard == [*(f"line {number}" for number in range(100)), "no end"]
    assert list(tail.lines) == heard[-LINES:]


@given(st.lists(st.binary(max_size=30) | st.just(b"\n")), st.integers(1, 7))
def test_where_the_bytes_are_cut_does_not_matter(pieces: list[bytes], size: int) -> None:
    data = b"".join(pieces)
    whole, cut = Tail(), Tail()
    whole.feed(data)
    for start in range(0, len(data), size):
        cut.feed(data[start : start + size])
    whole.end()
    cut.end()
    assert whole.lines == cut.lines


def test_a_line_without_an_end_is_bounded() -> None:
    heard: list[str] = []
    tail = Tail(heard.append)
    for _ in range(64):
        tail.feed(b"x" * READ_BYTES)
    tail.end()
    assert heard
    assert set(heard) == {"x" * LINE_LIMIT}
