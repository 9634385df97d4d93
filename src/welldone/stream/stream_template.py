"""Templates of whole streams: short answers of a known server are rewritten without reader, repair and writer.

The streams of one server for like requests differ only in id, time, texts, finish reason and counts. A `StreamTemplate`
is learnt from one of them: its frames with holes for these values, and what a pipeline sends for them. A
`TemplatedStream` recognises the frames of a later stream and fills in the values.

The invariant: what a `TemplatedStream` returns, and its state and result, are those of a pipeline with the same input.
Anything that it does not recognise ends it: `restore` makes a pipeline that has read all input so far. A template is
learnt only if it agrees with a pipeline on two streams with different values. The tests check the invariant for each
stream.
"""

import re
from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeAlias

import msgspec

from welldone.core import sse
from welldone.core.envelope import Envelope
from welldone.core.events import Usage
from welldone.core.lenient_json import is_verbatim_text
from welldone.core.repair_log import RepairEntry, RepairResult
from welldone.core.state import PartState
from welldone.core.template import NO_FRAMING, ChunkTemplate, TransferFraming
from welldone.dialects.chat.writer import split_chunk
from welldone.stream.pipeline import StreamPipeline

TEXTS_LIMIT = 32
"""Texts of one stream. For a longer answer the fast path is worth its start, and what was received must be stored."""
RECORDED_LIMIT_BYTES = 8192
"""Of a stream from which a template is learnt, without the texts that the fast path handles."""
CACHED_TEMPLATES = 256
"""A server has few models, and their requests few kinds of streams."""
_LEARNING_ATTEMPTS = 8  # in a row, for streams that differ in more than their values
_NUMBERS_LIMIT = 128  # of a usage frame
_DONE = sse.DONE.removesuffix(sse.FRAME_END)
_TIME_RULE = "env-created-constant"

# A hole stands for a value that was left out of a frame: a frame with holes is a format (`%(id)b`). The name of a hole
# is that of the type of its value; numbers have a number too.
_ID, _CREATED, _REASON, _TEXT = b"id", b"created", b"reason", b"text"
_COUNTS = (b"prompt_tokens", b"completion_tokens", b"total_tokens")
_INTEGER, _FLOAT = rb"(0|[1-9][0-9]{0,14})", rb"((?:0|[1-9][0-9]{0,14})\.[0-9]{1,17})"
_PATTERNS = {
    _ID: rb"([A-Za-z0-9_-]{1,128})",
    _CREATED: rb"([1-9][0-9]{0,9})",
    _REASON: rb"(stop|length)",
    _TEXT: rb'((?:[^"\\]++|\\.)++)',  # possessive: else each byte would be kept for backtracking
    b"float": _FLOAT,
}
_HOLE = re.compile(rb"%%|%\\\((([a-z_]+)[0-9]*)\\\)b")  # of an escaped format
_TEXT_HOLE = b"%(text)b"
_ID_FIELD = re.compile(rb'("id": ?")' + _PATTERNS[_ID] + rb'"')
_CREATED_FIELD = re.compile(rb'("created": ?)' + _PATTERNS[_CREATED] + rb"(?![0-9.eE])")
_REASON_FIELD = re.compile(rb'("finish_reason": ?")' + _PATTERNS[_REASON] + rb'(?=")')
_NUMBER_FIELD = re.compile(rb'("([^"\\]*)": ?)(?:' + _INTEGER + b"|" + _FLOAT + rb")(?![0-9.eE])")

_Values: TypeAlias = dict[bytes, bytes]
"""Values by the name of their hole."""


class _FrameTemplate(NamedTuple):
    """A frame with holes, without the blank line at its end."""

    received: bytes
    pattern: re.Pattern[bytes]
    names: list[bytes]
    """The holes of the pattern."""
    next_state: PartState
    sent: bytes = b""
    """Format of what is sent for it."""


class StreamTemplate(NamedTuple):
    """The frames of a stream, and what is sent for them."""

    frames: dict[PartState, tuple[_FrameTemplate, ...]]
    """The frames that may come next."""
    end: bytes
    """Format of what is sent at the end."""
    usage_fields: bytes
    """Format of the members of the usage beside the counts, as JSON; empty if there are none."""
    repairs: tuple[RepairEntry, ...]
    """Violations, all of them in the first two frames."""
    allows_new_times: bool = False
    """Whether `created` may change within a stream: llama.cpp sends the time of each chunk."""


