"""What a client has heard of one request, and what is wrong with it. Nothing here asks anybody: it only judges."""

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from faults.nemesis.order import SIGN, Order
from faults.nemesis.wish import WRONG, Wish

Ending: TypeAlias = Literal["whole", "error event", "refused", "left", "broken"]
ENDINGS: tuple[Ending, ...] = ("whole", "error event", "refused", "left", "broken")

ATTEMPTS = 2
"""The gateway promises one other try, and no more."""
FAILURES = (429, 502, 503, 504)
"""Of a right request whose upstreams fail."""

_CHAT = "[TO]*(?:FO*D|F?ED)"  # a server may fail when it has said all, and before it has said so
_GRAMMARS = {
    "chat": _CHAT,
    "completions": _CHAT,
    "responses": "[TO]*[WE]",
    "messages": "[TO]*(?:FD|F?E)",
    "ollama": "[TO]*[WE]",
}
"""Right streams as letters: Text, Other, Finish, Done (the last word), Whole (finish and last word in one), Error."""
_TOKEN = re.compile(rf"(m\d{{8}}):([^:{SIGN}]*):(\d+){SIGN}\.* ")


class Heard(msgspec.Struct):
    """What came back. A moment is a number of the one order in which all things happen."""

    status: int = 0
    """0: not even that."""
    is_closed: bool = False
    """Whether HTTP says that this was all."""
    has_left: bool = False
    """Whether the client left before that."""
    events: str = ""
    """The frames of a stream, each as a letter."""
    text: str = ""
    has_error: bool = False
    """Whether it is an error in the words of the client's dialect."""
    is_stream: bool = False
    first_text_at: int | None = None
    """The moment of the first token."""
    beyond: bytes = b""
    """What came after the end."""
    unreadable: str = ""
    """Why it could not be read at all."""

    @property
    def ending(self) -> Ending:
        """How it ended."""
        if self.has_left:
            return "left"
        if not self.status or not self.is_closed:
            return "broken"
        if self.status != 200:
            return "refused"
        return "error event" if "E" in self.events else "whole"


def violations(wish: Wish, heard: Heard, asked: Sequence[int]) -> list[str]:
    """All that is wrong with one request. `asked`: the moments in which an upstream was asked for it."""
    found = [*_attempts(wish, heard, asked), *_text(wish.order, heard)]
    if heard.unreadable:
        found.append(f"it cannot be read: {heard.unreadable}")
    if heard.beyond:
        found.append(f"something came after the end: {heard.beyond[:60]!r}")
    if heard.ending == "broken":
        found.append("the connection ended, and the answer did not")
    elif heard.ending == "refused":
        found += _refusal(wish, heard)
    elif heard.ending != "left":
        found += _form(wish, heard)
    elif _ends(heard.events) > 1:
        found.append(f"more than one end: {heard.events}")
    return [f"{wish.order.marker} ({wish.dialect}): {words}" for words in found]


def _attempts(wish: Wish, heard: Heard, asked: Sequence[int]) -> list[str]:
    found = []
    if len(asked) > (0 if wish.wrong else ATTEMPTS):
        found.append(f"upstreams were asked {len(asked)} times")
    if heard.first_text_at is not None and any(moment > heard.first_text_at for moment in asked):
        found.append("an upstream was asked after the client had heard something")
    return found


def _text(order: Order, heard: Heard) -> list[str]:
    """The text must be that of one attempt: all of it in a whole answer, else a beginning."""
    tokens = _TOKEN.findall(heard.text)
    if {marker for marker, _, _ in tokens} - {order.marker}:
        return ["it heard tokens of another request"]
    if len({tag for _, tag, _ in tokens}) > 1:
        return ["it heard tokens of two attempts"]
    numbers = [int(number) for _, _, number in tokens]
    if numbers != list(range(len(numbers))):
        return [f"tokens were lost, doubled or moved: {numbers}"]
    wanted = order.text(tokens[0][1] if tokens else "")
    if not wanted.startswith(heard.text):
        return [f"the text is not what was said: …{heard.text[-60:]!r}"]
    if heard.ending == "whole" and heard.text != wanted:
        return [f"it was ended as if it were whole, with {len(tokens)} of {order.tokens} tokens"]
    return []


def _form(wish: Wish, heard: Heard) -> list[str]:
    """A right request that got 200."""
    if wish.wrong:
        return [f"200 for a request that is wrong: {wish.wrong}"]
    if heard.is_stream != wish.is_stream:
        return ["a stream where none was wanted" if heard.is_stream else "no stream where one was wanted"]
    if not wish.is_stream or re.fullmatch(_GRAMMARS[wish.dialect], heard.events):
        return []
    ends = _ends(heard.events)
    words = "no end" if not ends else "more than one end" if ends > 1 else "something out of its turn"
    return [f"{words}: …{heard.events[-40:]}"]


def _ends(events: str) -> int:
    """How often a stream said that it is over: by its last word, or with an error that has none after it."""
    return len(re.findall("ED?|[DW]", events))


def _refusal(wish: Wish, heard: Heard) -> list[str]:
    wanted = (WRONG[wish.wrong],) if wish.wrong else FAILURES
    found = [] if heard.status in wanted else [f"status {heard.status}"]
    return found if heard.has_error else [*found, "an error that has not the form of its dialect"]
