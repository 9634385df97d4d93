"""The steps of a replay, as the page is told them."""

import base64
from collections.abc import Sequence
from sys import getsizeof

import msgspec

from welldone.net.secrets import SecretRedactor
from welldone.wire.events import (
    Event,
    UnknownFields,
    Failure,
    Finish,
    Json,
    KeepAlive,
    Logprobs,
    ChoiceStart,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    Usage,
)
from welldone.wire.faults.catalogue import RULES_BY_ID
from welldone.wire.notes import RepairEntry
from welldone.wire.replay import StreamReplayStep
from welldone.wire.unicode import clean_unicode

_EVENT_TYPES: dict[type[Event], str] = {
    ChoiceStart: "opening",
    Text: "text",
    Reasoning: "reasoning",
    Refusal: "refusal",
    ToolCall: "tool_call",
    ToolArguments: "tool_arguments",
    Logprobs: "logprobs",
    Finish: "finish",
    Usage: "usage",
    Failure: "failure",
    KeepAlive: "keep_alive",
    UnknownFields: "extra",
}
_OVERHEAD_BYTES = 512  # of a step in memory, besides its texts
_UNENCODABLE_EVENTS = msgspec.Raw(
    b'[{"type":"unshown"}]'
)  # of events that cannot be JSON again: half a character, a deep nest
_encode = msgspec.json.encode


class RepairView(msgspec.Struct, frozen=True):
    """What was found wrong in a frame, and mended."""

    rule: str
    severity: str
    repairability: str
    repair: str
    expected: str
    observed: str
    count: int


class StepView(msgspec.Struct, frozen=True):
    """One step."""

    n: int
    """From 0, over all parts and attempts."""
    part: int
    attempt: int
    """Which of the attempts it is of."""
    at_s: float | None
    """When its last byte came, since the request began; None where no times are known."""
    byte: int
    received: str
    events: msgspec.Raw
    repairs: list[RepairView]
    sent: str
    received_base64: str | msgspec.UnsetType = msgspec.UNSET
    """Only where the bytes are no UTF-8."""

    @property
    def size(self) -> int:
        """About what it takes in memory, where a text with one emoji has four bytes for each character."""
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
    """A step as it is shown. Secrets are blotted out of what was heard; of what was said they were before."""
    heard, encoded = _decode_text(step.received)
    events, notes = _encode_events(step.events), [_repair_view(note) for note in step.repairs]
    if secrets is not None and secrets.occur_in(step.received):
        heard, encoded, events = secrets.redact(heard), msgspec.UNSET, msgspec.Raw(secrets.redact_json(bytes(events)))
        notes = [msgspec.structs.replace(note, observed=secrets.redact(note.observed)) for note in notes]
    said = step.sent.decode("utf-8", "replace")
    return StepView(n, step.part, attempt, at_s, step.byte, heard, events, notes, said, encoded)


def _decode_text(data: bytes) -> tuple[str, str | msgspec.UnsetType]:
    try:
        return data.decode(), msgspec.UNSET
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace"), base64.b64encode(data).decode()


def _encode_events(events: Sequence[Event | Json]) -> msgspec.Raw:
    try:
        return msgspec.Raw(_encode([_event_object(event) for event in events]))
    except (RecursionError, UnicodeEncodeError):
        return _UNENCODABLE_EVENTS


def _event_object(event: Event | Json) -> Json:
    if isinstance(event, dict):
        return {"type": "", **event}
    fields = msgspec.structs.asdict(event)
    if isinstance(event, Failure):
        fields["error_type"] = fields.pop("type")
    return {"type": _EVENT_TYPES[type(event)], **fields}


def _repair_view(note: RepairEntry) -> RepairView:
    fault = RULES_BY_ID[note.rule]
    # What was heard may have half a character, which JSON cannot say.
    return RepairView(
        note.rule,
        fault.severity,
        fault.repairability,
        fault.repair,
        fault.summary,
        clean_unicode(note.observed),
        note.count,
    )
