"""What a reply tells of how it came to be, where that is wanted: what took how long, and what was mended."""

from collections.abc import Mapping

from welldone.serve.backends import Seat
from welldone.serve.times import StreamTimes
from welldone.wire.fold import Fold
from welldone.wire.native import Native
from welldone.wire.pipe import Pipe

REPAIRS = "x-welldone-repairs"
UPSTREAM = "x-welldone-upstream"
TIMING = "Server-Timing"
BROKEN = "x-welldone-broken-json"
PRINTED = "x-welldone-printed-calls"
"""How many answers look like a tool call that the model wrote as text."""
WANTED = "x-welldone-report"
"""The header with which a client asks for it."""
_RULES_LIMIT = 64  # in a header, which proxies cut at 4 to 8 KB


class Report:
    """The report on one answer."""

    def __init__(self, request_id: str, times: StreamTimes, *, is_wanted: bool, is_open: bool) -> None:
        self.request_id = request_id
        self.times = times
        self.upstream = ""
        """Who answered last."""
        self.attempts = 0
        self.failed: list[str] = []
        """Who did not answer, and why: `lab:timeout`."""
        self._is_wanted = is_wanted
        self._is_open = is_open  # whether this client may see the names of upstreams

    def seat(self, seat: Seat) -> None:
        """A part is asked for here."""
        self.attempts += 1
        if seat.upstream is not None:
            self.upstream = seat.name

    @property
    def trailer_names(self) -> tuple[str, ...]:
        """What a stream tells at its end."""
        if not self._is_wanted:
            return ()
        return (REPAIRS, BROKEN, PRINTED, TIMING, *((UPSTREAM,) if self._is_open else ()))

    def headers(self) -> Mapping[str, str]:
        """What is known when the reply begins."""
        if not self._is_wanted:
            return {}
        return {TIMING: self._timing(), **self._named()}

    def trailers(self, pipe: Pipe | Fold | Native) -> Mapping[str, str]:
        """What is known when it has ended."""
        if not self._is_wanted:
            return {}
        rules = [note.rule for note in pipe.notes.all()]
        broken = f"content={pipe.broken_json}, arguments={pipe.broken_arguments}"
        told = {REPAIRS: ", ".join(rules[:_RULES_LIMIT]), BROKEN: broken, PRINTED: str(pipe.printed_calls)}
        # The upstream again: a stream that waited began before one was chosen, and an attempt may have failed since.
        return {**told, TIMING: self._timing(), **self._named()}

    def _named(self) -> dict[str, str]:
        return {UPSTREAM: self.upstream} if self.upstream and self._is_open else {}

    def _timing(self) -> str:
        """As https://www.w3.org/TR/server-timing/ has it, in milliseconds."""
        times = self.times
        known = (("queue", times.queued_s), ("first", times.ttft_s), ("total", times.took_s))
        return ", ".join(f"{name};dur={seconds * 1000:.1f}" for name, seconds in known if seconds is not None)
