"""How much each key may ask in a minute: requests, and tokens.

Each is a bucket that holds a minute's worth and fills at an even rate. A request is paid when it comes; one for which
upstreams are asked several times (`n`, lists of prompts) costs as many, as soon as that is known. Tokens are paid when
they are known, after the answer: a bucket may then be in debt, and who owes waits until it is paid.

A bucket is two numbers, which may be kept where several processes share them.
"""

import math
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from welldone.serve.errors import ApiError

_MINUTE_S = 60.0

_UNITS = ("requests", "tokens")
"""Each principal has a bucket of each."""

_DUST = 1e-9
"""What adding up fractions may lose: who comes exactly when told is not refused for it."""

Change = Callable[[float, float], tuple[float, float]]
"""New numbers of a bucket out of the old: its level, and when it was filled up to there."""


class Room(msgspec.Struct, frozen=True):
    """How full a bucket is."""

    limit: int
    remaining: int


class Spent(msgspec.Struct):
    """What somebody has used since the start."""

    requests: int = 0
    tokens: int = 0

    def plus(self, other: "Spent") -> "Spent":
        """Both together."""
        return Spent(self.requests + other.requests, self.tokens + other.tokens)


class Usage(msgspec.Struct, frozen=True):
    """What somebody may still ask for, and has had; None: without a limit."""

    name: str
    requests: Room | None
    tokens: Room | None
    spent: Spent


class Rated(Protocol):
    """A key that may have limits of its own; None: those of all."""

    @property
    def name(self) -> str: ...

    @property
    def requests_per_minute(self) -> int | None: ...

    @property
    def tokens_per_minute(self) -> int | None: ...


class Numbers(Protocol):
    """Where buckets are kept, two numbers each, both 0 at first."""

    def update(self, index: int, change: Change) -> tuple[float, float]:
        """Change the numbers of a bucket, with nobody in between, and give the new ones."""


class InMemory:
    """The numbers of one process."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[float, float]] = {}

    def update(self, index: int, change: Change) -> tuple[float, float]:
        """Change the numbers of a bucket, and give the new ones."""
        new = self._numbers[index] = change(*self._numbers.get(index, (0.0, 0.0)))
        return new


class Bucket:
    """So many units a minute."""

    def __init__(self, unit: str, per_minute: int, numbers: Numbers, index: int) -> None:
        self.unit = unit
        self.size = per_minute
        self._numbers = numbers
        self._index = index

    def wait_s(self, now: float) -> float:
        """How long until there is a whole unit; 0 where there is one."""
        missing = 1 - self._pour(0, now)
        return missing / self._rate if missing > _DUST else 0.0

    def take(self, units: int, now: float) -> None:
        """Take so many, also such as are not there."""
        self._pour(units, now)

    def take_one(self, now: float) -> bool:
        """Take a unit, if there is one, and tell whether there was."""
        was_there = False

        def change(level: float, filled_at: float) -> tuple[float, float]:
            nonlocal was_there
            level, filled_at = self._filled(level, filled_at, now)
            was_there = level >= 1 - _DUST
            return level - was_there, filled_at

        self._numbers.update(self._index, change)
        return was_there

    def set(self, level: float, now: float) -> None:
        """So many are there now, as somebody else has counted."""
        self._numbers.update(self._index, lambda *_: (level, now))

    def headers(self, now: float) -> dict[str, str]:
        """OpenAI's three headers: the size, what is left, and when it will be full."""
        level = self._pour(0, now)
        return {
            f"x-ratelimit-limit-{self.unit}": str(self.size),
            f"x-ratelimit-remaining-{self.unit}": str(_whole(level)),
            f"x-ratelimit-reset-{self.unit}": duration((self.size - level) / self._rate),
        }

    def room(self, now: float) -> Room:
        """How full it is; nothing is taken."""
        return Room(self.size, _whole(self._pour(0, now)))

    @property
    def _rate(self) -> float:
        return self.size / _MINUTE_S

    def _pour(self, units: int, now: float) -> float:
        """Fill up to now, take so many out, and give what is left."""

        def change(level: float, filled_at: float) -> tuple[float, float]:
            level, filled_at = self._filled(level, filled_at, now)
            return level - units, filled_at

        return self._numbers.update(self._index, change)[0]

    def _filled(self, level: float, filled_at: float, now: float) -> tuple[float, float]:
        if not filled_at:  # nobody has used it yet
            return float(self.size), now
        # Another process may have looked at its clock after us and have come first: that time is not counted twice.
        later = max(filled_at, now)
        return min(float(self.size), level + (later - filled_at) * self._rate), later


