"""Parent-death guard: ends a child process with its parent, however the parent ends; and before it, if memory runs out.

There are two mechanisms, since neither works everywhere. Linux sends a signal when the parent dies, also while the
child runs native code. And standard input is a pipe whose other end only the parent holds: its EOF is the parent's end.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
from pathlib import Path

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""

OOM_SCORE_ADJ = b"500"
"""Of -1000 to 1000: when memory runs out, Linux kills the engine, which is restarted, and not the server."""


def offer_to_oom_killer() -> None:
    """Let Linux kill this process and its children first."""
    with contextlib.suppress(OSError):  # other systems have no such file
        Path("/proc/self/oom_score_adj").write_bytes(OOM_SCORE_ADJ)


def signal_on_parent_death(number: signal.Signals, parent: int) -> None:
    """Have Linux send a signal when the parent dies. Other systems rely on `exit_on_stdin_eof`.

    For prctl(2), the parent is the thread that forked: start children from a thread that lives as long as the server.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the call
            os._exit(1)


def exit_on_stdin_eof() -> None:
    """Exit when standard input ends. Call it after all expected input has been read."""
    threading.Thread(target=_exit_after_eof, name="parent-death", daemon=True).start()


def _exit_after_eof() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)
