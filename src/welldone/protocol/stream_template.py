"""Templates of whole streams: short answers of a known server are rewritten without reader, repair and writer.

The streams of one server for like requests differ only in id, time, texts and counts. A `StreamTemplate` is learnt from
one of them: its frames with these values left out, and what a pipeline sends for them. A `TemplatedStream` recognises
the frames of a later stream and fills in the values.

The invariant: what a `TemplatedStream` returns, and its state and result, are those of a pipeline with the same input.
Anything that it does not recognise ends it: `restore` makes a pipeline that has read all input so far. A template is
learnt only if it agrees with a pipeline on two streams with different values. The tests check the invariant for each
stream.
"""

import re
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, TypeAlias

import msgspec

from welldone.protocol import sse
from welldone.protocol.dialects.base import Affixes
from welldone.protocol.dialects.chat import split_around_text
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import Usage
from welldone.protocol.fast_path import NO_FRAMING, TransferFraming
from welldone.protocol.lenient_json import LITERAL_BYTES, is_verbatim_text
from welldone.protocol.pipeline import StreamPipeline
from welldone.protocol.repair_log import RepairEntry, RepairResult
from welldone.protocol.state import PartState

TEXTS_LIMIT = 32
"""Texts of one stream. For a longer answer the fast path is worth its start, and what was received must be stored."""
RECORDED_LIMIT_BYTES = 8192
"""Of a stream from which a template is learnt, without the texts that the fast path handles."""
CACHED_TEMPLATES = 256
"""A server has few models, and their requests few kinds of streams."""
_LEARNING_ATTEMPTS = 8  # in a row, for streams that differ in more than their values
_DONE = sse.DONE.removesuffix(sse.FRAME_END)
_REASONS = (b'"stop"', b'"length"')
_NO_AFFIXES: Affixes = (b"", b"")

# A hole stands for a value that was left out of a frame: NUL, which JSON does not contain, and the name of the value.
_HOLE = re.compile(rb"\0(.)", re.DOTALL)
_ID, _CREATED = b"i", b"c"
_FIRST_NUMBER, _NUMBERS_LIMIT = 0x80, 0x80  # the numbers beside the usage have names too
_ID_PATTERN, _CREATED_PATTERN = rb"([A-Za-z0-9_-]{1,128})", rb"([1-9][0-9]{0,9})"
_INTEGER_PATTERN, _FLOAT_PATTERN = rb"(0|[1-9][0-9]{0,14})", rb"((?:0|[1-9][0-9]{0,14})\.[0-9]{1,17})"
_ID_FIELD = re.compile(rb'"id": ?"' + _ID_PATTERN + rb'"')
_CREATED_FIELD = re.compile(rb'"created": ?' + _CREATED_PATTERN + rb"(?![0-9.eE])")
_NUMBER_FIELD = re.compile(rb'"([^"\\]*)": ?(?:' + _INTEGER_PATTERN + b"|" + _FLOAT_PATTERN + rb")(?![0-9.eE])")
_FINISH_FIELD = re.compile(rb'"finish_reason": ?("stop"|"length")')
_TIME_RULE = "env-created-constant"
_COUNT_FIELDS = (b"prompt_tokens", b"completion_tokens", b"total_tokens")

_Values: TypeAlias = dict[bytes, bytes]
"""The values of one stream by name."""


class _UsageTemplate(NamedTuple):
    received: re.Pattern[bytes]
    names: tuple[bytes, ...]
    counts: tuple[bytes, ...]
    """Names of prompt, completion and total tokens."""
    floats: tuple[bytes, ...]
    extra_fields: bytes
    """Format of the other members, as JSON; empty if there are none."""


