"""What a client does next, drawn from the seed and its number alone: the same seed gives the same actions."""

from random import Random
from typing import Literal, TypeAlias

import msgspec

from faults.nemesis.upstream import BREAKS, FAULT_NAMES, SHAPES
from faults.nemesis.upstream_actions import UpstreamAction

Dialect: TypeAlias = Literal["chat", "completions", "responses", "messages", "ollama"]
DIALECTS: tuple[Dialect, ...] = ("chat", "chat", "completions", "responses", "messages", "ollama")
"""Chat twice: most clients use it."""
UPSTREAMS = "abc"
WRONG: dict[str, int] = {"no key": 401, "wrong key": 401, "no json": 400, "no text": 400, "no path": 404, "packed": 415}
"""Invalid requests and their status."""

_WRONG_SHARE = 0.06
_FAULT_SHARE = 0.35
_LEAVE_SHARE = 0.15
_CONTINUED_SHARE = 0.6
_RESUMED_SHARE = 0.25
_RETURNS = (0, 1, 1, 2, 4)
"""A client that does not come back stops its generation."""
_PADS = (0, 0, 0, 0, 40, 4000)
"""Some replies exceed socket buffers, so that slow readers block the upstream."""
_PAUSES_S = (0.0, 0.0, 0.002, 0.01)
_TOKENS_LIMIT = 60


class ClientAction(msgspec.Struct, frozen=True):
    """One request, and how its client behaves."""

    order: UpstreamAction
    dialect: Dialect = "chat"
    is_stream: bool = True
    wrong: str = ""
    """Why the request is invalid; empty: it is valid."""
    leaves_after: int | None = None
    """Tokens after which the client disconnects; None: it stays."""
    is_rude: bool = False
    """It disconnects with RST."""
    is_slow: bool = False
    """It reads slowly."""
    reuses_connection: bool = True
    """It reuses its connection."""
    is_continued: bool = False
    """Its model is at upstreams that continue an answer."""
    is_cold: bool = False
    """Its temperature is 0."""
    returns: int | None = None
    """How many times it comes back for the rest of its stream; None: its stream cannot be resumed."""


def draw(seed: int, client: int, number: int) -> ClientAction:
    """The action with this number of a client."""
    random = Random(f"{seed}/{client}/{number}")
    is_faulty = random.random() < _FAULT_SHARE
    is_continued = random.random() < _CONTINUED_SHARE
    is_cold = random.random() < 0.7
    is_repeatable = is_cold and random.random() < 0.8
    names = (*FAULT_NAMES, *BREAKS, *BREAKS, *BREAKS) if is_continued else FAULT_NAMES
    order = UpstreamAction(
        marker=f"m{client:03}{number:05}",
        tokens=random.randint(1, _TOKENS_LIMIT),
        pad=random.choice(_PADS),
        pause_s=random.choice(_PAUSES_S),
        shape=random.choice(SHAPES),
        fault=random.choice(names) if is_faulty else "",
        faulty="".join(random.sample(UPSTREAMS, random.randint(1, len(UPSTREAMS)))) if is_faulty else "",
        at=round(random.random(), 4),
        is_repeatable=is_repeatable,
        # An answer that begins again with another text cannot be told from the rest of one.
        ignores_prefill=is_repeatable and random.random() < 0.15,
    )
    returns = random.choice(_RETURNS) if random.random() < _RESUMED_SHARE else None
    leaves = random.random() < _LEAVE_SHARE or bool(returns)
    return ClientAction(
        order,
        dialect=random.choice(DIALECTS),
        is_stream=random.random() < 0.7,
        wrong=random.choice(list(WRONG)) if random.random() < _WRONG_SHARE else "",
        leaves_after=random.randrange(order.tokens) if leaves else None,
        is_rude=random.random() < 0.5,
        is_slow=random.random() < 0.1,
        reuses_connection=random.random() < 0.7,
        is_continued=is_continued,
        is_cold=is_cold,
        returns=returns,
    )
