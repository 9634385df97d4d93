"""Comparison of the fast paths with the slow one: each pipeline, and each stream with a template, gets a twin.

A twin gets the same input and has no fast path. Another output or result is an AssertionError.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import partial, wraps
from typing import Any, cast

import pytest

from welldone.core.answer_format import DialectWriter
from welldone.core.events import Event
from welldone.core.template import ChunkTemplate, TransferFraming
from welldone.stream.fast_path import FastPath
from welldone.stream.pipeline import StreamPipeline
from welldone.stream.stream_template import TemplatedStream, TemplateSlot

Method = Callable[..., Any]
_MIRRORED = {
    "configure": "configure",
    "continue_part": "continue_part",
    "feed_reply_in_steps": "feed_reply",
    "keep_alive": "keep_alive",
}
"""Methods of a pipeline whose output is not compared, and those that are called of its twin."""
_COMPARED = ("feed", "close", "fail", "release_failure")
_TWIN = "twin"


class Twin(StreamPipeline):
    """A pipeline without a fast path."""

    has_input = False
    """Whether the fast path has given it the last input."""


def twin_of(owner: StreamPipeline | FastPath | TemplatedStream) -> Any:  # noqa: ANN401 - StreamPipeline or Twin
    """Return the twin of a pipeline, of its fast path or of a stream with a template; None outside of a comparison."""
    return getattr(owner, _TWIN, None)


@contextmanager
def compared_paths(*, is_on: bool = True) -> Iterator[None]:
    """Give a twin to all pipelines and streams that are made within the block."""
    with pytest.MonkeyPatch.context() as patch:
        if is_on:
            patch.setattr(StreamPipeline, "__init__", _with_twin(StreamPipeline.__init__))
            for name, of_twin in _MIRRORED.items():
                patch.setattr(StreamPipeline, name, _mirrored(getattr(StreamPipeline, name), of_twin))
            for name in _COMPARED:
                patch.setattr(StreamPipeline, name, _compared(getattr(StreamPipeline, name)))
            patch.setattr(FastPath, "enter", _observed(FastPath.enter))
            patch.setattr(TemplateSlot, "begin", _with_pipeline(TemplateSlot.begin))
            patch.setattr(TemplatedStream, "feed", _compared_stream(TemplatedStream.feed))
            patch.setattr(TemplatedStream, "close", _compared_stream(TemplatedStream.close))
            patch.setattr(TemplatedStream, "rewrite", _compared_text(TemplatedStream.rewrite))
        yield


# Pipelines.


def _with_twin(init: Method) -> Method:
    @wraps(init)
    def make(pipeline: StreamPipeline, *words: Any, **options: Any) -> None:  # noqa: ANN401 - those of the pipeline
        init(pipeline, *words, **options)
        if pipeline.fast_path._is_allowed:
            twin = Twin.__new__(Twin)
            init(twin, *words, **{**options, "dialect": copy(pipeline.dialect)})
            twin.fast_path = FastPath(twin.parts[0], is_allowed=False, room=pipeline.fast_path.room)
            # Neither refers to the pipeline: there must be no cycle.
            for owner in (pipeline, pipeline.fast_path):
                setattr(owner, _TWIN, twin)

    return make


def _mirrored(method: Method, of_twin: str) -> Method:
    @wraps(method)
    def call(pipeline: StreamPipeline, *words: Any, **options: Any) -> Any:  # noqa: ANN401 - those of the method
        if (twin := twin_of(pipeline)) is not None:
            getattr(twin, of_twin)(*words, **options)
        return method(pipeline, *words, **options)

    return call


def _compared(method: Method) -> Method:
    @wraps(method)
    def call(pipeline: StreamPipeline, *words: Any, **options: Any) -> bytes:  # noqa: ANN401 - those of the method
        if (twin := twin_of(pipeline)) is None:
            return cast("bytes", method(pipeline, *words, **options))
        twin.has_input = False
        sent: bytes = method(pipeline, *words, **options)
        if twin.has_input:
            return sent
        expected = getattr(twin, method.__name__)(*words, **options)
        # While `rewrite` is set, the log of the part lacks the frames of the fast path.
        has_same_result = pipeline.fast_path.rewrite is not None or pipeline.result == twin.result
        if sent != expected or not has_same_result:
            raise AssertionError(
                f"with the fast path {sent!r}, {pipeline.result}; without it {expected!r}, {twin.result}"
            )
        return sent

    return call


def _observed(enter: Method) -> Method:
    @wraps(enter)
    def call(
        path: FastPath,
        data: bytes,
        sent: bytes,
        events: list[Event],
        rules_before: Mapping[str, int] | None,
        writer: DialectWriter | None,
    ) -> None:
        enter(path, data, sent, events, rules_before, writer)
        twin, template = twin_of(path), path._template
        if twin is not None and path.rewrite is not None and template is not None:
            path.rewrite = partial(_rewrite, template, path._framing, twin)

    return call


def _rewrite(template: ChunkTemplate, framing: TransferFraming, twin: Twin, data: bytes) -> bytes | None:
    sent = template.rewrite(data)
    if sent is not None:
        twin.has_input = True
        before, after = framing.received_affixes(data) or (b"", b"")
        expected = twin.feed(data[len(before) : len(data) - len(after)])
        before, after = framing.sent_affixes(len(expected))
        if sent != before + expected + after:
            raise AssertionError(f"with the fast path {sent!r}, without it {expected!r}")
    return sent


# Streams with a template.


def give_twin(stream: TemplatedStream) -> None:
    """Compare a stream with a pipeline, within `compared_paths`."""
    setattr(stream, _TWIN, stream._make_pipeline())


def _with_pipeline(begin: Method) -> Method:
    @wraps(begin)
    def call(slot: TemplateSlot, make_pipeline: Callable[[], StreamPipeline]) -> TemplatedStream | None:
        stream = cast("TemplatedStream | None", begin(slot, make_pipeline))
        if stream is not None:
            give_twin(stream)
        return stream

    return call


def _compared_stream(method: Method) -> Method:
    @wraps(method)
    def call(stream: TemplatedStream, *words: bytes) -> bytes | None:
        sent = cast("bytes | None", method(stream, *words))
        if sent is not None and (twin := twin_of(stream)) is not None:
            _check_stream(stream, sent, getattr(twin, method.__name__)(*words))
        return sent

    return call


def _compared_text(rewrite: Method) -> Method:
    @wraps(rewrite)
    def call(stream: TemplatedStream, data: bytes) -> bytes | None:
        sent = cast("bytes | None", rewrite(stream, data))
        if sent is not None and (twin := twin_of(stream)) is not None:
            framing = stream._framing
            before, after = framing.received_affixes(data) or (b"", b"")
            expected = twin.feed(data[len(before) : len(data) - len(after)])
            before, after = framing.sent_affixes(len(expected))
            _check_stream(stream, sent, before + expected + after)
        return sent

    return call


def _check_stream(stream: TemplatedStream, sent: bytes, expected: bytes) -> None:
    twin = twin_of(stream)
    assert twin is not None
    if not stream.agrees(sent, twin, expected):
        raise AssertionError(f"with the template {sent!r}, {stream.result}; without it {expected!r}, {twin.result}")
