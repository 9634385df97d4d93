"""What a fault is: one way for a stream to be wrong, under an id that never changes."""

from enum import StrEnum

import msgspec

ALL_ENDPOINTS = ("chat", "completions", "responses", "messages")
"""The endpoints of a rule that knows nothing of what is said."""


class Severity(StrEnum):
    """How much a fault costs, by what real clients did with it."""

    BREAKS = "breaks"
    """At least one real client fails, loses data or hangs."""
    TOLERATED = "tolerated"
    """Usually survived; some clients degrade."""
    STYLE = "style"
    """Not what OpenAI sends; nothing is known to break."""


class Repairability(StrEnum):
    """How far a proxy can undo a fault."""

    LOSSLESS = "lossless"
    """Repair undoes it and nothing is lost."""
    PARTIAL = "partial"
    """Repair undoes it in the cases that `how` names; otherwise it is reported."""
    REPORT_ONLY = "report"
    """Nothing can be done but to say so."""


class Detection(StrEnum):
    """What it takes to hear a fault."""

    REPLY = "reply"
    """One captured reply, and perhaps its request."""
    PROBE = "probe"
    """Requests made to provoke it: several replies side by side, their times, or what becomes of the server."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of the stream, seen from the side of who breaks it."""

    id: str
    severity: Severity
    endpoints: tuple[str, ...]
    summary: str
    """What a right stream does, as one sentence."""
    affects: tuple[str, ...]
    """Whom it hurts and how, each as `client: what happens`; measured or read in the client's code."""
    repairability: Repairability
    repair: str
    """What repair does about it, or why it can do nothing."""
    detection: Detection = Detection.REPLY
