"""Tool calls in text: converts calls that were forced by a JSON schema, and detects calls that a model wrote as text.

Some engines allow free text before a required call, and do not support calls by name. A JSON schema as output
constraint forces the call; its text is then converted to tool call events.
"""

import re
from collections.abc import Callable, Collection

import msgspec

from welldone.core.events import Event, Finish, Logprobs, Text, ToolArguments, ToolCall
from welldone.core.fields import bad_stream_failure
from welldone.core.lenient_json import parse_strict
from welldone.core.tool_calls import JsonEndDetector

_CALL_PREFIX_LIMIT = 8192  # characters before the arguments: a name of at most 64, white space and brackets
_CALL_PREFIX = re.compile(r'[\s\[\],}]*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\S)')
_UP_TO_BRACE = re.compile(r"[^}]*\}|[^}]+")


class ForcedToolCall(msgspec.Struct, frozen=True):
    """How a call is forced."""

    name: str | None = None
    """Tool whose arguments the text is. None: the text is `{"name": …, "arguments": {…}}`, or a list of such calls."""
    is_named: bool = False
    """Whether the client named the tool: OpenAI itself then finishes with `stop`."""


class ForcedCallConverter:
    """Converts the text of each choice to tool calls."""

    def __init__(self, forced: ForcedToolCall, new_call_id: Callable[[], str]) -> None:
        self._forced = forced
        self._new_call_id = new_call_id
        self._choices: dict[int, _ForcedChoice] = {}

    def feed(self, events: list[Event]) -> list[Event]:
        """Return the events with tool calls instead of text."""
        out: list[Event] = []
        for event in events:
            match event:
                case Text(index=index, text=text):
                    choice = self._choices.setdefault(index, _ForcedChoice(index, self._forced, self._new_call_id))
                    out += choice.feed(text)
                case Finish(index=index, reason="stop") if not self._forced.is_named and index in self._choices:
                    out.append(Finish(index, "tool_calls"))
                case Logprobs():
                    pass  # of tokens that are not sent as text
                case _:
                    out.append(event)
        return out


class _ForcedChoice:
    def __init__(self, index: int, forced: ForcedToolCall, new_call_id: Callable[[], str]) -> None:
        self._index = index
        self._new_call_id = new_call_id
        self._count = 0
        self._held = ""  # text before the arguments of the next call
        self._json_end: JsonEndDetector | None = None  # of the current arguments
        self._name = forced.name

    def feed(self, text: str) -> list[Event]:
        out: list[Event] = []
        if self._name is not None:
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
        """Read up to the arguments of the next call; return the rest of the text."""
        self._held += text
        match = _CALL_PREFIX.match(self._held)
        if match is None:
            if len(self._held) > _CALL_PREFIX_LIMIT:
                out.append(bad_stream_failure("a tool call that cannot be parsed"))
                self._held = ""
            return ""
        rest = self._held[match.end() :]
        self._held = ""
        self._start_call(msgspec.json.decode(match[1], type=str), out)
        return rest

    def _read_arguments(self, json_end: JsonEndDetector, text: str, out: list[Event]) -> str:
        """Read up to the end of the arguments; return the rest of the text."""
        end = 0
        for piece in _UP_TO_BRACE.finditer(text):
            json_end.feed(piece[0])
            end = piece.end()
            if json_end.is_complete:
                self._json_end = None
                break
        out.append(ToolArguments(self._index, self._count - 1, text[:end]))
        return text[end:]


TEXT_TOOL_CALL_LIMIT_CHARS = 64 * 1024
"""Longest text that is checked; a call has some hundred characters."""

_CALL_STARTS = ("{", "[", "`")
_FENCE = "```"


class TextToolCallDetector:
    """Counts the choices of one stream whose complete text is a call of one of the tools `names`.

    Small models write the JSON of a call, bare or fenced, instead of the tags that the engine parses. The text is a
    legal answer and passes unchanged.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.count: int = 0
        self._names = names
        self._texts: dict[int, list[str]] = {}  # of choices that may still be a call
        self._lengths: dict[int, int] = {}
        self._settled_choices: set[int] = set()

    @property
    def is_watching(self) -> bool:
        """Whether every text must be observed: a text is buffered, or none has started except with white space."""
        return bool(self._texts) or not self._settled_choices

    def observe(self, events: list[Event]) -> None:
        """Check the texts of `events`."""
        for event in events:
            match event:
                case Text(index=index, text=text) if index not in self._settled_choices:
                    self._add(index, text)
                case ToolCall(index=index):
                    self._drop(index)
                case Finish(index=index):
                    self.count += self._is_call("".join(self._texts.get(index, ())).strip())
                    self._drop(index)
                case _:
                    pass

    def _add(self, index: int, text: str) -> None:
        pieces = self._texts.get(index)
        if pieces is None:
            if not (text := text.lstrip()):
                return
            pieces = self._texts[index] = []
        pieces.append(text)
        length = self._lengths[index] = self._lengths.get(index, 0) + len(text)
        if not pieces[0].startswith(_CALL_STARTS) or length > TEXT_TOOL_CALL_LIMIT_CHARS:
            self._drop(index)

    def _drop(self, index: int) -> None:
        self._settled_choices.add(index)
        self._texts.pop(index, None)

    def _is_call(self, text: str) -> bool:
        if text.startswith(_FENCE) and text.endswith(_FENCE):
            text = text.removesuffix(_FENCE).partition("\n")[2]
        value = parse_strict(text.encode())
        calls = [entry for entry in (value if isinstance(value, list) else [value]) if isinstance(entry, dict)]
        names = [entry.get("name") for entry in calls if "arguments" in entry or "parameters" in entry]
        return any(isinstance(name, str) and name in self._names for name in names)
