"""A program that ends with the one that started it, however that ends.

Two ropes, since neither holds everywhere: Linux sends a signal when the parent dies, also while the program is deep in
native code; and the standard input is a pipe whose other end only the parent holds, so its end is the parent's end.
"""

import ctypes
import os
import signal
import sys
import threading

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


def signal_on_parent_death(number: signal.Signals, parent: int) -> None:
    """Asks Linux for a signal when the parent dies. Elsewhere nothing: standard input is the rope there.

    The parent is the thread that started us, so engines are started by a thread that lives as long as the server.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)


def exit_on_stdin_eof() -> None:
    """Ends this process when standard input ends. Call it after what standard input had to say was read."""
    threading.Thread(target=_exit_after_eof, name="tether", daemon=True).start()


def _exit_after_eof() -> None:
    while os.read(0, 4096):
        pass  # the parent says nothing more, and what it says is not for us
    os._exit(0)
