"""What was kept of a watched answer, played again: the steps that it was made of."""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from welldone.net.secrets import Secrets
from welldone.serve.page.steps import Shown, shown
from welldone.wire.events import Failure, KeepAlive, Reword
from welldone.wire.replay import Replay, Step, Watched
from welldone.wire.texts import Think

Make: TypeAlias = Callable[[], Watched]
"""Makes the same pipe again."""


class Player:
    """Plays what happened, in the order in which it did. `at_s` and `attempt` are those of what is being played."""

    def __init__(self, secrets: Secrets) -> None:
        self.steps: list[Shown] = []
        self.private: set[int] = set()
        """Steps whose bytes are for admins alone: what a server says when it refuses is told to others in our words."""
        self.at_s = 0.0
        self.attempts: dict[int, int] = {}
        """The attempt that each part is in."""
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
        """A part was asked for."""
        self.attempts[part] = attempt

    def tune(self, part: int, think: Think, strict: frozenset[str], reword: Reword) -> None:
        """A part's server needs this."""
        self._playing.pipe.tune(part, think=think, strict=strict, reword=reword)

    def feed(self, data: bytes, part: int) -> None:
        """More of a part's stream."""
        self._fed[part] = self._fed.get(part, 0) + len(data)
        self._add(self._playing.feed(data, part))

    def whole(self, data: bytes, part: int) -> None:
        """A part's reply, which was not streamed."""
        self._fed[part] = self._fed.get(part, 0) + len(data)
        self._add(self._playing.whole(data, part))

    def passed_over(self, data: bytes, part: int) -> None:
        """What came of a part, and was not taken for a stream: signs of life, or a refusal."""
        is_silence = all(line[:1] in (b"", b":") for line in data.splitlines())
        aside = self._aside.get(part, 0)
        byte = self._fed.get(part, 0)
        self._add([Step(part, byte, data, [KeepAlive()] if is_silence else [])], is_private=not is_silence)
        self._aside[part] = aside + len(data)

    def close(self, part: int) -> None:
        """A part has ended."""
        self._add(self._playing.close(part))

    def fail(self, failure: Failure) -> None:
        """The answer broke off."""
        self._add(self._playing.fail(failure))

    def keep_alive(self) -> None:
        """We sent a sign of life."""
        self._add(self._playing.keep_alive())

    def body(self) -> None:
        """The reply went out, which is not streamed."""
        self._add([self._playing.body()])

    def refused(self, body: bytes) -> None:
        """Nothing went out but this error."""
        self._unsay(0)
        self._add([Step(0, 0, b"", said=body)])

    @property
    def _playing(self) -> Replay:
        assert self._replay is not None
        return self._replay

    def _add(self, steps: list[Step], *, is_private: bool = False) -> None:
        is_private = is_private or self._playing.pipe.failure is not None
        for step in steps:
            placed = msgspec.structs.replace(step, byte=step.byte + self._aside.get(step.part, 0))
            n, attempt = len(self.steps), self.attempts.get(step.part, 0)
            self.steps.append(shown(placed, n, attempt=attempt, at_s=self.at_s, secrets=self._secrets))
            if is_private and step.heard:
                self.private.add(n)

    def _unsay(self, first: int) -> None:
        for n in range(first, len(self.steps)):
            self.steps[n] = msgspec.structs.replace(self.steps[n], said="")
