"""SIGHUP: ignored with a log line, unless the terminal that the server was started in has closed."""

import logging
import os
import signal

from welldone.serve import log

SIGHUP_IGNORED = "SIGHUP is ignored: settings are read at the start; restart the server to change them"


class HangupPolicy:
    """What a SIGHUP asks for. Make it before a handler of the signal is set.

    `kill -HUP` and log rotation must not end a server. A terminal that closes sends the same signal, and a server in it
    should end with it, unless it was started with nohup, which ignores the signal from the start.
    """

    def __init__(self) -> None:
        self._ends_with_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()

    def should_exit(self) -> bool:
        """Whether the server should end; if not, that is logged."""
        if self._ends_with_terminal and not _has_terminal():
            return True
        log.event(logging.INFO, SIGHUP_IGNORED)
        return False


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal: it loses it when the terminal closes."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
