"""Upstreams and named keys, out of flags and the file, and checked.

Whether an upstream can be reached is not asked here, nor is anything that needs more than its settings.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import urlsplit

from welldone.config.server import KeySettings, ServeSettings
from welldone.config.settings import SettingsError, SettingSource, did_you_mean, merge_sources
from welldone.config.upstream import ALL_RULES, UpstreamSettings
from welldone.http.address import Address, parse_url
from welldone.http.redaction import MIN_KEY_LENGTH, is_weak_key
from welldone.protocol.catalog import RULES_BY_ID
from welldone.server.access.keys import ANONYMOUS, ApiKeys, invalid_key_reason
from welldone.server.access.origins import is_loopback
from welldone.server.config_file import KEY_FIELDS, SERVE_FIELDS, UPSTREAM_FIELDS, ConfigFile

LocatedUpstream = tuple[str, UpstreamSettings]
"""Where an upstream was written, and what it is."""

_DEFAULT_PATH = "/v1"  # where most servers have their API
_ENDPOINTS = ("/completions", "/models", "/embeddings", "/responses", "/messages")
_LABEL_LIMIT = 60  # characters of a name that is made, with room for a number
_BARE_URL = re.compile(r"(localhost|[\w-]+(\.[\w-]+)+|[\w-]+(?=:))(:[0-9]+)?(/[\w./-]*)?", re.ASCII)
"""A URL without its http://: localhost, a name with a dot, or any with a port."""
_HEALTH_PATH = re.compile(r"/[\x21-\x7e]*")
_UPSTREAM_FIELD = next(field for field in SERVE_FIELDS if field.name == "upstreams")
_WILDCARD_HOSTS = ("0.0.0.0", "::", "[::]")


def read_upstreams(
    server: ServeSettings, sources: Sequence[SettingSource], file: ConfigFile, environment: Mapping[str, str]
) -> tuple[list[LocatedUpstream], list[str]]:
    """The upstreams, those of `--upstream` first, and what to say about them."""
    _check_not_empty(sources, environment)
    where = next((source["upstreams"].origin for source in sources if "upstreams" in source), "--upstream")
    made = _upstreams_from_urls(server, where, file.upstreams)
    for name, source in file.upstreams.items():
        made.append(_upstream_from_table(name, source, f"{file.name}: upstreams.{name}", environment))
    for place, upstream in made:
        _check_upstream(upstream, place, server)
    notes = [
        f"{place}: {upstream.url} has no path, so it is asked at {_DEFAULT_PATH}"
        for place, upstream in made
        if not _url_path(upstream)
    ]
    return [(place, _with_default_path(upstream)) for place, upstream in made], notes


def _check_not_empty(sources: Sequence[SettingSource], environment: Mapping[str, str]) -> None:
    """What is empty was meant to be something: most likely a variable of the shell is not set."""
    given = next((source["upstreams"] for source in sources if "upstreams" in source), None)
    wanted = "should be a URL, and it is empty: is the variable set that it should come from?"
    if given is not None and isinstance(given.value, str) and not all(map(str.strip, given.value.split(","))):
        raise SettingsError(f"{given.origin} {wanted}")
    for variable in _UPSTREAM_FIELD.variables:
        if given is None and environment.get(variable) == "":
            raise SettingsError(f"{variable} {wanted}")


def _upstreams_from_urls(server: ServeSettings, where: str, taken: Collection[str]) -> list[LocatedUpstream]:
    """An upstream for each `--upstream`, named after its host."""
    if server.upstream_key is not None and not server.upstreams:
        raise SettingsError("--upstream-key is for the servers of --upstream, and there are none")
    made: dict[str, UpstreamSettings] = {}
    for url in dict.fromkeys(server.upstreams):
        address = _read_url(UpstreamSettings(name="", url=url, key=server.upstream_key), where)
        authority = address.authority.replace("[::1]", "localhost")
        label = re.sub(r"[^A-Za-z0-9._-]+", "-", authority).strip("-")[:_LABEL_LIMIT]
        name, number = label, 1
        while name in made or name in taken:
            number += 1
            name = f"{label}-{number}"
        made[name] = UpstreamSettings(name=name, url=url, key=server.upstream_key)
    return [(where, upstream) for upstream in made.values()]


