"""What a client does next, drawn from the seed and its number alone: the same seed wishes the same."""

from random import Random
from typing import Literal, TypeAlias

import msgspec

from faults.nemesis.order import Order
from faults.nemesis.upstream import FAULT_NAMES, SHAPES

Dialect: TypeAlias = Literal["chat", "completions", "responses", "messages", "ollama"]
DIALECTS: tuple[Dialect, ...] = ("chat", "chat", "completions", "responses", "messages", "ollama")
"""Chat twice: most clients speak it."""
UPSTREAMS = "abc"
WRONG: dict[str, int] = {"no key": 401, "wrong key": 401, "no json": 400, "no text": 400, "no path": 404, "packed": 415}
"""Requests that are at fault themselves, and the status of each."""

_WRONG_SHARE = 0.06
_FAULT_SHARE = 0.35
_LEAVE_SHARE = 0.15
_PADS = (0, 0, 0, 0, 40, 4000)
"""Some answers are larger than what sockets hold, so that those who read slowly hold up the upstream."""
_PAUSES_S = (0.0, 0.0, 0.002, 0.01)
_TOKENS_LIMIT = 60


class Wish(msgspec.Struct, frozen=True):
    """One request, and how its client behaves."""

    order: Order
    dialect: Dialect = "chat"
    is_stream: bool = True
    wrong: str = ""
    """What is wrong with the request itself."""
    leaves_after: int | None = None
    """Tokens after which the client leaves, before it has all; None: it stays."""
    is_rude: bool = False
    """It leaves without a farewell."""
    is_slow: bool = False
    """It reads slowly."""
    is_kept: bool = True
    """It keeps its connection for the next request."""


def draw(seed: int, client: int, number: int) -> Wish:
    """The wish of this number of this client."""
    random = Random(f"{seed}/{client}/{number}")
    is_faulty = random.random() < _FAULT_SHARE
    order = Order(
        marker=f"m{client:03}{number:05}",
        tokens=random.randint(1, _TOKENS_LIMIT),
        pad=random.choice(_PADS),
        pause_s=random.choice(_PAUSES_S),
        shape=random.choice(SHAPES),
        fault=random.choice(FAULT_NAMES) if is_faulty else "",
        faulty="".join(random.sample(UPSTREAMS, random.randint(1, len(UPSTREAMS)))) if is_faulty else "",
        at=round(random.random(), 4),
    )
    leaves = random.random() < _LEAVE_SHARE
    return Wish(
        order,
        dialect=random.choice(DIALECTS),
        is_stream=random.random() < 0.7,
        wrong=random.choice(list(WRONG)) if random.random() < _WRONG_SHARE else "",
        leaves_after=random.randrange(order.tokens) if leaves else None,
        is_rude=random.random() < 0.5,
        is_slow=random.random() < 0.1,
        is_kept=random.random() < 0.7,
    )
