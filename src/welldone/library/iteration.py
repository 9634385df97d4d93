"""Loops that pass the bytes of a caller's iterable on, and end the stream whatever the iterable does."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable

INTERRUPTED = "The server failed while it was answering; the answer is incomplete."
"""Message of the error event after an exception, whose own text may contain secrets."""


def run_to_end(
    chunks: Iterable[bytes],
    *,
    feed: Callable[[bytes], bytes],
    close: Callable[[], bytes],
    fail: Callable[[str], bytes],
) -> Generator[bytes, None, None]:
    """Yield what `feed` returns for each chunk, then what `close` returns.

    An exception before the first bytes is raised. A later one is logged, and `fail` ends the stream. A source that is
    a generator is closed. Empty results are left out: a zero-length chunk would end an HTTP/1.1 body.
    """
    source = iter(chunks)
    has_started = False
    try:
        for data in source:
            if out := feed(data):
                has_started = True
                yield out
        last = close()
    except Exception as error:
        if not has_started:
            raise
        last = _fail_after(error, fail)
    finally:
        if isinstance(source, Generator):
            source.close()
    if last:
        yield last


async def run_to_end_async(
    chunks: AsyncIterable[bytes],
    *,
    feed: Callable[[bytes], bytes],
    close: Callable[[], bytes],
    fail: Callable[[str], bytes],
) -> AsyncGenerator[bytes, None]:
    """Do the same as `run_to_end` with an asynchronous iterable."""
    source = aiter(chunks)
    has_started = False
    try:
        async for data in source:
            if out := feed(data):
                has_started = True
                yield out
        last = close()
    except Exception as error:
        if not has_started:
            raise
        last = _fail_after(error, fail)
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()
    if last:
        yield last


def _fail_after(error: Exception, fail: Callable[[str], bytes]) -> bytes:
    import logging  # takes 5 ms, and is rarely needed

    logging.getLogger("welldone").error("the source of a stream failed", exc_info=error)
    return fail(INTERRUPTED)


def require_iterable(chunks: object, function: str) -> None:
    """Check that `chunks` is an iterable of bytes.

    Raises:
        TypeError: it is bytes, text, or no iterable.
    """
    if isinstance(chunks, bytes | bytearray | memoryview | str) or not isinstance(chunks, Iterable):
        raise TypeError(f"{function} takes an iterable of bytes, not {type(chunks).__name__}; for bytes write [data]")


def require_async_iterable(chunks: object, function: str) -> None:
    """Check that `chunks` is an asynchronous iterable.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(chunks, AsyncIterable):
        name = type(chunks).__name__
        raise TypeError(f"{function} takes an async iterable of bytes, not {name}; without the a it takes others")
