"""How much each key may ask in a minute: requests, and tokens.

Each is a bucket that holds a minute's worth and fills at an even rate. A request is paid when it comes. Tokens are paid
when they are known, after the answer: a bucket may then be in debt, and who owes waits until it is paid.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from welldone.serve.errors import ApiError
from welldone.serve.keys import MOST_KEYS

_MINUTE_S = 60.0

MOST_PRINCIPALS = MOST_KEYS + 1
"""Every key, and those who have none: nobody who can ask is ever forgotten."""

_DUST = 1e-9
"""What adding up fractions may lose: who comes exactly when told is not refused for it."""


class Bucket:
    """So many units a minute."""

    def __init__(self, unit: str, per_minute: int, now: float) -> None:
        self.unit = unit
        self._size = per_minute
        self._level = float(per_minute)
        self._filled_at = now

    def wait_s(self, now: float) -> float:
        """How long until there is a whole unit; 0 where there is one."""
        self._fill(now)
        missing = 1 - self._level
        return missing / self._rate if missing > _DUST else 0.0

    def take(self, units: int, now: float) -> None:
        """Take so many, also such as are not there."""
        self._fill(now)
        self._level -= units

    def headers(self, now: float) -> dict[str, str]:
        """OpenAI's three headers: the size, what is left, and when it will be full."""
        self._fill(now)
        return {
            f"x-ratelimit-limit-{self.unit}": str(self._size),
            f"x-ratelimit-remaining-{self.unit}": str(max(0, math.floor(self._level + _DUST))),
            f"x-ratelimit-reset-{self.unit}": duration((self._size - self._level) / self._rate),
        }

    @property
    def _rate(self) -> float:
        return self._size / _MINUTE_S

    def _fill(self, now: float) -> None:
        self._level = min(float(self._size), self._level + max(0.0, now - self._filled_at) * self._rate)
        self._filled_at = now


class Limits:
    """The buckets of all who ask. A limit of 0 is none."""

    def __init__(
        self, *, requests_per_minute: int, tokens_per_minute: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        sizes = (("requests", requests_per_minute), ("tokens", tokens_per_minute))
        self._sizes = {unit: size for unit, size in sizes if size > 0}
        self._clock = clock
        self._buckets: OrderedDict[str, dict[str, Bucket]] = OrderedDict()

    def take(self, principal: str) -> dict[str, str]:
        """Count a request, and give the `x-ratelimit-*` headers of its reply; none where there is no limit.

        Raises:
            ApiError: 429 where a bucket is empty. A request that is refused costs nothing.
        """
        if not self._sizes:
            return {}
        now = self._clock()
        buckets = self._of(principal, now)
        waits = {unit: bucket.wait_s(now) for unit, bucket in buckets.items()}
        unit = max(waits, key=lambda unit: waits[unit])
        is_over = waits[unit] > 0
        if not is_over and "requests" in buckets:
            buckets["requests"].take(1, now)
        headers: dict[str, str] = {}
        for bucket in buckets.values():
            headers |= bucket.headers(now)
        if is_over:
            raise ApiError(
                429,
                f"The limit of {self._sizes[unit]} {unit} a minute is reached. Try again in {duration(waits[unit])}.",
                code="rate_limit_exceeded",
                retry_after_s=waits[unit],
                headers=headers,
            )
        return headers

    def spend(self, principal: str, tokens: int) -> None:
        """Count the tokens of an answer, its prompt's and its own."""
        if "tokens" in self._sizes:
            now = self._clock()
            self._of(principal, now)["tokens"].take(tokens, now)

    def _of(self, principal: str, now: float) -> dict[str, Bucket]:
        found = self._buckets.get(principal)
        if found is None:
            found = {unit: Bucket(unit, size, now) for unit, size in self._sizes.items()}
            self._buckets[principal] = found
            if len(self._buckets) > MOST_PRINCIPALS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(principal)
        return found


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