class StreamTemplate(NamedTuple):
    """Frames without the blank line at their end, as patterns, or as formats to be filled with the values."""

    role: re.Pattern[bytes]
    role_names: tuple[bytes, ...]
    text: Affixes
    finishes: tuple[tuple[bytes, bytes], ...]
    """Each frame with a finish reason, and all that is sent at the end of its stream."""
    usage: _UsageTemplate | None
    sent_role: bytes
    sent_text: Affixes
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
        self._received: list[tuple[Affixes, bytes]] = []  # texts without their frame, which all have in common
        self._text_count = 0
        self._first_text = b""
        self._role_bytes = 0
        self._frame_count = self._byte_count = 0  # before the current frame
        self._values: _Values = {}
        self._time = b""  # `created` of the current frame
        self._time_repair: RepairEntry | None = None
        self._text = self._text_frame = self._sent_text = _NO_AFFIXES
        self._end = b""  # format of what is sent at the end
        self._finish = b""  # the frame with the finish reason
        self._is_closed = False
        self._framing = NO_FRAMING

    def feed(self, data: bytes) -> bytes | None:
        """Return the bytes to send; None if the data does not follow the template: then feed it to `restore`."""
        frames = data.split(sse.FRAME_END)
        if frames.pop():
            return None
        sent: list[bytes] = []
        text_count = self._text_count
        for frame in frames:
            if self.state is PartState.ANSWERING:
                is_known = self._read_answer(frame, sent)
                if not (is_known or (self._follow_time(frame) and self._read_answer(frame, sent))):
                    return None
            elif not (self._read_role(frame, sent) if self.state is PartState.WAITING else self._read_end(frame)):
                return None
            self._count_frame(len(frame) + len(sse.FRAME_END))
        self.has_content = self._text_count > text_count
        self._received.append((_NO_AFFIXES, data))
        return b"".join(sent)

    def use_framing(self, framing: TransferFraming) -> None:
        """Expect and add transfer framing in `rewrite`."""
        self._framing = framing

    def rewrite(self, data: bytes) -> bytes | None:
        """Return the bytes to send for a text with its transfer framing; None if `feed` must read the frame."""
        # The second text tells whether texts are cumulative.
        if self.state is not PartState.ANSWERING or not 2 <= self._text_count < TEXTS_LIMIT:
            return None
        framing = self._framing.received_affixes(data)
        if framing is None:
            return None
        (before, after), (prefix, suffix), (sent_prefix, sent_suffix) = framing, self._text, self._sent_text
        end = len(data) - len(after) - len(sse.FRAME_END)
        text = data[len(before) + len(prefix) : end - len(suffix)]
        is_text = text and data.startswith(prefix, len(before)) and data.endswith(suffix + sse.FRAME_END + after)
        if not is_text or (text.translate(None, LITERAL_BYTES) and not is_verbatim_text(text)):
            return None
        self._text_count += 1
        self._count_frame(len(data) - len(before) - len(after))
        self.has_content = True
        self._received.append((self._text_frame, text))
        sent_before, sent_after = self._framing.sent_affixes(len(sent_prefix) + len(text) + len(sent_suffix))
        return b"".join((sent_before, sent_prefix, text, sent_suffix, sent_after))

    def close(self) -> bytes | None:
        """Return the bytes to send at the end; None if the stream is not complete: then close `restore`."""
        if self.state is not PartState.DONE:
            return None
        self._is_closed = True
        return self._end % self._values

    def restore(self) -> StreamPipeline:
        """Return a pipeline that has read what the stream has received. It replaces this stream, which ends here."""
        self.state = PartState.CUT
        pipeline = self._make_pipeline()
        for (before, after), data in self._received:
            pipeline.feed(before + data + after)
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
        return tuple([reason.decode().strip('"') for reason in _FINISH_FIELD.findall(self._finish)])

    def agrees(self, sent: bytes, pipeline: StreamPipeline, expected: bytes) -> bool:
        """Whether output, state and result are those of a pipeline with the same input."""
        # While `rewrite` is set, the log of the pipeline lacks the frames of the fast path.
        has_same_result = pipeline.fast_path.rewrite is not None or pipeline.result == self.result
        is_same = (sent, self.state, self.has_content) == (expected, pipeline.part_state(0), pipeline.has_content)
        return is_same and has_same_result

    def _read_role(self, frame: bytes, sent: list[bytes]) -> bool:
        template = self._template
        found = template.role.fullmatch(frame)
        if found is None:
            return False
        values = self._values = dict(zip(template.role_names, found.groups(), strict=True))
        prefix, suffix = template.sent_text
        self._sent_text = prefix % values, suffix % values
        self._set_time(values[_CREATED])
        self._role_bytes = len(frame) + len(sse.FRAME_END)
        sent.append(template.sent_role % values)
        self.state = PartState.ANSWERING
        return True

    def _set_time(self, created: bytes) -> None:
        self._time = created
        prefix, suffix = self._template.text
        values = self._received_values
        self._text = prefix % values, suffix % values
        self._text_frame = self._text[0], self._text[1] + sse.FRAME_END

    @property
    def _received_values(self) -> _Values:
        return {**self._values, _CREATED: self._time}

    def _follow_time(self, frame: bytes) -> bool:
        """Use the time of a frame; False if it is the same as before."""
        found = _CREATED_FIELD.search(frame)
        if found is None or found[1] == self._time or not self._template.allows_new_times:
            return False
        self._set_time(found[1])
        return True

    def _count_frame(self, size: int) -> None:
        self._frame_count += 1
        if self._time != self._values[_CREATED] and self.state is not PartState.DONE:
            if self._time_repair is None:
                observed = self._time.decode()
                self._time_repair = RepairEntry(_TIME_RULE, 0, self._frame_count, self._byte_count, observed)
            self._time_repair.count += 1
        self._byte_count += size

    def _read_answer(self, frame: bytes, sent: list[bytes]) -> bool:
        """Read a text or the finish."""
        prefix, suffix = self._text
        text = frame[len(prefix) : -len(suffix)]
        if not (text and frame.startswith(prefix) and frame.endswith(suffix)):
            return self._read_finish(frame)
        sent += self._sent_text[0], text, self._sent_text[1]
        return self._accepts_text(text)

    def _accepts_text(self, text: bytes) -> bool:
        """Count a text; False if it cannot be copied, looks cumulative, or is one too many."""
        if text.translate(None, LITERAL_BYTES) and not is_verbatim_text(text):
            return False
        self._text_count += 1
        if self._text_count == 1:
            self._first_text = text
        self.is_overlong = self._text_count > TEXTS_LIMIT
        return not self.is_overlong and not (self._text_count == 2 and text.startswith(self._first_text))

    def _read_finish(self, frame: bytes) -> bool:
        for finish, end in self._template.finishes if self._text_count else ():
            if frame == finish % self._received_values:
                self.state, self._end, self._finish = PartState.FINISHED, end, frame
                return True
        return False

    def _read_end(self, frame: bytes) -> bool:
        """Read the usage, then the end marker."""
        usage = self._template.usage
        if self.state is PartState.FINISHED and usage is not None:
            return self._read_usage(frame, usage)
        if frame != _DONE or self.state is PartState.DONE:
            return False
        self.state = PartState.DONE
        return True

    def _read_usage(self, frame: bytes, usage: _UsageTemplate) -> bool:
        found = usage.received.fullmatch(frame)
        if found is None:
            return False
        values = dict(zip(usage.names, found.groups(), strict=True))
        prompt, completion, total = (int(values[name]) for name in usage.counts)
        is_same = values.get(_ID) == self._values[_ID] and (values[_CREATED] == self._time or self._follow_time(frame))
        is_right = is_same and prompt > 0 and prompt + completion == total
        # Floats that are not in their shortest form would change.
        if not is_right or any(msgspec.json.encode(float(values[name])) != values[name] for name in usage.floats):
            return False
        self._values = {**values, **self._values}
        extra_fields = msgspec.json.decode(usage.extra_fields % values) if usage.extra_fields else {}
        self.usage = Usage(prompt, completion, total, extra_fields)
        self.state = PartState.FINISHED_WITH_USAGE
        return True


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


