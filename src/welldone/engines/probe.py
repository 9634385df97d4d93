"""Is an engine well? Asked over its HTTP, of programs that do not say it themselves."""

import asyncio

from welldone.engines.address import Address
from welldone.net.outbound import OutboundError, fetch

PATHS = ("/health", "/v1/models")
"""llama-server, vLLM and SGLang have the first; every server with OpenAI's API has the second."""

FIRST_PAUSE_S = 0.05
LAST_PAUSE_S = 1.0
"""A program that starts in a moment is noticed in a moment; one that loads for minutes is not asked too often."""

ANSWER_S = 5.0
"""A well server says so in milliseconds; one that is loading may be slow."""

REPLY_LIMIT_BYTES = 2**20
"""A list of models has some KiB."""


async def until_healthy(address: Address) -> None:
    """Returns when the server says that it is well. It may never: the caller has a limit."""
    pause_s = FIRST_PAUSE_S
    while not await is_healthy(address):
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, LAST_PAUSE_S)


async def is_answering(address: Address, within_s: float) -> bool:
    """Whether the server says anything at all. llama.cpp's numbers come from the loop that computes; its health does
    not, and is well also where that loop stands still."""
    try:
        await fetch(address, "GET", "/metrics", within_s=within_s, limit_bytes=REPLY_LIMIT_BYTES)
    except OutboundError:
        return False
    return True


async def is_sick(address: Address) -> bool:
    """Whether the server says that it is not well. vLLM and SGLang do where their engine has died behind them."""
    try:
        reply = await fetch(address, "GET", PATHS[0], within_s=ANSWER_S, limit_bytes=REPLY_LIMIT_BYTES)
    except OutboundError:
        return False
    return reply.status >= 500


async def is_healthy(address: Address) -> bool:
    """Whether the server says that it is well."""
    for path in PATHS:
        try:
            reply = await fetch(address, "GET", path, within_s=ANSWER_S, limit_bytes=REPLY_LIMIT_BYTES)
        except OutboundError:
            return False
        if reply.status != 404:
            return reply.status == 200
    return False
