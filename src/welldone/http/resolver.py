"""DNS resolver with one thread per name that is being looked up.

`loop.getaddrinfo` shares a small thread pool with everything else that blocks: a name server that does not answer holds
a thread for half a minute, and soon no other name is resolved. Here concurrent lookups of the same name share one
thread, so there are never more threads than names.
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
"""Blocking function from a host name to its addresses; raises OSError where there are none."""

_CONCURRENT_LOOKUPS_LIMIT = 64
"""Far more than the upstreams of a gateway, so that lookups that hang do not block others."""


def system_lookup(name: str) -> list[str]:
    """Look up a name with `getaddrinfo`."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Resolver:
    """Asynchronous DNS lookups that share pending results."""

    def __init__(self, lookup: Lookup = system_lookup) -> None:
        self._lookup = lookup
        self._lock = threading.Lock()
        self._pending: dict[str, Future[list[str]]] = {}

    async def resolve(self, name: str) -> list[str]:
        """Return the addresses of a name, at least one. A literal IP address is returned as it is.

        Raises:
            OSError: the name has no address, or too many lookups are pending.
        """
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name.partition("%")[0])
            return [name]
        # Shielded: a cancelled caller must not cancel a lookup that others wait for.
        found = await asyncio.shield(asyncio.wrap_future(self._start_lookup(name)))
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        return found

    def _start_lookup(self, name: str) -> "Future[list[str]]":
        with self._lock:
            pending = self._pending.get(name)
            if pending is None:
                if len(self._pending) >= _CONCURRENT_LOOKUPS_LIMIT:
                    raise socket.gaierror(socket.EAI_AGAIN, "too many DNS lookups are pending")
                pending = self._pending[name] = Future()
                # A daemon thread: a lookup that hangs must not delay the exit of the process.
                threading.Thread(target=self._run_lookup, args=(name, pending), name="lookup", daemon=True).start()
            return pending

    def _run_lookup(self, name: str, pending: "Future[list[str]]") -> None:
        found, failure = [], None
        try:
            found = self._lookup(name)
        except OSError as error:
            failure = error
        except UnicodeError:  # the name cannot be encoded with IDNA
            failure = socket.gaierror(socket.EAI_NONAME, "not a host name")
        with self._lock:
            del self._pending[name]
        if failure is None:
            pending.set_result(found)
        else:
            pending.set_exception(failure)


RESOLVER = Resolver()
