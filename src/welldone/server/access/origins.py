"""From where a browser may ask: the Host that a request names, the Origin of the page that sent it, and CORS.

A page of any site can make a browser send requests to this machine. Two checks keep such pages out, on every method:

- Host. A site may let its own name point to 127.0.0.1 (DNS rebinding); its pages then look as if they were ours. Only
  the name in Host gives that away.
- Origin. A page of another site is refused, unless its origin was allowed. There are no cookies here, so credentials
  are never allowed: a page that may ask sends its key in a header.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from welldone.gateway.errors import ApiError, invalid_request
from welldone.protocol.dialects.anthropic.objects import ANTHROPIC_VERSION_HEADER

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,254})(?::(?P<port>[0-9]{0,5}))?")
_ORIGIN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,31})://(?P<host>[^/?#@]{1,300})")
_DEFAULT_PORTS = {"http": 80, "https": 443}

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

ALLOWED_METHODS = "GET, HEAD, POST, DELETE, OPTIONS"

_ALLOWED_HEADERS = frozenset(
    {
        "accept",
        "anthropic-beta",
        "anthropic-dangerous-direct-browser-access",
        ANTHROPIC_VERSION_HEADER,
        "api-key",
        "authorization",
        "cache-control",
        "content-type",
        "http-referer",
        "idempotency-key",
        "openai-beta",
        "openai-organization",
        "openai-project",
        "traceparent",
        "tracestate",
        "user-agent",
        "x-api-key",
        "x-client-request-id",
        "x-request-id",
        "x-title",
    }
)
_STAINLESS_PREFIX = "x-stainless-"
"""The official clients tell about themselves in a dozen headers that begin so."""

_EXPOSED_HEADERS = ", ".join(
    [
        "x-request-id",
        "request-id",
        "openai-processing-ms",
        "retry-after",
        *(f"x-ratelimit-{what}-{unit}" for unit in ("requests", "tokens") for what in ("limit", "remaining", "reset")),
    ]
)

_PREFLIGHT_MAX_AGE_S = 600
"""How long a browser may remember the answer to a preflight: Chromium's own bound was this for years."""


class HostPort(NamedTuple):
    """A host and a port. The name is in lower case, without brackets and without a dot at its end."""

    name: str
    port: int | None


def parse_host(value: str) -> HostPort | None:
    """What a Host header names; None where it breaks the grammar."""
    found = _HOST.fullmatch(value)
    if found is None:
        return None
    port = int(found["port"]) if found["port"] else None
    name = _normalized_name(found["name"])
    if name is None or (port is not None and port > 65535):
        return None
    return HostPort(name, port)


def _normalized_name(name: str) -> str | None:
    if name.startswith("["):
        try:
            return ipaddress.IPv6Address(name[1:-1]).compressed
        except ValueError:
            return None
    name = name.lower().removesuffix(".")
    # RFC 1035, 2.3.4: a label has 1 to 63 characters, a name 253 at most.
    return name if len(name) <= 253 and all(0 < len(label) <= 63 for label in name.split(".")) else None


