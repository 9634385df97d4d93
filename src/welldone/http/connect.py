"""Opens connections to HTTP servers, for all clients: DNS, Unix sockets, TLS, one limit, one kind of error.

Each name that is being looked up has a thread. `loop.getaddrinfo` shares a small thread pool with everything else that
blocks: a name server that does not answer holds a thread for half a minute, and soon no other name is resolved. Here
concurrent lookups of the same name share one thread, so there are never more threads than names.
"""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeAlias, cast

from welldone.http.address import Address, describe_connect_error, is_local_failure, ssl_context

Lookup: TypeAlias = Callable[[str], list[str]]
"""Blocking function from a host name to its addresses; raises OSError where there are none."""

_CONCURRENT_LOOKUPS_LIMIT = 64
"""Far more than the upstreams of a gateway, so that lookups that hang do not block others."""


def system_lookup(name: str) -> list[str]:
    """Look up a name with `getaddrinfo`."""
    entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in entries))


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
        addresses = await asyncio.shield(asyncio.wrap_future(self._start_lookup(name)))
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        return addresses

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
        addresses, failure = [], None
        try:
            addresses = self._lookup(name)
        except OSError as error:
            failure = error
        except UnicodeError:  # the name cannot be encoded with IDNA
            failure = socket.gaierror(socket.EAI_NONAME, "not a host name")
        with self._lock:
            del self._pending[name]
        if failure is None:
            pending.set_result(addresses)
        else:
            pending.set_exception(failure)


RESOLVER = Resolver()


CONNECT_TIMEOUT_S = 5.0
"""Limit for DNS, TCP and TLS together. Two lost SYN packets (1 s + 2 s) still fit."""


class HttpClientError(Exception):
    """There is no connection, or no complete HTTP response. The message is a clause without addresses and secrets."""

    def __init__(
        self,
        message: str,
        *,
        is_stale: bool = False,
        is_local_failure: bool = False,
        is_untrusted: bool = False,
        detail: str = "",
    ) -> None:
        super().__init__(message)
        self.is_stale = is_stale
        """A reused connection was lost at once, before any byte of the response, or answered with a 408: the server had
        closed the idle connection and did not read the request, which may be sent again (RFC 9110 §9.2.2)."""
        self.is_local_failure = is_local_failure
        """This machine could not open a connection: not evidence against the server."""
        self.is_untrusted = is_untrusted
        """The server's certificate is not trusted."""
        self.detail = detail
        """What is wrong with the certificate; it may contain the host's name."""


async def connect(address: Address, protocol: asyncio.Protocol) -> asyncio.Transport:
    """Connect the protocol to the server.

    Raises:
        HttpClientError: there is no connection.
    """
    loop = asyncio.get_running_loop()
    transport: asyncio.BaseTransport
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if address.socket is not None:
                transport, _ = await loop.create_unix_connection(lambda: protocol, address.socket)
            else:
                transport = await _connect_tcp(address, protocol)
    except OSError as error:
        detail = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else ""
        raise HttpClientError(
            describe_connect_error(error, CONNECT_TIMEOUT_S),
            is_local_failure=is_local_failure(error),
            is_untrusted=isinstance(error, ssl.SSLCertVerificationError),
            detail=detail,
        ) from None
    return cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from it


async def _connect_tcp(address: Address, protocol: asyncio.Protocol) -> asyncio.BaseTransport:
    """Connect to the first IP address of the host that accepts the connection."""
    loop = asyncio.get_running_loop()
    tls = None if address.tls is None else ssl_context(address.tls)
    name = None if tls is None else address.host
    open_connection = partial(loop.create_connection, lambda: protocol, ssl=tls, server_hostname=name)
    *others, last = await RESOLVER.resolve(address.host)
    for host in others:
        with contextlib.suppress(OSError):
            return (await open_connection(host, address.port))[0]
    return (await open_connection(last, address.port))[0]
