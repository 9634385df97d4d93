"""Runs a module as a program whose sockets can only connect to the loopback interface.

`python -m tests.clients.programs.loopback MODULE [ARGUMENT …]`. Some clients contact their vendor for prices, updates
or tracing. Such an attempt ends the program at once: the client could catch an exception, and nobody would notice.
"""

import os
import runpy
import sys

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
EXIT_STATUS = 70


def _host(event: str, arguments: tuple[object, ...]) -> object:
    """Host of a socket event; None if there is none, as for a Unix socket."""
    if event == "socket.getaddrinfo":
        return arguments[0]
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        return arguments[1][0]
    return None


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    host = _host(event, arguments)
    if host is None:
        return
    name = host.decode(errors="replace") if isinstance(host, bytes) else str(host)
    if name not in LOOPBACK:
        sys.stderr.write(f"{sys.argv[0]} tried to connect to {name}\n")
        sys.stderr.flush()
        os._exit(EXIT_STATUS)


def main() -> None:
    sys.addaudithook(_audit)
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
