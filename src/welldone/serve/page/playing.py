"""What was kept of a watched answer, played again: the steps that it was made of."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import msgspec

from welldone.net.secrets import SecretRedactor
from welldone.serve.page.steps import StepView, step_view
from welldone.wire.events import Failure, KeepAlive, FailureMapper
from welldone.wire.replay import StreamReplay, StreamReplayStep, AnyPipeline
from welldone.wire.texts import TextMode, ThinkMode

PipelineFactory: TypeAlias = Callable[[], AnyPipeline]
"""Makes the same pipe again."""


class CaptureReplayer:
    """Plays what happened, in the order in which it did. Each step is made, and kept, when it is asked for."""

    def __init__(self, secrets: SecretRedactor) -> None:
        self.steps: list[StepView] = []
        self.admin_only: set[int] = set()
        """Steps whose bytes are for admins alone: what a server says when it refuses is told to others in our words."""
        self.at_s = 0.0
        """When that came which is being played."""
        self._attempts: dict[int, int] = {}  # the attempt that each part is in
        self._secrets = secrets
        self._replay: StreamReplay | None = None
        self._first_step = 0  # the first step of this pipe
        self._fed: dict[int, int] = {}
        self._unfed: dict[int, int] = {}  # bytes that no pipe was given

    def pipeline_created(self, factory: PipelineFactory) -> None:
        """A pipe was made. What one before it had said is taken back: nobody has heard it."""
        self._clear_sent(self._first_step)
        self._first_step = len(self.steps)
        self._replay = StreamReplay(factory())
        self._fed, self._unfed = {}, {}

    def attempt_started(self, part: int, attempt: int) -> None:
        """A part was asked for. If it was before, nothing of that is in the pipe: else there is a new one."""
        self._attempts[part] = attempt
        self._unfed[part] = 0

    def tune(self, part: int, think: ThinkMode, text: TextMode, strict: frozenset[str], reword: FailureMapper) -> None:
        """A part's server needs this."""
        self._active_replay.pipeline.configure(part, think=think, text=text, strict=strict, map_failure=reword)

    def feed(self, data: bytes, part: int) -> Iterator[StepView]:
        """More of a part's stream."""
        self._fed[part] = self._fed.get(part, 0) + len(data)
        return self._add(self._active_replay.feed(data, part))

    def buffered_reply(self, data: bytes, part: int) -> Iterator[StepView]:
        """A part's reply, which was not streamed."""
        self._fed[part] = self._fed.get(part, 0) + len(data)
        return self._add(self._active_replay.feed_reply(data, part))

    def unfed_data(self, data: bytes, part: int) -> Iterator[StepView]:
        """What came of a part, and was not taken for a stream: signs of life, or a refusal."""
        is_silence = all(line[:1] in (b"", b":") for line in data.splitlines())
        step = StreamReplayStep(part, self._fed.get(part, 0), data, [KeepAlive()] if is_silence else [])
        yield from self._add([step], is_private=not is_silence)
        self._unfed[part] = self._unfed.get(part, 0) + len(data)

    def close(self, part: int) -> Iterator[StepView]:
        """A part has ended."""
        return self._add(self._active_replay.close(part))

    def fail(self, failure: Failure) -> Iterator[StepView]:
        """The answer broke off."""
        return self._add(self._active_replay.fail(failure))

    def keep_alive(self) -> Iterator[StepView]:
        """We sent a sign of life."""
        return self._add(self._active_replay.keep_alive())

    def send_body(self) -> Iterator[StepView]:
        """The reply went out, which is not streamed."""
        return self._add([self._active_replay.body()])

    def request_rejected(self, body: bytes) -> Iterator[StepView]:
        """Nothing went out but this error, perhaps before anybody was asked."""
        self._clear_sent(0)
        return self._add([StreamReplayStep(0, 0, b"", sent=body)])

    def stop(self) -> None:
        """Nothing more will be played: only the steps are kept."""
        self._replay = None

    @property
    def _active_replay(self) -> StreamReplay:
        assert self._replay is not None
        return self._replay

    def _add(self, steps: Iterable[StreamReplayStep], *, is_private: bool = False) -> Iterator[StepView]:
        for step in steps:
            placed = msgspec.structs.replace(step, byte=step.byte + self._unfed.get(step.part, 0))
            n, attempt = len(self.steps), self._attempts.get(step.part, 0)
            if step.received and (is_private or self._active_replay.pipeline.failure is not None):
                self.admin_only.add(n)
            self.steps.append(step_view(placed, n, attempt=attempt, at_s=self.at_s, secrets=self._secrets))
            yield self.steps[n]

    def _clear_sent(self, first: int) -> None:
        for n in range(first, len(self.steps)):
            self.steps[n] = msgspec.structs.replace(self.steps[n], sent="")
