"""Cooperative scheduling of long computations on the event loop, so that other streams are served in between."""

import asyncio
from collections.abc import Generator
from typing import TypeVar

ResultValue = TypeVar("ResultValue")


async def run_cooperatively(steps: Generator[None, None, ResultValue]) -> ResultValue:
    """Run a generator to its end, one step per event loop iteration, and return its value."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: ResultValue = end.value
            return value
        await asyncio.sleep(0)
