"""SIGTERM for commands that run until Ctrl-C."""

import asyncio
import contextlib
import signal


def cancel_on_sigterm() -> None:
    """Let SIGTERM cancel the current task with the message `SIGTERM`. Ctrl-C cancels it without a message."""
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError):  # on Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel, signal.SIGTERM.name)
