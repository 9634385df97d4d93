"""Long work on the event loop, a turn at a time, so that other streams are served in between."""

import asyncio
from collections.abc import Generator
from typing import TypeVar

Value = TypeVar("Value")


async def in_turns(steps: Generator[None, None, Value]) -> Value:
    """Take each step in a turn of its own; what comes of them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: Value = end.value
            return value
        await asyncio.sleep(0)
