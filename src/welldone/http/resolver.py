"""Looks up names of servers, in threads of its own.

The loop's own way has a few threads for all names and all else that blocks: a name server that does not answer holds
them for half a minute each, and then no other name is found. Here a name is looked up once at a time, whoever waits for
it, and each in a thread that nothing else needs. So there are no more threads than names.
"""

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias

Lookup: TypeAlias = Callable[[str], list[str]]
"""The addresses of a name; OSError where there are none. It may take long."""

_CONCURRENT_LOOKUPS_LIMIT = 64
"""Names that are looked up at once. A gateway has few, and those that hang do not keep others waiting."""


def system_lookup(name: str) -> list[str]:
    """What the system says."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Resolver:
    """Finds the addresses of names."""

    def __init__(self, lookup: Lookup = system_lookup) -> None:
        self._lookup = lookup
        self._lock = threading.Lock()
        self._pending: dict[str, Future[list[str]]] = {}

    async def resolve(self, name: str) -> list[str]:
        """The addresses of a name, at least one; an address is its own.

        Raises:
            OSError: there are none, or too many names are being looked up.
        """
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name.partition("%")[0])
            return [name]
        # Who leaves does not end the lookup, for which others may wait.
        found = await asyncio.shield(asyncio.wrap_future(self._start_lookup(name)))
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        return found

    def _start_lookup(self, name: str) -> "Future[list[str]]":
        with self._lock:
            pending = self._pending.get(name)
            if pending is None:
                if len(self._pending) >= _CONCURRENT_LOOKUPS_LIMIT:
                    raise socket.gaierror(socket.EAI_AGAIN, "too many names are being looked up")
                pending = self._pending[name] = Future()
                # A daemon: one that hangs does not keep the process from ending.
                threading.Thread(target=self._run_lookup, args=(name, pending), name="lookup", daemon=True).start()
            return pending

    def _run_lookup(self, name: str, pending: "Future[list[str]]") -> None:
        try:
            found = self._lookup(name)
        except (OSError, UnicodeError) as error:  # the latter for names that cannot be ones
            with self._lock:
                del self._pending[name]
            pending.set_exception(
                error if isinstance(error, OSError) else socket.gaierror(socket.EAI_NONAME, "no name")
            )
        else:
            with self._lock:
                del self._pending[name]
            pending.set_result(found)


RESOLVER = Resolver()
