"""Checks of the Host and Origin headers, and CORS.

Any web page can make a browser send requests to this machine. Two checks reject them, for every method:

- Host. A site can let its own name resolve to 127.0.0.1 (DNS rebinding), which makes its pages same-origin. Only the
  name in the Host header reveals that.
- Origin. Pages of other origins are rejected unless `--cors-origins` allows them. There are no cookies, so credentials
  are never allowed: pages send their key in a header.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from welldone.dialects.messages.objects import ANTHROPIC_VERSION_HEADER
from welldone.gateway.errors import ApiError, invalid_request

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,254})(?::(?P<port>[0-9]{0,5}))?")
_ORIGIN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,31})://(?P<host>[^/?#@]{1,300})")
_DEFAULT_PORTS = {"http": 80, "https": 443}

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

ALLOWED_METHODS = "GET, HEAD, POST, DELETE, OPTIONS"

_ALLOWED_HEADERS = frozenset(
    {"accept", "anthropic-beta", "anthropic-dangerous-direct-browser-access", ANTHROPIC_VERSION_HEADER, "api-key"}
    | {"authorization", "cache-control", "content-type", "http-referer", "idempotency-key", "last-event-id"}
    | {"openai-beta", "openai-organization", "openai-project", "traceparent", "tracestate", "user-agent", "x-api-key"}
    | {"x-client-request-id", "x-goog-api-client", "x-goog-api-key", "x-request-id", "x-server-timeout", "x-title"}
    | {"x-welldone-resume"}
)
_STAINLESS_HEADER = re.compile(r"x-stainless-(?=.*[a-z0-9])[a-z0-9-]+")
"""Pattern of a dozen headers in which the official SDKs describe themselves."""

_EXPOSED_HEADERS = ", ".join(
    ["x-request-id", "request-id", "openai-processing-ms", "retry-after", "x-welldone-stream-id"]
    + [f"x-ratelimit-{figure}-{unit}" for unit in ("requests", "tokens") for figure in ("limit", "remaining", "reset")]
)

_PREFLIGHT_MAX_AGE_S = 600
"""Access-Control-Max-Age; Chromium's own limit was 600 s for years."""


_RELEVANT_HEADERS = frozenset(
    {"host", "origin", "sec-fetch-site", "access-control-request-method", "access-control-request-headers"}
    | {"access-control-request-private-network"}
)


class HostPort(NamedTuple):
    """A host and a port. The name is in lower case, without brackets and trailing dot."""

    name: str
    port: int | None


@lru_cache(256)
def parse_host(value: str) -> HostPort | None:
    """Parse a Host header; None if it is invalid."""
    match = _HOST.fullmatch(value)
    if match is None:
        return None
    port = int(match["port"]) if match["port"] else None
    name = _normalized_name(match["name"])
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
    # RFC 1035 §2.3.4: a label has 1 to 63 characters, a name at most 253.
    return name if len(name) <= 253 and all(0 < len(label) <= 63 for label in name.split(".")) else None


