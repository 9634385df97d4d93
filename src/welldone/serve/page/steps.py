"""The steps of a replay, as the page is told them."""

import base64
from collections.abc import Sequence
from sys import getsizeof

import msgspec

from welldone.net.secrets import Secrets
from welldone.wire.events import (
    Event,
    Extra,
    Failure,
    Finish,
    Json,
    KeepAlive,
    Logprobs,
    Opening,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    Usage,
)
from welldone.wire.faults.catalogue import BY_ID
from welldone.wire.notes import Note
from welldone.wire.replay import Step
from welldone.wire.unicode import clean

_NAMES: dict[type[Event], str] = {
    Opening: "opening",
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
    Extra: "extra",
}
_OVERHEAD_BYTES = 512  # of a step in memory, besides its texts
_UNSHOWN = msgspec.Raw(b'[{"type":"unshown"}]')  # of events that cannot be JSON again: half a character, a deep nest
_encode = msgspec.json.encode


class Mended(msgspec.Struct, frozen=True):
    """What was found wrong in a frame, and mended."""

    rule: str
    severity: str
    mend: str
    how: str
    wanted: str
    heard: str
    count: int


class Shown(msgspec.Struct, frozen=True):
    """One step."""

    n: int
    """From 0, over all parts and attempts."""
    part: int
    attempt: int
    """Which of the attempts it is of."""
    at_s: float | None
    """When its last byte came, since the request began; None where no times are known."""
    byte: int
    heard: str
    events: msgspec.Raw
    notes: list[Mended]
    said: str
    heard_base64: str | msgspec.UnsetType = msgspec.UNSET
    """Only where the bytes are no UTF-8."""

    @property
    def size(self) -> int:
        """About what it takes in memory, where a text with one emoji has four bytes for each character."""
        texts = sum(map(getsizeof, (self.heard, self.heard_base64, self.said)))
        return _OVERHEAD_BYTES + texts + len(bytes(self.events)) + 200 * len(self.notes)


def shown(step: Step, n: int, *, attempt: int = 0, at_s: float | None = None, secrets: Secrets | None = None) -> Shown:
    """A step as it is shown. Secrets are blotted out of what was heard; of what was said they were before."""
    heard, encoded = _text(step.heard)
    events, notes = _events(step.events), [_mended(note) for note in step.notes]
    if secrets is not None and secrets.are_in(step.heard):
        heard, encoded, events = secrets.clean(heard), msgspec.UNSET, msgspec.Raw(secrets.clean_json(bytes(events)))
        notes = [msgspec.structs.replace(note, heard=secrets.clean(note.heard)) for note in notes]
    said = step.said.decode("utf-8", "replace")
    return Shown(n, step.part, attempt, at_s, step.byte, heard, events, notes, said, encoded)


def _text(data: bytes) -> tuple[str, str | msgspec.UnsetType]:
    try:
        return data.decode(), msgspec.UNSET
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace"), base64.b64encode(data).decode()


def _events(events: Sequence[Event | Json]) -> msgspec.Raw:
    try:
        return msgspec.Raw(_encode([_event(event) for event in events]))
    except (RecursionError, UnicodeEncodeError):
        return _UNSHOWN


def _event(event: Event | Json) -> Json:
    if isinstance(event, dict):
        return {"type": "", **event}
    fields = msgspec.structs.asdict(event)
    if isinstance(event, Failure):
        fields["error_type"] = fields.pop("type")
    return {"type": _NAMES[type(event)], **fields}


def _mended(note: Note) -> Mended:
    fault = BY_ID[note.rule]
    # What was heard may have half a character, which JSON cannot say.
    return Mended(note.rule, fault.severity, fault.mend, fault.how, fault.rule, clean(note.heard), note.count)
