"""Checks of the end of a stream."""

from collections.abc import Iterator

from welldone.rules.heard import Form, Heard
from welldone.rules.messages import Message
from welldone.rules.rule import Place, Rule
from welldone.wire import sse
from welldone.wire.faults import end as faults

SENTINEL = b"data: [DONE]"


def done_missing(heard: Heard) -> Iterator[Place]:
    """The end of a successful stream where no sentinel was heard in any spelling."""
    if heard.is_whole and not heard.dones:
        yield Place(heard.messages[-1], "the end of the stream", "data: [DONE]")


def _done_exact(heard: Heard) -> Iterator[Place]:
    # Once for each frame: one frame may hold many.
    for number in dict.fromkeys(message.number for message in heard.dones):
        raw = heard.frames[number - 1].raw
        if SENTINEL not in sse.lines(raw):
            yield Place(number, raw.decode("utf-8", "replace"), "data: [DONE]")


def _done_last(heard: Heard) -> Iterator[Place]:
    if heard.dones:
        for message in heard.messages[_place(heard.messages, heard.dones[0]) + 1 :]:
            yield Place(message, message.value.source, "nothing after [DONE]")


def _place(messages: list[Message], wanted: Message) -> int:
    return next(place for place, message in enumerate(messages) if message is wanted)


def _last_terminated(heard: Heard) -> Iterator[Place]:
    if heard.frames and not heard.frames[-1].ended:
        raw = heard.frames[-1].raw
        # A comment needs no empty line after it.
        if not all(line.startswith(b":") for line in sse.lines(raw)):
            yield Place(len(heard.frames), raw.decode("utf-8", "replace"), "an empty line after the last event")


def broken_off(heard: Heard) -> Iterator[Place]:
    """The end of a whole reply that is not whole."""
    if heard.is_broken_off:
        yield Place(None, "the end of the connection before the end of the body", "the whole body, or an error")


def _early_eof(heard: Heard) -> Iterator[Place]:
    yield from broken_off(heard)
    if not heard.dones:
        for choice in heard.unfinished:
            said = f"the end of the stream before a finish_reason for choice {choice.key}"
            yield Place(choice.parts[-1], said, "a finish_reason, or an error event, then data: [DONE]")


RULES = (
    Rule(faults.DONE_SENT, done_missing, needs=("end",)),
    Rule(faults.DONE_EXACT, _done_exact),
    Rule(faults.DONE_LAST, _done_last),
    Rule(faults.LAST_EVENT_TERMINATED, _last_terminated),
    Rule(faults.NO_EARLY_EOF, _early_eof, (Form.STREAM, Form.WHOLE), needs=("end",)),
)
