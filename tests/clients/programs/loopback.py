"""Runs a module as a program whose sockets reach the loopback only.

`python -m tests.clients.programs.loopback MODULE [ARGUMENT …]`. Some clients look at home for prices, news or a place
for their traces. Here that ends the program at once: an exception could be caught by the client, and nobody would see.
"""

import os
import runpy
import sys

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
ENDED = 70


def _host(event: str, arguments: tuple[object, ...]) -> object:
    """The host that a socket is about to ask for; None where there is none, as with a unix socket."""
    if event == "socket.getaddrinfo":
        return arguments[0]
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        return arguments[1][0]
    return None


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    host = _host(event, arguments)
    if host is None:
        return
    name = host.decode(errors="replace") if isinstance(host, bytes) else str(host)
    if name not in LOOPBACK:
        sys.stderr.write(f"{sys.argv[0]} wanted to reach {name}\n")
        sys.stderr.flush()
        os._exit(ENDED)


def main() -> None:
    sys.addaudithook(_watch)
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
