"""Definition of a probe."""

from collections.abc import Awaitable, Callable

import msgspec

from welldone.check.session import Session


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A few requests that trigger one behaviour of a server."""

    name: str
    """Lower case, with hyphens. The part before the first hyphen is its group."""
    description: str
    """What it requests, in a line."""
    run: Callable[[Session], Awaitable[None]]
    rules: tuple[str, ...] = ()
    """The rules that the probe judges itself. Every reply is also judged by all rules about single replies."""
    is_exclusive: bool = False
    """Whether no other probe may run at the same time, because it measures times or load."""
