"""One answer that a page watches: what servers said, kept as it comes, and told step by step.

While the answer is given nothing of it is read twice. A watch keeps the pieces that came, their times, and how to make
the same pipe again; when the page asks, they are played once more, from where it last stopped.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

import msgspec

from welldone.net.secrets import Secrets
from welldone.serve.page.playing import Make, Player
from welldone.serve.page.steps import Shown
from welldone.serve.taping import HARMLESS
from welldone.wire.events import Failure, Reword
from welldone.wire.texts import TextForm, Think

TAPE_BYTES = 8 * 2**20
"""What came of one answer, each piece with what it takes to keep it: some twenty thousand frames."""
STEPS_BYTES = 16 * 2**20
"""What its steps may take: each tells what came, what was made of it, and what went out."""
REQUEST_BYTES = 256 * 2**10
"""The longest request that is shown: it is told each time the page asks."""
STEPS = 2_000
"""As many are told at once: a page draws them in a moment."""
TOLD_BYTES = 2**20
"""What the steps that are told at once may have, unless it is one: as JSON they are written in a millisecond or two."""
TURN_S = 0.002
"""For so long an answer is played before others have their turn in the event loop: a gap that no reader notices."""
_MOMENT_BYTES = 256  # of one in memory, besides its data
_NO_REQUEST, _NO_EVENTS = msgspec.Raw(b"{}"), msgspec.Raw(b"[]")

Moment: TypeAlias = Callable[[], Iterable[Shown] | None]
"""Plays what happened then."""


class Attempt(msgspec.Struct):
    """One time that a server was asked."""

    server: str
    part: int
    began_s: float
    is_local: bool
    status: int | None = None
    headers: list[tuple[str, str]] = []
    error: str | None = None
    """Why it failed, in words."""


class Taped(msgspec.Struct):
    """What the page is told."""

    id: str
    endpoint: str
    model: str
    is_stream: bool
    is_done: bool
    """Whether nothing follows these steps."""
    is_cut: bool
    """Whether it grew too long, so that what came later is not here."""
    attempts: list[Attempt]
    request: msgspec.Raw
    steps: list[Shown]
    next: int
    """Where to go on."""


class Watch:
    """Is told what the answer's pipe is told, right before it. `on_growth` is called when it takes more memory."""

    def __init__(
        self,
        id: str,
        *,
        endpoint: str,
        model: str,
        is_stream: bool,
        secrets: Secrets,
        now: Callable[[], float],
        on_growth: Callable[[], None],
    ) -> None:
        self.now = now
        """Seconds since the request came."""
        self._kept_bytes = 0  # in all
        self._waiting_bytes = 0  # of what is not played yet
        self._held_bytes = 0  # of what came, and may yet go to the pipe
        self._steps_bytes = 0
        self._request_bytes = 0
        self._id = id
        self._endpoint = endpoint
        self._model = model
        self._is_stream = is_stream
        self._secrets = secrets
        self._on_growth = on_growth
        self._is_cut = False
        self._is_over = False
        self._attempts: list[Attempt] = []
        self._request = _NO_REQUEST
        self._tape_of: dict[int, PartTape] = {}
        self._player = Player(secrets)
        self._moments: deque[tuple[float, int, Moment]] = deque()
        self._rest: Iterator[Shown] | None = None  # of the moment that is being played

    @property
    def size(self) -> int:
        """What it takes in memory."""
        return self._waiting_bytes + self._held_bytes + self._steps_bytes + self._request_bytes

    # What the answer tells.

    def made(self, make: Make) -> None:
        """A pipe was made; where there was another, what that one had said is forgotten."""
        self._pass_over()
        self._keep(partial(self._player.made, make))

    def ask(self, part: int, server: str, body: bytes, *, is_local: bool) -> "PartTape":
        """A tape for a part that a server is asked for."""
        self._pass_over(part)
        attempt = Attempt(server, part, self.now(), is_local)
        self._attempts.append(attempt)
        if len(body) <= REQUEST_BYTES:
            self._request, self._request_bytes = msgspec.Raw(self._secrets.clean_json(body)), len(body)
        # What is kept of the request counts as much as all of it: how to make its pipe may hold its longest fields.
        self._keep(partial(self._player.asked, part, len(self._attempts) - 1), len(body))
        tape = self._tape_of[part] = PartTape(self, part, attempt)
        return tape

    def tune(self, part: int, *, think: Think, text: TextForm, strict: frozenset[str], reword: Reword) -> None:
        """A part's server needs this."""
        self._keep(partial(self._player.tune, part, think, text, strict, reword))

    def feed(self, data: bytes, part: int) -> None:
        """More of a part's stream."""
        self._tape_of[part].used(len(data))
        self._keep(partial(self._player.feed, data, part), len(data))

    def whole(self, data: bytes, part: int) -> None:
        """A part's reply, which was not streamed."""
        self._tape_of[part].used(len(data))
        self._keep(partial(self._player.whole, data, part), len(data))

    def close(self, part: int) -> None:
        """A part has ended."""
        self._pass_over(part)
        self._keep(partial(self._player.close, part))

    def fail(self, failure: Failure) -> None:
        """The answer breaks off."""
        self._pass_over()
        self._keep(partial(self._player.fail, failure))

    def keep_alive(self) -> None:
        """A sign of life goes out."""
        self._pass_silence()
        self._keep(self._player.keep_alive)

    def body(self) -> None:
        """The reply goes out, which is not streamed."""
        self._keep(self._player.body)

    def refused(self, body: bytes) -> None:
        """Nothing goes out but this error."""
        self._pass_over()
        self._keep(partial(self._player.refused, body), len(body))

    def end(self) -> None:
        """Nothing more will come, be it that the client has left."""
        self._pass_over()
        self._is_over = True

    def _pass_over(self, part: int | None = None) -> None:
        """What came of a part, or of all, and was not given to the pipe, never will be."""
        for number, tape in self._tape_of.items():
            if part in (None, number):
                tape.used(0)

    def _pass_silence(self) -> None:
        for tape in self._tape_of.values():
            tape.pass_silence()

    # What its tapes tell.

    def hold(self, size: int) -> bool:
        """Whether there is room for so much more of what may go to the pipe, or not."""
        if self._held_bytes + size > TAPE_BYTES:
            self._is_cut = True
        if self._is_cut:
            return False
        self._held_bytes += size
        self._on_growth()
        return True

    def let_go(self, size: int) -> None:
        """So much is not held any more."""
        self._held_bytes -= size

    def passed_over(self, data: bytes, part: int, at_s: float) -> None:
        """What came of a part, and its pipe was not given."""
        self._keep(partial(self._player.passed_over, data, part), len(data), at_s)

    # What the page asks.

    async def told(self, start: int, *, is_admin: bool) -> Taped:
        """The steps from `start` on; who is no admin hears nothing of the servers behind this one."""
        self._pass_silence()
        await self._play(start + STEPS)
        player = self._player
        steps = self._some(start)
        attempts = self._attempts
        if not is_admin:
            steps = [_without_bytes(step) if step.n in player.private else step for step in steps]
            attempts = [_without_server(one) for one in attempts]
        is_all = self._is_played and start + len(steps) >= len(player.steps)
        return Taped(
            id=self._id,
            endpoint=self._endpoint,
            model=self._model,
            is_stream=self._is_stream,
            is_done=(self._is_over or self._is_cut) and is_all,
            is_cut=self._is_cut,
            attempts=attempts,
            request=self._request,
            steps=steps,
            next=start + len(steps),
        )

    def drop(self) -> None:
        """Keep no more, and play no more of what was kept."""
        self._is_cut = True
        self._moments.clear()
        self._waiting_bytes = 0
        self._rest = None
        self._player.rest()

    def forget(self) -> None:
        """Let go of all at once: what refers to each other in here would wait for a collector, which comes seldom."""
        self.drop()
        self._pass_over()
        self._player = Player(self._secrets)
        self._request = _NO_REQUEST
        self._steps_bytes = self._request_bytes = 0

    def _keep(self, moment: Moment, size: int = 0, at_s: float | None = None) -> None:
        size += _MOMENT_BYTES
        if self._is_cut or self._is_over:
            return
        if self._kept_bytes + size > TAPE_BYTES:
            self._is_cut = True
            return
        self._kept_bytes += size
        self._waiting_bytes += size
        self._moments.append((self.now() if at_s is None else at_s, size, moment))
        self._on_growth()

    async def _play(self, up_to: int) -> None:
        """Play on, up to so many steps in all; two who do so at once help each other."""
        turn_ends = self.now() + TURN_S
        while not self._is_played and len(self._player.steps) < up_to:
            if self.now() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = self.now() + TURN_S
                continue
            if self._rest is None:
                self._player.at_s, size, moment = self._moments.popleft()
                self._waiting_bytes -= size
                self._rest = iter(moment() or ())
            self._play_step(self._rest)
        if self._is_played and self._is_over:
            self._player.rest()
        self._on_growth()

    def _play_step(self, rest: Iterator[Shown]) -> None:
        step = next(rest, None)
        if step is None:
            self._rest = None
            return
        self._steps_bytes += step.size
        if self._steps_bytes > STEPS_BYTES:
            self.drop()

    @property
    def _is_played(self) -> bool:
        return self._rest is None and not self._moments

    def _some(self, start: int) -> list[Shown]:
        """As many steps as are told at once."""
        found = self._player.steps[start : start + STEPS]
        size = 0
        for place, step in enumerate(found):
            size += step.size
            if size > TOLD_BYTES and place:
                return found[:place]
        return found