class TemplatedStream:
    """A stream that follows a template. `make_pipeline` makes a pipeline for it, configured."""

    def __init__(self, template: StreamTemplate, make_pipeline: Callable[[], StreamPipeline]) -> None:
        self.state: PartState = PartState.WAITING
        """How far the stream has come, as in a pipeline."""
        self.has_content: bool = False
        """Whether the last input had content."""
        self.usage: Usage | None = None
        """Usage reported by the server."""
        self.is_overlong: bool = False
        """Whether it has too many texts; then it may still follow the template."""
        self._template = template
        self._make_pipeline = make_pipeline
        self._received: list[tuple[TransferFraming, bytes]] = []
        self._text_count = 0
        self._first_text = b""
        self._role_bytes = 0
        self._frame_count = self._byte_count = 0  # before the current frame
        self._values: _Values = {}
        self._time = b""  # `created` of the current frame
        self._time_repair: RepairEntry | None = None
        self._texts: ChunkTemplate | None = None  # for texts with the current time
        self._is_closed = False
        self._framing = NO_FRAMING

    def feed(self, data: bytes) -> bytes | None:
        """Return the bytes to send; None if the data does not follow the template: then feed it to `restore`."""
        *frames, rest = data.split(sse.FRAME_END)
        if rest:
            return None
        sent: list[bytes] = []
        text_count = self._text_count
        for frame in frames:
            template = self._recognise(frame)
            if template is None:
                return None
            sent.append(template.sent % self._values)
            self.state = template.next_state
            self._count_frame(len(frame) + len(sse.FRAME_END))
        self.has_content = self._text_count > text_count
        self._received.append((NO_FRAMING, data))
        return b"".join(sent)

    def use_framing(self, framing: TransferFraming) -> None:
        """Expect and add transfer framing in `rewrite`."""
        self._framing, self._texts = framing, None

    def rewrite(self, data: bytes) -> bytes | None:
        """Return the bytes to send for a text with its transfer framing; None if `feed` must read the frame."""
        # The second text tells whether texts are cumulative.
        if self.state is not PartState.ANSWERING or not 2 <= self._text_count < TEXTS_LIMIT:
            return None
        texts = self._texts or self._make_texts()
        sent = texts.rewrite(data)
        if sent is not None:
            self._text_count += 1
            self._count_frame(texts.last_bytes)
            self.has_content = True
            self._received.append((self._framing, data))
        return sent

    def close(self) -> bytes | None:
        """Return the bytes to send at the end; None if the stream is not complete: then close `restore`."""
        if self.state is not PartState.DONE:
            return None
        self._is_closed = True
        return self._template.end % self._values

    def restore(self) -> StreamPipeline:
        """Return a pipeline that has read what the stream has received. It replaces this stream, which ends here."""
        self.state = PartState.CUT
        pipeline = self._make_pipeline()
        for framing, data in self._received:
            before, after = framing.received_affixes(data) or (b"", b"")
            pipeline.feed(data[len(before) : len(data) - len(after)])
        if self._is_closed:
            pipeline.close()
        return pipeline

    @property
    def result(self) -> RepairResult:
        """What is known of the answer."""
        repairs = [
            msgspec.structs.replace(entry, byte=self._role_bytes if entry.frame > 1 else 0)
            for entry in self._template.repairs
            if entry.frame <= self._frame_count
        ]
        if self._time_repair is not None:  # a chunk is read after its envelope
            number = sum(entry.frame < self._time_repair.frame for entry in repairs)
            repairs.insert(number, self._time_repair)
        return RepairResult(self.usage, None, repairs)

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """The finish reason, once it was received."""
        return (self._values[_REASON].decode(),) if _REASON in self._values else ()

    def agrees(self, sent: bytes, pipeline: StreamPipeline, expected: bytes) -> bool:
        """Whether output, state and result are those of a pipeline with the same input."""
        # While `rewrite` is set, the log of the pipeline lacks the frames of the fast path.
        has_same_result = pipeline.fast_path.rewrite is not None or pipeline.result == self.result
        is_same = (sent, self.state, self.has_content) == (expected, pipeline.part_state(0), pipeline.has_content)
        return is_same and has_same_result

    def _recognise(self, frame: bytes) -> _FrameTemplate | None:
        """Return the template that a frame follows, and store its values."""
        for template in self._template.frames.get(self.state, ()):
            match = template.pattern.fullmatch(frame)
            if match is not None:
                values = dict(zip(template.names, match.groups(), strict=True))
                return template if self._accepts(template, values) else None
        return None

    def _accepts(self, template: _FrameTemplate, values: _Values) -> bool:
        time, text = values.pop(_CREATED, self._time), values.pop(_TEXT, None)
        known = self._values
        if time != self._time:
            if known and not self._template.allows_new_times:
                return False
            self._time, self._texts = time, None
            known.setdefault(_CREATED, time)  # the first one is sent
        if any(known.setdefault(name, value) != value for name, value in values.items()):
            return False
        if text is not None:
            known[_TEXT] = text
            return self._accepts_text(text)
        if template.next_state is PartState.FINISHED_WITH_USAGE:
            return self._accepts_usage(values)
        return template.next_state is not PartState.FINISHED or self._text_count > 0

    def _accepts_text(self, text: bytes) -> bool:
        """Count a text; False if it cannot be copied, looks cumulative, or is one too many."""
        if not is_verbatim_text(text):
            return False
        self._text_count += 1
        if self._text_count == 1:
            self._first_text = text
        self.is_overlong = self._text_count > TEXTS_LIMIT
        return not self.is_overlong and not (self._text_count == 2 and text.startswith(self._first_text))

    def _accepts_usage(self, values: _Values) -> bool:
        prompt, completion, total = (int(values[name]) for name in _COUNTS)
        floats = [value for name, value in values.items() if name.startswith(b"float")]
        # Floats that are not in their shortest form would change.
        if not 0 < prompt == total - completion or any(msgspec.json.encode(float(value)) != value for value in floats):
            return False
        fields = self._template.usage_fields
        self.usage = Usage(prompt, completion, total, msgspec.json.decode(fields % self._values) if fields else {})
        return True

    def _count_frame(self, size: int) -> None:
        self._frame_count += 1
        if self._frame_count == 1:
            self._role_bytes = size
        if self._time != self._values[_CREATED] and self.state is not PartState.DONE:
            if self._time_repair is None:
                observed = self._time.decode()
                self._time_repair = RepairEntry(_TIME_RULE, 0, self._frame_count, self._byte_count, observed)
            self._time_repair.count += 1
        self._byte_count += size

    def _make_texts(self) -> ChunkTemplate:
        text = self._template.frames[PartState.ANSWERING][0]
        before, _, after = text.received.partition(_TEXT_HOLE)
        sent_before, _, sent_after = text.sent.partition(_TEXT_HOLE)
        values, known = {**self._values, _CREATED: self._time}, self._values
        received = before % values, after % values + sse.FRAME_END
        self._texts = ChunkTemplate(received, (sent_before % known, sent_after % known), self._framing)
        return self._texts


