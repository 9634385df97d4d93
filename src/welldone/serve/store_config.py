"""The address of the store of shared limits and keys, out of flags and the file, and checked. No message shows it."""

import importlib.util
import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from welldone.net.settings import SettingsError, SettingSource, merge_sources
from welldone.serve.settings import LimitsSettings
from welldone.serve.tables import LIMITS_FIELDS

_DATABASE_PATH = re.compile(r"/?|/[0-9]{1,5}")


def read_limits(sources: Sequence[SettingSource], environment: Mapping[str, str]) -> LimitsSettings:
    """Where limits are counted.

    Raises:
        SettingsError: the address is none, or the library for it is not there.
    """
    limits = LimitsSettings(**merge_sources(LIMITS_FIELDS, sources, environment))
    if limits.store is not None:
        where = next(source["store"].origin for source in sources if "store" in source)
        if why := invalid_store_url_reason(limits.store):
            raise SettingsError(f"{where} {why}")
        if importlib.util.find_spec("redis") is None:
            raise SettingsError(f"{where} needs the package redis: pip install 'welldone[redis]'")
    return limits


def invalid_store_url_reason(url: str) -> str | None:
    """Why this is no address of a Redis."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is no URL: write redis://HOST:6379/0, and in a password %40 for @ and %2F for /"
    if parts.scheme not in ("redis", "rediss", "unix"):
        return "should be a URL such as redis://HOST:6379/0, rediss://HOST:6379/0 (with TLS) or unix:///PATH"
    if parts.query or parts.fragment:
        return "should end with the database: write %3F for ? and %23 for # in a password"
    if parts.scheme == "unix":
        return None if parts.path.strip("/") else "should name a socket: unix:///PATH"
    if not host:
        return "should name a host: redis://HOST:6379/0"
    if not _DATABASE_PATH.fullmatch(parts.path):
        return "should end with the number of a database: redis://HOST:6379/0"
    return None