class PartTape:
    """What comes of one part. What its pipe is given too is told by the watch; here is all the rest."""

    def __init__(self, watch: Watch, part: int, attempt: Attempt) -> None:
        self._watch = watch
        self._part = part
        self._attempt = attempt
        self._unused: list[tuple[float, bytes]] = []

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The reply begins."""
        self._attempt.status = status
        self._attempt.headers = [(name, value) for name, value in headers.items() if name.lower() in HARMLESS]

    def data(self, data: bytes) -> None:
        """More of its body."""
        if self._watch.hold(len(data)):
            self._unused.append((self._watch.now(), data))

    def end(self, error: str | None, *, is_left: bool = False) -> None:
        """It has ended; the first word on why it failed counts."""
        if self._attempt.error is None:
            self._attempt.error = error

    def used(self, count: int) -> None:
        """The last bytes that came go to the pipe; those before them never will."""
        self._watch.let_go(sum(len(data) for _, data in self._unused))
        while count > 0 and self._unused:
            count -= len(self._unused.pop()[1])
        for at_s, data in self._unused:
            self._watch.passed_over(data, self._part, at_s)
        self._unused.clear()

    def pass_silence(self) -> None:
        """What begins with a comment is a stream: what its pipe was not given at once, it never will be."""
        if self._unused and self._unused[0][1].startswith(b":"):
            self.used(0)


def _without_server(attempt: Attempt) -> Attempt:
    """The same for those who may not see the servers behind this one: that it failed, and not how."""
    error = None if attempt.error is None else "the attempt failed"
    return Attempt("", attempt.part, attempt.began_s, attempt.is_local, attempt.status, error=error)


def _without_bytes(step: Shown) -> Shown:
    return msgspec.structs.replace(step, heard="", heard_base64=msgspec.UNSET, events=_NO_EVENTS, notes=[])