class Limits:
    """The buckets of all who ask. A limit of 0 is none.

    `named` are keys with limits of their own. Processes that share `numbers` name all `principals` in one order, from
    which the places of their buckets follow. Who is not named has the next place: a principal is a key, or nobody,
    and there are no more of them than keys were given out.
    """

    def __init__(
        self,
        *,
        requests_per_minute: int,
        tokens_per_minute: int,
        named: Iterable[Rated] = (),
        principals: Iterable[str] = (),
        numbers: Numbers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sizes = (requests_per_minute, tokens_per_minute)
        self._own_sizes: dict[str, tuple[int, int]] = {}
        self._numbers = InMemory() if numbers is None else numbers
        self._clock = clock
        self._buckets: dict[str, dict[str, Bucket]] = {}
        self._spent: dict[str, Spent] = {}
        for key in named:
            self.set_rates(key)
        for principal in principals:
            self._of(principal)

    def set_rates(self, key: Rated) -> None:
        """A key with limits of its own. One whose limits change keeps what it had left."""
        common_requests, common_tokens = self._sizes
        sizes = (
            common_requests if key.requests_per_minute is None else key.requests_per_minute,
            common_tokens if key.tokens_per_minute is None else key.tokens_per_minute,
        )
        if self._own_sizes.get(key.name) != sizes:
            self._own_sizes[key.name] = sizes
            if key.name in self._buckets:
                self._buckets[key.name] = self._make(key.name, list(self._buckets).index(key.name))

    async def admit(self, principal: str) -> dict[str, str]:
        """As `take`, also where others must be asked first."""
        return self.take(principal)

    def take(self, principal: str) -> dict[str, str]:
        """Count a request, and give the `x-ratelimit-*` headers of its reply; none where there is no limit.

        Raises:
            ApiError: 429 where a bucket is empty. A request that is refused costs nothing.
        """
        now = self._clock()
        return self._taken(principal, _take(self._of(principal), now), now)

    def _taken(self, principal: str, is_in: bool, now: float) -> dict[str, str]:
        """The headers, or the refusal, after a request was taken or not."""
        buckets = self._of(principal)
        self._spent[principal].requests += is_in
        headers: dict[str, str] = {}
        for bucket in buckets.values():
            headers |= bucket.headers(now)
        if is_in:
            return headers
        empty = max(buckets.values(), key=lambda bucket: bucket.wait_s(now))
        wait_s = empty.wait_s(now)
        raise ApiError(
            429,
            f"The limit of {empty.size} {empty.unit} a minute is reached. Try again in {duration(wait_s)}.",
            code="rate_limit_exceeded",
            retry_after_s=wait_s,
            headers=headers,
        )

    def owe(self, principal: str, requests: int) -> None:
        """Count what a request, which was taken, costs beyond one: an upstream is asked so many times more. As with
        tokens, who owes waits until it is paid."""
        if requests > 0 and (bucket := self._of(principal).get("requests")):
            bucket.take(requests, self._clock())

    def spend(self, principal: str, tokens: int) -> None:
        """Count the tokens of an answer, its prompt's and its own."""
        if bucket := self._of(principal).get("tokens"):
            bucket.take(tokens, self._clock())
        self._spent[principal].tokens += tokens

    async def close(self) -> None:
        """Nothing more is counted."""

    @property
    def principals(self) -> list[str]:
        """All who have buckets, or have asked."""
        return [name for name, buckets in self._buckets.items() if buckets or self._spent[name].requests]

    def usage(self, principal: str) -> Usage:
        """What somebody may still ask for. What was spent is that of this process."""
        buckets, now = self._of(principal), self._clock()
        requests, tokens = (buckets[unit].room(now) if unit in buckets else None for unit in _UNITS)
        return Usage(principal, requests, tokens, msgspec.structs.replace(self._spent[principal]))

    def spent(self) -> dict[str, Spent]:
        """What each who has asked has used in this process."""
        return {name: spent for name, spent in self._spent.items() if spent.requests}

    def _of(self, principal: str) -> dict[str, Bucket]:
        found = self._buckets.get(principal)
        if found is None:
            found = self._buckets[principal] = self._make(principal, len(self._buckets))
            self._spent[principal] = Spent()
        return found

    def _make(self, principal: str, place: int) -> dict[str, Bucket]:
        first = place * len(_UNITS)
        return {
            unit: Bucket(unit, size, self._numbers, first + number)
            for number, (unit, size) in enumerate(zip(_UNITS, self._sizes_of(principal), strict=True))
            if size > 0
        }

    def _sizes_of(self, principal: str) -> tuple[int, int]:
        return self._own_sizes.get(principal, self._sizes)


def _whole(level: float) -> int:
    """The units of a bucket that can be taken."""
    return max(0, math.floor(level + _DUST))


def _take(buckets: dict[str, Bucket], now: float) -> bool:
    """Take a request, if nothing is owed, and tell whether it was taken."""
    if (tokens := buckets.get("tokens")) and tokens.wait_s(now) > 0:
        return False
    requests = buckets.get("requests")
    return requests is None or requests.take_one(now)


def duration(seconds: float) -> str:
    """A time as OpenAI writes it: `20ms`, `1s`, `8.64s`, `6m0s`. Rounded up: who waits so long has waited enough."""
    milliseconds = math.ceil(max(0.0, seconds) * 1000 - 1e-6)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g}s"
    whole = math.ceil(milliseconds / 1000)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}h{minutes}m{whole % 60}s" if hours else f"{minutes}m{whole % 60}s"
