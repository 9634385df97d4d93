"""Why a server did not answer: what the client hears of it, and what is to be done about it."""

from collections.abc import Mapping

import msgspec

from welldone.engines.upstream import Upstream
from welldone.net.outbound import OutboundError
from welldone.serve import refusals
from welldone.serve.errors import ApiError

ERROR_LIMIT_BYTES = 65536
"""Of a server's error; theirs have some hundred bytes."""
ERROR_S = 5.0
"""For the body of an error; what has come by then must do."""


TIMEOUT = "timeout"
"""The outcome where a server said nothing for too long."""


class Trouble(msgspec.Struct, frozen=True):
    """Why a part was not answered."""

    error: ApiError
    """What the client hears if nobody else answers it."""
    outcome: str
    """For the counts: a status, or a word."""
    is_fault: bool = True
    """Whether the server is to blame, and not the request."""
    is_worth_another: bool = True
    """Whether another server may do better: not where the request is at fault, or where the answer has begun."""
    is_stale: bool = False
    """Whether only a connection was lost that had been idle: the request was never read."""
    is_lost: bool = False
    """Whether the connection was lost, so that an engine of our own may have died."""


LEFT = Trouble(ApiError(408, "The client left."), "left", is_fault=False, is_worth_another=False)


def refused(status: int, headers: Mapping[str, str], body: bytes, param: str, upstream: Upstream | None) -> Trouble:
    """A server answered with an error; without an upstream it is an engine of our own."""
    if upstream is None:
        error = refusals.from_reply(status, body, param, retry_after=headers.get("retry-after", ""))
    else:
        error = refusals.from_upstream(status, headers, body, param, secrets=upstream.secrets)
    return Trouble(
        error,
        str(status),
        is_fault=refusals.is_fault(status, body),
        is_worth_another=refusals.is_worth_another(status, body),
    )


def unreachable(error: OutboundError) -> Trouble:
    """There is no connection to a server. Where this machine is at fault, no other server is reached either."""
    if not error.is_our_fault:
        return Trouble(refusals.unreachable(str(error)), "unreachable", is_lost=True)
    said = ApiError(503, "The server has no room for another connection.", code="server_busy", retry_after_s=1.0)
    return Trouble(said, "no_room", is_fault=False, is_worth_another=False)


def timed_out(patience_s: float) -> Trouble:
    """A server said nothing for so long."""
    return Trouble(refusals.silent(patience_s), TIMEOUT)
