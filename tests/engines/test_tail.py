"""The last lines of whatever a program writes."""

from hypothesis import given
from hypothesis import strategies as st

from welldone.engines.process import LINE_LIMIT_CHARS, OUTPUT_LINES, READ_BYTES, OutputTail, failure_excerpt


def test_the_last_lines_are_kept() -> None:
    heard: list[str] = []
    tail = OutputTail(heard.append)
    for number in range(2 * OUTPUT_LINES):
        tail.feed(f"line {number}\r\n\n".encode())
    tail.feed(b"no end")
    tail.end()
    assert heard == [*(f"line {number}" for number in range(2 * OUTPUT_LINES)), "no end"]
    assert list(tail.lines) == heard[-OUTPUT_LINES:]


@given(st.lists(st.binary(max_size=30) | st.just(b"\n")), st.integers(1, 7))
def test_where_the_bytes_are_cut_does_not_matter(pieces: list[bytes], size: int) -> None:
    data = b"".join(pieces)
    whole, cut = OutputTail(), OutputTail()
    whole.feed(data)
    for start in range(0, len(data), size):
        cut.feed(data[start : start + size])
    whole.end()
    cut.end()
    assert whole.lines == cut.lines


def test_a_line_without_an_end_is_bounded() -> None:
    heard: list[str] = []
    tail = OutputTail(heard.append)
    for _ in range(64):
        tail.feed(b"x" * READ_BYTES)
    tail.end()
    assert heard
    assert set(heard) == {"x" * LINE_LIMIT_CHARS}


def test_a_bar_that_is_written_over_is_seen_as_it_is_now() -> None:
    tail = OutputTail()
    assert tail.current_line == ""
    tail.feed(b"loading\r\n")
    assert tail.current_line == "loading"
    for step in range(10):
        tail.feed(f"\r{step}0 %|{'#' * step}".encode())
        assert tail.current_line == f"{step}0 %|{'#' * step}"
    assert list(tail.lines) == ["loading"]
    tail.feed(b"\r100 %\n")
    assert list(tail.lines) == ["loading", "100 %"]


def test_of_many_tracebacks_the_first_reason_is_told() -> None:
    head = "(Worker pid=7) ERROR 11-16 02:21:29 [multiproc_executor.py:1063] "
    steps = [f'{head}  File "worker.py", line {number}' for number in range(30)]
    lines = ["a warning: errors like `OSError: too many files`", *steps, f"{head}ValueError: too little memory"]
    lines += [*steps, f"{head}ValueError: too little memory", "torch.cuda.OutOfMemoryError: the same", *steps]
    lines += ["RuntimeError: the engine core failed", "bye"]
    assert failure_excerpt(lines) == (
        "ValueError: too little memory",
        "torch.cuda.OutOfMemoryError: the same",
        *(f'File "worker.py", line {number}' for number in (27, 28, 29)),
        "RuntimeError: the engine core failed",
        "bye",
    )
