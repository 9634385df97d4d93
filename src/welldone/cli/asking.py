"""What `check` and `bench` are told about a server: its address, its key, and headers. Secrets may be named by where
they are: `env:NAME`."""

import argparse
import os

from welldone.cli.exits import UsageError
from welldone.net.address import base_url
from welldone.net.secrets import KEY_VARIABLE

ENV = "env:"


def address(text: str) -> str:
    """The address of a server's API."""
    url = base_url(text)
    if "@" in url:
        raise UsageError("a password in an address ends up in logs; use --api-key")
    return url


def key(said: str | None) -> str | None:
    """The server's key: what was said, or what the environment has."""
    return os.environ.get(KEY_VARIABLE) or None if said is None else from_environment(said, "--api-key")


def header(text: str) -> tuple[str, str]:
    """A header, as it stands in a request."""
    name, colon, value = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError("is no header, such as 'X-Team: search'")  # the value may be a secret
    return name.strip(), value.strip()


def from_environment(said: str, who: str) -> str:
    """What was said, or what the environment variable holds that was named."""
    if not said.startswith(ENV):
        return said
    name = said.removeprefix(ENV)
    if not os.environ.get(name):
        raise UsageError(f"{who} names the environment variable {name}, which is not set")
    return os.environ[name]
