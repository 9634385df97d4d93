"""What `check` and `bench` are told about a server: its address, its key, and headers. Secrets may be named by where
they are: `env:NAME`."""

import argparse
import os

from welldone.cli.exits import UsageError
from welldone.net.address import normalize_base_url
from welldone.net.secrets import API_KEY_VARIABLE

ENV_PREFIX = "env:"


def server_url(text: str) -> str:
    """The address of a server's API."""
    url = normalize_base_url(text)
    if "@" in url:
        raise UsageError("a password in an address ends up in logs; use --api-key")
    return url


def server_key(value: str | None) -> str | None:
    """The server's key: what was said, or what the environment has."""
    return os.environ.get(API_KEY_VARIABLE) or None if value is None else resolve_env(value, "--api-key")


def parse_header(text: str) -> tuple[str, str]:
    """A header, as it stands in a request."""
    name, colon, value = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError("is no header, such as 'X-Team: search'")  # the value may be a secret
    return name.strip(), value.strip()


def resolve_env(value: str, source: str) -> str:
    """What was said, or what the environment variable holds that was named."""
    if not value.startswith(ENV_PREFIX):
        return value
    name = value.removeprefix(ENV_PREFIX)
    if not os.environ.get(name):
        raise UsageError(f"{source} names the environment variable {name}, which is not set")
    return os.environ[name]
