"""The pipeline of one answer. A template replaces it while the stream follows one, and a capture records its calls."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from welldone.core import sse
from welldone.core.continuation import Continuation, Delivered
from welldone.core.envelope import Envelope
from welldone.core.events import Failure
from welldone.core.request_facts import DEFAULT_OPTIONS, RepairOptions
from welldone.core.state import PartState
from welldone.dialects.same_dialect import PassthroughRepairer
from welldone.server.inspector.captures import PipelineFactory, StreamCapture
from welldone.stream.fast_path import FastPath
from welldone.stream.part import StreamPart
from welldone.stream.pipeline import BufferedPipeline, Pipeline, StreamPipeline
from welldone.stream.replay import AnyPipeline
from welldone.stream.stream_template import RECORDED_LIMIT_BYTES, TemplatedStream, TemplateSlot

_EVENT_STREAM_HEADERS = dict(sse.HEADERS)


class Step(NamedTuple):
    """The output for bytes of a part, and how far the part is after them."""

    output: bytes | None
    state: PartState
    has_content: bool = False


class AnswerPipeline:
    """Reads the parts of one answer. `make_factory` returns the factory of its pipelines for a fallback envelope."""

    def __init__(
        self, make_factory: Callable[[Envelope], PipelineFactory], fallback: Envelope, capture: StreamCapture | None
    ) -> None:
        self._make_factory = make_factory
        self._factory = make_factory(fallback)
        self._capture = capture
        self._pipeline: AnyPipeline | None = None
        self._templated: TemplatedStream | None = None  # replaces the pipeline while the stream follows a template
        self._slot: TemplateSlot | None = None
        self._recorded: bytearray | None = None  # input from which a template is learnt
        self._options = DEFAULT_OPTIONS
        self.reset()

    def reset(self) -> None:
        """Discard what was read: another attempt begins again."""
        self._pipeline = self._templated = self._slot = self._recorded = None
        if self._capture is not None:
            self._capture.pipeline_created(self._factory)
            self._pipeline = self._factory()

    def configure(self, part: int, options: RepairOptions, slot: TemplateSlot | None) -> None:
        """Set how a part is repaired, before its first byte. The stream may follow the template of the slot."""
        self._options = options
        if self._capture is not None:
            self._capture.configure(part, options)
        if self._pipeline is None:  # nothing was read: an earlier attempt has left its template at most
            self._templated = self._recorded = None
            if slot is not None:
                self._templated = slot.begin(partial(_make_configured, self._factory, options))
                self._recorded = bytearray() if slot.is_learning else None
        elif slot is not self._slot:
            self._recorded = None
        self._slot = slot
        if self._templated is None:
            self.current.configure(part, options)

    @property
    def current(self) -> AnyPipeline:
        """The pipeline. If the stream has followed a template so far, the pipeline now replaces it."""
        if self._pipeline is None:
            templated, self._templated = self._templated, None
            self._pipeline = self._factory() if templated is None else templated.restore()
        return self._pipeline

    @property
    def active(self) -> TemplatedStream | AnyPipeline:
        """What reads the stream; it has the result, the usage and the finish reasons."""
        return self._templated or self.current

    @property
    def parts(self) -> Sequence[StreamPart]:
        """The parts; none if the upstream's dialect is that of the client."""
        return self.current.parts if isinstance(self.current, Pipeline) else ()

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of a stream."""
        return _EVENT_STREAM_HEADERS if self._templated else self.current.headers

    @property
    def fast_path(self) -> FastPath | TemplatedStream | None:
        """What rewrites text chunks, if anything does."""
        if self._templated is not None:
            return self._templated
        return self.current.fast_path if isinstance(self.current, StreamPipeline) else None

    def is_complete(self, part: int) -> bool:
        """Whether only usage or `[DONE]` can be missing, so that a lost connection does not make the answer fail.

        Not if the server has sent content after a finish reason: then there may be more of it.
        """
        if self._templated is not None:  # nothing follows its finish reason
            return self._templated.state >= PartState.FINISHED
        has_early_finish = "fin-last-of-choice" in self.current.repair_log.counts()
        return self.current.part_state(part) >= (PartState.DONE if has_early_finish else PartState.FINISHED)

    # Input.

    def feed(self, data: bytes, part: int) -> Step:
        """Read bytes of a part's stream."""
        if self._capture is not None:
            self._capture.feed(data, part)
        if (templated := self._templated) is not None:
            if (output := templated.feed(data)) is not None:
                return Step(output, templated.state, templated.has_content)
            if self._slot is not None:
                self._slot.report(is_match=templated.is_overlong)
        if self._recorded is not None:
            self._recorded += data
            if len(self._recorded) > RECORDED_LIMIT_BYTES:
                self._recorded = None
        pipeline = self._pipeline or self.current
        output = pipeline.feed(data, part)
        state = pipeline.part_state(part)
        if state is PartState.WAITING and not isinstance(pipeline, PassthroughRepairer):
            output = None  # only pass-through streams have events before the first content
        return Step(output, state, pipeline.has_content)

    def feed_reply_in_steps(self, data: bytes, part: int) -> Iterator[bytes]:
        """Read a part that is a complete non-streaming reply, in steps. Then `close` it."""
        if self._capture is not None:
            self._capture.feed(data, part, is_whole=True)
        return self.current.feed_reply_in_steps(data, part)

    def close(self, part: int) -> Step:
        """Read the end of a part."""
        if self._templated is not None and (output := self._templated.close()) is not None:
            return Step(output, PartState.DONE)
        if self._capture is not None:
            self._capture.close(part)
        output = self.current.close(part)
        return Step(output, self.current.part_state(part))

    def fail(self, failure: Failure) -> bytes:
        """Return the bytes to send when the answer fails for a reason outside of the stream."""
        if self._capture is not None:
            self._capture.fail(failure)
        return self.current.fail(failure)

    def learn(self) -> None:
        """Learn a template from a stream that has ended well."""
        if self._slot is None:
            return
        if self._templated is not None:
            self._slot.report(is_match=True)
        elif self._recorded:
            self._slot.learn(
                bytes(self._recorded), lambda fallback: _make_configured(self._make_factory(fallback), self._options)
            )

    # Output.

    def keep_alive(self) -> bytes:
        """Return a keep-alive, to send while the server is silent."""
        if self._capture is not None:
            self._capture.keep_alive()
        return self.current.keep_alive()

    async def body(self) -> bytes:
        """Return the whole reply, after the end of all parts."""
        pipeline = self.current
        assert not isinstance(pipeline, StreamPipeline)
        if self._capture is not None:
            self._capture.send_body()
        # A long body is encoded in a thread: the GIL switches between them, so the event loop still runs.
        is_slow = isinstance(pipeline, BufferedPipeline) and pipeline.is_body_slow
        return await asyncio.to_thread(pipeline.body) if is_slow else pipeline.body()

    # Continuation of a part by another attempt. The upstream's dialect is not that of the client.

    def delivered(self, part: int) -> Delivered | None:
        """Return what was sent of a part; None if it cannot be continued."""
        assert isinstance(self.current, Pipeline)
        return self.current.delivered(part)

    def has_sent(self, part: int) -> bool:
        """Whether more than the role was sent of a part."""
        return not isinstance(self.current, Pipeline) or self.current.has_sent(part)

    def continue_part(self, part: int, continuation: Continuation) -> None:
        """Read on in the next stream of a part."""
        assert isinstance(self.current, Pipeline)
        self.current.continue_part(part, continuation)
        if self._capture is not None:
            self._capture.continue_part(part, continuation)

    def release_failure(self, part: int) -> bytes:
        """Return the bytes to send if a part that was cut is not continued."""
        assert isinstance(self.current, Pipeline)
        if self._capture is not None:
            self._capture.release_failure(part)
        return self.current.release_failure(part)


def _make_configured(factory: PipelineFactory, options: RepairOptions) -> StreamPipeline:
    """Make the pipeline of a stream that is one part. Not a method: a reference to its caller would be a cycle."""
    pipeline = factory()
    assert isinstance(pipeline, StreamPipeline)
    pipeline.configure(0, options)
    return pipeline
