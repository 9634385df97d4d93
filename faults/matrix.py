"""Every fault of an upstream that has a name, and what a client has to be told of it, streamed and whole."""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from welldone.mock.faults import FAULT_REPLIES, byte_by_byte
from welldone.mock.script import HELLO_REPLY, MockReply

HEARD_S = 0.05  # between the first event and the next, so that the client has heard the first
SLOW_S = 0.0005  # after each byte, in the short form


class Told(NamedTuple):
    """What a client is told: `whole`, `error event`, or a status."""

    streamed: str
    whole: str

    def to(self, *, is_stream: bool) -> str:
        """What it is told who asked for a stream, or for the whole."""
        return self.streamed if is_stream else self.whole


MENDED = Told("whole", "whole")
BAD_GATEWAY = Told("502", "502")
BUSY = Told("429", "429")
AWAY = Told("503", "503")
LATE = Told("504", "504")
BROKEN_OFF = Told("error event", "502")
"""A stream has begun, so that its status is out. Who waits for the whole has heard nothing yet."""
STOPPED = Told("error event", "504")

EXPECTED: Mapping[str, Told] = {
    # All was said, which [DONE] or a finish shows; what is missing beside it can be mended.
    "no-done": MENDED,
    "no-finish": MENDED,
    "close-after": MENDED,
    "slow": MENDED,
    "wrong-type": MENDED,
    "too-short": MENDED,
    "no-length": MENDED,
    "http-1.0": MENDED,
    "whole": MENDED,
    "stream": MENDED,
    # Nothing was said, or nothing that can be trusted.
    "empty": BAD_GATEWAY,
    "close-first": BAD_GATEWAY,
    "reset-first": BAD_GATEWAY,
    "cut-head": BAD_GATEWAY,
    "not-http": BAD_GATEWAY,
    "garbage": BAD_GATEWAY,
    "html": BAD_GATEWAY,
    "broken": BAD_GATEWAY,
    "gzip": BAD_GATEWAY,  # nobody asked for it, and unpacking is how bombs go off
    "gzip-bomb": BAD_GATEWAY,
    # The key is for this upstream alone: nobody is followed.
    "redirect-301": BAD_GATEWAY,
    "redirect-302": BAD_GATEWAY,
    "redirect-303": BAD_GATEWAY,
    "redirect-307": BAD_GATEWAY,
    "redirect-308": BAD_GATEWAY,
    # The client can do something about these, by waiting.
    "limited": BUSY,
    "limited-silent": BUSY,
    "unavailable": AWAY,
    "unavailable-silent": AWAY,
    "hang-first": LATE,
    # Something was said, and then it went wrong.
    "cut": BROKEN_OFF,
    "reset": BROKEN_OFF,
    "bad-json": BROKEN_OFF,
    "error-event": BROKEN_OFF,
    "long-line": BROKEN_OFF,
    "too-long": BROKEN_OFF,
    "hang": STOPPED,
}
ENDLESS = "endless"
"""Ends when the client leaves."""


def fault(name: str, *, is_short: bool) -> MockReply:
    """What an upstream says that has this fault."""
    if name == "slow" and is_short:
        return byte_by_byte(HELLO_REPLY, SLOW_S)
    told, said = EXPECTED.get(name), FAULT_REPLIES[name]
    if told is None or told.streamed != "error event":
        return said
    first, second, *rest = said.pieces
    return replace(said, pieces=(first, replace(second, after_s=HEARD_S), *rest))
