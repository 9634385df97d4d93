"""Steps of a captured stream as the page shows them: bytes received, events, repairs, bytes sent."""

import base64
import re
from collections.abc import Sequence
from sys import getsizeof

import msgspec

from welldone.core.catalog import RULES
from welldone.core.events import Event, Failure, Json
from welldone.core.lenient_json import clean_unicode
from welldone.core.repair_log import RepairEntry
from welldone.http.redaction import SecretRedactor
from welldone.stream.replay import StreamReplayStep

_OWN_EVENT_TYPES = {"ChoiceStart": "opening", "UnknownFields": "extra"}
"""Types of events for the page. The others are the names of their classes, in snake case."""
_WORD_START = re.compile(r"(?<!^)(?=[A-Z])")
_OVERHEAD_BYTES = 512  # memory of a step without its strings
_UNENCODABLE_EVENTS = msgspec.Raw(b'[{"type":"unshown"}]')
"""Stands for events that cannot be encoded as JSON: lone surrogates, deep nesting."""


class RepairView(msgspec.Struct, frozen=True):
    """A violation that was repaired in a frame."""

    rule: str
    severity: str
    repairability: str
    repair: str
    expected: str
    observed: str
    count: int


class StepView(msgspec.Struct, frozen=True):
    """One frame, or one write that no frame caused."""

    n: int
    """Counted from 0 over all parts and attempts."""
    part: int
    attempt: int
    """Index of the attempt that received it."""
    at_s: float | None
    """When its last byte arrived, since the start of the request; None if times were not recorded."""
    byte: int
    received: str
    events: msgspec.Raw
    repairs: list[RepairView]
    sent: str
    received_base64: str | msgspec.UnsetType = msgspec.UNSET
    """Set only if the bytes are not valid UTF-8."""

    @property
    def size(self) -> int:
        """Approximate memory. `getsizeof`, since a string with one emoji takes four bytes per character."""
        texts = sum(map(getsizeof, (self.received, self.received_base64, self.sent)))
        return _OVERHEAD_BYTES + texts + len(bytes(self.events)) + 200 * len(self.repairs)


def step_view(
    step: StreamReplayStep,
    n: int,
    *,
    attempt: int = 0,
    at_s: float | None = None,
    secrets: SecretRedactor | None = None,
) -> StepView:
    """Return the view of a step. Secrets are redacted in what was received; what was sent contains none."""
    encoded: str | msgspec.UnsetType = msgspec.UNSET
    try:
        received = step.received.decode()
    except UnicodeDecodeError:
        received, encoded = step.received.decode("utf-8", "replace"), base64.b64encode(step.received).decode()
    events, repairs = _encode_events(step.events), [_repair_view(entry) for entry in step.repairs]
    if secrets is not None and secrets.occur_in(step.received):
        received, encoded = secrets.redact(received), msgspec.UNSET
        events = msgspec.Raw(secrets.redact_json(bytes(events)))
        repairs = [msgspec.structs.replace(repair, observed=secrets.redact(repair.observed)) for repair in repairs]
    sent = step.sent.decode("utf-8", "replace")
    return StepView(n, step.part, attempt, at_s, step.byte, received, events, repairs, sent, encoded)


def _encode_events(events: Sequence[Event | Json]) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.encode([_event_object(event) for event in events]))
    except (RecursionError, UnicodeEncodeError):
        return _UNENCODABLE_EVENTS


def _event_object(event: Event | Json) -> Json:
    if isinstance(event, dict):
        return {"type": "", **event}
    fields = msgspec.structs.asdict(event)
    if isinstance(event, Failure):
        fields["error_type"] = fields.pop("type")
    name = type(event).__name__
    return {"type": _OWN_EVENT_TYPES.get(name) or _WORD_START.sub("_", name).lower(), **fields}


def _repair_view(entry: RepairEntry) -> RepairView:
    rule = RULES[entry.rule]
    # `observed` may contain lone surrogates, which JSON cannot encode.
    observed = clean_unicode(entry.observed)
    return RepairView(entry.rule, rule.severity, rule.repairability, rule.repair, rule.summary, observed, entry.count)
