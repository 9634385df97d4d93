"""What a run of the check is told: whom to ask, how, and what to look at."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from welldone.check.dialect import DIALECTS, CheckDialect
from welldone.net.secrets import SecretRedactor


class Timeouts(msgspec.Struct, frozen=True):
    """How long things may take. Tests are less patient."""

    reply_s: float = 60.0
    """A reply that is not whole by then is given up."""
    silence_s: float = 15.0
    """How long a stream may be silent: nginx and most load balancers give up after 60 s, and wait for several signs."""
    prefill_s: float = 0.5
    """A first word that comes sooner says nothing of what was sent before it."""
    stream_s: float = 0.25
    """A stream that is over sooner says nothing of how it was flushed."""
    disconnect_s: float = 3.0
    """By when a server must have noticed that nobody listens any more."""
    after_done_s: float = 3.0
    """How long a body may stay open after [DONE]."""


class CheckSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All that a user can say."""

    url: str
    """Up to and with /v1."""
    model: str | None = None
    """None: the first that the server lists."""
    endpoint: str = "chat"
    """The name of the dialect that is checked."""
    key: str | None = None
    ca_file: str | None = None
    is_verified: bool = True
    headers: tuple[tuple[str, str], ...] = ()
    """For every request. Their values may be secrets."""
    env_variables: Mapping[str, str] = {}
    """The environment variables that the key (`Authorization`) and headers come from: commands that are shown name
    them."""
    extra: Mapping[str, Any] = {}
    """Members for the body of every request that should be answered."""
    only: tuple[str, ...] = ()
    """Names of probes, or their beginnings; empty: all."""
    skip: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    """Ids; empty: all."""
    profile: str | None = None
    is_strict: bool = False
    known: frozenset[str] | None = None
    """The rules that were broken before; None: there is no baseline."""
    jobs: int = 4
    """How many requests there may be at once. Four is what llama.cpp has slots for by default."""
    record: Path | None = None
    """A folder for the traces."""
    timeouts: Timeouts = Timeouts()

    def __repr__(self) -> str:
        """Whom it is about, and no key."""
        return f"CheckSettings({self.url})"

    @property
    def dialect(self) -> CheckDialect:
        """How the server is asked."""
        return DIALECTS[self.endpoint]

    @property
    def secrets(self) -> SecretRedactor:
        """What must not be shown: the key, the values of headers, and their parts, such as the token of a Bearer."""
        values = [value for _, value in self.headers]
        parts = [part for value in values for part in re.split(r"[\s;,=]+", value)]
        return SecretRedactor([*([self.key] if self.key else []), *values, *parts])
