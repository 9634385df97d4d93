"""What was kept of a watched answer, played again: the steps that it was made of."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import msgspec

from welldone.net.secrets import Secrets
from welldone.serve.page.steps import Shown, shown
from welldone.wire.events import Failure, KeepAlive, Reword
from welldone.wire.replay import Replay, Step, Watched
from welldone.wire.texts import TextForm, Think

Make: TypeAlias = Callable[[], Watched]
"""Makes the same pipe again."""


class Player:
    """Plays what happened, in the order in which it did. Each step is made, and kept, when it is asked for."""

    def __init__(self, secrets: Secrets) -> None:
        self.steps: list[Shown] = []
        self.private: set[int] = set()
        """Steps whose bytes are for admins alone: what a server says when it refuses is told to others in our words."""
        self.at_s = 0.0
        """When that came which is being played."""
        self._attempts: dict[int, int] = {}  # the attempt that each part is in
        self._secrets = secrets
        self._replay: Replay | None = None
        self._first = 0  # the first step of this pipe
        self._fed: dict[int, int] = {}
        self._aside: dict[int, int] = {}  # bytes that no pipe was given

    def made(self, make: Make) -> None:
        """A pipe was made. What one before it had said is taken back: nobody has heard it."""
        self._unsay(self._first)
        self._first = len(self.steps)
        self._replay = Replay(make())
        self._fed, self._aside = {}, {}

    def asked(self, part: int, attempt: int) -> None:
        """A part was asked for. If it was before, nothing of that is in the pipe: else there is a new one."""
        self._attempts[part] = attempt
        self._aside[part] = 0

    def tune(self, part: int, think: Think, text: TextForm, strict: frozenset[str], reword: Reword) -> None:
        """A part's server needs this."""
        self._playing.pipe.tune(part, think=think, text=text, strict=strict, reword=reword)

    def feed(self, data: bytes, part: int) -> Iterator[Shown]:
        """More of a part's stream."""
        self._fed[part] = self._fed.get(part, 0) + len(data)
        return self._add(self._playing.feed(data, part))

    def whole(self, data: bytes, part: int) -> Iterator[Shown]:
        """A part's reply, which was not streamed."""
        self._fed[part] = self._fed.get(part, 0) + len(data)
        return self._add(self._playing.whole(data, part))

    def passed_over(self, data: bytes, part: int) -> Iterator[Shown]:
        """What came of a part, and was not taken for a stream: signs of life, or a refusal."""
        is_silence = all(line[:1] in (b"", b":") for line in data.splitlines())
        step = Step(part, self._fed.get(part, 0), data, [KeepAlive()] if is_silence else [])
        yield from self._add([step], is_private=not is_silence)
        self._aside[part] = self._aside.get(part, 0) + len(data)

    def close(self, part: int) -> Iterator[Shown]:
        """A part has ended."""
        return self._add(self._playing.close(part))

    def fail(self, failure: Failure) -> Iterator[Shown]:
        """The answer broke off."""
        return self._add(self._playing.fail(failure))

    def keep_alive(self) -> Iterator[Shown]:
        """We sent a sign of life."""
        return self._add(self._playing.keep_alive())

    def body(self) -> Iterator[Shown]:
        """The reply went out, which is not streamed."""
        return self._add([self._playing.body()])

    def refused(self, body: bytes) -> Iterator[Shown]:
        """Nothing went out but this error, perhaps before anybody was asked."""
        self._unsay(0)
        return self._add([Step(0, 0, b"", said=body)])

    def rest(self) -> None:
        """Nothing more will be played: only the steps are kept."""
        self._replay = None

    @property
    def _playing(self) -> Replay:
        assert self._replay is not None
        return self._replay

    def _add(self, steps: Iterable[Step], *, is_private: bool = False) -> Iterator[Shown]:
        for step in steps:
            placed = msgspec.structs.replace(step, byte=step.byte + self._aside.get(step.part, 0))
            n, attempt = len(self.steps), self._attempts.get(step.part, 0)
            if step.heard and (is_private or self._playing.pipe.failure is not None):
                self.private.add(n)
            self.steps.append(shown(placed, n, attempt=attempt, at_s=self.at_s, secrets=self._secrets))
            yield self.steps[n]

    def _unsay(self, first: int) -> None:
        for n in range(first, len(self.steps)):
            self.steps[n] = msgspec.structs.replace(self.steps[n], said="")