class OriginPolicy:
    """The allowed hosts and origins."""

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
        """Raises `ValueError` for an invalid host or origin."""
        self._scheme = "https" if is_tls else "http"
        bound = _unbracketed(host)
        self._own_origin = f"{self._scheme}://{f'[{bound}]' if ':' in bound else bound}:{port}"
        named = frozenset(_parse_allowed_host(value) for value in allowed_hosts)
        self._hosts = named | _LOOPBACK_NAMES | {bound}
        self._allows_any_host = not is_loopback(host) and has_keys and not named
        # Without keys only the name protects. DNS rebinding needs a name in a domain: IP addresses and names without a
        # dot (of a container, of a machine in the local network) cannot belong to an attacker.
        self._allows_bare_hosts = not is_loopback(host) and not named
        origins = tuple(cors_origins)
        self._allows_any_origin = "*" in origins
        self._origins = frozenset(_parse_allowed_origin(value) for value in origins if value != "*")
        self._vary = {"Vary": "Origin"} if self._origins and not self._allows_any_origin else {}

    def check(self, method: str, headers: Mapping[str, str]) -> dict[str, str]:
        """Check Host and Origin, and return the CORS headers of the response.

        Raises:
            ApiError: 403 for a host or origin that is not allowed, 400 for invalid headers.
        """
        values = _header_values(headers)
        host = self._checked_host(values.get("host", []))
        origins = values.get("origin", [])
        if len(origins) > 1:
            raise invalid_request(f"This {method} request has more than one Origin.", code="invalid_origin")
        if not origins:
            return dict(self._vary)
        (origin,) = origins
        if self._allows_any_origin:
            return {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": _EXPOSED_HEADERS}
        parsed = _parse_origin(origin)
        if parsed is not None and parsed in self._origins:
            allowed = {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": _EXPOSED_HEADERS}
            return allowed | self._vary
        if parsed is not None and parsed == (self._scheme, host.name, host.port or _DEFAULT_PORTS[self._scheme]):
            return dict(self._vary)
        raise ApiError(
            403,
            f"Requests from the origin {origin[:100]!r} are not allowed. Allow it with --cors-origins.",
            code="origin_not_allowed",
        )

    def preflight(self, method: str, headers: Mapping[str, str]) -> dict[str, str] | None:
        """The headers of the 204 response to a CORS preflight, which needs no key; None for other requests.

        Raises:
            ApiError: as `check`.
        """
        if method != "OPTIONS":
            return None
        values = _header_values(headers)
        if not values.get("access-control-request-method") or not values.get("origin"):
            return None
        reply = self.check(method, headers)
        if "Access-Control-Allow-Origin" not in reply:
            return reply
        del reply["Access-Control-Expose-Headers"]
        reply["Access-Control-Allow-Methods"] = ALLOWED_METHODS
        if names := _allowed_headers(values.get("access-control-request-headers", [])):
            reply["Access-Control-Allow-Headers"] = ", ".join(names)
        if values.get("access-control-request-private-network") == ["true"]:
            reply["Access-Control-Allow-Private-Network"] = "true"
        reply["Access-Control-Max-Age"] = str(_PREFLIGHT_MAX_AGE_S)
        return reply

    def check_fetch_site(self, headers: Mapping[str, str]) -> None:
        """Reject cross-site requests without an Origin header: images, scripts, links (Fetch Metadata).

        Links to the static web page are fine: this check is for all other paths.

        Raises:
            ApiError: 403.
        """
        values = _header_values(headers)
        if "origin" in values:
            return  # `check` has validated it
        if {"cross-site", "same-site"}.intersection(values.get("sec-fetch-site", ())):
            raise ApiError(403, "Cross-site requests for this path are not allowed.", code="origin_not_allowed")

    def _checked_host(self, values: list[str]) -> HostPort:
        host = parse_host(values[0]) if len(values) == 1 else None
        if host is None:
            raise invalid_request("This request needs exactly one valid Host header.", code="invalid_host")
        if self._allows_any_host or host.name in self._hosts:
            return host
        if self._allows_bare_hosts and ("." not in host.name or _ip_address(host.name) is not None):
            return host
        raise ApiError(
            403,
            f"The host name {host.name!r} is not allowed. Use {self._own_origin}, or allow other names with"
            " --allowed-hosts. A reverse proxy must forward the client's Host header.",
            code="host_not_allowed",
        )


def is_loopback(host: str) -> bool:
    """Whether a server that listens on this host is reachable from this machine only."""
    address = _ip_address(_unbracketed(host))
    return host.lower() == "localhost" if address is None else address.is_loopback


def _unbracketed(host: str) -> str:
    return host.lower().removeprefix("[").removesuffix("]")


def _ip_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _parse_allowed_host(value: str) -> str:
    bare = f"[{value}]" if value.count(":") > 1 and not value.startswith("[") else value
    host = parse_host(bare)
    if host is None or host.port is not None:
        raise ValueError(f"{value!r} is not a host name: write it without scheme and port, as in box.example.org")
    return host.name


def _parse_allowed_origin(value: str) -> tuple[str, str, int | None]:
    parsed = _parse_origin(value.removesuffix("/"))
    if parsed is None:
        raise ValueError(f"{value!r} is not an origin: write it as https://app.example.org, or * for all")
    return parsed


def _parse_origin(value: str) -> tuple[str, str, int | None] | None:
    """Scheme, host and port; None for `null` (sandboxed pages) and invalid values."""
    match = _ORIGIN.fullmatch(value)
    host = parse_host(match["host"]) if match else None
    if match is None or host is None:
        return None
    scheme = match["scheme"].lower()
    return scheme, host.name, host.port or _DEFAULT_PORTS.get(scheme)


def _allowed_headers(requested: list[str]) -> list[str]:
    """The requested headers that are allowed."""
    names = dict.fromkeys(name.strip().lower() for value in requested for name in value.split(","))
    return [name for name in names if name in _ALLOWED_HEADERS or _STAINLESS_HEADER.fullmatch(name)]


def _header_values(headers: Mapping[str, str]) -> dict[str, list[str]]:
    """All values of the headers that matter here, by name. Multi-dicts yield repeated names in `items()`."""
    values: dict[str, list[str]] = {}
    for key, value in headers.items():
        name = key.lower()
        if name in _RELEVANT_HEADERS:
            values.setdefault(name, []).append(value.strip())
    return values
