"""What a probe is: a name, and work that asks a server something and says what it heard."""

from collections.abc import Awaitable, Callable

import msgspec

from welldone.check.session import Session


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A few requests that provoke one behaviour."""

    name: str
    """Lower case, with hyphens; what stands before the first hyphen names its group."""
    description: str
    """What it asks, in a line."""
    run: Callable[[Session], Awaitable[None]]
    rules: tuple[str, ...] = ()
    """The rules that it judges itself. Every reply is also judged by the rules that speak about one reply."""
    is_exclusive: bool = False
    """Whether nothing else may be asked meanwhile: it looks at times, or at what the server does besides."""
