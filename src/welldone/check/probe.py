"""Definition of a probe."""

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from welldone.check.session import Session


class Probe(msgspec.Struct, frozen=True):
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


def stream_and_whole(
    name: str,
    description: str,
    run: Callable[..., Awaitable[None]],
    rules: tuple[str, ...] = (),
    *,
    is_exclusive: bool = False,
) -> tuple[Probe, Probe]:
    """A probe of a streamed answer, and the same probe (NAME-whole) of one that is not streamed."""
    return (
        Probe(name, f"{description}, streamed", partial(run, stream=True), rules, is_exclusive),
        Probe(f"{name}-whole", f"{description}, not streamed", partial(run, stream=False), rules, is_exclusive),
    )
