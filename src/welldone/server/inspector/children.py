"""Child processes of the page, for work that could block the server or take too much memory."""

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping

from welldone.engines.engine_config import PYTHON_MODULE
from welldone.gateway.errors import ApiError


async def start_child(module: str, environment: Mapping[str, str], purpose: str, limit: int = 2**16) -> Process:
    """Start a module with pipes for input and output; `limit`: longest line of the output.

    Raises:
        ApiError: the process does not start.
    """
    try:
        return await asyncio.create_subprocess_exec(
            *PYTHON_MODULE,
            module,
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env=environment,
            limit=limit,
            start_new_session=True,
        )
    except OSError:
        message = f"The server cannot start a process {purpose}. Try again."
        raise ApiError(503, message, code="server_busy", retry_after_s=1.0) from None
