"""What servers said while a page watches: kept in memory for a while, and told step by step.

While an answer is given nothing of it is read twice. A watch keeps the pieces that came, their times, and how to make
the same pipe again; when the page asks, they are played once more, from where it last stopped. Without a page there is
no watch, and nothing is kept.
"""

import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from welldone.net.secrets import Secrets
from welldone.serve.page.playing import Make, Player
from welldone.serve.page.steps import Shown
from welldone.serve.taping import HARMLESS
from welldone.wire.events import Failure, Reword
from welldone.wire.texts import Think

HEADER = "x-welldone-tape"
"""The header by which a page asks for a tape, with the name under which it will look for it."""
TAPES = 64
"""As many as are kept: of a few pages, the last few answers each."""
ALL_BYTES = 64 * 2**20
"""What all of them may take in memory; the oldest goes first."""
TAPE_BYTES = 8 * 2**20
"""What came of one answer, each piece with what it takes to keep it: some twenty thousand frames."""
STEPS_BYTES = 16 * 2**20
"""What its steps may take: each tells what came, what was made of it, and what went out."""
REQUEST_BYTES = 256 * 2**10
"""The longest request that is shown: it is told each time the page asks."""
STEPS = 2_000
"""As many are told at once: a page draws them in a moment."""
AT_ONCE = 500
"""Steps that are played at once, in the event loop: some 20 ms."""
_ID = re.compile(r"[A-Za-z0-9_-]{22,64}")
_MOMENT_BYTES = 256  # of one in memory, besides its data
_NO_REQUEST, _NO_EVENTS = msgspec.Raw(b"{}"), msgspec.Raw(b"[]")


class Attempt(msgspec.Struct):
    """One time that a server was asked."""

    server: str
    part: int
    began_s: float
    is_local: bool
    status: int | None = None
    headers: list[tuple[str, str]] = []
    error: str | None = None


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


