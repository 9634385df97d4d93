"""One answer from several upstream streams ("parts"), with one choice per part.

Engines differ in their support of `n` and of lists of prompts: some reject them, some count usage per choice, some send
empty frames. With one request per choice they all behave alike.
"""

import msgspec

from welldone.core.events import ChoiceStart, Event, Failure, FieldLocation, KeepAlive, Text, UnknownFields, Usage


class FanOut(msgspec.Struct, frozen=True):
    """Distribution of choices over parts: prompt by prompt, choice by choice."""

    count: int = 1
    prompts: int = 1
    echo: tuple[str, ...] = ()
    """Text of each prompt, if the answer repeats the prompts."""

    @property
    def is_single(self) -> bool:
        """Whether one part is the whole answer, so that nothing needs to be merged."""
        return self.count == 1 and not self.echo

    def prompt_index(self, part: int) -> int:
        """Return the prompt of a part."""
        return part * self.prompts // self.count


class ChoiceMerger:
    """Merges the events of several parts."""

    def __init__(self, fan_out: FanOut, *, is_chat: bool) -> None:
        self._fan_out = fan_out
        self._is_chat = is_chat
        self._open_choices: set[int] = set()
        self.failure: Failure | None = None
        """The failure that ended the answer, if any."""

    def merge(self, events: list[Event], part: int) -> list[Event]:
        """Return the events of the answer for those of a part. Nothing follows a failure."""
        out: list[Event] = []
        for event in events:
            if self.failure is not None:
                break
            match event:
                case Usage():
                    pass  # the sum is sent at the end
                case KeepAlive():
                    out.append(event)
                case Failure():
                    self.failure = event
                    out.append(event)
                case UnknownFields(location=FieldLocation.CHUNK):
                    # It needs a later chunk, and the other choices may have sent all of theirs.
                    self._open_choice(part, out)
                    out.append(msgspec.structs.replace(event, index=part))
                case ChoiceStart():
                    self._open_choice(part, out)
                case _:
                    out.append(msgspec.structs.replace(event, index=part))
        return out

    def _open_choice(self, part: int, out: list[Event]) -> None:
        """Start a choice; in chat all of them, in order, since clients store choices in a list."""
        for index in range(self._fan_out.count) if self._is_chat else (part,):
            if index in self._open_choices:
                continue
            self._open_choices.add(index)
            out.append(ChoiceStart(index))
            if self._fan_out.echo and (echo := self._fan_out.echo[self._fan_out.prompt_index(index)]):
                out.append(Text(index, echo))


def sum_usage(usages: list[Usage], fan_out: FanOut) -> Usage:
    """Return the usage of the whole request: a prompt counts once, however many choices it has."""
    firsts = {fan_out.prompt_index(part): usage for part, usage in reversed(list(enumerate(usages)))}
    prompt = sum(usage.prompt_tokens for usage in firsts.values())
    completion = sum(usage.completion_tokens for usage in usages)
    uncounted = sum(usage.total_tokens - usage.prompt_tokens - usage.completion_tokens for usage in usages)
    extra_fields = dict(usages[0].extra_fields)
    for name in extra_fields:
        if name == "cost" or name.endswith("_details"):
            counted = list(firsts.values()) if name == "prompt_tokens_details" else usages
            extra_fields[name] = _sum_values([usage.extra_fields.get(name) for usage in counted])
    return Usage(prompt, completion, max(0, prompt + completion + uncounted), extra_fields)


def _sum_values(values: list[object]) -> object:
    """Sum numbers, also as members of objects; of other values, return the first that is not null."""
    known = [value for value in values if value is not None]
    numbers = [value for value in known if isinstance(value, int | float) and not isinstance(value, bool)]
    if known and len(numbers) == len(known):
        return sum(numbers)
    objects = [value for value in known if isinstance(value, dict)]
    if not objects:
        return known[0] if known else None
    names = dict.fromkeys(name for item in objects for name in item)
    return {name: _sum_values([item.get(name) for item in objects]) for name in names}
