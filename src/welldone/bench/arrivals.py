"""When the requests of an open loop are due, in seconds from the start of the step."""

import random
from collections.abc import Iterator
from functools import partial
from itertools import accumulate, count, repeat
from math import isfinite
from pathlib import Path
from typing import BinaryIO

import msgspec

MAX_BURSTINESS = 1000.0
"""The longest bursts: about so many requests at once, and more users than that few servers have."""
_MAX_ARRIVALS = 1_000_000  # of a file: more than a day at ten requests per second
_LINE_LIMIT_BYTES = 1 << 20  # the hashes of a prompt of a million tokens fit in it
_MS_PER_S = 1000.0
_LINE_FORMAT = 'each line must be a number of seconds, or an object with a number as "timestamp"'


def constant_arrivals(rate: float) -> Iterator[float]:
    """Evenly, the first at once."""
    _check_rate(rate)
    return (number / rate for number in count())


def poisson_arrivals(rate: float, rng: random.Random) -> Iterator[float]:
    """At random, as people come who do not know of each other; the first after a gap like any other."""
    return bursty_arrivals(rate, 1.0, rng)


def bursty_arrivals(rate: float, burstiness: float, rng: random.Random) -> Iterator[float]:
    """In bursts: gaps of a gamma distribution, whose variance is `burstiness` times that of gaps at random."""
    _check_rate(rate)
    if not 0 < burstiness <= MAX_BURSTINESS:
        raise ValueError(f"the burstiness must be more than 0 and at most {MAX_BURSTINESS:g}, not {burstiness:g}")
    # A gamma distribution has the mean shape * scale and the variance shape * scale².
    shape, scale = 1 / burstiness, burstiness / rate
    return accumulate(rng.gammavariate(shape, scale) for _ in repeat(None))


def _check_rate(rate: float) -> None:
    if not (rate > 0 and isfinite(rate)):
        raise ValueError(f"a rate must be more than 0 requests per second, not {rate:g}")


class _ArrivalLine(msgspec.Struct):
    """A line of a trace. Those of Mooncake, and they alone, tell the hashes of the prompt's blocks."""

    timestamp: float
    hash_ids: msgspec.Raw = msgspec.Raw()


def read_arrival_times(path: Path) -> list[float]:
    """The times in a file, in order and from 0: a number on each line, or JSON lines with `timestamp`.

    They are seconds from any moment on. Where a line has `hash_ids`, as the traces of Mooncake do, its `timestamp`
    is taken for milliseconds, as theirs are.

    Raises:
        ValueError: the file cannot be read, or says something else.
    """
    try:
        with path.open("rb") as file:
            times = sorted(_read_times(path, file))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    if not times:
        raise ValueError(f"{path} has no times in it: {_LINE_FORMAT}")
    return [at - times[0] for at in times]


def _read_times(path: Path, file: BinaryIO) -> Iterator[float]:
    decoder = msgspec.json.Decoder(float | _ArrivalLine)
    found = 0
    for number, line in enumerate(iter(partial(file.readline, _LINE_LIMIT_BYTES + 1), b""), 1):
        if len(line) > _LINE_LIMIT_BYTES:
            raise ValueError(f"{path}, line {number}: longer than {_LINE_LIMIT_BYTES} bytes")
        if not line.strip():
            continue
        found += 1
        if found > _MAX_ARRIVALS:
            raise ValueError(f"{path} has more than {_MAX_ARRIVALS} times in it: give a part of it")
        yield _parse_time(decoder, path, number, line)


def _parse_time(decoder: "msgspec.json.Decoder[float | _ArrivalLine]", path: Path, number: int, line: bytes) -> float:
    try:
        said = decoder.decode(line)
    except (msgspec.DecodeError, RecursionError):
        raise ValueError(f"{path}, line {number}: {_LINE_FORMAT}") from None
    if isinstance(said, float):
        return said
    return said.timestamp / _MS_PER_S if said.hash_ids else said.timestamp