class _Shape(NamedTuple):
    """Received frames with holes."""

    role: bytes
    text: Affixes
    finish: bytes
    usage: bytes
    """Empty if there is none."""
    numbers: dict[bytes, bytes]
    """Numbers of the usage frame, and their patterns."""
    counts: tuple[bytes, ...]

    def frames(self, texts: Iterable[bytes], values: _Values) -> list[bytes]:
        """Return the frames of a stream with these values."""
        before, after = self.text
        frames = [self.role, *(before + text + after for text in texts), self.finish]
        frames += [self.usage] if self.usage else []
        return [*(_HOLE.sub(lambda hole: values[hole[1]], frame) + sse.FRAME_END for frame in frames), sse.DONE]


class _Example(NamedTuple):
    """Values for the holes."""

    id: bytes
    created: bytes
    number: int
    """The numbers count up from here."""
    texts: tuple[bytes, ...]
    fallback: Envelope

    def values(self, shape: _Shape) -> _Values:
        """Return the values by name."""
        values = {_ID: self.id, _CREATED: self.created}
        for number, (name, pattern) in enumerate(shape.numbers.items(), self.number):
            values[name] = b"%d.5" % number if pattern is _FLOAT_PATTERN else b"%d" % number
        if shape.counts:
            prompt, completion, total = shape.counts
            values[total] = b"%d" % (int(values[prompt]) + int(values[completion]))
        return values


