"""Whether a server refuses what it was asked: not the key, not for lack of money, time or room."""

from welldone.check.reply import ProbeReply

_CLIENT_STATUSES = (401, 402, 403, 408, 429)
"""A run may end with its credit, or be asked to slow down. That says nothing of the request."""


def is_refused(reply: ProbeReply) -> bool:
    """Whether the server says with a 4xx that it does not do this."""
    status = reply.status
    return status is not None and 400 <= status < 500 and status not in _CLIENT_STATUSES