class OriginPolicy:
    """Which hosts and pages may ask."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        allowed_hosts: Iterable[str],
        cors_origins: Iterable[str],
        is_tls: bool,
        has_keys: bool = False,
    ) -> None:
        """Take where the server listens and whom it admits. `ValueError` for a host or an origin that is none."""
        self._scheme = "https" if is_tls else "http"
        bound = _unbracketed(host)
        self._own_origin = f"{self._scheme}://{f'[{bound}]' if ':' in bound else bound}:{port}"
        named = frozenset(_parse_allowed_host(value) for value in allowed_hosts)
        self._hosts = named | _LOOPBACK_NAMES | {bound}
        self._allows_any_host = not is_loopback(host) and has_keys and not named
        # Without keys only the name protects. To rebind one needs a name in a domain: a bare address or a name without
        # a dot (of a container, of a machine in the house) cannot be an attacker's.
        self._allows_bare_hosts = not is_loopback(host) and not named
        origins = tuple(cors_origins)
        self._allows_any_origin = "*" in origins
        self._origins = frozenset(_parse_allowed_origin(value) for value in origins if value != "*")

    def check(self, method: str, headers: Mapping[str, str]) -> dict[str, str]:
        """The CORS headers for the reply to a request of this method, whatever the method.

        Raises:
            ApiError: 403 for a host or a page that may not ask, 400 for headers that break the grammar.
        """
        host = self._checked_host(headers)
        origins = _header_values(headers, "origin")
        if len(origins) > 1:
            raise invalid_request(f"This {method} request has more than one Origin.", code="invalid_origin")
        if not origins:
            return self._vary_header()
        (origin,) = origins
        if self._allows_any_origin:
            return {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": _EXPOSED_HEADERS}
        parsed = _parse_origin(origin)
        if parsed is not None and parsed in self._origins:
            headed = {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": _EXPOSED_HEADERS}
            return headed | self._vary_header()
        if parsed is not None and parsed == (self._scheme, host.name, host.port or _DEFAULT_PORTS[self._scheme]):
            return self._vary_header()
        raise ApiError(
            403,
            "A page of another origin may not ask this server. Its owner can allow it with --cors-origins.",
            code="origin_not_allowed",
        )

    def preflight(self, method: str, headers: Mapping[str, str]) -> dict[str, str] | None:
        """The headers of the 204 that answers a preflight, which needs no key; None where the request is none.

        Raises:
            ApiError: as `check` does.
        """
        wanted = _header_values(headers, "access-control-request-headers")
        if (
            method != "OPTIONS"
            or not _header_values(headers, "access-control-request-method")
            or not _header_values(headers, "origin")
        ):
            return None
        reply = self.check(method, headers)
        if "Access-Control-Allow-Origin" not in reply:
            return reply
        del reply["Access-Control-Expose-Headers"]
        reply["Access-Control-Allow-Methods"] = ALLOWED_METHODS
        if names := _allowed_headers(wanted):
            reply["Access-Control-Allow-Headers"] = ", ".join(names)
        if _header_values(headers, "access-control-request-private-network") == ["true"]:
            reply["Access-Control-Allow-Private-Network"] = "true"
        reply["Access-Control-Max-Age"] = str(_PREFLIGHT_MAX_AGE_S)
        return reply

    def check_fetch_site(self, headers: Mapping[str, str]) -> None:
        """Refuse what another site's page had fetched without an Origin: an image, a script, a link.

        A link to our own page is fine; so this is for every path but those of the static page.

        Raises:
            ApiError: 403.
        """
        if _header_values(headers, "origin"):
            return  # `check` has judged it
        if {"cross-site", "same-site"}.intersection(_header_values(headers, "sec-fetch-site")):
            raise ApiError(403, "Another site's page may not fetch this path.", code="origin_not_allowed")

    def _vary_header(self) -> dict[str, str]:
        return {"Vary": "Origin"} if self._origins and not self._allows_any_origin else {}

    def _checked_host(self, headers: Mapping[str, str]) -> HostPort:
        values = _header_values(headers, "host")
        host = parse_host(values[0]) if len(values) == 1 else None
        if host is None:
            raise invalid_request(
                "This request needs one Host header with a host and perhaps a port.", code="invalid_host"
            )
        if self._allows_any_host or host.name in self._hosts or (self._allows_bare_hosts and _is_bare(host.name)):
            return host
        raise ApiError(
            403,
            f"This server does not answer to the host name {host.name!r}. It is at {self._own_origin};"
            " its owner can allow other names with --allowed-hosts.",
            code="host_not_allowed",
        )


def is_loopback(host: str) -> bool:
    """Whether who listens there hears this machine only."""
    try:
        return ipaddress.ip_address(_unbracketed(host)).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _unbracketed(host: str) -> str:
    return host.lower().removeprefix("[").removesuffix("]")


def _is_bare(name: str) -> bool:
    """Whether the name is an address, or has no dot."""
    if "." not in name:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _parse_allowed_host(value: str) -> str:
    bare = f"[{value}]" if value.count(":") > 1 and not value.startswith("[") else value
    place = parse_host(bare)
    if place is None or place.port is not None:
        raise ValueError(f"{value!r} is not a host name: write it without scheme and port, as in box.example.org")
    return place.name


def _parse_allowed_origin(value: str) -> tuple[str, str, int | None]:
    parsed = _parse_origin(value.removesuffix("/"))
    if parsed is None:
        raise ValueError(f"{value!r} is not an origin: write it as https://app.example.org, or * for all")
    return parsed


def _parse_origin(value: str) -> tuple[str, str, int | None] | None:
    """Scheme, host and port. `null`, which any sandboxed page sends, is none."""
    found = _ORIGIN.fullmatch(value)
    place = parse_host(found["host"]) if found else None
    if found is None or place is None:
        return None
    scheme = found["scheme"].lower()
    return scheme, place.name, place.port or _DEFAULT_PORTS.get(scheme)


def _allowed_headers(requested: list[str]) -> list[str]:
    """Those of the headers that a page wants to send which it may send."""
    names = dict.fromkeys(name.strip().lower() for value in requested for name in value.split(","))
    return [name for name in names if name in _ALLOWED_HEADERS or _is_stainless(name)]


def _is_stainless(name: str) -> bool:
    rest = name.removeprefix(_STAINLESS_PREFIX)
    return rest != name and rest.isascii() and rest.replace("-", "").isalnum()


def _header_values(headers: Mapping[str, str], name: str) -> list[str]:
    """The values of a header. A mapping that holds a name twice gives both among its items."""
    return [value.strip() for key, value in headers.items() if key.lower() == name]