# Each value of the first example occurs nowhere else in its stream.
_FIRST_EXAMPLE = _Example(b"qZ8id8Zq", b"1987654321", 798765401, (b"qZ8text8Zq",), Envelope("1", 1, "unknown"))
_SECOND_EXAMPLE = _Example(b"id_2-", b"1700000002", 31, (b"one", b" two", b' \\"3\\"'), Envelope("2", 2, "unknown"))


def learn_stream_template(
    received: bytes, make_pipeline: Callable[[Envelope], StreamPipeline]
) -> StreamTemplate | None:
    """Learn from a chat stream: role, texts, finish, perhaps usage, and the end marker. None if that is not possible.

    Texts but the first may be missing. `make_pipeline` makes the pipeline for a stream, from its fallback envelope.
    """
    shape = _read_shape(received)
    if shape is None:
        return None
    learnt: StreamTemplate | None = None
    for reason in _REASONS:
        field = _FINISH_FIELD.search(shape.finish)
        assert field is not None
        other = shape._replace(finish=shape.finish[: field.start(1)] + reason + shape.finish[field.end(1) :])
        template = _make_template(other, make_pipeline)
        if template is None or not all(
            _agrees(template, _example_frames(other, example), make_pipeline(example.fallback))
            for example in (_FIRST_EXAMPLE, _SECOND_EXAMPLE)
        ):
            continue
        frames = _example_frames(other, _SECOND_EXAMPLE)
        for number in range(2, len(frames)):
            frames[number] = frames[number].replace(_SECOND_EXAMPLE.created, b"170000001%d" % (number // 2))
        has_new_times = template._replace(allows_new_times=True)
        if _agrees(has_new_times, frames, make_pipeline(_SECOND_EXAMPLE.fallback)):
            template = has_new_times
        learnt = template._replace(finishes=(*(() if learnt is None else learnt.finishes), *template.finishes))
    return learnt


def _example_frames(shape: _Shape, example: _Example) -> list[bytes]:
    return shape.frames(example.texts, example.values(shape))


def _read_shape(received: bytes) -> _Shape | None:
    """Cut a stream into frames and leave out the values."""
    frames = received.split(sse.FRAME_END)
    end = next((number for number, frame in enumerate(frames) if _FINISH_FIELD.search(frame)), 0)
    if end < 2 or b"\0" in received or frames[-2:] != [_DONE, b""] or len(frames) - end not in (3, 4):
        return None
    found_id = _ID_FIELD.search(frames[0])
    text = split_around_text(frames[1] + sse.FRAME_END, Endpoint.CHAT)
    if found_id is None or text is None or not all(map(_CREATED_FIELD.search, frames[:-2])):
        return None
    numbers: dict[bytes, bytes] = {}
    names: dict[bytes, bytes] = {}

    def leave_out(frame: bytes) -> bytes:
        frame = frame.replace(found_id[0], _with_hole(found_id, 1, _ID), 1)
        return _CREATED_FIELD.sub(lambda field: _with_hole(field, 1, _CREATED), frame, 1)

    def leave_out_number(field: re.Match[bytes]) -> bytes:
        group = 2 if field[2] is not None else 3
        if len(numbers) == _NUMBERS_LIMIT:
            return field[0]
        name = bytes([_FIRST_NUMBER + len(numbers)])
        numbers[name] = _INTEGER_PATTERN if group == 2 else _FLOAT_PATTERN
        names.setdefault(field[1], name)
        return _with_hole(field, group, name)

    role, finish = leave_out(frames[0]), leave_out(frames[end])
    before, after = leave_out(text[0]), leave_out(text[1].removesuffix(sse.FRAME_END))
    usage = _NUMBER_FIELD.sub(leave_out_number, leave_out(frames[end + 1])) if len(frames) - end == 4 else b""
    counts = tuple(names[field] for field in _COUNT_FIELDS if field in names)
    is_counted = len(counts) == len(_COUNT_FIELDS) and all(numbers[name] is _INTEGER_PATTERN for name in counts)
    return _Shape(role, (before, after), finish, usage, numbers, counts) if is_counted or not usage else None


def _with_hole(field: re.Match[bytes], group: int, name: bytes) -> bytes:
    start = field.start()
    return field[0][: field.start(group) - start] + b"\0" + name + field[0][field.end(group) - start :]


def _make_template(shape: _Shape, make_pipeline: Callable[[Envelope], StreamPipeline]) -> StreamTemplate | None:
    """Make a template from what a pipeline sends for the first example."""
    pipeline, values = make_pipeline(_FIRST_EXAMPLE.fallback), _FIRST_EXAMPLE.values(shape)
    if not pipeline.parts[0].has_plain_text:
        return None
    sent_role, sent_text, *_ = map(pipeline.feed, shape.frames(_FIRST_EXAMPLE.texts, values))
    end, result = pipeline.close(), pipeline.result
    before, found, after = sent_text.partition(_FIRST_EXAMPLE.texts[0])
    if not found or bool(shape.usage) != (result.usage is not None):
        return None

    def leave_out(sent: bytes) -> bytes:
        sent = sent.replace(b"%", b"%%")
        for name, value in values.items():
            sent = sent.replace(value, b"%%(%b)b" % name)
        return sent

    usage = None
    if result.usage is not None:
        extra_fields = msgspec.json.encode(result.usage.extra_fields) if result.usage.extra_fields else b""
        floats = tuple(name for name, pattern in shape.numbers.items() if pattern is _FLOAT_PATTERN)
        usage = _UsageTemplate(*_pattern(shape.usage, shape.numbers), shape.counts, floats, leave_out(extra_fields))
    role, role_names = _pattern(shape.role, {})
    prefix, suffix = map(_format, shape.text)
    return StreamTemplate(
        role=role,
        role_names=role_names,
        text=(prefix, suffix),
        finishes=((_format(shape.finish), leave_out(end)),),
        usage=usage,
        sent_role=leave_out(sent_role),
        sent_text=(leave_out(before), leave_out(after)),
        repairs=tuple(result.repairs),
    )


def _pattern(frame: bytes, numbers: dict[bytes, bytes]) -> tuple[re.Pattern[bytes], tuple[bytes, ...]]:
    """Return the pattern of a frame, and the names of its groups."""
    patterns = {_ID: _ID_PATTERN, _CREATED: _CREATED_PATTERN, **numbers}
    parts = _HOLE.split(frame)  # every other one is a name
    source = b"".join(patterns[part] if number % 2 else re.escape(part) for number, part in enumerate(parts))
    return re.compile(source), tuple(parts[1::2])


def _format(frame: bytes) -> bytes:
    return _HOLE.sub(lambda hole: b"%%(%b)b" % hole[1], frame.replace(b"%", b"%%"))


def _agrees(template: StreamTemplate, frames: list[bytes], pipeline: StreamPipeline) -> bool:
    """Whether the template gives the same as a pipeline."""
    stream = TemplatedStream(template, lambda: pipeline)
    for data in frames:
        sent = stream.feed(data)
        if sent is None or not stream.agrees(sent, pipeline, pipeline.feed(data)):
            return False
    end = stream.close()
    return end is not None and stream.agrees(end, pipeline, pipeline.close())
