"""Texts that should be JSON, kept until they are whole and can be judged. They go out as they are all the same."""

from welldone.wire.budget import is_costly
from welldone.wire.events import Event, Finish, Refusal, Text, ToolCall
from welldone.wire.lenient import NOT_JSON, by_grammar

LIMIT_BYTES = 4 * 1024 * 1024
"""Of all that one stream keeps at a time: a million tokens. A text that does not fit is not judged."""


def is_json(text: str, *, is_object: bool = False) -> bool:
    """Whether a text is JSON, and an object where it should be one."""
    value = by_grammar(text.encode())
    return isinstance(value, dict) if is_object else value is not NOT_JSON


class Room:
    """How much may still be kept."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.left_bytes = limit_bytes


class Kept:
    """One text as it comes."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._text: bytearray | None = bytearray()  # None where it did not fit, or has been judged

    def add(self, text: str) -> None:
        """More of it."""
        if self._text is None:
            return
        data = text.encode()
        if len(data) > self._room.left_bytes:
            self._drop(self._text)
            return
        self._room.left_bytes -= len(data)
        self._text += data

    def take(self) -> str | None:
        """The text, which is not kept any more; None where it did not fit, or was taken."""
        if self._text is None:
            return None
        text = self._text.decode()
        self._drop(self._text)
        return text

    def is_broken(self, *, is_object: bool) -> bool:
        """Whether it is no JSON, or no object where it should be one. Asked once: then it is not kept any more."""
        text = self.take()
        # To judge a costly text would hold up other streams.
        return text is not None and not is_costly(text.encode()) and not is_json(text, is_object=is_object)

    def _drop(self, text: bytearray) -> None:
        self._room.left_bytes += len(text)
        self._text = None


class JsonAnswers:
    """Choices whose text should be JSON. `is_object`: no other JSON than an object will do."""

    def __init__(self, *, is_object: bool) -> None:
        self.broken = 0
        """How many were no such thing, though the model had said all it wanted."""
        self._is_object = is_object
        self._room = Room()
        self._texts: dict[int, Kept] = {}
        self._others: set[int] = set()  # choices that are a refusal, or calls

    def hear(self, events: list[Event]) -> None:
        """What is said."""
        for event in events:
            match event:
                case Text(index=index, text=text):
                    self._text(index).add(text)
                case Refusal(index=index) | ToolCall(index=index):
                    self._others.add(index)
                case Finish(index=index, reason="stop") if index not in self._others:
                    self.broken += self._text(index).is_broken(is_object=self._is_object)
                case _:
                    pass

    def _text(self, index: int) -> Kept:
        return self._texts.setdefault(index, Kept(self._room))
