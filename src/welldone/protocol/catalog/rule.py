"""A rule of the catalogue. Rule ids are stable."""

from enum import StrEnum

import msgspec

ALL_ENDPOINTS = ("chat", "completions", "responses", "messages")
"""Endpoints of a rule that does not depend on the dialect."""


class Severity(StrEnum):
    """Effect of a violation on real clients."""

    BREAKS = "breaks"
    """At least one real client fails, loses data or hangs."""
    TOLERATED = "tolerated"
    """Usually survived; some clients degrade."""
    STYLE = "style"
    """Not what OpenAI sends; nothing is known to break."""


class Repairability(StrEnum):
    """How far a proxy can repair a violation."""

    LOSSLESS = "lossless"
    """Repaired without loss."""
    PARTIAL = "partial"
    """Repaired in the cases that `Rule.repair` names, else reported."""
    REPORT_ONLY = "report"
    """Only reported."""


class Detection(StrEnum):
    """What is needed to detect a violation."""

    REPLY = "reply"
    """One recorded reply, and for some rules its request."""
    PROBE = "probe"
    """Dedicated requests: several replies compared, their timing, or the state of the server."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of the protocol."""

    id: str
    severity: Severity
    endpoints: tuple[str, ...]
    summary: str
    """The requirement, as one sentence."""
    affects: tuple[str, ...]
    """Affected clients, each as `client: effect`; measured or read in the client's code."""
    repairability: Repairability
    repair: str
    """What the repairer does, or why it cannot repair it."""
    detection: Detection = Detection.REPLY
