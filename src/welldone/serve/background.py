"""Answers that are made while nobody waits for them."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeAlias

from welldone.serve.errors import ApiError

_MAX_BACKGROUND = 64
"""At once, of all clients. Each waits for a seat like any other; but no open connection bounds their number."""

_TaskKey: TypeAlias = tuple[str, str]


class BackgroundResponses:
    """Runs them, by whom they belong to and what they are called."""

    def __init__(self) -> None:
        self._tasks: dict[_TaskKey, asyncio.Task[None]] = {}

    def check_capacity(self) -> None:
        """ApiError where too many run."""
        if len(self._tasks) >= _MAX_BACKGROUND:
            message = (
                f"{_MAX_BACKGROUND} responses are being made in the background. Try again when some of them are done."
            )
            raise ApiError(429, message, param="background", code="rate_limit_exceeded", retry_after_s=10.0)

    async def start(self, principal: str, response_id: str, work: Coroutine[Any, Any, None]) -> None:
        """Begin with one; it has begun then. One that is cancelled before does nothing at its end."""
        key = (principal, response_id)
        task = self._tasks[key] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._tasks.pop(key, None))
        await asyncio.sleep(0)

    async def cancel(self, principal: str, response_id: str) -> bool:
        """End one; whether it was running. What it does at its end is done then."""
        task = self._tasks.get((principal, response_id))
        if task is None:
            return False
        await _cancel_all([task])
        return True

    async def close(self) -> None:
        """End them all."""
        await _cancel_all(list(self._tasks.values()))


async def _cancel_all(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
