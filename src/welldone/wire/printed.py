"""Notices tool calls that a model wrote as text.

Small models answer with the JSON of a call, bare or in a fence, and not with the tags that an engine reads. The text is
a legal answer and goes out unchanged; that it happened is counted.
"""

from collections.abc import Collection

from welldone.wire.events import Event, Finish, Text, ToolCall
from welldone.wire.lenient import parse_strict

TEXT_TOOL_CALL_LIMIT_CHARS = 64 * 1024
"""Characters of an answer that is looked at; a call has some hundred."""

_CALL_STARTS = ("{", "[", "`")
_FENCE = "```"


class TextToolCallDetector:
    """Counts the choices of one stream whose whole text is a call of one of these tools."""

    def __init__(self, names: Collection[str]) -> None:
        self.count = 0
        self._names = names
        self._texts: dict[int, list[str]] = {}  # of choices that may be a call
        self._lengths: dict[int, int] = {}
        self._settled_choices: set[int] = set()

    @property
    def is_watching(self) -> bool:
        """Whether all texts must come by: one is kept, or none has begun but with white space."""
        return bool(self._texts) or not self._settled_choices

    def observe(self, events: list[Event]) -> None:
        """What is said."""
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
        calls = value if isinstance(value, list) else [value]
        return any(isinstance(call, dict) and self._is_named(call) for call in calls)

    def _is_named(self, call: dict[str, object]) -> bool:
        name = call.get("name")
        return isinstance(name, str) and name in self._names and ("arguments" in call or "parameters" in call)
