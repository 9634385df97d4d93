"""Reads and validates the settings of upstreams and named keys. Does no network I/O."""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import urlsplit

from welldone.config.server import KeySettings, ServeSettings
from welldone.config.settings import SettingsError, SettingSource, merge_sources, unknown_rule
from welldone.config.upstream import ALL_RULES, UpstreamSettings
from welldone.http.address import Address, parse_url
from welldone.http.redaction import MIN_KEY_LENGTH, is_weak_key
from welldone.protocol.catalog import RULES
from welldone.server.access.keys import ANONYMOUS, ApiKeys, invalid_key_reason
from welldone.server.access.origins import is_loopback
from welldone.server.config_file import KEY_FIELDS, SERVE_FIELDS, UPSTREAM_FIELDS, ConfigFile

LocatedUpstream = tuple[str, UpstreamSettings]
"""Origin of an upstream (a flag or a TOML table), and its settings."""

_DEFAULT_PATH = "/v1"  # the API of most servers
_ENDPOINTS = ("/completions", "/models", "/embeddings", "/responses", "/messages")
_LABEL_LIMIT = 60  # characters of a derived name, with room for a number
_BARE_URL = re.compile(r"(localhost|[\w-]+(\.[\w-]+)+|[\w-]+(?=:))(:[0-9]+)?(/[\w./-]*)?", re.ASCII)
"""A URL without http://: localhost, a name with a dot, or any name with a port."""
_HEALTH_PATH = re.compile(r"/[\x21-\x7e]*")
_UPSTREAM_FIELD = next(field for field in SERVE_FIELDS if field.name == "upstreams")
_WILDCARD_HOSTS = ("0.0.0.0", "::", "[::]")


def read_upstreams(
    server: ServeSettings, sources: Sequence[SettingSource], file: ConfigFile, environment: Mapping[str, str]
) -> tuple[list[LocatedUpstream], list[str]]:
    """The upstreams, those of `--upstream` first, and warnings."""
    _check_not_empty(sources, environment)
    origin = next((source["upstreams"].origin for source in sources if "upstreams" in source), "--upstream")
    located = _upstreams_from_urls(server, origin, file.upstreams)
    for name, source in file.upstreams.items():
        located.append(_upstream_from_table(name, source, f"{file.name}: upstreams.{name}", environment))
    upstreams, warnings = [], []
    for origin, upstream in located:
        _check_upstream(upstream, origin, server)
        url = upstream.url.rstrip("/")
        if not urlsplit(upstream.url).path.rstrip("/"):
            warnings.append(f"{origin}: {upstream.url} has no path; using {_DEFAULT_PATH}")
            url += _DEFAULT_PATH
        upstreams.append((origin, dataclasses.replace(upstream, url=url)))
    return upstreams, warnings


def _check_not_empty(sources: Sequence[SettingSource], environment: Mapping[str, str]) -> None:
    """Reject empty URLs: most likely a shell variable is not set."""
    raw = next((source["upstreams"] for source in sources if "upstreams" in source), None)
    problem = "should be a URL, but is empty: check the variable that it comes from"
    if raw is not None and isinstance(raw.value, str) and not all(map(str.strip, raw.value.split(","))):
        raise SettingsError(f"{raw.origin} {problem}")
    for variable in _UPSTREAM_FIELD.variables:
        if raw is None and environment.get(variable) == "":
            raise SettingsError(f"{variable} {problem}")


def _upstreams_from_urls(server: ServeSettings, origin: str, taken: Collection[str]) -> list[LocatedUpstream]:
    """An upstream for each `--upstream`, named after its host."""
    if server.upstream_key is not None and not server.upstreams:
        raise SettingsError("--upstream-key needs an --upstream")
    upstreams: dict[str, UpstreamSettings] = {}
    for url in dict.fromkeys(server.upstreams):
        address = _read_url(UpstreamSettings(name="", url=url, key=server.upstream_key), origin)
        authority = address.authority.replace("[::1]", "localhost")
        label = re.sub(r"[^A-Za-z0-9._-]+", "-", authority).strip("-")[:_LABEL_LIMIT]
        name, number = label, 1
        while name in upstreams or name in taken:
            number += 1
            name = f"{label}-{number}"
        upstreams[name] = UpstreamSettings(name=name, url=url, key=server.upstream_key)
    return [(origin, upstream) for upstream in upstreams.values()]


