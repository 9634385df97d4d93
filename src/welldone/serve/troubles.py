"""Why a server did not answer: what the client hears of it, and what is to be done about it."""

from collections.abc import Mapping

import msgspec

from welldone.engines.upstream import Upstream
from welldone.net.outbound import HttpClientError
from welldone.serve import refusals
from welldone.serve.errors import ApiError

ERROR_LIMIT_BYTES = 65536
"""Of a server's error; theirs have some hundred bytes."""
ERROR_BODY_TIMEOUT_S = 5.0
"""For the body of an error; what has come by then must do."""


OUTCOME_TIMEOUT = "timeout"
"""The outcome where a server said nothing for too long."""


class AttemptFailure(msgspec.Struct, frozen=True):
    """Why a part was not answered."""

    error: ApiError
    """What the client hears if nobody else answers it."""
    outcome: str
    """For the counts: a status, or a word."""
    is_server_fault: bool = True
    """Whether the server is to blame, and not the request."""
    is_retryable: bool = True
    """Whether another server may do better: not where the request is at fault, or where the answer has begun."""
    is_stale: bool = False
    """Whether only a connection was lost that had been idle: the request was never read."""
    is_disconnect: bool = False
    """Whether the connection was lost, so that an engine of our own may have died."""


CLIENT_DISCONNECTED = AttemptFailure(
    ApiError(408, "The client left."), "left", is_server_fault=False, is_retryable=False
)


def status_failure(
    status: int, headers: Mapping[str, str], body: bytes, param: str, upstream: Upstream | None
) -> AttemptFailure:
    """A server answered with an error; without an upstream it is an engine of our own."""
    if upstream is None:
        error = refusals.map_engine_error(status, body, param, retry_after=headers.get("retry-after", ""))
    else:
        error = refusals.map_upstream_error(status, headers, body, param, secrets=upstream.secrets)
    return AttemptFailure(
        error,
        str(status),
        is_server_fault=refusals.is_upstream_fault(status, body),
        is_retryable=refusals.is_retryable_status(status, body),
    )


def connection_failure(error: HttpClientError) -> AttemptFailure:
    """There is no connection to a server. Where this machine is at fault, no other server is reached either."""
    if not error.is_local_failure:
        return AttemptFailure(refusals.upstream_unreachable(str(error)), "unreachable", is_disconnect=True)
    said = ApiError(503, "The server has no room for another connection.", code="server_busy", retry_after_s=1.0)
    return AttemptFailure(said, "no_room", is_server_fault=False, is_retryable=False)


def timeout_failure(timeout_s: float) -> AttemptFailure:
    """A server said nothing for so long."""
    return AttemptFailure(refusals.upstream_timeout(timeout_s), OUTCOME_TIMEOUT)
