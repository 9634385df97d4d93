"""Captured output of an engine: the last lines, bounded, and the excerpt of a failure."""

from hypothesis import given
from hypothesis import strategies as st

from welldone.engines.process import LINE_LIMIT_CHARS, OUTPUT_LINES, READ_BYTES, OutputTail, failure_excerpt


def test_the_last_lines_are_kept() -> None:
    lines: list[str] = []
    tail = OutputTail(lines.append)
    for number in range(2 * OUTPUT_LINES):
        tail.feed(f"line {number}\r\n\n".encode())
    tail.feed(b"no end")
    tail.end()
    assert lines == [*(f"line {number}" for number in range(2 * OUTPUT_LINES)), "no end"]
    assert list(tail.lines) == lines[-OUTPUT_LINES:]


@given(st.lists(st.binary(max_size=30) | st.just(b"\n")), st.integers(1, 7))
def test_read_boundaries_do_not_matter(pieces: list[bytes], size: int) -> None:
    data = b"".join(pieces)
    unsplit, split = OutputTail(), OutputTail()
    unsplit.feed(data)
    for start in range(0, len(data), size):
        split.feed(data[start : start + size])
    unsplit.end()
    split.end()
    assert unsplit.lines == split.lines


def test_the_length_of_a_line_is_bounded() -> None:
    lines: list[str] = []
    tail = OutputTail(lines.append)
    for _ in range(64):
        tail.feed(b"x" * READ_BYTES)
    tail.end()
    assert lines
    assert set(lines) == {"x" * LINE_LIMIT_CHARS}


def test_the_current_line_shows_the_latest_state_of_a_progress_bar() -> None:
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


def test_the_excerpt_has_the_first_error_of_many_tracebacks() -> None:
    prefix = "(Worker pid=7) ERROR 11-16 02:21:29 [multiproc_executor.py:1063] "
    frames = [f'{prefix}  File "worker.py", line {number}' for number in range(30)]
    lines = ["a warning: errors like `OSError: too many files`", *frames, f"{prefix}ValueError: too little memory"]
    lines += [*frames, f"{prefix}ValueError: too little memory", "torch.cuda.OutOfMemoryError: the same", *frames]
    lines += ["RuntimeError: the engine core failed", "bye"]
    assert failure_excerpt(lines) == (
        "ValueError: too little memory",
        "torch.cuda.OutOfMemoryError: the same",
        *(f'File "worker.py", line {number}' for number in (27, 28, 29)),
        "RuntimeError: the engine core failed",
        "bye",
    )
