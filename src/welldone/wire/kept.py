"""Texts that should be JSON, kept until they are whole and can be judged. They go out as they are all the same."""

from welldone.wire.budget import exceeds_blocking_budget
from welldone.wire.events import Event, Finish, Refusal, Text, ToolCall
from welldone.wire.lenient import NOT_JSON, parse_by_grammar

JSON_TEXT_LIMIT_BYTES = 4 * 1024 * 1024
"""Of all that one stream keeps at a time: a million tokens. A text that does not fit is not judged."""


def is_valid_json(text: str, *, is_object: bool = False) -> bool:
    """Whether a text is JSON, and an object where it should be one."""
    value = parse_by_grammar(text.encode())
    return isinstance(value, dict) if is_object else value is not NOT_JSON


class ByteBudget:
    """How much may still be kept."""

    def __init__(self, limit_bytes: int = JSON_TEXT_LIMIT_BYTES) -> None:
        self.remaining_bytes = limit_bytes


class BufferedText:
    """One text as it comes."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._text: bytearray | None = bytearray()  # None where it did not fit, or has been judged

    def add(self, text: str) -> None:
        """More of it."""
        if self._text is None:
            return
        data = text.encode()
        if len(data) > self._budget.remaining_bytes:
            self._drop(self._text)
            return
        self._budget.remaining_bytes -= len(data)
        self._text += data

    def take(self) -> str | None:
        """The text, which is not kept any more; None where it did not fit, or was taken."""
        if self._text is None:
            return None
        text = self._text.decode()
        self._drop(self._text)
        return text

    def take_is_invalid(self, *, is_object: bool) -> bool:
        """Whether it is no JSON, or no object where it should be one. Asked once: then it is not kept any more."""
        text = self.take()
        # To judge a costly text would hold up other streams.
        return (
            text is not None
            and not exceeds_blocking_budget(text.encode())
            and not is_valid_json(text, is_object=is_object)
        )

    def _drop(self, text: bytearray) -> None:
        self._budget.remaining_bytes += len(text)
        self._text = None


class JsonOutputChecker:
    """Choices whose text should be JSON. `is_object`: no other JSON than an object will do."""

    def __init__(self, *, is_object: bool) -> None:
        self.invalid_count = 0
        """How many were no such thing, though the model had said all it wanted."""
        self._is_object = is_object
        self._budget = ByteBudget()
        self._texts: dict[int, BufferedText] = {}
        self._skipped_choices: set[int] = set()  # choices that are a refusal, or calls

    def observe(self, events: list[Event]) -> None:
        """What is said."""
        for event in events:
            match event:
                case Text(index=index, text=text):
                    self._text(index).add(text)
                case Refusal(index=index) | ToolCall(index=index):
                    self._skipped_choices.add(index)
                case Finish(index=index, reason="stop") if index not in self._skipped_choices:
                    self.invalid_count += self._text(index).take_is_invalid(is_object=self._is_object)
                case _:
                    pass

    def _text(self, index: int) -> BufferedText:
        return self._texts.setdefault(index, BufferedText(self._budget))