def _upstream_from_table(
    name: str, source: SettingSource, where: str, environment: Mapping[str, str]
) -> LocatedUpstream:
    values = merge_sources(UPSTREAM_FIELDS, [source], environment)
    if "url" not in values:
        raise SettingsError(f'{where} needs a url, such as url = "http://HOST:8000/v1"')
    values["headers"] = {header: str(value) for header, value in values.get("headers", {}).items()}
    return where, UpstreamSettings(name=name, **values)


def _read_url(upstream: UpstreamSettings, where: str) -> Address:
    """The address of an upstream, with all that belongs to it. What is wrong is said without what may be a secret."""
    if _BARE_URL.fullmatch(upstream.url):
        path = "" if "/" in upstream.url.rstrip("/") else _DEFAULT_PATH
        raise SettingsError(
            f"{where}: {upstream.url!r} is no URL; did you mean http://{upstream.url.rstrip('/')}{path}?"
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
        said = str(error)
        raise SettingsError(f"{where}: {said[:1].lower()}{said[1:].removesuffix('.')}") from None


def _url_path(upstream: UpstreamSettings) -> str:
    return urlsplit(upstream.url).path.rstrip("/")


def _with_default_path(upstream: UpstreamSettings) -> UpstreamSettings:
    url = upstream.url.rstrip("/")
    return dataclasses.replace(upstream, url=url if _url_path(upstream) else f"{url}{_DEFAULT_PATH}")


def _check_upstream(upstream: UpstreamSettings, where: str, server: ServeSettings) -> None:
    address = _read_url(upstream, where)
    if address.prefix.endswith(_ENDPOINTS):
        raise SettingsError(f"{where}: write the address up to where the API begins, such as http://HOST:8000/v1")
    if address.port == server.port and _is_this_machine(address.host) and _is_this_machine(server.host):
        raise SettingsError(f"{where} is where this server would listen: choose another port for it with --port")
    if upstream.health and not _HEALTH_PATH.fullmatch(upstream.health):
        raise SettingsError(f"{where}.health: a path begins with /, such as /health, and has only plain letters")
    if upstream.key is not None and (why := invalid_key_reason(upstream.key)):
        raise SettingsError(f"{where}: its key {why}")
    if upstream.ca_file is not None and upstream.insecure:
        raise SettingsError(f"{where} has both ca_file and insecure: keep one")
    for rule in upstream.strict:
        if rule != ALL_RULES and rule not in RULES_BY_ID:
            hint = did_you_mean(rule, [*RULES_BY_ID, ALL_RULES])
            raise SettingsError(f"{where}.strict: there is no rule {rule!r}{hint}; welldone rules lists them")


def _is_this_machine(host: str) -> bool:
    return is_loopback(host) or host in _WILDCARD_HOSTS


def read_named_keys(server: ServeSettings, file: ConfigFile, environment: Mapping[str, str]) -> tuple[KeySettings, ...]:
    """The keys that have names. No message shows one."""
    named = []
    for name, source in file.keys.items():
        where = f"{file.name}: keys.{name}"
        values = merge_sources(KEY_FIELDS, [source], environment)
        if "key" not in values:
            raise SettingsError(f'{where} needs a key, such as key = "env:MY_KEY"')
        if name == ANONYMOUS:
            raise SettingsError(f"{where}: this is what those without a key are called; choose another name")
        if is_weak_key(values["key"]) and not is_loopback(server.host):
            raise SettingsError(f"{where}: its key is shorter than {MIN_KEY_LENGTH} characters, which others can guess")
        named.append(KeySettings(name=name, **values))
    try:
        ApiKeys(server.api_keys, named)
    except ValueError as error:
        raise SettingsError(f"{file.name}: {error}") from error
    if named and server.no_api_key:
        raise SettingsError("--no-api-key is set, and there are keys too: keep one")
    return tuple(named)
