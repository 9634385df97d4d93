"""Tool calls that were forced: the engine was made to answer with JSON by a schema, and its text becomes the calls.

Some engines let free text come before a call that was required, and know no call by name. Made to write JSON they
cannot do otherwise.
"""

import re
from collections.abc import Callable
from enum import StrEnum

import msgspec

from welldone.wire.calls import JsonEndDetector
from welldone.wire.events import Event, Finish, Logprobs, Text, ToolArguments, ToolCall
from welldone.wire.failures import bad_stream_failure

_CALL_PREFIX_LIMIT = 8192  # characters between two calls: a name has 64, the rest is white space and brackets
_CALL_PREFIX = re.compile(r'[\s\[\],}]*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\S)')
_UP_TO_BRACE = re.compile(r"[^}]*\}|[^}]+")


class ForcedCallShape(StrEnum):
    """What the text is."""

    ARGUMENTS = "arguments"
    """The arguments of one tool, which is known."""
    CALL = "call"
    """`{"name": …, "arguments": {…}}`, or a list of such calls."""


class ForcedToolCall(msgspec.Struct, frozen=True):
    """How a call was forced."""

    shape: ForcedCallShape
    name: str = ""
    """The tool, where it is known."""
    is_named: bool = False
    """Whether the client named it: then OpenAI itself finishes with `stop`."""


class ForcedCallConverter:
    """The texts of each choice, as calls."""

    def __init__(self, forced: ForcedToolCall, new_call_id: Callable[[], str]) -> None:
        self._forced = forced
        self._new_call_id = new_call_id
        self._choices: dict[int, _ForcedChoice] = {}

    def feed(self, events: list[Event]) -> list[Event]:
        """The same events, with calls where there was text."""
        out: list[Event] = []
        for event in events:
            match event:
                case Text(index=index, text=text):
                    choice = self._choices.setdefault(index, _ForcedChoice(index, self._forced, self._new_call_id))
                    out += choice.feed(text)
                case Finish(index=index, reason="stop") if not self._forced.is_named and index in self._choices:
                    out.append(Finish(index, "tool_calls"))
                case Logprobs():
                    pass  # they are of tokens that are not shown as text
                case _:
                    out.append(event)
        return out


class _ForcedChoice:
    def __init__(self, index: int, forced: ForcedToolCall, new_call_id: Callable[[], str]) -> None:
        self._index = index
        self._new_call_id = new_call_id
        self._count = 0
        self._held = ""  # what may be the head of the next call
        self._json_end: JsonEndDetector | None = None  # of the arguments that are being read
        self._name = forced.name
        self._is_arguments_only = forced.shape is ForcedCallShape.ARGUMENTS

    def feed(self, text: str) -> list[Event]:
        out: list[Event] = []
        if self._is_arguments_only:
            if self._count == 0:
                self._start_call(self._name, out)
            out.append(ToolArguments(self._index, 0, text))
            return out
        while text:
            text = (
                self._read_call_prefix(text, out)
                if self._json_end is None
                else self._read_arguments(self._json_end, text, out)
            )
        return out

    def _start_call(self, name: str, out: list[Event]) -> None:
        out.append(ToolCall(self._index, self._count, self._new_call_id(), name))
        self._count += 1
        self._json_end = JsonEndDetector()

    def _read_call_prefix(self, text: str, out: list[Event]) -> str:
        """Read up to the arguments of the next call; what is left of the text."""
        self._held += text
        found = _CALL_PREFIX.match(self._held)
        if found is None:
            if len(self._held) > _CALL_PREFIX_LIMIT:
                out.append(bad_stream_failure("a tool call that cannot be read"))
                self._held = ""
            return ""
        rest = self._held[found.end() :]
        self._held = ""
        self._start_call(msgspec.json.decode(found[1], type=str), out)
        return rest

    def _read_arguments(self, json_end: JsonEndDetector, text: str, out: list[Event]) -> str:
        """Read up to the end of the arguments; what is left of the text."""
        place = 0
        for piece in _UP_TO_BRACE.finditer(text):
            json_end.feed(piece[0])
            place = piece.end()
            if json_end.is_complete:
                self._json_end = None
                break
        out.append(ToolArguments(self._index, self._count - 1, text[:place]))
        return text[place:]
