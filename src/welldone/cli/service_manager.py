"""Reports the state of the server to systemd, by the protocol of sd_notify(3).

A message is a datagram of lines to the Unix socket that the environment names. Without it nothing is sent.
"""

import os
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress

_STATUS_CHARS = 500


class ServiceManager:
    """The service manager of this process. Its variables are removed from the environment, which children inherit."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        address = environment.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address  # @: abstract, Linux only
        interval_us, process = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        is_watched = interval_us.isdecimal() and process in ("", str(os.getpid()))
        self.watchdog_s: float | None = int(interval_us) / 2e6 if is_watched and address else None
        """Interval of `keep_alive`: half of the time after which the manager ends the service; None: not needed."""

    def ready(self, status: str) -> None:
        """Report that requests are accepted, at the start and after a reload."""
        self._send("READY=1", _status(status))

    def reloading(self) -> None:
        """Report the start of a reload. `ready` ends it, whatever its result."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """Report the start of the shutdown."""
        self._send("STOPPING=1", _status("finishing running requests"))

    def keep_alive(self) -> None:
        """Report that the server is not stuck."""
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # A manager that does not read must not block the server: it has a timeout of its own.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
            datagrams.setblocking(False)
            datagrams.sendto("\n".join(lines).encode(), self._address)


def _status(text: str) -> str:
    return f"STATUS={' '.join(text.split())[:_STATUS_CHARS]}"