class TemplateSlot:
    """The template for like requests, once it is learnt."""

    def __init__(self) -> None:
        self._template: StreamTemplate | None = None
        self._attempts = _LEARNING_ATTEMPTS

    @property
    def is_learning(self) -> bool:
        """Whether `learn` is of use."""
        return self._template is None and self._attempts > 0

    def begin(self, make_pipeline: Callable[[], StreamPipeline]) -> TemplatedStream | None:
        """Return a stream that follows the template, if there is one. `make_pipeline` makes the pipeline for it."""
        return None if self._template is None else TemplatedStream(self._template, make_pipeline)

    def learn(self, received: bytes, make_pipeline: Callable[[Envelope], StreamPipeline]) -> None:
        """Learn from a complete stream; see `learn_stream_template`."""
        self._attempts -= 1
        self._template = learn_stream_template(received, make_pipeline)

    def report(self, *, is_match: bool) -> None:
        """Report whether a stream followed the template. If not, the server may have changed: learn again."""
        if is_match:
            self._attempts = _LEARNING_ATTEMPTS
        else:
            self._template = None


class TemplateCache:
    """Templates by key, which has all that the output of a pipeline depends on. Their number is limited."""

    def __init__(self) -> None:
        self._slots: dict[Hashable, TemplateSlot] = {}

    def slot(self, key: Hashable) -> TemplateSlot:
        """Return the slot for a key. The oldest one is dropped for a new one at the limit."""
        slot = self._slots.get(key)
        if slot is None:
            if len(self._slots) >= CACHED_TEMPLATES:
                del self._slots[next(iter(self._slots))]
            slot = self._slots[key] = TemplateSlot()
        return slot


