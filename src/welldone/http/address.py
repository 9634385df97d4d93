"""Address of an HTTP server: URL parsing, TLS options, credentials, requests to it, and words for connection errors.

Addresses are validated when they are parsed. Error messages never contain the URL, the key or a header value, since
each of them may be a secret.
"""

import errno
import functools
import ipaddress
import re
import socket
import ssl
from collections.abc import Iterable
from http import HTTPStatus
from urllib.parse import SplitResult, urlsplit

import msgspec

PHRASES: dict[int, str] = {status.value: status.phrase for status in HTTPStatus}
"""Reason phrases by status."""
BODILESS_STATUSES: frozenset[int] = frozenset((*range(100, 200), 204, 304))
"""A response with one of these ends with its head, like that to HEAD (RFC 9112 §6.3): it has no framing either."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST_NAME = re.compile(r"[\w-]{1,63}(\.[\w-]{1,63})*\.?", re.ASCII)  # RFC 1035 §2.3.4: 63 per label
_VISIBLE_ASCII = re.compile(r"[\x21-\x7e]*")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~\w-]+", re.ASCII)
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")  # RFC 9110 §5.5: no CR, LF or NUL
_RESERVED_HEADERS = frozenset(
    {"Accept", "Accept-Encoding", "Connection", "Content-Length", "Content-Type", "Expect", "Host", "Keep-Alive"}
    | {"Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}
)
"""Headers that frame a request, or that the client sets on every request."""


class TlsOptions(msgspec.Struct, frozen=True):
    """Certificate verification of a server."""

    ca_file: str | None = None
    """CA certificates to trust; None: those of the system."""
    is_verified: bool = True


class Address(msgspec.Struct, frozen=True):
    """Location of a server, and the credentials for it."""

    socket: str | None = None
    """Path of a Unix socket; None: host and port are used."""
    host: str = "127.0.0.1"
    port: int = 0
    key: str | None = None
    prefix: str = ""
    """Prefix of every request path, such as `/v1`."""
    tls: TlsOptions | None = None
    """None: plain HTTP."""
    headers: tuple[tuple[str, str], ...] = ()
    """Additional headers of every request; their values may be secrets."""

    def __repr__(self) -> str:
        """Omit the key and the headers: a repr may end up in a log."""
        return f"Address({self.socket or self.authority}{self.prefix})"

    @property
    def authority(self) -> str:
        """Value of the `Host` header."""
        if self.socket is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS["http" if self.tls is None else "https"] else f"{host}:{self.port}"


def normalize_base_url(text: str) -> str:
    """Complete the base URL of an API: the scheme defaults to http, the path to /v1."""
    url = text if "://" in text else f"http://{text}"
    try:
        has_path = urlsplit(url).path not in ("", "/")
    except ValueError:
        return url  # `parse_url` reports the error
    return url.rstrip("/") if has_path else f"{url.rstrip('/')}/v1"


def parse_url(
    url: str,
    *,
    key: str | None = None,
    ca_file: str | None = None,
    is_verified: bool = True,
    headers: Iterable[tuple[str, str]] = (),
) -> Address:
    """Parse and validate a URL.

    Raises:
        ValueError: the message is a sentence that contains neither the URL nor a secret.
    """
    parts = _split_url(url)
    tls = TlsOptions(ca_file, is_verified) if parts.scheme == "https" else None
    if tls is not None:
        ssl_context(tls)
    elif ca_file is not None:
        raise ValueError("A CA certificate file needs a URL that starts with https://.")
    extra = tuple(headers)
    check_headers(extra)
    if key is not None:
        if not key or not _HEADER_VALUE.fullmatch(key):
            raise ValueError("The key is empty or contains a character that is not allowed in a header.")
        if any(name.lower() == "authorization" for name, _ in extra):
            raise ValueError("Both a key and an Authorization header are set: remove one of them.")
    return Address(
        host=_parse_host(parts), port=_parse_port(parts), key=key, prefix=parts.path.rstrip("/"), tls=tls, headers=extra
    )


def check_headers(headers: Iterable[tuple[str, str]]) -> None:
    """Validate configured headers.

    Raises:
        ValueError: the message names the header but not its value.
    """
    for name, value in headers:
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError("A header name consists of letters, digits and hyphens.")
        if name.title() in _RESERVED_HEADERS:
            raise ValueError(f"The header {name} cannot be configured: the client sets it on every request.")
        if not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"The value of the header {name} contains a character that is not allowed in a header.")


@functools.lru_cache(256)
def decode_header_name(name: bytes) -> str:
    """Return the name of a received header in lower case. The same few names come in every message."""
    return name.decode("latin-1").lower()


def check_header_line(line: str) -> None:
    """Reject a header or request line that contains control characters, such as a line break.

    Raises:
        ValueError: the line is not valid.
    """
    if not _HEADER_VALUE.fullmatch(line):
        raise ValueError("A header contains a character that is not allowed in a header.")


def check_path(path: str) -> None:
    """Reject a path that would break the request line.

    Raises:
        ValueError: the path contains a character that must be percent-encoded.
    """
    if not _VISIBLE_ASCII.fullmatch(path):
        raise ValueError("The path contains a character that must be percent-encoded.")


def encode_request(
    address: Address,
    method: str,
    path: str,
    *,
    defaults: Iterable[tuple[str, str | None]] = (),
    headers: Iterable[tuple[str, str | None]] = (),
    body: bytes | None = None,
) -> bytes:
    """Encode a request. `headers` replace those of the address, which replace `defaults`; the value None removes one.

    Raises:
        ValueError: the path or a header is not valid.
    """
    check_path(address.prefix + path)
    # Some reverse proxies reject requests without a User-Agent.
    fields: dict[str, tuple[str, str | None]] = {
        "host": ("Host", address.authority),
        "user-agent": ("User-Agent", "welldone"),
    }
    if address.key is not None:
        fields["authorization"] = ("Authorization", f"Bearer {address.key}")
    if body is not None:
        fields["content-length"] = ("Content-Length", str(len(body)))
    for group in (defaults, address.headers, headers):
        for name, value in group:
            fields[name.lower()] = (name, value)
    lines = [f"{method} {address.prefix}{path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in fields.values() if value is not None]
    check_header_line("".join(lines))
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")


@functools.cache  # bounded: one entry per configured upstream
def ssl_context(tls: TlsOptions) -> ssl.SSLContext:
    """Create the TLS client context, HTTP/1.1 only.

    Raises:
        ValueError: the CA certificate file cannot be read.
    """
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except OSError:
        raise ValueError("The CA certificate file cannot be read or contains no certificate.") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if not tls.is_verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _split_url(url: str) -> SplitResult:
    if not _VISIBLE_ASCII.fullmatch(url):
        raise ValueError("The URL contains a space or a character outside ASCII.")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError("The brackets in the URL do not contain an IPv6 address.") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError("The URL must start with http:// or https://.")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "The URL must not contain a user or a password: give the key as an option of its own, "
            'or as key = "env:NAME" in the file.'
        )
    if "?" in url or "#" in url:
        raise ValueError("The URL must not have a query or a fragment.")
    return parts


def _parse_host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    if "[" in parts.netloc:
        try:
            address = ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError("The brackets in the URL do not contain an IPv6 address.") from None
        if address.scope_id is not None:  # a zone is valid on this machine only and not allowed in Host
            raise ValueError("The IPv6 address in the URL must not have a zone.")
        return address.compressed
    if not _HOST_NAME.fullmatch(host):
        raise ValueError("The URL has no valid host name.")
    return host


def _parse_port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("The port in the URL must be a number from 1 to 65535.")
    return port or _DEFAULT_PORTS[parts.scheme]


_RESOURCE_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Out of file descriptors, memory or local ports."""


_CONNECT_ERRORS = (
    (ssl.SSLCertVerificationError, "the server's certificate is not trusted"),
    (ssl.SSLError, "the TLS handshake with the server failed"),
    (socket.gaierror, "the server's host name cannot be resolved"),
)


def is_local_failure(error: OSError) -> bool:
    """Return whether this machine ran out of a resource, so that the error is not evidence against the server."""
    return error.errno in _RESOURCE_ERRNOS and not isinstance(error, (ssl.SSLError, socket.gaierror))


def describe_connect_error(error: OSError, timeout_s: float) -> str:
    """Describe a connection error as a clause without addresses and paths, safe to send to clients."""
    if isinstance(error, TimeoutError):
        return f"no connection to the server within {timeout_s:g} s"
    if is_local_failure(error):
        return "this machine is out of file descriptors, memory or ports"
    matching = (words for error_type, words in _CONNECT_ERRORS if isinstance(error, error_type))
    return next(matching, "no connection to the server")
