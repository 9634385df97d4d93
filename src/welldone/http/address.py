"""Where a server is: its address, read from a URL, with the key, the headers and the TLS that it wants.

What is wrong with an address is said when it is read, and never with the secrets that stand in it.
"""

import errno
import functools
import ipaddress
import re
import socket
import ssl
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

import msgspec

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST_NAME = re.compile(r"[\w-]{1,63}(\.[\w-]{1,63})*\.?", re.ASCII)  # a label of DNS has at most 63 characters
_VISIBLE_ASCII = re.compile(r"[\x21-\x7e]*")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~\w-]+", re.ASCII)
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")  # what a header can carry: no line break, no NUL, latin-1
_RESERVED_HEADERS = frozenset(
    {
        "Accept",
        "Accept-Encoding",
        "Connection",
        "Content-Length",
        "Content-Type",
        "Expect",
        "Host",
        "Keep-Alive",
        "Proxy-Connection",
        "Te",
        "Trailer",
        "Transfer-Encoding",
        "Upgrade",
    }
)
"""Headers that frame a request, or that each request has by itself."""


class TlsOptions(msgspec.Struct, frozen=True):
    """How a server is trusted."""

    ca_file: str | None = None
    """A file of certificates to trust; else those of the system."""
    is_verified: bool = True


class Address(msgspec.Struct, frozen=True):
    """Where a server listens, and the key that it wants."""

    socket: str | None = None
    """The path of a unix socket; else host and port."""
    host: str = "127.0.0.1"
    port: int = 0
    key: str | None = None
    prefix: str = ""
    """What stands before each path."""
    tls: TlsOptions | None = None
    """None: plain."""
    headers: tuple[tuple[str, str], ...] = ()
    """More headers for each request; their values may be secrets."""

    def __repr__(self) -> str:
        """Where it is, and no key."""
        return f"Address({self.socket or self.authority}{self.prefix})"

    @property
    def authority(self) -> str:
        """What stands in a request's Host."""
        if self.socket is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS["http" if self.tls is None else "https"] else f"{host}:{self.port}"


def normalize_base_url(text: str) -> str:
    """The address of a server's API: without a scheme it is http, and without a path it ends in /v1."""
    url = text if "://" in text else f"http://{text}"
    try:
        has_path = urlsplit(url).path not in ("", "/")
    except ValueError:
        return url  # who uses it says what is wrong
    return url.rstrip("/") if has_path else f"{url.rstrip('/')}/v1"


def parse_url(
    url: str,
    *,
    key: str | None = None,
    ca_file: str | None = None,
    is_verified: bool = True,
    headers: Iterable[tuple[str, str]] = (),
) -> Address:
    """The address that a URL means.

    Raises:
        ValueError: with a sentence that says what is wrong, without the URL or a secret.
    """
    parts = _split_url(url)
    tls = TlsOptions(ca_file, is_verified) if parts.scheme == "https" else None
    if tls is not None:
        ssl_context(tls)
    elif ca_file is not None:
        raise ValueError("A file of certificates needs a URL with https://.")
    more = tuple(headers)
    check_headers(more)
    if key is not None:
        if not key or not _HEADER_VALUE.fullmatch(key):
            raise ValueError("The key is empty or has a character that no header can carry.")
        if any(name.lower() == "authorization" for name, _ in more):
            raise ValueError("There is a key and also a header Authorization: one of them is too much.")
    return Address(
        host=_parse_host(parts), port=_parse_port(parts), key=key, prefix=parts.path.rstrip("/"), tls=tls, headers=more
    )


def check_headers(headers: Iterable[tuple[str, str]]) -> None:
    """Refuse headers that would break a request.

    Raises:
        ValueError: with a sentence that names the header and not its value.
    """
    for name, value in headers:
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError("The name of a header has letters, digits and hyphens.")
        if name.title() in _RESERVED_HEADERS:
            raise ValueError(f"The header {name} is not for settings: each request has its own.")
        if not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"The value of the header {name} has a character that no header can carry.")


def check_header_line(line: str) -> None:
    """Refuse a line that is none among the headers of a message.

    Raises:
        ValueError: it would be more than a line, or has characters that none can carry.
    """
    if not _HEADER_VALUE.fullmatch(line):
        raise ValueError("A header has a character that none can carry.")


def check_path(path: str) -> None:
    """Refuse a path that would end the request's first line too early.

    Raises:
        ValueError: it has a character that belongs quoted.
    """
    if not _VISIBLE_ASCII.fullmatch(path):
        raise ValueError("The path has a character that a request cannot carry.")


@functools.cache  # as many as the configuration names
def ssl_context(tls: TlsOptions) -> ssl.SSLContext:
    """What TLS needs to know.

    Raises:
        ValueError: the file of certificates cannot be read.
    """
    try:
        made = ssl.create_default_context(cafile=tls.ca_file)
    except OSError:
        raise ValueError("The file of certificates cannot be read, or has none.") from None
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    if not tls.is_verified:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    return made


def _split_url(url: str) -> SplitResult:
    if not _VISIBLE_ASCII.fullmatch(url):
        raise ValueError("A URL has no spaces and only plain letters.")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError("The brackets in the URL hold no IPv6 address.") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError("A URL begins with http:// or https://.")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            'A URL has no user and no password: give the key with --upstream-key, or as key = "env:NAME" in the file.'
        )
    if "?" in url or "#" in url:
        raise ValueError("The URL of a server has no query and no fragment.")
    return parts


def _parse_host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    if "[" in parts.netloc:
        try:
            address = ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError("The brackets in the URL hold no IPv6 address.") from None
        if address.scope_id is not None:  # it means something on this machine only, and a Host may not have it
            raise ValueError("The IPv6 address of a URL has no zone.")
        return address.compressed
    if not _HOST_NAME.fullmatch(host):
        raise ValueError("The URL names no host, or one with characters that no name has.")
    return host


def _parse_port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("The port of a URL is a number from 1 to 65535.")
    return port or _DEFAULT_PORTS[parts.scheme]


# Why there is no connection, in words for anyone: no address and no path. And whose fault it is.


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
