"""Long work on the event loop, a turn at a time, so that other streams are served in between."""

import asyncio
from collections.abc import Generator
from typing import TypeVar

ResultValue = TypeVar("ResultValue")


async def run_cooperatively(steps: Generator[None, None, ResultValue]) -> ResultValue:
    """Take each step in a turn of its own; what comes of them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: ResultValue = end.value
            return value
        await asyncio.sleep(0)
