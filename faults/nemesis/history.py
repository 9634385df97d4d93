"""What a client received for one request, and the violations in it. Pure: no I/O."""

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from faults.nemesis.client_actions import WRONG, ClientAction
from faults.nemesis.upstream_actions import SIGN, UpstreamAction

Ending: TypeAlias = Literal["whole", "error event", "refused", "left", "broken"]
ENDINGS: tuple[Ending, ...] = ("whole", "error event", "refused", "left", "broken")

ATTEMPTS = 2
"""The gateway retries at most once."""
FAILURES = (429, 502, 503, 504)
"""Statuses of a valid request whose upstreams fail."""

_CHAT = "[TO]*(?:FO*D|F?ED)"  # a server may fail after the text and before the finish
_GRAMMARS = {
    "chat": _CHAT,
    "completions": _CHAT,
    "responses": "[TO]*[WE]",
    "messages": "[TO]*(?:FD|F?E)",
    "ollama": "[TO]*[WE]",
}
"""Valid streams as letters: Text, Other, Finish, Done (last event), Whole (finish and last event in one), Error."""
_TOKEN = re.compile(rf"(m\d{{8}}):([^:{SIGN}]*):(\d+){SIGN}\.* ")


class ObservedReply(msgspec.Struct):
    """Observed reply. Moments are positions in a total order of events."""

    status: int = 0
    """0: none received."""
    is_closed: bool = False
    """Whether the HTTP framing is complete."""
    has_left: bool = False
    """Whether the client disconnected before that."""
    events: str = ""
    """The frames of a stream, each as a letter."""
    text: str = ""
    has_error: bool = False
    """Whether it is an error in the form of the client's dialect."""
    is_stream: bool = False
    first_text_at: int | None = None
    """The moment of the first token."""
    stream_id: str = ""
    """With which the stream can be resumed."""
    numbers: list[int] = []
    """The `id:` lines of a stream that can be resumed."""
    resume_errors: list[str] = []
    """Failed requests for the rest of the stream, or to stop it."""
    beyond: bytes = b""
    """Data after the end."""
    unreadable: str = ""
    """Why it could not be parsed."""

    @property
    def ending(self) -> Ending:
        """Return the ending."""
        if self.has_left:
            return "left"
        if not self.status or not self.is_closed:
            return "broken"
        if self.status != 200:
            return "refused"
        return "error event" if "E" in self.events else "whole"


def violations(action: ClientAction, observed: ObservedReply, attempts: Sequence[int]) -> list[str]:
    """Return the violations of one request. `attempts`: moments at which an upstream received it."""
    found = [*_attempts(action, observed, attempts), *_text(action.order, observed)]
    if observed.unreadable:
        found.append(f"it cannot be read: {observed.unreadable}")
    if observed.numbers != list(range(1, len(observed.numbers) + 1)):
        found.append(f"events were lost, doubled or moved: {observed.numbers}")
    found += observed.resume_errors
    if observed.beyond:
        found.append(f"data after the end: {observed.beyond[:60]!r}")
    if observed.ending == "broken":
        found.append("the connection ended, and the answer did not")
    elif observed.ending == "refused":
        found += _refusal(action, observed)
    elif observed.ending != "left":
        found += _form(action, observed)
    elif _ends(observed.events) > 1:
        found.append(f"more than one end: {observed.events}")
    return [f"{action.order.marker} ({action.dialect}): {words}" for words in found]


def _attempts(action: ClientAction, observed: ObservedReply, attempts: Sequence[int]) -> list[str]:
    found = []
    if len(attempts) > (0 if action.wrong else ATTEMPTS):
        found.append(f"upstreams were asked {len(attempts)} times")
    is_second_late = observed.first_text_at is not None and any(moment > observed.first_text_at for moment in attempts)
    if is_second_late and not action.is_continued:
        found.append("a second attempt started after the client had received data")
    return found


def _text(order: UpstreamAction, observed: ObservedReply) -> list[str]:
    """The text must come from one attempt, which others may continue: complete in a whole answer, else a prefix."""
    tokens = _TOKEN.findall(observed.text)
    if {marker for marker, _, _ in tokens} - {order.marker}:
        return ["it contains tokens of another request"]
    if len({tag for _, tag, _ in tokens}) > 1:
        return ["it contains tokens of two attempts"]
    numbers = [int(number) for _, _, number in tokens]
    if numbers != list(range(len(numbers))):
        return [f"tokens were lost, doubled or moved: {numbers}"]
    # Of a text that breaks off within its first token, the tag is unknown.
    start = re.match(rf"{order.marker}:([^:]*)", observed.text)
    wanted = order.text(start[1] if start else "")
    if not wanted.startswith(observed.text):
        return [f"the text differs from what the upstream sent: …{observed.text[-60:]!r}"]
    if observed.ending == "whole" and observed.text != wanted:
        return [f"it ended as if complete, with {len(tokens)} of {order.tokens} tokens"]
    return []


def _form(action: ClientAction, observed: ObservedReply) -> list[str]:
    """Violations of a reply with status 200."""
    if action.wrong:
        return [f"200 for a request that is wrong: {action.wrong}"]
    if observed.is_stream != action.is_stream:
        return ["a stream that was not requested" if observed.is_stream else "no stream although requested"]
    if not action.is_stream or re.fullmatch(_GRAMMARS[action.dialect], observed.events):
        return []
    ends = _ends(observed.events)
    words = "no end" if not ends else "more than one end" if ends > 1 else "something out of its turn"
    return [f"{words}: …{observed.events[-40:]}"]


def _ends(events: str) -> int:
    """Count the ends of a stream: its last event, or an error without one after it."""
    return len(re.findall("ED?|[DW]", events))


def _refusal(action: ClientAction, observed: ObservedReply) -> list[str]:
    wanted = (WRONG[action.wrong],) if action.wrong else FAILURES
    found = [] if observed.status in wanted else [f"status {observed.status}"]
    return found if observed.has_error else [*found, "an error that has not the form of its dialect"]
