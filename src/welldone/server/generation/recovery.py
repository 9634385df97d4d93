"""What follows a failed attempt: the one decision for all requests. docs/recovery.md has it as a table."""

from typing import TypeAlias

import msgspec

from welldone.gateway.error_mapping import AttemptFailure


class AttemptOutput(msgspec.Struct, frozen=True):
    """What is possible with the output of a failed attempt."""

    can_discard: bool
    """Whether the client has nothing of it that would be sent twice."""
    can_continue: bool | None = None
    """Whether an attempt can send the rest; None if nothing has begun, or continuation is off."""


class Retry(msgspec.Struct, frozen=True):
    """Discard the output and send the request again, to another upstream or on a new connection."""


class Restart(msgspec.Struct, frozen=True):
    """Discard the output and send the request again, when the local engine has restarted."""


class Continue(msgspec.Struct, frozen=True):
    """Have the rest of the answer sent by another attempt."""


class GiveUp(msgspec.Struct, frozen=True):
    """Report the failure to the client."""

    lacks_way: bool = False
    """Whether the answer has begun, and there is no way to continue it."""


Recovery: TypeAlias = Retry | Restart | Continue | GiveUp


def decide(
    failure: AttemptFailure, output: AttemptOutput, *, has_attempts: bool, is_local: bool, has_alternative: bool
) -> Recovery:
    """Decide what follows the failure of an attempt.

    Args:
        failure: of the attempt.
        output: of the attempt.
        has_attempts: whether the limit of attempts allows another one.
        is_local: whether a local engine failed, not an upstream.
        has_alternative: whether another upstream or replica is available.
    """
    if not failure.is_retryable or not (has_attempts or failure.has_differed):
        return GiveUp()
    if output.can_discard:
        if is_local and failure.is_disconnect:
            return Restart()
        if not is_local and (failure.is_stale or failure.goes_unstreamed or has_alternative):
            return Retry()
    return Continue() if output.can_continue else GiveUp(lacks_way=output.can_continue is False)
