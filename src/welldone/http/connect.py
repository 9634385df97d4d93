"""Opens connections to HTTP servers, for all clients: DNS, Unix sockets, TLS, one limit, one kind of error."""

import asyncio
import contextlib
import ssl
from functools import partial
from typing import cast

from welldone.http.address import Address, describe_connect_error, is_local_failure, ssl_context
from welldone.http.resolver import RESOLVER

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
