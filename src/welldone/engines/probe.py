"""Is an engine well? Asked over its HTTP, of programs that do not say it themselves."""

import asyncio

from welldone.engines.address import Address
from welldone.net.outbound import HttpClientError, fetch

HEALTH_PATHS = ("/health", "/v1/models")
"""llama-server, vLLM and SGLang have the first; every server with OpenAI's API has the second."""

PROBE_INTERVAL_MIN_S = 0.05
PROBE_INTERVAL_MAX_S = 1.0
"""A program that starts in a moment is noticed in a moment; one that loads for minutes is not asked too often."""

PROBE_TIMEOUT_S = 5.0
"""A well server says so in milliseconds; one that is loading may be slow."""

PROBE_REPLY_LIMIT_BYTES = 2**20
"""A list of models has some KiB."""


async def wait_until_healthy(address: Address) -> None:
    """Returns when the server says that it is well. It may never: the caller has a limit."""
    pause_s = PROBE_INTERVAL_MIN_S
    while not await is_healthy(address):
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, PROBE_INTERVAL_MAX_S)


async def is_responsive(address: Address, within_s: float) -> bool:
    """Whether the server says anything at all. llama.cpp's numbers come from the loop that computes; its health does
    not, and is well also where that loop stands still."""
    try:
        await fetch(address, "GET", "/metrics", timeout_s=within_s, limit_bytes=PROBE_REPLY_LIMIT_BYTES)
    except HttpClientError:
        return False
    return True


async def reports_unhealthy(address: Address) -> bool:
    """Whether the server says that it is not well. vLLM and SGLang do where their engine has died behind them."""
    try:
        reply = await fetch(
            address, "GET", HEALTH_PATHS[0], timeout_s=PROBE_TIMEOUT_S, limit_bytes=PROBE_REPLY_LIMIT_BYTES
        )
    except HttpClientError:
        return False
    return reply.status >= 500


async def is_healthy(address: Address) -> bool:
    """Whether the server says that it is well."""
    for path in HEALTH_PATHS:
        try:
            reply = await fetch(address, "GET", path, timeout_s=PROBE_TIMEOUT_S, limit_bytes=PROBE_REPLY_LIMIT_BYTES)
        except HttpClientError:
            return False
        if reply.status != 404:
            return reply.status == 200
    return False
