"""Why there is no connection, in words for anyone: no address and no path. And whose fault it is."""

import errno
import socket
import ssl

CONNECT_TIMEOUT_S = 5.0
"""How long a connection may take; a server that needs longer is away."""

_RESOURCE_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Too many files, of this process or of all; no memory; no port that is free."""


def is_local_failure(error: OSError) -> bool:
    """Whether this machine is at fault, which has no room now: it says nothing of a server, or of a file."""
    return error.errno in _RESOURCE_ERRNOS and not isinstance(error, (ssl.SSLError, socket.gaierror))


def describe_connect_error(error: OSError) -> str:
    """What to tell of it."""
    match error:
        case ssl.SSLCertVerificationError():
            return "the server's certificate is not trusted"
        case ssl.SSLError():
            return "the server does not speak TLS as it should"
        case socket.gaierror():
            return "the server's name is not known"
        case TimeoutError():
            return f"no connection to the server within {CONNECT_TIMEOUT_S:g} s"
        case _ if is_local_failure(error):
            return "this machine has no room for another connection"
        case _:
            return "no connection to the server"
