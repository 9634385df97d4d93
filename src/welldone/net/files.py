"""How many files and connections this process may have open at once."""

import resource
from contextlib import suppress

_OTHER_FILES = 64
"""Files that are no clients: a bare server has some 20, and each engine a few more."""


def reserve_descriptors(clients: int) -> int:
    """How many of so many clients may be connected at once: each may need a connection to a server besides its own.

    Where the system's limit is too low, as much is taken as it gives. Most begin with 1,024, for programs of old.
    Who took more clients than that could not reach any server for them, and would find every server broken.
    """
    needed = 2 * clients + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < needed:  # less than nothing: no limit
        wanted = min(needed, hard) if hard >= 0 else needed
        with suppress(ValueError, OSError):  # some systems have a limit that they do not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return clients if soft < 0 else max(1, min(clients, (soft - _OTHER_FILES) // 2))