class Tapes:
    """The last answers that were watched, each for who asked for it."""

    def __init__(self, secrets: Secrets, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.secrets = secrets
        self.clock = clock
        self._watches: OrderedDict[tuple[str, str], Watch] = OrderedDict()

    def begin(
        self, principal: str, id: str, *, endpoint: str, model: str, is_stream: bool, began: float
    ) -> "Watch | None":
        """A watch of an answer; None where nothing can be called `id`. `began`: when its request came."""
        if _ID.fullmatch(id) is None:
            return None
        watch = Watch(self, id, endpoint=endpoint, model=model, is_stream=is_stream, began=began)
        old = self._watches.pop((principal, id), None)
        if old is not None:
            old.drop()
        self._watches[principal, id] = watch
        self.tidy()
        return watch

    def find(self, principal: str, id: str) -> "Watch | None":
        """The watch of this name that is theirs."""
        return self._watches.get((principal, id))

    def tidy(self) -> None:
        """Let the oldest go, where there is too much."""
        total = sum(watch.size for watch in self._watches.values())
        while len(self._watches) > TAPES or total > ALL_BYTES:
            _, oldest = self._watches.popitem(last=False)
            total -= oldest.size
            oldest.drop()


class Watch:
    """One answer that is watched. It is told what its pipe is told, right before it."""

    def __init__(self, tapes: Tapes, id: str, *, endpoint: str, model: str, is_stream: bool, began: float) -> None:
        self._kept_bytes = 0  # in all
        self._waiting_bytes = 0  # of what is not played yet
        self._steps_bytes = 0
        self._tapes = tapes
        self._id = id
        self._endpoint = endpoint
        self._model = model
        self._is_stream = is_stream
        self._began = began
        self._is_cut = False
        self._is_over = False
        self._attempts: list[Attempt] = []
        self._request = _NO_REQUEST
        self._tape_of: dict[int, PartTape] = {}
        self._player = Player(tapes.secrets)
        self._moments: deque[tuple[float, int, Callable[[], None]]] = deque()

    @property
    def size(self) -> int:
        """What it takes in memory."""
        return self._waiting_bytes + self._steps_bytes

    # What the answer tells.

    def made(self, make: Make) -> None:
        """A pipe was made; where there was another, what that one had said is forgotten."""
        self._keep(partial(self._player.made, make))

    def ask(self, part: int, server: str, body: bytes, *, is_local: bool) -> "PartTape":
        """A tape for a part that a server is asked for."""
        attempt = Attempt(server, part, self.now(), is_local)
        self._attempts.append(attempt)
        if len(body) <= REQUEST_BYTES:
            self._request = msgspec.Raw(self._tapes.secrets.clean_json(body))
        # What is kept of the request counts as much as all of it: how to make its pipe may hold its longest fields.
        self._keep(partial(self._player.asked, part, len(self._attempts) - 1), len(body))
        tape = self._tape_of[part] = PartTape(self, part, attempt)
        return tape

    def tune(self, part: int, *, think: Think, strict: frozenset[str], reword: Reword) -> None:
        """A part's server needs this."""
        self._keep(partial(self._player.tune, part, think, strict, reword))

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
        self._keep(partial(self._player.close, part))

    def fail(self, failure: Failure) -> None:
        """The answer breaks off."""
        self._keep(partial(self._player.fail, failure))

    def keep_alive(self) -> None:
        """A sign of life goes out."""
        self._keep(self._player.keep_alive)

    def body(self) -> None:
        """The reply goes out, which is not streamed."""
        self._keep(self._player.body)

    def refused(self, body: bytes) -> None:
        """Nothing goes out but this error."""
        self._keep(partial(self._player.refused, body), len(body))

    def end(self) -> None:
        """Nothing more will come, be it that the client has left."""
        for tape in self._tape_of.values():
            tape.used(0)
        self._is_over = True

    # What its tapes tell.

    def now(self) -> float:
        """Seconds since the request came."""
        return round(self._tapes.clock() - self._began, 6)

    def passed_over(self, data: bytes, part: int, at_s: float) -> None:
        """What came of a part, and its pipe was not given."""
        self._keep(partial(self._player.passed_over, data, part), len(data), at_s)

    # What the page asks.

    def told(self, start: int, *, is_admin: bool) -> Taped:
        """The steps from `start` on; who is no admin hears nothing of the servers behind this one."""
        self._play(start + STEPS)
        player = self._player
        steps = player.steps[start : start + STEPS]
        attempts = self._attempts
        if not is_admin:
            steps = [_without_bytes(step) if step.n in player.private else step for step in steps]
            attempts = [Attempt("", one.part, one.began_s, one.is_local, one.status) for one in attempts]
        is_all = not self._moments and start + len(steps) >= len(player.steps)
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

    def cut(self) -> None:
        """Keep no more than there is."""
        self._is_cut = True

    def drop(self) -> None:
        """Keep no more, and play no more of what was kept."""
        self._is_cut = True
        self._moments.clear()
        self._waiting_bytes = 0

    def _keep(self, moment: Callable[[], None], size: int = 0, at_s: float | None = None) -> None:
        size += _MOMENT_BYTES
        if self._is_cut:
            return
        if self._kept_bytes + size > TAPE_BYTES:
            self._is_cut = True
            return
        self._kept_bytes += size
        self._waiting_bytes += size
        self._moments.append((self.now() if at_s is None else at_s, size, moment))
        self._tapes.tidy()

    def _play(self, up_to: int) -> None:
        """Play on, up to so many steps in all, but not for long."""
        player = self._player
        up_to = min(up_to, len(player.steps) + AT_ONCE)
        while self._moments and len(player.steps) < up_to:
            player.at_s, size, moment = self._moments.popleft()
            before = len(player.steps)
            moment()
            self._waiting_bytes -= size
            self._steps_bytes += sum(step.size for step in player.steps[before:])
            if self._steps_bytes > STEPS_BYTES:
                self.drop()
        self._tapes.tidy()


class PartTape:
    """What comes of one part. What its pipe is given too is told by the watch; here is all the rest."""

    def __init__(self, watch: Watch, part: int, attempt: Attempt) -> None:
        self._watch = watch
        self._part = part
        self._attempt = attempt
        self._unused: list[tuple[float, bytes]] = []
        self._unused_bytes = 0

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The reply begins."""
        self._attempt.status = status
        self._attempt.headers = [(name, value) for name, value in headers.items() if name.lower() in HARMLESS]

    def data(self, data: bytes) -> None:
        """More of its body."""
        self._unused_bytes += len(data)
        if self._unused_bytes > TAPE_BYTES:
            self._watch.cut()
            self._unused.clear()
        else:
            self._unused.append((self._watch.now(), data))

    def end(self, error: str | None, *, is_left: bool = False) -> None:
        """It has ended; the last word on why it failed counts."""
        if error is not None:
            self._attempt.error = error

    def used(self, count: int) -> None:
        """The last bytes that came go to the pipe; those before them never will."""
        while count > 0 and self._unused:
            count -= len(self._unused.pop()[1])
        for at_s, data in self._unused:
            self._watch.passed_over(data, self._part, at_s)
        self._unused.clear()
        self._unused_bytes = 0


def _without_bytes(step: Shown) -> Shown:
    return msgspec.structs.replace(step, heard="", heard_base64=msgspec.UNSET, events=_NO_EVENTS, notes=[])