def _upstream_from_table(
    name: str, source: SettingSource, origin: str, environment: Mapping[str, str]
) -> LocatedUpstream:
    values = merge_sources(UPSTREAM_FIELDS, [source], environment)
    if "url" not in values:
        raise SettingsError(f'{origin} needs a url, such as url = "http://HOST:8000/v1"')
    values["headers"] = {header: str(value) for header, value in values.get("headers", {}).items()}
    return origin, UpstreamSettings(name=name, **values)


def _read_url(upstream: UpstreamSettings, origin: str) -> Address:
    """Parse the URL. Error messages do not contain parts that may be secret."""
    if _BARE_URL.fullmatch(upstream.url):
        path = "" if "/" in upstream.url.rstrip("/") else _DEFAULT_PATH
        raise SettingsError(
            f"{origin}: {upstream.url!r} is not a URL; did you mean http://{upstream.url.rstrip('/')}{path}?"
        )
    try:
        return parse_url(
            upstream.url,
            key=upstream.key,
            ca_file=None if upstream.ca_file is None else str(upstream.ca_file),
            is_verified=not upstream.insecure,
            headers=upstream.headers.items(),
        )
    except ValueError as error:
        message = str(error)
        raise SettingsError(f"{origin}: {message[:1].lower()}{message[1:].removesuffix('.')}") from None


def _check_upstream(upstream: UpstreamSettings, origin: str, server: ServeSettings) -> None:
    address = _read_url(upstream, origin)
    if address.prefix.endswith(_ENDPOINTS):
        raise SettingsError(f"{origin}: give the base URL of the API, such as http://HOST:8000/v1")
    if address.port == server.port and _is_this_machine(address.host) and _is_this_machine(server.host):
        raise SettingsError(f"{origin} is the address of this server: choose another port with --port")
    if upstream.health and not _HEALTH_PATH.fullmatch(upstream.health):
        raise SettingsError(f"{origin}.health: expected an ASCII path that begins with /, such as /health")
    if upstream.key is not None and (reason := invalid_key_reason(upstream.key)):
        raise SettingsError(f"{origin}: its key {reason}")
    if upstream.ca_file is not None and upstream.insecure:
        raise SettingsError(f"{origin} has both ca_file and insecure: keep one")
    for rule in upstream.strict:
        if rule != ALL_RULES and rule not in RULES:
            raise SettingsError(f"{origin}.strict: {unknown_rule(rule, [*RULES, ALL_RULES])}")


def _is_this_machine(host: str) -> bool:
    return is_loopback(host) or host in _WILDCARD_HOSTS


def read_named_keys(server: ServeSettings, file: ConfigFile, environment: Mapping[str, str]) -> tuple[KeySettings, ...]:
    """The named keys. Error messages do not contain keys."""
    named = []
    for name, source in file.keys.items():
        origin = f"{file.name}: keys.{name}"
        values = merge_sources(KEY_FIELDS, [source], environment)
        if "key" not in values:
            raise SettingsError(f'{origin} needs a key, such as key = "env:MY_KEY"')
        if name == ANONYMOUS:
            raise SettingsError(f"{origin}: this name is reserved for requests without a key; choose another name")
        if is_weak_key(values["key"]) and not is_loopback(server.host):
            raise SettingsError(f"{origin}: its key is shorter than {MIN_KEY_LENGTH} characters and can be guessed")
        named.append(KeySettings(name=name, **values))
    try:
        ApiKeys(server.api_keys, named)
    except ValueError as error:
        raise SettingsError(f"{file.name}: {error}") from error
    if named and server.no_api_key:
        raise SettingsError("--no-api-key conflicts with the configured keys: keep one")
    return tuple(named)
