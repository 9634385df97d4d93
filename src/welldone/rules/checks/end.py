"""Checks of the end of a stream."""

from collections.abc import Iterator

from welldone.rules.heard import ReplyKind, TraceView
from welldone.rules.messages import StreamMessage
from welldone.rules.rule import Violation, RuleCheck
from welldone.wire import sse
from welldone.wire import faults

DONE_LINE = b"data: [DONE]"


def done_missing(view: TraceView) -> Iterator[Violation]:
    """The end of a successful stream where no sentinel was heard in any spelling."""
    if view.is_complete_stream and not view.done_messages:
        yield Violation(view.messages[-1], "the end of the stream", "data: [DONE]")


def _done_exact(view: TraceView) -> Iterator[Violation]:
    # Once for each frame: one frame may hold many.
    for number in dict.fromkeys(message.frame_number for message in view.done_messages):
        raw = view.frames[number - 1].raw
        if DONE_LINE not in sse.split_lines(raw):
            yield Violation(number, raw.decode("utf-8", "replace"), "data: [DONE]")


def _done_last(view: TraceView) -> Iterator[Violation]:
    if view.done_messages:
        for message in view.messages[_message_position(view.messages, view.done_messages[0]) + 1 :]:
            yield Violation(message, message.value.source, "nothing after [DONE]")


def _message_position(messages: list[StreamMessage], target: StreamMessage) -> int:
    return next(place for place, message in enumerate(messages) if message is target)


def _last_terminated(view: TraceView) -> Iterator[Violation]:
    if view.frames and not view.frames[-1].ended:
        raw = view.frames[-1].raw
        # A comment needs no empty line after it.
        if not all(line.startswith(b":") for line in sse.split_lines(raw)):
            yield Violation(len(view.frames), raw.decode("utf-8", "replace"), "an empty line after the last event")


def truncated_reply(view: TraceView) -> Iterator[Violation]:
    """The end of a whole reply that is not whole."""
    if view.is_truncated_reply:
        yield Violation(None, "the end of the connection before the end of the body", "the whole body, or an error")


def _early_eof(view: TraceView) -> Iterator[Violation]:
    yield from truncated_reply(view)
    if not view.done_messages:
        for choice in view.unfinished_choices:
            said = f"the end of the stream before a finish_reason for choice {choice.index}"
            yield Violation(choice.deltas[-1], said, "a finish_reason, or an error event, then data: [DONE]")


END_CHECKS = (
    RuleCheck(faults.end.DONE_SENT, done_missing, required_fields=("end",)),
    RuleCheck(faults.end.DONE_EXACT, _done_exact),
    RuleCheck(faults.end.DONE_LAST, _done_last),
    RuleCheck(faults.end.LAST_EVENT_TERMINATED, _last_terminated),
    RuleCheck(faults.end.NO_EARLY_EOF, _early_eof, (ReplyKind.STREAM, ReplyKind.WHOLE), required_fields=("end",)),
)
