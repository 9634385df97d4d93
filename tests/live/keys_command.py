"""`welldone keys` in tests, and what a server answers to a key."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.faults import start_chat
from tests.support.server import LIMIT_S, Running


def run_keys(
    arguments: tuple[str, ...], place: dict[str, str], code: int, folder: Path | None = None
) -> tuple[str, str]:
    """Run `welldone keys` with the place of the keys in the environment; return stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "welldone", "keys", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        cwd=folder,
        env={**os.environ, **place},
    )
    assert done.returncode == code, done.stderr
    return done.stdout.strip(), done.stderr.strip()


def chat_status(server: Running, key: str | None, model: str = "hello") -> int:
    """Return the status of a chat request with this key."""
    server.key = key
    with start_chat(server, model=model, stream=False) as connection:
        return connection.reply().status


def has_status(server: Running, key: str, status: int) -> bool:
    """Whether a chat request with this key has this status."""
    return chat_status(server, key) == status