class _Example(NamedTuple):
    """Values for the holes of a stream."""

    values: _Values
    texts: tuple[bytes, ...]
    number: int
    """The numbers count up from here."""
    fallback: Envelope


# Each value of the first example but the reason occurs nowhere else in its stream.
_FIRST_EXAMPLE = _Example(
    {_ID: b"qZ8id8Zq", _CREATED: b"1987654321", _REASON: b"stop"},
    (b"qZ8text8Zq",),
    798765401,
    Envelope("1", 1, "unknown"),
)
_SECOND_EXAMPLE = _Example(
    {_ID: b"id_2-", _CREATED: b"1700000002", _REASON: b"length"},
    (b"one", b" two", b' \\"3\\"'),
    31,
    Envelope("2", 2, "unknown"),
)


def learn_stream_template(
    received: bytes, make_pipeline: Callable[[Envelope], StreamPipeline]
) -> StreamTemplate | None:
    """Learn from a chat stream: role, texts, finish, perhaps usage, and the end marker. None if that is not possible.

    Texts but the first may be missing. `make_pipeline` makes the pipeline for a stream, from its fallback envelope.
    """
    frames = _read_frames(received)
    template = None if frames is None else _make_template(frames, make_pipeline)
    if frames is None or template is None:
        return None
    (first, _), (stream, _) = (_example_stream(frames, example) for example in (_FIRST_EXAMPLE, _SECOND_EXAMPLE))
    has_agreed = _agrees(template, first, make_pipeline(_FIRST_EXAMPLE.fallback))
    if not (has_agreed and _agrees(template, stream, make_pipeline(_SECOND_EXAMPLE.fallback))):
        return None
    for number in range(2, len(stream)):
        stream[number] = stream[number].replace(_SECOND_EXAMPLE.values[_CREATED], b"170000001%d" % (number // 2))
    has_new_times = template._replace(allows_new_times=True)
    return has_new_times if _agrees(has_new_times, stream, make_pipeline(_SECOND_EXAMPLE.fallback)) else template


def _read_frames(received: bytes) -> list[_FrameTemplate] | None:
    """Cut a stream into its kinds of frames: role, text, finish, perhaps usage, and the end marker."""
    frames = received.split(sse.FRAME_END)
    end = next((number for number, frame in enumerate(frames) if _REASON_FIELD.search(frame)), 0)
    has_hole = b"\0" in received or _TEXT_HOLE in received  # bytes that mark the hole of the text
    if end < 2 or frames[-2:] != [_DONE, b""] or len(frames) - end not in (3, 4) or has_hole:
        return None
    id_field = _ID_FIELD.search(frames[0])
    text = split_chunk(frames[1] + sse.FRAME_END)
    if id_field is None or text is None or not all(map(_CREATED_FIELD.search, frames[:-2])):
        return None
    numbers: list[bytes] = []

    def leave_out(frame: bytes) -> bytes:
        frame = frame.replace(b"%", b"%%").replace(id_field[0], id_field[1] + b'%(id)b"', 1)
        return _REASON_FIELD.sub(rb"\1%(reason)b", _CREATED_FIELD.sub(rb"\1%(created)b", frame, 1), 1)

    def leave_out_number(field: re.Match[bytes]) -> bytes:
        _, name, integer, _ = field.groups()
        if integer is None or name not in _COUNTS or name in numbers:
            name = (b"float%d" if integer is None else b"integer%d") % len(numbers)
        numbers.append(name)
        return field[1] + b"%%(%b)b" % name

    templates = [
        _make_frame(leave_out(frames[0]), PartState.ANSWERING),
        _make_frame(
            leave_out(b"\0".join(text)).removesuffix(sse.FRAME_END).replace(b"\0", _TEXT_HOLE), PartState.ANSWERING
        ),
        _make_frame(leave_out(frames[end]), PartState.FINISHED),
    ]
    if len(frames) - end == 4:
        usage = _NUMBER_FIELD.sub(leave_out_number, leave_out(frames[end + 1]))
        if len(numbers) > _NUMBERS_LIMIT or not set(_COUNTS).issubset(numbers):
            return None
        templates.append(_make_frame(usage, PartState.FINISHED_WITH_USAGE))
    return [*templates, _make_frame(_DONE, PartState.DONE)]


def _make_frame(received: bytes, next_state: PartState) -> _FrameTemplate:
    names: list[bytes] = []

    def pattern(hole: re.Match[bytes]) -> bytes:
        if hole[1] is None:
            return b"%"
        names.append(hole[1])
        return _PATTERNS.get(hole[2], _INTEGER)

    return _FrameTemplate(received, re.compile(_HOLE.sub(pattern, re.escape(received))), names, next_state)


def _example_stream(frames: list[_FrameTemplate], example: _Example) -> tuple[list[bytes], _Values]:
    """Return the frames of a stream with these values, and the values of its holes."""
    values = dict(example.values)
    for number, name in enumerate(frames[-2].names, example.number):
        values.setdefault(name, b"%d.5" % number if name.startswith(b"float") else b"%d" % number)
    prompt, completion, total = _COUNTS
    if total in values:
        values[total] = b"%d" % (int(values[prompt]) + int(values[completion]))
    role, text, *rest = [frame.received + sse.FRAME_END for frame in frames]
    texts = [text % {**values, _TEXT: example_text} for example_text in example.texts]
    return [role % values, *texts, *(frame % values for frame in rest)], values | {_TEXT: example.texts[0]}


def _make_template(
    frames: list[_FrameTemplate], make_pipeline: Callable[[Envelope], StreamPipeline]
) -> StreamTemplate | None:
    """Make a template from what a pipeline sends for the first example."""
    pipeline = make_pipeline(_FIRST_EXAMPLE.fallback)
    if not pipeline.parts[0].has_plain_text:
        return None
    stream, values = _example_stream(frames, _FIRST_EXAMPLE)
    sent_role, sent_text, *_ = map(pipeline.feed, stream)
    end, result = pipeline.close(), pipeline.result
    role, text, finish, *rest = frames
    is_one_text = sent_text.count(values[_TEXT]) == 1 and _TEXT_HOLE not in sent_text
    if not is_one_text or len(rest) != 1 + (result.usage is not None):
        return None
    del values[_REASON]

    def leave_out(sent: bytes) -> bytes:
        sent = _REASON_FIELD.sub(rb"\1%(reason)b", sent.replace(b"%", b"%%"))
        for name, value in values.items():
            sent = sent.replace(value, b"%%(%b)b" % name)
        return sent

    usage_fields = {} if result.usage is None else result.usage.extra_fields
    return StreamTemplate(
        frames={
            PartState.WAITING: (role._replace(sent=leave_out(sent_role)),),
            PartState.ANSWERING: (text._replace(sent=leave_out(sent_text)), finish),
            PartState.FINISHED: tuple(rest[:1]),
            PartState.FINISHED_WITH_USAGE: tuple(rest[1:]),
        },
        end=leave_out(end),
        usage_fields=leave_out(msgspec.json.encode(usage_fields)) if usage_fields else b"",
        repairs=tuple(result.repairs),
    )


def _agrees(template: StreamTemplate, frames: list[bytes], pipeline: StreamPipeline) -> bool:
    """Whether the template gives the same as a pipeline."""
    stream = TemplatedStream(template, lambda: pipeline)
    for data in frames:
        sent = stream.feed(data)
        if sent is None or not stream.agrees(sent, pipeline, pipeline.feed(data)):
            return False
    end = stream.close()
    return end is not None and stream.agrees(end, pipeline, pipeline.close())
