"""Why there is no connection, in words for anyone: no address and no path."""

import socket
import ssl

CONNECT_S = 5.0
"""How long a connection may take; a server that needs longer is away."""


def reason(error: OSError) -> str:
    """What to tell of it."""
    match error:
        case ssl.SSLCertVerificationError():
            return "the server's certificate is not trusted"
        case ssl.SSLError():
            return "the server does not speak TLS as it should"
        case socket.gaierror():
            return "the server's name is not known"
        case TimeoutError():
            return f"no connection to the server within {CONNECT_S:g} s"
        case _:
            return "no connection to the server"
