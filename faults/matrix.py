"""Every named upstream fault with the error that a client must receive, streamed and not streamed."""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from welldone.mock.script import HELLO_REPLY, MockReply
from welldone.mock.variants import FAULT_REPLIES, byte_by_byte

FIRST_READ_S = 0.05  # between the first two events, so that the client has received the first
SLOW_S = 0.0005  # after each byte, in the short form


class ExpectedReply(NamedTuple):
    """What a client receives: `whole`, `error event`, or a status."""

    streamed: str
    whole: str

    def for_form(self, *, is_stream: bool) -> str:
        """Return the expected reply for a stream or a buffered request."""
        return self.streamed if is_stream else self.whole


REPAIRED = ExpectedReply("whole", "whole")
BAD_GATEWAY = ExpectedReply("502", "502")
BUSY = ExpectedReply("429", "429")
UNAVAILABLE = ExpectedReply("503", "503")
TIMEOUT = ExpectedReply("504", "504")
TRUNCATED = ExpectedReply("error event", "502")
"""A started stream has sent its status; a buffered reply has not."""
STOPPED = ExpectedReply("error event", "504")

EXPECTED: Mapping[str, ExpectedReply] = {
    # The answer is complete ([DONE] or a finish reason); the rest can be repaired.
    "no-done": REPAIRED,
    "no-finish": REPAIRED,
    "close-after": REPAIRED,
    "slow": REPAIRED,
    "wrong-type": REPAIRED,
    "too-short": REPAIRED,
    "no-length": REPAIRED,
    "http-1.0": REPAIRED,
    "whole": REPAIRED,
    "stream": REPAIRED,
    # No usable reply.
    "empty": BAD_GATEWAY,
    "close-first": BAD_GATEWAY,
    "reset-first": BAD_GATEWAY,
    "cut-head": BAD_GATEWAY,
    "not-http": BAD_GATEWAY,
    "garbage": BAD_GATEWAY,
    "html": BAD_GATEWAY,
    "broken": BAD_GATEWAY,
    "gzip": BAD_GATEWAY,  # not requested, and decompression would allow bombs
    "gzip-bomb": BAD_GATEWAY,
    # The key belongs to this upstream: redirects are not followed.
    "redirect-301": BAD_GATEWAY,
    "redirect-302": BAD_GATEWAY,
    "redirect-303": BAD_GATEWAY,
    "redirect-307": BAD_GATEWAY,
    "redirect-308": BAD_GATEWAY,
    # The client can retry later.
    "limited": BUSY,
    "limited-silent": BUSY,
    "unavailable": UNAVAILABLE,
    "unavailable-silent": UNAVAILABLE,
    "hang-first": TIMEOUT,
    # The stream fails after some text.
    "cut": TRUNCATED,
    "reset": TRUNCATED,
    "bad-json": TRUNCATED,
    "error-event": TRUNCATED,
    "long-line": TRUNCATED,
    "too-long": TRUNCATED,
    "hang": STOPPED,
}
ENDLESS = "endless"
"""Ends when the client disconnects."""


def fault(name: str, *, is_short: bool) -> MockReply:
    """Return the reply of an upstream with this fault."""
    if name == "slow" and is_short:
        return byte_by_byte(HELLO_REPLY, SLOW_S)
    expected, reply = EXPECTED.get(name), FAULT_REPLIES[name]
    if expected is None or expected.streamed != "error event":
        return reply
    first, second, *rest = reply.pieces
    return replace(reply, pieces=(first, replace(second, after_s=FIRST_READ_S), *rest))
